#include <cstring>

#include "combine/combine.h"
#include "error.h"
#include "rules/overlap.h"
#include "rules/tensor.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

// No field was ever put into padding, so there is none.
static_assert(sizeof(fa3_combine_params) == sizeof(size_t) + sizeof(uint64_t) + 4 * sizeof(fa3_tensor));

constexpr int64_t max_head_dim = 512, max_parts = 65536;
// Rows, heads and thread blocks are numbered in 32 bits, with a few more than there are.
constexpr int64_t max_count = INT32_MAX - 65536;

Expected input(const char* name, int rank, bool wide) { return {name, rank, false, wide, true, false}; }
Expected output(const char* name, int rank, bool wide) { return {name, rank, true, wide, true, false}; }

Status check_o_dtype(const char* name, const fa3_tensor& tensor) {
  if (Status status = check_dtype(name, tensor.dtype)) return status;
  if (tensor.dtype != FA3_DTYPE_E4M3) return FA3_OK;
  return fail(FA3_ERROR_UNSUPPORTED, "%s.dtype is e4m3; parts are merged in bf16, fp16 and fp32", name);
}

Status check_dtypes_and_dims(const fa3_combine_params& p, bool wants_lse) {
  if (Status status = check_o_dtype("o_parts", p.o_parts)) return status;
  if (Status status = must_be_fp32("lse_parts", p.lse_parts.dtype)) return status;
  if (Status status = check_o_dtype("o", p.o)) return status;
  if (Status status = check_dims(input("o_parts", 5, true), p.o_parts)) return status;
  if (Status status = check_dims(input("lse_parts", 4, false), p.lse_parts)) return status;
  if (Status status = check_dims(output("o", 4, true), p.o)) return status;
  if (!wants_lse) return FA3_OK;
  if (Status status = must_be_fp32("lse", p.lse.dtype)) return status;
  return check_dims(output("lse", 3, false), p.lse);
}

Status check_shapes(const fa3_combine_params& p, bool wants_lse) {
  const int64_t *all = p.o_parts.dim, *lse = p.lse_parts.dim, *o = p.o.dim, *merged = p.lse.dim;
  const Dim pairs[][2] = {
      {{"lse_parts", 0, lse[0]}, {"o_parts", 0, all[0]}},
      {{"lse_parts", 1, lse[1]}, {"o_parts", 1, all[1]}},
      {{"lse_parts", 2, lse[2]}, {"o_parts", 3, all[3]}},
      {{"lse_parts", 3, lse[3]}, {"o_parts", 2, all[2]}},
      {{"o", 0, o[0]}, {"o_parts", 1, all[1]}},
      {{"o", 1, o[1]}, {"o_parts", 2, all[2]}},
      {{"o", 2, o[2]}, {"o_parts", 3, all[3]}},
      {{"o", 3, o[3]}, {"o_parts", 4, all[4]}},
  };
  for (const auto& pair : pairs)
    if (Status status = must_equal(pair[0], pair[1])) return status;
  if (!wants_lse) return FA3_OK;
  const Dim pairs_of_lse[][2] = {
      {{"lse", 0, merged[0]}, {"o_parts", 1, all[1]}},
      {{"lse", 1, merged[1]}, {"o_parts", 3, all[3]}},
      {{"lse", 2, merged[2]}, {"o_parts", 2, all[2]}},
  };
  for (const auto& pair : pairs_of_lse)
    if (Status status = must_equal(pair[0], pair[1])) return status;
  return FA3_OK;
}

Status check_sizes(const fa3_combine_params& p) {
  const int64_t *all = p.o_parts.dim, parts = all[0], batch = all[1], rows = all[2], heads = all[3];
  if (Status status = check_head_dim({"o_parts", 4, all[4]}, "head_dim", 8, max_head_dim)) return status;
  if (parts > max_parts)
    return fail(FA3_ERROR_UNSUPPORTED, "o_parts.dim[0] (parts) is %lld; the largest supported is %lld", ll(parts),
                ll(max_parts));
  if (rows > max_count)
    return fail(FA3_ERROR_UNSUPPORTED, "o_parts.dim[2] (seqlen) is %lld; the largest supported is %lld", ll(rows),
                ll(max_count));
  if (batch * heads > max_count)
    return fail(FA3_ERROR_UNSUPPORTED, "o_parts.dim[1] * o_parts.dim[3] (batch * heads) is %lld; the largest supported "
                "is %lld", ll(batch * heads), ll(max_count));
  return FA3_OK;
}

