// From a validated problem to what runs on the device.
#pragma once
#include "driver.h"
#include "fit.h"
#include "problem.h"

namespace fa3 {

// Plans the problem for the current context's device, checks the workspace, and enqueues the plan's launches.
fa3_status launch(const Problem& problem, const Fit& fit, void* workspace, size_t workspace_bytes, CUstream stream);

}  // namespace fa3
