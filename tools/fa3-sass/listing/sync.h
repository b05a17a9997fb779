// Which instructions hand data over between warps, and to or from TMA.
#pragma once

#include "operands.h"

namespace sass {

inline bool waits_for_mbarrier(const Instruction& i) {
  return i.is("SYNCS") && i.has("PHASECHK") && !i.operands.empty();
}
inline bool initialises_mbarrier(const Instruction& i) { return i.is("SYNCS") && i.has("EXCH"); }
inline bool arrives(const Instruction& i) { return i.is("SYNCS") && i.has("ARRIVE"); }
// An arrival alone: SYNCS.ARRIVE.TRANS64.A1T0 is one arrival and no transactions.
inline bool only_arrives(const Instruction& i) { return arrives(i) && i.has("A1T0"); }
// No arrival, and one transaction more that the phase waits for: cp.async.mbarrier.arrive without .noinc announces so
// what ARRIVES.LDGSTSBAR.TRANSCNT ends when the copies are there.
inline bool announces_copies(const Instruction& i) { return arrives(i) && i.has("A0T1"); }
inline bool expects_bytes(const Instruction& i) { return arrives(i) && !i.has("A1T0") && !i.has("A0T1"); }
inline bool proxy_fence(const Instruction& i) { return i.is("FENCE") && i.has("ASYNC"); }

inline bool tma_store(const Instruction& i) {
  return i.is("UTMASTG") || i.is("UTMAREDG") || i.is("UBLKRED") || (i.is("UBLKCP") && first_modifier(i) == "G");
}
inline bool tma_load(const Instruction& i) {
  return i.is("UTMALDG") || (i.is("UBLKCP") && first_modifier(i) == "S");
}

}  // namespace sass
