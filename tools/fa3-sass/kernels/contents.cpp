#include "contents.h"

#include <algorithm>
#include <map>
#include <set>

#include "../dataflow/values.h"
#include "../handovers/handovers.h"
#include "../listing/operands.h"
#include "../loops/kernel.h"
#include "../system/text.h"

namespace sass {
namespace {

// Kinds of things, each with the instructions that are of it. The figure names them; the number of each may differ with
// the size of a tile.
using Found = std::map<std::string, std::vector<int>>;

Figure words(const char* name, const Found& found) {
  std::string text;
  std::vector<int> evidence;
  for (const auto& [word, instructions] : found) {
    text += (text.empty() ? "" : ", ") + word;
    evidence.insert(evidence.end(), instructions.begin(), instructions.end());
  }
  std::ranges::sort(evidence);
  return {name, true, 0, text.empty() ? "none" : text, std::move(evidence), false};
}

std::string hex(std::uint32_t value) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), digits[value & 15]);
    value >>= 4;
  } while (value != 0);
  return text;
}

// Which bytes of two registers a permute takes: the selector, the third operand.
void permutes(const Instruction& i, int at, Found& found) {
  if ((!i.is("PRMT") && !i.is("UPRMT")) || i.operands.size() < 4) return;
  const Operand selector = operand_of(i.operands[2]);
  if (selector.kind == Operand::Kind::number) found[hex(selector.value)].push_back(at);
}

// How numbers are rounded: conversions with all their modes, and whatever else rounds otherwise than to the nearest.
void roundings(const Instruction& i, int at, Found& found) {
  static const char* const conversions[] = {"F2F", "F2I", "I2F", "I2FP", "F2FP", "FRND", "F2IP"};
  static const char* const modes[] = {"RM", "RP", "RZ", "TRUNC", "FLOOR", "CEIL"};
  const bool converts = std::ranges::any_of(conversions, [&](const char* name) { return i.is(name); });
  const bool rounds = std::ranges::any_of(modes, [&](const char* mode) { return i.has(mode); });
  // "F2FP.BF16.F32.PACK_AB" without what is packed where.
  const size_t end = std::min({i.opcode.find(".PACK"), i.opcode.find(".UNPACK"), i.opcode.find(".NTZ")});
  if (converts || rounds) found[i.opcode.substr(0, end)].push_back(at);
}

// Votes: of which sense, and whether what follows at once asks for the result or its opposite.
void votes(const Listing& listing, int at, Found& found) {
  const Instruction& i = listing.code[static_cast<size_t>(at)];
  if ((!i.is("VOTE") && !i.is("VOTEU")) || i.operands.empty()) return;
  const Operand result = operand_of(i.operands.front()), asked = operand_of(i.operands.back());
  if (!result.is_predicate() || result.index == true_predicate) return;
  std::string word = i.opcode.substr(i.opcode.find('.') + 1) + (asked.inverted ? " of none" : "");
  for (size_t k = static_cast<size_t>(at) + 1; k < listing.code.size() && k < static_cast<size_t>(at) + 40; ++k) {
    const Instruction& next = listing.code[k];
    const Operand guard = guard_of(next);
    if (guard.kind == result.kind && guard.index == result.index) {
      word += guard.inverted ? ", if not" : ", if so";
      break;
    }
    if (next.is("BRA") || next.is("EXIT")) break;
  }
  found[word].push_back(at);
}

// "gdesc[UR8]": A's descriptor in UR8 and UR9, if A is in shared memory, and B's in UR10 and UR11. The upper halves
// have strides and swizzle.
int first_descriptor(const Instruction& i) {
  for (const std::string& operand : i.operands)
    if (operand.starts_with("gdesc[")) return operand_of(operand.substr(6, operand.find(']') - 6)).index;
  return -1;
}
template <int part>
std::string_view descriptor_word(const Instruction& i) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> made;
    for (int r = 0; r < 128; ++r) made.push_back("UR" + std::to_string(r));
    return made;
  }();
  const int first = first_descriptor(i);
  return first < 0 ? std::string_view() : std::string_view(names[static_cast<size_t>(first + part)]);
}

