#include "tensor_map.h"

#include <cstdio>
#include <cstring>

#include "row.h"

namespace fa3 {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));

static unsigned long long ull(cuuint64_t value) { return value; }

fa3_status encode(const Driver& driver, const char* name, const View& view, int rows, TensorMap& map) {
  constexpr int order[] = {3, 1, 2, 0};  // of the view's (batch, seqlen, heads, head_dim), innermost first
  constexpr cuuint32_t element_strides[] = {1, 1, 1, 1};
  const cuuint32_t box[] = {box_columns, static_cast<cuuint32_t>(rows), 1, 1};
  cuuint64_t dim[4], stride[4];  // strides in bytes; the innermost is implied
  for (int i = 0; i < 4; ++i) {
    dim[i] = view.dim[order[i]];
    // Where there is one element its stride is never used, but must be legal.
    stride[i] = dim[i] == 1 ? 16 : view.stride[order[i]] * 2;
  }
  const CUtensorMapDataType type =
      view.dtype == FA3_DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap encoded;  // its alignment on the host may be larger than the 64 bytes that the hardware needs
  const CUresult result =
      driver.tensor_map_encode_tiled(&encoded, type, 4, view.data, dim, stride + 1, box, element_strides,
                                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (!result) {
    std::memcpy(&map, &encoded, sizeof map);
    return FA3_OK;
  }
  char call[320];
  std::snprintf(call, sizeof call,
                "cuTensorMapEncodeTiled for %s (data %p; head_dim, seqlen, heads, batch %llu, %llu, %llu, %llu; the "
                "last three %llu, %llu, %llu bytes apart)", name, view.data, ull(dim[0]), ull(dim[1]), ull(dim[2]),
                ull(dim[3]), ull(stride[1]), ull(stride[2]), ull(stride[3]));
  return cuda_error(driver, result, call);
}

}  // namespace fa3
