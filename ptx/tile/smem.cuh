// The shared memory of a forward kernel. No offset arithmetic exists outside this struct.
#pragma once
#include "../isa/barrier.cuh"
#include "../isa/fence.cuh"
#include "barriers.cuh"
#include "element.cuh"
#include "forward.cuh"

namespace fa3 {

// The 64 rows of a consumer warpgroup in a piece (work.h).
struct alignas(16) RowBlock {
  int row;      // the first; may lie outside of the problem's rows, if none of the 64 is one of them
  int blocks;   // how many of the piece's K/V blocks it computes, from `begin` on; end_of_work after the last piece
  int skipped;  // and how many come before those in the ring, which its rows do not see
  int begin;    // the first of those that it computes
  int head, batch;  // the K/V head, where its heads are packed into rows
  int part, parts;
  int partial;  // place in the workspace of what part 0 of a split tile leaves for these rows; of part 1, `warpgroups`
                // places on. A place is for 64 rows (combine.cuh); with packed heads for one row of one part, and all
                // parts of a row are neighbours (packed.cuh)
  int ticket;   // index of these rows' Tickets
  // Where there are scales:
  float c;        // softmax_scale * log2(e) * the scales of Q and K
  float v_scale;  // of V
  // With a bound on the left: how many of the piece's blocks come behind those that it computes. The next RowBlock of
  // the warpgroup counts them among its own that are skipped.
  int skipped_later[bounded_left];
  Sequence sequence[planned];  // the rows are of, if it has lengths of its own
  // With ALiBi: the sequence's number in the call, and the position of its row 0 among the keys.
  int32_t sequence_number[has(Trait::alibi)], first_position[has(Trait::alibi)];

  // Where row 0 of the sequence lies in the tensors of queries.
  FA3_DEVICE int q_row() const {
    if constexpr (planned) return sequence[0].q_row;
    else return 0;
  }
  static constexpr int end_of_work = -1;
};

// Where a K/V block lies in the tensors, for K and V alike.
struct KeyBlock {
  int key;  // its first key
  int head, batch;
};

// What the rows see.
FA3_DEVICE Visible visible(const Params& p, const RowBlock& block) {
  if constexpr (planned) return visible(p, block.sequence[0]);
  else return visible(p);
}

// K of a block and V of the block before (work.h), as they are used together in one iteration; or, with halves_columns,
// of the same block. 8-bit V lies here as tiles (fa3.h).
struct Stage {
  Element k[config.k_block_bytes() / sizeof(Element)];
  Element v[config.v_block_bytes() / sizeof(Element)];
};

inline constexpr bool split_stage = config.split_stage();
// With halves_columns: does one warpgroup compute the scores for both? Otherwise each has those of every other block,
// or a share of all.
inline constexpr bool scores_for_both = halves_columns && !keeps_latent;
// With scores_for_both a stage comes in two, by V's columns: full_v and empty_v are of the left half, full_k and
// empty_k of the right one and K (latent/mla.cu).
inline constexpr int v_barriers = split_stage || scores_for_both ? config.stages : 1;

// Where V lands that is mended on its way to a stage (tile/loads/landing.cuh), or K and V in turn, to be widened. In
// other rows of the table the arrays have no elements, which nvcc allows.
struct Landing {
  static constexpr int buffers = widens ? config.landing_buffers() : 2;
  static constexpr int menders = config.menders();  // warps
  static constexpr int present = config.landing_buffers();
  Element v[present][config.landing_bytes() / sizeof(Element)];
  uint64_t full[present], empty[present];
  uint32_t end[present];  // nothing has come, as no more will: but for the last V, behind an end in K's place
};
static_assert(Landing::present == 0 || Landing::present == Landing::buffers);

// The scales of a K/V block.
struct BlockScales {
  float k, v;
};

// What the second of two warpgroups with the same rows hands over at the end of a piece, thread by thread.
struct Handed {
  float4 o[o_columns / 8][128];
  float4 state[128];  // m and l of the thread's two rows
};

// With Trait::few_rows: the sums of a warp's keys of a piece. Rows of O are so long that no bank is asked twice where
// it is written (forward/few.cu).
struct WarpShare {
  static constexpr int rows = config.most_rows();
  float o[rows][dv + 4];
  float m[rows], l[rows], rounded_l[rows];  // the last one: of P as they are multiplied
};

// What the warpgroup that has the scores tells the other one with a block's P, which lie in the place of the block's
// first slab of K (latent/mla.cu).
struct Scored {
  static constexpr int rows = has(Trait::few_rows) ? config.most_rows() : 64;
  float alpha[rows];  // what O is multiplied by before,
  uint32_t moves[4];  // if m of any of a warp's rows moves
  float m[rows], l[rows], fit[rows];  // with the last block of a piece; fit: of Excess
};

// Of a latent cache in bytes: what a warpgroup's warps tell each other, and the other warpgroup (latent_softmax.cuh).
struct LatentShare {
  static constexpr int rows = config.most_rows(), scales = config.latent_scales() / (splits_latent ? 2 : 1);
  float4 scores[splits_latent ? 2 : 0][rows / 8][128];  // its share of them, thread by thread, of blocks in turn
  uint32_t moves[2][4];  // of blocks in turn: does m of any of a warp's rows move, or the factor of a scale
  float warp_rows[4][rows];
  uint32_t largest_scale[4][scales];
  float m[rows], l[rows];
  // Of each scale sums of its P, and of that as it is multiplied; and what O of its columns is multiplied by.
  static constexpr int fits = config.fits_scales() ? scales : 0;
  float weighted[4][fits][rows], rounded[4][fits][rows], fit[fits][rows];
};

// Pieces of the list in device memory (Trait::planned), on their way from the warp that claims them to those that
// load for them (planned_producer.cuh). A slot that is full holds a piece of the thread block's, in their order.
struct PieceRing {
  static constexpr int depth = 2, slots = planned ? depth : 0;
  static constexpr int kv_warps = config.lands_v() ? 1 : 2;  // those that load K and V
  static constexpr int readers = kv_warps + 1;               // and one for Q; each releases every piece

