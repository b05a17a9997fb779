#include "rules/planned.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "error.h"
#include "integers.h"
#include "rules/attention.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT, unsupported = FA3_ERROR_UNSUPPORTED;

// Are there fewer keys than k has rows, of k with rows of its own for each sequence?
bool bounds_keys(const fa3_forward_params& p) {
  return !is_there(p.cu_seqlens_k) && p.max_seqlen_k != 0 && p.max_seqlen_k != p.k.dim[1];
}

// Of q or v, packed or not. V as tiles has fewer.
int64_t columns_of(const fa3_tensor& tensor) {
  return tensor.rank == 3 || tensor.rank == 4 ? tensor.dim[tensor.rank - 1] : 0;
}

Expected expected_numbers(const char* name, Rules rules) {
  return {name, 1, false, false, rules != Rules::shapes, false};
}

// `count` numbers, one behind the other; `of` says of what there are so many.
Status check_numbers(const char* name, const fa3_tensor& tensor, int64_t count, const char* of, Rules rules,
                     const int32_t*& data) {
  const Expected expected = expected_numbers(name, rules);
  if (!is_there(tensor)) return FA3_OK;
  if (Status status = must_be_int32(name, tensor.dtype)) return status;
  if (Status status = check_dims(expected, tensor)) return status;
  if (tensor.dim[0] != count)
    return fail(invalid, "%s.dim[0] is %lld, must be %s, %lld", name, ll(tensor.dim[0]), of, ll(count));
  View view;
  if (Status status = check_tensor(expected, tensor, view)) return status;
  if (Status status = check_contiguous(name, tensor)) return status;
  data = static_cast<const int32_t*>(tensor.data);
  return FA3_OK;
}

// How many sequences there are.
int64_t count_sequences(const fa3_forward_params& p) {
  return is_there(p.cu_seqlens_q) ? p.cu_seqlens_q.dim[0] - 1 : p.q.dim[0];
}

Status check_lengths(const fa3_forward_params& p, Rules rules, PlannedShape& shape) {
  const int64_t batch = shape.batch;
  Lengths& lengths = shape.lengths;
  const bool packed_q = is_there(p.cu_seqlens_q);
  const char* const of = packed_q ? "cu_seqlens_q.dim[0] - 1" : "q.dim[0]";
  const struct {
    const char* name;
    const fa3_tensor& tensor;
    const int32_t*& data;
  } numbers[] = {{"seqused_q", p.seqused_q, lengths.used_q},
                 {"seqused_k", p.seqused_k, lengths.used_k},
                 {"leftpad_k", p.leftpad_k, lengths.leftpad_k},
                 {"cache_batch_idx", p.cache_batch_idx, lengths.batch_k}};
  if (Status status = check_numbers("cu_seqlens_q", p.cu_seqlens_q, batch + 1, of, rules, lengths.cu_q)) return status;
  if (Status status = check_numbers("cu_seqlens_k", p.cu_seqlens_k, batch + 1,
                                    packed_q ? "cu_seqlens_q.dim[0]" : "q.dim[0] + 1", rules, lengths.cu_k))
    return status;
  for (const auto& [name, tensor, data] : numbers)
    if (Status status = check_numbers(name, tensor, batch, of, rules, data)) return status;
  return FA3_OK;
}

Status check_sinks(const fa3_forward_params& p, Rules rules, View& sinks) {
  if (!is_there(p.sinks)) return FA3_OK;
  return check_of_heads(expected_numbers("sinks", rules), p.sinks, p.q.dim[2], sinks);
}

