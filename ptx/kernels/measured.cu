// fa3_quantize with means, or with scales of more than 64 rows: parts are measured, then blocks are written, group by
// group of heads, in the order of quantize.h, so that the second read of x comes from the L2 cache.
#include "../tile/measure.cuh"

namespace fa3 {

FA3_DEVICE void write_block(const QuantizeParams& p, QuantizeShared& shared, const QuantizeItem& item) {
  using Granularity = QuantizeParams::Granularity;
  const Head head = head_at(p, item.head);
  Block block(p, head, item.index);
  if (p.k_mean) stage_k_mean(p, head, shared);
  const int scaled = p.scales == Granularity::tensor ? p.order.heads : item.head;  // whose scale it is
  wait_until_ready(ready(p, scaled));
  float range = p.scales == Granularity::block ? 0.f : __ldcg(ranges(p, scaled));
  if (p.mean) {
    stage_columns(means(p, item.head), p.head_dim, shared.mean);
    sync_block();
  }
  block.transform(shared);
  if (p.k_mean) block.write_lse_offset(shared);
  if (p.mean) block.subtract_mean(shared);
  if (p.scales == Granularity::block) {
    range = range_of(largest_of_block(shared, block.largest()));
    block.write_scale(range);
  }
  block.write(shared, range);
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::QuantizeParams p) {
  using namespace fa3;
  QuantizeShared& shared = quantize_shared();
  if (p.hadamard) make_signs(p, shared);  // seen after the first item's barriers
  QuantizeClaims claims(p, shared);
  for (QuantizeItem item; claims.take(item);) {
    if (item.head == QuantizeItem::none) continue;
    if (item.writes) {
      write_block(p, shared, item);
    } else {
      measure_part(p, shared, item.head, item.index);
      if (arrives_last(shared, arrived(p, item.head), p.order.parts)) finish_head(p, shared, item.head);
    }
  }
}
