// What a thread block of the backward pass works on at a time.
#pragma once
#include "../../backward_tiles.h"
#include "../config.cuh"

namespace fa3 {

using KeyWork = KeyBlock<Br, Bc, causal>;

}  // namespace fa3
