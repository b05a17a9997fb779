#include "widen.h"

#include <algorithm>

#include "half.h"

namespace fa3::test {
namespace {

uint16_t rounded(float x, bool bf16) { return bf16 ? tools::to_bf16(x) : tools::to_fp16(x); }
double value(uint16_t bits, bool bf16) { return bf16 ? tools::from_bf16(bits) : tools::from_fp16(bits); }

// The last sequence that begins at or before the row; the first one if none does.
int64_t sequence_of(const int32_t* cu_seqlens, int32_t batch, int64_t row, int64_t entry) {
  if (!cu_seqlens) return entry;
  int32_t sequence = batch - 1;
  while (sequence > 0 && cu_seqlens[sequence] > row) --sequence;
  return sequence;
}

// From the header's words about tiles.
uint8_t element(const WidenedTensor& t, int64_t batch, int64_t row, int64_t head, int64_t column) {
  const uint8_t* const first = t.from + batch * t.stride_batch + head * t.stride_head;
  if (!t.tiles) return first[row * t.stride_row + column];
  const int64_t key = row % 16, row_in_tile = 16 * (column / 16) + 8 * (column % 2) + column % 16 / 2;
  return first[row / 16 * t.stride_row + 16 * row_in_tile + 4 * (key % 8 / 2) + 2 * (key / 8) + key % 2];
}

int32_t entries_of(const HeadBlocks& blocks) { return blocks.count / blocks.heads / blocks.per_head; }

// The entry of `from`, or page, and the row there of which the copy's row is made; entry -1: it is not made.
struct Source {
  int64_t entry, row;
};
Source source_of(const WidenedTensor& t, int64_t batch, int64_t row) {
  Source source{batch, row};
  if (t.used && row >= t.used[batch]) return {-1, 0};
  if (t.page_table) source = {t.page_table[batch * t.table_stride + row / t.page_size.value], row % t.page_size.value};
  else if (t.entry_of) source.entry = t.entry_of[batch];
  return source.entry >= 0 && source.entry < t.entries ? source : Source{-1, 0};
}

void widen(const WidenParams& p, const WidenedTensor& t) {
  if (t.blocks.count == 0) return;
  for (int64_t batch = 0; batch < entries_of(t.blocks); ++batch)
    for (int64_t row = 0; row < t.rows; ++row)
      for (int64_t head = 0; head < t.blocks.heads; ++head) {
        const Source source = source_of(t, batch, row);
        if (source.entry < 0) continue;
        const int64_t sequence = sequence_of(t.cu_seqlens, p.batch, row, batch);
        const float scale = !t.scale ? 1 : t.scale[sequence * t.scale_stride_batch + head * t.scale_stride_head +
                                    row / 64 * t.scale_stride_block];
        uint16_t* const to = t.to + ((batch * t.rows + row) * t.blocks.heads + head) * t.head_dim;
        for (int64_t column = 0; column < t.head_dim; ++column)
          to[column] =
              rounded(float(tools::from_e4m3(element(t, source.entry, source.row, head, column))) * scale, p.bf16);
      }
}

void correct(const WidenParams& p) {
  const int32_t heads = p.blocks.heads;
  for (int32_t n = 0; p.blocks.count > 0 && n < entries_of(p.blocks) * heads * p.rows; ++n) {
    const int32_t row = n % p.rows, head = n / p.rows % heads, batch = n / p.rows / heads;
    if (p.lse_to)
      p.lse_to[n] = p.lse[batch * p.lse_stride_batch + head * p.lse_stride_head + row * p.lse_stride_row] -
                    p.lse_offset[batch * p.offset_stride_batch + head * p.offset_stride_head +
                                 row * p.offset_stride_row];
    if (!p.dlse_to) continue;
    const int64_t sequence = sequence_of(p.cu_seqlens, p.batch, row, batch);
    const float* const mean = p.v_mean + sequence * p.mean_stride_batch + head / p.heads_per_kv * p.mean_stride_head;
    const uint16_t* const dout =
        p.dout + batch * p.dout_stride_batch + row * p.dout_stride_row + head * p.dout_stride_head;
    double sum = 0;
    for (int64_t x = 0; x < p.head_dim_v; ++x) sum += value(dout[x], p.bf16) * double(mean[x]);
    if (p.dlse) sum += p.dlse[batch * p.dlse_stride_batch + head * p.dlse_stride_head + row * p.dlse_stride_row];
    p.dlse_to[n] = float(sum);
  }
}

constexpr int32_t threads = 256;

// Do the thread blocks have all lines of each head?
bool have_all(const HeadBlocks& blocks, int32_t lines) {
  if (blocks.count == 0) return true;
  return blocks.lines >= 1 && blocks.per_head * blocks.lines >= lines && (blocks.per_head - 1) * blocks.lines < lines;
}

bool is_complete(const WidenParams& p, unsigned blocks) {
  for (const WidenedTensor& t : p.tensors) {
    const int32_t pieces = t.head_dim / widened_columns, at_once = threads * (t.tiles ? 1 : widened_pieces);
    if (t.head_dim % 16 != 0 || t.pieces != pieces || t.blocks.lines * pieces > at_once) return false;
    if (t.lines != (t.tiles ? (t.rows + 15) / 16 : t.rows) || !have_all(t.blocks, t.lines)) return false;
  }
  if (p.blocks.count > 0 && (8 << p.lanes_shift < p.head_dim_v || p.lanes_shift > 5 ||
                             p.blocks.lines != corrected_at_once * (threads >> p.lanes_shift)))
    return false;
  return have_all(p.blocks, p.rows) && blocks_of(p) == blocks;
}

}  // namespace

CUresult simulate_widen(const WidenParams& p, unsigned blocks) {
  if (!is_complete(p, blocks)) return CUDA_ERROR_LAUNCH_FAILED;
  for (const WidenedTensor& t : p.tensors) widen(p, t);
  correct(p);
  return CUDA_SUCCESS;
}

}  // namespace fa3::test
