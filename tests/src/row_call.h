// A call that suits a row of the table.
#pragma once
#include "call.h"
#include "plan/packing.h"
#include "table/row.h"

namespace fa3::test {

inline fa3_dtype dtype_of(const TiledRow& row) {
  switch (row.dtype) {
    case Dtype::bf16: return FA3_DTYPE_BF16;
    case Dtype::fp16: return FA3_DTYPE_FP16;
    default: return FA3_DTYPE_E4M3;
  }
}

// Its head dimensions are multiples of this.
inline int head_dim_unit(const ForwardRow& row) {
  return row.dtype == Dtype::e4m3 || row.has_wide_q() || row.is_latent() ? 16 : 8;
}

// What the row takes beside q, k, v and o of 16 bits, batched or packed.
inline void add_for(const ForwardRow& row, fa3_forward_params& p) {
  const auto at = [](uintptr_t n) { return reinterpret_cast<void*>(n << 42); };
  if (row.stores_fp32()) p.o.dtype = FA3_DTYPE_FP32;
  if (row.has(Trait::softcap)) p.softcap = 30;
  if (row.has(Trait::alibi)) p.alibi_slopes = tensor(at(50), FA3_DTYPE_FP32, {p.q.dim[p.q.rank - 2]});
  if (row.has(Trait::qv)) {
    p.qv = p.q, p.qv.data = at(51), p.qv.dim[p.q.rank - 1] = p.v.dim[p.v.rank - 1];
    if (fa3_tensor_pack(&p.qv) != FA3_OK) std::abort();
  }
  if (row.is_latent()) p.v.dtype = FA3_DTYPE_E4M3, p.v_scale = latent_scale(p.v, at(52));
}

// Names no kernel. Pointers lead nowhere, as imaginary()'s do; of e4m3 with whatever else the row takes.
// For few rows it has as many queries as the row holds.
inline fa3_forward_params imaginary_for(const ForwardRow& row, Shape shape) {
  const bool e4m3 = row.dtype == Dtype::e4m3;
  if (row.has(Trait::few_rows))
    shape.seqlen_q = row.most_rows() / Packing::of(shape.heads / shape.heads_kv).rows(1);
  fa3_forward_params p = e4m3 ? imaginary_e4m3(shape) : imaginary(shape, dtype_of(row));
  p.mask = row.causal() ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE;
  if (row.has(Trait::planned)) p.mask = FA3_MASK_WINDOW, p.window_left = 100, p.window_right = 30;
  if (row.has_wide_q()) {
    const fa3_forward_params e4m3_call = imaginary_e4m3(shape);
    p.k = e4m3_call.k, p.v = e4m3_call.v, p.k_scale = e4m3_call.k_scale, p.v_scale = e4m3_call.v_scale;
  }
  add_for(row, p);
  if (!e4m3) return p;
  if (!row.transposes_v())
    p.v = tensor(p.v.data, FA3_DTYPE_E4M3,
                 {shape.batch, shape.heads_kv, (shape.seqlen_k + 15) / 16, shape.v_dim(), 16});
  if (row.block_scales())
    p.k_scale = tensor(p.k_scale.data, FA3_DTYPE_FP32,
                       {1, 1, (shape.seqlen_k + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS});
  if (row.has(Trait::two_level)) p.flags = FA3_FLAG_TWO_LEVEL;
  return p;
}

}  // namespace fa3::test
