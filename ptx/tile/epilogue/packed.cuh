// O and LSE on their way out where heads are packed into rows (packing.h): straight from the registers, or, of a split
// tile, when its parts have been put together. A step of decoding is all parts and few rows, and ends when they are
// together, so that is done fast: each warpgroup that has finished its rows of a part writes them into the part's slot,
// row by row, and takes a ticket. When all are written, rows are added up by all threads of the last warpgroup, or of
// several that share them; a warp has a row at a time, of which it reads many parts together, or few parts of several
// rows. It adds them up in the order of the keys, so the bits are the same whoever does it.
//
// Where O is in two halves, rows are many and long: there a pass adds the parts up (passes/add_parts.cu).
#pragma once
#include "../barriers.cuh"
#include "../row_sums.cuh"
#include "../schedule.cuh"
#include "epilogue.cuh"
#include "part_strip.cuh"

namespace fa3 {

FA3_DEVICE uint16_t* o_of(const Params& p, const RowBlock& block, const RowPlace& place) {
  const Output& out = p.output;
  return static_cast<uint16_t*>(out.o) + block.batch * out.o_stride_batch + place.head * out.o_stride_head +
         (block.q_row() + place.query) * out.o_stride_row;
}
FA3_DEVICE float* lse_of(const Params& p, const RowBlock& block, const RowPlace& place) {
  const Output& out = p.output;
  return out.lse + block.batch * out.lse_stride_batch + place.head * out.lse_stride_head +
         (block.q_row() + place.query) * out.lse_stride_row;
}

// The first of a consumer's columns of O.
FA3_DEVICE int first_column(int consumer) { return halves_columns ? consumer * o_columns : 0; }

// A lane's columns of its i-th row, of a warpgroup's that begin at `to`, of which so many exist: two of each group of
// 8. Where there are many, lanes of a quad swap them until each has 8 neighbouring ones, as a warp's store takes a turn
// for each of the eight rows that it goes to (10000 clocks for 64 rows of 512 columns).
FA3_DEVICE void store_columns(uint16_t* to, const uint32_t (&o)[o_columns / 4], int i, int columns) {
  const int lane = threadIdx.x % 32;
  if constexpr (halves_columns) {
    to += 8 * (lane % 4);
#pragma unroll
    for (int k = 0; k < o_columns / 32; k++) {
      const uint4 eight = transpose_quad({o[8 * k + i], o[8 * k + 2 + i], o[8 * k + 4 + i], o[8 * k + 6 + i]});
      if (32 * k + 8 * (lane % 4) < columns) *reinterpret_cast<uint4*>(to + 32 * k) = eight;
    }
  } else {
    to += 2 * (lane % 4);
#pragma unroll
    for (int k = 0; k < o_columns / 8; k++)
      if (8 * k < columns) *reinterpret_cast<uint32_t*>(to + 8 * k) = o[2 * k + i];
  }
}

// Of a whole tile, for the warp's 16 rows. All lanes of a quad have some columns of its two rows.
FA3_DEVICE void store_packed(const float (&O)[o_columns / 2], const RowState& state, const float (&l)[2],
                             const float (&fit)[2], const Sinks& sinks, const Params& p, const RowBlock& block,
                             int consumer, int warp) {
  uint32_t o[o_columns / 4];
  normalize(o, O, state, l, fit, sinks);
  const int lane = threadIdx.x % 32, first = first_column(consumer);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const RowPlace place = place_of(p, block, block.row + 16 * warp + lane / 4 + 8 * i);
    if (!halves_columns && !place.exists) continue;  // lanes swap columns, also those whose row does not exist
    store_columns(o_of(p, block, place) + first, o, i, place.exists ? p.output.head_dim - first : 0);
    if (place.exists && lane % 4 == 0 && p.output.lse && first == 0)
      *lse_of(p, block, place) = sinks.finish(i, state.m[i], l[i]).lse;
  }
}

// What the parts of a tile leave for a warpgroup's rows: row by row the O of all parts, not divided by l, and behind it
// their m and l. So what is added up lies together, and ptxas needs no address of its own for each part.
class PackedRows {
 public:
  FA3_DEVICE PackedRows(const Params& p, const RowBlock& block)
      : rows_(static_cast<char*>(p.partials) + int64_t{block.partial} * config.packed_row_bytes()),
        parts_(block.parts) {}
  FA3_DEVICE float* o(int row) const {
    return reinterpret_cast<float*>(rows_ + row * parts_ * config.packed_row_bytes());
  }
  FA3_DEVICE float2* sums(int row) const { return reinterpret_cast<float2*>(o(row) + parts_ * dv); }

