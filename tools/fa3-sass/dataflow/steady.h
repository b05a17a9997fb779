// Whether an operand has the same value in every turn of a loop.
#pragma once

#include <string_view>

#include "../listing/cfg.h"
#include "../listing/operands.h"

namespace sass {

// Whether the instruction writes this register, of lanes or uniform.
bool writes(const Instruction& instruction, const Operand& wanted);
// Whether it may write this register or predicate.
bool may_write(const Instruction& instruction, const Operand& wanted);

// The outermost loop round an instruction that does more than spin; null if there is none.
const Loop* outermost_loop(const Listing& listing, const Cfg& cfg, int instruction);

// True if what is added up in `operand` of an instruction of the loop ("R4+UR39+0x38000") surely has one value in all
// turns: it is a constant, comes from outside of the loop, or is computed in one place from what is the same in all.
bool is_steady(const Listing& listing, const Cfg& cfg, const Loop& loop, int instruction, std::string_view operand);

}  // namespace sass
