#include "validate.h"

#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "error.h"
#include "overlap.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

constexpr int64_t max_dim = INT32_MAX;
constexpr int64_t max_extent = int64_t{1} << 40;  // bytes, of one dim times its stride; TMA's limit
constexpr int max_head_dim = 256;

// No struct of any version comes near this; a larger struct_size is uninitialised memory, not worth reading.
constexpr size_t max_struct_size = 4096;

constexpr float log2e = 1.4426950408889634f;

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case FA3_DTYPE_BF16: return "bf16";
    case FA3_DTYPE_FP16: return "fp16";
    case FA3_DTYPE_FP32: return "fp32";
    default: return "none";
  }
}

long long ll(int64_t value) { return value; }

// struct_size tells which fields a struct has only if none was ever put into padding, so there is none.
static_assert(std::has_unique_object_representations_v<fa3_tensor>);
static_assert(std::has_unique_object_representations_v<fa3_kernel_info>);
static_assert(sizeof(fa3_forward_params) == sizeof(size_t) + sizeof(uint64_t) + 5 * sizeof(fa3_tensor) +
                                                sizeof(int32_t) + sizeof(float) + sizeof(const char*));

constexpr uint64_t known_flags = FA3_FLAG_DETERMINISTIC;
static_assert(known_flags < uint64_t{1} << 31, "C11 has no enumerator for this flag");

// What a tensor argument must look like.
struct Expected {
  const char* name;
  int rank;
  bool output;    // elements must not overlap
  bool tma;       // moved by TMA: unit inner stride, 16-byte multiples elsewhere
  bool pointers;  // look at data
  bool host;      // negative strides are fine
};

Status check_dtype(const char* name, int32_t dtype) {
  if (dtype < FA3_DTYPE_BF16 || dtype > FA3_DTYPE_FP32)
    return fail(invalid, "%s.dtype is %d, must be a fa3_dtype other than FA3_DTYPE_NONE", name, dtype);
  return FA3_OK;
}

Status check_dims(const Expected& expected, const fa3_tensor& tensor) {
  if (tensor.rank != expected.rank)
    return fail(invalid, "%s.rank is %d, must be %d", expected.name, tensor.rank, expected.rank);
  for (int i = 0; i < expected.rank; ++i)
    if (tensor.dim[i] < 0 || tensor.dim[i] > max_dim)
      return fail(invalid, "%s.dim[%d] is %lld, must be from 0 to %lld", expected.name, i, ll(tensor.dim[i]),
                  ll(max_dim));
  return FA3_OK;
}

Status check_stride(const Expected& expected, const View& view, int i) {
  const int64_t stride = view.stride[i];
  if (expected.tma && i == expected.rank - 1) {
    if (stride == 1) return FA3_OK;
    const bool broadcast = stride == 0 && !expected.output;
    return fail(invalid, "%s.stride[%d] is %lld, must be 1%s", expected.name, i, ll(stride),
                broadcast ? ": TMA cannot repeat one element along a row (fa3_tensor_pack makes packed strides)" : "");
  }
  if (expected.output && stride == 0)
    return fail(invalid, "%s.stride[%d] is 0, must be > 0: elements of an output must not overlap", expected.name, i);
  if (!expected.host && stride < 0)
    return fail(invalid, "%s.stride[%d] is %lld, must be %s 0", expected.name, i, ll(stride),
                expected.output ? ">" : ">=");
  if (expected.tma && stride % 8 != 0)
    return fail(invalid, "%s.stride[%d] is %lld, must be a multiple of 8", expected.name, i, ll(stride));
  const int64_t limit = max_extent / bytes_per_element(view.dtype);
  int64_t extent;
  if (__builtin_mul_overflow(view.dim[i], stride, &extent) || extent >= limit || extent <= -limit)
    return fail(invalid, "%s.dim[%d] * %s.stride[%d] is %lld * %lld elements, must be below 2^40 bytes", expected.name,
                i, expected.name, i, ll(view.dim[i]), ll(stride));
  return FA3_OK;
}

Status check_data(const Expected& expected, const View& view) {
  if (view.data == nullptr) return fail(invalid, "%s.data is NULL", expected.name);
  const int alignment = expected.tma ? 16 : bytes_per_element(view.dtype);
  if (reinterpret_cast<uintptr_t>(view.data) % alignment != 0)
    return fail(invalid, "%s.data is %p, must be aligned to %d bytes", expected.name, view.data, alignment);
  Extent extent;
  if (!extent_of(view, extent))
    return fail(invalid, "%s reaches beyond the address space from data %p", expected.name, view.data);
  return FA3_OK;
}

