#include "rules/scales.h"

#include <utility>

#include "error.h"
#include "params/v_tile.h"
#include "rules/planned.h"
#include "rules/tensor.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

constexpr int64_t max_stride = INT32_MAX;  // elements; the kernels keep these strides in int32

static_assert(latent_scale_columns == FA3_LATENT_SCALE_COLUMNS);

Expected input(const char* name, int rank, bool rows, Rules rules) {
  const bool host = rules == Rules::reference;
  return {name, rank, false, rows && !host, rules != Rules::shapes, host};
}

template <int count>
Status all_equal(const Dim (&pairs)[count][2]) {
  for (const auto& pair : pairs)
    if (Status status = must_equal(pair[0], pair[1])) return status;
  return FA3_OK;
}

// Everything but what its dims mean.
Status check_fp32(const Expected& expected, const fa3_tensor& tensor, View& view) {
  if (Status status = check_tensor(expected, tensor, view)) return status;
  for (int i = 0; i < expected.rank && !expected.host; ++i)
    if (view.dim[i] > 1 && view.stride[i] > max_stride)
      return fail(invalid, "%s.stride[%d] is %lld, must be at most %lld", expected.name, expected.first + i,
                  ll(view.stride[i]), ll(max_stride));
  return FA3_OK;
}

Status check_fp32_dims(const Expected& expected, const fa3_tensor& tensor) {
  if (Status status = must_be_fp32(expected.name, tensor.dtype)) return status;
  return check_dims(expected, tensor);
}

// Where the number of sequences stands.
const char* sequences_of(const fa3_forward_params& p) {
  return is_there(p.cu_seqlens_q) ? "cu_seqlens_q.dim[0] - 1" : "q.dim[0]";
}

// Scales, and the tensor (batch, rows, heads, head_dim) that has them. Packed, a batch of 1 was put in front of it.
struct Scaled {
  const char* name;
  const fa3_tensor& scale;
  const char* tensor_name;
  const fa3_tensor& of;
  bool packed;
};

