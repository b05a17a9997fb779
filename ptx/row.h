// The table as data: one constexpr Row per row of rows.def, with every number that follows from the row's cells
// computed here once. Kernels and host code both read it; neither computes a tile size, a thread count or a
// shared-memory size of its own (the kernels static_assert their layout against it).
#pragma once
#include <cstdint>

namespace fa3 {

// The boxes in which the kernels' tensor maps load and store: rows of a warpgroup's Q and of a warp's O. K and V have
// boxes of Bc rows. A box has the columns of one slab (Row::slab_columns).
inline constexpr int q_box_rows = 64, o_box_rows = 16;

// Rows of Q, K and V that share a scale, where scales are per block (FA3_SCALE_ROWS in fa3.h).
inline constexpr int rows_of_scale = 64;

enum class Kind { forward, backward, pass };
enum class Dtype : int32_t { bf16, fp16, e4m3 };
enum class Mask { full, causal, window };

// What sets a row apart beyond its sizes. Kernels, host and tools ask for these, never for a name or a head dimension.
enum class Trait : uint32_t {
  plain = 0,

  // The library takes this row by itself where it fits best. Others run only by name.
  chosen = 1 << 0,

  // Takes tiles that are split along the keys, too: their pieces come from the list in its parameters (work.h), and it
  // puts the parts together (tile/combine.cuh).
  splits = 1 << 1,

  // Softmax without row maxima in the main loop (tile/speculative.cuh).
  speculative = 1 << 2,

  // ptxas is kept from moving the wait for PV above the exponentials (end_basic_block in tile/softmax.cuh). Measured:
  // fwd 0.99 to 1.01 at every head dimension; Algorithm 2 640 against 630 TFLOP/s, Algorithm 4 596 against 571.
  hold_exps = 1 << 3,

  // Half of a block's multiplications wait for its first exponential (tile/softmax.cuh). Measured: d 64 +1.2%, at d 128
  // and 256, with fewer exponentials a WGMMA, nothing.
  spread = 1 << 4,

  // In a piece's first block, the groups of 16 keys beyond the causal diagonal are left out of the softmax. Measured:
  // d 64 +1.3% at 512, +0.8% at 1024; at d 128 and 256, where the tensor cores are the limit, nothing or -0.2%.
  skip_masked = 1 << 5,

  // The Q buffer through which TMA stores O is given back after the next piece's first softmax, when TMA has read it:
  // so no warp waits for that. Measured: d 128 +1.5% at 512, +0.4% on average; d 64 -0.4%, so there the warp waits at
  // once.
  late_q_release = 1 << 6,

  // O is stored straight from the registers. Otherwise it leaves by stmatrix and TMA through the Q buffer of its rows,
  // which is read no more; but without two Q buffers for each warpgroup, that one is wanted for the next Q before.
  // Measured: d 256 +7% at 512 to +1% or nothing at 8192 (Q no longer waits for O); with buffers enough, d 64 -1% to
  // -3%, d 128 -0.5%.
  o_from_registers = 1 << 7,

  // The next piece is taken, and its Q sent for, up to two K/V blocks before this piece's last. With a ring of two
  // stages Q would come late otherwise; with more, the producer is ahead by itself. Measured at d 256, at 512, 1024 and
  // 2048: without a mask +1.3, +0.4 and +0.1%, causal 0, +0.2 and +1.0%.
  early_claim = 1 << 8,

  // Warpgroups take turns at issuing GEMMs (Turns in tile/consumer.cuh).
  pingpong = 1 << 9,

  // No warp specialization: the consumers load for themselves.
  no_producer = 1 << 10,

  // 8-bit rows: V lies in memory row by row, and warps of the producer transpose it (tile/transpose.cuh). Rows without
  // it take V as tiles.
  transposes_v = 1 << 11,

  // 8-bit rows: K and V have a scale for each of their blocks (tile/score.cuh). Others have one for all of a head.
  block_scales = 1 << 12,

  // 8-bit rows, for FA3_FLAG_TWO_LEVEL: PV goes to O through float32 additions, as the tensor cores' own sums lose bits
  // (sums in tile/gemm.cuh).
  two_level = 1 << 13,

  // Half of Q is read from shared memory only once a piece, and QK takes it from registers, which leaves more of shared
  // memory's rate to what else reads there. Measured at d 256, e4m3: +1% to +4%, with V row by row +1% to +3%.
  q_in_registers = 1 << 14,

