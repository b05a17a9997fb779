// What warps hand over to each other and to TMA: all mbarriers, named barriers, groups of bulk copies, semaphores in
// memory and tensor maps of a kernel, with the places that use them, and what is surely wrong about them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace sass {

struct Figure;
struct Kernel;

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

Handovers handovers_of(const Kernel& kernel);  // needs the kernel's protocol

// As figures, for rules and for JSON.
std::vector<Figure> handover_figures(const Kernel& kernel);

// Of some blocks: which mbarriers, by their place in the table, are used there, and how: "0w 4a".
Figure handovers_in(const Kernel& kernel, const std::vector<int>& blocks);

// As a table for readers.
std::string handover_text(const Kernel& kernel);

}  // namespace sass
