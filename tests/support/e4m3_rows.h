// Rows as the table may have them for e4m3, one of each kind.
#pragma once
#include "ptx/row.h"

namespace fa3::test {

constexpr Row row_of_e4m3(const char* name, int d, Mask mask, Trait traits) {
  return {name, "fwd8", Kind::forward, Dtype::e4m3, d, d, mask, 128, 128, 2, 3, traits, 0, 0, 0};
}
inline constexpr Row e4m3_rows[] = {
    row_of_e4m3("tiles", 128, Mask::full, Trait::plain),
    row_of_e4m3("causal tiles", 64, Mask::causal, Trait::plain),
    row_of_e4m3("v as rows", 256, Mask::causal, Trait::transposes_v),
    row_of_e4m3("block scales", 128, Mask::full, Trait::transposes_v | Trait::block_scales),
    row_of_e4m3("two levels", 128, Mask::full, Trait::two_level),
    row_of_e4m3("all", 64, Mask::causal, Trait::two_level | Trait::block_scales),
};

}  // namespace fa3::test
