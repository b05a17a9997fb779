// The row of the table that this translation unit compiles (-DFA3_ROW=<row> -DFA3_KERNEL=<name>). There are no
// template parameters on kernels: the configuration is this constant. Names for its cells: tiling.cuh, forward.cuh.
#pragma once
#include "../isa/common.cuh"
#include "../params/params.h"
#include "../table/row.h"

// A kernel of the row's name. Each .cu ends with one.
#define FA3_GLOBAL \
  extern "C" __global__ void __launch_bounds__(fa3::config.threads(), fa3::config.resident_blocks()) FA3_KERNEL

namespace fa3 {

template <int number>
constexpr auto row_of_number() {
  if constexpr (number < first_backward) return forward_row(number);
  else if constexpr (number < first_pass) return backward_row(number);
  else return pass_row(number);
}
static_assert(row_count == 1);
inline constexpr auto config = row_of_number<0>();  // a ForwardRow, a BackwardRow or a PassRow

#define FA3_TEXT_(x) #x
#define FA3_TEXT(x) FA3_TEXT_(x)
static_assert(same_text(config.name, FA3_TEXT(FA3_KERNEL)), "the build and rows.def disagree about the rows");

constexpr bool has(Trait trait) { return config.has(trait); }

inline constexpr int d = config.d;  // head dimension of Q and K; of a pass, the largest that it takes

}  // namespace fa3
