// The cases of served_backward.cpp: sequences in packed tensors, with LSE and D as a pass would prepare them, and what
// their gradients are to be.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backward_tiles.h"
#include "served.h"

namespace fa3::test {

// A packed tensor of two batch entries, of bf16, with rows before and behind it that nobody may read or write.
struct PackedTensor {
  static constexpr int64_t around = 128, entries = 2;
  int64_t rows = 0, heads = 0, head_dim = 0;  // rows: of a batch entry
  std::vector<uint16_t> all = {};

  PackedTensor() = default;
  PackedTensor(int64_t rows, int64_t heads, int64_t head_dim);  // all poison
  int64_t first() const { return around * heads * head_dim; }
  int64_t all_rows() const { return 2 * around + entries * rows; }
  // Row i of what begins at `row` of a batch entry.
  uint16_t* at(int64_t entry, int64_t row, int64_t i, int64_t head) {
    return &all[size_t(first() + ((entry * rows + row + i) * heads + head) * head_dim)];
  }
  const uint16_t* at(int64_t entry, int64_t row, int64_t i, int64_t head) const {
    return const_cast<PackedTensor*>(this)->at(entry, row, i, head);
  }
};

// Inputs are N(0,1) where a sequence has rows, and NaN elsewhere. Gradients are poison until they are computed.
struct ServedBackward {
  const BackwardRow& row;
  int heads, heads_kv, head_dim = row.d;
  std::vector<Sequence> sequences = {};
  std::vector<bool> poisoned = {};  // sequences whose inputs are all NaN
  PackedTensor q = {}, dout = {}, dq = {}, k = {}, v = {}, dk = {}, dv = {};
  // LSE in powers of 2 and D, as they lie in the workspace (PlannedBackwardParams): NaN in tiles of no sequence, and
  // P = 0 in rows behind the end of one and in rows that see no key.
  std::vector<float> lse_log2 = {}, delta = {};

  int heads_per_kv() const { return heads / heads_kv; }
  float scale() const;
  // Tiles of Br rows: of a head, those of all sequences; and the first one of the n-th.
  int32_t tiles() const;
  int32_t first_tile(size_t n) const;
  Visible visible(const Sequence& s) const { return visible_of(s, row.bounded_left(), row.bounded_right(), {0}); }
  size_t number_at(size_t n, int64_t i, int64_t head) const {
    return size_t((head * tiles() + first_tile(n)) * row.Br + i);
  }
};

// Sequences of these numbers of queries and keys one after the other, with gaps of a few rows; some are all NaN. The
// first half of them is in batch entry 0.
ServedBackward packed_gradients(const BackwardRow& row, int heads_kv, const std::vector<std::array<int, 2>>& lengths,
                                Bounds bounds, uint64_t seed);

// What is right, in float64 from inputs, LSE and D; and what plain float32 code computes, with P, dS and the gradients
// rounded to bf16. As the elements of dq, dk and dv lie in their tensors.
struct ExpectedGradients {
  struct Ways {
    std::vector<float> right, plain;
  };
  Ways dq, dk, dv;
};
ExpectedGradients expect(const ServedBackward& made);

// "", or what is wrong: outside of sequences every byte is as it was, rows that see no key and keys that no row sees
// have gradients of exactly 0, and errors are within the limits that the forward pass has (Compared).
std::string verify(const ServedBackward& made, const ExpectedGradients& expected);

}  // namespace fa3::test
