// What the consumers of the paper's own algorithms (paper/alg*.cu) have in common. They take no split tiles, so each
// piece is a tile, and they finish one tile before they begin the next. The kernel for use, fwd.cu, has its own: it
// begins the next piece while it finishes this one.
#pragma once
#include "../tile/epilogue/epilogue.cuh"
#include "../tile/gemm.cuh"
#include "../tile/ring.cuh"
#include "../tile/scores/mask.cuh"

namespace fa3 {

// Pingpong: two warpgroups take turns at issuing GEMMs, so that one's softmax runs under the other's GEMMs (the paper's
// section 3.1). Both must take as many turns. Without Trait::pingpong nothing happens here.
struct Turns {
  int warpgroup;

  FA3_DEVICE explicit Turns(int warpgroup) : warpgroup(warpgroup) {
    if constexpr (has(Trait::pingpong)) {
      static_assert(!has(Trait::pingpong) || warpgroups == 2);
      if (warpgroup == 1) ptx::bar_arrive(barrier_turn + 0, 256);  // the first turn is warpgroup 0's
    }
  }
  FA3_DEVICE void begin() const {
    if constexpr (has(Trait::pingpong)) ptx::bar_sync(barrier_turn + warpgroup, 256);
  }
  FA3_DEVICE void end() const {
    if constexpr (has(Trait::pingpong)) ptx::bar_arrive(barrier_turn + (warpgroup ^ 1), 256);
  }
  // After the last turn of all: takes the arrival that is left over.
  FA3_DEVICE void close() const {
    if constexpr (has(Trait::pingpong))
      if (warpgroup == 0) ptx::bar_sync(barrier_turn + 0, 256);
  }
};

// Writes O and LSE of a warpgroup's 64 rows. All its four warps call this. O leaves through the buffer of the rows' Q.
FA3_DEVICE void write_tile(float (&O)[o_columns / 2], const RowState& state, Smem& smem, uint32_t q_buffer,
                           const Params& p, const RowBlock& block, int warpgroup, int warp) {
  const float l[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
  if (l[0] == 0.f || l[1] == 0.f) clear_empty_rows(O, l);
  uint32_t o[o_columns / 4];
  const Sinks sinks(p, block, warp);
  normalize(o, O, state, l, {1.f, 1.f}, sinks);
  ptx::bar_sync(barrier_warpgroup + warpgroup, 128);  // all four warps have read Q for the last time
  store_o(o, smem, q_buffer, p, block, warp);
  store_lse(state, l, sinks, p, block, warp);
}

// How far a warpgroup is: the tile whose Q it holds, and where that is in the two rings (ring.cuh).
struct Progress {
  static_assert(split_stage, "K and V of a stage are released each on its own");
  Smem& smem;
  const KvRing ring;
  const Turns turns;
  const Descriptors descriptors;
  int warpgroup, warp;
  uint32_t q_use;      // use of the Q ring that holds its Q
  RowBlock block;      // that came with it
  uint32_t first = 0;  // use of the K/V ring that holds the tile's first K

  FA3_DEVICE Progress(Smem& smem, int warpgroup, int warp)
      : smem(smem), ring{smem}, turns(warpgroup), descriptors(smem), warpgroup(warpgroup), warp(warp),
        q_use(warpgroup) {}

  FA3_DEVICE uint32_t q_buffer() const { return QRing::index(q_use); }
  // The use of the K/V ring that holds the first K that this warpgroup computes with, and the number of its K/V blocks.
  // Shuffled, as the compiler must know that they are the same in all lanes: or it moves every descriptor of the main
  // loop from lane registers to uniform ones.
  FA3_DEVICE uint32_t own() const { return __shfl_sync(0xffffffffu, first + block.skipped, 0); }
  FA3_DEVICE int blocks() const { return __shfl_sync(0xffffffffu, block.blocks, 0); }
  FA3_DEVICE int warp_row() const { return block.row + 16 * warp; }

  // Operands of the GEMMs; i: use of the K/V ring.
  FA3_DEVICE uint64_t q() const { return descriptors.q(q_buffer()); }
  FA3_DEVICE uint64_t k(uint32_t i) const { return descriptors.k(KvRing::index(i)); }
  FA3_DEVICE uint64_t v(uint32_t i) const { return descriptors.v(KvRing::index(i)); }

  // Writes O and LSE, and releases the Q buffer.
  FA3_DEVICE void finish(float (&O)[o_columns / 2], const RowState& state, const Params& p) {
    write_tile(O, state, smem, q_buffer(), p, block, warpgroup, warp);
    if (threadIdx.x % 32 == 0) ptx::cp_async_bulk_wait_group_read<0>();
    __syncwarp();
    ptx::mbarrier_arrive(ptx::shared_address(&smem.empty_q[q_buffer()]));
    first += block.skipped + block.blocks;
    q_use += warpgroups;
  }

  // Goes on to the next tile in which the warpgroup's rows see a key, and waits for its Q. On the way it finishes tiles
  // in which they see none, and releases the blocks that it skips, with a turn for each, and the last V of the tile
  // before. O, m and l are then those of rows that have seen nothing. Returns false after the last tile, when
  // everything is written.
  FA3_DEVICE bool next_tile(float (&O)[o_columns / 2], RowState& state, const Params& p) {
    state = nothing_seen();
    for (;;) {
      clear(O);
      wait(smem.full_q[QRing::full_index(q_use)], QRing::full_parity(q_use));
      block = smem.row_block[q_buffer()];
      if (blocks() == RowBlock::end_of_work) break;
      const uint32_t own = this->own();
      for (uint32_t i = first; i < own; i++) {
        turns.begin();
        turns.end();
        ring.skip(i, i + 1, false);
      }
      if (blocks() > 0) {
        ring.wait_v(own);
        ring.release_v(own, false);
        ptx::wgmma_owned(O);
        return true;
      }
      finish(O, state, p);
    }
    turns.close();
    if (threadIdx.x % 32 == 0) ptx::cp_async_bulk_wait_group<0>();
    return false;
  }
};

}  // namespace fa3
