#include "operands.h"

#include <cctype>
#include <cstdlib>

#include "../system/text.h"
#include "sass.h"

namespace sass {
namespace {

// "R12", "R12.reuse", "UP3": the number behind the letters, or -1 if there is anything else.
int index_after(std::string_view text, std::string_view letters) {
  if (text.substr(0, letters.size()) != letters) return -1;
  text = text.substr(letters.size(), text.find('.') - letters.size());
  int index = 0;
  if (text.empty() || text.size() > 3) return -1;
  for (char c : text) {
    if (!std::isdigit(static_cast<unsigned char>(c))) return -1;
    index = 10 * index + c - '0';
  }
  return index;
}

}  // namespace

Operand operand_of(std::string_view text) {
  Operand operand;
  text = trim(text);
  if (!text.empty() && (text[0] == '!' || text[0] == '~')) {
    operand.inverted = true;
    text.remove_prefix(1);
  }
  const auto is = [&](Operand::Kind kind, int index) {
    operand.kind = kind;
    operand.index = index;
    return operand;
  };
  using Kind = Operand::Kind;
  std::string_view unsigned_text = text;
  if (!text.empty() && text[0] == '-') unsigned_text.remove_prefix(1);
  const std::string_view name = unsigned_text.substr(0, unsigned_text.find('.'));
  if (name == "PT") return is(Kind::predicate, true_predicate);
  if (name == "UPT") return is(Kind::uniform_predicate, true_predicate);
  operand.negative = unsigned_text.size() != text.size();
  if (name == "RZ" || name == "URZ" || name == "SRZ") return is(Kind::number, 0);
  if (const int i = index_after(unsigned_text, "UR"); i >= 0 && i < 256) return is(Kind::uniform_register, i);
  if (const int i = index_after(unsigned_text, "R"); i >= 0 && i < 256) return is(Kind::lane_register, i);
  if (const int i = index_after(unsigned_text, "UP"); i >= 0 && i < 8) return is(Kind::uniform_predicate, i);
  if (const int i = index_after(unsigned_text, "P"); i >= 0 && i < 8) return is(Kind::predicate, i);
  if (unsigned_text.empty() || !std::isdigit(static_cast<unsigned char>(unsigned_text[0]))) return operand;
  const std::string number(unsigned_text);
  char* end = nullptr;
  const unsigned long long value = std::strtoull(number.c_str(), &end, 0);
  if (*end != '\0') return operand;
  operand.kind = Kind::number;
  operand.value = static_cast<std::uint32_t>(value);
  return operand;
}

const std::vector<Operand>& operands_of(const Instruction& instruction) { return instruction.values; }

const Operand* register_written(const Instruction& i) {
  const std::vector<Operand>& x = operands_of(i);
  const size_t at = !x.empty() && x[0].is_predicate() ? 1 : 0;
  return at < x.size() && x[at].is_register() ? &x[at] : nullptr;
}

Operand guard_of(const Instruction& instruction) {
  if (instruction.guard.empty()) return {.kind = Operand::Kind::predicate, .index = true_predicate};
  return operand_of(std::string_view(instruction.guard).substr(1));
}

std::string_view first_modifier(const Instruction& instruction) {
  const std::vector<std::string_view> parts = split(instruction.opcode, '.');
  return parts.size() > 1 ? parts[1] : std::string_view();
}

}  // namespace sass
