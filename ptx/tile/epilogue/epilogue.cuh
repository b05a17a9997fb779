// O and LSE on their way out. Each warp puts its 16 rows of O into the Q buffer of its warpgroup, which is read no
// more, and TMA stores them from there and clips what lies outside of the tensor; or it stores them from its registers
// (OExit).
#pragma once
#include <type_traits>

#include "../../isa/tma.cuh"
#include "../../params/v_tile.h"
#include "../row_sums.cuh"
#include "../scores/sinks.cuh"
#include "../scores/softmax.cuh"
#include "../smem.cuh"

namespace fa3 {

// O = 0 in rows that see no key: their P was 0, but V need not have been finite. Called in a branch, which wgmma_owned
// keeps one: a select for every register costs more than the whole store.
FA3_DEVICE void clear_empty_rows(float (&O)[o_columns / 2], const float (&l)[2]) {
#pragma unroll
  for (int i = 0; i < o_columns / 2; i++) O[i] = l[i >> 1 & 1] == 0.f ? 0.f : O[i];
  ptx::wgmma_owned(O);
}

// O divided by the row sums and rounded, in pairs of columns: 2 g + i is pair g of row i. fit: what makes O fit these
// row sums (Excess).
FA3_DEVICE void normalize(uint32_t (&packed)[o_columns / 4], const float (&O)[o_columns / 2], const RowState& state,
                          const float (&l)[2], const float (&fit)[2], const Sinks& sinks) {
  const float weight[2] = {fit[0] * sinks.finish(0, state.m[0], l[0]).weight,
                           fit[1] * sinks.finish(1, state.m[1], l[1]).weight};
#pragma unroll
  for (int i = 0; i < o_columns / 4; i++) packed[i] = pack(O[2 * i] * weight[i & 1], O[2 * i + 1] * weight[i & 1]);
}

// Fewer than 16 rows of O, in boxes of 1, 2, 4 and 8: what follows them in the tensor is not of their sequence. from:
// where they lie in shared memory. Unrolled: for a map whose number is not known ptxas keeps the address of the
// parameters in two registers all the time, and d 64 has none to spare.
template <class P>
FA3_DEVICE void store_few_rows(uint32_t from, int n, const P& p, int row, int head, int batch) {
#pragma unroll
  for (int box = 0; n > 0 && box < P::o_boxes; box++)
    if (n >> box & 1) {
      for (int slab = 0; slab < v_slabs; slab++)
        ptx::cp_async_bulk_tensor_4d_store(&p.o_rows[box], from + slab * 64 * slab_row_bytes, slab * slab_columns, row,
                                           head, batch);
      from += slab_row_bytes << box;
      row += 1 << box;
    }
  ptx::cp_async_bulk_commit_group();
}

// Through the Q buffer. Before, all four warps of the warpgroup must have finished reading it.
FA3_DEVICE void store_o(const uint32_t (&o)[o_columns / 4], Smem& smem, uint32_t q_buffer, const Params& p,
                        const RowBlock& block, int warp) {
  using namespace ptx;
  const int lane = threadIdx.x % 32;
  const uint32_t from = shared_address(&smem.q[q_buffer]) + warp * 16 * slab_row_bytes;
  // stmatrix: lanes 0-15 address the 16 rows of 8 columns, lanes 16-31 the same rows 8 columns on.
  const uint32_t address = from + lane % 16 * slab_row_bytes + ((lane / 16 ^ lane / swizzle_rows % chunks) << 4);
#pragma unroll
  for (int k = 0; k < o_columns / 16; k++) {
    const int slab = k * 32 / slab_row_bytes, within = k * 32 % slab_row_bytes;
    stmatrix_x4((address ^ within) + slab * 64 * slab_row_bytes, o[4 * k], o[4 * k + 1], o[4 * k + 2], o[4 * k + 3]);
  }
  fence_proxy_async_shared();
  __syncwarp();
  // Rows past the tensor's end are clipped, but a store wholly at negative rows is an illegal instruction.
  if (lane == 0 && block.row >= 0) {
    const int row = block.q_row() + block.row + warp * 16;
    if constexpr (planned) {
      const int n = visible(p, block).seqlen_q - block.row - warp * 16;
      if (n < 16) return store_few_rows(from, n, p, row, block.head, block.batch);
    }
#pragma unroll
    for (int slab = 0; slab < v_slabs; slab++)
      cp_async_bulk_tensor_4d_store(&p.o, from + slab * 64 * slab_row_bytes, slab * slab_columns, row, block.head,
                                    block.batch);
    cp_async_bulk_commit_group();
  }
}

// The same from registers. A lane has 2 columns of each group of 8; with its neighbour it swaps until it has 4 of one
// group in two of each 16 columns, so that a quad writes whole 32-byte sectors.
FA3_DEVICE void store_o_direct(const uint32_t (&o)[o_columns / 4], const Params& p, const RowBlock& block, int warp) {
  const int lane = threadIdx.x % 32, column = 8 * (lane & 1) + 2 * (lane & 2);
  const bool odd = lane & 1;
  const int first = block.row + 16 * warp + lane / 4;
  const Output& out = p.output;
  uint16_t* to = static_cast<uint16_t*>(out.o) + block.batch * out.o_stride_batch + block.head * out.o_stride_head +
                 (block.q_row() + first) * out.o_stride_row + column;
  uint16_t* to_8 = to + 8 * out.o_stride_row;
  const int rows = visible(p, block).seqlen_q;
  const bool in = first >= 0 && first < rows, in_8 = first + 8 >= 0 && first + 8 < rows;
#pragma unroll
  for (int k = 0; k < o_columns / 16; k++) {
    const uint32_t x[4] = {o[4 * k], o[4 * k + 1], o[4 * k + 2], o[4 * k + 3]};
    const uint32_t y = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[2], 1);
    const uint32_t y_8 = __shfl_xor_sync(0xffffffffu, odd ? x[1] : x[3], 1);
    const bool exists = 16 * k + column < out.head_dim;
    if (in & exists) *reinterpret_cast<uint2*>(to + 16 * k) = odd ? make_uint2(y, x[2]) : make_uint2(x[0], y);
    if (in_8 & exists) *reinterpret_cast<uint2*>(to_8 + 16 * k) = odd ? make_uint2(y_8, x[3]) : make_uint2(x[1], y_8);
  }
}

