// What the consumers of the paper's own algorithms (kernels/alg*.cu) have in common: the work of a warpgroup, tile by tile,
// each tile on its own. The kernel for use, fwd.cu, joins tiles instead and does without this.
#pragma once
#include "epilogue.cuh"
#include "gemm.cuh"
#include "mask.cuh"
#include "ring.cuh"

namespace fa3 {

// Pingpong: warpgroups take turns at issuing GEMMs, so that one's softmax runs under another's GEMMs (section 3.1). Both
// warpgroups must take as many turns. Nothing unless the row says so.
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

// O and LSE of a tile whose Q is in the slot, by all four warps of the warpgroup.
FA3_DEVICE void write_tile(float (&O)[dv / 2], const RowState& state, Smem& smem, uint32_t slot, const Params& p,
                           const RowBlock& block, int warpgroup, int warp) {
  const float l[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
  if (l[0] == 0.f || l[1] == 0.f) clear_empty_rows(O, l);
  uint32_t o[dv / 4];
  normalize(o, O, l);
  ptx::bar_sync(barrier_warpgroup + warpgroup, 128);  // all four warps have read Q for the last time
  store_o(o, smem, slot, p, block, warp);
  store_lse(state, l, p, block, warp);
}

// How far a warpgroup is: the tile whose Q it holds, and its uses of the two rings.
struct Progress {
  static_assert(config.kind == Kind::pass || split_stage, "K and V of a stage are released each on its own");
  Smem& smem;
  const KvRing ring;
  const Turns turns;
  const Descriptors descriptors;
  int warpgroup, warp;
  uint32_t q_use;
  RowBlock block;      // of the tile
  uint32_t first = 0;  // use of the K/V ring that holds the tile's first K

  FA3_DEVICE Progress(Smem& smem, int warpgroup, int warp)
      : smem(smem), ring{smem}, turns(warpgroup), descriptors(smem), warpgroup(warpgroup), warp(warp), q_use(warpgroup) {}

  FA3_DEVICE uint32_t slot() const { return QRing::index(q_use); }
  // The use with the first K of these rows, and their number of blocks. Shuffled, as the compiler must know that they are the
  // same in all lanes, or it moves every descriptor of the main loop from lane registers to uniform ones.
  FA3_DEVICE uint32_t own() const { return __shfl_sync(0xffffffffu, first + block.skipped, 0); }
  FA3_DEVICE int blocks() const { return __shfl_sync(0xffffffffu, block.blocks, 0); }
  FA3_DEVICE int warp_row() const { return block.row + 16 * warp; }
  FA3_DEVICE uint64_t q() const { return descriptors.q(slot()); }
  FA3_DEVICE uint64_t k(uint32_t i) const { return descriptors.k(KvRing::index(i)); }
  FA3_DEVICE uint64_t v(uint32_t i) const { return descriptors.v(KvRing::index(i)); }

  // O and LSE of the tile; then its slot is free.
  FA3_DEVICE void finish(float (&O)[dv / 2], const RowState& state, const Params& p) {
    write_tile(O, state, smem, slot(), p, block, warpgroup, warp);
    if (threadIdx.x % 32 == 0) ptx::cp_async_bulk_wait_group_read_0();
    __syncwarp();
    ptx::mbarrier_arrive(ptx::shared_address(&smem.empty_q[slot()]));
    first += block.skipped + block.blocks;
    q_use += warpgroups;
  }

  // Waits for the Q of the next tile in which these rows see a key, and lets go of the V of the tile before and of the blocks
  // that they skip, with a turn for each; O and state are those of rows that have seen nothing. Tiles in which they see
  // no key are finished on the way. False after the last tile, when everything is written.
  FA3_DEVICE bool begin(float (&O)[dv / 2], RowState& state, const Params& p) {
    state = nothing_seen();
    for (;;) {
      clear(O);
      wait(smem.full_q[QRing::full_index(q_use)], QRing::full_parity(q_use));
      block = smem.row_block[slot()];
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
    if (threadIdx.x % 32 == 0) ptx::cp_async_bulk_wait_group_0();
    return false;
  }
};

}  // namespace fa3
