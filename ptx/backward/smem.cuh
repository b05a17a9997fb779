// The shared memory of a backward kernel, and its barriers. No offset arithmetic exists outside this struct.
#pragma once
#include "../isa/fence.cuh"
#include "../params/backward_params.h"
#include "../tile/element.cuh"
#include "claims.cuh"
#include "key_mean.cuh"
#include "tile/ring.cuh"
#include "tile/score_transform.cuh"
#include "tile/scores.cuh"
#include "tile/sequence.cuh"

namespace fa3 {

inline constexpr int query_stages = config.stages, ds_buffers = 2;
static_assert(Br % backward_tile_rows == 0);
inline constexpr int query_slabs = Br / 64;  // of dS: a slab's rows hold 64 queries
// dQ is computed, staged and sent in squares of 64 rows and so many columns.
inline constexpr int dq_columns = 64, dq_column_squares = d / dq_columns, dq_squares = query_slabs * dq_column_squares;

struct alignas(1024) BackwardSmem {
  Element k[Bc * d], v[Bc * d];  // slabs of 64 columns
  Element q[query_stages][Br * d], dout[query_stages][Br * d];
  Element ds[ds_buffers][Bc * Br];         // dS^T: a row for each key
  float dq[dq_squares][4][16 * dq_columns];  // of each warp's 16 rows
  float lse[query_stages][Br], delta[query_stages][Br];
  KeyMean key_mean[has(Trait::centered_k)];
  int first_query[query_stages];
  TileBias bias[has(Trait::alibi) ? query_stages : 0];

  uint64_t full_k, full_v, empty_k, empty_v;
  uint64_t full_q[query_stages], full_dout[query_stages];    // with first_query and lse; with delta
  uint64_t empty_q[query_stages], empty_dout[query_stages];
  uint64_t full_ds[ds_buffers], empty_ds[ds_buffers];
  uint64_t full_dq[2][dq_squares];  // of every other tile, as two threads may take turns (dq_writer)
  uint64_t empty_dq[dq_squares];
  uint64_t s_done[ds_buffers];  // both consumers have S of the next tile: dQ may take the tensor cores (bwd.cu)
  uint64_t sums_ready;          // of the strips that this thread block rounds
  uint64_t staged, stored;      // dV and dK
  KeyClaims claims;
  Sequence sequence[planned];        // that K is of, which comes with it, if it has lengths of its own
  PlainRows plain_rows[planned][warpgroups];  // of the keys of each consumer
  SequenceLoads loads[planned];  // the same for the producer, which is ahead
  BiasLoads bias_loads[has(Trait::alibi)];
};
static_assert(sizeof(BackwardSmem) == config.smem_bytes());

// What the rows of K's sequence see.
FA3_DEVICE Visible visible(const BackwardParams& p, const BackwardSmem& smem) {
  if constexpr (planned) return visible(smem.sequence[0]);
  return visible(p);
}

// Does a tile need a mask for the keys of a consumer?
FA3_DEVICE bool needs_mask(const BackwardParams& p, const BackwardSmem& smem, int warpgroup, int first_key, int query) {
  if constexpr (planned) return !smem.plain_rows[0][warpgroup].hold(query);
  return needs_mask(visible(p), first_key, query);
}

// Where dV and dK of 64 keys wait to be stored: in a stage of Q and dO that holds nothing else; or, if that has no room
// for both, dV in the rows of V, which its warpgroup alone has read.
inline constexpr bool dv_in_stage = Br >= Bc;
inline constexpr int dv_buffer_rows = dv_in_stage ? 64 : Bc;
static_assert(warpgroups == 2 && 2 * Br >= Bc);
FA3_DEVICE Element* dv_buffer(BackwardSmem& smem, int stage, int warpgroup) {
  return dv_in_stage ? smem.q[stage] + warpgroup * 64 * d : smem.v + warpgroup * 64 * slab_columns;
}
FA3_DEVICE Element* dk_buffer(BackwardSmem& smem, int stage, int warpgroup) {
  if (dv_in_stage) return smem.dout[stage] + warpgroup * 64 * d;
  return warpgroup == 0 ? smem.q[stage] : smem.dout[stage];
}

// With softcap: where a thread keeps the derivatives while dP is computed: in its warp's part of the buffer that dS is
// for, of two keys and two of every eight queries at a time.
class KeptSlopes {
 public:
  FA3_DEVICE KeptSlopes(BackwardSmem& smem, int buffer, int warpgroup, int warp, int lane)
      : first_(reinterpret_cast<uint2*>(smem.ds[buffer] + (64 * warpgroup + 16 * warp) * slab_columns) + lane) {}

  FA3_DEVICE uint2& operator[](int g) const { return first_[g / 8 * (Bc * slab_row_bytes / 8) + g % 8 * 32]; }

 private:
  uint2* const first_;
};

// Where 64 rows and dq_columns columns of a complete dQ wait to be stored.
FA3_DEVICE Element* dq_buffer(BackwardSmem& smem, int square) { return reinterpret_cast<Element*>(smem.dq[square]); }

// By one thread, before a barrier of the whole thread block. Filled by one thread or by the eight warps of the
// consumers; released by those, or by the four warps that compute dQ. K is released by both: the four read it last, and
// the eight have waited for it. Claims are read by all of these warps, dq_writer, gradient_writer, and one more:
// preparer or, if dQ is added in a fixed order, a second dq_writer.
FA3_DEVICE void init_barriers(BackwardSmem& smem, bool ordered) {
  constexpr int consumer_arrivals = 4 * warpgroups * warp_arrivals, dq_arrivals = 4 * warp_arrivals;
  init(smem.full_k, 1);
  init(smem.full_v, 1);
  init(smem.empty_k, consumer_arrivals + dq_arrivals);
  init(smem.empty_v, dv_in_stage ? consumer_arrivals : 1);
  init(smem.sums_ready, 1);
  init(smem.staged, consumer_arrivals);
  init(smem.stored, 1);
  smem.claims.init(consumer_arrivals + dq_arrivals + 2 + (ordered ? 1 : has(Trait::prepares_ahead) * warp_arrivals));
  for (int i = 0; i < dq_squares; i++) {
    init(smem.full_dq[0][i], dq_arrivals);
    init(smem.full_dq[1][i], dq_arrivals);
    init(smem.empty_dq[i], 1);
  }
  for (int s = 0; s < query_stages; s++) {
    init(smem.full_q[s], 1);
    init(smem.full_dout[s], 1);
    init(smem.empty_q[s], consumer_arrivals);
    init(smem.empty_dout[s], consumer_arrivals);
  }
  for (int i = 0; i < ds_buffers; i++) {
    init(smem.full_ds[i], consumer_arrivals);
    init(smem.empty_ds[i], dq_arrivals);
    init(smem.s_done[i], consumer_arrivals);
  }
  ptx::fence_mbarrier_init();
}

}  // namespace fa3