  PlannedPiece entries[slots];
  int number[slots];  // of the piece; Claims::none after the last one
  int head[slots];    // of its rows, as tiles count heads
  uint64_t full[slots], empty[slots];
  uint64_t wanted[planned];  // the next piece may be claimed
  bool fit_grid[planned];    // pieces_fit_grid
  int count[planned && config.packs_heads()];  // pieces of all thread blocks
  // Where a warp has Q and the claims to see to: what Claims are made of anew for each piece, for want of registers.
  PlannedCounts counts[planned && config.lands_v()];
  bool needs_workspace[planned && config.lands_v()];

  // t: number of the piece among those of the thread block.
  static FA3_DEVICE uint32_t index(uint32_t t) { return t % depth; }
  static FA3_DEVICE uint32_t parity(uint32_t t) { return t / depth & 1; }
};

// The piece that the first thread block of a cluster has taken, on its way to the other one (PieceProducer).
struct ClusterPiece {
  int number;      // in the other one,
  uint64_t full;   // which waits for it,
  uint64_t taken;  // and tells the first one that it has read it
};

// What has come to a stage with V of e4m3, for those that widen it (widen_latent.cuh, latent_softmax.cuh).
struct LandedLatent {
  alignas(16) float scales[Bc][config.latent_scales()];
  uint64_t full;  // V and its scales are there; where V lies in bytes, the stage's own barrier tells
  int keys;       // so many of the block, from its first one on, are the sequence's
  static constexpr int end_of_work = -1;
};

// When Q's buffer is given back early, its RowBlock is still needed.
inline constexpr bool early_q_release = config.releases_q_early();
inline constexpr int q_depth = config.q_depth();
inline constexpr int row_blocks = early_q_release ? (q_depth + 1) * warpgroups : config.q_buffers;

struct alignas(1024) Smem {
  // After its last QK, a buffer takes the O of the same rows on its way out.
  Element q[config.q_buffers][config.q_rows() * q_row_elements];
  Stage stage[config.stages];
  // P of two blocks in the same kernels, where few rows exist: for both warpgroups, as WGMMA's operand B. Or, for each
  // scale of a latent cache in bytes, of one block, or of two of each warpgroup's.
  Element few_p[config.few_p_buffers()][config.most_rows() * Bc];
  Landing landing;
  Handed handed[shares_keys ? 1 : 0];
  WarpShare warp_share[config.has_warp_shares() ? 4 * consumers : 0];
  alignas(16) float v_mean[config.v_means()][dv];  // where there are scales: what is added to O (VMeanRing)
  BlockScales block_scales[config.block_scales() ? config.stages : 0];  // of the block whose K is in the stage

