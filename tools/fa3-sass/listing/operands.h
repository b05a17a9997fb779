// Operands of an instruction as values: registers, predicates and constants, of lanes and uniform ones.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace sass {

struct Instruction;

struct Operand {
  enum class Kind { lane_register, uniform_register, predicate, uniform_predicate, number, other };
  Kind kind = Kind::other;
  int index = 0;           // of a register or predicate
  std::uint32_t value = 0; // of a number; RZ and URZ are the number 0
  bool negative = false;   // -R4
  bool inverted = false;   // ~R4, !P0

  bool is_register() const { return kind == Kind::lane_register || kind == Kind::uniform_register; }
  bool is_predicate() const { return kind == Kind::predicate || kind == Kind::uniform_predicate; }
};

// PT and UPT, which are always true.
constexpr int true_predicate = 7;

Operand operand_of(std::string_view text);
const std::vector<Operand>& operands_of(const Instruction& instruction);

// The register that it writes, behind a predicate or first; of a comparison, or a vote, none.
const Operand* register_written(const Instruction& instruction);

// The guard as a predicate; PT if there is none.
Operand guard_of(const Instruction& instruction);

// The modifier of a comparison, shift or the like that says how: "NE" of ISETP.NE.AND. Empty if there is none.
std::string_view first_modifier(const Instruction& instruction);

}  // namespace sass
