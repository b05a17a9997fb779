// What a part of a split tile leaves in the workspace where O is in two halves (latent/mla.cu), 16 rows at a time: as
// the four lanes of a quad have them in registers, so a warp writes, and reads, 512 bytes at once. A pass adds the
// parts up (passes/add_parts.cu).
#pragma once
#include "../../isa/common.cuh"

namespace fa3 {

struct PartStrip {
  static constexpr int rows = 16, columns = 512, groups = columns / 8;

  // The strip that begins at this row of all slots.
  FA3_DEVICE PartStrip(void* partials, int64_t row)
      : at_(static_cast<char*>(partials) + row * (columns * sizeof(float) + 16)) {}

  // Of 8 columns: two of each of the lane's two rows, 8 rows apart.
  FA3_DEVICE float4* o(int group, int lane) const {
    return reinterpret_cast<float4*>(at_) + group * to_next_group + lane;
  }
  static constexpr int to_next_group = 32;
  // m and l.
  FA3_DEVICE float2* sums(int row) const {
    return reinterpret_cast<float2*>(at_ + rows * columns * sizeof(float)) + row;
  }

 private:
  char* at_;
};

// Of four numbers, for four groups of columns, each lane of a quad gets those of the group with its own number, in the
// order of the lanes that had them.
FA3_DEVICE uint4 transpose_quad(const uint32_t (&x)[4]) {
  const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
  const uint32_t from_2 = __shfl_xor_sync(0xffffffffu, upper ? x[0] : x[2], 2);
  const uint32_t next_from_2 = __shfl_xor_sync(0xffffffffu, upper ? x[1] : x[3], 2);
  const uint32_t own = upper ? x[2] : x[0], own_next = upper ? x[3] : x[1];
  const uint32_t from_1 = __shfl_xor_sync(0xffffffffu, odd ? own : own_next, 1);
  const uint32_t from_3 = __shfl_xor_sync(0xffffffffu, odd ? from_2 : next_from_2, 1);
  const uint32_t mine = odd ? own_next : own, other = odd ? next_from_2 : from_2;
  const uint32_t low = odd ? from_1 : mine, high = odd ? mine : from_1;              // of lanes q & 2 and q & 2 | 1
  const uint32_t other_low = odd ? from_3 : other, other_high = odd ? other : from_3;  // of the other two
  return upper ? make_uint4(other_low, other_high, low, high) : make_uint4(low, high, other_low, other_high);
}

}  // namespace fa3
