// Whether views can share a byte (src/rules/overlap.h), against all of their bytes.
#include "rules/overlap.h"

#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <random>
#include <set>

namespace fa3::test {
namespace {

constexpr uintptr_t somewhere = 1 << 20;

std::set<uintptr_t> bytes_of(const View& v) {
  std::set<uintptr_t> bytes;
  const int width = bytes_per_element(v.dtype);
  for (int64_t i = 0; i < v.dim[0]; ++i)
    for (int64_t j = 0; j < v.dim[1]; ++j)
      for (int64_t k = 0; k < v.dim[2]; ++k)
        for (int64_t l = 0; l < v.dim[3]; ++l) {
          const int64_t at = i * v.stride[0] + j * v.stride[1] + k * v.stride[2] + l * v.stride[3];
          const uintptr_t first = reinterpret_cast<uintptr_t>(v.data) + static_cast<uintptr_t>(at * width);
          for (int byte = 0; byte < width; ++byte) bytes.insert(first + byte);
        }
  return bytes;
}

struct Random {
  std::mt19937_64 bits{11};

  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  fa3_dtype dtype() {
    constexpr fa3_dtype dtypes[] = {FA3_DTYPE_E4M3, FA3_DTYPE_BF16, FA3_DTYPE_FP32};
    return dtypes[below(3)];
  }
  void* place() { return reinterpret_cast<void*>(somewhere + static_cast<uintptr_t>(below(200))); }

  View any() {
    View v{place(), dtype(), {}, {}};
    for (int i = 0; i < 4; ++i) v.dim[i] = 1 + below(4) % 3, v.stride[i] = v.dim[i] > 1 ? below(41) - 12 : 0;
    return v;
  }
  // What lies in some bytes of a period and repeats with it, or with multiples of it.
  View slice(int64_t period) {
    View v{place(), dtype(), {}, {}};
    const int64_t width = bytes_per_element(v.dtype), elements = period / width;
    for (int i = 0; i < 4; ++i) {
      v.dim[i] = 1 + below(3);
      if (v.dim[i] == 1) continue;
      v.stride[i] = i < 2 ? elements * (1 + below(3)) : 1 + below(std::max<int64_t>(1, elements / 4));
      if (below(4) == 0) v.stride[i] = -v.stride[i];
    }
    return v;
  }
};

// With a period of so many bytes: those that a view's smaller strides span, from its first byte on.
int64_t span_of(const View& v, int64_t period) {
  const int64_t width = bytes_per_element(v.dtype);
  int64_t span = width;
  for (int i = 0; i < 4; ++i)
    if (const int64_t stride = std::abs(v.stride[i]) * width; stride < period) span += (v.dim[i] - 1) * stride;
  return span;
}
bool repeats_with(const View& v, int64_t period) {
  for (int i = 0; i < 4; ++i)
    if (v.dim[i] > 1 && std::abs(v.stride[i]) * bytes_per_element(v.dtype) == period) return true;
  return false;
}

bool meet(const std::set<uintptr_t>& a, const std::set<uintptr_t>& b) {
  return std::any_of(a.begin(), a.end(), [&](uintptr_t byte) { return b.contains(byte); });
}
bool are_entangled(const std::set<uintptr_t>& a, const std::set<uintptr_t>& b) {
  return *a.begin() < *b.rbegin() && *b.begin() < *a.rbegin();
}

}  // namespace

TEST_CASE("views that share a byte are never taken for apart", "[overlap]") {
  Random random;
  int shared = 0, apart = 0;
  for (int n = 0; n < 30000; ++n) {
    const int64_t period = 4 * (1 + random.below(12));
    const bool slices = n % 2;
    const View a = slices ? random.slice(period) : random.any(), b = slices ? random.slice(period) : random.any();
    const std::set<uintptr_t> bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    const bool may = may_overlap(a, b);
    REQUIRE(may == may_overlap(b, a));
    if (meet(bytes_a, bytes_b)) REQUIRE(may);
    else if (!are_entangled(bytes_a, bytes_b)) REQUIRE_FALSE(may);
    shared += meet(bytes_a, bytes_b), apart += are_entangled(bytes_a, bytes_b) && !may;
  }
  CHECK((shared > 3000 && apart > 1000));
}

TEST_CASE("slices that a common period keeps apart are known to be apart", "[overlap]") {
  Random random;
  int both_repeat = 0, one_repeats = 0, adjacent = 0;
  for (int n = 0; n < 60000; ++n) {
    const int64_t period = 4 * (2 + random.below(12));
    const View a = random.slice(period), b = random.slice(period);
    if (!repeats_with(a, period) && !repeats_with(b, period)) continue;
    const std::set<uintptr_t> bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    if (!are_entangled(bytes_a, bytes_b)) continue;
    const int64_t distance = static_cast<int64_t>(*bytes_b.begin()) - static_cast<int64_t>(*bytes_a.begin());
    const int64_t offset = (distance % period + period) % period;  // of b in the period that begins with a
    const int64_t free_before = offset - span_of(a, period), free_behind = period - offset - span_of(b, period);
    if (free_before < 0 || free_behind < 0) continue;
    INFO("period " << period << " bytes, b at " << distance << " from a, spans " << span_of(a, period) << " and "
                   << span_of(b, period));
    REQUIRE_FALSE(meet(bytes_a, bytes_b));
    REQUIRE_FALSE(may_overlap(a, b));
    (repeats_with(a, period) && repeats_with(b, period) ? both_repeat : one_repeats)++;
    adjacent += free_before == 0 || free_behind == 0;
  }
  CHECK((both_repeat > 200 && one_repeats > 200 && adjacent > 200));
}

TEST_CASE("views at the ends of the address space", "[overlap]") {
  const View low{reinterpret_cast<void*>(uintptr_t{8}), FA3_DTYPE_FP32, {1, 1, 1, 3}, {0, 0, 0, -1}};
  const View high{reinterpret_cast<void*>(UINTPTR_MAX - 7), FA3_DTYPE_FP32, {1, 1, 1, 2}, {0, 0, 0, 1}};
  Extent extent;
  REQUIRE(extent_of(low, extent));
  CHECK((extent.begin == 0 && extent.end == 12));
  View beyond = low;
  beyond.dim[3] = 4;
  CHECK_FALSE(extent_of(beyond, extent));
  CHECK(may_overlap(beyond, high));  // nobody knows
  View empty = beyond;
  empty.dim[1] = 0;
  CHECK_FALSE(may_overlap(empty, high));
}

}  // namespace fa3::test
