#include "pressure.h"

#include <algorithm>
#include <bitset>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>

namespace sass {
namespace {

constexpr int registers = 256;
using Set = std::bitset<registers>;

// What is live before the instruction, if `live` is behind it.
void step_back(const Instruction& instruction, Set& live) {
  const auto each = [](const Registers& run, const auto& use) {
    for (int r = run.first; r >= 0 && r < std::min(run.first + run.count, registers - 1); ++r)
      use(static_cast<size_t>(r));
  };
  if (instruction.guard.empty()) each(destination(instruction), [&](size_t r) { live.reset(r); });
  for (const Registers& run : sources(instruction)) each(run, [&](size_t r) { live.set(r); });
}

// The register that an operand is, whole: "R24", "-R8.reuse"; -1 for others, also for the one of zeros.
int operand_register(const std::string& operand) {
  const size_t at = operand.find('R');
  if (at == std::string::npos || operand.find('[') != std::string::npos) return -1;
  if (at > 0 && operand[at - 1] == 'U') return -1;
  if (at + 1 >= operand.size() || !std::isdigit(static_cast<unsigned char>(operand[at + 1]))) return -1;
  return std::atoi(operand.c_str() + at + 1);
}

bool is_arithmetic(const Instruction& i) {
  for (const char* name : {"FFMA", "FADD", "FMUL", "FMNMX", "IMAD", "IADD3", "LOP3", "PRMT", "F2FP", "SHF", "HFMA2"})
    if (i.is(name)) return true;
  return false;
}

}  // namespace

std::vector<int> live_registers(const Listing& listing, const Cfg& cfg) {
  std::vector<Set> entering(cfg.blocks.size());
  const auto leaving = [&](const Block& block) {
    Set live;
    for (int successor : block.successors) live |= entering[static_cast<size_t>(successor)];
    return live;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (auto b = cfg.order.rbegin(); b != cfg.order.rend(); ++b) {
      const Block& block = cfg.blocks[static_cast<size_t>(*b)];
      Set live = leaving(block);
      for (int i = block.end; i-- > block.begin;) step_back(listing.code[static_cast<size_t>(i)], live);
      changed |= live != entering[static_cast<size_t>(*b)];
      entering[static_cast<size_t>(*b)] = live;
    }
  }
  std::vector<int> counts(listing.code.size(), 0);
  for (const Block& block : cfg.blocks) {
    Set live = leaving(block);
    for (int i = block.end; i-- > block.begin;) {
      step_back(listing.code[static_cast<size_t>(i)], live);
      counts[static_cast<size_t>(i)] = static_cast<int>(live.count());
    }
  }
  return counts;
}

std::vector<int> bank_conflicts(const Listing& listing, const std::vector<int>& code) {
  std::vector<int> found;
  std::map<int, int> cached;  // by operand: the register that the last instruction left there
  for (size_t position = 0; position < code.size(); ++position) {
    const Instruction& i = listing.code[static_cast<size_t>(code[position])];
    std::map<int, int> kept;
    std::set<int> read[2];
    const bool counts = is_arithmetic(i);
    int source = 0;
    for (size_t k = 1; k < i.operands.size(); ++k) {
      const std::string& operand = i.operands[k];
      if (operand[0] == 'P' || operand.starts_with("!P")) continue;  // predicates, of LOP3 and others
      const int r = operand_register(operand);
      if (r >= 0 && operand.find(".reuse") != std::string::npos) kept[source] = r;
      const auto there = cached.find(source++);
      if (counts && r >= 0 && (there == cached.end() || there->second != r)) read[r % 2].insert(r);
    }
    if (read[0].size() > 2 || read[1].size() > 2) found.push_back(static_cast<int>(position));
    cached = std::move(kept);
  }
  return found;
}

}  // namespace sass
