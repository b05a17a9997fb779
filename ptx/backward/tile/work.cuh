// What a thread block of the backward pass works on at a time.
#pragma once
#include "backward_tiles.h"
#include "sequence.cuh"

namespace fa3 {

struct KeyWork : KeyBlockWork<Br, Bc, config.listed_rows()> {
  FA3_DEVICE KeyWork(const BackwardParams& p, int number) : KeyBlockWork(p, number) { find_tiles(p, visible(p)); }
  FA3_DEVICE KeyWork(const PlannedBackwardParams& p, int number) : KeyBlockWork(p, number) {}
};

// What its rows are asked for by: their batch entry, or their Sequence.
FA3_DEVICE int sequence_of(const BackwardParams&, const KeyWork& work) { return work.batch; }
FA3_DEVICE const Sequence& sequence_of(const PlannedBackwardParams& p, const KeyWork& work) {
  return p.blocks[work.batch].sequence;
}
// What the rows of that sequence see.
FA3_DEVICE Visible visible(const BackwardParams& p, const KeyWork&) { return visible(p); }
FA3_DEVICE Visible visible(const PlannedBackwardParams& p, const KeyWork& work) {
  return visible(sequence_of(p, work));
}

// Where the producer finds rows, of which it keeps what it needs in shared memory.
template <typename Smem, typename Work>
FA3_DEVICE Place place_of(const BackwardParams&, const Smem&, const Work& work, BackwardMap, int row, int head) {
  return {row, head, work.batch};
}
template <typename Smem, typename Work>
FA3_DEVICE Place place_of(const PlannedBackwardParams&, const Smem& smem, const Work&, BackwardMap map, int row,
                          int head) {
  return smem.loads[0].place(map, row, head);
}
template <typename Smem>
FA3_DEVICE void keep_sequence(const BackwardParams&, Smem&, const KeyWork&) {}
template <typename Smem>
FA3_DEVICE void keep_sequence(const PlannedBackwardParams& p, Smem& smem, const KeyWork& work) {
  smem.loads[0].keep(p, sequence_of(p, work));
}

// Where thread blocks have one key block each: is there one of this number? Of a list the host knows only how long it
// may be.
FA3_DEVICE bool is_listed(const BackwardParams&, int) { return true; }
FA3_DEVICE bool is_listed(const PlannedBackwardParams& p, int number) {
  return number < p.counts->blocks * p.order.heads;
}

}  // namespace fa3
