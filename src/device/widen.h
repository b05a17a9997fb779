// Copies of 16 bits, in the workspace, of tensors of e4m3, and what the pass that makes them is told of each tensor.
#pragma once
#include "params/widen_params.h"
#include "problem.h"

namespace fa3 {

inline constexpr int widen_pass = row_named("fa3_pass_widen");
static_assert(widen_pass >= 0);

// The pass counts rows of all heads, and its thread blocks, in int32.
inline constexpr int64_t most_widened_rows = INT32_MAX - 65536;

int64_t elements_of(const View& view);
// Are its rows of all heads no more than that?
bool rows_can_be_widened(const View& view);

// A copy without gaps of a tensor of these dims, at `at` in the workspace, which is null where only dims are wanted.
View packed_copy(const View& like, fa3_dtype dtype, char* workspace, size_t at);

// So many lines of a thread block, of the lines of each head.
HeadBlocks blocks_of_heads(int64_t batch, int64_t heads, int64_t lines, int64_t block_lines);

// Copied row by row: of batched tensors, rows of a batch entry to the same of the copy. cu_seqlens: of packed ones.
WidenedTensor widened_rows(const View& from, const View& to, const View& scale, const int32_t* cu_seqlens);
// From V tiles.
WidenedTensor widened_tiles(const View& from, const View& to, const View& scale, const int32_t* cu_seqlens);

}  // namespace fa3
