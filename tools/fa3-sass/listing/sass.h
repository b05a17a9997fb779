// SASS as text: nvdisasm's (or cuobjdump -sass's) listing parsed into instructions.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "control.h"
#include "operands.h"

namespace sass {

// A run of general registers that an instruction reads or writes.
struct Registers {
  int first = -1, count = 0;
  bool overlaps(const Registers& other) const {
    return count > 0 && other.count > 0 && first < other.first + other.count && other.first < first + count;
  }
};

struct Instruction {
  int address = 0;
  std::string guard;   // "@!P0", or empty
  std::string opcode;  // "HGMMA.64x64x16.F32.BF16"
  std::vector<std::string> operands;
  std::vector<Operand> values;  // of the operands
  Registers written;
  std::vector<int> targets;  // indices of the instructions a branch may go to
  std::string callee;        // of a CALL: the function's name, as far as it is printed
  int entry = -1;            // of a CALL within the listing: the index of the function's first instruction
  std::string source;        // "kernel.cu:12", what it was compiled from, if the listing says so
  std::string text;          // the whole instruction as printed, without address and semicolon
  Control control;           // as far as the image, or the listing in hexadecimal, tells

  std::string_view mnemonic() const { return std::string_view(opcode).substr(0, opcode.find('.')); }
  // mnemonic() == name
  bool is(std::string_view name) const {
    return opcode.starts_with(name) && (opcode.size() == name.size() || opcode[name.size()] == '.');
  }
  bool has(std::string_view modifier) const;  // one dotted part of the opcode
};

struct Listing {
  std::string name;
  int sm = 0;  // what the text says it is for: 90 for sm_90a; 0 if it does not say
  std::vector<Instruction> code;
};

struct ParseError : std::runtime_error {
  ParseError(int line, const std::string& what) : std::runtime_error("line " + std::to_string(line) + ": " + what) {}
};

// Every function of the text, in order. Throws ParseError on what is not a whole listing. Labels are numbered anew
// within each function, so that its text does not depend on what was printed before it.
void each_function(std::string_view text, const std::function<void(Listing&&)>& use);
std::vector<Listing> parse(std::string_view text);

inline Registers destination(const Instruction& instruction) { return instruction.written; }
std::vector<Registers> sources(const Instruction& instruction);

}  // namespace sass
