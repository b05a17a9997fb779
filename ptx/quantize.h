// fa3_quantize's work: its items and their order, and what stands where in the workspace.
// Plain C++, read by both sides.
//
//   part     measured_rows rows of a head, of which one item computes the sums and extremes: it measures them
//   block    rows_of_scale rows of a head, which one item writes
//   item     a part to measure or a block to write; number n is item_at(order, n)
//   group    heads that are measured, and then written, together: so few that they are still in the L2 cache when they
//            are read again. Heads are counted through all batch entries here.
#pragma once
#include <cstdint>

#include "divisor.h"
#include "row.h"
#include "v_tile.h"

namespace fa3 {

inline constexpr int measured_rows = 256;

struct QuantizeItem {
  bool writes;
  int32_t head;   // none if there is no such head: the last group may have fewer than the others
  int32_t index;  // of the part or the block
  static constexpr int32_t none = -1;
};

// Measured are group 0, group 1, and then always one group more before a group is written. So when a group's first
// block is claimed, its last part was claimed a whole group ago and is done, as a rule. And as items are claimed in
// this order, and parts wait for nothing, a block that does wait is waiting for something that runs.
struct QuantizeOrder {
  int32_t heads, groups;
  Divisor group_heads;
  int32_t parts, blocks;  // of a head
  Divisor both;           // items of a group, measured and written

  static constexpr QuantizeOrder of(int32_t heads, int32_t rows, int32_t group_heads) {
    const int32_t groups = (heads + group_heads - 1) / group_heads;
    const int32_t even = (heads + groups - 1) / groups;
    const int32_t parts = (rows + measured_rows - 1) / measured_rows;
    const int32_t blocks = (rows + rows_of_scale - 1) / rows_of_scale;
    return {heads, groups, Divisor::of(even), parts, blocks, Divisor::of(even * (parts + blocks))};
  }
  constexpr int32_t count() const { return groups * both; }
};

constexpr QuantizeItem item_at(const QuantizeOrder& order, int32_t number) {
  const int32_t measured = order.group_heads * order.parts;
  int32_t group = 0, index = number;
  bool writes = false;
  if (number >= measured) {
    const int32_t rest = number - measured, last = order.groups - 1;
    group = rest / order.both;
    index = rest - group * order.both;
    writes = group == last || index >= measured;
    if (group < last && writes) index -= measured;
    if (!writes) group++;
  }
  const int32_t at = index / order.group_heads, head = group * order.group_heads + index - at * order.group_heads;
  // Blocks from the last to the first: of a large tensor, what was read last is still in the cache.
  return {writes, head < order.heads ? head : QuantizeItem::none, writes ? order.blocks - 1 - at : at};
}

// What the workspace holds behind the struct Workspace, in bytes from its start; only of calls that measure. The first
// `cleared` bytes of it are zeroed by the kernel itself.
struct QuantizeLayout {
  int64_t arrived;   // uint32_t of each head: how many of its parts are measured; and of the tensor: how many heads
  int64_t ready;     // uint32_t of each head and of the tensor: 1 when mean and range are there
  int64_t cleared;
  int64_t ranges;    // float of each head and of the tensor: what becomes 448 in y
  int64_t means;     // head_dim floats of each head
  int64_t partials;  // of each part: its largest element, or of each column sum, and largest and smallest element
  int64_t bytes;

  static constexpr int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  static constexpr QuantizeLayout of(int64_t first, int64_t heads, int64_t parts, int64_t head_dim, int64_t partial) {
    QuantizeLayout l{};
    l.arrived = first;
    l.ready = l.arrived + aligned((heads + 1) * 4);
    l.ranges = l.ready + aligned((heads + 1) * 4);
    l.cleared = l.ranges - first;
    l.means = l.ranges + aligned((heads + 1) * 4);
    l.partials = l.means + aligned(heads * head_dim * 4);
    l.bytes = l.partials + heads * parts * partial * 4;
    return l;
  }
};

}  // namespace fa3
