// How O of a piece leaves a consumer warpgroup (A2.20), and when the buffer of its Q is given back. Rows of the table
// have one of three classes as Exit: O goes through that buffer, or straight from the registers, or, where heads are
// packed into rows, from the registers to rows of several heads.
//
// For each piece the kernel calls q_is_read, store and is_stored, and when the next piece has begun first_softmax_done;
// besides, release where it is about to wait for other warpgroups, and close in the end.
#pragma once
#include <type_traits>

#include "../ring.cuh"
#include "combine.cuh"
#include "epilogue.cuh"
#include "shared_keys.cuh"

namespace fa3 {

// A piece whose products have all been issued, while the kernel goes on to the next one.
struct Finished {
  const RowBlock& block;
  int parts;                 // block.parts
  uint32_t q_use, q_buffer;  // of the Q ring
  Sinks sinks;

  // Shuffled early, as the compiler must know that it is the same in all lanes.
  FA3_DEVICE Finished(const Params& p, const Smem& smem, uint32_t q_use, uint32_t q_buffer, int warp)
      : block(smem.row_block[RowBlockRing::index(q_use)]), parts(__shfl_sync(0xffffffffu, block.parts, 0)),
        q_use(q_use), q_buffer(q_buffer), sinks(p, block, warp) {}
};

// OExit::buffer and buffer_late. By stmatrix into the Q buffer, and from there by TMA, which reads it while the next
// piece begins.
class ExitThroughBuffer {
 public:
  FA3_DEVICE ExitThroughBuffer(const Params& p, Smem& smem, int warpgroup, int warp)
      : p_(p), smem_(smem), warpgroup_(warpgroup), warp_(warp) {}

  // The piece's last QK is done.
  FA3_DEVICE void q_is_read(uint32_t) {}
  // Its last PV is done: stores O and LSE, if the piece is a whole tile, or the part that is finished last. l: row
  // sums, of the whole quad; fit: what makes O fit them (Excess). o: room for O in 16 bits; the kernel's own, as ptxas
  // makes other code of one in here.
  FA3_DEVICE void store(float (&O)[o_columns / 2], uint32_t (&o)[o_columns / 4], RowState& state, float (&l)[2],
                        float (&fit)[2], const Finished& piece) {
    const bool complete = piece.parts == 1 || combine(O, state, l, fit, p_, piece.block, warp_);
    normalize(o, O, state, l, fit, piece.sinks);
    ptx::bar_sync(barrier_warpgroup + warpgroup_, 128);  // all four warps have read Q for the last time
    if (complete) {
      store_o(o, smem_, piece.q_buffer, p_, piece.block, warp_);
      store_lse(state, l, piece.sinks, p_, piece.block, warp_);
    }
  }
  // The next piece's first QK is done, too, and O is needed no more.
  FA3_DEVICE void is_stored(float (&)[o_columns / 2], uint32_t q_buffer) {
    o_buffer_ = q_buffer;
    if constexpr (!config.late_q_release()) release();
  }
  // And so is the softmax behind that.
  FA3_DEVICE void first_softmax_done() {
    if constexpr (config.late_q_release()) release();
  }
  // Waits until TMA has read the buffer through which O leaves, if there is one, and gives it back.
  FA3_DEVICE void release() {
    if (o_buffer_ < 0) return;
    if (threadIdx.x % 32 == 0) ptx::cp_async_bulk_wait_group_read<0>();
    __syncwarp();
    ptx::mbarrier_arrive(ptx::shared_address(&smem_.empty_q[o_buffer_]));
    o_buffer_ = -1;
  }
  // After the last piece.
  FA3_DEVICE void close() { release(); }

 private:
  const Params& p_;
  Smem& smem_;
  int warpgroup_, warp_;
  int o_buffer_ = -1;  // the Q buffer through which O is on its way out
};

// OExit::registers, registers_early and registers_fp32.
class ExitFromRegisters {
 public:
  FA3_DEVICE ExitFromRegisters(const Params& p, Smem& smem, int, int warp) : p_(p), smem_(smem), warp_(warp) {}

  FA3_DEVICE void q_is_read(uint32_t q_buffer) {
    if constexpr (early_q_release) release_q(q_buffer);
  }
  FA3_DEVICE void store(float (&O)[o_columns / 2], uint32_t (&o)[o_columns / 4], RowState& state, float (&l)[2],
                        float (&fit)[2], const Finished& piece) {
    const bool complete = piece.parts == 1 || combine(O, state, l, fit, p_, piece.block, warp_);
    if constexpr (!is_8bit && !config.stores_fp32()) normalize(o, O, state, l, fit, piece.sinks);
    if (complete) {
      if constexpr (config.stores_fp32())
        store_fp32_o(O, state, l, fit, piece.sinks, p_, piece.block, warp_);
      else if constexpr (is_8bit)
        store_scaled_o(O, state, l, piece.sinks, smem_.v_mean[VMeanRing::index(piece.q_use)], p_, piece.block, warp_);
      else store_o_direct(o, p_, piece.block, warp_);
      store_lse(state, l, piece.sinks, p_, piece.block, warp_);
    }
  }
  FA3_DEVICE void is_stored(float (&)[o_columns / 2], uint32_t q_buffer) {
    if constexpr (!early_q_release) release_q(q_buffer);
  }
  FA3_DEVICE void first_softmax_done() {}
  FA3_DEVICE void release() {}
  FA3_DEVICE void close() {}

 protected:
  FA3_DEVICE void release_q(uint32_t q_buffer) {
    ptx::mbarrier_arrive(ptx::shared_address(&smem_.empty_q[q_buffer]));
  }

  const Params& p_;
  Smem& smem_;
  int warp_;
};

// Heads::packed (packed.cuh). With Trait::shares_keys, O of two warpgroups is put together first.
class ExitPacked : public ExitFromRegisters {
 public:
  FA3_DEVICE ExitPacked(const Params& p, Smem& smem, int consumer, int warp)
      : ExitFromRegisters(p, smem, consumer, warp), keys_(smem, consumer), warpgroup_(shares_keys ? 0 : consumer) {}

  FA3_DEVICE void store(float (&O)[o_columns / 2], uint32_t (&)[o_columns / 4], RowState& state, float (&l)[2],
                        float (&fit)[2], const Finished& piece) {
    // Does this warpgroup have what all blocks of the piece add up to?
    const bool has_all = shares_keys ? keys_.put_together(O, state, l, fit, p_, piece.block, warp_) : true;
    if (has_all) {
      if (piece.parts == 1) store_packed(O, state, l, fit, piece.sinks, p_, piece.block, warpgroup_, warp_);
      else if constexpr (halves_columns) store_part(O, state, l, fit, p_, piece.block, warpgroup_, warp_);
      else combine_packed(O, state, l, fit, p_, smem_, piece.block, warpgroup_, warp_);
    }
  }
  // Clears O only so that its registers are free while parts are put together.
  FA3_DEVICE void is_stored(float (&O)[o_columns / 2], uint32_t q_buffer) {
    clear(O);
    ExitFromRegisters::is_stored(O, q_buffer);
  }
  FA3_DEVICE void close() {
    if constexpr (shares_keys) keys_.close();
  }

 private:
  SharedKeys keys_;
  int warpgroup_;
};

using Exit = std::conditional_t<config.packs_heads(), ExitPacked,
                                std::conditional_t<config.o_from_registers(), ExitFromRegisters, ExitThroughBuffer>>;

}  // namespace fa3
