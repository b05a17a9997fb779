#include "check/scores.h"

#include <cmath>

namespace fa3::bench {

Score score_of(const Point& p, const Place& query, int64_t key, double product) {
  Score score{product / std::sqrt(double(p.head_dim)), 1};
  if (p.planned.softcap > 0) {
    const double capped = std::tanh(score.value / double(p.planned.softcap));
    score = {double(p.planned.softcap) * capped, 1 - capped * capped};
  }
  const int64_t at = query.row + p.keys(query.batch) - p.queries(query.batch);
  score.value -= double(p.slope(query.head)) * double(std::abs(at - key));
  return score;
}

}  // namespace fa3::bench
