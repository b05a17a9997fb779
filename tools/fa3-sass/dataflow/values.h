// Constants that reach the registers of an instruction: the bytes that an mbarrier is told to expect, the parity that a
// wait begins with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "../listing/cfg.h"

namespace sass {

// What a register may hold when an instruction is reached for the first time, that is, on ways that lead forward only.
// What comes from memory or from outside (parameters, other lanes) counts as 0, and is marked. An instruction with a
// guard reads what others with that guard have written, as long as nothing writes the predicate.
struct Values {
  static constexpr int most = 4;
  std::uint32_t values[most] = {};  // ascending
  std::uint8_t count = 0;
  bool runtime = false;  // it also depends on what is not known, or may have more values
};

// Where ways meet with different values, a register has all of them, or counts as unknown, too.
enum class Meeting { all, unknown };

// For each instruction that is wanted (ascending), the values of an operand's text.
std::vector<Values> operand_values(const Listing& listing, const Cfg& cfg, const std::vector<int>& wanted,
                                   std::string_view (*operand)(const Instruction&), Meeting meeting);

// The first operand, the last one, and what is added up in an address: "R4+UR39+0x38000" of "[R4+UR39+0x38000]".
std::string_view first_operand(const Instruction& instruction);
std::string_view last_operand(const Instruction& instruction);
std::string_view address_operand(const Instruction& instruction);

}  // namespace sass
