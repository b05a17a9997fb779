// One test problem: shape, layouts, pattern of the numbers; and the random choice of such problems.
#pragma once
#include <cstdint>
#include <string>

#include "fa3.h"
#include "ptx/table/row.h"
#include "random.h"

namespace fa3::test {

enum class Pattern {
  normal,     // N(0,1)
  outliers,   // N(0,1), and a few elements of N(0,100)
  large,      // scores of standard deviation 15: the softmax is nearly one-hot
  growing,    // scores grow along the keys: the row maximum changes until the last block
  shrinking,  // the first keys dominate: later exponentials underflow
  spikes,     // a few keys far above the rest
  constant,   // all scores equal
  tiny,       // V at the low end of the format (fp16 subnormals)
  sink,       // long sums of equal weights, then key 0 with a weight beyond fp16 relative to each of them
};
inline constexpr int pattern_count = 9;
const char* name(Pattern pattern);

// How one tensor lies in memory.
struct Storage {
  enum Order { bshd, bhsd, sbhd, hbsd } order = bshd;
  int pad_d = 0, pad_h = 0, pad_s = 0, pad_b = 0;  // extra entries of that dimension in storage (d: of 16 bytes)
  int shift = 0;                                   // start, in units of 16 bytes past an allocation's alignment
  bool share_heads = false, share_batch = false;   // stride 0 (k and v only)
};
std::string describe(const char* tensor, const Storage& storage);

// What e4m3 has a scale for: the tensor, each head of each batch entry, or each block of 64 rows of those.
enum class Scales { tensor, head, block };

struct Problem {
  fa3_dtype dtype = FA3_DTYPE_BF16;
  fa3_mask mask = FA3_MASK_NONE;
  int64_t batch = 1, seqlen_q = 1, seqlen_k = 1, heads = 1, heads_kv = 1, head_dim = 64;
  int64_t head_dim_v = 0;  // of v and o; 0: head_dim
  float softmax_scale = 0;
  Pattern pattern = Pattern::normal;
  Storage q, k, v, o, lse;
  // q, k, v are slices of one (batch, seqlen, heads + 2 heads_kv, head_dim) tensor; v as tiles, or of another head
  // dimension, lies elsewhere.
  bool packed_qkv = false;
  bool want_lse = true;
  const char* kernel = nullptr;  // the row to run on; null: the library's choice
  uint64_t seed = 0;

  // Of e4m3 only. Where o is e4m3, too, there is an o_scale.
  fa3_dtype o_dtype = FA3_DTYPE_NONE;  // none: dtype
  Scales q_scales = Scales::tensor, k_scales = Scales::tensor, v_scales = Scales::tensor;
  bool v_tiles = false;     // `v` then says how the tiles lie, each as one row
  bool v_mean = false;      // added to O
  bool lse_offset = false;  // added to LSE, if there is one
  bool two_level = false;   // FA3_FLAG_TWO_LEVEL, and V has a mean of 1

  bool is_e4m3() const { return dtype == FA3_DTYPE_E4M3; }
  int64_t v_dim() const { return head_dim_v == 0 ? head_dim : head_dim_v; }
  bool v_is_packed() const { return packed_qkv && !v_tiles && v_dim() == head_dim; }
  fa3_dtype output_dtype() const { return o_dtype == FA3_DTYPE_NONE ? dtype : o_dtype; }
  double scale() const;
  // Keys that query i sees.
  int64_t visible_keys(int64_t i) const;
  std::string describe() const;
};

fa3_dtype dtype_of(const ForwardRow& row);
// Head dimensions are multiples of it.
int head_dim_unit(const ForwardRow& row);

// Does the library choose this row itself?
inline bool is_default(const ForwardRow& row) { return row.has(Trait::chosen); }

// The smallest head_dim that does not fit a smaller row of the same kernel, dtype and mask.
int64_t smallest_head_dim(const ForwardRow& row);

// A random order of the dims, and gaps; of inputs also heads, or batch entries, that share memory.
Storage random_storage(tools::Random& random, bool input);

// A problem that names this row of the table: random shape, layouts, pattern, all from the seed. `budget` bounds
// batch * heads * seqlen_q * seqlen_k * the larger head dimension, the work of the references.
Problem random_problem(const ForwardRow& row, uint64_t seed, double budget = 1.5e8);

// The plainest problem that names this row: the row's own head_dim, packed, N(0,1), bottom-right mask if causal. What
// the fields for e4m3 say, the seed chooses, as far as the row allows.
Problem plain_problem(const ForwardRow& row, int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads,
                      int64_t heads_kv, uint64_t seed);

}  // namespace fa3::test
