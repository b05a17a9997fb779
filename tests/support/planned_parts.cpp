#include "planned_parts.h"

#include <algorithm>
#include <cstring>

#include "half.h"
#include "random.h"

namespace fa3::test {

PlannedPart whole(const PlannedProblem& problem, int64_t b) {
  const PlannedSequence s = problem.sequence(b);
  return {b, 0, s.queries, s.keys};
}

std::vector<PlannedPart> all_sequences(const PlannedProblem& problem) {
  std::vector<PlannedPart> parts;
  for (int64_t b = 0; b < problem.batch; ++b)
    if (!problem.poisoned[size_t(b)]) parts.push_back(whole(problem, b));
  return parts;
}

bool can_be_cut(const PlannedProblem& problem) {
  // Distances count from the last key, which must be the last query's.
  const bool all_keys = problem.mask == FA3_MASK_NONE || (problem.mask == FA3_MASK_WINDOW && problem.window_right < 0);
  if (problem.has_slopes && all_keys) return false;
  switch (problem.mask) {
    case FA3_MASK_WINDOW: return problem.window_right == 0 || (problem.window_right < 0 && problem.window_left < 0);
    case FA3_MASK_CHUNK: return problem.window_right == 0;
    default: return problem.mask != FA3_MASK_CAUSAL_TOP_LEFT;
  }
}

std::vector<PlannedPart> random_cuts(const PlannedProblem& problem, int64_t b, uint64_t seed) {
  tools::Random random(seed);
  const PlannedSequence s = problem.sequence(b);
  // Positions that count from the end stay where they are if keys behind the last query's are left out.
  const bool all_keys = problem.mask == FA3_MASK_NONE || (problem.mask == FA3_MASK_WINDOW && problem.window_right < 0);
  std::vector<PlannedPart> parts;
  for (int64_t first = 0; first < s.queries;) {
    const int64_t end = first + random.between(1, s.queries - first);
    parts.push_back({b, first, end - first, all_keys ? s.keys : std::max<int64_t>(s.keys - (s.queries - end), 0)});
    first = end;
  }
  return parts;
}

PlannedCase parts_of(const PlannedCase& whole, const std::vector<PlannedPart>& parts, Kinds kinds, uint64_t seed) {
  PlannedProblem p = whole.problem;
  p.shares_keys = false;
  if (kinds == Kinds::packed)
    p.packed_q = p.packed_k = true, p.uses_q = p.uses_k = p.pads_k = p.indexes_cache = false, p.page_size = 0;
  p.uses_q = p.uses_q || !p.packed_q, p.uses_k = p.uses_k || !p.packed_k;
  PlannedProblem::Lengths lengths;
  for (const PlannedPart& part : parts) lengths.push_back({part.queries, part.keys});
  make_room(p, lengths, seed);
  // Nothing is cut.
  if (p.packed_q) p.max_seqlen_q = int32_t(std::max<int64_t>(p.max_seqlen_q, p.rows_q));
  p.max_seqlen_k = p.packed_k ? int32_t(std::max<int64_t>(p.max_seqlen_k, p.rows_k)) : 0;
  set_numbers(p, lengths, seed + 1);
  std::fill(p.poisoned.begin(), p.poisoned.end(), false);
  p.sinks = whole.problem.sinks;
  if (!p.slopes_each) p.slopes = whole.problem.slopes;
  for (size_t n = 0; n < p.slopes.size() && p.slopes_each; ++n) {
    const PlannedPart& part = parts[n / size_t(p.heads)];
    p.slopes[n] = whole.problem.slopes[size_t(part.sequence * p.heads) + n % size_t(p.heads)];
  }
  PlannedCase made(p);
  for (size_t n = 0; n < parts.size(); ++n)
    made.copy_inputs(whole, parts[n].sequence, parts[n].first_query, int64_t(n));
  return made;
}

std::string same_bits(const PlannedCase& whole, const std::vector<PlannedPart>& parts, const PlannedCase& parts_case) {
  const PlannedProblem& p = whole.problem;
  for (size_t n = 0; n < parts.size(); ++n) {
    const PlannedSequence theirs = p.sequence(parts[n].sequence), mine = parts_case.problem.sequence(int64_t(n));
    const auto differ = [&](const View& view, const View& part, int64_t i, int64_t h, int64_t elements) {
      const int64_t width = tools::element_bytes(view.dtype);
      const int64_t at = whole.query_position(view, theirs, parts[n].first_query + i, h);
      const int64_t own = parts_case.query_position(part, mine, i, h);
      return std::memcmp(view.data<unsigned char>(whole.images) + width * at,
                         part.data<unsigned char>(parts_case.images) + width * own, size_t(width * elements)) != 0;
    };
    for (int64_t i = 0; i < parts[n].queries; ++i)
      for (int64_t h = 0; h < p.heads; ++h) {
        const bool o = differ(whole.o, parts_case.o, i, h, p.head_dim_v);
        if (o || (p.want_lse && differ(whole.lse, parts_case.lse, i, h, 1)))
          return std::string(o ? "o" : "lse") + " of sequence " + std::to_string(parts[n].sequence) + " query " +
                 std::to_string(parts[n].first_query + i) + " head " + std::to_string(h) + " has other bits";
      }
  }
  return "";
}

}  // namespace fa3::test
