// The cases of planned.cpp: sequences in packed tensors, in a batch or in pages, what their rows see, and what is
// right.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "params/params.h"

namespace fa3 {

// The rows of planned.def. Their kernels are numbered as those of the library.
namespace table {
inline constexpr Line planned_lines[] = {
#include "planned.def"
};
}  // namespace table

namespace test {

inline constexpr auto planned_rows = table::rows_of<table::planned_lines, Kind::forward>(&table::Line::forward);

// What rows see: left and right of the diagonal that ends in the last row and the last key; or no_bound.
struct Bounds {
  int32_t left, right;

  // Counted from the diagonal that begins in the first row and the first key, as Sequence does.
  int32_t left_of(int32_t diagonal) const { return left == no_bound ? no_bound : left - diagonal; }
  int32_t right_of(int32_t diagonal) const { return right == no_bound ? no_bound : right + diagonal; }
};

// Inputs are N(0,1) where a sequence has rows, and NaN elsewhere. Outputs are poison until they are computed.
struct PlannedCall {
  const ForwardRow& row;
  int heads = 4, heads_kv = 2, head_dim = row.d;
  std::vector<Sequence> sequences = {};
  std::vector<bool> poisoned = {};  // sequences whose inputs are all NaN
  int64_t rows_q = 0, rows_k = 0, batch = 1, batch_k = 1;
  // With pages the batch entries of k and v are pages: sequence s has those whose numbers are in row s.k_batch of the
  // table.
  bool paged = false;
  int64_t table_pages = 0;  // numbers in a row
  std::vector<int32_t> page_table = {};
  std::vector<uint16_t> q = {}, k = {}, v = {}, o = {};  // (batch, rows, heads, head_dim), in bf16
  std::vector<float> lse = {};                           // (batch, heads, rows)
  std::vector<float> sinks = {};                         // of each head; empty: none

  Packing packing() const { return row.packs_heads() ? Packing::of(heads / heads_kv) : Packing{0}; }
  int heads_of_tiles() const { return row.packs_heads() ? heads_kv : heads; }
  Visible visible(const Sequence& s, Packing packing = {0}) const {
    return visible_of(s, row.bounded_left(), row.bounded_right(), packing);
  }
  int64_t q_at(const Sequence& s, int64_t i, int64_t head) const {
    return ((s.q_batch * rows_q + s.q_row + i) * heads + head) * head_dim;
  }
  int64_t k_at(const Sequence& s, int64_t j, int64_t head) const {
    const int64_t page = paged ? page_table[size_t(s.k_batch * table_pages + j / rows_k)] : s.k_batch;
    return ((page * rows_k + (paged ? j % rows_k : s.k_row + j)) * heads_kv + head) * head_dim;
  }
  int64_t lse_at(const Sequence& s, int64_t i, int64_t head) const {
    return (s.q_batch * heads + head) * rows_q + s.q_row + i;
  }
  float scale() const;
};

// Sequences of these numbers of queries and keys one after the other, with gaps of a few rows; some are all NaN.
PlannedCall packed(const ForwardRow& row, const std::vector<std::array<int, 2>>& lengths, Bounds bounds, uint64_t seed);

// The same with keys in pages of so many, in any order, some of them shared. Pages that no sequence has are NaN, and so
// is what lies behind a sequence's end in its last one. Numbers of pages that a sequence does not need are any numbers,
// and so are all numbers of sequences that are all NaN.
PlannedCall paged(const ForwardRow& row, const std::vector<std::array<int, 2>>& lengths, int page_size, Bounds bounds,
                  uint64_t seed);

// A batch of sequences of the same length.
PlannedCall batched(const ForwardRow& row, int batch, int seqlen_q, int seqlen_k, Bounds bounds, uint64_t seed);

// What is right, in float64 from the inputs; and what plain float32 code computes, with P and O rounded to bf16.
struct Expectation {
  std::vector<float> o, lse, plain_o, plain_lse;
  // Of each element of lse, and of the row of o that belongs to it: it is of no sequence, of one that is all NaN, or
  // computed, from keys or without any.
  enum class Is : uint8_t { outside, poisoned, computed, without_keys };
  std::vector<Is> rows;
};
Expectation expect(const PlannedCall& made);

// "", or what is wrong: outside of sequences every byte is as it was, rows without keys are exactly 0 and their LSE is
// the sink or -inf, and the errors are at most 1.25 times those of plain code, with oracle.h's room for luck in few
// elements.
std::string verify(const PlannedCall& made, const Expectation& expected);

}  // namespace test
}  // namespace fa3
