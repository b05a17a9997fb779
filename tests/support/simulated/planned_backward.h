// The launches of a backward call whose sequences have lengths of their own, on the CPU, each from what it carries
// alone.
#pragma once
#include <cuda.h>

#include "launched.h"

namespace fa3::test {

CUresult simulate_plan_backward(const PlanBackwardPassParams& p);
CUresult simulate_prepare_planned(const PlannedBackwardParams& p, unsigned blocks);
CUresult simulate_key_means(const CenteredBackwardParams& p, const PassRow& row, unsigned blocks);
// `means`: of a row with Trait::centered_k, its parameters.
CUresult simulate_lengths(const TransformedBackwardParams& p, const CenteredBackwardParams& means,
                          const BackwardRow& row, unsigned blocks);
// Of a kernel that computes dQ only.
CUresult simulate_queries_of_lengths(const TransformedBackwardParams& p, const CenteredBackwardParams& means,
                                     const BackwardRow& row, unsigned blocks);
CUresult simulate_finish_planned(const PlannedBackwardParams& p, const PassRow& row, unsigned blocks);

}  // namespace fa3::test
