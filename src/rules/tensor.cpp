#include "rules/tensor.h"

#include <cstring>

#include "error.h"
#include "rules/overlap.h"

namespace fa3 {
namespace {

using Status = fa3_status;
constexpr Status invalid = FA3_ERROR_INVALID_ARGUMENT;

constexpr int64_t max_dim = INT32_MAX;
constexpr int64_t max_extent = int64_t{1} << 40;  // bytes, of one dim times its stride; TMA's limit

Status check_stride(const Expected& expected, const View& view, int i) {
  const int64_t stride = view.stride[i];
  const int number = expected.first + i;
  if (expected.rows && i == expected.rank - 1) {
    if (stride == 1) return FA3_OK;
    const bool broadcast = stride == 0 && !expected.output;
    return fail(invalid, "%s.stride[%d] is %lld, must be 1%s", expected.name, number, ll(stride),
                broadcast ? ": rows are loaded whole, none repeats one element (fa3_tensor_pack makes packed strides)"
                          : "");
  }
  if (expected.output && stride == 0)
    return fail(invalid, "%s.stride[%d] is 0, must be > 0: elements of an output must not overlap", expected.name,
                number);
  if (!expected.host && stride < 0)
    return fail(invalid, "%s.stride[%d] is %lld, must be %s 0", expected.name, number, ll(stride),
                expected.output ? ">" : ">=");
  if (const int unit = 16 / bytes_per_element(view.dtype); expected.rows && stride % unit != 0)
    return fail(invalid, "%s.stride[%d] is %lld, must be a multiple of %d", expected.name, number, ll(stride), unit);
  const int64_t limit = max_extent / bytes_per_element(view.dtype);
  int64_t extent;
  if (__builtin_mul_overflow(view.dim[i], stride, &extent) || extent >= limit || extent <= -limit)
    return fail(invalid, "%s.dim[%d] * %s.stride[%d] is %lld * %lld elements, must be below 2^40 bytes", expected.name,
                number, expected.name, number, ll(view.dim[i]), ll(stride));
  return FA3_OK;
}

Status check_data(const Expected& expected, const View& view) {
  if (view.data == nullptr) return fail(invalid, "%s.data is NULL", expected.name);
  const int alignment = expected.rows ? 16 : bytes_per_element(view.dtype);
  if (reinterpret_cast<uintptr_t>(view.data) % alignment != 0)
    return fail(invalid, "%s.data is %p, must be aligned to %d bytes", expected.name, view.data, alignment);
  Extent extent;
  if (!extent_of(view, extent))
    return fail(invalid, "%s reaches beyond the address space from data %p", expected.name, view.data);
  return FA3_OK;
}

}  // namespace

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case FA3_DTYPE_BF16: return "bf16";
    case FA3_DTYPE_FP16: return "fp16";
    case FA3_DTYPE_FP32: return "fp32";
    case FA3_DTYPE_E4M3: return "e4m3";
    case FA3_DTYPE_INT32: return "int32";
    case FA3_DTYPE_INT64: return "int64";
    default: return "none";
  }
}

Status check_dtype(const char* name, int32_t dtype) {
  if (dtype == FA3_DTYPE_E5M2)
    return fail(FA3_ERROR_UNSUPPORTED, "%s.dtype is e5m2, which no function takes; FP8 is e4m3 here", name);
  if (dtype == FA3_DTYPE_INT32 || dtype == FA3_DTYPE_INT64)
    return fail(invalid, "%s.dtype is %s, which only lengths, page numbers, slots and positions have", name,
                dtype_name(dtype));
  if (dtype < FA3_DTYPE_BF16 || dtype > FA3_DTYPE_E4M3)
    return fail(invalid, "%s.dtype is %d, must be a fa3_dtype other than FA3_DTYPE_NONE", name, dtype);
  return FA3_OK;
}

Status must_be_fp32(const char* name, int32_t dtype) {
  if (dtype == FA3_DTYPE_FP32) return FA3_OK;
  if (Status status = check_dtype(name, dtype)) return status;
  return fail(invalid, "%s.dtype is %s, must be fp32", name, dtype_name(dtype));
}

Status must_be_int32(const char* name, int32_t dtype) {
  if (dtype == FA3_DTYPE_INT32) return FA3_OK;
  if (dtype != FA3_DTYPE_INT64)
    if (Status status = check_dtype(name, dtype)) return status;
  return fail(invalid, "%s.dtype is %s, must be int32", name, dtype_name(dtype));
}

Status must_be_integer(const char* name, int32_t dtype) {
  if (dtype == FA3_DTYPE_INT32 || dtype == FA3_DTYPE_INT64) return FA3_OK;
  if (Status status = check_dtype(name, dtype)) return status;
  return fail(invalid, "%s.dtype is %s, must be int32 or int64", name, dtype_name(dtype));
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
                  "larger than the span of the smaller ones, here %lld", expected.name, expected.first + dim,
                  ll(view.stride[dim]), ll(span));
  return expected.pointers ? check_data(expected, view) : FA3_OK;
}

Status check_contiguous(const char* name, const fa3_tensor& tensor) {
  const int last = tensor.rank - 1;
  if (tensor.dim[last] <= 1 || tensor.stride[last] == 1) return FA3_OK;
  return fail(invalid, "%s.stride[%d] is %lld, must be 1", name, last, ll(tensor.stride[last]));
}

Status check_multiples(const char* name, const fa3_tensor& tensor, int dims, int64_t multiple) {
  for (int i = 0; i < dims; ++i)
    if (tensor.dim[i] > 1 && tensor.stride[i] % multiple != 0)
      return fail(invalid, "%s.stride[%d] is %lld, must be a multiple of %lld", name, i, ll(tensor.stride[i]),
                  ll(multiple));
  return FA3_OK;
}

Status lift(Expected& expected, fa3_tensor& tensor) {
  Expected given = expected;
  given.rank -= 1;
  if (Status status = check_dims(given, tensor)) return status;
  for (int i = tensor.rank++; i > 0; --i) tensor.dim[i] = tensor.dim[i - 1], tensor.stride[i] = tensor.stride[i - 1];
  tensor.dim[0] = 1, tensor.stride[0] = 0;
  expected.first = -1;
  return FA3_OK;
}

Status must_equal(Dim a, Dim b) {
  if (a.value == b.value) return FA3_OK;
  return fail(invalid, "%s.dim[%d] is %lld, must equal %s.dim[%d], which is %lld", a.name, a.number, ll(a.value),
              b.name, b.number, ll(b.value));
}

Status check_head_dim(Dim dim, const char* meaning, int unit, int64_t most) {
  const auto& [name, number, value] = dim;
  if (value < 1 || value % unit != 0)
    return fail(invalid, "%s.dim[%d] (%s) is %lld, must be a multiple of %d from %d to %lld", name, number, meaning,
                ll(value), unit, unit, ll(most));
  if (value > most)
    return fail(FA3_ERROR_UNSUPPORTED, "%s.dim[%d] (%s) is %lld; the largest supported is %lld", name, number, meaning,
                ll(value), ll(most));
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

}  // namespace fa3
