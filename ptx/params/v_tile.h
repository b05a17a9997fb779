// 8-bit V as tiles of 16 keys (fa3.h): in which row of a tile each column stands, and in which byte of it each key.
// Plain C++, read by both sides; tests/ptx/v_tile_test.cpp follows the instructions that make and use the tiles.
#pragma once

namespace fa3 {

inline constexpr int v_tile_keys = 16;

// The row of a column, and the byte of a key, of the tile's 16. Eight even columns stand before eight odd ones.
constexpr int v_tile_row(int column) { return column / 16 * 16 + column % 2 * 8 + column % 16 / 2; }
constexpr int v_tile_byte(int key) { return key % 8 / 2 * 4 + key % v_tile_keys / 8 * 2 + key % 2; }
// And back.
constexpr int v_tile_column(int row) { return row / 16 * 16 + row % 8 * 2 + row % 16 / 8; }
constexpr int v_tile_key(int byte) { return byte % 4 / 2 * 8 + byte / 4 * 2 + byte % 2; }

}  // namespace fa3
