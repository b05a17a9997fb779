// fa3_quantize with a scale for each block of 64 rows and no mean: a thread block takes one block, from a single read.
#include "../tile/quantize.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::QuantizeParams p) {
  using namespace fa3;
  QuantizeShared& shared = quantize_shared();
  // Heads first: theirs are neighbours in memory.
  const int row_block = blockIdx.x / p.heads, head_number = blockIdx.x - row_block * p.heads;
  const int batch = row_block / p.blocks;
  const Head head = head_at(p, batch * p.heads + head_number);
  Block block(p, head, row_block - batch * p.blocks);
  if (p.hadamard) make_signs(p, shared);
  if (p.k_mean) stage_k_mean(p, head, shared);
  if (p.hadamard || p.k_mean) sync_block();
  block.transform(shared);
  if (p.k_mean) block.write_lse_offset(shared);
  const float range = range_of(largest_of_block(shared, block.largest()));
  block.write_scale(range);
  block.write(shared, range);
}
