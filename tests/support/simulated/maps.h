// What a tensor map holds in the simulated driver, and the tensors that maps and parameter blocks stand for.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "fa3.h"
#include "params/params.h"

namespace fa3::test {

// In place of the hardware's encoding.
struct Map {
  uint64_t magic;
  void* data;
  int32_t dtype;
  uint32_t rank;
  // head_dim, seqlen, heads, batch; of V as tiles 256, head_dim / 16, groups of keys, heads, batch; of packed heads
  // head_dim, heads of a K/V head, seqlen, K/V heads, batch
  uint32_t dim[5];
  uint64_t stride[4];  // bytes, of all but the first
  uint32_t box[3];     // of the first
};
inline constexpr uint64_t magic = 0x5369'6d75'6c61'7465;
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

fa3_dtype dtype_of(CUtensorMapDataType type);
fa3_dtype dtype_of(Dtype dtype);
inline int element_bytes(int32_t dtype) { return dtype == FA3_DTYPE_E4M3 ? 1 : 2; }

Map map_of(const TensorMap& encoded);
fa3_tensor tensor(const TensorMap& encoded);
// Q of packed heads, if its boxes are as the kernels read them: so many rows, each query's as many as its packing says.
fa3_tensor packed_tensor(const TensorMap& encoded, Packing packing, int box_rows);
// O, as kernels without a map of it know it.
fa3_tensor tensor(const Output& out, const fa3_tensor& q);

}  // namespace fa3::test
