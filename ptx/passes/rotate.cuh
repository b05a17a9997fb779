// Rotary embedding of rows of x: a column times its cosine, plus or minus its partner times its sine.
#pragma once
#include "pieces.cuh"

namespace fa3 {

// Of one row, whose angles are the same for all heads. As a rule all columns of the kernel's row are rotated, and
// halves are partners: then a column and its partner are in the same thread, and its angles in registers. Anything else
// reads partners and angles from memory: from the L1 cache, mostly.
template <class S>
class Rotation {
 public:
  FA3_DEVICE Rotation(const QuantizeParams& p, int position, bool valid) : p_(p), position_(position), valid_(valid) {
#pragma unroll
    for (int k = 0; k < half; k += 4) {
      const int column = S::column(k / piece_columns) + k % piece_columns;
      const bool wanted = valid && in_thread();
      const float4 none = make_float4(0.f, 0.f, 0.f, 0.f);
      const float4 cosine = wanted ? *reinterpret_cast<const float4*>(cosine_of(column)) : none;
      const float4 sine = wanted ? *reinterpret_cast<const float4*>(sine_of(column)) : none;
      cosine_[k] = cosine.x, cosine_[k + 1] = cosine.y, cosine_[k + 2] = cosine.z, cosine_[k + 3] = cosine.w;
      sine_[k] = sine.x, sine_[k + 1] = sine.y, sine_[k + 2] = sine.z, sine_[k + 3] = sine.w;
    }
  }

  // x: the thread's pieces of `row`.
  FA3_DEVICE void apply(const uint16_t* row, float (&x)[S::columns]) const {
    if (in_thread()) {
#pragma unroll
      for (int k = 0; k < half; k++) {
        const float a = x[k], b = x[k + half];
        x[k] = a * cosine_[k] - b * sine_[k];
        x[k + half] = a * sine_[k] + b * cosine_[k];
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < S::pieces; i++)
#pragma unroll
      for (int k = 0; k < piece_columns; k += 4)
        if (valid_ && S::column(i) < p_.rotary_dim) four_columns(row, S::column(i) + k, x + i * piece_columns + k);
  }

 private:
  static constexpr int half = S::columns / 2;

  FA3_DEVICE bool in_thread() const { return S::pieces > 1 && !p_.interleaved && p_.rotary_dim == d; }
  FA3_DEVICE const float* cosine_of(int angle) const { return p_.rotary_cos + position_ * p_.cos_stride + angle; }
  FA3_DEVICE const float* sine_of(int angle) const { return p_.rotary_sin + position_ * p_.sin_stride + angle; }

  FA3_DEVICE void four_columns(const uint16_t* row, int column, float* x) const {
    float partner[4];
    float4 cosine, sine;
    if (p_.interleaved) {
      partner[0] = x[1], partner[1] = x[0], partner[2] = x[3], partner[3] = x[2];
      const float *const c = cosine_of(column / 2), *const s = sine_of(column / 2);
      cosine = make_float4(c[0], c[0], c[1], c[1]), sine = make_float4(-s[0], s[0], -s[1], s[1]);
    } else {
      const int half_dim = p_.rotary_dim / 2;
      const bool second = column >= half_dim;
      const int angle = second ? column - half_dim : column;
      const uint2 packed = *reinterpret_cast<const uint2*>(row + (second ? angle : column + half_dim));
      unpack(p_, {packed.x, packed.y}, partner);
      cosine = *reinterpret_cast<const float4*>(cosine_of(angle));
      sine = *reinterpret_cast<const float4*>(sine_of(angle));
      if (!second) sine = make_float4(-sine.x, -sine.y, -sine.z, -sine.w);
    }
    x[0] = x[0] * cosine.x + partner[0] * sine.x;
    x[1] = x[1] * cosine.y + partner[1] * sine.y;
    x[2] = x[2] * cosine.z + partner[2] * sine.z;
    x[3] = x[3] * cosine.w + partner[3] * sine.w;
  }

  const QuantizeParams& p_;
  const int position_;
  const bool valid_;
  float cosine_[half], sine_[half];
};

}  // namespace fa3
