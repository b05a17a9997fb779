// FlashAttention-3, forward pass, 16-bit: Algorithm 1 (warp specialization around a ring of K/V stages) with the consumer of
// Algorithm 2 (intra-warpgroup overlap of softmax and GEMMs). Comments cite their lines as A1.n and A2.n.
//
// A thread block is persistent: two warps of the producer warpgroup load, the consumer warpgroups own 64 query rows of a
// tile each. Where this differs from the paper, and why:
//  - The ring runs on across tiles, and a tile's last PV is followed at once by the first QK of the next tile, which runs
//    under the epilogue. Draining the pipeline at each tile is the largest loss at short lengths.
//  - Stage i of the ring holds K(j) and the V before it, because one iteration uses just these two: one barrier, not two.
//  - Blocks are visited from the last to the first, so that all masked blocks come first and the main loop needs no mask.
//  - The reference m need not be the row maximum, so O is hardly ever rescaled (tile/speculative.cuh); the result is the same.
//  - A2.16, the copy of S_next to S_cur, is the conversion of S to P, done after the wait for PV, which reads the old P.
//  - Where whole tiles would leave SMs idle, tiles are split along the keys (split.h). A part is computed like a tile; the
//    warp that finishes the last part of its rows puts them together and stores the result (tile/combine.cuh).
//  - No pingpong barriers: with three or four consumer warpgroups the hardware finds that order without them.
#include <type_traits>

#include "../tile/block.cuh"
#include "../tile/combine.cuh"
#include "../tile/epilogue.cuh"
#include "../tile/gemm.cuh"
#include "../tile/mask.cuh"
#include "../tile/speculative.cuh"