  // A pass of fa3_quantize, for head dimensions up to its d; the one that looks at the data first, for means and for
  // scales of more than 64 rows; the one that makes means of what it saw; and those with rotary embedding, which takes
  // registers from all others.
  quantizes = 1 << 15,
  measures = 1 << 16,
  finishes = 1 << 17,
  rotates = 1 << 18,

  // Kernels of the backward pass that compute only a part of the gradients: dK and dV, or dQ. At large head dimensions
  // all sums do not fit the registers of one thread block; the two then run one after the other.
  keys_only = 1 << 19,
  queries_only = 1 << 20,

  // The heads that share a K/V head stand in the rows of one tile (packing.h). For few queries, which fill no tile by
  // themselves: each head's tile would read K and V anew.
  packs_heads = 1 << 21,

  // The paper's Algorithm 3 (alg3.cu): a thread block has one key block, and no warpgroup of its own for dQ.
  as_written = 1 << 22,

  // A warp prepares query rows (LSE and D) for later key blocks beside the products (tile/bwd/ahead.cuh), where these
  // are long enough for that. Measured over a pass for all rows, 35 us: +3% at 2048, +2% at 4096, +1% at 16384; d 64
  // causal 0 and -2%.
  prepares_ahead = 1 << 23,

  // Slabs of 64 bytes, where those of 128 would leave much of a row's last one empty. TMA then needs more boxes.
  narrow_slabs = 1 << 24,

  // With o_from_registers: a Q buffer is given back before the piece's last PV, not when O is stored. So it is anyway
  // without two buffers for each warpgroup. Measured with 6 buffers at d 64, 128x128: up to 128 tokens +5 to +12%.
  early_q_release = 1 << 25,

  // In long sequences key blocks add dQ in a fixed order, asked for or not (src/backward/order.cpp). Blocks that need
  // not wait for one another get apart, and no longer find in the L2 cache what others have loaded. Measured at d 128,
  // causal: 28000 tokens +19%, 32768 0 to +8%, 65536 +6 to +11%, 131072 +2 to +7%; at d 64 -5 to -6%.
  keeps_together = 1 << 26,

  // Two consumer warpgroups have the same 64 rows and take turns at their K/V blocks (tile/shared_keys.cuh). One alone
  // waits for its own products and exponentials. Measured with one query and whole tiles of 2048 keys or more: 0 to 12%
  // faster; tiles of few blocks (least_turns in src/forward/cost.h) and parts of few blocks are slower so.
  shares_keys = 1 << 27,

  // The first Q is sent for at once: the warp that loads Q knows the thread block's first piece without being told, and
  // sends for a Q before it writes down which rows these are. Measured: calls of 8 to 15 us +1 to +3%. In other rows
  // ptxas makes other main loops with it: e4m3 at d 256, causal, -2%, bf16 at d 64 -0.25%.
  first_q_at_once = 1 << 28,

  // Takes only problems whose keys are one block, so that dQ of a tile is complete at once: it is not summed up in
  // global memory, and no pass rounds it. Measured (H100): up to 128 tokens 1.02 to 1.36. As a branch of the other rows
  // it cost these 0.3%.
  one_key_block = 1 << 29,

  // Sequences have lengths of their own, which lie in device memory, and pieces come from a list there (Planned in
  // work.h). Rows without it have the lengths of the call.
  own_lengths = 1 << 30,

  // What all rows of fwd.cu share.
  fast = chosen | splits | speculative | hold_exps,
  fast8 = fast | o_from_registers,  // and those of 8 bits
  fast8_sums = fast8 | block_scales | two_level,
  fast_packed = fast | o_from_registers | early_claim | packs_heads | first_q_at_once,  // and those for few queries
  fast_short = fast | o_from_registers | early_q_release | first_q_at_once,  // for few keys, where it measured faster
};
constexpr Trait operator|(Trait a, Trait b) { return Trait(uint32_t(a) | uint32_t(b)); }

struct Row {
  const char* name;
  const char* kernel;  // the file kernels/<kernel>.cu
  Kind kind;
  Dtype dtype;
  int d, dv;  // head dimension of Q and K, and of V and O
  Mask mask;
  int Br, Bc;     // query rows of a tile, keys of a K/V block
  int stages;     // of the K/V ring
  int q_buffers;  // of 64 rows
  Trait traits;
  // Of a pass, which has none of the numbers above but d: its threads, as many thread blocks of it as a multiprocessor
  // is to hold at once, and its shared memory.
  int pass_threads, pass_blocks, pass_bytes;

