// The shared memory of bwd_keys.cu, and its barriers. No offset arithmetic exists outside this struct.
#pragma once
#include "../isa/fence.cuh"
#include "../params/backward_params.h"
#include "../tile/element.cuh"
#include "tile/ring.cuh"
#include "tile/score_transform.cuh"
#include "tile/scores.cuh"
#include "tile/work.cuh"

namespace fa3 {

static_assert(Br == backward_tile_rows && Bc == 64);
inline constexpr int p_buffers = 2;

struct alignas(1024) KeysSmem {
  Element k[Bc * d], v[Bc * d];  // slabs of 64 columns; at the end dV takes the place of K, and dK that of V
  Element q[config.stages][Br * d], dout[config.stages][Br * d];
  uint4 p[p_buffers][Br / 16][128];  // P^T, as the threads of a warpgroup hold it
  uint2 slopes[has(Trait::softcap) ? p_buffers : 0][Br / 8][128];  // the derivatives, as the same threads hold them
  float lse[config.stages][Br], delta[config.stages][Br];

  uint64_t full_k, full_v;
  uint64_t full_q[config.stages], full_dout[config.stages];  // with the tile's lse, and its delta
  uint64_t empty_q[config.stages], empty_dout[config.stages];
  uint64_t full_p[p_buffers], empty_p[p_buffers];
  int first_query[planned ? config.stages : 0];  // of the tile in a stage, if its sequence has lengths of its own
  PlainRows plain_rows[planned];
  SequenceLoads loads[planned];  // with the sequence itself
  TileBias bias[has(Trait::alibi) ? config.stages : 0];
  BiasLoads bias_loads[has(Trait::alibi)];
};
static_assert(sizeof(KeysSmem) == config.smem_bytes());

// By one thread, before a barrier of the whole thread block. Filled by one thread, or by the four warps that compute P;
// released by all warps that read, or by those that are known to be the last.
FA3_DEVICE void init_barriers(KeysSmem& smem) {
  init(smem.full_k, 1);
  init(smem.full_v, 1);
  for (int s = 0; s < config.stages; s++) {
    init(smem.full_q[s], 1);
    init(smem.full_dout[s], 1);
    init(smem.empty_q[s], 4 * warp_arrivals);  // the warps that compute dK: they have P, so S is done (bwd_keys.cu)
    init(smem.empty_dout[s], 8 * warp_arrivals);
  }
  for (int i = 0; i < p_buffers; i++) {
    init(smem.full_p[i], 4 * warp_arrivals);
    init(smem.empty_p[i], 4 * warp_arrivals);
  }
  ptx::fence_mbarrier_init();
}

// What all need to know of the sequence of the key block of this number, if it has lengths of its own. By one thread,
// before that barrier.
FA3_DEVICE void keep_work(const Params& p, KeysSmem& smem, int number) {
  const KeyWork work(p, number);
  keep_sequence(p, smem, work);
  if constexpr (has(Trait::alibi)) smem.bias_loads[0].keep(p, number);
  smem.plain_rows[0].find(smem.loads[0].sequence, work.key);
}

// What the rows of the keys' sequence see, and whether a tile needs a mask.
FA3_DEVICE Visible visible(const BackwardParams& p, const KeysSmem& smem) {
  if constexpr (planned) return visible(smem.loads[0].sequence);
  return visible(p);
}
FA3_DEVICE bool needs_mask(const BackwardParams& p, const KeysSmem& smem, int first_key, int query) {
  if constexpr (planned) return !smem.plain_rows[0].hold(query);
  return needs_mask(visible(p), first_key, query);
}

}  // namespace fa3
