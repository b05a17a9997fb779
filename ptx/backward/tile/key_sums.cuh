// dK and dV where a K/V head has several parts (backward_work.h), or where they are float32: what each part adds
// waits in the workspace, and a pass adds it up. Sums lie there by gradient, dK before dV, then by part, then by 64
// keys, and of those as sums of dQ do (rows.cuh).
#pragma once
#include "../../params/backward_params.h"
#include "rows.cuh"

namespace fa3 {

enum class KeyGradient { dk, dv };

FA3_DEVICE float4* key_sums(const BackwardParams& p, KeyGradient gradient, int batch_head, int tile) {
  const int64_t n = (int64_t(gradient) * p.order.batch_heads + batch_head) * p.keys.tiles + tile;
  return reinterpret_cast<float4*>(p.keys.sums) + n * (16 * d);
}

// A warpgroup's 64 rows. `warp` of its four.
FA3_DEVICE void store_key_sums(const float (&D)[d / 2], float4* to, int warp) {
  to += 256 * warp + threadIdx.x % 32;
#pragma unroll
  for (int g = 0; g < d / 8; g++)
    __stcg(to + g / 8 * 1024 + g % 8 * 32, make_float4(D[4 * g], D[4 * g + 1], D[4 * g + 2], D[4 * g + 3]));
}

// Adds to x what the parts have for these groups of 8 columns, from group `first` on, in the parts' order; they lie
// `next_part` behind one another.
template <int groups>
FA3_DEVICE void add_parts(float4 (&x)[groups], const float4* sums, int parts, int64_t next_part, int first) {
#pragma unroll 1
  for (int part = 0; part < parts; part++)
#pragma unroll
    for (int g = 0; g < groups; g++) {
      const float4 more = __ldcs(sums + part * next_part + first / 8 * 1024 + first % 8 * 32 + g * 32);
      x[g] = make_float4(x[g].x + more.x, x[g].y + more.y, x[g].z + more.z, x[g].w + more.w);
    }
}

}  // namespace fa3
