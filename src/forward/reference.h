// The forward pass on the CPU in float64.
#pragma once
#include "problem.h"

namespace fa3 {

// threads: how many, the calling one among them; 0 for one per usable core (cores.h). At most 256, and no more than
// there are blocks of 128 rows (the queries of all heads that use one head of K and V). Each has 0.9 MB of memory
// during the call, whatever the problem's size; if that cannot be had, nothing is written. Where the system refuses
// more threads, fewer do the same.
// widest_vector: the largest number of doubles to compute together, 2, 4 or 8, as far as the machine can. All give the
// same bits; tests choose it to see that.
fa3_status reference_forward(const Problem& problem, int threads, int widest_vector = 8);

}  // namespace fa3
