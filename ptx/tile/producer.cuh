// The producer warpgroup of Algorithm 1: one warp loads K and V, another Q, each by one thread. What consumers expect of
// them: ring use i holds K of one block and V of the block before it, over all tiles of the thread block (tile/ring.cuh); a
// Q slot comes with the RowBlock that tells which rows it holds and how much of the tile they see.
#pragma once
#include "../isa/setmaxnreg.cuh"
#include "../isa/tma.cuh"
#include "blind.cuh"
#include "ring.cuh"
#include "schedule.cuh"

namespace fa3 {

// Loads one block of `rows` rows, slab by slab.
FA3_DEVICE void load_rows(const uint16_t* to, int rows, const TensorMap& map, uint64_t& full, int row, int head, int batch) {
  using namespace ptx;
#pragma unroll
  for (int slab = 0; slab < slabs; slab++)
    cp_async_bulk_tensor_4d_load(shared_address(to) + slab * rows * slab_row_bytes, &map, shared_address(&full),
                                 slab * slab_columns, row, head, batch);
}

// Warp 0 of the producer warpgroup, one thread: K and V, and the order of tiles.              // A1.6 - A1.10
FA3_DEVICE void kv_producer(const ForwardParams& p, Smem& smem) {
  using namespace ptx;
  Claims claims(p);
  uint32_t i = 0;                                      // use of the ring
  int v_row = -1, v_head = 0, v_batch = 0;             // V still to be loaded: that of the block before
  auto load_v = [&](Stage& stage, uint64_t& full) { load_rows(stage.v, Bc, p.v, full, v_row, v_head, v_batch); };

  uint32_t mails = 0;
  auto take = [&] {  // and tells the Q producer
    const int place = claims.take();
    wait(smem.empty_mail, mails & 1 ^ 1);
    smem.mail = place;
    mbarrier_arrive(shared_address(&smem.full_mail));
    mails++;
    return place;
  };

  for (int place = Claims::none, next = Claims::none;; place = next) {
    if (!row.takes_early() || mails == 0) place = take();
    if (place == Claims::none) break;

    const auto [tile, part] = item_at(p, place);
    const int kv_head = tile.head / p.heads_per_kv;
    // Late, so that a tile goes to the block that is ready for it; but early enough for its Q to come in time.
    const int blocks = part.end - part.begin, ahead = row.takes_early() ? min(max(blocks / 4, 2), 4) : 0;
    const int ask_at = min(part.end - 1, part.begin + ahead), take_at = part.begin + min(blocks / 8, 2);
    for (int j = part.end - 1; j >= part.begin; j--, i++) {
      if (j == ask_at) claims.ask(place);
      const uint32_t s = KvRing::index(i), parity = KvRing::parity(i) ^ 1;
      Stage& stage = smem.stage[s];
      const bool has_v = v_row >= 0;
      wait(smem.empty_k[s], parity);                                                          // A1.7
      mbarrier_arrive_expect_tx(shared_address(&smem.full_k[s]),
                                !split_stage && has_v ? row.stage_bytes() : row.kv_tile_bytes());
      load_rows(stage.k, Bc, p.k, smem.full_k[s], j * Bc, kv_head, tile.batch);               // A1.8
      if constexpr (split_stage) {
        wait(smem.empty_v[s], parity);
        if (has_v) {
          mbarrier_arrive_expect_tx(shared_address(&smem.full_v[s]), row.kv_tile_bytes());
          load_v(stage, smem.full_v[s]);
        } else {
          mbarrier_arrive(shared_address(&smem.full_v[s]));
        }
      } else if (has_v) {
        load_v(stage, smem.full_k[s]);
      }
      v_row = j * Bc, v_head = kv_head, v_batch = tile.batch;
      if (row.takes_early() && j == take_at) next = take();
    }
  }
  if (v_row < 0) return;  // there was no work

  // The last V of all, alone in its stage.
  const uint32_t s = KvRing::index(i);
  uint64_t& empty = split_stage ? smem.empty_v[s] : smem.empty_k[s];
  uint64_t& full = split_stage ? smem.full_v[s] : smem.full_k[s];
  wait(empty, KvRing::parity(i) ^ 1);
  mbarrier_arrive_expect_tx(shared_address(&full), row.kv_tile_bytes());
  load_v(smem.stage[s], full);
  // It must be there before the block's shared memory is given up. In fwd all consumers look at it, in others perhaps none.
  if constexpr (!row.is_fwd()) wait(full, KvRing::parity(i));
}

// Warp 1 of the producer warpgroup, one thread: Q, as soon as a slot is free.                  // A1.4, A1.5
FA3_DEVICE void q_producer(const ForwardParams& p, Smem& smem) {
  using namespace ptx;
  for (uint32_t t = 0;; t++) {
    wait(smem.full_mail, t & 1);
    const int place = smem.mail;
    mbarrier_arrive(shared_address(&smem.empty_mail));
    const bool end = place == Claims::none;
    const auto [tile, part] = item_at(p, end ? 0 : place);
    const int blocks = part.end - part.begin;
#pragma unroll 1  // for want of registers
    for (int w = 0; w < warpgroups; w++) {
      const uint32_t use = t * warpgroups + w, slot = QRing::index(use);
      uint64_t& full = smem.full_q[QRing::full_index(use)];
      wait(smem.empty_q[slot], QRing::parity(use) ^ 1);
      // Under a causal mask the warpgroups take turns with the longer rows.
      const int chunk = causal && t & 1 ? warpgroups - 1 - w : w;
      const int row = first_row(p, tile.q_block) + 64 * chunk;
      const int mine = min(max(key_blocks(p, row) - part.begin, 0), blocks);
      smem.row_block[slot] = {row, end ? RowBlock::end_of_work : mine, blocks - mine, part.begin, tile.head, tile.batch,
                              part.number, part.count, part.slot * warpgroups + chunk,
                              part.split_tile * warpgroups + chunk};
      if (end || mine == 0) {  // nobody looks at Q
        mbarrier_arrive(shared_address(&full));
      } else {
        mbarrier_arrive_expect_tx(shared_address(&full), fa3::row.q_slot_bytes());
        load_rows(smem.q[slot], 64, p.q, full, row, tile.head, tile.batch);
      }
    }
    if (end) break;
  }
}

// The producer warpgroup. `warp` of its four.                                                  // A1.2, A1.3
FA3_DEVICE void producer(const ForwardParams& p, Smem& smem, int warp) {
  if constexpr (!row.has_producer()) return;
  else ptx::setmaxnreg_dec<row.producer_registers()>();
  if (causal && warp >= 2) return write_blind_rows(p, warp - 2);
  if (threadIdx.x % 32 != 0) return;
  if (warp == 0) kv_producer(p, smem);
  if (warp == 1) q_producer(p, smem);
}

}  // namespace fa3