Status check_tensor(const Expected& expected, const fa3_tensor& tensor, View& view) {
  view.data = tensor.data;
  view.dtype = static_cast<fa3_dtype>(tensor.dtype);
  for (int i = 0; i < 4; ++i) {
    view.dim[i] = i < expected.rank ? tensor.dim[i] : 1;
    view.stride[i] = view.dim[i] == 1 ? 0 : tensor.stride[i];
  }
  if (view.empty()) return FA3_OK;  // no element, no address
  for (int i = 0; i < expected.rank; ++i)
    if (view.dim[i] > 1)
      if (Status status = check_stride(expected, view, i)) return status;
  if (int64_t span; expected.output)
    if (int dim; !strides_nest(view, dim, span))
      return fail(invalid,
                  "%s.stride[%d] is %lld: elements of an output may overlap unless its strides nest, that is, each is "
                  "larger than the span of the smaller ones, here %lld", expected.name, dim, ll(view.stride[dim]),
                  ll(span));
  return expected.pointers ? check_data(expected, view) : FA3_OK;
}

struct Named {
  const char* name;
  int64_t value;
};

Status must_equal(Named a, Named b) {
  if (a.value == b.value) return FA3_OK;
  return fail(invalid, "%s is %lld, must equal %s, which is %lld", a.name, ll(a.value), b.name, ll(b.value));
}

// k and v are of q's dtype, and so is o on the device; the reference rounds to any dtype of o.
Status check_dtypes(const fa3_forward_params& p, Rules rules) {
  const struct {
    const char* name;
    int32_t dtype;
    bool as_q;
  } tensors[] = {{"q", p.q.dtype, true},
                 {"k", p.k.dtype, true},
                 {"v", p.v.dtype, true},
                 {"o", p.o.dtype, rules != Rules::reference}};
  for (const auto& tensor : tensors) {
    if (Status status = check_dtype(tensor.name, tensor.dtype)) return status;
    if (rules != Rules::reference && tensor.dtype == FA3_DTYPE_FP32)
      return fail(FA3_ERROR_UNSUPPORTED, "%s.dtype is fp32; the kernels take bf16 and fp16", tensor.name);
    if (tensor.as_q && tensor.dtype != p.q.dtype)
      return fail(invalid, "%s.dtype is %s, must be %s as q's", tensor.name, dtype_name(tensor.dtype),
                  dtype_name(p.q.dtype));
  }
  return FA3_OK;
}

Status check_shapes(const fa3_forward_params& p) {
  const int64_t *q = p.q.dim, *k = p.k.dim, *v = p.v.dim, *o = p.o.dim;
  const Named pairs[][2] = {
      {{"k.dim[0]", k[0]}, {"q.dim[0]", q[0]}}, {{"v.dim[0]", v[0]}, {"q.dim[0]", q[0]}},
      {{"o.dim[0]", o[0]}, {"q.dim[0]", q[0]}}, {{"v.dim[1]", v[1]}, {"k.dim[1]", k[1]}},
      {{"o.dim[1]", o[1]}, {"q.dim[1]", q[1]}}, {{"v.dim[2]", v[2]}, {"k.dim[2]", k[2]}},
      {{"o.dim[2]", o[2]}, {"q.dim[2]", q[2]}}, {{"k.dim[3]", k[3]}, {"q.dim[3]", q[3]}},
      {{"v.dim[3]", v[3]}, {"q.dim[3]", q[3]}}, {{"o.dim[3]", o[3]}, {"q.dim[3]", q[3]}},
  };
  for (const auto& pair : pairs)
    if (Status status = must_equal(pair[0], pair[1])) return status;
  if (k[2] == 0 ? q[2] != 0 : q[2] % k[2] != 0)
    return fail(invalid, "k.dim[2] is %lld, must divide the query heads, q.dim[2], which is %lld", ll(k[2]), ll(q[2]));
  return FA3_OK;
}

