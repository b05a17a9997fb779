// Rings of shared-memory buffers between producer and consumers.
//
// Both sides count their uses of a ring from 0 on, over all pieces of the thread block: use i takes buffer i % size,
// and the parity of its barriers is (i / size) & 1. Nothing is drained between pieces.
#pragma once
#include "barriers.cuh"
#include "smem.cuh"

namespace fa3 {

// The K/V ring; its buffers are the stages. A use holds K of one block and V of the block before (the last block of the
// piece before, if K is the first of its piece). Every consumer warp releases it once (with split_stage: once for K,
// once for V).
//
// A barrier tells only the parity of its phase. So every warp waits for every use, also for blocks that its rows do not
// see: if it left one out, it could mistake the end of an earlier phase for the one it waits for.
struct KvRing {
  Smem& smem;
  // 31 in lane 0, which releases for its warp. Made by a shuffle, or ptxas reads the thread's number anew in the main
  // loop.
  int mirrored_lane = __shfl_xor_sync(0xffffffffu, threadIdx.x % 32, 31);

  static FA3_DEVICE uint32_t index(uint32_t i) { return i % config.stages; }
  static FA3_DEVICE uint32_t parity(uint32_t i) { return i / config.stages & 1; }

  FA3_DEVICE void wait_k(uint32_t i) const { wait(smem.full_k[index(i)], parity(i)); }
  FA3_DEVICE void wait_v(uint32_t i) const {
    wait(split_stage ? smem.full_v[index(i)] : smem.full_k[index(i)], parity(i));
  }
  // The calling warp is done with K (or V) of the stage. stage_done: and with the other half too.
  FA3_DEVICE void release_k(uint32_t i, bool stage_done) const {
    if (split_stage || stage_done) arrive(smem.empty_k[index(i)]);
  }
  FA3_DEVICE void release_v(uint32_t i, bool stage_done) const {
    if constexpr (split_stage) arrive(smem.empty_v[index(i)]);
    else if (stage_done) arrive(smem.empty_k[index(i)]);
  }
  // At the beginning of a piece: use `first` holds its first K, and the last V of the piece before, which is done with;
  // `own` holds the first K that the calling warp computes with, if it computes with any. Releases that V, and what
  // lies before `own`, each when it has come.
  FA3_DEVICE void skip(uint32_t first, uint32_t own, bool computes) const {
    for (uint32_t i = first; i < own; i++) {
      wait_k(i);
      if constexpr (split_stage) wait_v(i);
      release_k(i, false);
      release_v(i, true);
    }
    if (split_stage && computes) {
      wait_v(own);
      release_v(own, false);
    }
  }

 private:
  FA3_DEVICE void arrive(uint64_t& barrier) const {
    if constexpr (config.block_scales()) __syncwarp();  // each lane has read the block's scales
    ptx::mbarrier_arrive_if(ptx::shared_address(&barrier), mirrored_lane == 31);
  }
};

// With packed heads memory serves all multiprocessors faster if they ask for no more at a time than it takes, less than
// their rings hold; what is there already helps out when something comes late (tests/records/diary/decode.md, decoding
// through pages). So loads of use i wait until those of use i - n have come. All thread blocks share what is best; in
// the last round, where there are fewer pieces than thread blocks, those that have one.
struct InFlight {
  static constexpr uint32_t no_bound = UINT32_MAX;
  uint32_t blocks;  // n

  // For the piece of this number, of so many.
  FA3_DEVICE InFlight(const Params& p, int number, int count) : blocks(no_bound) {
    if constexpr (!config.packs_heads()) return;
    const int grid = gridDim.x, last_round = count / grid * grid;
    const int share = p.blocks_in_flight / (number < last_round ? grid : max(count - last_round, 1));
    if (share < config.stages) blocks = max(share, 2);
  }

  FA3_DEVICE void wait_before(const Smem& smem, uint32_t i) const {
    if (config.packs_heads() && i >= blocks) wait(smem.full_k[KvRing::index(i - blocks)], KvRing::parity(i - blocks));
  }
};

// The ring of Q buffers. Use t * warpgroups + w is the Q of warpgroup w for the thread block's piece t; the producer
// fills them in this order. The full barriers are not the buffers' but each warpgroup's own. For warpgroups may take
// the same buffers in turn, and one that waits for a buffer's next phase before the last one is over would see the
// parity of the phase before, and go on too early.
struct QRing {
  static FA3_DEVICE uint32_t index(uint32_t q_use) { return q_use % config.q_buffers; }
  static FA3_DEVICE uint32_t parity(uint32_t q_use) { return q_use / config.q_buffers & 1; }
  static FA3_DEVICE uint32_t full_index(uint32_t q_use) { return q_use % (q_depth * warpgroups); }
  static FA3_DEVICE uint32_t full_parity(uint32_t q_use) { return q_use / (q_depth * warpgroups) & 1; }
};

// V's mean, which is added to O, and the RowBlock come with a Q, but are needed for longer: until O is stored, and that
// may be after the buffer of Q has been given back. So they have rings of their own. A warpgroup with two Q buffers can
// need what came with three Qs at a time: of the piece whose O it stores, of the next piece, whose first QK is under
// way, and of the one after that, whose Q is being loaded. With three Q buffers it can be four (`row_blocks`), but no
// row of the table that adds a mean has as many.
struct VMeanRing {
  static FA3_DEVICE uint32_t index(uint32_t q_use) { return q_use % (3 * warpgroups); }
};
struct RowBlockRing {
  static FA3_DEVICE uint32_t index(uint32_t q_use) { return q_use % row_blocks; }
};

}  // namespace fa3
