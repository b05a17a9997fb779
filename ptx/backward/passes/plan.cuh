// What the pass that lists key blocks is made of: the planner (plan_backward.h), and how a thread block runs its loops.
#pragma once
#include "../../plan/plan_backward.h"
#include "../../planned/plan_forward.cuh"
#include "../../tile/config.cuh"
