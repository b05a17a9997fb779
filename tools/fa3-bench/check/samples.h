// What the checks of results have in common: sampled rows of tensors on the host, in float64, and elements that were
// not written.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "points/point.h"

namespace fa3::bench {

// One row of one head of a sequence: of its queries or its keys.
struct Place {
  int64_t batch, row, head;
};

// The n-th sample among so many rows of each sequence, some of which have any: a sequence's first row, one's last, then
// random ones, of random sequences and of random rows by turns.
Place sample(uint64_t seed, int64_t n, const std::vector<int64_t>& rows, int64_t heads);

// The first problem that check(n) finds, for n from 0 to count - 1; "" if there is none. On all cores.
std::string first_problem(int64_t count, const std::function<std::string(int64_t n)>& check);

// "o of batch 0 row 1 head 2 is 3, should be 4".
std::string wrong(const char* what, const Place& place, double is, double should);

using Vector = std::vector<double>;
// So many elements of a tensor that repeats itself after `period` elements.
Vector read_row(const void* tensor, int64_t at, int64_t count, fa3_dtype dtype, int64_t period = INT64_MAX);
double dot(const Vector& a, const Vector& b);

// What every element of an output holds before the call: 0xffff, a NaN in both formats.
inline constexpr unsigned char poison_byte = 0xff;

// "an element of o was not written", or "".
std::string unwritten(const char* what, const uint16_t* data, int64_t count);
std::string unwritten(const char* what, const float* data, int64_t count);

}  // namespace fa3::bench