Status check_scale_dims(const Scaled& scaled) {
  const auto& [name, scale, tensor_name, of, packed] = scaled;
  const int dims[3] = {0, 2, 1};
  for (int i = 0; i < 3; ++i) {
    const int64_t rows = of.dim[dims[i]], most = i == 2 ? (rows + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS : rows;
    if (scale.dim[i] == 1 || scale.dim[i] == most) continue;
    return fail(invalid, "%s.dim[%d] is %lld, must be 1 or %s%s.dim[%d], %s%lld", name, i, ll(scale.dim[i]),
                i == 2 ? "the blocks of 64 rows in " : "", tensor_name, dims[i], i == 2 ? "" : "which is ", ll(most));
  }
  return FA3_OK;
}
// Of a planned problem: one for the tensor, or one for each head of each sequence.
Status check_planned_scale_dims(const fa3_forward_params& p, const Scaled& scaled, int64_t batch) {
  const auto& [name, scale, tensor_name, of, packed] = scaled;
  if (scale.dim[0] != 1 && scale.dim[0] != batch)
    return fail(invalid, "%s.dim[0] is %lld, must be 1 or %s, which is %lld", name, ll(scale.dim[0]), sequences_of(p),
                ll(batch));
  if (scale.dim[1] != 1 && scale.dim[1] != of.dim[2])
    return fail(invalid, "%s.dim[1] is %lld, must be 1 or %s.dim[%d], which is %lld", name, ll(scale.dim[1]),
                tensor_name, packed ? 1 : 2, ll(of.dim[2]));
  if (scale.dim[2] == 1) return FA3_OK;
  return fail(FA3_ERROR_UNSUPPORTED, "%s.dim[2] is %lld, must be 1: scales of blocks cannot be had together with %s",
              name, ll(scale.dim[2]), why_planned(p));
}

Status check_scale(const fa3_forward_params& p, const Scaled& scaled, Rules rules, const PlannedShape& shape,
                   View& view) {
  const Expected expected = input(scaled.name, 3, false, rules);
  if (Status status = check_fp32_dims(expected, scaled.scale)) return status;
  if (Status status = shape.planned ? check_planned_scale_dims(p, scaled, shape.batch) : check_scale_dims(scaled))
    return status;
  return check_fp32(expected, scaled.scale, view);
}

Status check_o_scale(const fa3_forward_params& p, Rules rules, View& view) {
  const Expected expected = input("o_scale", 1, false, rules);
  if (Status status = check_fp32_dims(expected, p.o_scale)) return status;
  if (p.o_scale.dim[0] != 1)
    return fail(invalid, "o_scale.dim[0] is %lld, must be 1", ll(p.o_scale.dim[0]));
  return check_fp32(expected, p.o_scale, view);
}

Status check_v_mean(const fa3_forward_params& p, Rules rules, int64_t batch, View& view) {
  const Expected expected = input("v_mean", 3, true, rules);
  const int packed = is_there(p.cu_seqlens_k);
  if (Status status = check_fp32_dims(expected, p.v_mean)) return status;
  if (p.v_mean.dim[0] != batch)
    return fail(invalid, "v_mean.dim[0] is %lld, must equal %s, which is %lld", ll(p.v_mean.dim[0]), sequences_of(p),
                ll(batch));
  if (Status status = all_equal({{{"v_mean", 1, p.v_mean.dim[1]}, {"k", 2 - packed, p.k.dim[2]}},
                                 {{"v_mean", 2, p.v_mean.dim[2]}, {"v", 3 - packed, p.v.dim[3]}}}))
    return status;
  return check_fp32(expected, p.v_mean, view);
}

// As lse: packed if q is.
Status check_lse_offset(const fa3_forward_params& p, Rules rules, View& view) {
  Expected expected = input("lse_offset", 3, false, rules);
  fa3_tensor offset = p.lse_offset;
  const int packed = is_there(p.cu_seqlens_q);
  if (Status status = must_be_fp32("lse_offset", offset.dtype)) return status;
  if (Status status = packed ? lift(expected, offset) : check_dims(expected, offset)) return status;
  if (Status status = all_equal({{{"lse_offset", 0 - packed, offset.dim[0]}, {"q", 0 - packed, p.q.dim[0]}},
                                 {{"lse_offset", 1 - packed, offset.dim[1]}, {"q", 2 - packed, p.q.dim[2]}},
                                 {{"lse_offset", 2 - packed, offset.dim[2]}, {"q", 1 - packed, p.q.dim[1]}}}))
    return status;
  return check_fp32(expected, offset, view);
}

// As v: packed if v is. What its numbers are for is checked with v.
Status check_latent_scale(const fa3_forward_params& p, Rules rules, View& view) {
  Expected expected = input("v_scale", 4, true, rules);
  fa3_tensor scale = p.v_scale;
  const int packed = is_there(p.cu_seqlens_k);
  if (Status status = must_be_fp32("v_scale", scale.dtype)) return status;
  if (Status status = packed ? lift(expected, scale) : check_dims(expected, scale)) return status;
  if (Status status = all_equal({{{"v_scale", 0 - packed, scale.dim[0]}, {"v", 0 - packed, p.v.dim[0]}},
                                 {{"v_scale", 1 - packed, scale.dim[1]}, {"v", 1 - packed, p.v.dim[1]}},
                                 {{"v_scale", 2 - packed, scale.dim[2]}, {"v", 2 - packed, p.v.dim[2]}}}))
    return status;
  const int64_t columns = p.v.dim[3], groups = (columns + FA3_LATENT_SCALE_COLUMNS - 1) / FA3_LATENT_SCALE_COLUMNS;
  if (scale.dim[3] != groups)
    return fail(invalid, "v_scale.dim[%d] is %lld, must be the groups of %d columns in v.dim[%d], %lld", 3 - packed,
                ll(scale.dim[3]), FA3_LATENT_SCALE_COLUMNS, 3 - packed, ll(groups));
  return check_tensor(expected, scale, view);
}

}  // namespace

Status check_presence(const fa3_forward_params& p) {
  const struct {
    const char* name;
    const fa3_tensor& tensor;
    bool required;
  } tensors[] = {{"q_scale", p.q_scale, true},
                 {"k_scale", p.k_scale, true},
                 {"v_scale", p.v_scale, true},
                 {"o_scale", p.o_scale, p.o.dtype == FA3_DTYPE_E4M3},
                 {"v_mean", p.v_mean, false},
                 {"lse_offset", p.lse_offset, false}};
  const bool widens = widens_keys(p);
  if (p.q.dtype != FA3_DTYPE_E4M3) {
    for (const auto& [name, tensor, required] : tensors) {
      const bool is_kv =
          (widens && &tensor == &p.k_scale) || ((widens || is_latent(p)) && &tensor == &p.v_scale);
      if (is_kv && !is_there(tensor))
        return fail(invalid, "%s is absent (its rank is 0), and %c.dtype is e4m3", name, name[0]);
      if (!is_kv && is_there(tensor))
        return fail(invalid, "%s.rank is %d, must be 0 (absent): %s is for e4m3, and q.dtype is %s", name, tensor.rank,
                    name, dtype_name(p.q.dtype));
    }
    return FA3_OK;
  }
  for (const auto& [name, tensor, required] : tensors)
    if (required && !is_there(tensor))
      return fail(invalid, "%s is absent (its rank is 0), and %s.dtype is e4m3", name,
                  &tensor == &p.o_scale ? "o" : "q");
  if (is_there(p.o_scale) && p.o.dtype != FA3_DTYPE_E4M3)
    return fail(invalid, "o_scale.rank is %d, must be 0 (absent): o_scale is for e4m3, and o.dtype is %s",
                p.o_scale.rank, dtype_name(p.o.dtype));
  return FA3_OK;
}

