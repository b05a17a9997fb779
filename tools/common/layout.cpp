#include "layout.h"

#include <algorithm>
#include <numeric>

namespace fa3::tools {

Layout Layout::make(const std::vector<int64_t>& dim, const std::vector<int>& order, const std::vector<int64_t>& pad) {
  Layout layout{dim, std::vector<int64_t>(dim.size())};
  int64_t span = 1;
  for (size_t i = order.size(); i-- > 0;) {
    layout.stride[order[i]] = span;
    span = span * std::max<int64_t>(dim[order[i]], 1) + (pad.empty() ? 0 : pad[i]);
  }
  return layout;
}

Layout Layout::packed(const std::vector<int64_t>& dim) {
  std::vector<int> order(dim.size());
  std::iota(order.begin(), order.end(), 0);
  return make(dim, order);
}

int64_t Layout::count() const {
  int64_t product = 1;
  for (int64_t n : dim) product *= n;
  return product;
}

int64_t Layout::extent() const {
  if (count() == 0) return 0;
  int64_t last = 0;
  for (size_t i = 0; i < dim.size(); ++i) last += (dim[i] - 1) * stride[i];
  return last + 1;
}

int64_t Layout::position(const int64_t* index) const {
  int64_t sum = 0;
  for (size_t i = 0; i < dim.size(); ++i) sum += index[i] * stride[i];
  return sum;
}

fa3_tensor Layout::tensor(void* data, fa3_dtype dtype) const {
  fa3_tensor tensor{};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = rank();
  for (int i = 0; i < rank(); ++i) {
    tensor.dim[i] = dim[i];
    tensor.stride[i] = stride[i];
  }
  return tensor;
}

}  // namespace fa3::tools
