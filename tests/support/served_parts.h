// The same sequences, or parts of their queries, in other company and in other tensors: what a call computes of them
// should be the same.
#pragma once
#include <string>
#include <vector>

#include "served_case.h"

namespace fa3::test {

// Some queries of a sequence with its first so many keys.
struct ServedPart {
  int64_t sequence, first_query, queries, keys;
};

// Sequence b whole.
ServedPart whole(const ServedProblem& problem, int64_t b);
// All sequences that are not poisoned, whole.
std::vector<ServedPart> all_sequences(const ServedProblem& problem);
// Sequence b's queries cut at random, so that each sees what it saw: where positions count from the end, and the mask
// has no bound on the right or the query's own position for one.
std::vector<ServedPart> random_cuts(const ServedProblem& problem, int64_t b, uint64_t seed);
bool can_be_cut(const ServedProblem& problem);

// A case of these parts as sequences with the same inputs. Its tensors are of the kinds that the whole's are, or
// packed.
enum class Kinds { same, packed };
ServedCase parts_of(const ServedCase& whole, const std::vector<ServedPart>& parts, Kinds kinds, uint64_t seed);

// Empty if O and LSE of the parts have the bits that they have in the whole; or where not.
std::string same_bits(const ServedCase& whole, const std::vector<ServedPart>& parts, const ServedCase& parts_case);

}  // namespace fa3::test
