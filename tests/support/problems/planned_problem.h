// A forward problem of sequences with lengths of their own (fa3.h): packed rows, used rows, padding, pages, cache
// entries, windows, chunks, sinks. The numbers that the device reads are those of the call; what they mean is said here
// once, in the header's words and without the library's help.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "problem.h"

namespace fa3::test {

// Sequence `number` of a problem. Query i is row first_query + i of entry `entry_q` of q; see PlannedProblem::place_of
// for its keys.
struct PlannedSequence {
  int64_t number, queries, keys;
  int64_t entry_q, first_query;
  int64_t padding;  // keys in use before the first one that counts
};

// Where a row of a tensor lies: in which entry of its first dimension, and which of the entry's rows it is.
struct RowPlace {
  int64_t entry, row;
};

struct PlannedProblem {
  // Of how many queries and keys the sequences are made. What numbers there are decides: cut by a maximum they are
  // fewer, and where all rows of an entry are in use, they are as many as it has.
  using Lengths = std::vector<std::array<int64_t, 2>>;

  fa3_dtype dtype = FA3_DTYPE_BF16;
  fa3_dtype o_dtype = FA3_DTYPE_NONE;  // none: dtype
  int32_t mask = FA3_MASK_NONE, window_left = 0, window_right = 0;
  int64_t heads = 4, heads_kv = 2, head_dim = 64, head_dim_v = 64;
  float softmax_scale = 0;
  bool want_lse = true, batch_invariant = false;
  const char* kernel = nullptr;

  // Of e4m3 only: what has a scale, the tensor or each head of each sequence; and what is added to O and to LSE. Where
  // o is e4m3, too, there is an o_scale.
  Scales q_scales = Scales::tensor, k_scales = Scales::tensor, v_scales = Scales::tensor;
  bool v_mean = false, lse_offset = false;
  bool e4m3_keys = false;  // K and V are of e4m3 under Q of 16 bits, and have their scales
  // With has_qv: V alone is of e4m3, a latent cache, with a scale for each 128 columns of a row; and lies with these
  // and K in one buffer, a token behind the other.
  bool e4m3_latent = false, one_buffer = false;

  // Which of the optional tensors there are; page_size 0: no pages.
  bool packed_q = false, packed_k = false, uses_q = false, uses_k = false, pads_k = false, indexes_cache = false;
  int64_t page_size = 0;
  bool has_sinks = false;
  float softcap = 0;                             // 0: none
  bool centered_k = false;                       // FA3_FLAG_CENTERED_K, of the backward pass
  float k_mean = 0;                              // a channel of keys has this or its negative for a mean
  bool has_slopes = false, slopes_each = false;  // of ALiBi: for the heads, or for those of each sequence
  bool has_qv = false;  // a second query, of V's columns
  bool v_in_k = false;  // V is the first columns of K
  bool shares_keys = true;  // sequences may have pages, or cache entries, together

  // Rows of a packed tensor, or of each of its entries: batch entries, cache entries or pages.
  int64_t batch = 0, rows_q = 0, rows_k = 0, entries_k = 0;
  int64_t pages_each = 0;  // of a sequence, in the table
  int32_t max_seqlen_q = 0, max_seqlen_k = 0;

  std::vector<int32_t> cu_q, cu_k, used_q, used_k, leftpad_k, cache_batch_idx, page_table;  // empty: absent
  std::vector<float> sinks, slopes;
  std::vector<bool> poisoned;  // sequences whose inputs are all NaN
  Lengths lengths;             // of which the numbers were made

  Storage q, k, v, o, lse;
  int64_t guard = 65536;  // bytes of poison around each tensor
  uint64_t seed = 0;

