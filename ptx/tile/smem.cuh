// The shared memory of a forward kernel, and its named barriers. No offset arithmetic exists outside this struct.
#pragma once
#include "../isa/barrier.cuh"
#include "../isa/fence.cuh"
#include "../isa/mbarrier.cuh"
#include "config.cuh"

namespace fa3 {

// What a consumer warpgroup needs to know of its 64 rows of a tile, or of a tile's part (split.h).
struct alignas(16) RowBlock {
  int row;      // first query row; may lie outside 0 .. seqlen_q - 1 for a block without rows
  int blocks;   // K/V blocks it computes, the first ones of the part's; end_of_work after the last tile
  int skipped;  // the part's K/V blocks behind those, which come before them in the ring
  int begin;    // the part's first K/V block
  int head, batch;
  int part, parts;
  int partial;  // in units of a warpgroup's partial result: where that of part 0 lies; `warpgroups` on, that of part 1
  int ticket;
  static constexpr int end_of_work = -1;
};

// K(j) and the V of the block before it, as they are used together in one iteration.
struct Stage {
  uint16_t k[Bc * d];
  uint16_t v[Bc * d];
};

inline constexpr bool split_stage = row.split_stage();

struct alignas(1024) Smem {
  uint16_t q[row.q_slots][64 * d];  // after the tile's last QK, a slot stages the tile's O
  Stage stage[row.stages];

  uint64_t full_k[row.stages], empty_k[row.stages];  // without split_stage: of the whole stage
  uint64_t full_v[row.stages], empty_v[row.stages];  // used only with split_stage
  uint64_t full_q[2 * warpgroups], empty_q[row.q_slots];
  uint64_t full_mail, empty_mail;
  int mail;  // the place (split.h) whose Q comes next, from the K/V producer to the Q producer
  RowBlock row_block[row.q_slots];
};
static_assert(sizeof(Smem) <= row.smem_bytes(), "variant.h reserves too little shared memory for this row");

enum NamedBarrier { barrier_all = 0, barrier_warpgroup = 1, barrier_turn = 5 };  // + i: of warpgroup i

// Called by one warp, before a barrier of the whole block. Each lane takes a share: one thread alone needs half a microsecond.
FA3_DEVICE void init_barriers(Smem& smem) {
  using namespace ptx;
  const int lane = threadIdx.x % 32;
  auto init = [](uint64_t& barrier, int arrivals) { mbarrier_init(shared_address(&barrier), arrivals); };
  if (lane < row.stages) {
    init(smem.full_k[lane], 1);
    init(smem.empty_k[lane], warpgroups * 4);  // every consumer warp
    init(smem.full_v[lane], 1);
    init(smem.empty_v[lane], warpgroups * 4);
  }
  if (lane < 2 * warpgroups) init(smem.full_q[lane], 1);
  if (lane < row.q_slots) init(smem.empty_q[lane], 128);  // every thread of the warpgroup: all read its RowBlock
  if (lane == 0) {
    init(smem.full_mail, 1);
    init(smem.empty_mail, 1);
  }
  fence_mbarrier_init();
}

}  // namespace fa3
