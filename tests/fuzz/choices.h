// Decisions that the fuzzer steers: its bytes as long as they last, then numbers from a generator that they seed. So a
// short input is a whole problem, too, and the same input always the same one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace fa3::test {

class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : next_(data), end_(data + size) {
    for (size_t i = 0; i < size; ++i) state_ = (state_ ^ data[i]) * 0x100000001b3;  // FNV-1a
  }

  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9, z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  // From 0 to n - 1.
  int below(int n) {
    if (next_ == end_ || n > 256) return static_cast<int>(bits() % static_cast<unsigned>(n));
    return *next_++ % n;
  }
  bool once_in(int n) { return below(n) == 0; }
  template <class T>
  T one_of(std::initializer_list<T> all) {
    return all.begin()[below(static_cast<int>(all.size()))];
  }

 private:
  const uint8_t *next_, *end_;
  uint64_t state_ = 0xcbf29ce484222325;
};

}  // namespace fa3::test
