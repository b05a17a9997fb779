// How the tensors of a problem lie in memory, and how many things there are.
#pragma once
#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "problems.h"
#include "rules.h"

namespace fa3::test {

using Dims = std::initializer_list<int64_t>;

// a + sign * b, which may overflow.
inline int64_t plus(int64_t a, int64_t b, int64_t sign = 1) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(sign) * static_cast<uint64_t>(b));
}

// How the tensors of one problem lie in memory.
class Layouts {
 public:
  Layouts(Choices& choices, bool host) : choices_(choices), host_(host), together_(choices.once_in(8)) {}

  // Rows of head_dim elements, without gaps between them; all other dims in any order, with gaps.
  fa3_tensor rows(int32_t dtype, Dims dims, bool output) { return strided(dtype, dims, output, 1); }
  // The last two dims are a tile of 16 x head_dim bytes.
  fa3_tensor tiles(Dims dims, bool output) { return strided(FA3_DTYPE_E4M3, dims, output, 2); }
  fa3_tensor plain(int32_t dtype, Dims dims, bool output) { return strided(dtype, dims, output, 0); }

 private:
  // The last `whole` dims are packed.
  fa3_tensor strided(int32_t dtype, Dims dims, bool output, int whole) {
    fa3_tensor t{};
    t.dtype = dtype;
    for (int64_t n : dims) t.dim[t.rank++] = n;
    const int free = t.rank - whole, unit = whole == 0 || host_ ? 1 : 16 / element_bytes(dtype);
    int64_t next = 1;
    for (int i = t.rank - 1; i >= free; --i) {
      t.stride[i] = next;
      next *= std::max<int64_t>(t.dim[i], 1);
    }
    std::array<int, FA3_MAX_RANK> order{};
    for (int i = 0; i < free; ++i) order[i] = free - 1 - i;
    if (choices_.once_in(2))
      for (int i = free - 1; i > 0; --i) std::swap(order[i], order[choices_.below(i + 1)]);
    if (host_ && whole == 1 && choices_.once_in(4)) next *= t.stride[t.rank - 1] = 1 + choices_.below(3);
    for (int n = 0; n < free; ++n) {
      const int i = order[n];
      next = (next + unit - 1) / unit * unit;
      if (choices_.once_in(4)) next += unit * choices_.below(4);
      t.stride[i] = t.dim[i] == 1 && choices_.once_in(3) ? odd_number(choices_) : next;
      if (!output && choices_.once_in(16)) t.stride[i] = 0;
      if (next < int64_t{1} << 40) next *= std::max<int64_t>(t.dim[i], 1);
      if (host_ && choices_.once_in(8)) t.stride[i] = plus(0, t.stride[i], -1);
    }
    const int shift = choices_.once_in(4) ? choices_.below(16) : 0;
    uintptr_t at = uintptr_t{1 + place_++} << 42;
    if (together_) at = (uintptr_t{1} << 42) + 16 * choices_.below(choices_.one_of({4, 64, 2048}));
    t.data = reinterpret_cast<void*>(at + (whole ? 16 : element_bytes(dtype)) * shift);
    return t;
  }

  Choices& choices_;
  const bool host_, together_;  // near to each other, so that they may overlap
  uintptr_t place_ = 0;
};

inline int64_t small_count(Choices& choices) { return choices.once_in(12) ? 0 : 1 + choices.below(3); }

inline int64_t length(Choices& choices) {
  switch (choices.below(8)) {
    case 0: return choices.one_of({0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129});
    case 1: return choices.once_in(8) ? int64_t{1} << choices.below(31) : 1 + choices.below(300);
    default: return 1 + choices.below(20);
  }
}

inline int32_t dtype_of_16_bits(Choices& choices) {
  return choices.one_of<int32_t>({FA3_DTYPE_BF16, FA3_DTYPE_FP16});
}

}  // namespace fa3::test