// The first of o_parts as a tensor of its own, and the distance from one to the next.
Status check_o_parts(const fa3_tensor& o_parts, View& part, int64_t& part_stride) {
  fa3_tensor one = o_parts;
  one.rank = 4;
  for (int i = 0; i < 4; ++i) one.dim[i] = o_parts.dim[i + 1], one.stride[i] = o_parts.stride[i + 1];
  if (o_parts.dim[0] == 0) one.dim[0] = 0;  // no part, no address
  Expected expected = input("o_parts", 4, true);
  expected.first = 1;
  if (Status status = check_tensor(expected, one, part)) return status;
  part_stride = o_parts.dim[0] > 1 ? o_parts.stride[0] : 0;
  // And its first dimension, as if there were nothing between that and rows.
  fa3_tensor apart = o_parts;
  apart.rank = 2;
  apart.dim[1] = o_parts.dim[4], apart.stride[1] = 1;
  if (part.empty()) apart.dim[0] = 0;
  View view;
  if (Status status = check_tensor(input("o_parts", 2, true), apart, view)) return status;
  if (part.empty()) return FA3_OK;
  Extent extent;
  const int64_t reach = (o_parts.dim[0] - 1) * part_stride * bytes_per_element(part.dtype);
  if (uintptr_t end; !extent_of(part, extent) ||
                     __builtin_add_overflow(extent.end, static_cast<uintptr_t>(reach), &end))
    return fail(invalid, "o_parts reaches beyond the address space from data %p", o_parts.data);
  return FA3_OK;
}

// A range of bytes around all parts keeps most outputs apart from them. Others are compared with one part after the
// other.
Status check_overlap_with_parts(const NamedView& output, const CombineProblem& problem) {
  const View& part = problem.part;
  if (part.empty() || output.view->empty()) return FA3_OK;
  const int64_t bytes = problem.part_stride * bytes_per_element(part.dtype), different = bytes == 0 ? 1 : problem.parts;
  Extent parts, written;
  if (extent_of(part, parts) && extent_of(*output.view, written) &&
      (written.end <= parts.begin || parts.end + static_cast<uintptr_t>((different - 1) * bytes) <= written.begin))
    return FA3_OK;
  View one = part;
  for (int64_t n = 0; n < different; ++n, one.data = static_cast<char*>(one.data) + bytes) {
    const NamedView pair[] = {output, {"o_parts", &one}};
    if (Status status = check_overlap(pair, 2, 1)) return status;
  }
  return FA3_OK;
}

}  // namespace

Status validate(const fa3_combine_params* params, CombineProblem& problem) {
  // lse has a default: it is not wanted.
  fa3_combine_params p{};
  size_t size = 0;
  if (Status status = check_struct_size("params", params, offsetof(fa3_combine_params, lse), sizeof p, size))
    return status;
  std::memcpy(&p, params, size < sizeof p ? size : sizeof p);
  problem = {};
  if (p.flags != 0)
    return fail(invalid, "flags is 0x%llx, has bits that this version does not know",
                static_cast<unsigned long long>(p.flags));
  problem.wants_lse = p.lse.rank != 0;
  if (Status status = check_dtypes_and_dims(p, problem.wants_lse)) return status;
  // Sizes first, so that no other tensor is asked to be as one that cannot stay.
  if (Status status = check_sizes(p)) return status;
  if (Status status = check_shapes(p, problem.wants_lse)) return status;
  problem.parts = p.o_parts.dim[0];
  problem.batch = p.o.dim[0], problem.rows = p.o.dim[1], problem.heads = p.o.dim[2], problem.head_dim = p.o.dim[3];
  if (Status status = check_o_parts(p.o_parts, problem.part, problem.part_stride)) return status;
  if (Status status = check_tensor(input("lse_parts", 4, false), p.lse_parts, problem.lse_parts)) return status;
  if (Status status = check_tensor(output("o", 4, true), p.o, problem.o)) return status;
  if (problem.wants_lse)
    if (Status status = check_tensor(output("lse", 3, false), p.lse, problem.lse)) return status;
  const NamedView tensors[] = {{"o", &problem.o}, {"lse", &problem.lse}, {"lse_parts", &problem.lse_parts}};
  if (Status status = check_overlap(tensors, 3, 2)) return status;
  if (Status status = check_overlap_with_parts({"o", &problem.o}, problem)) return status;
  return check_overlap_with_parts({"lse", &problem.lse}, problem);
}

}  // namespace fa3
