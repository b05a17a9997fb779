// The shared memory of bwd_queries.cu, and its barriers. No offset arithmetic exists outside this struct.
#pragma once
#include "../isa/fence.cuh"
#include "../tile/element.cuh"
#include "query_work.cuh"
#include "tile/ring.cuh"
#include "tile/score_transform.cuh"

namespace fa3 {

inline constexpr int k_stages = config.stages, v_stages = 1;

struct alignas(1024) QueriesSmem {
  Element q[warpgroups][64 * d], dout[warpgroups][64 * d];  // slabs of 64 columns; at the end dQ takes the place of Q
  Element k[k_stages][Bc * d], v[v_stages][Bc * d];

  uint64_t full_q[warpgroups], full_dout[warpgroups];
  uint64_t full_k[k_stages], empty_k[k_stages];
  uint64_t full_v[v_stages], empty_v[v_stages];
  SequenceLoads loads[planned];  // with the sequence itself
  QueryWork work[transforms_scores];
  RowBias bias[has(Trait::alibi)];
};
static_assert(sizeof(QueriesSmem) == config.smem_bytes());

// By one thread, before a barrier of the whole thread block. Filled by one thread; released by the four warps of each
// warpgroup that has rows.
FA3_DEVICE void init_barriers(QueriesSmem& smem, int warpgroups_with_rows) {
  for (int i = 0; i < warpgroups; i++) {
    init(smem.full_q[i], 1);
    init(smem.full_dout[i], 1);
  }
  for (int i = 0; i < k_stages; i++) {
    init(smem.full_k[i], 1);
    init(smem.empty_k[i], 4 * warpgroups_with_rows * warp_arrivals);
  }
  for (int i = 0; i < v_stages; i++) {
    init(smem.full_v[i], 1);
    init(smem.empty_v[i], 4 * warpgroups_with_rows * warp_arrivals);
  }
  ptx::fence_mbarrier_init();
}

// What all need to know of the sequence, if it has lengths of its own. By one thread, before that barrier.
FA3_DEVICE void keep_work(const BackwardParams&, QueriesSmem&, const QueryWork&) {}
FA3_DEVICE void keep_work(const PlannedBackwardParams& p, QueriesSmem& smem, const QueryWork& work) {
  smem.loads[0].keep(p, sequence_of(p, work));
  if constexpr (transforms_scores) smem.work[0] = work;
  if constexpr (has(Trait::alibi)) smem.bias[0].keep(static_cast<const Params&>(p), work.batch, work.head);
}

// What the rows see.
FA3_DEVICE Visible visible(const BackwardParams& p, const QueriesSmem& smem) {
  if constexpr (planned) return visible(smem.loads[0].sequence);
  return visible(p);
}

}  // namespace fa3
