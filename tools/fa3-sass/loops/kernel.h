// A kernel with everything that is known about it, as data: its record, its loops, what its warps hand over, figures.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "../input/cubin.h"
#include "../listing/calls.h"
#include "turn.h"

namespace sass {

struct Figure {
  std::string name;
  bool is_text = false;
  double value = 0;
  std::string text;
  std::vector<int> evidence;  // instructions that make up the figure; of a share, those that are left out of it
  bool is_share = false;
  std::string shown() const;
};

using Figures = std::vector<Figure>;
const Figure* find(const Figures& figures, std::string_view name);

struct WgmmaLoop {
  int loop = 0;       // in Cfg::loops
  bool hot = true;    // or a boundary loop: the same GEMMs with more instructions (masks)
  std::string role;   // "QK+PV"
  std::string gemms;  // "QK 4 x 64x64x16 SS, PV 4 x 64x64x16 RS"
  std::vector<int> path;
  Turn turn;
  Figures figures;
};

// What is followed once through a kernel, for all of its figures.
struct Protocol {
  std::vector<bool> one_lane;    // by instruction: no more than one lane of a warp gets to it
  std::vector<int> in_flight;    // by instruction: WGMMA groups that may be in flight there
  std::vector<std::string> scope;  // by block: "prologue", "epilogue", "producer", or "loop"
  std::vector<int> waits;        // for mbarriers; a wait and the copy of it that spins count once
  std::vector<int> parities;     // of each of `waits`, when it is come to for the first time: 0, 1, or -1 for either
  std::vector<int> no_spin;      // waits that may be left before the barrier's phase is over
  std::vector<int> unfenced;     // what hands data of shared memory to TMA or WGMMA without a fence behind its stores
  std::vector<int> unfenced_tma;  // TMA alone: stores of such data, and loads at mbarriers not fenced since their init
};

// An mbarrier, or several that follow each other, of which places take one after the other.
struct Mbarrier {
  std::uint32_t address = 0;     // in shared memory
  std::vector<int> inits;        // instructions, as all below
  std::set<std::uint32_t> counts;  // arrivals that make a phase, as the inits say
  std::vector<int> arrivals, announcements, expectations, loads, waits;
  std::set<std::string> bytes;   // that are expected
  std::vector<int> parities;     // of each wait, when it is come to first: 0, 1, or -1 for either
  std::vector<int> steady;       // waits in loops whose parity is the same in every turn
};

struct NamedBarrier {
  static constexpr int unknown = -1, all = -2;
  int id = unknown, threads = all;
  std::vector<int> syncs, arrivals;
};

struct Handovers {
  std::vector<Mbarrier> mbarriers;  // by address
  std::set<std::uint32_t> other_counts;  // of inits in loops, or of mbarriers that nothing uses
  std::vector<int> elsewhere;       // uses of mbarriers whose address is not known
  std::vector<NamedBarrier> named;
  std::vector<int> bulk_commits, bulk_waits, complete_waits;  // the last: also for what is written, not only read
  std::vector<int> acquires, releases;                        // of semaphores in memory
  std::vector<int> memory_fences, proxy_fences;               // for the whole GPU; between TMA and other accesses
  std::map<std::uint32_t, std::vector<int>> tensor_maps;      // by place among the parameters; 0: elsewhere
  std::vector<int> grid_waits, grid_launches;                 // griddepcontrol

  // Surely wrong.
  std::vector<int> never_awaited;      // arrivals at mbarriers that nothing waits for
  std::vector<int> unexpected_loads;   // TMA loads that end at an mbarrier where no bytes are expected
  std::vector<int> never_loaded;       // arrivals that expect bytes where no TMA load ends
  std::vector<int> parity_never_flips; // waits of a loop for the same phase of the same mbarrier in every turn
  std::vector<int> left_out;           // waits that are not executed in some turns, while their parity goes on
  std::vector<int> never_read_out;     // bulk copies from buffers that are written again with no wait for them
  std::vector<int> released_in_flight; // releases of semaphores before bulk copies to global memory are done
  std::vector<int> odd_named;          // named barriers that nobody can pass, or where nobody waits
  std::vector<int> odd_counts;         // inits that count to nothing, of mbarriers that are used
};

struct Kernel {
  int number = 0;  // in its file, from 1
  std::string image, readable;
  int sm = 0;
  KernelRecord record;
  Listing listing;                           // with the code of functions it calls
  std::vector<std::string> followed, unseen;  // these, and those whose code is not there
  Cfg cfg;
  std::vector<WgmmaLoop> loops;
  Protocol protocol;
  Handovers handovers;
  Figures figures;
  std::map<std::string, Figures> scopes;  // prologue, epilogue, producer (protocol.h)
};

}  // namespace sass
