// How a turn of a loop runs, block by block, and where the values come from that decide its way.
#pragma once

#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "../listing/cfg.h"
#include "../listing/operands.h"

namespace sass {

bool same(const Operand& a, const Operand& b);

// All registers and predicates that an instruction reads, or may read: also those of addresses, and its guard.
std::vector<Operand> read_by(const Instruction& i);

// What a condition depends on.
struct Origins {
  std::set<int> loads;      // in this turn of the loop
  std::set<int> earlier;    // in turns before
  bool carried = false;     // on what the loop hands on from turn to turn
  bool followed = true;     // to the end
};

class TurnFlow {
 public:
  using Blocks = std::vector<bool>;  // by number

  TurnFlow(const Listing& listing, const Cfg& cfg);

  const Instruction& code(int i) const { return listing_.code[static_cast<size_t>(i)]; }
  const Block& block(int b) const { return cfg_.blocks[static_cast<size_t>(b)]; }
  int block_of(int i) const { return block_of_[static_cast<size_t>(i)]; }

  // Blocks of the loop that are come to from some blocks in the same turn without entering a closed one. The first ones
  // are open.
  Blocks forward(const Loop& loop, const std::vector<int>& from, const Blocks& closed) const;
  // Blocks that are not closed from which the turn comes to its end through none that is closed.
  Blocks to_the_end(const Loop& loop, const Blocks& closed) const;
  // Blocks from which the next turn begins. A wait at the loop's beginning that spins has the same header: such a block
  // tries again, and ends no turn.
  std::vector<int> ends_of_turn(const Loop& loop) const;
  bool tries_again(int b) const;
  // The last writes of a register before instruction `before` of a block, on any way within the turn; and whether the
  // turn's beginning is come to. A guarded write may leave what was there.
  void writes_before(const Loop& loop, int b, int before, const Operand& wanted, std::set<int>& found,
                     bool& at_header) const;
  // `turns` says whether values are followed through turns before, too.
  Origins origins(const Loop& loop, int branch, bool turns) const;
  // Whether lanes may have different values of what an instruction reads: followed through the whole kernel, and
  // through addresses of what is loaded.
  bool depends_on_lane(int instruction) const;
  // Within a turn of the outermost loop round both, or in code without one: whether there is a way from one to another.
  bool leads_to(const Loop& loop, int from, int to) const;
  // Whether every way through a turn to the second one goes through the first.
  bool precedes(const Loop& loop, int first, int second) const;

 protected:
  const Listing& listing_;
  const Cfg& cfg_;

 private:
  bool is_written(const Loop& loop, const Operand& wanted) const;
  void follow(const Loop& loop, int b, int before, const Operand& wanted, bool turns, bool earlier, Origins& to,
              std::set<std::tuple<int, int, int, bool>>& seen) const;

  std::vector<int> block_of_;
};

}  // namespace sass