bool has_v_tiles(const fa3_forward_params& p) { return p.q.dtype == FA3_DTYPE_E4M3 && p.v.rank == 5; }

Status check_v_tiles_dims(const fa3_forward_params& p) {
  fa3_tensor rows = p.v;  // check_dims names no dim beyond the fourth
  rows.rank = 4;
  if (Status status = check_dims({"v", 4, false, true, false, false}, rows)) return status;
  if (Status status = all_equal({{{"v", 0, p.v.dim[0]}, {"q", 0, p.q.dim[0]}},
                                 {{"v", 1, p.v.dim[1]}, {"k", 2, p.k.dim[2]}}}))
    return status;
  if (const int64_t groups = (p.k.dim[1] + v_tile_keys - 1) / v_tile_keys; p.v.dim[2] != groups)
    return fail(invalid, "v.dim[2] is %lld, must be the groups of 16 keys in k.dim[1], %lld", ll(p.v.dim[2]),
                ll(groups));
  if (p.v.dim[4] != v_tile_keys)
    return fail(invalid, "v.dim[4] is %lld, must be 16: a tile is head_dim_v rows of 16 bytes", ll(p.v.dim[4]));
  return FA3_OK;
}

// A tile is contiguous, so for all that follows it is one row of 16 head_dim_v bytes.
Status check_v_tiles(const fa3_forward_params& p, Rules rules, View& view) {
  const fa3_tensor& v = p.v;
  const fa3_tensor rows{v.data, v.dtype, 4, {v.dim[0], v.dim[1], v.dim[2], v_tile_keys * v.dim[3]},
                        {v.stride[0], v.stride[1], v.stride[2], 1}};
  const bool empty = v.dim[0] == 0 || v.dim[1] == 0 || v.dim[2] == 0;
  for (int i = 3; i < 5 && !empty; ++i)
    if (const int stride = i == 3 ? v_tile_keys : 1; v.stride[i] != stride)
      return fail(invalid, "v.stride[%d] is %lld, must be %d: a tile is head_dim_v rows of 16 bytes, without gaps", i,
                  ll(v.stride[i]), stride);
  if (Status status = check_tensor(input("v", 4, true, rules), rows, view)) return status;
  std::swap(view.dim[1], view.dim[2]);
  std::swap(view.stride[1], view.stride[2]);
  return FA3_OK;
}

Status check_scales(const fa3_forward_params& p, Rules rules, const PlannedShape& shape, bool uses_offset,
                    ProblemScales& scales) {
  const bool widens = widens_keys(p);
  if (is_latent(p)) return check_latent_scale(p, rules, scales.latent_scale);
  if (p.q.dtype != FA3_DTYPE_E4M3 && !widens) return FA3_OK;
  // Those of v by k's dims, as v may be tiles.
  const Scaled q{"q_scale", p.q_scale, "q", p.q, is_there(p.cu_seqlens_q)};
  const Scaled k{"k_scale", p.k_scale, "k", p.k, is_there(p.cu_seqlens_k)};
  const Scaled v{"v_scale", p.v_scale, "k", p.k, is_there(p.cu_seqlens_k)};
  if (Status status = widens ? FA3_OK : check_scale(p, q, rules, shape, scales.q_scale)) return status;
  if (Status status = check_scale(p, k, rules, shape, scales.k_scale)) return status;
  if (Status status = check_scale(p, v, rules, shape, scales.v_scale)) return status;
  scales.kv_blocks = scales.k_scale.dim[2] > 1 || scales.v_scale.dim[2] > 1;
  if (is_there(p.o_scale))
    if (Status status = check_o_scale(p, rules, scales.o_scale)) return status;
  if (is_there(p.v_mean))
    if (Status status = check_v_mean(p, rules, shape.batch, scales.v_mean)) return status;
  if (is_there(p.lse_offset) && uses_offset)
    if (Status status = check_lse_offset(p, rules, scales.lse_offset)) return status;
  return FA3_OK;
}

}  // namespace fa3
