#include "check/reference.h"

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "check/check.h"
#include "random.h"

namespace fa3::bench {

int run_reference(uint64_t seed) {
  const Point point{FA3_DTYPE_BF16, 128, true, 2, 384, 384, 8, 2, {}};
  std::vector<uint16_t> tensors[4];
  for (int t = 0; t < 4; ++t) {
    tensors[t].assign(size_t(t == 1 || t == 2 ? point.k_elements() : point.q_elements()), 0xffff);
    if (t < 3) tools::fill_normal(tools::mix(seed, uint64_t(t)), tensors[t].data(), tensors[t].size(), point.dtype);
  }
  std::vector<float> lse(size_t(point.batch * point.heads * point.seqlen));
  const fa3_forward_params params =
      point.params({tensors[0].data(), tensors[1].data(), tensors[2].data(), tensors[3].data(), lse.data()});
  const auto start = std::chrono::steady_clock::now();
  if (fa3_reference_forward(&params, 0) != FA3_OK) {
    std::printf("fa3_reference_forward: %s\n", fa3_last_error_message());
    return 1;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string problem = check_rows(
      point, {tensors[0].data(), tensors[1].data(), tensors[2].data(), tensors[3].data(), lse.data()}, 64, seed);
  std::printf("CPU reference (float64, %u threads), %s: %.1f ms, %.2f GFLOP/s, 64 rows checked: %s\n",
              std::thread::hardware_concurrency(), point.label().c_str(), seconds * 1e3, point.flop() / seconds * 1e-9,
              problem.empty() ? "ok" : problem.c_str());
  return problem.empty() ? 0 : 1;
}

}  // namespace fa3::bench