Figure descriptors(const Kernel& kernel) {
  std::vector<int> all, with_a;
  for (int b : kernel.cfg.order)
    for (int i = kernel.cfg.blocks[static_cast<size_t>(b)].begin; i < kernel.cfg.blocks[static_cast<size_t>(b)].end;
         ++i) {
      const Instruction& instruction = kernel.listing.code[static_cast<size_t>(i)];
      if (!is_wgmma(instruction) || first_descriptor(instruction) < 0) continue;
      all.push_back(i);
      if (!a_in_registers(instruction)) with_a.push_back(i);
    }
  std::ranges::sort(all);
  std::ranges::sort(with_a);
  // What is not known counts as 0: then constants stand in the upper bits alone.
  constexpr std::uint32_t strides = 0x1000000;
  Found found;
  const auto note = [&](const std::vector<int>& wanted, std::string_view (*operand)(const Instruction&)) {
    const auto values = operand_values(kernel.listing, kernel.cfg, wanted, operand, Meeting::all);
    for (size_t k = 0; k < wanted.size(); ++k)
      for (int v = 0; v < values[k].count; ++v)
        if (!values[k].runtime || values[k].values[v] >= strides) found[hex(values[k].values[v])].push_back(wanted[k]);
  };
  note(all, descriptor_word<3>);
  note(with_a, descriptor_word<1>);
  return words("descriptors", found);
}

// "c[0x0][0x4a4]" -> 0x4a4; -1 if it is none, or its place is computed.
int constant_place(std::string_view operand) {
  const size_t at = operand.find("c[0x0][");
  if (at == std::string_view::npos) return -1;
  const Operand place = operand_of(operand.substr(at + 7, operand.find(']', at + 7) - at - 7));
  return place.kind == Operand::Kind::number ? static_cast<int>(place.value) : -1;
}

// Words of four bytes of the parameters that are read, by where they lie.
Figure parameters(const Kernel& kernel) {
  constexpr int first_parameter = 0x210;
  std::set<int> read;
  std::vector<int> evidence;
  for (size_t k = 0; k < kernel.listing.code.size(); ++k) {
    const Instruction& i = kernel.listing.code[k];
    for (const std::string& operand : i.operands) {
      const int place = constant_place(operand);
      if (place < first_parameter) continue;
      const int bytes = i.has("128") ? 16 : i.has("64") && (i.is("LDC") || i.is("ULDC")) ? 8 : 4;
      for (int b = 0; b < bytes; b += 4) read.insert((place - first_parameter + b) / 4);
      evidence.push_back(static_cast<int>(k));
    }
  }
  return {"parameter_words", false, static_cast<double>(read.size()), {}, std::move(evidence), false};
}

}  // namespace

std::vector<Figure> contents_figures(const Kernel& kernel) {
  Found permuted, rounded, voted, reduced;
  for (size_t k = 0; k < kernel.listing.code.size(); ++k) {
    const int at = static_cast<int>(k);
    const Instruction& i = kernel.listing.code[k];
    permutes(i, at, permuted);
    roundings(i, at, rounded);
    votes(kernel.listing, at, voted);
    if (i.is("RED") || i.is("REDG") || i.is("ATOMG") || i.is("ATOM") || i.is("UBLKRED") || i.is("UTMAREDG"))
      reduced[i.opcode].push_back(at);
  }
  return {words("permutes", permuted), words("roundings", rounded), words("votes", voted),
          words("reductions", reduced), descriptors(kernel), parameters(kernel)};
}

std::vector<Figure> part_figures(const Kernel& kernel, const std::string& scope) {
  static const std::pair<Kind, const char*> kinds[] = {
      {Kind::add, "adds"},         {Kind::multiply, "multiplies"}, {Kind::multiply_add, "fmas"},
      {Kind::special, "specials"}, {Kind::maximum, "maxima"},      {Kind::shuffle, "shuffles"}};
  std::vector<int> blocks;
  for (int b : kernel.cfg.order)
    if (kernel.protocol.scope[static_cast<size_t>(b)] == scope) blocks.push_back(b);
  std::vector<Figure> figures{handovers_in(kernel, blocks)};
  for (const auto& [kind, name] : kinds) {
    std::vector<int> found;
    for (int b : blocks) {
      const Block& block = kernel.cfg.blocks[static_cast<size_t>(b)];
      for (int i = block.begin; i < block.end; ++i)
        if (kind_of(kernel.listing.code[static_cast<size_t>(i)]) == kind) found.push_back(i);
    }
    std::ranges::sort(found);
    figures.push_back({name, false, static_cast<double>(found.size()), {}, std::move(found), false});
  }
  return figures;
}

}  // namespace sass
