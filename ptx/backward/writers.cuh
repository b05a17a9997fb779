// The threads of bwd.cu that take its results to memory: dQ to the sums, or complete, and dV and dK.
#pragma once
#include "../isa/fence.cuh"
#include "../isa/grid.cuh"
#include "../isa/tma.cuh"
#include "earlier_dq.cuh"
#include "smem.cuh"
#include "tile/store.cuh"
#include "tile/unrounded_keys.cuh"
#include "tile/work.cuh"

namespace fa3 {

// A square of dQ is on its way: gives back the buffer of the one before it as soon as that has been read, and behind
// the last one its own.
FA3_DEVICE void release_dq(BackwardSmem& smem, int square) {
  using namespace ptx;
  cp_async_bulk_commit_group();
  if (square > 0) {
    cp_async_bulk_wait_group_read<1>();
    arrive(smem.empty_dq[square - 1]);
  }
  if (square < dq_squares - 1) return;
  cp_async_bulk_wait_group_read<0>();
  arrive(smem.empty_dq[square]);
}

// Stores dQ of a query tile, the count-th of this thread block, if it is complete. By one thread.
FA3_DEVICE void store_dq(const Params& p, BackwardSmem& smem, const KeyWork& work, const QueryTile& tile,
                         uint32_t count) {
  using namespace ptx;
#pragma unroll
  for (int square = 0; square < dq_squares; square++) {
    const int slab = square / dq_column_squares, columns = square % dq_column_squares * dq_columns;
    wait(smem.full_dq[count % 2][square], count / 2 & 1);
    const Place to =
        place_in(p, BackwardMap::dq, sequence_of(p, work), tile.tile * Br + 64 * slab, tile.head(work));
    store_rows(shared_address(dq_buffer(smem, square)), p.dq, columns, to);
    release_dq(smem, square);
  }
}

// Have so many added before the one of this rank? Lengths that overlap, which nobody should give, let more come.
FA3_DEVICE bool is_turn(uint32_t added, int rank) {
  return planned ? added >= uint32_t(rank) : added == uint32_t(rank);
}

// Do key blocks add to dQ in a fixed order?
FA3_DEVICE bool is_fixed(const Params& p) {
  return lists_blocks<Params> ? p.order.is_fixed() : p.order.dq != DqOrder::any;
}

// The thread that adds dQ of each query tile to the sums in global memory. Nobody clears them: the first key block that
// comes to a tile stores, and the others add, after that. They come in any order, and the first one waits for nobody.
// In a fixed order a tile takes longer than its products, so two threads, the adders 0 and 1, take turns.
FA3_DEVICE void dq_writer(const Params& p, BackwardSmem& smem, uint32_t adder) {
  using namespace ptx;
  griddepcontrol_wait();  // the pass before sets all visits to 0
  uint32_t count = 0;     // of tiles
  for (int n = 0;; n++) {
    const int number = smem.claims.read(n);
    smem.claims.release(n);
    if (!is_block(p, number)) return;
    const KeyWork work(p, number);
    QueryTile tile(work);
    for (int j = 0; j < work.all; j++, tile.next(p, work), count++) {                                     // A3.31
      if (p.order.adders == 2 && count % 2 != adder) continue;
      if constexpr (has(Trait::one_key_block)) {
        store_dq(p, smem, work, tile, count);
        continue;
      }
      const uint32_t parity = count / 2 & 1;
      int sums = tile.number(work);
      wait(smem.full_dq[count % 2][0], parity);                                                           // A3.32
      bool first;
      if (is_fixed(p)) {
        const auto turn = work.turn(p, visible(p, work), tile.tile);
        if (turn.second) sums += p.order.spread.second;
        while (!is_turn(ld_acquire_gpu_u32(&p.visits[sums]), turn.rank)) {
        }
        first = turn.rank == 0;
      } else {
        uint32_t before = atom_add_acquire_gpu_u32(&p.visits[sums], 1);
        first = before == 0;
        while (!first && !(before & dq_is_stored)) before = ld_acquire_gpu_u32(&p.visits[sums]);
      }
      delay(tile.number(work));
      if (!first) fence_proxy_async_global();
#pragma unroll
      for (int square = 0; square < dq_squares; square++) {
        constexpr int bytes = sizeof smem.dq[0];
        float* const to = p.rows.dq_sums + int64_t(sums) * (Br * d) + square * (bytes / sizeof(float));
        if (square > 0) wait(smem.full_dq[count % 2][square], parity);
        if (first) cp_async_bulk_store(to, shared_address(&smem.dq[square]), bytes);
        else cp_reduce_async_bulk_add_f32(to, shared_address(&smem.dq[square]), bytes);                   // A3.33
        release_dq(smem, square);
      }
      if (first || is_fixed(p)) {
        cp_async_bulk_wait_group<0>();
        red_add_release_gpu_u32(&p.visits[sums], is_fixed(p) ? 1 : dq_is_stored);
      }
    }
    cp_async_bulk_wait_group<0>();
    count_additions(p, work);
  }
}

// The thread that stores dV and dK. It also waits for the sums of dQ that the consumers round.
FA3_DEVICE void gradient_writer(const Params& p, BackwardSmem& smem) {
  using namespace ptx;
  griddepcontrol_wait();  // the pass before sets all counts to 0
  int stage = 0;          // of the ring of Q and dO
  for (int n = 0;; n++) {
    const int number = smem.claims.read(n);
    smem.claims.release(n);
    if (!is_block(p, number)) break;
    EarlierDq(p, number).wait_for_sums(p);
    arrive(smem.sums_ready);
    const KeyWork work(p, number);
    stage = (stage + work.all) % query_stages;
    wait(smem.staged, n & 1);
    const auto to = [&](BackwardMap map, int i) {
      return place_in(p, map, sequence_of(p, work), work.key + 64 * i, work.head_kv);
    };
    const bool rounded = rounds_keys(p);  // otherwise consumers have stored them
#pragma unroll
    for (int i = 0; i < warpgroups; i++)
      if (rounded) send_gradient<dv_buffer_rows>(dv_buffer(smem, stage, i), p.dv, to(BackwardMap::dv, i));
    cp_async_bulk_commit_group();
#pragma unroll
    for (int i = 0; i < warpgroups; i++)
      if (rounded) send_gradient<64>(dk_buffer(smem, stage, i), p.dk, to(BackwardMap::dk, i));
    cp_async_bulk_commit_group();
    if (!dv_in_stage) {
      cp_async_bulk_wait_group_read<1>();
      arrive(smem.empty_v);
    }
    cp_async_bulk_wait_group_read<0>();
    arrive(smem.stored);
    stage = (stage + 1) % query_stages;
  }
  cp_async_bulk_wait_group<0>();
}

}  // namespace fa3
