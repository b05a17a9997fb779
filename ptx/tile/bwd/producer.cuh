// The producer of a thread block that owns keys, one thread: K and V once, then Q and dO of each query tile with their
// LSE and D. Smem: of bwd.cu or bwd_keys.cu.
#pragma once
#include "../../isa/grid.cuh"
#include "load.cuh"
#include "ring.cuh"
#include "work.cuh"

namespace fa3 {

template <typename Smem>
FA3_DEVICE void producer(const BackwardParams& p, Smem& smem, const KeyWork& work) {
  using namespace ptx;
  constexpr int tile_bytes = Br * d * sizeof(Element) + Br * sizeof(float);
  expect(smem.full_k, config.k_block_bytes());                                                            // A3.7
  load_rows(smem.k, Bc, p.k, smem.full_k, work.key, work.head_kv, work.batch);
  expect(smem.full_v, config.v_block_bytes());
  load_rows(smem.v, Bc, p.v, smem.full_v, work.key, work.head_kv, work.batch);
  griddepcontrol_wait();
  QueryTile tile(p, work);
  Use use;
  for (int j = 0; j < work.all; j++, use.next<config.stages>(), tile.next(work)) {                         // A3.9
    const int64_t first = int64_t(tile.number()) * Br;
    wait(smem.empty_q[use.index], use.parity ^ 1);                                                        // A3.10
    expect(smem.full_q[use.index], tile_bytes);                                                           // A3.11
    load_rows(smem.q[use.index], Br, p.q, smem.full_q[use.index], tile.tile * Br, tile.head, work.batch);
    load_numbers(smem.lse[use.index], p.rows.lse_log2 + first, smem.full_q[use.index]);
    wait(smem.empty_dout[use.index], use.parity ^ 1);
    expect(smem.full_dout[use.index], tile_bytes);
    load_rows(smem.dout[use.index], Br, p.dout, smem.full_dout[use.index], tile.tile * Br, tile.head, work.batch);
    load_numbers(smem.delta[use.index], p.rows.delta + first, smem.full_dout[use.index]);
  }
}

}  // namespace fa3
