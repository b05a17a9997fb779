// One tensor argument: its dtype, dims, strides and address.
#pragma once
#include "problem.h"

namespace fa3 {

// What a tensor argument must look like.
struct Expected {
  const char* name;
  int rank;       // up to 4
  bool output;    // elements must not overlap
  bool rows;      // rows are moved whole, in units of 16 bytes: unit inner stride, multiples of 16 bytes elsewhere
  bool pointers;  // look at data
  bool host;      // negative strides are fine
  int first = 0;  // of the tensor's dims, where it is a part of one that has more; -1 where a batch of 1 was put before
                  // them
};

// Where a tensor may be absent, that is what rank 0 says.
inline bool is_there(const fa3_tensor& tensor) { return tensor.rank != 0; }

// Is it a dtype that some function takes for elements?
fa3_status check_dtype(const char* name, int32_t dtype);
const char* dtype_name(int32_t dtype);

// Is it fp32, as the numbers beside elements are?
fa3_status must_be_fp32(const char* name, int32_t dtype);
// Is it int32, as lengths and page numbers are?
fa3_status must_be_int32(const char* name, int32_t dtype);
// Is it int32 or int64?
fa3_status must_be_integer(const char* name, int32_t dtype);

// Rank and dims.
fa3_status check_dims(const Expected& expected, const fa3_tensor& tensor);

// Puts a batch of 1 before the dims of a tensor without one, whose rank and dims this checks.
fa3_status lift(Expected& expected, fa3_tensor& tensor);

// Strides and data; dims and dtype are known to be right.
fa3_status check_tensor(const Expected& expected, const fa3_tensor& tensor, View& view);

// Is the last dim without gaps? Of tensors whose other strides are free.
fa3_status check_contiguous(const char* name, const fa3_tensor& tensor);
// Are the strides of the first `dims` dims multiples?
fa3_status check_multiples(const char* name, const fa3_tensor& tensor, int dims, int64_t multiple);

// A dim of the caller's tensor.
struct Dim {
  const char* name;
  int number;
  int64_t value;
};
fa3_status must_equal(Dim a, Dim b);

// The dims of a tensor, of which packed ones have a batch of 1 in front that the caller's does not: they count from -1.
struct Dims {
  const char* name;
  const int64_t* dim;
  bool packed;

  Dim operator[](int i) const { return {name, packed ? i - 1 : i, dim[i]}; }
};

// fa3_tensor_pack.
fa3_status pack(fa3_tensor* tensor);

// A multiple of `unit`, from `unit` to `most`.
fa3_status check_head_dim(Dim dim, const char* meaning, int unit, int64_t most = 256);

}  // namespace fa3
