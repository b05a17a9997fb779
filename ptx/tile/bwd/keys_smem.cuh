// The shared memory of bwd_keys.cu, and its barriers. No offset arithmetic exists outside this struct.
#pragma once
#include "../../backward_params.h"
#include "../../isa/fence.cuh"
#include "../element.cuh"
#include "ring.cuh"

namespace fa3 {

static_assert(Br == backward_tile_rows && Bc == 64);
inline constexpr int p_buffers = 2;

struct alignas(1024) KeysSmem {
  Element k[Bc * d], v[Bc * d];  // slabs of 64 columns; at the end dV takes the place of K, and dK that of V
  Element q[config.stages][Br * d], dout[config.stages][Br * d];
  uint4 p[p_buffers][Br / 16][128];  // P^T, as the threads of a warpgroup hold it
  float lse[config.stages][Br], delta[config.stages][Br];

  uint64_t full_k, full_v;
  uint64_t full_q[config.stages], full_dout[config.stages];  // with the tile's lse, and its delta
  uint64_t empty_q[config.stages], empty_dout[config.stages];
  uint64_t full_p[p_buffers], empty_p[p_buffers];
};
static_assert(sizeof(KeysSmem) <= config.smem_bytes(), "row.h reserves too little shared memory");

// By one thread, before a barrier of the whole thread block. Filled by one thread, or by the four warps that compute P;
// released by all warps that read, or by those that are known to be the last.
FA3_DEVICE void init_barriers(KeysSmem& smem) {
  init(smem.full_k, 1);
  init(smem.full_v, 1);
  for (int s = 0; s < config.stages; s++) {
    init(smem.full_q[s], 1);
    init(smem.full_dout[s], 1);
    init(smem.empty_q[s], 4);  // the warps that compute dK: they have P, so S is done (bwd_keys.cu)
    init(smem.empty_dout[s], 8);
  }
  for (int i = 0; i < p_buffers; i++) {
    init(smem.full_p[i], 4);
    init(smem.empty_p[i], 4);
  }
  ptx::fence_mbarrier_init();
}

}  // namespace fa3