  constexpr bool has(Trait trait) const { return uint32_t(traits) & uint32_t(trait); }
  constexpr bool causal() const { return mask == Mask::causal; }
  // Is what a row sees bounded on that side (visible.h)?
  constexpr bool bounded_left() const { return mask == Mask::window; }
  constexpr bool bounded_right() const { return mask != Mask::full; }
  constexpr bool is_8bit() const { return dtype == Dtype::e4m3; }
  constexpr int element_bytes() const { return is_8bit() ? 1 : 2; }
  // Rows of Q, K, V and O lie in shared memory as slabs of so many bytes and columns; the last slab of a row may hold
  // fewer columns.
  constexpr int slab_bytes() const {
    return has(Trait::narrow_slabs) || (d * element_bytes() <= 64 && dv * element_bytes() <= 64) ? 64 : 128;
  }
  constexpr int slab_columns() const { return slab_bytes() / element_bytes(); }
  constexpr int slabs() const { return (d + slab_columns() - 1) / slab_columns(); }
  constexpr int v_slabs() const { return (dv + slab_columns() - 1) / slab_columns(); }
  constexpr int row_bytes() const { return slabs() * slab_bytes(); }
  constexpr int v_row_bytes() const { return v_slabs() * slab_bytes(); }
  // Does it compute all gradients of the backward pass?
  constexpr bool all_gradients() const {
    return kind == Kind::backward && !has(Trait::keys_only) && !has(Trait::queries_only);
  }
  // And is it the library's own, whose thread blocks take one key block after another (bwd.cu)?
  constexpr bool takes_several_blocks() const { return all_gradients() && !has(Trait::as_written); }
  // Consumers, with 64 query rows each, in the backward pass 64 keys each; with Trait::keys_only one computes dV and
  // the other dK. One warpgroup more produces, and in bwd.cu another one computes dQ.
  constexpr int warpgroups() const { return has(Trait::keys_only) ? 2 : (all_gradients() ? Bc : Br) / 64; }
  // All of them: with Trait::shares_keys two have the same rows.
  constexpr int consumers() const { return has(Trait::shares_keys) ? 2 * warpgroups() : warpgroups(); }
  constexpr int threads() const {
    if (kind == Kind::pass) return pass_threads;
    return (consumers() + !has(Trait::no_producer) + takes_several_blocks()) * 128;
  }

  // So many columns of O get their sums at a time, with Trait::two_level (tile/gemm.cuh).
  constexpr int sum_columns() const { return dv <= 128 ? dv : 64; }

  // Thread blocks that a multiprocessor holds at once.
  constexpr int resident_blocks() const { return kind == Kind::pass ? pass_blocks : 1; }

  // Registers of one thread of each warpgroup, added up, that a launch gives them: each an equal share of the register
  // file's 64K, in multiples of 8, which is 168 with three warpgroups, 128 with four and 96 with five. setmaxnreg moves
  // them between warpgroups, and waits until as many as it asks for have been given back; for more than these it would
  // wait for ever.
  static constexpr int launched_registers(int threads) { return 64 * 1024 / threads / 8 * 8 * (threads / 128); }
  // Without a producer nothing is moved: the consumers have what ptxas gives them, up to 255, and these are 0.
  // So it is with a single consumer, as there are registers enough.
  constexpr bool moves_registers() const {
    return kind != Kind::pass && !has(Trait::no_producer) && consumers() > 1;
  }
  constexpr int consumer_registers() const {
    if (kind == Kind::backward) return takes_several_blocks() ? 208 : 240;
    return !moves_registers() ? 0 : consumers() == 4 ? 112 : consumers() == 3 ? 160 : 232;
  }
  constexpr int producer_registers() const {
    if (kind == Kind::backward) return takes_several_blocks() ? 32 : 24;
    return !moves_registers() ? 0 : consumers() == 2 ? 40 : 32;
  }
  constexpr int dq_registers() const { return takes_several_blocks() ? 64 : 0; }
  constexpr int moved_registers() const {
    return producer_registers() + dq_registers() + consumers() * consumer_registers();
  }

