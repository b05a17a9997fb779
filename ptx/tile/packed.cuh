// O and LSE on their way out where heads are packed into rows (packing.h): straight from the registers, or, of a split
// tile, when its parts have been put together. A step of decoding is all parts and few rows, and ends when they are
// together, so that is done fast: each warpgroup that has finished its rows of a part writes them into the part's slot,
// row by row, and takes a ticket. The last one reads all parts with all its threads, many at a time, and stores O and
// LSE. It adds them up in the order of the keys, so the bits are the same whoever comes last.
#pragma once
#include "softmax.cuh"

namespace fa3 {

// Where a row of a tile belongs: with packed heads several have the same query.
struct Place {
  int query, head;
  bool exists;  // is it a row of the problem?
};
FA3_DEVICE Place place_of(const Params& p, const RowBlock& block, int row) {
  if constexpr (has(Trait::packs_heads)) {
    const int query = packing(p).query(row), head = packing(p).head(row);
    return {query, block.head * p.heads_per_kv + head,
            row >= 0 && query < p.visible.seqlen_q && head < p.heads_per_kv};
  } else {
    return {row, block.head, row >= 0 && row < p.visible.seqlen_q};
  }
}
FA3_DEVICE uint16_t* o_of(const Params& p, const RowBlock& block, const Place& place) {
  const Output& out = p.output;
  return static_cast<uint16_t*>(out.o) + block.batch * out.o_stride_batch + place.head * out.o_stride_head +
         place.query * out.o_stride_row;
}
FA3_DEVICE float* lse_of(const Params& p, const RowBlock& block, const Place& place) {
  const Output& out = p.output;
  return out.lse + block.batch * out.lse_stride_batch + place.head * out.lse_stride_head +
         place.query * out.lse_stride_row;
}

// LSE = m ln(2) + ln(l), -inf for a row without keys.
FA3_DEVICE float lse_from(float m, float l) {
  constexpr float ln_2 = 0.6931471805599453f;
  return l == 0.f ? -INFINITY : m * ln_2 + __logf(l);
}

// Of a whole tile, for the warp's 16 rows. All lanes of a quad have some columns of its two rows.
FA3_DEVICE void store_packed(const uint32_t (&o)[dv / 4], const RowState& state, const float (&l)[2], const Params& p,
                             const RowBlock& block, int warp) {
  const int lane = threadIdx.x % 32, column = 2 * (lane % 4);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Place place = place_of(p, block, block.row + 16 * warp + lane / 4 + 8 * i);
    if (!place.exists) continue;
    uint16_t* const to = o_of(p, block, place) + column;
#pragma unroll
    for (int k = 0; k < dv / 8; k++)
      if (8 * k < p.output.head_dim) *reinterpret_cast<uint32_t*>(to + 8 * k) = o[2 * k + i];
    if (lane % 4 == 0 && p.output.lse) *lse_of(p, block, place) = lse_from(state.m[i], l[i]);
  }
}

// The result of a part for a warpgroup's 64 rows, not divided by l.
struct PackedPartial {
  float o[64][dv];
  float2 sums[64];  // m and l
};
static_assert(!has(Trait::packs_heads) || sizeof(PackedPartial) == 4 * config.partial_bytes());

// Some neighbouring columns.
struct Columns {
  float x[dv / 32];
};
FA3_DEVICE Columns load_columns(const float* from) {
  Columns columns;
  if constexpr (sizeof columns == sizeof(float2)) {
    const float2 x = __ldcg(reinterpret_cast<const float2*>(from));
    columns.x[0] = x.x, columns.x[1] = x.y;
  } else {
#pragma unroll
    for (int c = 0; c < dv / 32; c += 4) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(from + c));
      columns.x[c] = x.x, columns.x[c + 1] = x.y, columns.x[c + 2] = x.z, columns.x[c + 3] = x.w;
    }
  }
  return columns;
}

FA3_DEVICE float warp_max(float x) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  return x;
}
FA3_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}

// All four warps of the warpgroup call this. Returns false: nothing is left to be stored. l: row sums, of the whole
// quad; where they are 0, O is, too.
FA3_DEVICE bool combine_packed(const float (&O)[dv / 2], const RowState& state, const float (&l)[2], const Params& p,
                               Smem& smem, const RowBlock& block, int warpgroup, int warp) {
  const int rows = min(visible(p).rows() - block.row, 64), parts = block.parts;
  if (block.row < 0 || rows <= 0) return false;
  auto partial = [&](int part) -> PackedPartial& {
    return static_cast<PackedPartial*>(p.partials)[block.partial + part * warpgroups];
  };
  const int lane = threadIdx.x % 32;
  PackedPartial& mine = partial(block.part);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = 16 * warp + lane / 4 + 8 * i;
    if (!place_of(p, block, block.row + row).exists) continue;
    float2* const to = reinterpret_cast<float2*>(mine.o[row]) + lane % 4;
#pragma unroll
    for (int k = 0; k < dv / 8; k++) __stcg(to + 4 * k, make_float2(O[4 * k + 2 * i], O[4 * k + 2 * i + 1]));
    if (lane % 4 == 0) __stcg(&mine.sums[row], make_float2(state.m[i], l[i]));
  }

  ptx::bar_sync(barrier_warpgroup + warpgroup, 128);  // all have written
  if (warp == 0 && lane == 0) {
    __threadfence();
    smem.ticket[warpgroup] = ptx::atom_add_gpu_u32(&p.tickets[block.ticket].taken, 1u);
    __threadfence();
  }
  ptx::bar_sync(barrier_warpgroup + warpgroup, 128);
  if (smem.ticket[warpgroup] != parts - 1u) return false;

  // A warp takes a row at a time, a lane some of its columns, and m, l and the weight of one part.
  constexpr int columns = dv / 32;         // of a lane
  constexpr int batch = dv <= 128 ? 16 : 4;  // parts that are on their way together, as many as there are registers for
  static_assert(Listed::most_parts <= 32);
#pragma unroll 1
  for (int row = warp; row < rows; row += 4) {
    const Place place = place_of(p, block, block.row + row);
    if (!place.exists) continue;
    const float2 sums = lane < parts ? __ldcg(&partial(lane).sums[row]) : make_float2(lowest_m, 0.f);
    float m, sum, weight, o[columns] = {};
#pragma unroll 1
    for (int first = 0; first < parts; first += batch) {
      Columns x[batch];
#pragma unroll
      for (int i = 0; i < batch; i++)
        x[i] = first + i < parts ? load_columns(&partial(first + i).o[row][lane * columns]) : Columns{};
      if (first == 0) {
        m = warp_max(sums.x);
        weight = ptx::ex2_approx_ftz(sums.x - m);
        sum = warp_sum(weight * sums.y);
      }
#pragma unroll
      for (int i = 0; i < batch; i++) {
        const float of_part = __shfl_sync(0xffffffffu, weight, first + i);
#pragma unroll
        for (int c = 0; c < columns; c++) o[c] = fmaf(of_part, x[i].x[c], o[c]);
      }
    }
    const float inverse = ptx::rcp_approx_ftz(sum == 0.f ? 1.f : sum);
    uint16_t* const to = o_of(p, block, place) + lane * columns;
    if (lane * columns < p.output.head_dim)
#pragma unroll
      for (int c = 0; c < columns; c += 2)
        reinterpret_cast<uint32_t*>(to)[c / 2] = pack(o[c] * inverse, o[c + 1] * inverse);
    if (lane == 0 && p.output.lse) *lse_of(p, block, place) = lse_from(m, sum);
  }
  return false;
}

}  // namespace fa3
