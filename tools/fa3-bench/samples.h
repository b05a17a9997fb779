// What the checks of results have in common: sampled rows of packed tensors on the host, in float64, and elements that
// were not written.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "point.h"

namespace fa3::bench {

// One row of a packed tensor (batch, seqlen, heads, head_dim).
struct Place {
  int64_t batch, row, head;
};

// The n-th sample among so many: the first row, the last, then random ones.
Place sample(uint64_t seed, int64_t n, int64_t batch, int64_t rows, int64_t heads);

// The first problem that check(n) finds, for n from 0 to count - 1; "" if there is none. On all cores.
std::string first_problem(int64_t count, const std::function<std::string(int64_t n)>& check);

// "o of batch 0 row 1 head 2 is 3, should be 4".
std::string wrong(const char* what, const Place& place, double is, double should);

// Where a row of Q begins, of O, K or V; and of their gradients.
inline int64_t query_at(const Point& p, const Place& place) {
  return ((place.batch * p.seqlen + place.row) * p.heads + place.head) * p.head_dim;
}
inline int64_t output_at(const Point& p, const Place& place) {
  return ((place.batch * p.seqlen + place.row) * p.heads + place.head) * p.v_dim();
}
inline int64_t key_at(const Point& p, const Place& place) {
  return ((place.batch * p.seqlen_k + place.row) * p.kv_heads + place.head) * p.head_dim;
}
inline int64_t value_at(const Point& p, const Place& place) {
  return ((place.batch * p.seqlen_k + place.row) * p.kv_heads + place.head) * p.v_dim();
}
inline int64_t lse_at(const Point& p, const Place& place) {
  return (place.batch * p.heads + place.head) * p.seqlen + place.row;
}

using Vector = std::vector<double>;
// So many elements of q, k, v or another tensor of the point's dtype.
Vector read_row(const Point& point, const void* tensor, int64_t at, int64_t count);
double dot(const Vector& a, const Vector& b);

// What every element of an output holds before the call: 0xffff, a NaN in both formats.
inline constexpr unsigned char poison_byte = 0xff;

// "an element of o was not written", or "".
std::string unwritten(const char* what, const uint16_t* data, int64_t count);
std::string unwritten(const char* what, const float* data, int64_t count);

}  // namespace fa3::bench