  constexpr int q_buffer_bytes() const { return 64 * row_bytes(); }
  // So many buffers of Q a warpgroup may have at once, and is told when each is full: two even if there are fewer.
  constexpr int q_depth() const { return q_buffers > 2 * warpgroups() ? 3 : 2; }
  // Is a buffer given back as soon as its Q is read for the last time?
  constexpr bool releases_q_early() const {
    return has(Trait::early_q_release) || (has(Trait::o_from_registers) && q_buffers < 2 * warpgroups());
  }
  constexpr int k_block_bytes() const { return Bc * row_bytes(); }
  constexpr int v_block_bytes() const { return Bc * v_row_bytes(); }
  constexpr int stage_bytes() const { return k_block_bytes() + v_block_bytes(); }
  // With few stages, K and V of a stage have barriers of their own, so that K(j) is refilled while PV still reads V.
  constexpr bool split_stage() const { return stages <= 2; }
  // What a part's slot holds for the 16 rows of a warp: O in float32, and m and l of each lane's two rows
  // (tile/combine.cuh).
  constexpr int partial_bytes() const { return 16 * dv * 4 + 32 * 16; }
  // With packed heads: what it holds for a row, O with m and l behind it (tile/packed.cuh).
  constexpr int packed_row_bytes() const { return dv * 4 + 16; }
  // Where row-major V waits for its transposition.
  constexpr int v_row_buffers() const { return has(Trait::transposes_v) ? 2 : 0; }
  // Vectors that are added to O (VMeanRing in tile/ring.cuh).
  constexpr int v_means() const { return is_8bit() ? 3 * warpgroups() : 0; }
  constexpr int v_mean_bytes() const { return (v_means() * dv * 4 + 1023) / 1024 * 1024; }
  // What one of two warpgroups with the same rows hands over to the other: O, m and l.
  constexpr int handed_bytes() const { return has(Trait::shares_keys) ? 64 * dv * 4 + 128 * 16 : 0; }
  static constexpr int barrier_bytes = 1024;  // at the end, for mbarriers and RowBlocks (tile/smem.cuh)
  // Of the backward pass: K and V, Q and dO of each stage, two dS or P, dQ on its way out, LSE and D of each stage.
  // With Trait::queries_only Q and dO of its rows, K of each stage, and one V.
  constexpr int backward_bytes() const {
    if (has(Trait::queries_only))
      return 2 * Br * d * element_bytes() + stages * k_block_bytes() + v_block_bytes() + barrier_bytes;
    const int rows_and_barriers = stages * 2 * Br * 4 + 384;
    return 2 * k_block_bytes() + stages * 2 * Br * d * element_bytes() + 2 * Bc * Br * element_bytes() +
           (all_gradients() ? Br * d * 4 : 0) + (rows_and_barriers + 1023) / 1024 * 1024;
  }
  constexpr int smem_bytes() const {
    return kind == Kind::pass ? pass_bytes
           : kind == Kind::backward ? backward_bytes()
                              : q_buffers * q_buffer_bytes() + stages * stage_bytes() +
                                    v_row_buffers() * v_block_bytes() + v_mean_bytes() + handed_bytes() + barrier_bytes;
  }

  // Otherwise the place in the ring is a division away, too much for main loops that are not bound by memory.
  constexpr bool has_power_of_two_stages() const { return (stages & (stages - 1)) == 0; }