// For all sequences alike, or for each: then they get a batch with stride 0.
Status check_alibi_slopes(const fa3_forward_params& p, Rules rules, int64_t batch, View& slopes) {
  if (!is_there(p.alibi_slopes)) return FA3_OK;
  const char* const name = "alibi_slopes";
  const int32_t rank = p.alibi_slopes.rank;
  Expected expected = expected_numbers(name, rules);
  if (rank == 1) {
    if (Status status = check_of_heads(expected, p.alibi_slopes, p.q.dim[2], slopes)) return status;
    slopes = {slopes.data, slopes.dtype, {batch, slopes.dim[0], 1, 1}, {0, slopes.stride[0], 0, 0}};
    return FA3_OK;
  }
  expected.rank = 2;
  if (rank != 2) return fail(invalid, "%s.rank is %d, must be 1 (heads) or 2 (batch, heads)", name, rank);
  if (Status status = must_be_fp32(name, p.alibi_slopes.dtype)) return status;
  if (Status status = check_dims(expected, p.alibi_slopes)) return status;
  if (p.alibi_slopes.dim[0] != batch)
    return fail(invalid, "%s.dim[0] is %lld, must be %s, %lld", name, ll(p.alibi_slopes.dim[0]),
                is_there(p.cu_seqlens_q) ? "cu_seqlens_q.dim[0] - 1" : "q.dim[0]", ll(batch));
  if (p.alibi_slopes.dim[1] != p.q.dim[2])
    return fail(invalid, "%s.dim[1] is %lld, must be the query heads, %lld", name, ll(p.alibi_slopes.dim[1]),
                ll(p.q.dim[2]));
  return check_tensor(expected, p.alibi_slopes, slopes);
}

Status check_maximum_q(const fa3_forward_params& p, int64_t& seqlen_q) {
  const int64_t rows = p.q.dim[1];
  if (is_there(p.cu_seqlens_q)) {
    if (p.max_seqlen_q < 1)
      return fail(invalid, "max_seqlen_q is %d, must be at least 1 with cu_seqlens_q", p.max_seqlen_q);
    seqlen_q = std::min<int64_t>(p.max_seqlen_q, rows);
    return FA3_OK;
  }
  if (p.max_seqlen_q != 0 && p.max_seqlen_q != rows)
    return fail(invalid, "max_seqlen_q is %d, must be 0 or q.dim[1], which is %lld, without cu_seqlens_q",
                p.max_seqlen_q, ll(rows));
  seqlen_q = rows;
  return FA3_OK;
}

Status check_maximum_k(const fa3_forward_params& p, int64_t& seqlen_k) {
  const bool pages = is_there(p.page_table);
  const int64_t rows = pages ? p.page_table.dim[1] * p.k.dim[1] : p.k.dim[1];
  if (is_there(p.cu_seqlens_k)) {
    if (p.max_seqlen_k < 1)
      return fail(invalid, "max_seqlen_k is %d, must be at least 1 with cu_seqlens_k", p.max_seqlen_k);
    seqlen_k = std::min<int64_t>(p.max_seqlen_k, rows);
    return FA3_OK;
  }
  if (p.max_seqlen_k < 0 || p.max_seqlen_k > rows)
    return fail(invalid, "max_seqlen_k is %d, must be from 0 to %s, which is %lld", p.max_seqlen_k,
                pages ? "page_table.dim[1] * k.dim[1]" : "k.dim[1]", ll(rows));
  seqlen_k = p.max_seqlen_k ? p.max_seqlen_k : rows;
  return FA3_OK;
}

// Sums of a row, a bound and a tile's rows stay within int32.
Status check_sizes(const fa3_forward_params& p, const PlannedShape& shape) {
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {{"q.dim[0] (rows)", shape.total_q},
               {"k.dim[0] (rows)", shape.total_k},
               {"q.dim[1] (sequence length)", shape.seqlen_q},
               {is_there(p.page_table) ? "page_table.dim[1] * k.dim[1] (sequence length)"
                                       : "k.dim[1] (sequence length)",
                shape.seqlen_k}};
  for (const auto& [name, value] : sizes)
    if (value > most_packed_rows)
      return fail(unsupported, "%s is %lld; with %s it is at most %d", name, ll(value), why_planned(p),
                  most_packed_rows);
  return FA3_OK;
}

Window window_of(const fa3_forward_params& p) {
  switch (p.mask) {
    case FA3_MASK_CAUSAL_TOP_LEFT: return {-1, 0, false};
    case FA3_MASK_CAUSAL_BOTTOM_RIGHT: return {-1, 0, true};
    case FA3_MASK_WINDOW: return {p.window_left, p.window_right, true};
    case FA3_MASK_CHUNK: return {-1, p.window_right, true};
    default: return {-1, -1, false};
  }
}

// So many numbers without gaps, or none.
View numbers_at(const int32_t* data, int64_t count) {
  return {const_cast<int32_t*>(data), FA3_DTYPE_INT32, {data ? count : 0, 1, 1, 1}, {1, 0, 0, 0}};
}

}  // namespace

