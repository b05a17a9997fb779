#include "meaning.h"

#include <map>

namespace sass {

std::string meaning_of(const std::string& figure) {
  static const std::map<std::string, std::string> sentences = {
      {"spills",
       "These values go through local memory, which costs time: registers are short, or an array has no place in "
       "them."},
      {"local", "Local memory is accessed here, spilled registers or arrays, which costs time."},
      {"waits_without_spin",
       "The wait can be left before the barrier's phase is over: what follows may read data that is not there yet, or "
       "overwrite data that is still read."},
      {"never_arrived", "Nothing in the kernel arrives at this barrier: the wait may last for ever."},
      {"tma_repeated",
       "Each lane of the warp issues this TMA with the same operands: bytes arrive, or are added, as many times."},
      {"tma_by_many", "More than one lane may come to this TMA."},
      {"unfenced_tma",
       "No proxy fence since the stores, or since the barriers' initial values: TMA may not see what was written."},
      {"unfenced", "No fence since what was written: TMA, WGMMAs or other threads may not see it."},
      {"arrives_by_many", "More than one lane may arrive here: a barrier's phase may end too early."},
      {"serialised",
       "The tensor cores idle at these waits, in the midst of a GEMM. Where each WGMMA is waited for on its own, ptxas "
       "does it, and its warning C7510 and the like say why; otherwise it is the source that waits."},
      {"never_waited", "Nothing waits for this group of WGMMAs: its result may be read before it is complete."},
      {"touches",
       "A register that a WGMMA in flight reads or writes is touched: the result may be wrong in some runs."},
      {"masks", "Scores are masked in every turn. If most blocks need no mask, a loop without it saves these."},
      {"exps_overlapped",
       "No exponential runs while a WGMMA of its own warpgroup is in flight: only another warpgroup can hide them."},
      {"exps_in_flight", "Exponentials stand where no WGMMA of their warpgroup is in flight: they are not hidden."},
      {"never_awaited", "Something arrives at this barrier, but nothing waits for it: the hand-over orders nothing."},
      {"unexpected_loads",
       "No bytes are expected at the barrier where this TMA load ends: its phase may end before the data is there."},
      {"never_loaded", "Bytes are expected here that no TMA load brings: the wait may last for ever."},
      {"odd_counts", "The barrier counts to nothing: what waits for it may wait for ever, or not at all."},
      {"odd_named_barriers",
       "Nobody waits at this named barrier for as many threads, or so many there cannot be: it may never open."},
      {"maps_only_fetched", "This tensor map is fetched ahead, but nothing is loaded or stored by it: another may be."},
      {"parity_never_flips",
       "The wait asks for the same phase in every turn: from the second on it may be left at once, or never."},
      {"waits_left_out",
       "In some turns this wait is left out, while its parity goes on: the next one may pass two phases too early."},
      {"never_read_out",
       "A buffer is written again and nothing waited until the bulk copy had read it: the copy may take new data."},
      {"released_in_flight", "The semaphore may be seen before the data that it guards."},
  };
  const auto found = sentences.find(figure);
  return found == sentences.end() ? std::string() : found->second;
}

}  // namespace sass