// The same in float32, divided by the row sums. A quad has 8 columns of a row, which are a whole sector.
FA3_DEVICE void store_fp32_o(const float (&O)[o_columns / 2], const RowState& state, const float (&l)[2],
                             const float (&fit)[2], const Sinks& sinks, const Params& p, const RowBlock& block,
                             int warp) {
  const int lane = threadIdx.x % 32, first = block.row + 16 * warp + lane / 4;
  const Output& out = p.output;
  const int rows = visible(p, block).seqlen_q;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = first + 8 * i;
    if (row < 0 || row >= rows) continue;
    const float weight = fit[i] * sinks.finish(i, state.m[i], l[i]).weight;
    float* const to = static_cast<float*>(out.o) + block.batch * out.o_stride_batch + block.head * out.o_stride_head +
                      (block.q_row() + row) * out.o_stride_row + 2 * (lane % 4);
#pragma unroll
    for (int k = 0; k < o_columns / 8; k++)
      if (8 * k < out.head_dim)
        *reinterpret_cast<float2*>(to + 8 * k) = make_float2(O[4 * k + 2 * i] * weight, O[4 * k + 2 * i + 1] * weight);
  }
}

// O of 8-bit elements: divided by the row sums and multiplied by V's scale, with V's mean added, and rounded to the
// type that the caller wants. As V's tiles hold columns 16 k + 2 r + e in their rows 16 k + 8 e + r, a lane has columns
// 16 k + 4 q .. 16 k + 4 q + 3 of each row, and a quad writes whole sectors.
static_assert([] {
  for (int q = 0; q < 4; q++)
    for (int x = 0; x < 4; x++)
      if (v_tile_column(8 * (x % 2) + 2 * q + x / 2) != 4 * q + x) return false;
  return true;
}());
// A lane's columns of row i of its two; mean: of V, or null. The type is a template's: to ask for it at each store
// takes longer than the store (14% of all time at d 256 and 512 keys).
template <Dtype dtype>
FA3_DEVICE void store_scaled_row(char* to, const float (&O)[o_columns / 2], int i, float weight, const float* mean,
                                 float mean_weight, int head_dim) {
#pragma unroll
  for (int k = 0; k < o_columns / 16; k++) {
    if (16 * k >= head_dim) break;
    const float* const o = &O[8 * k + 2 * i];
    float x[4] = {o[0] * weight, o[4] * weight, o[1] * weight, o[5] * weight};
    if (mean) {
      const float4 m = *reinterpret_cast<const float4*>(mean + 16 * k);
      x[0] = fmaf(m.x, mean_weight, x[0]), x[1] = fmaf(m.y, mean_weight, x[1]);
      x[2] = fmaf(m.z, mean_weight, x[2]), x[3] = fmaf(m.w, mean_weight, x[3]);
    }
    if constexpr (dtype == Dtype::e4m3) {
      *reinterpret_cast<uint32_t*>(to + 16 * k) = pack_e4m3(x[0], x[1], x[2], x[3]);
    } else {
      constexpr bool bf16 = dtype == Dtype::bf16;
      *reinterpret_cast<uint2*>(to + 32 * k) = make_uint2(pack(x[0], x[1], bf16), pack(x[2], x[3], bf16));
    }
  }
}

