// The producer warpgroup where sequences have lengths of their own (Trait::planned): its pieces come from a list in
// device memory (planned_piece.h). The consumers are told the same, in the same order, as by producer.cuh.
//
// From the claim of a piece until its entry of the list is there it takes 1.5 us. So a warp does nothing else: it hands
// pieces over to the others in shared memory, the next one while they load the present one. Where K and V lie in pages,
// their blocks come in boxes of few rows. The lanes of a warp look up the pages of a block's boxes, two blocks ahead:
// while memory is busy, a page's number takes longer to come than a block. One box costs a warp 35 clocks, whatever its
// size, so two warps share them.
//   warps 0 and 1  K and V; warp 1 only where a block is more than one box
//   warp 2         Q
//   warp 3         claims pieces
// Where V lands beside its stage, two warps mend it (landing.cuh), and the others have more to do:
//   warp 0         K and V
//   warp 1         Q and the claims, in turn
//   warps 2 and 3  mend V, or widen K and V; or four warps of a second warpgroup do
#pragma once
#include "../isa/grid.cuh"
#include "../isa/setmaxnreg.cuh"
#include "../tile/loads/transpose.cuh"
#include "planned_keys.cuh"
#include "planned_pieces.cuh"
#include "planned_queries.cuh"
#include "widen.cuh"

namespace fa3 {

// The producer warpgroup, or both. `warp` of its four, or of their eight.
template <class P>
FA3_DEVICE void planned_producer(const P& p, Smem& smem, int warp) {
  if constexpr (config.moves_registers()) ptx::setmaxnreg_dec<config.producer_registers()>();
  ptx::griddepcontrol_wait();  // the pass that makes the list may be under way
  if constexpr (config.lands_v()) {
    if (warp == 0) {
      PlannedKvProducer<P>(p, smem, warp).run();
    } else if (warp == 1) {
      if constexpr (config.packs_heads()) PieceProducer<P>(p, smem).run();
      else PieceProducer<P>(p, smem).run_with_q();
    } else if constexpr (widens) {
      constexpr int first_mender = 2 * config.producers();
      if (warp >= first_mender) widen_landings(smem, warp - first_mender);
    } else {
      mend_landings(smem, Transposer(warp - 2));
    }
  } else {
    if (warp < 2) PlannedKvProducer<P>(p, smem, warp).run();
    else if (warp == 3) PieceProducer<P>(p, smem).run();
    else if (threadIdx.x % 32 == 0) planned_q_producer(p, smem);
  }
}

}  // namespace fa3
