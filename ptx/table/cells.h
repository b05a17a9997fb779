// The words in the cells of rows.def, beside its sizes: what each means, and what was measured for it. Where one of
// several must hold, they are an enum; what a row may have or not have, whatever else it has, is a Trait. row.h makes
// rows of them.
#pragma once
#include <cstdint>

namespace fa3 {

enum class Kind { forward, backward, pass };
enum class Dtype : int32_t { bf16, fp16, e4m3 };
enum class Mask { full, causal, window };

// Whose rows stand in a tile: those of one head; or packed, of all heads that share a K/V head (packing.h). The latter
// are for few queries, which fill no tile by themselves: each head's tile would read K and V anew.
enum class Heads { one, packed };

// How O leaves, and when the next Q may come into the buffer of these rows' Q.
enum class OExit {
  // By stmatrix and TMA through that Q buffer, which is read no more. The warp waits until TMA has read it.
  buffer,

  // The same, but the buffer is given back after the next piece's first softmax, when TMA has read it: so no warp waits
  // for that. Measured: d 128 +1.5% at 512, +0.4% on average; d 64 -0.4%, so there the warp waits at once.
  buffer_late,

  // Straight from the registers. The Q buffer is given back when O is stored; but without two buffers for each
  // warpgroup, that one is wanted for the next Q before, and is given back before the piece's last PV. Measured: d 256
  // +7% at 512 to +1% or nothing at 8192 (Q no longer waits for O); with buffers enough, d 64 -1% to -3%, d 128 -0.5%.
  registers,

  // The same, but the buffer is always given back before the last PV. Measured with 6 buffers at d 64, 128x128: up to
  // 128 tokens +5 to +12%.
  registers_early,

  // As `registers`, but not rounded: O is float32 in memory, for partial results that are merged.
  registers_fp32,
};

// How V lies in memory, and how it comes into shared memory. 8-bit wgmma wants it with keys contiguous.
enum class VLayout {
  rows,        // of 16 bits: row by row, and so it is used
  transposed,  // of 8 bits: row by row; warps of the producer transpose it (tile/loads/transpose.cuh)
  tiles,       // of 8 bits: as tiles (v_tile.h), and so they are used
  widened,     // of 8 bits, as K is, under Q of 16: row by row; fp16 is made of both (planned/widen.cuh, few.cu)
  copied,      // the same, but a pass has made fp16 of both in memory (passes/widen.cu)
  latent,      // of 8 bits, with a scale for each 128 columns of a row, beside K of 16: row by row; 16 bits are made of
               // them in the stage (latent/widen_latent.cuh)
};

// What has a scale of K and of V: nothing, as their elements have 16 bits; each head; or each of its blocks
// (tile/scores/score.cuh).
enum class KvScales { none, heads, blocks };

// Which gradients a kernel of the backward pass computes. At large head dimensions all sums do not fit the registers of
// one thread block: there one kernel computes dK and dV, and behind it another one dQ.
enum class Gradients { all, keys, queries };

// Which pass a row is: the name of its file, in passes, planned or backward.
enum class Pass {
  empty_rows,
  tile_v,
  plan_forward,
  add_parts,
  bwd_prepare,
  bwd_finish,
  plan_backward,
  bwd_key_means,
  widen,
  quantize,
  measure,
  finish,
  combine,
  append
};

// What else sets a row apart. Kernels, host and tools ask for these and for the words above, never for a name or a head
// dimension.
enum class Trait : uint32_t {
  plain = 0,

  // Of forward and backward rows:

  // The library takes this row by itself where it fits best. Others run only by name.
  chosen = 1 << 0,

  // ptxas is kept from moving the wait for PV above the exponentials (end_basic_block in tile/scores/softmax.cuh).
  // Measured: fwd 0.99 to 1.01 at every head dimension; Algorithm 2 640 against 630 TFLOP/s, Algorithm 4 596 against
  // 571.
  hold_exps = 1 << 1,

  // Of forward rows, up to bit 19:

  // Takes tiles that are split along the keys, too: their pieces come from the list in its parameters (work.h), and it
  // puts the parts together (tile/epilogue/combine.cuh).
  splits = 1 << 2,

  // Softmax without row maxima in the main loop (tile/scores/speculative.cuh).
  speculative = 1 << 3,

  // Half of a block's multiplications wait for its first exponential (tile/scores/softmax.cuh). Measured: d 64 +1.2%,
  // at d 128 and 256, with fewer exponentials a WGMMA, nothing.
  spread = 1 << 4,

  // In a piece's first block, the groups of 16 keys beyond the causal diagonal are left out of the softmax. Measured:
  // d 64 +1.3% at 512, +0.8% at 1024; at d 128 and 256, where the tensor cores are the limit, nothing or -0.2%.
  skip_masked = 1 << 5,

  // The next piece is taken, and its Q sent for, up to two K/V blocks before this piece's last. With a ring of two
  // stages Q would come late otherwise; with more, the producer is ahead by itself. Measured at d 256, at 512, 1024 and
  // 2048: without a mask +1.3, +0.4 and +0.1%, causal 0, +0.2 and +1.0%.
  early_claim = 1 << 6,

  // Warpgroups take turns at issuing GEMMs (Turns in forward/consumer.cuh).
  pingpong = 1 << 7,

  // No warp specialization: the consumers load for themselves.
  no_producer = 1 << 8,

  // 8-bit rows, for FA3_FLAG_TWO_LEVEL: PV goes to O through float32 additions, as the tensor cores' own sums lose bits
  // (forward/sums.cuh).
  two_level = 1 << 9,

