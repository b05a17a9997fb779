// The forward pass of short sequences: each thread block computes one tile, and a multiprocessor holds several of them.
// A tile of few keys is a chain of waits, for loads, products and stores. In fwd.cu the next tile's loads run ahead of
// it; here other thread blocks stand at other links of the chain, and none has a producer, a list or a claim to wait
// for.
//
// A thread sends for Q and as many blocks of K and V as there are stages, and for a next one when all warps are done
// with one. The softmax is that of the paper's Algorithm 2, whose lines the comments name (A2.n), with true row maxima;
// but within a thread block nothing is overlapped. Blocks are visited from the last to the first, as in fwd.cu.
#include <type_traits>

#include "../tile/block.cuh"
#include "../tile/loads/source.cuh"
#include "consumer.cuh"

namespace fa3 {
using namespace ptx;

static_assert(has(Trait::one_tile) && split_stage && !has(Trait::splits) && consumers == warpgroups);

// The thread that sends for everything: of a warpgroup that has rows. Under a causal mask a tile may begin before the
// problem's rows, without one it may end behind them.
inline constexpr int loader = bounded_right ? 128 * (warpgroups - 1) : 0;

// A tile, and how its K and V come. The n-th block that is visited is use n of the ring.
class Loads {
 public:
  FA3_DEVICE Loads(const Params& p, Smem& smem, const Tile& tile, const Blocks& blocks)
      : p_(p), smem_(smem), tile_(tile), blocks_(blocks) {}

  FA3_DEVICE int uses() const { return blocks_.end - blocks_.begin; }
  FA3_DEVICE int block(int n) const { return blocks_.end - 1 - n; }

  // By the loader, before a barrier of the whole thread block. row: the tile's first; computing: so many warpgroups.
  FA3_DEVICE void begin(int row, int computing) const {
    for (int s = 0; s < config.stages; s++) {
      init(smem_.full_k[s], 1), init(smem_.empty_k[s], 4 * computing);
      init(smem_.full_v[s], 1), init(smem_.empty_v[s], 4 * computing);
    }
    init(smem_.full_q[0], 1);
    fence_mbarrier_init();
    expect(smem_.full_q[0], warpgroups * config.q_buffer_bytes());
    for (int w = 0; w < warpgroups; w++)
      load_q(smem_.q[w], smem_.full_q[0], p_, row + 64 * w, tile_.head, tile_.batch);
    for (int n = 0; n < min(uses(), config.stages); n++) load_k_of(n), load_v_of(n);
  }
  // K or V of use n + stages, in place of that of use n, which all warps give back.
  FA3_DEVICE void replace_k(int n) const {
    if (threadIdx.x != loader || n + config.stages >= uses()) return;
    wait(smem_.empty_k[KvRing::index(n)], KvRing::parity(n));
    load_k_of(n + config.stages);
  }
  FA3_DEVICE void replace_v(int n) const {
    if (threadIdx.x != loader || n + config.stages >= uses()) return;
    wait(smem_.empty_v[KvRing::index(n)], KvRing::parity(n));
    load_v_of(n + config.stages);
  }

 private:
  FA3_DEVICE void load_k_of(int n) const {
    uint64_t& full = smem_.full_k[KvRing::index(n)];
    expect(full, config.k_block_bytes());
    load_k(smem_.stage[KvRing::index(n)].k, full, p_, key_block(p_, tile_, block(n)));
  }
  FA3_DEVICE void load_v_of(int n) const {
    uint64_t& full = smem_.full_v[KvRing::index(n)];
    expect(full, config.v_block_bytes());
    load_v(smem_.stage[KvRing::index(n)].v, full, p_, key_block(p_, tile_, block(n)));
  }

  const Params& p_;
  Smem& smem_;
  const Tile& tile_;
  const Blocks& blocks_;
};

// A warpgroup: the 64 rows of the tile from `row` on. `warp` of its four.
FA3_DEVICE void compute(const Params& p, Smem& smem, const Tile& tile, const Loads& loads, int row, int warpgroup,
                        int warp) {
  const Visible seen = visible(p);
  const Score score(p);
  const KvRing ring{smem};
  const Descriptors descriptors(smem);
  RowState state;
  float S[Bc / 2], O[dv / 2];
  uint32_t P[p_registers];
  const auto visit = [&](int n, auto first) {
    const int j = loads.block(n);                             // K/V block
    ring.wait_k(n);                                           // A2.8
    wgmma_fence();
    issue_qk(S, descriptors.q(warpgroup), descriptors.k(KvRing::index(n)));  // A2.4, A2.9
    wgmma_commit_group();
    wgmma_wait_group<0>();                                    // A2.12
    wgmma_owned(S);
    ring.release_k(n, false);                                 // A2.5
    int groups = all_groups;
    if (needs_mask(seen, j, row)) {
      if constexpr (first) groups = mask_diagonal(S, seen, j, row + 16 * warp);
      else mask(S, seen, j, row + 16 * warp);
    }
    if constexpr (first) {
      softmax_first(S, state, score, groups);                 // A2.6
    } else {
      float alpha[2];
      softmax_online(S, state, alpha, score);                 // A2.13
      scale_rows(O, alpha);
      wgmma_owned(O);
      loads.replace_v(n - 1);
    }
    loads.replace_k(n);
    __syncwarp();
    convert(S, P);                                            // A2.16
    wgmma_owned(P);
    ring.wait_v(n);                                           // A2.10, A2.18
    wgmma_fence();
    issue_pv(O, P, descriptors.v(KvRing::index(n)), !first);  // A2.11, A2.19
    wgmma_commit_group();
    wgmma_wait_group<0>();                                    // A2.14
    wgmma_owned(O);
    ring.release_v(n, true);                                  // A2.15
  };
  // Under a causal mask the first warpgroup may see nothing of the block that is visited first.
  constexpr bool may_skip = bounded_right && warpgroups > 1;
  const int first = may_skip ? loads.block(0) + 1 - max(key_blocks(seen, row).end, 1) : 0;
  if (may_skip && first > 0) ring.release_k(0, false), ring.release_v(0, true);
  wait(smem.full_q[0], 0);                                    // A2.3
  visit(first, std::true_type());
  for (int n = first + 1; n < loads.uses(); n++) visit(n, std::false_type());  // A2.7
  const RowBlock block{.row = row, .head = tile.head, .batch = tile.batch};
  write_tile(O, state, smem, warpgroup, p, block, warpgroup, warp);  // A2.20
  if (threadIdx.x % 32 == 0) cp_async_bulk_wait_group_read<0>();
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  Smem& smem = *reinterpret_cast<Smem*>(shared_memory());
  const int warp = warp_of_block(), warpgroup = warp / 4;
  const Tile tile = tile_at(p, blockIdx.x);
  const Blocks blocks = tile_blocks(p, tile);
  const Loads loads(p, smem, tile, blocks);
  const int row = first_row(p, tile), rows = visible(p).seqlen_q;
  const auto exists = [&](int w) { return row + 64 * w >= 0 && row + 64 * w < rows; };
  if (threadIdx.x == loader) {
    int computing = 0;
    for (int w = 0; w < warpgroups; w++) computing += exists(w);
    loads.begin(row, computing);
  }
  ptx::bar_sync(barrier_all, config.threads());
  if (exists(warpgroup)) compute(p, smem, tile, loads, row + 64 * warpgroup, warpgroup, warp % 4);
}
