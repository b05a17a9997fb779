// One turn of a loop with WGMMAs, in program order: its GEMMs, commit groups and waits, and what lies in their shadow.
#pragma once

#include <string>
#include <vector>

#include "../listing/cfg.h"
#include "../listing/kinds.h"

namespace sass {

// Consecutive WGMMAs that build one accumulator.
struct Gemm {
  std::string name = "GEMM";  // QK, PV; S, dP, dV, dK, dQ in a backward pass
  std::string shape;          // "64x128x16"
  std::string types;          // "F32.BF16"
  bool zero = false;   // starts from zero instead of adding to the accumulator
  bool feeds = false;  // what becomes of it in registers is A of another one
  Registers accumulator;
  std::vector<int> steps;           // positions in the turn
  std::vector<int> register_steps;  // of those, the ones that take A from registers
};

// What one commit (gsb0) covers. Positions beyond the end of the turn belong to the next turn.
struct Group {
  std::vector<int> gemms;
  int first = -1, commit = -1, wait = -1;  // -1: never
};

struct Turn {
  std::vector<int> code;  // instruction indices in program order
  std::vector<Kind> kinds;
  bool cyclic = true;
  std::vector<Gemm> gemms;
  std::vector<Group> groups;

  int size() const { return static_cast<int>(code.size()); }
  bool in_flight(int position) const;   // between a group's commit and the wait that covers it
  bool overlapped(int position) const;  // between a group's first WGMMA and the wait that covers it
  const Gemm* gemm_at(int position) const;
  // How many WGMMAs of the GEMM are between their group's commit and the wait that covers it.
  int steps_in_flight(const Gemm& gemm, int position) const;
  std::vector<int> touches;     // positions that use registers a WGMMA in flight owns
  std::vector<int> serialised;  // positions of waits in the midst of a GEMM that leave none of its WGMMAs in flight
  // Whether one of those waits for a single WGMMA, as ptxas does. A source commits several at once, and may have reason
  // to wait for them there.
  bool one_by_one = false;
};

// `path` are blocks; a cyclic turn is followed round twice, so that groups that cross the back edge find their waits.
Turn follow(const Listing& listing, const Cfg& cfg, const std::vector<int>& path, bool cyclic);

// Where a WGMMA takes A from: RS, registers, or SS, shared memory. B is always in shared memory.
bool a_in_registers(const Instruction& wgmma);
Registers a_operand(const Instruction& wgmma);  // none in SS form

// WARPGROUP.DEPBAR.LE gsb0, N
int wait_count(const Instruction& instruction);

}  // namespace sass