bool widens_keys(const fa3_forward_params& p) {
  return p.q.dtype != FA3_DTYPE_E4M3 && p.k.dtype == FA3_DTYPE_E4M3 && p.v.dtype == FA3_DTYPE_E4M3;
}

bool is_latent(const fa3_forward_params& p) {
  return is_there(p.qv) && p.q.dtype != FA3_DTYPE_E4M3 && p.k.dtype != FA3_DTYPE_E4M3 && p.v.dtype == FA3_DTYPE_E4M3;
}

bool widens_o(const fa3_forward_params& p) {
  return p.o.dtype == FA3_DTYPE_FP32 && (p.q.dtype == FA3_DTYPE_BF16 || p.q.dtype == FA3_DTYPE_FP16);
}

const char* why_planned(const fa3_forward_params& p) {
  const struct {
    const char* name;
    bool given;
  } all[] = {{"mask FA3_MASK_WINDOW", p.mask == FA3_MASK_WINDOW},
             {"mask FA3_MASK_CHUNK", p.mask == FA3_MASK_CHUNK},
             {"cu_seqlens_q", is_there(p.cu_seqlens_q)},
             {"cu_seqlens_k", is_there(p.cu_seqlens_k)},
             {"seqused_q", is_there(p.seqused_q)},
             {"seqused_k", is_there(p.seqused_k)},
             {"leftpad_k", is_there(p.leftpad_k)},
             {"page_table", is_there(p.page_table)},
             {"cache_batch_idx", is_there(p.cache_batch_idx)},
             {"sinks", is_there(p.sinks)},
             {"FA3_FLAG_BATCH_INVARIANT", (p.flags & FA3_FLAG_BATCH_INVARIANT) != 0},
             {"FA3_FLAG_CENTERED_K", (p.flags & FA3_FLAG_CENTERED_K) != 0},
             {"max_seqlen_k", bounds_keys(p)},
             {"softcap", p.softcap != 0},
             {"alibi_slopes", is_there(p.alibi_slopes)},
             {"k and v of e4m3 under q of 16 bits", widens_keys(p)},
             {"o of fp32", widens_o(p)},
             {wide_by(p), wide_by(p) != nullptr}};
  for (const auto& [name, given] : all)
    if (given) return name;
  return nullptr;
}

const char* wide_by(const fa3_forward_params& p) {
  if (is_there(p.qv)) return "qv";
  if (columns_of(p.q) > most_narrow) return "head_dim above 256";
  return columns_of(p.v) > most_narrow ? "head_dim_v above 256" : nullptr;
}

Status check_window(int32_t& mask, int32_t& left, int32_t& right) {
  if (mask == FA3_MASK_WINDOW) {
    if (left < -1) return fail(invalid, "window_left is %d, must be at least -1", left);
    if (right < -1) return fail(invalid, "window_right is %d, must be at least -1", right);
    if (left >= 0 || right > 0) return FA3_OK;
    mask = right < 0 ? FA3_MASK_NONE : FA3_MASK_CAUSAL_BOTTOM_RIGHT;
    left = right = 0;
    return FA3_OK;
  }
  if (mask == FA3_MASK_CHUNK) {
    if (left < 1) return fail(invalid, "window_left is %d, must be at least 1: a chunk has so many positions", left);
    if (right == 0 || right == -1) return FA3_OK;
    return fail(invalid, "window_right is %d, must be 0 or -1 with FA3_MASK_CHUNK", right);
  }
  if (left == 0 && right == 0) return FA3_OK;
  return fail(invalid, "window_%s is %d, must be 0: mask is neither FA3_MASK_WINDOW nor FA3_MASK_CHUNK",
              left != 0 ? "left" : "right", left != 0 ? left : right);
}

Status check_cu_seqlens(const fa3_forward_params& p) {
  for (const auto& [name, tensor] : {std::pair{"cu_seqlens_q", &p.cu_seqlens_q}, {"cu_seqlens_k", &p.cu_seqlens_k}}) {
    if (!is_there(*tensor)) continue;
    if (Status status = must_be_int32(name, tensor->dtype)) return status;
    if (Status status = check_dims(expected_numbers(name, Rules::shapes), *tensor)) return status;
    if (tensor->dim[0] < 1)
      return fail(invalid, "%s.dim[0] is %lld, must be the number of sequences and 1", name, ll(tensor->dim[0]));
  }
  return FA3_OK;
}

