// The shared memory of a backward kernel, and its barriers. No offset arithmetic exists outside this struct.
#pragma once
#include "../../backward_params.h"
#include "../../isa/fence.cuh"
#include "../element.cuh"
#include "ring.cuh"

namespace fa3 {

inline constexpr int query_stages = config.stages, ds_buffers = 2;
static_assert(Br % backward_tile_rows == 0);
inline constexpr int query_slabs = Br / 64;  // of dS: a slab's rows hold 64 queries
// dQ is computed, staged and sent in parts of 64 rows and so many columns.
inline constexpr int dq_columns = 64, dq_column_parts = d / dq_columns, dq_parts = query_slabs * dq_column_parts;

struct alignas(1024) BackwardSmem {
  Element k[Bc * d], v[Bc * d];  // slabs of 64 columns; at the end dK and dV take their places
  Element q[query_stages][Br * d], dout[query_stages][Br * d];
  Element ds[ds_buffers][Bc * Br];         // dS^T: a row for each key
  float dq[dq_parts][4][16 * dq_columns];  // of each warp's 16 rows
  float lse[query_stages][Br], delta[query_stages][Br];

  uint64_t full_k, full_v;
  uint64_t full_q[query_stages], full_dout[query_stages];    // with the tile's lse, and its delta
  uint64_t empty_q[query_stages], empty_dout[query_stages];
  uint64_t full_ds[ds_buffers], empty_ds[ds_buffers];
  uint64_t full_dq[dq_parts], empty_dq[dq_parts];
  uint64_t s_done[ds_buffers];  // both consumers have S of the next tile: dQ may take the tensor cores (bwd.cu)
};
static_assert(sizeof(BackwardSmem) <= config.smem_bytes(), "row.h reserves too little shared memory");

// By one thread, before a barrier of the whole thread block. Filled by one thread or by the eight warps of the
// consumers; released by those, or by the four warps that compute dQ.
FA3_DEVICE void init_barriers(BackwardSmem& smem) {
  init(smem.full_k, 1);
  init(smem.full_v, 1);
  for (int i = 0; i < dq_parts; i++) {
    init(smem.full_dq[i], 4);
    init(smem.empty_dq[i], 1);
  }
  for (int s = 0; s < query_stages; s++) {
    init(smem.full_q[s], 1);
    init(smem.full_dout[s], 1);
    init(smem.empty_q[s], 4 * warpgroups);
    init(smem.empty_dout[s], 4 * warpgroups);
  }
  for (int i = 0; i < ds_buffers; i++) {
    init(smem.full_ds[i], 4 * warpgroups);
    init(smem.empty_ds[i], 4);
    init(smem.s_done[i], 4 * warpgroups);
  }
  ptx::fence_mbarrier_init();
}

}  // namespace fa3
