// A small call of the library: shape and buffers, and the parameter struct that describes them.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "fa3.h"

namespace fa3::test {

struct Shape {
  int64_t batch = 2, seqlen_q = 3, seqlen_k = 5, heads = 4, heads_kv = 2, head_dim = 16;
  int64_t head_dim_v = 0;  // of v and o; 0: head_dim

  int64_t v_dim() const { return head_dim_v == 0 ? head_dim : head_dim_v; }
};

// A packed tensor.
inline fa3_tensor tensor(void* data, int32_t dtype, std::initializer_list<int64_t> dim) {
  fa3_tensor t{};
  t.data = data;
  t.dtype = dtype;
  for (int64_t n : dim) t.dim[t.rank++] = n;
  if (fa3_tensor_pack(&t) != FA3_OK) std::abort();
  return t;
}

// Scales of v, a latent cache of e4m3, whose rows stand at multiples of 16 bytes.
inline fa3_tensor latent_scale(const fa3_tensor& v, void* data) {
  fa3_tensor t = v;
  int64_t& columns = t.dim[t.rank - 1];
  const int64_t groups = (columns + FA3_LATENT_SCALE_COLUMNS - 1) / FA3_LATENT_SCALE_COLUMNS;
  t.data = data, t.dtype = FA3_DTYPE_FP32, columns = (groups + 3) / 4 * 4;
  if (fa3_tensor_pack(&t) != FA3_OK) std::abort();
  columns = groups;
  return t;
}

inline void set_strides(fa3_tensor& t, std::initializer_list<int64_t> stride) {
  int i = 0;
  for (int64_t s : stride) t.stride[i++] = s;
}

// Packed tensors; `data` of each may be null.
inline fa3_forward_params describe(const Shape& s, int32_t dtype, void* q, void* k, void* v, void* o, void* lse) {
  fa3_forward_params p = FA3_FORWARD_PARAMS_INIT;
  p.q = tensor(q, dtype, {s.batch, s.seqlen_q, s.heads, s.head_dim});
  p.k = tensor(k, dtype, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim});
  p.v = tensor(v, dtype, {s.batch, s.seqlen_k, s.heads_kv, s.v_dim()});
  p.o = tensor(o, dtype, {s.batch, s.seqlen_q, s.heads, s.v_dim()});
  p.lse = tensor(lse, FA3_DTYPE_FP32, {s.batch, s.heads, s.seqlen_q});
  return p;
}

// Parameters whose pointers are far apart and lead nowhere: only for functions that never follow them.
inline fa3_forward_params imaginary(const Shape& s = {}, int32_t dtype = FA3_DTYPE_BF16) {
  const auto at = [](uintptr_t n) { return reinterpret_cast<void*>(n << 42); };
  return describe(s, dtype, at(1), at(2), at(3), at(4), at(5));
}

// The same of e4m3, with one scale for each tensor and a 16-bit o.
inline fa3_forward_params imaginary_e4m3(const Shape& s = {2, 130, 300, 4, 2, 32}) {
  const auto scale = [](uintptr_t n) { return tensor(reinterpret_cast<void*>(n << 42), FA3_DTYPE_FP32, {1, 1, 1}); };
  fa3_forward_params p = imaginary(s, FA3_DTYPE_E4M3);
  p.o.dtype = FA3_DTYPE_BF16;
  p.q_scale = scale(6), p.k_scale = scale(7), p.v_scale = scale(8);
  return p;
}

// Outputs hold this where nothing may be written.
inline constexpr unsigned char poison = 0xa5;

// 16-byte aligned memory of the calls that do follow pointers.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : storage_(bytes / sizeof(Unit) + 2), bytes_(bytes) {
    std::memset(storage_.data(), poison, storage_.size() * sizeof(Unit));
  }
  template <class T = void>
  T* as() {
    return reinterpret_cast<T*>(storage_.data());
  }
  bool untouched() const {
    for (size_t i = 0; i < storage_.size() * sizeof(Unit); ++i)
      if (reinterpret_cast<const unsigned char*>(storage_.data())[i] != poison) return false;
    return true;
  }
  size_t bytes() const { return bytes_; }

 private:
  struct alignas(64) Unit {
    unsigned char bytes[64];
  };
  std::vector<Unit> storage_;
  size_t bytes_;
};

}  // namespace fa3::test
