#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "error.h"
#include "quantize/quantize.h"
#include "rules/attention.h"
#include "rules/rotary.h"
#include "rules/tensor.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

// No field was ever put into padding, so there is none.
static_assert(sizeof(fa3_quantize_params) == sizeof(size_t) + 2 * sizeof(uint64_t) + 8 * sizeof(fa3_tensor) +
                                                 sizeof(float) + sizeof(int32_t));
static_assert(rows_of_scale == FA3_SCALE_ROWS);

constexpr uint64_t known_flags = FA3_QUANTIZE_INCOHERENT | FA3_QUANTIZE_ROTARY_INTERLEAVED;

// One call's checks.
class Check {
 public:
  Check(const fa3_quantize_params& p, Rules rules, QuantizeProblem& problem)
      : p_(p), pointers_(rules != Rules::shapes), problem_(problem) {}

  Status all() {
    if (Status status = scalars()) return status;
    if (Status status = x()) return status;
    if (Status status = y()) return status;
    if (Status status = scale()) return status;
    if (Status status = mean()) return status;
    if (Status status = rotary()) return status;
    if (Status status = lse_offset()) return status;
    return pointers_ ? overlaps() : FA3_OK;
  }

 private:
  Expected input(const char* name, int rank, bool wide = false) const {
    return {name, rank, false, wide, pointers_, false};
  }
  Expected output(const char* name, int rank, bool wide = false) const {
    return {name, rank, true, wide, pointers_, false};
  }

  Status scalars() {
    if (p_.flags & ~known_flags)
      return fail(invalid, "flags is 0x%llx, has bits that this version does not know",
                  static_cast<unsigned long long>(p_.flags));
    if (Status status = check_softmax_scale(p_.softmax_scale)) return status;
    if (p_.reserved != 0) return fail(invalid, "reserved is %d, must be 0", p_.reserved);
    problem_.incoherent = p_.flags & FA3_QUANTIZE_INCOHERENT;
    problem_.rotary.interleaved = p_.flags & FA3_QUANTIZE_ROTARY_INTERLEAVED;
    problem_.seed = p_.seed;
    return FA3_OK;
  }

  Status x() {
    if (Status status = check_dtype("x", p_.x.dtype)) return status;
    if (p_.x.dtype != FA3_DTYPE_BF16 && p_.x.dtype != FA3_DTYPE_FP16)
      return fail(FA3_ERROR_UNSUPPORTED, "x.dtype is %s; the kernels quantize bf16 and fp16", dtype_name(p_.x.dtype));
    const Expected expected = input("x", 4, true);
    if (Status status = check_dims(expected, p_.x)) return status;
    const int64_t* const dim = p_.x.dim;
    if (Status status = check_head_dim({"x", 3, dim[3]}, "head_dim", 16)) return status;
    problem_.batch = dim[0], problem_.rows = dim[1], problem_.heads = dim[2], problem_.head_dim = dim[3];
    problem_.softmax_scale = resolved_softmax_scale(p_.softmax_scale, dim[3]);
    if (Status status = size()) return status;
    return check_tensor(expected, p_.x, problem_.x);
  }

