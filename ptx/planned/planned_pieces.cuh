// What claims the pieces of a list (planned_producer.cuh), and hands them over.
#pragma once
#include "../isa/cluster.cuh"
#include "../isa/grid.cuh"
#include "planned_queries.cuh"

namespace fa3 {

// Claims the thread block's pieces, and hands them over in their order. A warp, all lanes in step.
template <class P>
class PieceProducer {
 public:
  FA3_DEVICE PieceProducer(const P& p, Smem& smem) : p_(p), smem_(smem) {}

  FA3_DEVICE void run() const {
    PieceRing& pieces = smem_.pieces;
    const uint4 first = load_entry(taker());  // beside the counts, which may say that there is none
    Claims claims(p_, counts());
    const bool fit_grid = config.packs_heads() && claims.count() <= takers();
    if (lane_ == 0) pieces.fit_grid[0] = fit_grid;
    if (config.packs_heads() && lane_ == 0) pieces.count[0] = claims.count();
    int number = claims.asked();
    publish(0, number, first);
    // That tickets are cleared takes a microsecond or two. The last V of all need not wait for it if consumers do.
    if (fit_grid && number != Claims::none) publish(1, number = Claims::none, {});
    if (lane_ == 0) {
      claims.get_ready();
      if constexpr (config.packs_heads()) arrive(smem_.tickets_ready[0]);
    }
    for (uint32_t t = 1; number != Claims::none; t++) {
      wait(pieces.wanted[0], t - 1 & 1);
      if constexpr (multicasts) {
        number = claim_for_cluster(claims, t);
      } else {
        if (lane_ == 0) claims.ask();
        number = __shfl_sync(0xffffffffu, claims.asked(), 0);
      }
      publish(t, number, load_entry(number));
    }
    if (lane_ == 0) claims.finish();
  }

  // The same, and Q of each piece before the next one is claimed. That closes no circle: Q waits for buffers of pieces
  // before, which end without that claim, as their K, V and Q, and the piece behind them, are handed over. And the
  // next piece is wanted while K and V of this one are loaded, which go on, as its Q is there.
  FA3_DEVICE void run_with_q() const {
    PieceRing& pieces = smem_.pieces;
    uint4 entry = load_entry(taker());
    int number = Claims(p_, counts()).first();
    for (uint32_t t = 0;; t++) {
      publish(t, number, entry);
      if (lane_ == 0) produce_q_of(t);
      __syncwarp();
      if (lane_ == 0 && t == 0) {
        Claims claims(p_, counts());
        claims.get_ready();
        pieces.counts[0] = counts();
        pieces.needs_workspace[0] = claims.needs_workspace();
      }
      if (pieces.number[PieceRing::index(t)] == Claims::none) break;
      wait(pieces.wanted[0], t & 1);
      number = Claims::none;
      if (lane_ == 0) {
        Claims claims = claims_again();
        claims.ask();
        number = claims.asked();
      }
      number = __shfl_sync(0xffffffffu, number, 0);
      entry = load_entry(number);
    }
    if (lane_ == 0) claims_again().finish();
  }

 private:
  // Piece t of the cluster: its first thread block takes it, and tells the other one.
  FA3_DEVICE int claim_for_cluster(Claims& claims, uint32_t t) const {
    ClusterPiece& told = smem_.cluster_piece[0];
    int number = Claims::none;
    if (lane_ == 0) {
      if (rank_in_cluster() == 0) {
        claims.ask();
        number = claims.asked();
        if (t > 1) wait(told.taken, t & 1);
        ptx::st_async_u32(ptx::shared_address(&told.number), number, ptx::shared_address(&told.full), 1);
      } else {
        expect(told.full, sizeof told.number);
        wait(told.full, t - 1 & 1);
        number = *static_cast<volatile int*>(&told.number);
        ptx::mbarrier_arrive_cluster_if(ptx::shared_address(&told.taken), 0, true);
      }
    }
    return __shfl_sync(0xffffffffu, number, 0);
  }

  // With packed heads and no warp for Q alone (run_with_q), Q is sent for as soon as a piece is handed over.
  static constexpr bool sends_q = config.packs_heads() && config.lands_v();

  FA3_DEVICE PlannedCounts counts() const { return {__ldcg(&p_.counts->entries), __ldcg(&p_.counts->slots)}; }

  // Four lanes load an entry. It may have been written just now: not through the L1 cache.
  FA3_DEVICE uint4 load_entry(int number) const {
    const PlannedPiece* const entry = p_.entries + number / p_.tiles.heads;
    return lane_ < 4 && number >= 0 ? __ldcg(reinterpret_cast<const uint4*>(entry) + lane_) : uint4{};
  }

  FA3_DEVICE void publish(uint32_t t, int number, uint4 quarter) const {
    PieceRing& pieces = smem_.pieces;
    const uint32_t slot = PieceRing::index(t);
    wait(pieces.empty[slot], PieceRing::parity(t) ^ 1);
    if (lane_ < 4) reinterpret_cast<uint4*>(&pieces.entries[slot])[lane_] = quarter;
    if (lane_ == 0) {
      pieces.number[slot] = number;
      pieces.head[slot] = number - number / p_.tiles.heads * p_.tiles.heads;
    }
    __syncwarp();
    if (lane_ == 0) arrive(pieces.full[slot]);
    if constexpr (sends_q) {
      if (lane_ == 0) produce_q_of(t);
      __syncwarp();
    }
  }

  FA3_DEVICE void produce_q_of(uint32_t t) const {
    const RowBlock& before = smem_.row_block[RowBlockRing::index(t * warpgroups - 1)];
    bool open_before = t == 0 || before.sequence[0].left == no_bound;
    produce_q(p_, smem_, t, open_before);
  }

  FA3_DEVICE Claims claims_again() const {
    using enum Claims::NeedsWorkspace;
    return Claims(p_, smem_.pieces.counts[0], smem_.pieces.needs_workspace[0] ? yes : no);
  }

  const P& p_;
  Smem& smem_;
  const int lane_ = threadIdx.x % 32;
};

}  // namespace fa3
