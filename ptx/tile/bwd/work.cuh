// What a thread block of the backward pass works on at a time.
#pragma once
#include "../../backward_tiles.h"
#include "sequence.cuh"

namespace fa3 {

struct KeyWork : KeyBlockWork<Br, Bc> {
  FA3_DEVICE KeyWork(const BackwardParams& p, int number) : KeyBlockWork(p, number) { find_tiles(p, visible(p)); }
  FA3_DEVICE KeyWork(const PlannedBackwardParams& p, int number) : KeyBlockWork(p, number) { take_all_tiles(p); }
};

// What its rows are asked for by: their batch entry, or their Sequence.
FA3_DEVICE int sequence_of(const BackwardParams&, const KeyWork& work) { return work.batch; }
FA3_DEVICE const Sequence& sequence_of(const PlannedBackwardParams& p, const KeyWork& work) {
  return p.sequences[work.batch];
}
// The same for the producer, which has no registers for it, and keeps a copy in shared memory.
template <typename Smem>
FA3_DEVICE int sequence_of(const BackwardParams&, const Smem&, const KeyWork& work) {
  return work.batch;
}
template <typename Smem>
FA3_DEVICE const Sequence& sequence_of(const PlannedBackwardParams&, const Smem& smem, const KeyWork&) {
  return smem.sequence_of_loads[0];
}
template <typename Smem>
FA3_DEVICE void keep_sequence(const BackwardParams&, Smem&, const KeyWork&) {}
template <typename Smem>
FA3_DEVICE void keep_sequence(const PlannedBackwardParams& p, Smem& smem, const KeyWork& work) {
  smem.sequence_of_loads[0] = p.sequences[work.batch];
}

}  // namespace fa3