 private:
  char* rows_;
  int parts_;
};

// Some neighbouring columns: a lane's share of a warp's.
inline constexpr int lane_columns = o_columns / 32;
template <int n>
struct Columns {
  float x[n];
};
template <int n>
FA3_DEVICE Columns<n> load_columns(const float* from) {
  Columns<n> columns;
  if constexpr (sizeof columns == sizeof(float2)) {
    const float2 x = __ldcg(reinterpret_cast<const float2*>(from));
    columns.x[0] = x.x, columns.x[1] = x.y;
  } else {
#pragma unroll
    for (int c = 0; c < n; c += 4) {
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

// Who adds up which rows of a tile. Where all parts are under way at once, they end at about the same time, and the
// reads of all rows would keep one multiprocessor longer than all else takes: so each part has a share of the rows, and
// waits until the others have written theirs. But not for long, as another kernel may hold the multiprocessor that one
// of them is to run on, and wait for this one's: then it leaves its share to the last part. Otherwise, and of few rows,
// the last part has all.
class Shares {
 public:
  static constexpr int least_rows = 4;  // one a warp

  FA3_DEVICE Shares(const Params& p, const Smem& smem, int rows, int parts) : rows_(rows), rows_each_(least_rows) {
    while (rows_each_ * parts < rows) rows_each_ += least_rows;
    if (!pieces_fit_grid(p, smem)) rows_each_ = rows;
  }

  FA3_DEVICE bool are_shared() const { return rows_each_ < rows_; }
  FA3_DEVICE int begin(int share) const { return share * rows_each_; }
  FA3_DEVICE int end(int share) const { return min(begin(share) + rows_each_, rows_); }
  FA3_DEVICE bool has(int share) const { return begin(share) < rows_; }

  // Takes a ticket for a part that has been written by this thread, or by others before a barrier. Returns a bit for
  // each share that the part is to add up now.
  FA3_DEVICE uint32_t take(uint32_t* ticket, uint32_t part, uint32_t parts) const {
    // The low half of a ticket counts parts, the high half has a bit for each share that is left to the last one.
    constexpr uint32_t count = 0xffff, patience = 1 << 15;  // clocks
    const uint32_t before = ptx::atom_add_acq_rel_gpu_u32(ticket, 1u);
    const bool last = (before & count) == parts - 1;
    if (!are_shared()) return last ? 1 : 0;
    const uint32_t own = has(part) ? 1u << part : 0;
    if (last) return before >> 16 | own;
    if (!own) return 0;
    const uint32_t start = clock();
    while (uint32_t(clock()) - start < patience)
      if ((ptx::ld_acquire_gpu_u32(ticket) & count) == parts) return own;
    const bool too_late = (atomicOr(ticket, own << 16) & count) == parts;  // the last one has not seen it
    __threadfence();
    return too_late ? own : 0;
  }

 private:
  int rows_, rows_each_;
};

// A row that is complete, from a warp of which each lane has some neighbouring columns.
template <int columns>
FA3_DEVICE void store_row(const float (&o)[columns], float m, float sum, float sink, const Params& p,
                          const RowBlock& block, const RowPlace& place) {
  const int lane = threadIdx.x % 32, column = lane * columns;
  const float weight = finish_with(sink, m, sum).weight;
  uint16_t* const to = o_of(p, block, place) + column;
  if (column < p.output.head_dim)
#pragma unroll
    for (int c = 0; c < columns; c += 2)
      reinterpret_cast<uint32_t*>(to)[c / 2] = pack(o[c] * weight, o[c + 1] * weight);
  if (lane == 0 && p.output.lse) *lse_of(p, block, place) = finish_with(sink, m, sum).lse;
}

// A warp adds up all parts of a row, and stores it. A lane has some of its columns, and m, l and the weight of one part
// in 32. It is the only warp of its scheduler, so each instruction counts: those for 16 parts take longer than the
// loads.
template <int columns, int batch>
FA3_DEVICE void combine_row(const PackedRows& partial, int parts, int row, const Params& p, const RowBlock& block) {
  const RowPlace place = place_of(p, block, block.row + row);
  if (!place.exists) return;
  const int lane = threadIdx.x % 32;
  static_assert(32 % batch == 0);
  const float* from = partial.o(row) + lane * columns;
  const float2* const sums = partial.sums(row);
  const float sink = sink_of(p, block, block.row + row);
  Columns<columns> next[batch];
  const auto load_next = [&](int left) {
    if (left >= batch) {
#pragma unroll
      for (int i = 0; i < batch; i++) next[i] = load_columns<columns>(from + i * dv);
    } else {
#pragma unroll
      for (int i = 0; i < batch; i++) next[i] = i < left ? load_columns<columns>(from + i * dv) : Columns<columns>{};
    }
    from += batch * dv;
  };
  const auto sums_of = [&](int part) { return part < parts ? __ldcg(&sums[part]) : make_float2(lowest_m, 0.f); };
  const float2 first_sums = sums_of(lane), second_sums = sums_of(lane + 32);  // neither waits for the other
  load_next(parts);
  float m = first_sums.x, sum = first_sums.y;  // of the lane's parts
  const auto add = [&](float2 more) {
    const float larger = fmaxf(m, more.x);
    sum = sum * part_weight(m, larger) + more.y * part_weight(more.x, larger);
    m = larger;
  };
  if (parts > 32) add(second_sums);
#pragma unroll 1
  for (int part = lane + 64; part < parts; part += 32) add(__ldcg(&sums[part]));
  const float lane_m = m;
  m = warp_max(m);
  sum = warp_sum(part_weight(lane_m, m) * sum);
  float weight = part_weight(first_sums.x, m), o[columns] = {};
#pragma unroll 1
  for (int first = 0; first < parts; first += batch) {
    Columns<columns> x[batch];
#pragma unroll
    for (int i = 0; i < batch; i++) x[i] = next[i];
    if (first + batch < parts) load_next(parts - first - batch);
    if (first == 32) weight = part_weight(second_sums.x, m);
    else if (first % 32 == 0 && first > 0) weight = part_weight(sums_of(first + lane).x, m);
#pragma unroll
    for (int i = 0; i < batch; i++) {
      const float factor = __shfl_sync(0xffffffffu, weight, first % 32 + i);
#pragma unroll
      for (int c = 0; c < columns; c++) o[c] = add_in_order(o[c], factor, x[i].x[c]);
    }
  }
  store_row(o, m, sum, sink, p, block, place);
}

// Few parts of several rows, which a warp reads together, as one row after another would each wait for memory.
template <int most_rows, int most_parts>
FA3_DEVICE void combine_rows(const PackedRows& partial, int parts, int row, int end, const Params& p,
                             const RowBlock& block) {
  constexpr int columns = lane_columns;
  const int lane = threadIdx.x % 32;
  Columns<columns> x[most_rows][most_parts];
  float2 sums[most_rows][most_parts];
  float sinks[most_rows];
#pragma unroll
  for (int r = 0; r < most_rows; r++) {
    sinks[r] = sink_of(p, block, block.row + row + 4 * r);
    const float* const from = partial.o(row + 4 * r) + lane * columns;
    const float2* const from_sums = partial.sums(row + 4 * r);
#pragma unroll
    for (int i = 0; i < most_parts; i++) {
      const bool exists = row + 4 * r < end && i < parts;
      x[r][i] = exists ? load_columns<columns>(from + i * dv) : Columns<columns>{};
      sums[r][i] = exists ? __ldcg(&from_sums[i]) : make_float2(lowest_m, 0.f);
    }
  }
#pragma unroll
  for (int r = 0; r < most_rows; r++) {
    const RowPlace place = place_of(p, block, block.row + row + 4 * r);
    if (row + 4 * r >= end || !place.exists) continue;
    float m = lowest_m, sum = 0.f, o[columns] = {};
#pragma unroll
    for (int i = 0; i < most_parts; i++) m = fmaxf(m, sums[r][i].x);
#pragma unroll
    for (int i = 0; i < most_parts; i++) {
      const float weight = part_weight(sums[r][i].x, m);
      sum = add_in_order(sum, weight, sums[r][i].y);
#pragma unroll
      for (int c = 0; c < columns; c++) o[c] = add_in_order(o[c], weight, x[r][i].x[c]);
    }
    store_row(o, m, sum, sinks[r], p, block, place);
  }
}

// The rows of a share, by the four warps of a warpgroup.
FA3_DEVICE void combine_share(const PackedRows& partial, int parts, int begin, int end, const Params& p,
                              const RowBlock& block, int warp) {
  constexpr int loads = o_columns <= 128 ? 8 : 4;  // of O that a lane has under way; twice as many change the main loop
  int row = begin + warp;
  if (parts <= 2) {
#pragma unroll 1
    for (; row < end; row += 4 * (loads / 2))
      combine_rows<loads / 2, 2>(partial, parts, row, end, p, block);
  } else if (parts <= 4) {
#pragma unroll 1
    for (; row < end; row += 4 * (loads / 4))
      combine_rows<loads / 4, 4>(partial, parts, row, end, p, block);
  } else {
#pragma unroll 1
    for (; row < end; row += 4)
      combine_row<lane_columns, o_columns <= 128 ? 8 : 4>(partial, parts, row, p, block);
  }
}

// Behind what all threads of a warpgroup have written of its rows of a part: takes a ticket, and adds up what is to be
// added up now. All four warps call this.
FA3_DEVICE void add_up_parts(const PackedRows& partial, int rows, const Params& p, Smem& smem, const RowBlock& block,
                             int consumer, int warp) {
  const int parts = block.parts;
  const Shares shares(p, smem, rows, parts);
  ptx::bar_sync(barrier_warpgroup + consumer, 128);  // all have written
  if (warp == 0 && threadIdx.x % 32 == 0) {
    if (pieces_fit_grid(p, smem)) wait(smem.tickets_ready[0], 0);
    Tickets& tickets = p.tickets[block.ticket];
    smem.shares[consumer] = shares.take(&tickets.taken, block.part, parts);
  }
  ptx::bar_sync(barrier_warpgroup + consumer, 128);
  const uint32_t mine = smem.shares[consumer];
  if (mine == 0) return;
#pragma unroll 1
  for (int share = 0; shares.has(share); share++) {
    if (mine >> share & 1) combine_share(partial, parts, shares.begin(share), shares.end(share), p, block, warp);
  }
}

// All four warps of the warpgroup call this. l: row sums, of the whole quad; where they are 0, O is, too. fit: what
// makes O fit them.
FA3_DEVICE void combine_packed(float (&O)[o_columns / 2], const RowState& state, const float (&l)[2], float (&fit)[2],
                               const Params& p, Smem& smem, const RowBlock& block, int consumer, int warp) {
  const int rows = min(visible(p, block).rows() - block.row, 64);
  if (block.row < 0 || rows <= 0) return;
  fit_rows(O, fit);
  const PackedRows partial(p, block);
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = 16 * warp + lane / 4 + 8 * i;
    if (!place_of(p, block, block.row + row).exists) continue;
    float2* const to =
        reinterpret_cast<float2*>(partial.o(row) + block.part * dv) + lane % 4;
#pragma unroll
    for (int k = 0; k < o_columns / 8; k++) __stcg(to + 4 * k, make_float2(O[4 * k + 2 * i], O[4 * k + 2 * i + 1]));
    if (lane % 4 == 0) __stcg(&partial.sums(row)[block.part], make_float2(state.m[i], l[i]));
  }

  add_up_parts(partial, rows, p, smem, block, consumer, warp);
}

// Where O is in two halves: the warp's 16 rows of a part, for the pass that adds parts up. Both warpgroups have the
// same m and l. l and fit as above.
FA3_DEVICE void store_part(float (&O)[o_columns / 2], const RowState& state, const float (&l)[2], float (&fit)[2],
                           const Params& p, const RowBlock& block, int consumer, int warp) {
  static_assert(!halves_columns || dv == PartStrip::columns);
  const int lane = threadIdx.x % 32, row = 16 * warp;
  if (block.row < 0 || block.row + row >= visible(p, block).rows()) return;
  fit_rows(O, fit);
  const PartStrip strip(p.partials, block.partial + row);
  const int first = first_column(consumer) / 8;
#pragma unroll
  for (int k = 0; k < o_columns / 8; k++)
    __stcg(strip.o(first + k, lane), make_float4(O[4 * k], O[4 * k + 1], O[4 * k + 2], O[4 * k + 3]));
  if (first == 0 && lane % 4 == 0)
#pragma unroll
    for (int i = 0; i < 2; i++) __stcg(strip.sums(lane / 4 + 8 * i), make_float2(state.m[i], l[i]));
}

}  // namespace fa3
