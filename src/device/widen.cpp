#include "device/widen.h"

#include "integers.h"

namespace fa3 {
namespace {

// A thread block has so many pieces of so many lines.
WidenedTensor tensor_of(const View& from, const View& to, const View& scale, const int32_t* cu_seqlens, int64_t lines,
                        int64_t pieces_of_block) {
  const int64_t pieces = to.dim[3] / widened_columns;
  WidenedTensor tensor{};
  tensor.from = static_cast<const uint8_t*>(from.data);
  tensor.stride_batch = from.stride[0], tensor.stride_row = from.stride[1], tensor.stride_head = from.stride[2];
  tensor.to = static_cast<uint16_t*>(to.data);
  tensor.scale = static_cast<const float*>(scale.data);
  tensor.scale_stride_batch = narrow(scale.stride[0]), tensor.scale_stride_head = narrow(scale.stride[1]);
  tensor.scale_stride_block = narrow(scale.stride[2]);
  tensor.lines = narrow(lines);
  tensor.blocks = blocks_of_heads(to.dim[0], to.dim[2], lines, pieces_of_block / pieces);
  tensor.pieces = Divisor::of(narrow(pieces));
  tensor.rows = narrow(to.dim[1]), tensor.head_dim = narrow(to.dim[3]);
  tensor.cu_seqlens = scale.stride[0] != 0 ? cu_seqlens : nullptr;
  tensor.entries = narrow(from.dim[0]);
  return tensor;
}

}  // namespace

int64_t elements_of(const View& view) {
  return view.empty() ? 0 : view.dim[0] * view.dim[1] * view.dim[2] * view.dim[3];
}

bool rows_can_be_widened(const View& view) {
  int64_t all;  // batch and heads are below 2^31
  return view.empty() ||
         (!__builtin_mul_overflow(view.dim[0] * view.dim[2], view.dim[1], &all) && all <= most_widened_rows);
}

View packed_copy(const View& like, fa3_dtype dtype, char* workspace, size_t at) {
  View view{workspace ? workspace + at : nullptr, dtype, {}, {}};
  int64_t stride = 1;
  for (int i = 3; i >= 0; --i) {
    view.dim[i] = like.dim[i];
    view.stride[i] = like.dim[i] == 1 || like.empty() ? 0 : stride;
    if (!like.empty()) stride *= like.dim[i];
  }
  return view;
}

HeadBlocks blocks_of_heads(int64_t batch, int64_t heads, int64_t lines, int64_t block_lines) {
  const int64_t per_head = divide_up(lines, block_lines);
  return {narrow(batch * heads * per_head), Divisor::of(narrow(per_head)), Divisor::of(narrow(heads)),
          narrow(block_lines)};
}

WidenedTensor widened_rows(const View& from, const View& to, const View& scale, const int32_t* cu_seqlens) {
  return tensor_of(from, to, scale, cu_seqlens, to.dim[1], int64_t{rows[widen_pass].threads} * widened_pieces);
}

WidenedTensor widened_tiles(const View& from, const View& to, const View& scale, const int32_t* cu_seqlens) {
  WidenedTensor tensor = tensor_of(from, to, scale, cu_seqlens, from.dim[1], rows[widen_pass].threads);
  tensor.tiles = true;
  return tensor;
}

}  // namespace fa3
