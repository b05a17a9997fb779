#include "report/result.h"

#include <algorithm>
#include <stdexcept>

#include "points/kernels.h"

namespace fa3::bench {

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * double(sorted.size() - 1);
  const size_t low = size_t(at), high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - double(low)) * (sorted[high] - sorted[low]);
}

void Result::add_pass(std::vector<double> milliseconds) {
  std::sort(milliseconds.begin(), milliseconds.end());
  min_ms = pass_medians.empty() ? milliseconds.front() : std::min(min_ms, milliseconds.front());
  pass_medians.push_back(quantile(milliseconds, 0.5));
  std::vector<double> sorted = pass_medians;
  std::sort(sorted.begin(), sorted.end());
  median_ms = quantile(sorted, 0.5);
  spread = sorted.size() == 1 ? (quantile(milliseconds, 0.9) - quantile(milliseconds, 0.1)) / median_ms
                              : (sorted.back() - sorted.front()) / median_ms;
}

std::vector<Result> plan_points(const std::vector<Point>& points, int multiprocessors) {
  std::vector<Result> results;
  for (const Point& point : points) {
    Result& result = results.emplace_back();
    result.point = point;
    try {
      result.kernel = kernel_of(point, multiprocessors).name;
    } catch (const std::runtime_error& refusal) {
      result.problem = refusal.what();
    }
  }
  return results;
}

}  // namespace fa3::bench
