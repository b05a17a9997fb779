// The paper's Algorithm 2 without warp specialization: all warps compute, and one thread of them issues the loads,
// behind a barrier of the whole thread block in every iteration. For comparison; the kernel for use is fwd.cu. Comments
// cite the paper's lines as A2.n.
//
// Where this differs from the paper: blocks are visited from the last to the first, so that masked ones come first. All
// warpgroups visit all blocks of a tile. Other than with a producer, a use of the K/V ring holds K and V of the same
// block. No tile is split, so each piece is a tile.
#include <type_traits>

#include "../forward/consumer.cuh"
#include "../tile/block.cuh"
#include "../tile/loads/source.cuh"
#include "../tile/scores/softmax.cuh"

namespace fa3 {
using namespace ptx;

// A consumer warpgroup: 64 rows of each tile. `warp` of its four.
FA3_DEVICE void consumer(const Params& p, Smem& smem, int warpgroup, int warp) {
  const Progress at(smem, warpgroup, warp);
  const KvRing& ring = at.ring;
  const bool loader = threadIdx.x == 0;
  const Score score(p);
  float S[Bc / 2], O[dv / 2], alpha[2];
  uint32_t P[Bc / 4];
  uint32_t i = 0;                              // use of the K/V ring that holds K(j)

  int t = 0;  // number of the tile among those of the thread block
  for (int piece = blockIdx.x; piece < p.pieces.count(); piece += gridDim.x, t++) {
    const Piece found = piece_at(p, piece);
    const Tile& tile = found.tile;
    const Work& work = found.work;
    const int tile_row = first_row(p, tile), row = tile_row + 64 * warpgroup;
    // The same for all warpgroups of the tile, so that all stand at the same barrier.
    auto boundary = [&](int j) { return needs_mask(visible(p), j, tile_row); };
    const int blocks = work.end - work.begin;
    const uint32_t first = i, end = first + blocks;  // uses of the K/V ring
    auto load = [&](uint32_t i, bool is_k) {  // K or V of the block that use i is for, if the tile has one
      if (!loader || i >= end) return;
      Stage& stage = smem.stage[KvRing::index(i)];
      uint64_t& full = is_k ? smem.full_k[KvRing::index(i)] : smem.full_v[KvRing::index(i)];
      const KeyBlock block = key_block(p, tile, blocks - 1 - int(i - first));
      mbarrier_arrive_expect_tx(shared_address(&full), is_k ? config.k_block_bytes() : config.v_block_bytes());
      if (is_k) load_k(stage.k, full, p, block);
      else load_v(stage.v, full, p, block);
    };
    if (loader) {
      for (int w = 0; w < warpgroups; w++) {
        mbarrier_arrive_expect_tx(shared_address(&smem.full_q[w]), config.q_buffer_bytes());
        load_q(smem.q[w], smem.full_q[w], p, tile_row + 64 * w, tile.head, tile.batch);
      }
    }
    load(i, true), load(i + 1, true), load(i, false), load(i + 1, false);
    __syncwarp();

    RowState state = nothing_seen();           // A2.2
    clear(O);
    wgmma_owned(O);
    int j = blocks - 1;                        // K/V block
    wait(smem.full_q[warpgroup], t & 1);       // A2.3
    ring.wait_k(i);
    wgmma_fence();
    issue_qk(S, at.q(), at.k(i));              // A2.4
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_owned(S);
    bar_sync(barrier_all, config.threads());   // A2.5: all have read K(i)
    load(i + 2, true);
    __syncwarp();
    if (boundary(j)) mask(S, visible(p), j, row + 16 * warp);
    softmax_online(S, state, alpha, score);    // A2.6
    convert(S, P);
    wgmma_owned(P);
    j--;
    auto step = [&](auto masked) {
      i++;
      ring.wait_k(i);                          // A2.8
      ring.wait_v(i - 1);                      // A2.10, before the fence, so that one is enough
      wgmma_fence();
      issue_qk(S, at.q(), at.k(i));            // A2.9
      wgmma_commit_group();
      issue_pv(O, P, at.v(i - 1), true);       // A2.11
      wgmma_commit_group();
      wgmma_wait_group<1>();                   // A2.12
      wgmma_owned(S);
      if constexpr (masked) mask(S, visible(p), j, row + 16 * warp);
      softmax_online(S, state, alpha, score);  // A2.13
      wgmma_wait_group<0>();                   // A2.14
      wgmma_owned(O);
      wgmma_owned(S);
      bar_sync(barrier_all, config.threads());  // A2.15: all have read K(i) and V(i - 1)
      load(i + 2, true);
      load(i + 1, false);
      __syncwarp();
      scale_rows(O, alpha);
      wgmma_owned(O);
      convert(S, P);                           // A2.16
      wgmma_owned(P);
    };
    for (; j >= 0 && boundary(j); j--) step(std::true_type());
    for (; j >= 0; j--) step(std::false_type());  // A2.7
    ring.wait_v(i);                            // A2.18
    wgmma_fence();
    issue_pv(O, P, at.v(i), true);             // A2.19
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_owned(O);
    i++;

    const RowBlock block{.row = row, .blocks = blocks, .head = tile.head, .batch = tile.batch};
    write_tile(O, state, smem, at.q_buffer(), p, block, warpgroup, warp);  // A2.20
    if (threadIdx.x % 32 == 0) cp_async_bulk_wait_group_read<0>();
    bar_sync(barrier_all, config.threads());      // all stages and Q buffers are free
  }
  if (threadIdx.x % 32 == 0) cp_async_bulk_wait_group<0>();
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  const int warp = warp_of_block();
  consumer(p, set_up(p, warp), warp / 4, warp % 4);
}
