// The list of key blocks of varlen sequences, for the backward pass, made by one thread block (plan_backward.h).
#include "plan.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::PlanBackwardPassParams p) {
  using namespace fa3;
  ptx::griddepcontrol_launch_dependents();
  plan_backward(ThreadBlock(), p.call, p.spread_shift, p.list, plan_scratch<BackwardPlanScratch>());
}
