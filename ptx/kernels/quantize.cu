// fa3_quantize, the pass that writes y: a thread block takes 64 rows, of one head or of several.
#include "../isa/grid.cuh"
#include "../tile/quantize.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::QuantizeParams p) {
  using namespace fa3;
  constexpr int heads_at_once = written_heads(config);
  QuantizeShared& shared = quantize_shared();
  // Heads first: theirs are neighbours in memory.
  const int behind = blockIdx.x / p.groups, group = blockIdx.x - behind * p.groups;
  int number = group * heads_at_once;
  const int end = min(number + heads_at_once, p.batch * p.heads);
  Block block(p, p.blocks - 1 - behind);
  Head head = head_at(p, number);
  block.load(head);
  if (p.hadamard) make_signs(p, shared.signs);
  ptx::griddepcontrol_wait();
  for (;;) {
    if (p.k_mean) stage_columns(k_mean_of(p, head), p.head_dim, shared.k_mean);
    if (p.mean) stage_columns(p.means + int64_t(number) * p.head_dim, p.head_dim, shared.mean);
    if (p.hadamard || p.k_mean || p.mean) sync_block();
    block.unpack(shared, head);
    const bool is_last = heads_at_once == 1 || number + 1 == end;
    const Head next = is_last ? head : head_at(p, number + 1);
    if (!is_last) block.load(next);
    if (p.hadamard) block.mix();
    if (p.k_mean) block.write_lse_offset(shared, head);
    if (p.mean) block.subtract_mean(shared);
    float largest = block.largest();
    if (p.scales != QuantizeParams::Granularity::block) largest = measured_largest(p, number);
    const float range = range_of(largest_of_block(shared.largest, largest));
    block.write_scale(range, head);
    block.write(shared, head, range);
    if (is_last) break;
    head = next, number++;
    sync_block();
  }
}
