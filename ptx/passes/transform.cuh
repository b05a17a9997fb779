// What the passes of fa3_quantize that read x make of it before anything else.
#pragma once
#include "mix.cuh"
#include "rotate.cuh"

namespace fa3 {

// A row's pieces as float32, after rotary embedding, with signs for mix_columns if it is to follow.
template <class S>
FA3_DEVICE void unpack_row(const QuantizeParams& p, const Rotation<S>& rotation, const Signs& signs, bool mixes,
                           const uint16_t* row, const uint4 (&packed)[S::pieces], float (&x)[S::columns]) {
#pragma unroll
  for (int i = 0; i < S::pieces; i++) {
    uint4 piece = packed[i];
    if (!has(Trait::rotates) && mixes) change_signs(signs.of(S::column(i)), piece);
    unpack(p, {piece.x, piece.y, piece.z, piece.w}, x + i * piece_columns);
  }
  if constexpr (has(Trait::rotates)) {
    rotation.apply(row, x);
#pragma unroll
    for (int i = 0; i < S::pieces; i++)
      if (mixes) change_signs(signs.of(S::column(i)), x + i * piece_columns);
  }
}

}  // namespace fa3