  constexpr bool valid() const {
    if (kind == Kind::pass)
      return pass_threads % 32 == 0 && pass_threads <= 1024 && pass_threads * pass_blocks <= 2048 &&
             pass_blocks * (pass_bytes + 1024) <= 228 * 1024 &&
             (!has(Trait::quantizes) || (pass_threads >= d && pass_threads <= 2 * d));
    if (kind == Kind::backward)
      return (all_gradients() ? Br % 64 == 0 : Br == (has(Trait::queries_only) ? 128 : 64)) &&
             Bc == (all_gradients() ? 128 : 64) && d % 64 == 0 &&
             d <= (all_gradients() ? 128 : 256) && dv == d && !is_8bit() && smem_bytes() <= 227 * 1024 &&
             (!has(Trait::one_key_block) || takes_several_blocks()) &&
             moved_registers() <= launched_registers(threads());
    return Br % 64 == 0 && warpgroups() >= (has(Trait::packs_heads) ? 1 : 2) && warpgroups() <= 4 && Bc % 16 == 0 &&
           d % 16 == 0 && d <= 256 && dv % 16 == 0 && dv <= 256 &&
           (v_slabs() <= slabs() || has(Trait::o_from_registers)) &&  // O leaves through a Q buffer
           (has_power_of_two_stages() || has(Trait::packs_heads)) && q_buffers >= warpgroups() &&
           q_buffers <= (is_8bit() ? 2 : 3) * warpgroups() &&
           (!has(Trait::early_q_release) || has(Trait::o_from_registers)) &&
           (is_8bit() ? Bc % 32 == 0 && d % 64 == 0 && dv == d && has(Trait::o_from_registers) &&
                            (!has(Trait::block_scales) || (Bc == rows_of_scale && !split_stage())) &&
                            (!has(Trait::two_level) || has(Trait::block_scales))
                      : !has(Trait::transposes_v) && !has(Trait::block_scales) && !has(Trait::two_level)) &&
           (!has(Trait::packs_heads) || (!is_8bit() && has(Trait::o_from_registers) && has(Trait::early_claim))) &&
           (!has(Trait::shares_keys) || (has(Trait::packs_heads) && warpgroups() == 1 && !split_stage())) &&
           (!has(Trait::skip_masked) || causal()) && !(has(Trait::o_from_registers) && has(Trait::late_q_release)) &&
           // The blocks that one warpgroup skips and another computes leave a stage free.
           (!bounded_right() || (warpgroups() - 1) * 64 <= (stages - 1) * Bc) &&
           smem_bytes() <= 227 * 1024 && moved_registers() <= launched_registers(threads());
  }
};

namespace table {
using enum Trait;
inline constexpr Row rows[] = {
#define FA3_FORWARD(name, kernel, dtype, d, mask, Br, Bc, stages, q_buffers, traits)                                   \
  {"fa3_" #name "_" #dtype "_d" #d "_" #mask "_" #Br "x" #Bc, #kernel, Kind::forward, Dtype::dtype, d, d, Mask::mask, \
   Br, Bc, stages, q_buffers, traits, 0, 1, 0},
#define FA3_FORWARD_DV(name, kernel, dtype, d, dv, mask, Br, Bc, stages, q_buffers, traits)                            \
  {"fa3_" #name "_" #dtype "_d" #d "x" #dv "_" #mask "_" #Br "x" #Bc, #kernel, Kind::forward, Dtype::dtype, d, dv, \
   Mask::mask, Br, Bc, stages, q_buffers, traits, 0, 1, 0},
#define FA3_BACKWARD(name, kernel, dtype, d, mask, Br, Bc, stages, traits)                                             \
  {"fa3_" #name "_" #dtype "_d" #d "_" #mask "_" #Br "x" #Bc, #kernel, Kind::backward, Dtype::dtype, d, d, Mask::mask, \
   Br, Bc, stages, 0, traits, 0, 1, 0},
#define FA3_PASS(name, kernel, d, threads, blocks, bytes, traits)                                      \
  {"fa3_pass_" #name, #kernel, Kind::pass, {}, d, 0, {}, 0, 0, 0, 0, chosen | traits, threads, blocks, bytes},
#ifdef FA3_ROWS  // of a build with fewer kernels (-Dkernels): the rows of those
#include FA3_ROWS
#else
#include "rows.def"
#endif
#undef FA3_FORWARD
#undef FA3_FORWARD_DV
#undef FA3_BACKWARD
#undef FA3_PASS
};
}  // namespace table
using table::rows;
inline constexpr int row_count = sizeof(rows) / sizeof(rows[0]);

constexpr bool same_text(const char* a, const char* b) {
  for (; *a && *a == *b; a++, b++) {
  }
  return *a == *b;
}
// The row of this name, or -1.
constexpr int row_named(const char* name) {
  for (int row = 0; row < row_count; row++)
    if (same_text(rows[row].name, name)) return row;
  return -1;
}

constexpr bool all_valid() {
  for (const Row& row : rows)
    if (!row.valid()) return false;
  return true;
}
static_assert(all_valid(), "a row of rows.def does not fit the machine");

}  // namespace fa3
