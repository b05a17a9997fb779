// The list of pieces of packed lengths, made by one thread block (plan_lengths.h).
#include "../tile/config.cuh"
#include "plan_lengths.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::PlanLengthsPassParams p) {
  using namespace fa3;
  ptx::griddepcontrol_launch_dependents();
  plan_lengths(ThreadBlock(), p.call, p.plan, plan_scratch<PlanScratch>());
}
