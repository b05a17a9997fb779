// Seeded random numbers. Values are a function of (seed, index) alone, so threads need no order and any part of a
// tensor can be made again.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "fa3.h"

namespace fa3::tools {

// splitmix64's output function: a good hash of 64 bits.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}
constexpr uint64_t mix(uint64_t seed, uint64_t index) { return mix(mix(seed) ^ index * 0xd1342543de82ef95); }

// A stream of choices (shapes, layouts).
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint64_t bits() { return mix(seed_, count_++); }
  int64_t between(int64_t low, int64_t high) { return low + int64_t(bits() % uint64_t(high - low + 1)); }
  double uniform() { return double(bits() >> 11) * 0x1p-53; }
  bool chance(double p) { return uniform() < p; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[bits() % choices.size()];
  }

 private:
  uint64_t seed_, count_ = 0;
};

// out[i] = the N(0,1) value number first + i of this seed.
void normal(uint64_t seed, uint64_t first, float* out, size_t count);

// N(0,1) rounded to bf16 or fp16, on all cores.
void fill_normal(uint64_t seed, uint16_t* out, size_t count, fa3_dtype dtype);

// A seed that differs from run to run, or the number in the environment variable FA3_TEST_SEED.
uint64_t seed_of_run();

}  // namespace fa3::tools
