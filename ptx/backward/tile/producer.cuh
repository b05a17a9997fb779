// The producer of a thread block that owns keys, one thread: K and V once, then Q and dO of each query tile with their
// LSE and D. Smem: of bwd.cu or bwd_keys.cu.
#pragma once
#include "../../isa/grid.cuh"
#include "ring.cuh"
#include "work.cuh"

namespace fa3 {

FA3_DEVICE void load_numbers(const float (&to)[Br], const float* from, uint64_t& full) {
  ptx::cp_async_bulk_load(ptx::shared_address(to), from, sizeof to, ptx::shared_address(&full));
}

// Q and dO of a query tile into the next stage, with LSE and D. If first_row is given, the number of the tile's first
// row goes there: consumers that do not count tiles themselves read it beside the stage.
template <typename Smem>
FA3_DEVICE void load_tile(const Params& p, Smem& smem, const KeyWork& work, const QueryTile& tile,
                          const Use& use, int* first_row = nullptr) {
  constexpr int bytes = Br * d * sizeof(Element) + Br * sizeof(float);
  const int s = use.index;
  const int64_t first = int64_t(tile.number(work)) * Br;
  wait(smem.empty_q[s], use.parity ^ 1);                                                                  // A3.10
  if (first_row) *first_row = tile.tile * Br;
  if constexpr (has(Trait::alibi))
    smem.bias[s] = {smem.bias_loads[0].sequence, tile.head(work), tile.tile * Br + smem.bias_loads[0].offset};
  expect(smem.full_q[s], bytes);                                                                          // A3.11
  load_rows(smem.q[s], Br, p.q, smem.full_q[s],
            place_of(p, smem, work, BackwardMap::q, tile.tile * Br, tile.head(work)));
  load_numbers(smem.lse[s], p.rows.lse_log2 + first, smem.full_q[s]);
  wait(smem.empty_dout[s], use.parity ^ 1);
  expect(smem.full_dout[s], bytes);
  load_rows(smem.dout[s], Br, p.dout, smem.full_dout[s],
            place_of(p, smem, work, BackwardMap::dout, tile.tile * Br, tile.head(work)));
  load_numbers(smem.delta[s], p.rows.delta + first, smem.full_dout[s]);
}

template <typename Smem>
FA3_DEVICE void load_keys(const Params& p, Smem& smem, const KeyWork& work) {
  if constexpr (planned && config.takes_several_blocks()) {
    smem.sequence[0] = smem.loads[0].sequence;
#pragma unroll
    for (int i = 0; i < warpgroups; i++) smem.plain_rows[0][i].find(smem.loads[0].sequence, work.key + 64 * i);
  }
  expect(smem.full_k, config.k_block_bytes());                                                            // A3.7
  load_rows(smem.k, Bc, p.k, smem.full_k, place_of(p, smem, work, BackwardMap::k, work.key, work.head_kv));
}
template <typename Smem>
FA3_DEVICE void load_values(const Params& p, Smem& smem, const KeyWork& work) {
  expect(smem.full_v, config.v_block_bytes());
  load_rows(smem.v, Bc, p.v, smem.full_v, place_of(p, smem, work, BackwardMap::v, work.key, work.head_kv));
}

template <typename Smem>
FA3_DEVICE void producer(const Params& p, Smem& smem, const KeyWork& work) {
  load_keys(p, smem, work);
  load_values(p, smem, work);
  ptx::griddepcontrol_wait();
  QueryTile tile(work);
  Use use;
  for (int j = 0; j < work.all; j++, use.next<config.stages>(), tile.next(p, work))                       // A3.9
    if constexpr (planned) load_tile(p, smem, work, tile, use, &smem.first_query[use.index]);
    else load_tile(p, smem, work, tile, use);
}

}  // namespace fa3
