#include "kinds.h"

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <unordered_map>

#include "cfg.h"

namespace sass {
namespace {

bool any_of(const Instruction& i, std::initializer_list<std::string_view> names) {
  for (std::string_view name : names)
    if (i.is(name)) return true;
  return false;
}

// Minus infinity as SASS writes it for FSEL and for integer moves, or a float so low that only a mask would use it.
bool minus_infinity(const std::string& operand) {
  return operand == "-INF" || operand == "-0x800000" || operand == "0xff800000" ||
         std::strtod(operand.c_str(), nullptr) < -1e30;
}

bool masks(const Instruction& i) {
  const bool selects = any_of(i, {"FSEL", "SEL"});
  const bool overwrites = !i.guard.empty() && any_of(i, {"MOV", "IMAD"});
  if (!selects && !overwrites) return false;
  for (const std::string& operand : i.operands)
    if (minus_infinity(operand)) return true;
  return false;
}

// UTCHMMA, UTCQMMA, UTCOMMA, UTCIMMA: by the type of their elements.
bool is_umma(const Instruction& i) { return i.mnemonic().starts_with("UTC") && i.mnemonic().ends_with("MMA"); }

// What the opcode alone tells.
Kind kind_of_opcode(const Instruction& i) {
  if (is_umma(i)) return Kind::umma;
  if (i.is("UTCBAR")) return Kind::umma_commit;
  if (any_of(i, {"LDTM", "STTM", "UTCCP", "UTCSHIFT", "UTCATOMSWS"})) return Kind::tensor_memory;
  if (is_wgmma(i)) return Kind::wgmma;
  if (i.is("WARPGROUP")) return i.has("DEPBAR") ? Kind::wait : Kind::arrive;
  if (i.is("SYNCS"))
    return i.has("PHASECHK") ? Kind::mbarrier_wait : i.has("ARRIVE") ? Kind::mbarrier_arrive : Kind::barrier;
  if (any_of(i, {"BAR", "B2R", "UCGABAR_ARV", "UCGABAR_WAIT"})) return Kind::barrier;
  if (any_of(i, {"FENCE", "MEMBAR", "DEPBAR", "ERRBAR", "CCTL", "ACQBULK", "PREEXIT"})) return Kind::fence;
  if (i.is("UTMALDG") || i.is("UTMAPF") || (i.is("UBLKCP") && i.has("S"))) return Kind::tma_load;
  if (any_of(i, {"UTMASTG", "UTMAREDG", "UBLKRED", "UBLKCP", "UTMACMDFLUSH"})) return Kind::tma_store;
  if (any_of(i, {"LDL", "STL"})) return Kind::local_memory;
  if (any_of(i, {"LDS", "STS", "LDSM", "STSM", "ATOMS"})) return Kind::shared_memory;
  if (any_of(i, {"LDG", "STG", "LD", "ST", "ATOMG", "RED", "REDG", "LDGSTS"})) return Kind::global_memory;
  if (i.is("MUFU")) return i.has("EX2") ? Kind::exp : Kind::special;
  if (any_of(i, {"FMNMX", "FMNMX3", "HMNMX2", "VIMNMX", "VIMNMX3", "VIADDMNMX"})) return Kind::maximum;
  if (i.is("F2FP") || i.is("F2F")) return Kind::convert;
  if (any_of(i, {"FMUL", "HMUL2", "FMUL2"})) return Kind::multiply;
  if (any_of(i, {"FFMA", "HFMA2", "FFMA2"})) return Kind::multiply_add;
  if (any_of(i, {"FADD", "HADD2", "FADD2"})) return Kind::add;
  if (any_of(i, {"SHFL", "VOTE", "REDUX", "MATCH"})) return Kind::shuffle;
  if (i.is("USETMAXREG")) return Kind::setmaxnreg;
  if (any_of(i, {"MOV", "R2UR", "CS2R", "S2R", "S2UR", "UMOV"}) || (i.is("IMAD") && i.has("MOV"))) return Kind::move;
  if (any_of(i,
             {"BRA", "BRX", "EXIT", "BSSY", "BSYNC", "CALL", "RET", "BREAK", "WARPSYNC", "YIELD", "NANOSLEEP", "NOP"}))
    return Kind::branch;
  if (i.opcode[0] == 'U') return Kind::uniform;
  return Kind::other;
}

}  // namespace

// A kernel has thousands of instructions, but some dozens of opcodes.
Kind kind_of(const Instruction& i) {
  if (masks(i)) return Kind::mask;
  thread_local std::unordered_map<std::string, Kind> known;
  const auto found = known.find(i.opcode);
  return found != known.end() ? found->second : known.emplace(i.opcode, kind_of_opcode(i)).first->second;
}

Lane lane_of(Kind kind) {
  switch (kind) {
    case Kind::wgmma:
    case Kind::umma: return Lane::tensor;
    case Kind::exp:
    case Kind::special: return Lane::mufu;
    case Kind::tma_load:
    case Kind::tma_store:
    case Kind::shared_memory:
    case Kind::global_memory:
    case Kind::tensor_memory:
    case Kind::local_memory: return Lane::memory;
    case Kind::arrive:
    case Kind::wait:
    case Kind::mbarrier_wait:
    case Kind::mbarrier_arrive:
    case Kind::barrier:
    case Kind::fence:
    case Kind::setmaxnreg:
    case Kind::umma_commit:
    case Kind::branch: return Lane::sync;
    default: return Lane::alu;
  }
}

const char* word_for(Kind kind) {
  switch (kind) {
    case Kind::wgmma: return "wgmma";
    case Kind::arrive: return "wgmma fence";
    case Kind::wait: return "wait for wgmma groups";
    case Kind::mbarrier_wait: return "mbarrier wait";
    case Kind::mbarrier_arrive: return "mbarrier arrive";
    case Kind::barrier: return "barrier";
    case Kind::fence: return "memory fence";
    case Kind::tma_load: return "TMA load";
    case Kind::tma_store: return "TMA store";
    case Kind::shared_memory: return "shared memory";
    case Kind::global_memory: return "global memory";
    case Kind::local_memory: return "LOCAL MEMORY";
    case Kind::exp: return "exp2";
    case Kind::special: return "special function";
    case Kind::maximum: return "maximum";
    case Kind::convert: return "convert";
    case Kind::multiply: return "multiply";
    case Kind::multiply_add: return "scale and subtract";
    case Kind::add: return "add";
    case Kind::mask: return "MASK";
    case Kind::shuffle: return "across lanes";
    case Kind::move: return "move";
    case Kind::uniform: return "uniform";
    case Kind::branch: return "control";
    case Kind::setmaxnreg: return "setmaxnreg";
    case Kind::umma: return "tcgen05 mma";
    case Kind::umma_commit: return "tcgen05 commit";
    case Kind::tensor_memory: return "tensor memory";
    default: return "integer";
  }
}

}  // namespace sass