Status check_head_dim(const fa3_forward_params& p) {
  const int64_t head_dim = p.q.dim[3];
  if (head_dim < 1 || (p.q.dtype != FA3_DTYPE_FP32 && head_dim % 8 != 0))
    return fail(invalid, "q.dim[3] (head_dim) is %lld, must be a multiple of 8 from 8 to %d", ll(head_dim),
                max_head_dim);
  if (head_dim > max_head_dim)
    return fail(FA3_ERROR_UNSUPPORTED, "q.dim[3] (head_dim) is %lld; the largest supported is %d", ll(head_dim),
                max_head_dim);
  return FA3_OK;
}

Status check_lse(const fa3_forward_params& p) {
  if (p.lse.dtype != FA3_DTYPE_FP32) {
    if (Status status = check_dtype("lse", p.lse.dtype)) return status;
    return fail(invalid, "lse.dtype is %s, must be fp32", dtype_name(p.lse.dtype));
  }
  const Named pairs[][2] = {
      {{"lse.dim[0]", p.lse.dim[0]}, {"q.dim[0]", p.q.dim[0]}},
      {{"lse.dim[1]", p.lse.dim[1]}, {"q.dim[2]", p.q.dim[2]}},
      {{"lse.dim[2]", p.lse.dim[2]}, {"q.dim[1]", p.q.dim[1]}},
  };
  for (const auto& pair : pairs)
    if (Status status = must_equal(pair[0], pair[1])) return status;
  return FA3_OK;
}

Status check_scalars(const fa3_forward_params& p) {
  if (p.flags & ~known_flags)
    return fail(invalid, "flags is 0x%llx, has bits that this version does not know",
                static_cast<unsigned long long>(p.flags));
  if (p.mask < FA3_MASK_NONE || p.mask > FA3_MASK_CAUSAL_BOTTOM_RIGHT)
    return fail(invalid, "mask is %d, must be a fa3_mask", p.mask);
  if (!(p.softmax_scale >= 0) || std::isinf(p.softmax_scale * log2e))  // kernels scale to powers of two, in fp32
    return fail(invalid, "softmax_scale is %g, must be > 0 and finite (times log2(e), too), or 0 for the default",
                p.softmax_scale);
  return FA3_OK;
}

struct Tensor {
  const char* name;
  const View& view;
};

// The outputs first. Without elements where lse is not wanted.
std::array<Tensor, 5> tensors(const Problem& problem) {
  return {{{"o", problem.o}, {"lse", problem.lse}, {"q", problem.q}, {"k", problem.k}, {"v", problem.v}}};
}

Status check_overlap(const Problem& problem) {
  const auto all = tensors(problem);
  for (int i = 0; i < 2; ++i)
    for (int j = i + 1; j < 5; ++j)
      if (may_overlap(all[i].view, all[j].view))
        return fail(invalid, "%s may overlap %s: %s.data is %p, %s.data is %p", all[i].name, all[j].name, all[i].name,
                    all[i].view.data, all[j].name, all[j].view.data);
  return FA3_OK;
}

void resolve(const fa3_forward_params& p, Problem& problem) {
  problem.batch = p.q.dim[0];
  problem.seqlen_q = p.q.dim[1];
  problem.heads = p.q.dim[2];
  problem.head_dim = p.q.dim[3];
  problem.seqlen_k = p.k.dim[1];
  problem.heads_kv = p.k.dim[2];
  problem.causal = p.mask != FA3_MASK_NONE;
  problem.causal_offset = p.mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT ? problem.seqlen_k - problem.seqlen_q : 0;
  problem.softmax_scale = p.softmax_scale == 0 ? 1 / std::sqrt(static_cast<double>(problem.head_dim)) : p.softmax_scale;
  problem.kernel = p.kernel;
}

}  // namespace

Status check_struct_size(const char* name, const void* data, size_t minimum, size_t known, size_t& size) {
  if (data == nullptr) return fail(invalid, "%s is NULL", name);
  std::memcpy(&size, data, sizeof size);
  if (size < minimum || size > max_struct_size)
    return fail(invalid, "%s->struct_size is %zu, must be the size of the struct, %zu in this version", name, size,
                known);
  for (size_t i = known; i < size; ++i)
    if (static_cast<const unsigned char*>(data)[i] != 0)
      return fail(invalid, "%s->struct_size is %zu, and byte %zu is set: a field that this version does not know", name,
                  size, i);
  return FA3_OK;
}