FA3_DEVICE void store_scaled_o(const float (&O)[o_columns / 2], const RowState& state, const float (&l)[2],
                               const Sinks& sinks, const float* v_mean, const Params& p, const RowBlock& block,
                               int warp) {
  const int lane = threadIdx.x % 32, column = 4 * (lane % 4), first = block.row + 16 * warp + lane / 4;
  const Output& out = p.output;
  const Scales& scales = taken<ScaleBlock>(p).scales;
  const float o_factor = scales.o ? ptx::rcp_approx_ftz(*scales.o) : 1.f;
  float weight[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    weight[i] = l[i] == 0.f ? 0.f : o_factor * block.v_scale * sinks.finish(i, state.m[i], l[i]).weight;
  // Beside a sink the keys have only a share of the row's sum.
  const auto mean_weight = [&](int i) {
    if (l[i] == 0.f) return 0.f;
    return planned ? o_factor * (l[i] * sinks.finish(i, state.m[i], l[i]).weight) : o_factor;
  };
  const auto store = [&](auto dtype) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = first + 8 * i;
      if (row < 0 || row >= visible(p, block).seqlen_q) continue;
      const int64_t at = block.batch * out.o_stride_batch + block.head * out.o_stride_head +
                         (block.q_row() + row) * out.o_stride_row + column;
      char* const to = static_cast<char*>(out.o) + at * (dtype() == Dtype::e4m3 ? 1 : 2);
      // So that without a mean no column asks whether there is one. With sums on two levels there are not enough
      // registers for both ways, and each column does.
      if (scales.v_mean || has(Trait::two_level))
        store_scaled_row<dtype()>(to, O, i, weight[i], scales.v_mean ? v_mean + column : nullptr,
                                  mean_weight(i), out.head_dim);
      else store_scaled_row<dtype()>(to, O, i, weight[i], nullptr, 0.f, out.head_dim);
    }
  };
  switch (out.dtype) {
    case Dtype::bf16: return store(std::integral_constant<Dtype, Dtype::bf16>());
    case Dtype::fp16: return store(std::integral_constant<Dtype, Dtype::fp16>());
    case Dtype::e4m3: return store(std::integral_constant<Dtype, Dtype::e4m3>());
  }
}

// Lane 4 r writes row r of the warp's 16, lane 4 r + 1 row r + 8.
FA3_DEVICE void store_lse(const RowState& state, const float (&l)[2], const Sinks& sinks, const Params& p,
                          const RowBlock& block, int warp) {
  const int lane = threadIdx.x % 32, i = lane % 4;
  const int within = warp * 16 + lane / 4 + 8 * i, row = block.row + within;
  if (i >= 2 || p.output.lse == nullptr || row < 0 || row >= visible(p, block).seqlen_q) return;
  const float sum = i ? l[1] : l[0], m = i ? state.m[1] : state.m[0];
  const Output& out = p.output;
  float* to = out.lse + block.batch * out.lse_stride_batch + block.head * out.lse_stride_head +
              (block.q_row() + row) * out.lse_stride_row;
  float lse = sinks.finish(i, m, sum).lse;
  if constexpr (config.has_scales()) {
    const Scales& scales = taken<ScaleBlock>(p).scales;
    if (scales.lse_offset) lse += lse_offset_at(scales, block, row);
  }
  *to = lse;
}

}  // namespace fa3
