// The pass in front of a forward kernel that takes V as tiles (fa3.h), where V of 8 bits lies row by row.
#include "../isa/grid.cuh"
#include "../tile/config.cuh"
#include "v_columns.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::TileVParams p) {
  using namespace fa3;
  constexpr int tile_threads = d / 2, tiles_at_once = config.threads() / tile_threads;
  static_assert(tiles_at_once == tiles_of_thread_block(config));
  ptx::griddepcontrol_launch_dependents();
  // Heads first: theirs are neighbours in memory.
  const int number = blockIdx.x * tiles_at_once + threadIdx.x / tile_threads, column = threadIdx.x % tile_threads * 2;
  const int all_groups = number / p.heads, head = number - all_groups * p.heads;
  const int batch = all_groups / p.groups, group = all_groups - batch * p.groups;
  if (batch >= p.batch || column >= p.head_dim) return;
  const int first = group * v_tile_keys, present = min(p.keys - first, v_tile_keys);
  const uint8_t* const v = p.v + batch * p.stride_batch + head * p.stride_head + first * p.stride_row + column;
  // Each once; zeros for keys that there are not.
  const auto key_pair = [&](int key) -> uint32_t {
    return key < present ? __ldcs(reinterpret_cast<const uint16_t*>(v + key * p.stride_row)) : 0;
  };
  uint4 rows[2];
  gather_columns(key_pair, rows);
  uint8_t* const tile =
      p.tiles + ((int64_t(batch) * p.heads + head) * p.groups + group) * (v_tile_keys * p.head_dim);
#pragma unroll
  for (int c = 0; c < 2; c++) *reinterpret_cast<uint4*>(tile + v_tile_row(column + c) * v_tile_keys) = rows[c];
}