  bool is_e4m3() const { return dtype == FA3_DTYPE_E4M3; }
  bool has_e4m3_keys() const { return is_e4m3() || e4m3_keys; }
  fa3_dtype key_dtype() const { return e4m3_keys ? FA3_DTYPE_E4M3 : dtype; }
  fa3_dtype value_dtype() const { return e4m3_keys || e4m3_latent ? FA3_DTYPE_E4M3 : dtype; }
  int64_t latent_scales() const { return (head_dim_v + FA3_LATENT_SCALE_COLUMNS - 1) / FA3_LATENT_SCALE_COLUMNS; }
  // To which weights are rounded: where K and V become 16 bits, these are fp16.
  fa3_dtype weight_dtype() const { return e4m3_keys ? FA3_DTYPE_FP16 : dtype; }
  fa3_dtype output_dtype() const { return o_dtype == FA3_DTYPE_NONE ? dtype : o_dtype; }
  int64_t group() const { return heads / heads_kv; }
  int64_t score_columns() const { return head_dim + (has_qv ? head_dim_v : 0); }
  double scale() const;
  // The most keys that the tensors have room for in a sequence.
  int64_t most_keys() const;

  PlannedSequence sequence(int64_t b) const;
  RowPlace place_of(const PlannedSequence& s, int64_t key) const;
  bool sees(const PlannedSequence& s, int64_t query, int64_t key) const;
  // What becomes of a score of these, which softmax_scale is in.
  template <class Number>
  Number transformed(Number score, const PlannedSequence& s, int64_t query, int64_t head, int64_t key) const {
    if (softcap > 0) score = Number(softcap) * std::tanh(score / Number(softcap));
    return score - Number(slope_of(s, head)) * Number(std::abs(query + s.keys - s.queries - key));
  }
  // Its derivative, which softcap alone changes.
  template <class Number>
  Number slope_of_cap(Number score) const {
    if (softcap == 0) return 1;
    const Number capped = std::tanh(score / Number(softcap));
    return 1 - capped * capped;
  }
  float key_mean(int64_t head_kv, int64_t column) const { return (head_kv + column) * 5 % 7 < 3 ? -k_mean : k_mean; }
  float slope_of(const PlannedSequence& s, int64_t head) const {
    return has_slopes ? slopes[size_t((slopes_each ? s.number * heads : 0) + head)] : 0;
  }
  // From 127 keys before the first that queries see to 512 behind the last: a kernel may look at those.
  struct Range {
    int64_t begin, end;
  };
  Range keys_near(const PlannedSequence& s) const;

  std::string describe() const;
};

// Any mix of all of that, from the seed. `budget` bounds the work of the references: the sum over sequences of
// queries * keys, times heads * the larger head dimension. Small heads leave more of it for lengths.
struct PlannedLimits {
  double budget = 1.5e8;
  int64_t most_heads = 1000, most_head_dim = 256;
  bool wide = false;                 // head dimensions above 256, or a second query, in 16 bits
  const ForwardRow* row = nullptr;  // that the problem names; dtype and head dimensions are for it
};
PlannedProblem random_planned(uint64_t seed, const PlannedLimits& limits = {});
// K and V as the row takes them: of Q's dtype, of e4m3, or a latent cache of e4m3.
void choose_cache(PlannedProblem& problem, const ForwardRow& row);
// The same problem in e4m3, with what goes with that, from its seed; room in the tensors is to be made for it.
void change_to_e4m3(PlannedProblem& problem);
// The same, of its K and V alone.
void change_keys_to_e4m3(PlannedProblem& problem);

// Room in the tensors for sequences of these lengths, maxima to go with it, which may cut some, and the numbers.
void make_room(PlannedProblem& problem, const PlannedProblem::Lengths& lengths, uint64_t seed);
// Other numbers for the same tensors: nobody's lengths grow beyond what there is room for.
void set_numbers(PlannedProblem& problem, const PlannedProblem::Lengths& lengths, uint64_t seed);
// The same lengths in another order, many of them shorter, some 0.
PlannedProblem::Lengths other_lengths(const PlannedProblem::Lengths& lengths, uint64_t seed);

// Makes some numbers wrong: below 0, beyond all bounds, prefix sums that decrease, pages and cache entries that there
// are none of. Nobody's sequences then mean anything.
void spoil_numbers(PlannedProblem& problem, uint64_t seed);
// Those of poisoned sequences' keys only, where others do not begin behind them: all others mean what they did.
void spoil_poisoned(PlannedProblem& problem, uint64_t seed);

}  // namespace fa3::test
