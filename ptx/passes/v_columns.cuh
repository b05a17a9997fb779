// Columns of 8-bit V on their way into a tile (fa3.h).
#pragma once
#include "../isa/common.cuh"
#include "../params/v_tile.h"

namespace fa3 {

// The tile's rows of two neighbouring columns, of which key_pair(key) gives a key's two bytes.
template <class KeyPair>
FA3_DEVICE void gather_columns(KeyPair key_pair, uint4 (&rows)[2]) {
  uint32_t words[2][4];
#pragma unroll
  for (int q = 0; q < 4; q++) {
    uint32_t pairs[4];  // of byte e of the word, in this column and the next
#pragma unroll
    for (int e = 0; e < 4; e++) pairs[e] = key_pair(v_tile_key(4 * q + e));
    const uint32_t low = pairs[0] | pairs[1] << 16, high = pairs[2] | pairs[3] << 16;
    words[0][q] = __byte_perm(low, high, 0x6420);
    words[1][q] = __byte_perm(low, high, 0x7531);
  }
#pragma unroll
  for (int c = 0; c < 2; c++) rows[c] = make_uint4(words[c][0], words[c][1], words[c][2], words[c][3]);
}

}  // namespace fa3
