#include "rules/overlap.h"

#include <initializer_list>

namespace fa3 {
namespace {

int64_t magnitude(int64_t value) { return value < 0 ? -value : value; }

// A view without its signs: the same bytes, counted from the lowest.
struct Bytes {
  int64_t reach[4];   // (dim - 1) * stride
  int64_t stride[4];  // >= 0
  int64_t width;      // of an element
};

Bytes bytes_of(const View& view) {
  Bytes bytes{};
  bytes.width = bytes_per_element(view.dtype);
  for (int i = 0; i < 4; ++i) {
    bytes.stride[i] = view.dim[i] > 1 ? magnitude(view.stride[i]) * bytes.width : 0;
    bytes.reach[i] = (view.dim[i] - 1) * bytes.stride[i];
  }
  return bytes;
}

// With every stride of at least `period` a multiple of it: the bytes that the smaller strides span, modulo the period.
bool span_within(const Bytes& bytes, int64_t period, int64_t& span) {
  span = bytes.width;
  for (int i = 0; i < 4; ++i) {
    if (bytes.stride[i] < period) span += bytes.reach[i];
    else if (bytes.stride[i] % period != 0) return false;
  }
  return true;
}

// Are the views kept apart by their place in a period that both repeat with?
bool apart_modulo(const Bytes& a, const Bytes& b, uintptr_t begin_a, uintptr_t begin_b, int64_t period) {
  int64_t span_a, span_b;
  if (!span_within(a, period, span_a) || !span_within(b, period, span_b)) return false;
  const uintptr_t p = static_cast<uintptr_t>(period);
  const int64_t offset = begin_b >= begin_a ? (begin_b - begin_a) % p : (p - (begin_a - begin_b) % p) % p;
  return span_a <= offset && offset + span_b <= period;
}

}  // namespace

bool extent_of(const View& view, Extent& extent) {
  int64_t low = 0, high = bytes_per_element(view.dtype);
  for (int i = 0; i < 4; ++i) {
    const int64_t reach = (view.dim[i] - 1) * view.stride[i] * bytes_per_element(view.dtype);
    (reach < 0 ? low : high) += reach;
  }
  const uintptr_t data = reinterpret_cast<uintptr_t>(view.data);
  if (data < static_cast<uintptr_t>(-low)) return false;
  extent.begin = data - static_cast<uintptr_t>(-low);
  return !__builtin_add_overflow(data, static_cast<uintptr_t>(high), &extent.end);
}

bool strides_nest(const View& view, int& dim, int64_t& span) {
  int order[4], count = 0;
  for (int i = 3; i >= 0; --i) {
    if (view.dim[i] <= 1) continue;
    int at = count++;
    for (; at > 0 && magnitude(view.stride[order[at - 1]]) > magnitude(view.stride[i]); --at) order[at] = order[at - 1];
    order[at] = i;
  }
  span = 0;
  for (int n = 0; n < count; ++n) {
    dim = order[n];
    if (magnitude(view.stride[dim]) <= span) return false;
    span += (view.dim[dim] - 1) * magnitude(view.stride[dim]);
  }
  return true;
}

bool may_overlap(const View& a, const View& b) {
  if (a.empty() || b.empty()) return false;
  Extent extent_a, extent_b;
  if (!extent_of(a, extent_a) || !extent_of(b, extent_b)) return true;
  if (extent_a.end <= extent_b.begin || extent_b.end <= extent_a.begin) return false;
  const Bytes bytes_a = bytes_of(a), bytes_b = bytes_of(b);
  for (const Bytes* bytes : {&bytes_a, &bytes_b})
    for (int64_t period : bytes->stride)
      if (period > 0 && apart_modulo(bytes_a, bytes_b, extent_a.begin, extent_b.begin, period)) return false;
  return true;
}

}  // namespace fa3
