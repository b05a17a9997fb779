#include "device/tensor_map.h"

#include <cstdio>
#include <cstring>

#include "error.h"
#include "params/clipped.h"
#include "params/v_tile.h"
#include "plan/packing.h"
#include "table/row.h"

namespace fa3 {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));

static unsigned long long ull(cuuint64_t value) { return value; }

namespace {

CUtensorMapDataType type_of(fa3_dtype dtype) {
  switch (dtype) {
    case FA3_DTYPE_BF16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case FA3_DTYPE_FP16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

// A box is as wide as a slab, and so is what its swizzle repeats after.
CUtensorMapSwizzle swizzle_of(const TiledRow& row) {
  return row.slab_bytes() == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
}

// What cuTensorMapEncodeTiled takes beside the address: innermost dimension first, strides in bytes, the first implied.
struct Map {
  CUtensorMapDataType type;
  cuuint32_t rank;
  cuuint64_t dim[5], stride[5];
  cuuint32_t box[5];
  CUtensorMapSwizzle swizzle;
  // Kernels that wait for memory get 4.44 TB/s of it with any other promotion, and 4.16 with 256 bytes (H200). Short
  // causal sequences of d 128 gain 2 to 4%, head dimensions whose rows are no multiple of 256 bytes up to 13%.
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
};

// Returns the driver's answer.
CUresult encode(const Driver& driver, const Map& from, void* data, TensorMap& map) {
  constexpr cuuint32_t element_strides[] = {1, 1, 1, 1, 1};
  CUtensorMap encoded;  // its alignment on the host may be larger than the 64 bytes that the hardware needs
  const CUresult result = driver.tensor_map_encode_tiled(
      &encoded, from.type, from.rank, data, from.dim, from.stride + 1, from.box, element_strides,
      CU_TENSOR_MAP_INTERLEAVE_NONE, from.swizzle, from.promotion,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (!result) std::memcpy(&map, &encoded, sizeof map);
  return result;
}

// Where there is one element its stride is never used, but must be legal.
cuuint64_t bytes_apart(const View& view, int i) {
  return view.dim[i] == 1 ? 16 : static_cast<cuuint64_t>(view.stride[i] * bytes_per_element(view.dtype));
}

}  // namespace

fa3_status encode(const Driver& driver, const char* name, const View& view, const TiledRow& row, int rows,
                  TensorMap& map) {
  constexpr int order[] = {3, 1, 2, 0};  // of the view's (batch, seqlen, heads, head_dim), innermost first
  Map from{type_of(view.dtype), 4, {}, {}, {}, swizzle_of(row)};
  if (row.kind == Kind::backward) from.promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;  // gains nothing
  auto& [type, rank, dim, stride, box, swizzle, promotion] = from;
  for (int i = 0; i < 4; ++i) {
    dim[i] = view.dim[order[i]];
    stride[i] = bytes_apart(view, order[i]);
    box[i] = 1;
  }
  // A slab's bytes: of K and V that are widened in shared memory, other columns than a slab there has.
  box[0] = static_cast<cuuint32_t>(row.slab_bytes() / bytes_per_element(view.dtype));
  box[1] = static_cast<cuuint32_t>(rows);
  const CUresult result = encode(driver, from, view.data, map);
  if (!result) return FA3_OK;
  char call[320];
  std::snprintf(call, sizeof call,
                "cuTensorMapEncodeTiled for %s (data %p; head_dim, seqlen, heads, batch %llu, %llu, %llu, %llu; the "
                "last three %llu, %llu, %llu bytes apart)", name, view.data, ull(dim[0]), ull(dim[1]), ull(dim[2]),
                ull(dim[3]), ull(stride[1]), ull(stride[2]), ull(stride[3]));
  return cuda_error(driver, result, call);
}

fa3_status encode_clipped(const Driver& driver, const char* name, const View& view, const TiledRow& row, int rows,
                          const StepsOfView& steps, TensorMap& map) {
  const auto head_dim = static_cast<cuuint64_t>(view.dim[3]), heads = static_cast<cuuint64_t>(view.dim[2]);
  const auto all_steps = static_cast<cuuint64_t>(steps.count), step_bytes = static_cast<cuuint64_t>(steps.bytes);
  const cuuint64_t row_bytes = step_bytes * static_cast<cuuint64_t>(steps.steps.row);
  const Map from{type_of(view.dtype),
                 5,
                 {head_dim, clipped_rows, heads, all_steps + 1, clipped_rows + 1},
                 {1, row_bytes, bytes_apart(view, 2), step_bytes, stride_back(row_bytes)},
                 {static_cast<cuuint32_t>(row.slab_columns()), static_cast<cuuint32_t>(rows), 1, 1, 1},
                 swizzle_of(row),
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B};  // as of all backward rows
  const CUresult result = encode(driver, from, view.data, map);
  if (!result) return FA3_OK;
  char call[320];
  std::snprintf(call, sizeof call,
                "cuTensorMapEncodeTiled for %s, clipped (data %p; head_dim, heads, steps %llu, %llu, %llu; the last "
                "two %llu and %llu bytes apart, rows %llu)", name, view.data, ull(from.dim[0]), ull(heads),
                ull(all_steps), ull(from.stride[2]), ull(step_bytes), ull(row_bytes));
  return cuda_error(driver, result, call);
}

fa3_status encode_packed(const Driver& driver, const char* name, const View& view, const ForwardRow& row,
                         int64_t heads_kv, TensorMap& map) {
  const int64_t heads = view.dim[2] / heads_kv;
  const Packing packing = Packing::of(heads);
  const auto ull_of = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t group = heads_kv == 1 ? 16 : ull_of(heads) * bytes_apart(view, 2);
  const Map from{type_of(view.dtype),
                 5,
                 {ull_of(view.dim[3]), ull_of(heads), ull_of(view.dim[1]), ull_of(heads_kv), ull_of(view.dim[0])},
                 {1, heads == 1 ? 16 : bytes_apart(view, 2), bytes_apart(view, 1), group, bytes_apart(view, 0)},
                 {static_cast<cuuint32_t>(row.slab_columns()), static_cast<cuuint32_t>(packing.box_heads(row.q_rows())),
                  static_cast<cuuint32_t>(packing.box_queries(row.q_rows())), 1, 1},
                 swizzle_of(row)};
  const CUresult result = encode(driver, from, view.data, map);
  if (!result) return FA3_OK;
  char call[320];
  std::snprintf(call, sizeof call,
                "cuTensorMapEncodeTiled for %s with packed heads (data %p; head_dim, heads of a K/V head, seqlen, K/V "
                "heads, batch %llu, %llu, %llu, %llu, %llu; the last four %llu, %llu, %llu, %llu bytes apart)", name,
                view.data, ull(from.dim[0]), ull(from.dim[1]), ull(from.dim[2]), ull(from.dim[3]), ull(from.dim[4]),
                ull(from.stride[1]), ull(from.stride[2]), ull(from.stride[3]), ull(from.stride[4]));
  return cuda_error(driver, result, call);
}

fa3_status encode_v_tiles(const Driver& driver, const View& view, const TiledRow& row, TensorMap& map) {
  constexpr cuuint64_t line = v_tile_keys * v_tile_keys;  // 16 columns of a tile
  const cuuint64_t lines = view.dim[3] / line, groups = view.dim[1], heads = view.dim[2], batch = view.dim[0];
  const Map from{CU_TENSOR_MAP_DATA_TYPE_UINT8,
                 5,
                 {line, lines, groups, heads, batch},
                 {1, line, bytes_apart(view, 1), bytes_apart(view, 2), bytes_apart(view, 0)},
                 {line, static_cast<cuuint32_t>(row.dv / v_tile_keys), static_cast<cuuint32_t>(row.Bc / v_tile_keys),
                  1, 1},
                 CU_TENSOR_MAP_SWIZZLE_NONE};
  const CUresult result = encode(driver, from, view.data, map);
  if (!result) return FA3_OK;
  char call[320];
  std::snprintf(call, sizeof call,
                "cuTensorMapEncodeTiled for v as tiles (data %p; head_dim / 16, groups, heads, batch %llu, %llu, %llu, "
                "%llu; the last three %llu, %llu, %llu bytes apart)", view.data, ull(lines), ull(groups), ull(heads),
                ull(batch), ull(from.stride[2]), ull(from.stride[3]), ull(from.stride[4]));
  return cuda_error(driver, result, call);
}

}  // namespace fa3
