// What a thread block of the backward pass works on at a time.
#pragma once
#include "../../backward_tiles.h"
#include "../tiling.cuh"

namespace fa3 {

// Which keys rows see. Which sides are bounded is a constant here: the table's row has the mask.
FA3_DEVICE Visible visible(const BackwardParams& p) {
  return {p.visible.seqlen_q, p.visible.seqlen_k, p.visible.left, p.visible.right, bounded_left, bounded_right, {0}};
}

struct KeyWork : KeyBlockWork<Br, Bc> {
  FA3_DEVICE KeyWork(const BackwardParams& p, int number) : KeyBlockWork(p, number) { find_tiles(p, visible(p)); }
};

}  // namespace fa3