namespace fa3 {
using namespace ptx;

FA3_DEVICE void consumer(const ForwardParams& p, Smem& smem, int warpgroup, int warp) {
  constexpr bool o_from_registers = row.o_from_registers();
  setmaxnreg_inc<row.consumer_registers()>();  // A1.12, A2.1
  const KvRing ring{smem};
  const float c = p.softmax_scale_log2;
  const bool one_lane = threadIdx.x % 32 == 0;

  float S[Bc / 2], O[d / 2];
  uint32_t P[Bc / 4];
  RowState state;
  Bound bound;

  // Descriptors of slot and stage 0; the others follow at fixed distances.
  const uint64_t q_desc = q_descriptor(smem, 0), k_desc = k_descriptor(smem, 0);
  auto q_at = [&](uint32_t slot) { return q_desc + uint64_t(slot) * descriptor_units(row.q_slot_bytes()); };
  auto k_at = [&](uint32_t i) { return k_desc + uint64_t(KvRing::index(i)) * descriptor_units(row.stage_bytes()); };
  auto v_at = [&](uint32_t i) { return k_at(i) + k_to_v; };

  auto stage = [&](uint32_t i) -> Stage& { return smem.stage[KvRing::index(i)]; };

  uint32_t use = warpgroup, slot = QRing::index(use);  // of the Q ring
  int blocks, skipped, begin, block_row;               // of the RowBlock in the slot
  auto receive_q = [&] {
    wait(smem.full_q[QRing::full_index(use)], QRing::full_parity(use));
    const RowBlock& block = smem.row_block[slot];
    block_row = block.row;
    begin = block.begin;
    blocks = __shfl_sync(0xffffffffu, block.blocks, 0);    // the same in all lanes: shuffled so that the compiler knows,
    skipped = __shfl_sync(0xffffffffu, block.skipped, 0);  // and keeps ring positions in uniform registers
  };

  clear(O);  // A1.13; only so that every register has a value: the first PV overwrites
  wgmma_owned(O);
  receive_q();                                 // A2.3
  uint32_t i = skipped;                        // use of the K/V ring
  if (blocks != RowBlock::end_of_work) ring.pass(0, i, blocks > 0);
  if (blocks > 0) ring.wait_k(i);
  wgmma_fence();
  issue_qk(S, q_at(slot), k_at(i));            // A2.4
  wgmma_commit_group();
  wgmma_wait_group<0>();
  wgmma_owned(S);

  auto release_q = [&](uint32_t slot) { mbarrier_arrive(shared_address(&smem.empty_q[slot])); };
  int leaving = -1;  // slot through which O is on its way out
  auto release_left = [&] {
    if (leaving < 0) return;
    if (one_lane) cp_async_bulk_wait_group_read_0();
    __syncwarp();
    release_q(leaving);
    leaving = -1;
  };

  while (blocks != RowBlock::end_of_work) {
    // S holds the scores of the tile's first block for these rows (any values, if they see no block).
    const int warp_row = block_row + 16 * warp;
    const uint32_t last = blocks > 0 ? i + blocks - 1 : i;  // the use of the block visited last, `begin`
    auto j = [&] { return begin + int(last - i); };  // the block whose K is in use i
    if constexpr (row.skips_masked_groups()) {
      softmax_first(S, state, c, mask_diagonal(S, p, j(), warp_row));
    } else {
      if (causal || blocks == 0 || crosses_boundary(p, j(), block_row)) mask(S, p, j(), warp_row);
      softmax_first(S, state, c);              // A2.6
    }
    first_bound(bound, state);
    if (blocks > 0) ring.release_k(i, true);  // A2.5
    convert(S, P);
    wgmma_owned(P);
    if constexpr (row.releases_q_late()) release_left();

    bool accumulate = false;  // O = P V for the tile's first PV
    auto step = [&](auto masked) {
      i++;
      ring.wait_k(i);                          // A2.8
      wgmma_fence();
      issue_qk(S, q_at(slot), k_at(i));        // A2.9
      wgmma_commit_group();
      if constexpr (split_stage) {
        ring.wait_v(i);                        // A2.10
        wgmma_fence();                         // again behind the branch of the wait (C7519)
      }
      issue_pv(O, P, v_at(i), accumulate);     // A2.11
      wgmma_commit_group();
      accumulate = true;
      wgmma_wait_group<1>();                   // A2.12
      wgmma_owned(S);
      bool rescale = true;
      float alpha[2];  // if rescale
      if constexpr (masked) {                  // A2.13
        mask(S, p, j(), warp_row);
        softmax_online(S, state, alpha, c);
        set_bound(bound, state);
        end_basic_block(state);
      } else {
        rescale = softmax_speculative(S, state, bound, alpha, c, smem.q[slot], stage(i).k, warp);
      }
      ring.release_k(i, false);
      wgmma_wait_group<0>();                   // A2.14
      wgmma_owned(O);
      wgmma_owned(S);
      ring.release_v(i, true);                 // A2.15
      convert(S, P);                           // A2.16
      wgmma_owned(P);
      if (rescale) scale_rows(O, alpha);
      wgmma_owned(O);
    };
    if constexpr (causal) {
      const uint32_t last_masked = last - min(max(plain_blocks(p, block_row) - begin, 0), int(last - i));
      while (i != last_masked) step(std::true_type());
    }
    while (i != last) step(std::false_type());  // A2.7

    // The last V shares its stage with the next tile's first K.
    const RowBlock copy = smem.row_block[slot];  // for those who release the slot at once
    const RowBlock& done = o_from_registers ? copy : smem.row_block[slot];
    if constexpr (o_from_registers) release_q(slot);
    const int parts = __shfl_sync(0xffffffffu, done.parts, 0);  // early, and known to be the same in all lanes
    const uint32_t done_slot = slot, first = blocks > 0 ? i + 1 : i;
    ring.wait_v(first);                        // A2.18
    wgmma_fence();
    issue_pv(O, P, v_at(first), accumulate);   // A2.19
    wgmma_commit_group();
    use += warpgroups;
    slot = QRing::index(use);
    receive_q();
    i = first + skipped;
    if (blocks > 0) ring.wait_k(i);
    wgmma_fence();
    issue_qk(S, q_at(slot), k_at(i));          // A2.4 of the next tile; its result is not used if there is none
    wgmma_commit_group();

    float l[2] = {quad_sum(state.l[0]), quad_sum(state.l[1])};
    wgmma_wait_group<1>();
    wgmma_owned(O);
    if (blocks > 0) ring.pass(first, i, true);
    if (l[0] == 0.f || l[1] == 0.f) clear_blind_rows(O, l);
    const bool complete = parts == 1 || combine(O, state, l, p, done, warp);
    uint32_t o[d / 4];
    normalize(o, O, l);
    if constexpr (!o_from_registers) bar_sync(barrier_warpgroup + warpgroup, 128);  // all have read Q for the last time
    if (complete) {                            // A2.20
      if constexpr (o_from_registers) store_o_direct(o, p, done, warp);
      else store_o(o, smem, done_slot, p, done, warp);
      store_lse(state, l, p, done, warp);
    }
    wgmma_wait_group<0>();
    wgmma_owned(S);
    if constexpr (!o_from_registers) leaving = done_slot;
    // A tile that is all passed over lasts as long as the other warpgroups take, and they may need the slot.
    if constexpr (!row.releases_q_late()) release_left();
    if (blocks == 0) {
      release_left();
      ring.pass(first, i, false);
    }
  }
  release_left();
  if (one_lane) cp_async_bulk_wait_group_0();
}

}  // namespace fa3
