#include "maps.h"

#include <cstdlib>
#include <cstring>

namespace fa3::test {

fa3_dtype dtype_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return FA3_DTYPE_BF16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16: return FA3_DTYPE_FP16;
    default: return FA3_DTYPE_E4M3;
  }
}
fa3_dtype dtype_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16: return FA3_DTYPE_BF16;
    case Dtype::fp16: return FA3_DTYPE_FP16;
    default: return FA3_DTYPE_E4M3;
  }
}
Map map_of(const TensorMap& encoded) {
  Map map;
  std::memcpy(&map, &encoded, sizeof map);
  if (map.magic != magic) std::abort();
  return map;
}

fa3_tensor tensor(const TensorMap& encoded) {
  const Map map = map_of(encoded);
  const auto stride = [&](int i) { return i == 0 ? 1 : int64_t(map.stride[i - 1]) / element_bytes(map.dtype); };
  if (map.rank == 5)
    return {map.data, map.dtype, 5, {map.dim[4], map.dim[3], map.dim[2], int64_t{16} * map.dim[1], 16},
            {stride(4), stride(3), stride(2), 16, 1}};
  fa3_tensor t{map.data, map.dtype, 4, {}, {}};
  const int order[4] = {3, 1, 2, 0};  // of the map's dims in (batch, seqlen, heads, head_dim)
  for (int i = 0; i < 4; ++i) t.dim[i] = map.dim[order[i]], t.stride[i] = stride(order[i]);
  return t;
}

fa3_tensor packed_tensor(const TensorMap& encoded, Packing packing, int box_rows) {
  const Map map = map_of(encoded);
  const uint32_t rows = 1u << packing.shift, all = uint32_t(box_rows), heads = map.dim[1];
  const uint32_t box_heads = rows < all ? rows : all;
  const bool same_box = map.box[0] == 64 && map.box[1] == box_heads && map.box[2] == all / box_heads;
  const bool least = rows >= heads && rows < 2 * heads;
  const bool nests = heads == 1 || map.dim[3] == 1 || map.stride[2] == heads * map.stride[0];
  if (map.rank != 5 || map.dtype == FA3_DTYPE_E4M3 || !same_box || !least || !nests)
    std::abort();
  const auto stride = [&](int i) { return int64_t(map.stride[i - 1]) / 2; };
  return {map.data, map.dtype, 4, {map.dim[4], map.dim[2], int64_t{heads} * map.dim[3], map.dim[0]},
          {stride(4), stride(2), heads == 1 ? stride(3) : stride(1), 1}};
}

fa3_tensor tensor(const Output& out, const fa3_tensor& q) {
  return {out.o, dtype_of(out.dtype), 4, {q.dim[0], q.dim[1], q.dim[2], out.head_dim},
          {out.o_stride_batch, out.o_stride_row, out.o_stride_head, 1}};
}

}  // namespace fa3::test
