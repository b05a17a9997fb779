// The table as data: one constexpr Variant per row of variants.def, with every number that follows from the row's cells
// computed here once. Kernels and host code both read it; neither computes a tile size, a thread count or a
// shared-memory size of its own (the kernels static_assert their layout against it).
#pragma once

namespace fa3 {

// The boxes in which the kernels' tensor maps load and store: columns of one 128-byte swizzle, rows of a warpgroup's Q and
// of a warp's O. K and V have boxes of Bc rows.
inline constexpr int box_columns = 64, q_box_rows = 64, o_box_rows = 16;

// fwd and, in smaller tiles, fwdsmall are what the library runs, and take tiles that are split along the keys. The others are
// the paper's own steps towards it, for comparison: Algorithm 1 (alg1), with pingpong (alg1pp), Algorithm 2 (alg2asis), with
// pingpong (alg2pp), without warp specialization (alg2nows), Algorithm 4 (alg4asis), all as ptxas orders them; and 2 and 4 in
// the paper's order, which ptxas undoes if it is let (alg2, alg4).
enum class Kernel { fwd, fwdsmall, alg1, alg1pp, alg2, alg2pp, alg2asis, alg2nows, alg4, alg4asis };
enum class Dtype { bf16, fp16 };
enum class Mask { full, causal };

struct Variant {
  const char* name;
  Kernel kernel;
  Dtype dtype;
  int d;  // head dimension
  Mask mask;
  int Br, Bc;   // query rows and keys of a block
  int stages;   // of the K/V ring
  int q_slots;  // Q buffers of 64 rows

  constexpr bool causal() const { return mask == Mask::causal; }
  constexpr bool is_fwd() const { return kernel == Kernel::fwd || kernel == Kernel::fwdsmall; }
  constexpr bool has_producer() const { return kernel != Kernel::alg2nows; }
  constexpr bool pingpong() const { return kernel == Kernel::alg1pp || kernel == Kernel::alg2pp; }
  // ptxas is kept from moving the wait for PV above the exponentials (end_basic_block in tile/softmax.cuh).
  constexpr bool holds_exps() const { return is_fwd() || kernel == Kernel::alg2 || kernel == Kernel::alg4; }
  constexpr int warpgroups() const { return Br / 64; }  // consumers; one more produces
  constexpr int threads() const { return (warpgroups() + has_producer()) * 128; }

  // setmaxnreg: the register file holds 64K registers, so 504 per thread of each four-warp slice, in multiples of 8.
  // Without a producer nothing is moved: the consumers have what ptxas gives them, up to 255, and these are 0.
  constexpr int consumer_registers() const {
    return !has_producer() ? 0 : warpgroups() == 4 ? 112 : warpgroups() == 3 ? 160 : 232;
  }
  constexpr int producer_registers() const { return !has_producer() ? 0 : warpgroups() == 2 ? 40 : 32; }

  constexpr int q_slot_bytes() const { return 64 * d * 2; }
  constexpr int kv_tile_bytes() const { return Bc * d * 2; }
  constexpr int stage_bytes() const { return 2 * kv_tile_bytes(); }
  // With few stages, K and V of a stage have barriers of their own, so that K(j) is refilled while PV still reads V.
  constexpr bool split_stage() const { return stages <= 2; }
  // O leaves through its tile's dead Q slot, by stmatrix and TMA; or straight from the registers, where the slot must take
  // the next tile's Q before that: without two slots for each warpgroup. Measured: at d 256, +7% at 512 to +1% at 8192
  // (Q no longer waits for O); at d 64 and 128, with slots enough, -3% and -1%.
  constexpr bool o_from_registers() const { return is_fwd() && q_slots < 2 * warpgroups(); }
  // The slot that O has left is given back after the next tile's first softmax: TMA has read it by then. Measured at d 128:
  // +1.5% at 512, +0.3% on average; at d 64 -0.4%, so there the warp waits for TMA at once.
  constexpr bool releases_q_late() const { return is_fwd() && !o_from_registers() && d == 128; }
  // In a tile's first block, the groups of 16 keys beyond the causal diagonal are left out of the softmax. Measured: d 64 +1.3%
  // at 512, +0.8% at 1024; at d 128 and 256, where the tensor cores are the limit, nothing or -0.2%.
  constexpr bool skips_masked_groups() const { return is_fwd() && causal() && d == 64; }
  // The next tile is taken, and its Q sent for, one or two K/V blocks before this tile's last. With a ring of two stages Q
  // would come late otherwise; with more, the producer is ahead by itself. Measured at d 256, at 512, 1024 and 2048: without a
  // mask +1.3, +0.4 and +0.1%, causal 0, +0.2 and +1.0%.
  constexpr bool takes_early() const { return is_fwd() && split_stage(); }
  // Half of a block's multiplications wait for its first exponential (tile/softmax.cuh).
  constexpr bool spreads_multiplications() const { return is_fwd() && d == 64; }
  // A warp's partial result of 16 rows: O in float32, and m and l for each lane's two rows (tile/combine.cuh).
  constexpr int partial_bytes() const { return 16 * d * 4 + 32 * 16; }
  static constexpr int barrier_bytes = 1024;  // mbarriers and tile descriptions, at the end
  constexpr int smem_bytes() const { return q_slots * q_slot_bytes() + stages * stage_bytes() + barrier_bytes; }

  constexpr bool valid() const {
    return Br % 64 == 0 && warpgroups() >= 2 && warpgroups() <= 4 && Bc % 16 == 0 && d % 64 == 0 && d <= 256 &&
           (stages & (stages - 1)) == 0 && q_slots <= 2 * warpgroups() &&
           (is_fwd() ? q_slots > warpgroups() : q_slots >= warpgroups() && split_stage()) &&
           (warpgroups() - 1) * 64 <= (stages - 1) * Bc &&  // under a causal mask, blocks that one warpgroup skips
           smem_bytes() <= 227 * 1024 &&
           (producer_registers() + warpgroups() * consumer_registers()) * 128 <= 64 * 1024;
  }
};

inline constexpr Variant variants[] = {
#define FA3_VARIANT(kernel, dtype, d, mask, Br, Bc, stages, q_slots)                                       \
  {"fa3_" #kernel "_" #dtype "_d" #d "_" #mask, Kernel::kernel, Dtype::dtype, d, Mask::mask, Br, Bc, stages, q_slots},
#include "variants.def"
#undef FA3_VARIANT
};
inline constexpr int variant_count = sizeof(variants) / sizeof(variants[0]);

constexpr bool all_valid() {
  for (const Variant& v : variants)
    if (!v.valid()) return false;
  return true;
}
static_assert(all_valid(), "a row of variants.def does not fit the machine");

}  // namespace fa3
