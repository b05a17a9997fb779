// fa3_quantize's work, and how thread blocks share it. Plain C++, read by both sides.
//
// A call with a scale for each 64 rows and no mean reads x once, in one launch. Any other looks at x first:
//
//   measure    reads x: the largest element, or of each column its sum, or its sum and extremes, of each part
//   finish     only with means: makes them of the parts' sums, and what the scales need of the extremes
//   quantize   reads x, again or for the first time, and writes y
//
//   block      rows_of_scale rows of a head, which a thread block of `quantize` holds in registers
//   step       rows of a head that a thread block of `measure` has in flight at once
//   part       every parts-th step of a head, so that all parts of all heads move through memory side by side
//   group      heads that a thread block takes together, because rotary embedding has the same angles for all of them.
//              Heads are counted through all batch entries here
//
// `quantize` takes blocks from the last to the first: of a large x, what was read last is still in the L2 cache.
#pragma once
#include <cstdint>
#include <type_traits>

#include "params.h"
#include "v_tile.h"

namespace fa3 {

using Measure = QuantizeParams::Measure;

template <class Integer>
constexpr Integer divided_up(Integer n, std::type_identity_t<Integer> by) { return (n + by - 1) / by; }

constexpr int32_t written_heads(const PassRow& row) { return row.has(Trait::rotates) ? 4 : 1; }

// A thread loads eight times 16 bytes at once, of one head or of several. (Of several, extremes would take too many
// registers.)
struct MeasureStep {
  int32_t heads, rows;
  static constexpr MeasureStep of(const PassRow& row, Measure measure) {
    const int32_t heads = row.has(Trait::rotates) && measure != Measure::extremes ? 4 : 1;
    return {heads, row.threads() * 64 / row.d / heads};
  }
};

// As many parts as fill the machine, with as many steps each. The machine is an H200, as workspaces and results are
// meant to be the same everywhere.
struct QuantizeParts {
  static constexpr int32_t multiprocessors = 132;
  int32_t groups, parts, thread_blocks;

  static constexpr QuantizeParts of(const PassRow& row, Measure measure, int64_t heads, int64_t rows) {
    const MeasureStep step = MeasureStep::of(row, measure);
    const int64_t steps = divided_up(rows, step.rows), groups = divided_up(heads, step.heads);
    const int64_t resident = multiprocessors * row.resident_blocks();
    const int64_t most = groups < resident ? resident / groups : 1;
    const int64_t parts = divided_up(steps, divided_up(steps, most)), all = groups * parts;
    return {int32_t(groups), int32_t(parts), int32_t(all < resident ? all : resident)};
  }
};

// Thread blocks of `finish`: one takes several heads if there are many.
constexpr int32_t finishing_blocks(int64_t heads) { return int32_t(heads < 264 ? heads : 264); }

// What the workspace holds, as numbers of floats from its start. First come the largest elements from which scales of
// more than 64 rows follow: of parts, heads or thread blocks.
struct QuantizeLayout {
  int64_t means;     // of each head and column
  int64_t partials;  // of each head, part and column: sum, or sum, largest and smallest element
  int64_t floats;

  static constexpr QuantizeLayout of(Measure measure, int64_t heads, int64_t parts, int64_t head_dim, int64_t largest) {
    const int64_t kinds = measure == Measure::extremes ? 3 : measure == Measure::sums ? 1 : 0;
    QuantizeLayout l{};
    l.means = divided_up(largest, 16) * 16;
    l.partials = l.means + (kinds ? heads * head_dim : 0);
    l.floats = l.partials + heads * parts * kinds * head_dim;
    return l;
  }
};

}  // namespace fa3
