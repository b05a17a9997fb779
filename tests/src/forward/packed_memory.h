// A call of the forward pass with memory of its own: packed tensors, whose inputs are N(0,1).
#pragma once
#include <random>

#include "../call.h"
#include "../formats.h"

namespace fa3::test {

inline void set_packed_strides(fa3_tensor& t) {
  int64_t next = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.stride[i] = next;
    next *= t.dim[i];
  }
}

inline void fill(Buffer& buffer, int32_t dtype, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < buffer.bytes() / element_size(dtype); ++i) {
    if (dtype == FA3_DTYPE_FP32) buffer.as<float>()[i] = normal(random);
    else if (dtype == FA3_DTYPE_E4M3) buffer.as<uint8_t>()[i] = static_cast<uint8_t>(nearest(normal(random), dtype));
    else buffer.as<uint16_t>()[i] = nearest(normal(random), dtype);
  }
}

// Packed buffers of a shape.
struct Memory {
  Buffer q, k, v, o, lse;
  fa3_forward_params params;

  Memory(const Shape& s, int32_t dtype, int32_t o_dtype, unsigned seed = 1)
      : q(s.batch * s.seqlen_q * s.heads * s.head_dim * 4),
        k(s.batch * s.seqlen_k * s.heads_kv * s.head_dim * 4),
        v(s.batch * s.seqlen_k * s.heads_kv * s.v_dim() * 4),
        o(s.batch * s.seqlen_q * s.heads * s.v_dim() * 4),
        lse(s.batch * s.seqlen_q * s.heads * 4) {
    fill(q, dtype, seed), fill(k, dtype, seed + 1), fill(v, dtype, seed + 2);
    params = describe(s, dtype, q.as(), k.as(), v.as(), o.as(), lse.as());
    params.o.dtype = o_dtype;
    for (fa3_tensor* t : {&params.q, &params.k, &params.v, &params.o, &params.lse}) set_packed_strides(*t);
  }
};

}  // namespace fa3::test
