#include "rules/attention.h"

#include <cmath>
#include <utility>

#include "error.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

constexpr float log2e = 1.4426950408889634f;

}  // namespace

Status check_heads(Dim heads, Dim heads_kv) {
  if (heads_kv.value == 0 ? heads.value == 0 : heads.value % heads_kv.value == 0) return FA3_OK;
  return fail(invalid, "%s.dim[%d] is %lld, must divide the query heads, %s.dim[%d], which is %lld", heads_kv.name,
              heads_kv.number, ll(heads_kv.value), heads.name, heads.number, ll(heads.value));
}

Status check_head_dims(Dim head_dim, Dim head_dim_v, int unit) {
  if (Status status = check_head_dim(head_dim, "head_dim", unit)) return status;
  return check_head_dim(head_dim_v, "head_dim_v", unit);
}

Status check_rows_of(Dims rows, Dims q) {
  const Dim pairs[][2] = {{rows[0], q[0]}, {rows[1], q[2]}, {rows[2], q[1]}};
  for (const auto& pair : pairs)
    if (Status status = must_equal(pair[0], pair[1])) return status;
  return FA3_OK;
}

Status check_lengths(const AttentionShape& shape) {
  for (const auto& [name, length] : {std::pair{"q", shape.seqlen_q}, {"k", shape.seqlen_k}})
    if (length > max_seqlen)
      return fail(FA3_ERROR_UNSUPPORTED, "%s.dim[1] (sequence length) is %lld; the kernels take up to %lld", name,
                  ll(length), ll(max_seqlen));
  return FA3_OK;
}

Status check_mask(int32_t mask) {
  if (mask >= FA3_MASK_NONE && mask <= FA3_MASK_CHUNK) return FA3_OK;
  return fail(invalid, "mask is %d, must be a fa3_mask", mask);
}

Status check_softmax_scale(float scale) {
  if (scale >= 0 && !std::isinf(scale * log2e)) return FA3_OK;  // kernels scale to powers of two, in fp32
  return fail(invalid, "softmax_scale is %g, must be > 0 and finite (times log2(e), too), or 0 for the default",
              static_cast<double>(scale));
}

double resolved_softmax_scale(float scale, int64_t head_dim) {
  return scale == 0 ? 1 / std::sqrt(static_cast<double>(head_dim)) : double{scale};
}

AttentionShape shape_of(const fa3_tensor& q, const fa3_tensor& k, const fa3_tensor& v, int32_t mask,
                        float softmax_scale) {
  AttentionShape shape{};
  shape.batch = q.dim[0];
  shape.seqlen_q = q.dim[1];
  shape.heads = q.dim[2];
  shape.head_dim = q.dim[3];
  shape.head_dim_v = v.dim[3];
  shape.seqlen_k = k.dim[1];
  shape.heads_kv = k.dim[2];
  shape.causal = mask != FA3_MASK_NONE;
  shape.causal_offset = mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT ? shape.seqlen_k - shape.seqlen_q : 0;
  shape.softmax_scale = resolved_softmax_scale(softmax_scale, shape.head_dim);
  return shape;
}

}  // namespace fa3
