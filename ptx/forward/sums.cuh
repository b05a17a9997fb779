// How the products P V add up to O: in O itself, or with Trait::two_level on two levels. Products are issued here and
// waited for in the kernel. Rows of the table have one of the two structs as Sums.
#pragma once
#include <type_traits>

#include "../tile/gemm.cuh"
#include "../tile/scores/softmax.cuh"

namespace fa3 {

// The tensor cores add to O.
struct SumsInO {
  static constexpr int slices = 1;  // of the columns of O, computed one after the other

  // Issues O += P V, or O = P V if there is nothing to add to.
  FA3_DEVICE void begin(float (&O)[o_columns / 2], const uint32_t (&P)[p_registers], uint64_t v, bool accumulate) {
    issue_pv(O, P, v, accumulate);
  }
  // It has been waited for. left: so many blocks of the piece are left.
  FA3_DEVICE void finish(float (&O)[o_columns / 2], uint32_t) { ptx::wgmma_owned(O); }
  // The same for each other slice, when the one before is finished.
  FA3_DEVICE void begin_slice(const uint32_t (&)[p_registers], uint64_t, int) {}
  FA3_DEVICE void finish_slice(float (&)[o_columns / 2], int) {}
  // O is multiplied by alpha, if rescale: so is what will be added to it.
  FA3_DEVICE void scale(bool, const float (&)[2]) {}
  // Before the first product of a piece, which overwrites O.
  FA3_DEVICE void reset(float (&)[o_columns / 2]) {}
};

// The tensor cores' own sums of 8-bit products keep 13 bits, enough for some hundred keys, but not for thousands. So
// P V of a few blocks comes into accumulators of its own, and is added to O from there. At head dimensions for which
// there are not enough registers, that is done for one slice of the columns after the other, and for each block.
class TwoLevelSums {
  static constexpr int blocks = 4, columns = config.sum_columns();

 public:
  static constexpr int slices = dv / columns;

  // Issues sums += P V, or = P V if they have been added to O: of the first slice.
  FA3_DEVICE void begin(float (&)[o_columns / 2], const uint32_t (&P)[p_registers], uint64_t v, bool) {
    issue_pv(sums_, P, v, begun_);
  }
  // O += sums, whenever a multiple of `blocks` blocks is left of the piece.
  FA3_DEVICE void finish(float (&O)[o_columns / 2], uint32_t left) {
    ptx::wgmma_owned(O);
    ptx::wgmma_owned(sums_);
    begun_ = slices == 1 && left % blocks != 0;
    if (!begun_) add(O, 0);
    if (slices > 1) ptx::wgmma_owned(sums_);
  }
  FA3_DEVICE void begin_slice(const uint32_t (&P)[p_registers], uint64_t v, int slice) {
    issue_pv(sums_, P, v + descriptor_units(slice * columns * v_tile_keys), false);
  }
  FA3_DEVICE void finish_slice(float (&O)[o_columns / 2], int slice) {
    ptx::wgmma_owned(sums_);
    add(O, slice);
    if (slice < slices - 1) ptx::wgmma_owned(sums_);
  }
  FA3_DEVICE void scale(bool rescale, const float (&alpha)[2]) {
    if (rescale && begun_) scale_rows(sums_, alpha);
  }
  FA3_DEVICE void reset(float (&O)[o_columns / 2]) { clear(O); }

 private:
  FA3_DEVICE void add(float (&O)[o_columns / 2], int slice) const {
#pragma unroll
    for (int i = 0; i < columns / 2; i++) O[slice * (columns / 2) + i] += sums_[i];
  }

  float sums_[columns / 2];
  bool begun_ = false;  // do they hold products that O does not?
};

using Sums = std::conditional_t<has(Trait::two_level), TwoLevelSums, SumsInO>;

}  // namespace fa3
