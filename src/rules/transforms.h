// What rows of the table take for softcap and ALiBi, of a problem that has them.
#pragma once
#include "params/score_transforms.h"
#include "problem.h"

namespace fa3 {

inline bool has_softcap(const PlannedShape& shape) { return shape.softcap > 0; }
inline bool has_slopes(const PlannedShape& shape) { return shape.alibi_slopes.dtype != FA3_DTYPE_NONE; }

ScoreTransforms transforms_of(const PlannedShape& shape);
SoftcapTanh tanh_of(const PlannedShape& shape);

}  // namespace fa3
