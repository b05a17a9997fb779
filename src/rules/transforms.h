// What rows of the table take for softcap and ALiBi, of a problem that has them.
#pragma once
#include "params/score_transforms.h"
#include "problem.h"

namespace fa3 {

inline bool has_softcap(const ServedShape& shape) { return shape.softcap > 0; }
inline bool has_slopes(const ServedShape& shape) { return shape.alibi_slopes.dtype != FA3_DTYPE_NONE; }

ScoreTransforms transforms_of(const ServedShape& shape);
SoftcapTanh tanh_of(const ServedShape& shape);

}  // namespace fa3