  // Half of Q is read from shared memory only once a piece, and QK takes it from registers, which leaves more of shared
  // memory's rate to what else reads there. Measured at d 256, e4m3: +1% to +4%, with V row by row +1% to +3%.
  q_in_registers = 1 << 10,

  // Slabs of 64 bytes, where those of 128 would leave much of a row's last one empty. TMA then needs more boxes.
  narrow_slabs = 1 << 11,

  // Two consumer warpgroups have the same 64 rows and take turns at their K/V blocks (tile/epilogue/shared_keys.cuh).
  // One alone waits for its own products and exponentials. Measured with one query and whole tiles of 2048 keys or
  // more: 0 to 12% faster; tiles of few blocks (least_turns in src/forward/plan/cost.h) and parts of few blocks are
  // slower so.
  shares_keys = 1 << 12,

  // The first Q is sent for early: the warp that loads Q takes the thread block's first piece by itself, and
  // sends for a Q before it writes down which rows these are. Measured: calls of 8 to 15 us +1 to +3%. In other rows
  // ptxas makes other main loops with it: e4m3 at d 256, causal, -2%, bf16 at d 64 -0.25%.
  early_first_q = 1 << 13,

  // Sequences have lengths of their own, which lie in device memory, and pieces come from a list there
  // (planned_piece.h); and heads may have sinks (tile/scores/sinks.cuh). Rows without it have the lengths of the call,
  // and no sinks. Backward rows, and passes before and behind them, take key blocks from a list (backward_list.h); all
  // that these rows know of sinks is in LSE.
  planned = 1 << 14,

  // Scores are changed before they are masked (tile/scores/score_transform.cuh): each is capped, cap tanh(score / cap);
  // or loses its head's slope times the distance of query and key. Both have `planned`, as those rows take every
  // mask.
  softcap = 1 << 15,
  alibi = 1 << 16,

  // Queries have a second tensor, qv, with as many columns as V, whose products with V are part of the scores: so V's
  // columns, loaded once, are those of K, too (multi-head latent attention).
  qv = 1 << 17,

  // For tiles of which only the first rows exist (ForwardRow::most_rows): keys stand in the rows of the products, so
  // that nothing is computed for rows that there are not (forward/few.cu).
  few_rows = 1 << 18,

  // There eight warps have shares of a block's keys, not four.
  eight_warps = 1 << 19,

  // Of backward rows, from bit 20 on:

  // Takes only problems whose keys are one block, so that dQ of a tile is complete at once: it is not summed up in
  // global memory, and no pass rounds it. Measured (H100): up to 128 tokens 1.02 to 1.36. As a branch of the other rows
  // it cost these 0.3%.
  one_key_block = 1 << 20,

  // The paper's Algorithm 3 (alg3.cu): a thread block has one key block, and no warpgroup of its own for dQ.
  as_written = 1 << 21,

  // A warp prepares query rows (LSE and D) for later key blocks beside the products (backward/ahead.cuh), where these
  // are long enough for that. Measured over a pass for all rows, 35 us: +3% at 2048, +2% at 4096, +1% at 16384; d 64
  // causal 0 and -2%.
  prepares_ahead = 1 << 22,

  // In long sequences key blocks add dQ in a fixed order, asked for or not (src/backward/order.cpp). Blocks that need
  // not wait for one another get apart, and no longer find in the L2 cache what others have loaded. Measured at d 128,
  // causal: 28000 tokens +19%, 32768 0 to +8%, 65536 +6 to +11%, 131072 +2 to +7%; at d 64 -5 to -6%.
  keeps_together = 1 << 23,

  // For FA3_FLAG_CENTERED_K: the row sums of rounded dS times a mean of the keys are taken off dQ
  // (backward/key_mean.cuh).
  centered_k = 1 << 24,

  // Of forward rows again:

  // Two thread blocks, a cluster, have 64 rows each of a tile. Each loads half of K and V, for both (latent/mla.cu).
  multicast = 1 << 25,

  // With few_rows and qv: half of the 64 rows may exist, not a quarter.
  half_rows = 1 << 26,

  // For short sequences: a thread block computes one tile, and a multiprocessor holds several of them, so that some
  // load or store while others compute (forward/short.cu).
  one_tile = 1 << 27,

  // Of passes, from bit 28 on:

  // Of fa3_quantize, with rotary embedding, which takes registers from all others.
  rotates = 1 << 28,

  // What all rows of fwd.cu share; those of packed heads; and both with lengths of their own. Then backward rows.
  fast = chosen | splits | speculative | hold_exps,
  fast_packed = fast | early_claim | early_first_q,
  planned_fast = fast | planned,
  planned_packed = fast_packed | planned,
  one_tile_each = chosen | no_producer | one_tile,
  planned_few = chosen | splits | early_claim | early_first_q | planned | few_rows,
  planned_centered = planned | centered_k,
  capped_alibi = planned | softcap | alibi,

  // What a row of each kind may have.
  backward_traits = chosen | hold_exps | planned | softcap | alibi | one_key_block | as_written | prepares_ahead |
                    keeps_together | centered_k,
  pass_traits = rotates | planned,
  forward_traits =
      (one_key_block - 1) | multicast | half_rows | one_tile,  // all that stand above the first one, and these
};
constexpr Trait operator|(Trait a, Trait b) { return Trait(uint32_t(a) | uint32_t(b)); }

constexpr bool has_only(Trait traits, Trait allowed) { return (uint32_t(traits) & ~uint32_t(allowed)) == 0; }

}  // namespace fa3
