// The row of the table that this translation unit compiles (-DFA3_ROW=<number> -DFA3_KERNEL=<name>), and the names the
// kernels use for its cells. There are no template parameters on kernels: the configuration is this constant.
#pragma once
#include "../isa/common.cuh"
#include "../params.h"
#include "../variant.h"

namespace fa3 {

inline constexpr Variant row = variants[FA3_ROW];

constexpr bool same_text(const char* a, const char* b) {
  for (; *a && *a == *b; a++, b++) {
  }
  return *a == *b;
}
#define FA3_TEXT_(x) #x
#define FA3_TEXT(x) FA3_TEXT_(x)
static_assert(same_text(row.name, FA3_TEXT(FA3_KERNEL)), "the build and variants.def disagree about the rows");

// The paper's symbols.
inline constexpr int d = row.d;
inline constexpr int Br = row.Br;
inline constexpr int Bc = row.Bc;

inline constexpr int warpgroups = row.warpgroups();  // consumers; the producer is one more
inline constexpr bool causal = row.causal();
inline constexpr bool is_bf16 = row.dtype == Dtype::bf16;

// A tile of `rows` rows lies in shared memory as d/64 slabs of [rows][64] elements, each row 128 bytes, with the 128-byte
// swizzle of TMA and wgmma: byte address bits 4-6 are xor-ed with bits 7-9.
inline constexpr int slab_columns = box_columns;
inline constexpr int slabs = d / slab_columns;
inline constexpr int slab_row_bytes = 128;

}  // namespace fa3
