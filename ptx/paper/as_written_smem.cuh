// The shared memory of alg3.cu, and its barriers. No offset arithmetic exists outside this struct.
#pragma once
#include "../backward/tile/ring.cuh"
#include "../isa/fence.cuh"
#include "../params/backward_params.h"
#include "../tile/element.cuh"

namespace fa3 {

static_assert(Br == backward_tile_rows && warpgroups == 2);
// dS is written while the other warpgroup may still multiply with that of the tile before.
inline constexpr int ds_buffers = 2;
// Each warpgroup computes as many columns of dQ.
inline constexpr int dq_columns = d / warpgroups;

struct alignas(1024) AsWrittenSmem {
  Element k[Bc * d], v[Bc * d];  // slabs of 64 columns; at the end each warpgroup's rows are dK's and dV's
  Element q[config.stages][Br * d], dout[config.stages][Br * d];
  Element ds[ds_buffers][Bc * Br];  // dS^T: a row for each key
  float dq[warpgroups][4][16 * dq_columns];
  float lse[config.stages][Br], delta[config.stages][Br];

  uint64_t full_k, full_v;
  uint64_t full_q[config.stages], full_dout[config.stages];  // with the tile's lse, and its delta
  uint64_t empty_q[config.stages], empty_dout[config.stages];
  uint64_t full_dq, empty_dq;
};
static_assert(sizeof(AsWrittenSmem) == config.smem_bytes());

// By one thread, before a barrier of the whole thread block. Filled by one thread, or by the eight warps of the
// consumers; released by those, or by the thread that adds dQ.
FA3_DEVICE void init_barriers(AsWrittenSmem& smem) {
  init(smem.full_k, 1);
  init(smem.full_v, 1);
  for (int s = 0; s < config.stages; s++) {
    init(smem.full_q[s], 1);
    init(smem.full_dout[s], 1);
    init(smem.empty_q[s], 4 * warpgroups);
    init(smem.empty_dout[s], 4 * warpgroups);
  }
  init(smem.full_dq, 4 * warpgroups);
  init(smem.empty_dq, 1);
  ptx::fence_mbarrier_init();
}

}  // namespace fa3
