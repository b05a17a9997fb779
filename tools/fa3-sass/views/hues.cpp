#include "hues.h"

#include <map>

namespace sass {

const char* gemm_colour(const std::string& name) {
  static const std::map<std::string, const char*> colours = {{"QK", "#3b82f6"}, {"S", "#1e3a8a"},  {"PV", "#f97316"},
                                                             {"dP", "#8b5cf6"}, {"dV", "#9d174d"}, {"dK", "#14b8a6"},
                                                             {"dQ", "#84cc16"}};
  const auto found = colours.find(name);
  return found == colours.end() ? "#64748b" : found->second;
}

Hue hue_of(const Kernel& kernel, const Turn& turn, int position) {
  const Kind kind = turn.kinds[static_cast<size_t>(position)];
  switch (kind) {
    case Kind::wgmma: {
      const Gemm* gemm = turn.gemm_at(position);
      return {"", gemm_colour(gemm ? gemm->name : "")};
    }
    case Kind::exp: return {"exp2", "#eab308"};
    case Kind::special: return {"other MUFU", "#a16207"};
    case Kind::maximum: return {"row maximum", "#0d9488"};
    case Kind::multiply_add: return {"scale (FFMA)", "#22c55e"};
    case Kind::add: return {"sum (FADD)", "#a3d635"};
    case Kind::convert: return {"convert (F2FP)", "#ec4899"};
    case Kind::mask: return {"mask", "#b45309"};
    case Kind::shuffle: return {"shuffle, vote", "#06b6d4"};
    case Kind::multiply: {
      const Registers written =
          destination(kernel.listing.code[static_cast<size_t>(turn.code[static_cast<size_t>(position)])]);
      for (const Gemm& gemm : turn.gemms)
        if (!gemm.zero && gemm.accumulator.overlaps(written)) return {"rescale (FMUL)", "#c026d3"};
      return {"multiply", "#4d7c0f"};
    }
    case Kind::local_memory: return {"local memory (spill)", "#7f1d1d"};
    case Kind::tma_load:
    case Kind::tma_store: return {"TMA", "#a855f7"};
    case Kind::shared_memory: return {"shared memory", "#0ea5e9"};
    case Kind::global_memory: return {"global memory", "#0369a1"};
    case Kind::wait: return {"wait for WGMMAs", "#dc2626"};
    case Kind::arrive: return {"fence before WGMMAs", "#f87171"};
    case Kind::mbarrier_wait: return {"mbarrier wait", "#7c3aed"};
    case Kind::mbarrier_arrive: return {"mbarrier arrive", "#a78bfa"};
    case Kind::barrier:
    case Kind::fence: return {"barrier, fence", "#57534e"};
    case Kind::branch: return {"branch", "#94a3b8"};
    case Kind::umma: return {"MMA into tensor memory", "#2563eb"};
    case Kind::umma_commit: return {"commit of MMAs", "#f43f5e"};
    case Kind::tensor_memory: return {"tensor memory", "#0f766e"};
    default: return {"integer, uniform, move", "#b6c2d1"};
  }
}

}  // namespace sass
