// The shared memory of a forward kernel, and its named barriers. No offset arithmetic exists outside this struct.
#pragma once
#include "../isa/barrier.cuh"
#include "../isa/fence.cuh"
#include "../isa/mbarrier.cuh"
#include "element.cuh"

namespace fa3 {

// What a consumer warpgroup needs to know of its 64 rows of a piece of work (work.h).
struct alignas(16) RowBlock {
  int row;      // first query row; may lie outside 0 .. seqlen_q - 1 for a block without rows
  int blocks;   // K/V blocks it computes, the first ones of the piece's; end_of_work after the last piece
  int skipped;  // the piece's K/V blocks behind those, which come before them in the ring
  int begin;    // the piece's first K/V block
  int head, batch;
  int part, parts;
  int partial;  // in units of a warpgroup's partial result: where that of part 0 lies; `warpgroups` on, that of part 1
  int ticket;
  static constexpr int end_of_work = -1;
};

// K(j) and the V of the block before it, as they are used together in one iteration.
struct Stage {
  Element k[Bc * d];
  Element v[Bc * dv];
};

inline constexpr bool split_stage = config.split_stage();

struct alignas(1024) Smem {
  Element q[config.q_slots][64 * d];  // after the tile's last QK, a slot stages the tile's O
  Stage stage[config.stages];

  // Barriers, in the order of init_barriers: filled by one thread, released by warps, released by threads.
  uint64_t full_k[config.stages];  // without split_stage: of the whole stage
  uint64_t full_v[split_stage ? config.stages : 1], full_q[2 * warpgroups], full_piece, empty_piece;
  uint64_t empty_k[config.stages], empty_v[split_stage ? config.stages : 1];
  uint64_t empty_q[config.q_slots];
  int piece;  // whose Q comes next (work.h): what the K/V producer tells the Q producer
  RowBlock row_block[config.q_slots];
};
static_assert(sizeof(Smem) <= config.smem_bytes(), "row.h reserves too little shared memory for this row");

enum NamedBarrier { barrier_all = 0, barrier_warpgroup = 1, barrier_turn = 5 };  // + i: of warpgroup i

// Called by all warps, before a barrier of the whole block: each takes a share, because an initialisation takes some 30 clocks
// and ptxas makes lanes do theirs one by one.
FA3_DEVICE void init_barriers(Smem& smem, int warp) {
  constexpr auto index = [](size_t offset) { return int(offset - offsetof(Smem, full_k)) / 8; };
  constexpr int kv = index(offsetof(Smem, empty_k)), q = index(offsetof(Smem, empty_q)), end = q + config.q_slots;
  if (threadIdx.x != 32 * warp) return;  // (% 32 would take a register throughout the kernel)
  for (int i = warp; i < end; i += config.threads() / 32) {
    // Full ones are filled by one thread, K and V released by every consumer warp, Q by every thread of the warpgroup, as all
    // have read the slot's RowBlock.
    const int arrivals = i < kv ? 1 : i < q ? warpgroups * 4 : 128;
    ptx::mbarrier_init(ptx::shared_address(smem.full_k + i), arrivals);
  }
  ptx::fence_mbarrier_init();
}

}  // namespace fa3
