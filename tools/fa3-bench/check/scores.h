// A point's scores in float64, by the definition of attention.
#pragma once
#include "check/samples.h"

namespace fa3::bench {

struct Score {
  double value;  // what the softmax takes
  double slope;  // its derivative by softmax_scale * q . k
};
// From q . k of a query, in the sequence and the head of its place, and of a key.
Score score_of(const Point& point, const Place& query, int64_t key, double product);

}  // namespace fa3::bench
