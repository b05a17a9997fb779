// From a validated problem to what runs on the device.
#pragma once
#include "device/driver.h"
#include "forward/fit.h"
#include "problem.h"

namespace fa3 {

// Plans the problem for the current context's device, and enqueues the plan's launches. The workspace is known to be
// right as far as FA3_FORWARD_WORKSPACE_BYTES go; it is checked where the plan needs more.
fa3_status launch(const Problem& problem, const Fit& fit, void* workspace, size_t workspace_bytes, CUstream stream);

}  // namespace fa3
