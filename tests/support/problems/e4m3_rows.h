// Rows as the table may have them for e4m3, one of each kind.
#pragma once
#include "ptx/table/row.h"

namespace fa3::test {

constexpr ForwardRow row_of_e4m3(const char* name, int d, Mask mask, VLayout v, KvScales scales,
                                 Trait traits = Trait::plain) {
  return {{name, "fwd8", Kind::forward, Dtype::e4m3, d, d, mask, 128, 128, 2, traits}, 3, Heads::one, OExit::registers,
          v, scales};
}
inline constexpr ForwardRow e4m3_rows[] = {
    row_of_e4m3("tiles", 128, Mask::full, VLayout::tiles, KvScales::heads),
    row_of_e4m3("causal tiles", 64, Mask::causal, VLayout::tiles, KvScales::heads),
    row_of_e4m3("v as rows", 256, Mask::causal, VLayout::transposed, KvScales::heads),
    row_of_e4m3("block scales", 128, Mask::full, VLayout::transposed, KvScales::blocks),
    row_of_e4m3("two levels", 128, Mask::full, VLayout::tiles, KvScales::heads, Trait::two_level),
    row_of_e4m3("all", 64, Mask::causal, VLayout::tiles, KvScales::blocks, Trait::two_level),
};

}  // namespace fa3::test
