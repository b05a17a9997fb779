// Where a tensor's elements lie: dims and strides in elements, made from a storage order and padding.
#pragma once
#include <cstdint>
#include <vector>

#include "fa3.h"

namespace fa3::tools {

struct Layout {
  std::vector<int64_t> dim, stride;

  // order: the dims from the outermost to the innermost in memory. pad[i]: elements left unused after each run of dim
  // order[i] (empty: none). Dim 2 of order {0, 1, 2, 3} padded by 64 leaves 64 elements between one position's heads
  // and the next position.
  static Layout make(const std::vector<int64_t>& dim, const std::vector<int>& order,
                     const std::vector<int64_t>& pad = {});
  static Layout packed(const std::vector<int64_t>& dim);

  int rank() const { return int(dim.size()); }
  int64_t count() const;                               // elements
  int64_t extent() const;                              // the last element's position + 1; 0 without elements
  int64_t position(const int64_t* index) const;        // of one element
  fa3_tensor tensor(void* data, fa3_dtype dtype) const;

  // Calls body(position) for every element, in row-major order of the index.
  template <class Body>
  void for_each(const Body& body) const {
    if (count() == 0) return;
    const int last = rank() - 1;
    std::vector<int64_t> index(dim.size());
    for (int64_t rows = count() / dim[last]; rows > 0; --rows) {
      int64_t at = position(index.data());
      for (int64_t n = 0; n < dim[last]; ++n, at += stride[last]) body(at);
      for (int i = last; i-- > 0 && ++index[i] == dim[i];) index[i] = 0;
    }
  }
};

}  // namespace fa3::tools
