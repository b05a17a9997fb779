// The producer warpgroup of Algorithm 1: one thread of its first warp loads K and V, one of its second Q. What
// consumers rely on: a use of the K/V ring holds K of one block and V of the block before, without a gap from piece to
// piece (ring.cuh); with each Q comes a RowBlock, which tells which rows it holds and which of the piece's K/V blocks
// they see. The other two warps write rows that see no key; then they mend V that lands beside its stage (landing.cuh);
// or one of them clears tickets. Where sequences have lengths of their own, planned_producer.cuh does the same.
#pragma once
#include "../isa/grid.cuh"
#include "../isa/setmaxnreg.cuh"
#include "../tile/epilogue/empty_rows.cuh"
#include "../tile/loads/landing.cuh"
#include "../tile/loads/source.cuh"
#include "../tile/loads/transpose.cuh"
#include "../tile/ring.cuh"

namespace fa3 {

// Warp 0 of the producer warpgroup, one thread: K and V, and the order of pieces.             // A1.6 - A1.10
FA3_DEVICE void kv_producer(const Params& p, Smem& smem) {
  using namespace ptx;
  constexpr bool early = has(Trait::early_claim);
  Claims claims(p);
  uint32_t i = 0;          // use of the K/V ring
  KeyBlock before{};       // the block before: its V is loaded with the next K
  bool has_before = false;
  auto load_v_before = [&](Element* to, uint64_t& full) { load_v(to, full, p, before); };
  constexpr bool lands = config.lands_v();

  uint32_t landed = 0;  // V blocks for menders, so far
  auto land_v = [&](bool end) {
    if constexpr (lands) {
      const uint32_t buffer = landed % Landing::buffers;
      uint64_t& full = smem.landing.full[buffer];
      wait(smem.landing.empty[buffer], landed / Landing::buffers & 1 ^ 1);
      if (end) {
        smem.landing.end[buffer] = true;
        mbarrier_arrive(shared_address(&full));
      } else {
        mbarrier_arrive_expect_tx(shared_address(&full), config.v_block_bytes());
        load_v(smem.landing.v[buffer], full, p, before);
      }
      landed++;
    }
  };

  const bool claims_nothing = pieces_fit_grid(p, smem);
  bool q_has_first = has(Trait::early_first_q);  // the Q producer has taken the first piece by itself
  uint32_t handed_over = 0;                      // pieces handed over to the Q producer
  auto take = [&] {  // the next piece
    const int piece = !claims_nothing ? claims.take() : q_has_first ? claims.first() : Claims::none;
    if (!q_has_first) {
      wait(smem.empty_piece, handed_over & 1 ^ 1);
      smem.piece = piece;
      mbarrier_arrive(shared_address(&smem.full_piece));
      handed_over++;
    }
    q_has_first = false;
    return piece;
  };

  for (int piece = Claims::none, next = Claims::none;; piece = next) {
    if (!early || handed_over == 0) piece = take();
    if (piece == Claims::none) break;

    const Piece found = piece_at(p, piece);
    const Work& work = found.work;
    const InFlight in_flight(p, piece, claims.count());
    // The blocks at which the next piece is asked for and taken: late, so that it goes to a thread block that is ready
    // for it, but early enough for its Q to come in time.
    const int blocks = work.end - work.begin, ahead = early ? min(max(blocks / 4, 2), 4) : 0;
    const int take_at = work.begin + min(blocks / 8, 2);
    const int ask_at = min(work.end - 1, work.begin + ahead);
    for (int j = work.end - 1; j >= work.begin; j--, i++) {
      if (j == ask_at && !claims_nothing) claims.ask();
      const uint32_t s = KvRing::index(i), parity = KvRing::parity(i) ^ 1;
      Stage& stage = smem.stage[s];
      const KeyBlock block = key_block(p, found.tile, j);
      in_flight.wait_before(smem, i);
      wait(smem.empty_k[s], parity);                                                          // A1.7
      mbarrier_arrive_expect_tx(shared_address(&smem.full_k[s]),
                                !lands && !split_stage && has_before ? config.stage_bytes() : config.k_block_bytes());
      load_k(stage.k, smem.full_k[s], p, block);                                                // A1.8
      if constexpr (config.block_scales()) load_block_scales(smem.block_scales[s], smem.full_k[s], p, block);
      if constexpr (takes_v_tiles)
        if (!has_before) griddepcontrol_wait();  // the pass that makes them may be under way
      if constexpr (lands) {
        if (has_before) land_v(false);
      } else if constexpr (split_stage) {
        wait(smem.empty_v[s], parity);
        if (has_before) {
          mbarrier_arrive_expect_tx(shared_address(&smem.full_v[s]), config.v_block_bytes());
          load_v_before(stage.v, smem.full_v[s]);
        } else {
          mbarrier_arrive(shared_address(&smem.full_v[s]));
        }
      } else if (has_before) {
        load_v_before(stage.v, smem.full_k[s]);
      }
      before = block, has_before = true;
      if (early && j == take_at) next = take();
    }
  }
  if (!has_before) return land_v(true);  // there was no work

  // The last V of all, alone in its stage.
  const uint32_t s = KvRing::index(i);
  uint64_t& empty = split_stage ? smem.empty_v[s] : smem.empty_k[s];
  uint64_t& full = split_stage ? smem.full_v[s] : smem.full_k[s];
  wait(empty, KvRing::parity(i) ^ 1);
  if constexpr (config.block_scales()) mbarrier_arrive(shared_address(&full));  // in place of a block's scales
  if constexpr (lands) {
    if (!split_stage) mbarrier_arrive(shared_address(&full));
    land_v(false);
    land_v(true);
  } else {
    mbarrier_arrive_expect_tx(shared_address(&full), config.v_block_bytes());
    load_v_before(smem.stage[s].v, full);
  }
  wait(full, KvRing::parity(i));  // it must be there before the thread block gives up its shared memory
}

// Warp 1 of the producer warpgroup, one thread: Q, as soon as a buffer is free.                 // A1.4, A1.5
FA3_DEVICE void q_producer(const Params& p, Smem& smem) {
  using namespace ptx;
  constexpr bool takes_first = has(Trait::early_first_q);
  uint32_t handed_over = 0;     // pieces handed over to it, if it takes the first one by itself
  for (uint32_t t = 0;; t++) {  // number of the piece among those of the thread block
    int piece;
    if (takes_first && t == 0) {
      piece = Claims(p).first();
    } else {
      wait(smem.full_piece, (takes_first ? handed_over++ : t) & 1);
      piece = smem.piece;
      mbarrier_arrive(shared_address(&smem.empty_piece));
    }
    const bool end = piece == Claims::none;
    Piece found = piece_at(p, end ? 0 : piece);
#pragma unroll 1  // for want of registers
    for (int w = 0; w < warpgroups; w++) {
      const Tile& tile = found.tile;
      const Work& work = found.work;
      const int blocks = work.end - work.begin;
      const uint32_t q_use = t * warpgroups + w, buffer = QRing::index(q_use);
      uint64_t& full = smem.full_q[QRing::full_index(q_use)];
      wait(smem.empty_q[buffer], QRing::parity(q_use) ^ 1);
      // Under a causal mask later rows see more keys. So that no warpgroup always has those, the order is reversed from
      // piece to piece.
      const int nth = bounded_right && t & 1 ? warpgroups - 1 - w : w;  // which 64 rows of the tile
      const int row = first_row(p, tile) + 64 * nth;
      RowBlock& block = smem.row_block[RowBlockRing::index(q_use)];
      const Blocks row_blocks = key_blocks(visible(p), row);
      const int computed = min(max(row_blocks.end - work.begin, 0), blocks);
      // Before its RowBlock is written: the barrier's phase does not end without the arrival below.
      if (takes_first && !end && computed > 0) load_q(smem.q[buffer], full, p, row, tile.head, tile.batch);
      block.row = row;
      block.blocks = end ? RowBlock::end_of_work : computed;
      block.skipped = blocks - computed;
      block.begin = work.begin;
      block.head = tile.head;
      block.batch = tile.batch;
      block.part = work.part;
      block.parts = work.parts;
      block.partial = config.packs_heads()
                          ? work.slot * packed_slot_rows(p) + (max(row, 0) - max(first_row(p, tile), 0)) * work.parts
                          : work.slot * warpgroups + nth;
      block.ticket = work.split_tile * warpgroups + nth;
      const bool q_is_read = !end && computed > 0;
      uint32_t bytes = q_is_read ? config.q_buffer_bytes() : 0;
      if constexpr (config.has_scales())
        if (!end) {
          load_scales(block, p, block.batch);
          bytes += v_mean_bytes(p);
        }
      mbarrier_arrive_expect_tx(shared_address(&full), bytes);
      if (!takes_first && q_is_read) load_q(smem.q[buffer], full, p, row, tile.head, tile.batch);
      if constexpr (config.has_scales())
        if (!end && v_mean_bytes(p))
          load_v_mean(smem.v_mean[VMeanRing::index(q_use)], full, p, block.batch, block.head);
    }
    if (end) break;
  }
}

// Warp 2 of the producer warpgroup, one thread, where all pieces are under way at once: sees to it that tickets are
// cleared. That takes a microsecond or two; if the first warp did it, its next loads of K and V would wait.
FA3_DEVICE void prepare_tickets(const Params& p, Smem& smem) {
  Claims claims(p);
  claims.prepare_tickets();
  ptx::mbarrier_arrive(ptx::shared_address(&smem.tickets_ready[0]));
  claims.take();
}

// The producer warpgroup. `warp` of its four.                                                  // A1.2, A1.3
FA3_DEVICE void producer(const Params& p, Smem& smem, int warp) {
  if constexpr (config.moves_registers()) ptx::setmaxnreg_dec<config.producer_registers()>();
  if (warp >= 2) {
    if constexpr (bounded_right && !config.packs_heads())
      write_empty_rows<dv / 8, Br, is_8bit>(p.output, p.tiles.heads, p.tiles.batch_heads, p.tiles.first_row,
                                            2 * blockIdx.x + warp - 2, 2 * gridDim.x);
    if constexpr (config.lands_v()) mend_landings(smem, Transposer(warp - 2));
    if constexpr (config.packs_heads())
      if (warp == 2 && threadIdx.x % 32 == 0 && pieces_fit_grid(p, smem)) prepare_tickets(p, smem);
    return;
  }
  if (threadIdx.x % 32 != 0) return;
  if (warp == 0) kv_producer(p, smem);
  if (warp == 1) q_producer(p, smem);
}

}  // namespace fa3