  Status y() {
    problem_.tiles = p_.y.rank == 5;
    if (p_.y.rank != 4 && p_.y.rank != 5)
      return fail(invalid, "y.rank is %d, must be 4, or 5 for the tiles of V", p_.y.rank);
    if (Status status = check_dtype("y", p_.y.dtype)) return status;
    if (p_.y.dtype != FA3_DTYPE_E4M3) return fail(invalid, "y.dtype is %s, must be e4m3", dtype_name(p_.y.dtype));
    if (Status status = check_dims(output("y", p_.y.rank), p_.y)) return status;
    const int64_t *const y = p_.y.dim, *const x = p_.x.dim;
    if (Status status = must_equal({"y", 0, y[0]}, {"x", 0, x[0]})) return status;
    if (!problem_.tiles) {
      if (Status status = must_equal({"y", 1, y[1]}, {"x", 1, x[1]})) return status;
      if (Status status = must_equal({"y", 2, y[2]}, {"x", 2, x[2]})) return status;
      if (Status status = must_equal({"y", 3, y[3]}, {"x", 3, x[3]})) return status;
      if (Status status = check_multiples("y", p_.y, 3, 16)) return status;
      return check_tensor(output("y", 4, true), p_.y, problem_.y);
    }
    const int64_t tiles = divided_up(x[1], v_tile_keys);
    if (Status status = must_equal({"y", 1, y[1]}, {"x", 2, x[2]})) return status;
    if (y[2] != tiles)
      return fail(invalid, "y.dim[2] is %lld, must equal the number of tiles, x.dim[1] / 16 rounded up, which is %lld",
                  ll(y[2]), ll(tiles));
    if (Status status = must_equal({"y", 3, y[3]}, {"x", 3, x[3]})) return status;
    if (y[4] != v_tile_keys) return fail(invalid, "y.dim[4] is %lld, must be 16", ll(y[4]));
    if (p_.y.stride[3] != 16) return fail(invalid, "y.stride[3] is %lld, must be 16", ll(p_.y.stride[3]));
    if (Status status = check_contiguous("y", p_.y)) return status;
    if (Status status = check_multiples("y", p_.y, 3, 16)) return status;
    fa3_tensor rows = p_.y;  // a tile is a row of bytes
    rows.rank = 4;
    rows.dim[3] = y[3] * y[4];
    rows.stride[3] = 1;
    if (Status status = check_tensor(output("y", 4, true), rows, problem_.y)) return status;
    std::swap(problem_.y.dim[1], problem_.y.dim[2]);
    std::swap(problem_.y.stride[1], problem_.y.stride[2]);
    return FA3_OK;
  }

  Status scale() {
    using Granularity = QuantizeParams::Granularity;
    if (Status status = must_be_fp32("scale", p_.scale.dtype)) return status;
    if (Status status = check_dims(output("scale", 3), p_.scale)) return status;
    const int64_t blocks = divided_up(problem_.rows, rows_of_scale);
    const auto has_dims = [&](int64_t batch, int64_t heads, int64_t n) {
      return p_.scale.dim[0] == batch && p_.scale.dim[1] == heads && p_.scale.dim[2] == n;
    };
    if (has_dims(problem_.batch, problem_.heads, blocks)) problem_.scales = Granularity::block;
    else if (has_dims(problem_.batch, problem_.heads, 1)) problem_.scales = Granularity::head;
    else if (has_dims(1, 1, 1)) problem_.scales = Granularity::tensor;
    else
      return fail(invalid,
                  "scale.dim is %lld, %lld, %lld, must be 1, 1, 1, or batch and heads and 1, or batch and heads and "
                  "blocks of 64 rows, which are %lld, %lld, %lld", ll(p_.scale.dim[0]), ll(p_.scale.dim[1]),
                  ll(p_.scale.dim[2]), ll(problem_.batch), ll(problem_.heads), ll(blocks));
    return check_tensor(output("scale", 3), p_.scale, problem_.scale);
  }

  Status mean() {
    problem_.has_mean = is_there(p_.mean);
    if (!problem_.has_mean) return FA3_OK;
    if (Status status = must_be_fp32("mean", p_.mean.dtype)) return status;
    if (Status status = check_dims(output("mean", 3), p_.mean)) return status;
    const int64_t *const mean = p_.mean.dim, *const x = p_.x.dim;
    if (Status status = must_equal({"mean", 0, mean[0]}, {"x", 0, x[0]})) return status;
    if (Status status = must_equal({"mean", 1, mean[1]}, {"x", 2, x[2]})) return status;
    if (Status status = must_equal({"mean", 2, mean[2]}, {"x", 3, x[3]})) return status;
    if (Status status = check_contiguous("mean", p_.mean)) return status;
    return check_tensor(output("mean", 3), p_.mean, problem_.mean);
  }

  Status rotary() {
    const fa3_tensor &cos = p_.rotary_cos, &sin = p_.rotary_sin;
    if (Status status = check_rotary(cos, sin, problem_.head_dim, pointers_, problem_.rotary)) return status;
    if (!is_there(cos)) return FA3_OK;
    if (Status status = must_equal({"rotary_cos", 0, cos.dim[0]}, {"x", 1, problem_.rows})) return status;
    return must_equal({"rotary_sin", 0, sin.dim[0]}, {"x", 1, problem_.rows});
  }

