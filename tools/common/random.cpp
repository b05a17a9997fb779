#include "random.h"

#include <cmath>
#include <cstdlib>
#include <random>

#include "half.h"
#include "parallel.h"

namespace fa3::tools {

// Box-Muller by tables, as tests make more numbers than they compute: one hash gives a radius and an angle, these give
// the two values of an even-odd pair of indices.
struct Polar {
  static constexpr uint64_t radii = 1 << 16, angles = 1 << 12;
  float radius[radii], cosine[angles], sine[angles];

  Polar() {
    for (uint64_t i = 0; i < radii; ++i) radius[i] = std::sqrt(-2 * std::log((float(i) + 0.5f) / radii));
    for (uint64_t i = 0; i < angles; ++i) {
      const float angle = (float(i) + 0.5f) * (6.2831853f / angles);
      cosine[i] = std::cos(angle), sine[i] = std::sin(angle);
    }
  }
};

static void normal_pair(const Polar& polar, uint64_t seed, uint64_t pair, float out[2]) {
  const uint64_t bits = mix(seed, pair);
  const float radius = polar.radius[bits % Polar::radii];
  const uint64_t angle = bits >> 32 & (Polar::angles - 1);
  out[0] = radius * polar.cosine[angle];
  out[1] = radius * polar.sine[angle];
}

void normal(uint64_t seed, uint64_t first, float* out, size_t count) {
  static const Polar polar;
  float pair[2];
  size_t i = 0;
  if (count > 0 && first % 2 == 1) {
    normal_pair(polar, seed, first / 2, pair);
    out[i++] = pair[1];
  }
  for (; i + 2 <= count; i += 2) normal_pair(polar, seed, (first + i) / 2, out + i);
  if (i == count) return;
  normal_pair(polar, seed, (first + i) / 2, pair);
  out[i] = pair[0];
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
