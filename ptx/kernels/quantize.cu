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
  ptx::griddepcontrol_wait();  // what was measured is read from here on; x is on its way
  for (;;) {
    if (p.k_mean) stage_columns(k_mean_of(p, head), p.head_dim, shared.k_mean);
    if (p.mean) stage_columns(p.means + int64_t(number) * p.head_dim, p.head_dim, shared.mean);
    const bool scales_blocks = p.scales == QuantizeParams::Granularity::block;
    if (!scales_blocks) put_largest(shared.largest, measured_largest(p, number));
    if (p.hadamard || p.k_mean || p.mean) sync_block();
    block.unpack(shared, head);
    const bool is_last = heads_at_once == 1 || number + 1 == end;
    // While this head is worked on, the next one comes.
    const Head next = is_last ? head : head_at(p, number + 1);
    if (!is_last) block.load(next);
    if (p.hadamard) block.mix();
    if (p.k_mean) block.write_lse_offset(shared, head);
    if (p.mean) block.subtract_mean(shared);
    const float largest = block.largest();
    if (scales_blocks) put_largest(shared.largest, largest);
    sync_block();
    const float range = range_of(take_largest(shared.largest));
    block.write_scale(range, head);
    block.write(shared, head, range);
    if (is_last) break;
    head = next, number++;
    sync_block();
  }
}