Status validate(const fa3_forward_params* params, Rules rules, Problem& problem) {
  // Without q, k, v and o there is nothing to do; every later field has a default.
  fa3_forward_params p{};
  size_t size = 0;
  if (Status status = check_struct_size("params", params, offsetof(fa3_forward_params, lse), sizeof p, size))
    return status;
  std::memcpy(&p, params, size < sizeof p ? size : sizeof p);
  if (size < offsetof(fa3_forward_params, kernel) + sizeof p.kernel) p.kernel = nullptr;  // half a pointer is none

  const bool host = rules == Rules::reference;
  const bool pointers = rules != Rules::shapes;
  const Expected q{"q", 4, false, !host, pointers, host};
  const Expected k{"k", 4, false, !host, pointers, host};
  const Expected v{"v", 4, false, !host, pointers, host};
  const Expected o{"o", 4, true, !host, pointers, host};
  const Expected lse{"lse", 3, true, false, pointers, host};

  problem = {};
  problem.wants_lse = p.lse.data != nullptr;
  if (Status status = check_scalars(p)) return status;
  if (Status status = check_dtypes(p, rules)) return status;
  if (Status status = check_dims(q, p.q)) return status;
  if (Status status = check_dims(k, p.k)) return status;
  if (Status status = check_dims(v, p.v)) return status;
  if (Status status = check_dims(o, p.o)) return status;
  if (Status status = check_shapes(p)) return status;
  if (Status status = check_head_dim(p)) return status;
  if (Status status = check_tensor(q, p.q, problem.q)) return status;
  if (Status status = check_tensor(k, p.k, problem.k)) return status;
  if (Status status = check_tensor(v, p.v, problem.v)) return status;
  if (Status status = check_tensor(o, p.o, problem.o)) return status;
  if (problem.wants_lse) {
    if (Status status = check_dims(lse, p.lse)) return status;
    if (Status status = check_lse(p)) return status;
    if (Status status = check_tensor(lse, p.lse, problem.lse)) return status;
  }
  if (pointers)
    if (Status status = check_overlap(problem)) return status;
  resolve(p, problem);
  return FA3_OK;
}

Status pack(fa3_tensor* tensor) {
  if (tensor == nullptr) return fail(invalid, "tensor is NULL");
  if (tensor->rank < 1 || tensor->rank > FA3_MAX_RANK)
    return fail(invalid, "tensor->rank is %d, must be from 1 to %d", tensor->rank, FA3_MAX_RANK);
  int64_t stride[FA3_MAX_RANK], next = 1;
  for (int i = tensor->rank - 1; i >= 0; --i) {
    const int64_t dim = tensor->dim[i];
    stride[i] = next;
    if (dim < 0) return fail(invalid, "tensor->dim[%d] is %lld, must be >= 0", i, ll(dim));
    if (dim > 0 && __builtin_mul_overflow(next, dim, &next))
      return fail(invalid, "tensor->dim[%d] is %lld: the number of elements overflows int64_t", i, ll(dim));
  }
  std::memcpy(tensor->stride, stride, sizeof *stride * tensor->rank);
  return FA3_OK;
}

Status validate_workspace(const Problem& problem, void* workspace, size_t bytes, size_t needed) {
  if (workspace == nullptr)
    return fail(invalid, "workspace is NULL, must be %zu bytes of device memory", needed);
  if (reinterpret_cast<uintptr_t>(workspace) % 16 != 0)
    return fail(invalid, "workspace is %p, must be aligned to 16 bytes", workspace);
  if (bytes < needed)
    return fail(FA3_ERROR_WORKSPACE_TOO_SMALL, "workspace_bytes is %zu, must be at least %zu", bytes, needed);
  const View view{workspace, FA3_DTYPE_FP32, {1, 1, 1, static_cast<int64_t>((needed + 3) / 4)}, {0, 0, 0, 1}};
  if (Extent extent; !extent_of(view, extent))
    return fail(invalid, "workspace reaches beyond the address space from %p", workspace);
  for (const Tensor& tensor : tensors(problem))
    if (may_overlap(view, tensor.view))
      return fail(invalid, "workspace may overlap %s: workspace is %p and needs %zu bytes, %s.data is %p", tensor.name,
                  workspace, needed, tensor.name, tensor.view.data);
  return FA3_OK;
}

}  // namespace fa3
