#include "floors.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "../system/text.h"
#include "clocks.h"
#include "team.h"

namespace sass {

int wgmma_columns(const std::string& shape) {
  const size_t x = shape.find('x');
  return x == std::string::npos ? 0 : std::atoi(shape.c_str() + x + 1);
}

int computing_warpgroups(const Kernel& kernel) {
  const Figure* threads = find(kernel.figures, "threads");
  const Figure* budgets = find(kernel.figures, "setmaxnreg");
  const int all = threads ? static_cast<int>(threads->value) / 128 : 1;
  const bool loads = budgets && budgets->text.find(' ') != std::string::npos;
  return std::max(1, all - (loads ? 1 : 0));
}

Floors floors(const Kernel& kernel, const WgmmaLoop& loop) {
  Floors f;
  for (const Gemm& gemm : loop.turn.gemms) {
    const double n = wgmma_columns(gemm.shape), steps = static_cast<double>(gemm.steps.size());
    const double with_a = steps - static_cast<double>(gemm.register_steps.size());
    f.tensor += steps * n / 2;
    // A step is 32 bytes deep: n rows of B, and 64 of A unless that comes from registers.
    f.shared_memory += (steps * n + with_a * 64) * 32 / 128;
  }
  for (const Kind kind : loop.turn.kinds) {
    switch (kind) {
      case Kind::exp:
      case Kind::special: f.mufu += 128.0 / 16; break;
      case Kind::multiply:
      case Kind::multiply_add:
      case Kind::add: f.fma += 1; break;
      case Kind::maximum:
      case Kind::convert:
      case Kind::mask:
      case Kind::move:
      case Kind::other: f.alu += 2; break;
      default: break;
    }
    f.issue += 1;
  }
  f.warpgroups = computing_warpgroups(kernel);
  for (const Member& member : team_of(kernel))
    if (member.loop == &loop) f.warpgroups = member.warpgroups;
  for (double* clocks : {&f.tensor, &f.shared_memory, &f.mufu, &f.fma, &f.alu, &f.issue}) *clocks *= f.warpgroups;
  return f;
}

Floors floors_together(const Kernel& kernel) {
  Floors all;
  all.warpgroups = 0;
  for (const Member& member : team_of(kernel)) {
    const Floors f = floors(kernel, *member.loop);
    all.warpgroups += f.warpgroups;
    for (double Floors::*clocks : {&Floors::tensor, &Floors::shared_memory, &Floors::mufu, &Floors::fma, &Floors::alu,
                                   &Floors::issue})
      all.*clocks += f.*clocks;
  }
  return all;
}

std::vector<Floors::Unit> Floors::units() const {
  return {{"tensor", tensor}, {"shared memory", shared_memory}, {"MUFU", mufu}, {"FMA", fma}, {"ALU", alu},
          {"issue", issue}};
}

Floors::Unit Floors::bound() const {
  const auto all = units();
  return *std::max_element(all.begin(), all.end(), [](const Unit& a, const Unit& b) { return a.clocks < b.clocks; });
}

}  // namespace sass
