#include "random.h"

#include <cmath>
#include <cstdlib>
#include <random>

#include "half.h"
#include "parallel.h"

namespace fa3::tools {

// Box-Muller: one hash gives two uniforms, these give the two values of an even-odd pair of indices.
static void normal_pair(uint64_t seed, uint64_t pair, float out[2]) {
  const uint64_t bits = mix(seed, pair);
  const float u = (float(bits >> 40) + 0.5f) * 0x1p-24f, angle = float(bits & 0xffffff) * (6.2831853f * 0x1p-24f);
  const float radius = std::sqrt(-2 * std::log(u));
  out[0] = radius * std::cos(angle);
  out[1] = radius * std::sin(angle);
}

void normal(uint64_t seed, uint64_t first, float* out, size_t count) {
  float pair[2];
  for (size_t i = 0; i < count; ++i) {
    const uint64_t index = first + i;
    if (i == 0 || index % 2 == 0) normal_pair(seed, index / 2, pair);
    out[i] = pair[index % 2];
  }
}

void fill_normal(uint64_t seed, uint16_t* out, size_t count, fa3_dtype dtype) {
  constexpr size_t block = 4096;
  parallel_for(int64_t((count + block - 1) / block), 4, [&](int64_t begin, int64_t end) {
    float values[block];
    for (size_t first = size_t(begin) * block; first < count && first < size_t(end) * block; first += block) {
      const size_t n = count - first < block ? count - first : block;
      normal(seed, first, values, n);
      for (size_t i = 0; i < n; ++i) out[first + i] = to_half(values[i], dtype);
    }
  });
}

uint64_t seed_of_run() {
  static const uint64_t seed = [] {
    if (const char* text = std::getenv("FA3_TEST_SEED")) return uint64_t(std::strtoull(text, nullptr, 0));
    return uint64_t(std::random_device{}());
  }();
  return seed;
}

}  // namespace fa3::tools
