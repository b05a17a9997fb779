// Backward calls of e4m3 with memory of their own: random q, k, v with scales, o and lse by the forward reference.
#pragma once
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "fa3.h"
#include "random.h"

namespace fa3::test {

enum class Granularity { tensor, head, block };

struct E4m3Form {
  const char* name;
  int64_t batch = 2, seqlen_q = 70, seqlen_k = 90, heads = 4, heads_kv = 2, head_dim = 32, head_dim_v = 48;
  int32_t dtype = FA3_DTYPE_BF16, mask = FA3_MASK_NONE;
  Granularity scales = Granularity::head;
  bool tiles = false, mean = true, offset = true, dlse = true, sinks = false, dsinks = false;
  bool by_heads = false;  // storage (batch, heads, seqlen, head_dim), with gaps behind rows
  std::vector<std::pair<int32_t, int32_t>> lengths = {};  // packed: of queries and keys; batch and seqlens follow
  int32_t window_left = 0, window_right = 0;
  float softcap = 0;
  uint64_t flags = 0;
};

class E4m3Call {
 public:
  E4m3Form form;
  fa3_forward_params f = FA3_FORWARD_PARAMS_INIT;
  fa3_backward_params p = FA3_BACKWARD_PARAMS_INIT;

  explicit E4m3Call(const E4m3Form& form, uint64_t seed = 1);
  E4m3Call(const E4m3Call&) = delete;

  // The gradients' bits, and NaN where nothing was written yet.
  std::vector<double> numbers(const fa3_tensor& t) const;
  void clear_gradients();
  fa3_tensor make(int32_t dtype, const std::vector<int64_t>& dims, bool by_heads = false);

 private:
  void fill(const fa3_tensor& t, double deviation, double mean = 0);
  fa3_tensor scale_of(int64_t heads, int64_t rows);
  fa3_tensor lengths_of(bool keys);

  std::deque<std::vector<char>> memory_;
  tools::Random random_;
};

// Some of every kind.
std::vector<E4m3Form> e4m3_forms();

// Relative RMS error; infinite if a number is not finite.
double relative_error(const std::vector<double>& found, const std::vector<double>& right);

}  // namespace fa3::test
