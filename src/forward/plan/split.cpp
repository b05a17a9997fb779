// Which tiles of a problem are split along the keys, on one row of the table: all are left whole, or some become parts,
// whichever is predicted to be faster (estimate.h, cost.h). src/README.md has a measured example of each case.
#include "forward/plan/split.h"

#include <cmath>

#include "forward/plan/search.h"

namespace fa3 {

void plan_row(const Estimate& estimate, RowPlan& plan, double limit_us, bool roughly) {
  const bool is_limited = limit_us < static_cast<double>(most_time) / 1e3;
  const SearchLimit limit{is_limited ? std::lround(limit_us * 1e3) : INT64_MAX, roughly};
  if (!estimate.row.has(Trait::splits)) return Search(estimate, limit).write(plan);
  if (!estimate.same_length) return split_causal(estimate, limit, plan);
  return estimate.packs_heads ? split_packed(estimate, limit, plan) : split_last_wave(estimate, limit, plan);
}

size_t most_workspace(const Candidate& candidate, int multiprocessors) {
  const ForwardRow& row = candidate.row;
  const Estimate estimate(candidate, assumed_card(multiprocessors));
  const int64_t count = estimate.tiles.count(), last = count % multiprocessors, n = estimate.longest;
  int64_t tickets = 0, slots = 0;
  if (!row.has(Trait::splits) || estimate.mixes_lengths) {
    // all tiles are whole
  } else if (estimate.same_length && estimate.packs_heads) {
    tickets = std::min<int64_t>(count, multiprocessors);
    const int64_t parts = count < multiprocessors
                              ? std::min(n / 2, most_packed_multiprocessor_parts * multiprocessors / count)
                              : most_packed_multiprocessor_parts;
    if (parts > 1) slots = tickets * std::min<int64_t>(parts, Listed::most_packed_parts);
  } else if (estimate.same_length) {
    // Quotas are as many as multiprocessors, and end in each tile once more.
    if (n >= 2 * least_blocks) tickets = last, slots = last ? last + multiprocessors : 0;
  } else if (count < enough_tiles * multiprocessors && count <= Listed::most_tiles && n > least_blocks) {
    tickets = count, slots = most_multiprocessor_parts * multiprocessors;
  }
  return place_parts(candidate, FA3_FORWARD_WORKSPACE_BYTES, slots ? tickets : 0, slots).bytes;
}

}  // namespace fa3
