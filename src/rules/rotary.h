// Tables of rotary embedding, as all functions take them.
#pragma once
#include "problem.h"

namespace fa3 {

// rotary_cos and rotary_sin, both or neither, for rows of this head dimension. How many positions they must have is for
// the caller to say. `interleaved` stays what it is.
fa3_status check_rotary(const fa3_tensor& cos, const fa3_tensor& sin, int64_t head_dim, bool pointers, Rotary& rotary);

}  // namespace fa3