  // Barriers, in an order that init_barriers relies on: those for one thread, for warps, and for threads.
  uint64_t full_k[config.stages];  // without split_stage: of the whole stage
  uint64_t full_v[v_barriers], full_q[q_depth * warpgroups], full_piece, empty_piece;
  uint64_t tickets_ready[config.packs_heads()];  // waited for where all pieces are under way at once
  uint64_t empty_k[config.stages], empty_v[v_barriers];
  uint64_t empty_q[config.q_buffers];
  int piece;  // number of the piece whose Q comes next: what the K/V producer tells the Q producer
  RowBlock row_block[row_blocks];  // of the Q in a buffer (RowBlockRing)
  // Of rows that a warpgroup adds up (packed.cuh).
  uint32_t shares[config.packs_heads() && !halves_columns ? (shares_keys ? warpgroups : consumers) : 0];
  PieceRing pieces;
  Scored scored[scores_for_both ? consumers : 0];
  uint64_t full_scored[scores_for_both ? consumers : 0];  // arrived at by its warps
  // What those that have the scores tell each other.
  float warp_rows[config.few_p_bytes() && scores_for_both ? 4 : 0][Scored::rows];
  LatentShare latent_share[keeps_latent ? consumers : 0];
  float q_inverse[keeps_latent ? config.most_rows() : 0];  // of what Q's rows have been multiplied by
  ClusterPiece cluster_piece[multicasts];
  LandedLatent landed[config.latent_scales() ? config.stages : 0];
};
static_assert(sizeof(Smem) <= config.smem_bytes(), "row.h reserves too little shared memory");
static_assert(halves_columns || config.smem_bytes() - sizeof(Smem) <= 1024, "row.h reserves too much shared memory");

// Called by all warps, before a barrier of the whole thread block. Each takes a share, because an initialisation takes
// some 30 clocks and ptxas makes lanes do theirs one by one.
FA3_DEVICE void init_barriers(Smem& smem, int warp) {
  constexpr auto index = [](size_t offset) { return int(offset - offsetof(Smem, full_k)) / 8; };
  constexpr int kv = index(offsetof(Smem, empty_k)), q = index(offsetof(Smem, empty_q)), end = q + config.q_buffers;
  constexpr int menders = config.lands_v() ? Landing::menders : 0;
  if (threadIdx.x != 32 * warp) return;  // (% 32 would take a register throughout the kernel)
  for (int i = warp; i < end; i += config.threads() / 32) {
    // Filled by one thread, V by the warps that mend it, scales by copies of their own; K and V released by every
    // consumer warp of the cluster, halves of columns by those of one warpgroup of each thread block; Q released by
    // every thread of the warpgroups that have it, as all have read its RowBlock.
    const int v_too = menders && !split_stage && i < config.stages ? menders : 0;
    const bool v_only = menders && split_stage && i >= config.stages && i < 2 * config.stages;
    const bool widened = widens && i < (split_stage ? 2 : 1) * config.stages;
    const int scales_too = config.block_scales() && i < config.stages;
    const bool latent = config.is_latent() && i < (keeps_latent ? 1 : 2) * config.stages;
    const int latent_arrivals = keeps_latent ? 1 + Bc : config.menders() + (i < config.stages);
    const int full = latent ? latent_arrivals : v_only || widened ? menders : 1 + v_too + scales_too;
    const int empty = cluster_blocks * (halves_columns && !splits_latent ? 4 : consumers * 4);
    const int arrivals = i < kv ? full : i < q ? empty : 128 * (consumers / warpgroups);
    ptx::mbarrier_init(ptx::shared_address(smem.full_k + i), arrivals);
  }
  const auto init_landing = [&](int i) {
    ptx::mbarrier_init(ptx::shared_address(&smem.landing.full[i]), 1);
    ptx::mbarrier_init(ptx::shared_address(&smem.landing.empty[i]), Landing::menders);
    smem.landing.end[i] = false;
  };
  if constexpr (widens)
    for (int i = warp; i < Landing::buffers; i += config.threads() / 32) init_landing(i);
  else if constexpr (config.lands_v())
    if (warp < Landing::buffers) init_landing(warp);
  if constexpr (scores_for_both)
    if (warp < consumers) ptx::mbarrier_init(ptx::shared_address(&smem.full_scored[warp]), 4);
  if constexpr (widens_latent)
    if (warp < config.stages) ptx::mbarrier_init(ptx::shared_address(&smem.landed[warp].full), 1 + Bc);
  if constexpr (multicasts)
    if (warp == 0) {
      ptx::mbarrier_init(ptx::shared_address(&smem.cluster_piece[0].full), 1);
      ptx::mbarrier_init(ptx::shared_address(&smem.cluster_piece[0].taken), 1);
    }
  if constexpr (planned)
    if (warp < PieceRing::slots) {
      ptx::mbarrier_init(ptx::shared_address(&smem.pieces.full[warp]), 1);
      ptx::mbarrier_init(ptx::shared_address(&smem.pieces.empty[warp]), PieceRing::readers);
      if (warp == 0) ptx::mbarrier_init(ptx::shared_address(&smem.pieces.wanted[0]), 1);
    }
  ptx::fence_mbarrier_init();
}

// Has each piece a thread block of its own, so that none is claimed? Only kernels for packed heads make use of that:
// their calls are short, so tickets are cleared beside the loads. In planned rows it is known when the first Q has
// come, or the first piece.
FA3_DEVICE bool pieces_fit_grid(const Params& p, const Smem& smem) {
  if constexpr (planned) return config.packs_heads() && smem.pieces.fit_grid[0];
  return config.packs_heads() && p.pieces.count() <= int(gridDim.x);
}

}  // namespace fa3
