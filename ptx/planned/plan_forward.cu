// The list of pieces of varlen sequences, made by one thread block (plan_forward.h).
#include "../tile/config.cuh"
#include "plan_forward.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::PlanForwardPassParams p) {
  using namespace fa3;
  ptx::griddepcontrol_launch_dependents();
  plan_forward(ThreadBlock(), p.call, p.plan, plan_scratch<PlanScratch>());
}
