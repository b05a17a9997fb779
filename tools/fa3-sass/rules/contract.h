// Contracts: what the machine code of a kernel is meant to look like, with figures, in a text file beside its source.
//
//   rows fa3_fwd_*_d64_*             the rules below are for these rows of the table
//   hot.gemms == table               derived from the row
//   hot.instructions <= 180          of every hot loop; hot[QK+PV] names one; boundary loops are another scope
//   epilogue.waits == 0              of the code behind the loops; prologue, producer and kernel are the others
//   waive hot.masks *_causal: why    the rule for this figure does not hold for these rows, and why that is accepted
//   most hot.exps boundary.exps      in each line below, patterns of rows, and how much each of these figures may be at
//     fa3_fwd_*_d64_*       32  64   most, or - where nothing is said
//
// A later rule for the same figure and operator replaces an earlier one. `#` begins a comment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../loops/kernel.h"

namespace sass {

struct Rule {
  std::string file;  // without its folder
  int line = 0;
  std::string scope;  // kernel, hot, boundary, prologue, epilogue, producer
  std::string role;   // of the loop, or empty for all
  std::string figure;
  std::string relation;  // == <= >= < >
  std::string bound;     // a number, words, or "table"
  bool advice = false;   // it may be meant so: no fault if it is broken
  std::string subject() const { return scope + (role.empty() ? "" : "[" + role + "]") + "." + figure; }
  std::string text() const { return subject() + " " + relation + " " + bound; }
};

struct Waiver {
  int line = 0;
  std::string subject, reason;
  std::vector<std::string> rows;  // patterns; none means all of the section's
};

struct Section {
  int line = 0;
  std::vector<std::string> rows;  // patterns
  std::vector<Rule> rules;
  std::vector<Waiver> waivers;
  bool covers(std::string_view row) const;
};

struct Contract {
  std::string path;
  std::vector<Section> sections;
  // Without them, rules about numbers of instructions, and about what else one compiler makes of the source (how often
  // it copies code, how it divides), are left out. What they replace does not come back, and waivers of them are no
  // fault.
  bool budgets = true;
};

// Throws std::runtime_error with file and line on what it does not understand.
Contract read_contract(const std::string& path, std::string_view text);

struct Finding {
  enum class State { kept, broken, waived, advice } state = State::kept;
  int number = 0;                                         // of the kernel in its file
  std::string row, rule, place, expected, found, reason;  // place: "fwd.contract:12"
  std::string meaning;                                    // a sentence: what may happen (meaning.h)
  std::vector<std::string> instructions;                  // that make the difference, as the listing has them
  std::vector<std::string> sources{};                     // of each, "kernel.cu:12", or empty if not known
};

// Every rule of the contract for this kernel. A kernel that no section covers, and a waiver of a rule that holds, are
// broken findings too.
std::vector<Finding> check(const Contract& contract, const Kernel& kernel);

}  // namespace sass
