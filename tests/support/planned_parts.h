// The same sequences, or parts of their queries, in other company and in other tensors: what a call computes of them
// should be the same.
#pragma once
#include <string>
#include <vector>

#include "planned_case.h"

namespace fa3::test {

// Some queries of a sequence with its first so many keys.
struct PlannedPart {
  int64_t sequence, first_query, queries, keys;
};

// Sequence b whole.
PlannedPart whole(const PlannedProblem& problem, int64_t b);
// All sequences that are not poisoned, whole.
std::vector<PlannedPart> all_sequences(const PlannedProblem& problem);
// Sequence b's queries cut at random, so that each sees what it saw: where positions count from the end, and the mask
// has no bound on the right or the query's own position for one.
std::vector<PlannedPart> random_cuts(const PlannedProblem& problem, int64_t b, uint64_t seed);
bool can_be_cut(const PlannedProblem& problem);

// A case of these parts as sequences with the same inputs. Its tensors are of the kinds that the whole's are, or
// packed.
enum class Kinds { same, packed };
PlannedCase parts_of(const PlannedCase& whole, const std::vector<PlannedPart>& parts, Kinds kinds, uint64_t seed);

// Empty if O and LSE of the parts have the bits that they have in the whole; or where not.
std::string same_bits(const PlannedCase& whole, const std::vector<PlannedPart>& parts, const PlannedCase& parts_case);

}  // namespace fa3::test