  Status lse_offset() {
    const fa3_tensor &k_mean = p_.k_mean, &lse = p_.lse_offset;
    if (is_there(k_mean) != is_there(lse))
      return fail(invalid, "%s is absent, must be given where %s is", is_there(lse) ? "k_mean" : "lse_offset",
                  is_there(lse) ? "lse_offset" : "k_mean");
    problem_.has_lse_offset = is_there(lse);
    if (!problem_.has_lse_offset) return FA3_OK;
    if (Status status = must_be_fp32("k_mean", k_mean.dtype)) return status;
    if (Status status = check_dims(input("k_mean", 3), k_mean)) return status;
    if (Status status = must_be_fp32("lse_offset", lse.dtype)) return status;
    if (Status status = check_dims(output("lse_offset", 3), lse)) return status;
    const int64_t* const x = p_.x.dim;
    if (Status status = must_equal({"k_mean", 0, k_mean.dim[0]}, {"x", 0, x[0]})) return status;
    if (Status status = must_equal({"k_mean", 2, k_mean.dim[2]}, {"x", 3, x[3]})) return status;
    problem_.heads_kv = k_mean.dim[1];
    if (problem_.heads_kv == 0 ? x[2] != 0 : x[2] % problem_.heads_kv != 0)
      return fail(invalid, "k_mean.dim[1] is %lld, must divide the heads, x.dim[2], which is %lld",
                  ll(problem_.heads_kv), ll(x[2]));
    if (Status status = must_equal({"lse_offset", 0, lse.dim[0]}, {"x", 0, x[0]})) return status;
    if (Status status = must_equal({"lse_offset", 1, lse.dim[1]}, {"x", 2, x[2]})) return status;
    if (Status status = must_equal({"lse_offset", 2, lse.dim[2]}, {"x", 1, x[1]})) return status;
    if (Status status = check_contiguous("k_mean", k_mean)) return status;
    if (Status status = check_tensor(input("k_mean", 3), k_mean, problem_.k_mean)) return status;
    return check_tensor(output("lse_offset", 3), lse, problem_.lse_offset);
  }

  // Blocks are numbered in 32 bits, and thread blocks ask for a few more than there are.
  Status size() const {
    constexpr int64_t most_rows = INT32_MAX - 1024, most_blocks = INT32_MAX - 65536;
    if (problem_.rows > most_rows)
      return fail(FA3_ERROR_UNSUPPORTED, "x.dim[1] is %lld; the largest supported is %lld", ll(problem_.rows),
                  ll(most_rows));
    int64_t all;
    if (__builtin_mul_overflow(problem_.batch * problem_.heads, divided_up(problem_.rows, rows_of_scale), &all) ||
        all > most_blocks)
      return fail(FA3_ERROR_UNSUPPORTED, "x has %lld heads of %lld rows, more blocks of 64 rows than the kernels count",
                  ll(problem_.batch * problem_.heads), ll(problem_.rows));
    return FA3_OK;
  }

  Status overlaps() const;

  const fa3_quantize_params& p_;
  const bool pointers_;
  QuantizeProblem& problem_;
};

// The outputs first.
constexpr size_t outputs = 4, tensor_count = 8;
std::array<NamedView, tensor_count> tensors(const QuantizeProblem& p) {
  return {{{"y", &p.y},
           {"scale", &p.scale},
           {"mean", &p.mean},
           {"lse_offset", &p.lse_offset},
           {"x", &p.x},
           {"rotary_cos", &p.rotary.cos},
           {"rotary_sin", &p.rotary.sin},
           {"k_mean", &p.k_mean}}};
}

Status Check::overlaps() const { return check_overlap(tensors(problem_).data(), tensor_count, outputs); }

}  // namespace

Status validate(const fa3_quantize_params* params, Rules rules, QuantizeProblem& problem) {
  // Without x, y and scale there is nothing to do; every later field has a default.
  fa3_quantize_params p{};
  size_t size = 0;
  if (Status status = check_struct_size("params", params, offsetof(fa3_quantize_params, mean), sizeof p, size))
    return status;
  std::memcpy(&p, params, std::min(size, sizeof p));
  problem = {};
  return Check(p, rules, problem).all();
}

Status validate_workspace(const QuantizeProblem& problem, void* workspace, size_t bytes, size_t needed) {
  return check_workspace(workspace, bytes, needed, tensors(problem).data(), tensor_count);
}

}  // namespace fa3