Status check_softcap(const fa3_forward_params& p) {
  if (!std::isfinite(p.softcap) || p.softcap < 0)
    return fail(invalid, "softcap is %g, must be finite and > 0, or 0 for none", static_cast<double>(p.softcap));
  if (p.reserved != 0) return fail(invalid, "reserved is %d, must be 0", p.reserved);
  return FA3_OK;
}

Status check_of_heads(const Expected& expected, const fa3_tensor& tensor, int64_t heads, View& view) {
  const char* const name = expected.name;
  if (Status status = must_be_fp32(name, tensor.dtype)) return status;
  if (Status status = check_dims(expected, tensor)) return status;
  if (tensor.dim[0] != heads)
    return fail(invalid, "%s.dim[0] is %lld, must be the query heads, %lld", name, ll(tensor.dim[0]), ll(heads));
  return check_tensor(expected, tensor, view);
}

Status check_sequences(const fa3_forward_params& p, Rules rules, PlannedShape& shape) {
  shape.planned = why_planned(p) != nullptr;
  shape.total_q = is_there(p.cu_seqlens_q) ? p.q.dim[1] : -1;
  shape.total_k = is_there(p.cu_seqlens_k) ? p.k.dim[1] : -1;
  shape.batch = count_sequences(p);
  return check_lengths(p, rules, shape);
}

Status check_maxima(const fa3_forward_params& p, Rules rules, PlannedShape& shape) {
  if (Status status = check_sinks(p, rules, shape.sinks)) return status;
  if (Status status = check_alibi_slopes(p, rules, shape.batch, shape.alibi_slopes)) return status;
  if (Status status = check_maximum_q(p, shape.seqlen_q)) return status;
  if (Status status = check_maximum_k(p, shape.seqlen_k)) return status;
  if (Status status = shape.planned ? check_sizes(p, shape) : FA3_OK) return status;
  shape.lengths.batch = narrow(shape.batch);
  shape.lengths.max_q = narrow(shape.seqlen_q), shape.lengths.max_k = narrow(shape.seqlen_k);
  shape.lengths.caches = narrow(p.k.dim[0]);
  shape.softcap = static_cast<double>(p.softcap);
  shape.window = window_of(p);
  shape.chunk = p.mask == FA3_MASK_CHUNK ? p.window_left : 0;
  return FA3_OK;
}

Status check_batch(const fa3_forward_params& p, int64_t batch) {
  if (is_there(p.cu_seqlens_k) || is_there(p.page_table) || is_there(p.cache_batch_idx)) return FA3_OK;
  if (!is_there(p.cu_seqlens_q)) return must_equal({"k", 0, p.k.dim[0]}, {"q", 0, p.q.dim[0]});
  if (p.k.dim[0] == batch) return FA3_OK;
  return fail(invalid, "k.dim[0] is %lld, must be cu_seqlens_q.dim[0] - 1, %lld", ll(p.k.dim[0]), ll(batch));
}

void resolve(const fa3_forward_params& p, PlannedShape& shape) {
  const int64_t batch = shape.batch, seqlen_q = shape.seqlen_q, seqlen_k = shape.seqlen_k;
  static_cast<AttentionShape&>(shape) = shape_of(p.q, p.k, p.v, p.mask, p.softmax_scale);
  shape.batch = batch, shape.seqlen_q = seqlen_q, shape.seqlen_k = seqlen_k;
  if (shape.planned) shape.causal = false, shape.causal_offset = 0;  // the mask is in its window
}

PlannedTensors planned_tensors(const PlannedShape& shape) {
  const Lengths& lengths = shape.lengths;
  const int64_t batch = shape.batch;
  return {{"cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k", "cache_batch_idx", "sinks",
           "alibi_slopes"},
          {numbers_at(lengths.cu_q, batch + 1), numbers_at(lengths.cu_k, batch + 1), numbers_at(lengths.used_q, batch),
           numbers_at(lengths.used_k, batch), numbers_at(lengths.leftpad_k, batch), numbers_at(lengths.batch_k, batch),
           shape.sinks, shape.alibi_slopes}};
}

}  // namespace fa3
