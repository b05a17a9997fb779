#include "sass.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <map>

#include "../system/text.h"

namespace sass {
namespace {

bool begins(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// "/*0a10*/": the address, and what follows it. nvdisasm writes four or more digits.
bool address_of(std::string_view line, int& address, std::string_view& rest) {
  if (!begins(line, "/*")) return false;
  const size_t end = line.find("*/");
  if (end == std::string_view::npos || end < 6 || end > 10) return false;
  address = 0;
  for (char c : line.substr(2, end - 2)) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return false;
    address = address * 16 + (std::isdigit(static_cast<unsigned char>(c)) ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  rest = trim(line.substr(end + 2));
  return true;
}

constexpr std::string_view source_mark = "//## File ";  // nvdisasm -g

bool may_jump(const Instruction& i) {
  return i.is("BRA") || i.is("BRX") || i.is("BRXU") || i.is("JMP") || i.is("JMX") || i.is("WARPSYNC");
}

// Names of code places inside the text: `(.L_x_12) of a branch, or the list nvdisasm puts behind an indirect one.
std::vector<std::string> labels_in(std::string_view text) {
  std::vector<std::string> labels;
  for (size_t at = text.find(".L"); at != std::string_view::npos; at = text.find(".L", at + 2)) {
    if (at > 0 && (std::isalnum(static_cast<unsigned char>(text[at - 1])) || text[at - 1] == '_')) continue;
    size_t end = at + 2;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
    labels.emplace_back(text.substr(at, end - at));
  }
  return labels;
}

std::vector<std::string> operands_of(std::string_view text) {
  std::vector<std::string> operands;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && (text[i] == '[' || text[i] == '(')) ++depth;
    if (i < text.size() && (text[i] == ']' || text[i] == ')')) --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    if (const auto operand = trim(text.substr(begin, i - begin)); !operand.empty()) operands.emplace_back(operand);
    begin = i + 1;
  }
  return operands;
}

// The general register an operand begins with: "R24", "-R8.reuse", "|R3|", "[R12+0x10]" -> the number; -1 for anything
// else.
int register_in(std::string_view operand, size_t from = 0) {
  for (size_t at = operand.find('R', from); at != std::string_view::npos; at = operand.find('R', at + 1)) {
    const bool word = at == 0 || !(std::isalnum(static_cast<unsigned char>(operand[at - 1])) || operand[at - 1] == '_');
    if (!word || at + 1 >= operand.size() || !std::isdigit(static_cast<unsigned char>(operand[at + 1]))) continue;
    int value = 0;
    for (size_t i = at + 1; i < operand.size() && std::isdigit(static_cast<unsigned char>(operand[i])) && value < 1000;
         ++i)
      value = value * 10 + operand[i] - '0';
    return value <= 255 ? value : -1;
  }
  return -1;
}

// "LDTM.x16": 16 registers, but for shapes of 128 and 256 bits twice and four times as many.
int tensor_memory_width(const Instruction& i) {
  const size_t x = i.opcode.find(".x");
  const int times = x == std::string::npos ? 1 : std::atoi(i.opcode.c_str() + x + 2);
  const auto has = [&](const char* part) { return i.opcode.find(part) != std::string::npos; };
  return times * (has("256bit") ? 4 : has("128bit") ? 2 : 1);
}

int memory_width(const Instruction& i) {
  if (i.is("LDTM") || i.is("STTM")) return tensor_memory_width(i);
  if (i.is("LDSM") || i.is("STSM")) return i.has("4") ? 4 : i.has("2") ? 2 : 1;
  return i.has("128") ? 4 : i.has("64") ? 2 : 1;
}

bool stores(const Instruction& i) {
  for (const char* name : {"STS", "STG", "STL", "ST", "STSM", "STTM", "RED", "REDG", "REDAS"})
    if (i.is(name)) return true;
  return false;
}

bool loads(const Instruction& i) {
  for (const char* name : {"LDS", "LDG", "LDL", "LD", "LDSM", "LDTM", "LDC", "LDGMC", "ATOMG", "ATOMS"})
    if (i.is(name)) return true;
  return false;
}

bool is_gmma(const Instruction& i) { return i.is("HGMMA") || i.is("QGMMA") || i.is("IGMMA") || i.is("BGMMA"); }

// n of "64x<n>x16"
int gmma_columns(const Instruction& i) {
  const size_t at = i.opcode.find(".64x");
  return at == std::string::npos ? 0 : std::atoi(i.opcode.c_str() + at + 4);
}

// Which operand is the destination register: the second where a predicate comes first (SHFL PT, R1, ...).
int destination_operand(const Instruction& i) {
  if (stores(i) || i.is("SYNCS") || i.is("R2UR") || i.is("BAR") || i.is("EXIT") || may_jump(i) ||
      i.mnemonic().substr(0, 1) == "U" || i.operands.empty())
    return -1;
  for (int k = 0; k < 2 && k < static_cast<int>(i.operands.size()); ++k) {
    const std::string& operand = i.operands[static_cast<size_t>(k)];
    if (operand[0] == 'R') return k;
    if (operand[0] != 'P' && operand.substr(0, 2) != "UP") return -1;
  }
  return -1;
}

Registers written_by(const Instruction& i) {
  const int operand = destination_operand(i);
  if (operand < 0) return {};
  Registers result{register_in(i.operands[static_cast<size_t>(operand)]), 1};
  if (result.first < 0) return {};
  if (is_gmma(i)) result.count = i.has("F16") && !i.has("F32") ? gmma_columns(i) / 4 : gmma_columns(i) / 2;
  else if (i.is("HMMA") || i.is("IMMA") || i.is("QMMA")) result.count = 4;
  else if (loads(i)) result.count = memory_width(i);
  else if ((i.is("CS2R") && !i.has("32")) || i.has("WIDE") || i.has("64") || i.is("DFMA") || i.is("DADD") ||
           i.is("DMUL"))
    result.count = i.is("SHF") ? 1 : 2;
  return result;
}

Instruction instruction_of(int line, int address, std::string_view text) {
  const size_t end = text.find(';');
  if (end == std::string_view::npos) throw ParseError(line, "an instruction without its closing semicolon");
  Instruction result;
  result.address = address;
  text = trim(text.substr(0, end));
  // A remark behind it, such as (*"SpillRefill"*), stands in a column that depends on labels of other functions.
  std::ranges::unique_copy(text, std::back_inserter(result.text), [](char a, char b) { return a == ' ' && b == ' '; });
  if (begins(text, "@")) {
    const size_t space = text.find_first_of(" \t");
    if (space == std::string_view::npos) throw ParseError(line, "a predicate without an instruction");
    result.guard = std::string(text.substr(0, space));
    text = trim(text.substr(space));
  }
  const size_t space = std::min(text.find_first_of(" \t"), text.size());
  result.opcode = std::string(text.substr(0, space));
  if (result.opcode.empty() || !std::isupper(static_cast<unsigned char>(result.opcode[0])))
    throw ParseError(line, "no instruction in \"" + std::string(text.substr(0, 40)) + "\"");
  text.remove_prefix(space);
  result.operands = operands_of(text.substr(0, text.find("(*")));
  for (const std::string& operand : result.operands) result.values.push_back(operand_of(operand));
  result.written = written_by(result);
  return result;
}

// "sm_90a" -> 90, wherever it stands in the text; 0 if there is none
int architecture_in(std::string_view text) {
  const size_t at = text.find("sm_");
  return at == std::string_view::npos ? 0 : std::atoi(std::string(text.substr(at + 3, 4)).c_str());
}

class Parser {
 public:
  explicit Parser(const std::function<void(Listing&&)>& use) : use_(use) {}

  void line(int number, std::string_view text) {
    number_ = number;
    text = trim(text);
    if (begins(text, source_mark)) return source_line(text);
    if (text.empty() || begins(text, "//")) return;
    if (begins(text, "/* 0x")) return upper_half(text.substr(3));
    int address = 0;
    std::string_view rest;
    if (begins(text, ".section")) {
      finish();
    } else if (begins(text, ".target") || begins(text, "code for sm_")) {
      sm_ = architecture_in(text);
    } else if (begins(text, "Function :")) {  // cuobjdump -sass
      start(trim(text.substr(10)));
    } else if (text.back() == ':' && text.find_first_of(" \t") == std::string_view::npos) {
      label(text.substr(0, text.size() - 1));
    } else if (inside_ && address_of(text, address, rest)) {
      if (begins(rest, ".")) throw ParseError(number, "data where an instruction was expected");
      if (!current_.code.empty() && address <= current_.code.back().address)
        throw ParseError(number, "addresses do not increase");
      current_.code.push_back(instruction_of(number, address, rest));
      current_.code.back().source = source_;
      fresh_source_ = true;
      lines_.push_back(number);
    } else if (inside_ && !begins(text, ".") && !begins(text, "/*") && !begins(text, "{") && !begins(text, "}") &&
               !begins(text, "headerflags")) {
      // A function's text ends here in cuobjdump's output ("....."); anything else is damage.
      throw ParseError(number, "not SASS: \"" + std::string(text.substr(0, 40)) + "\"");
    }
  }

  void end() {
    finish();
    if (!any_) throw ParseError(number_, "no SASS function in the text");
  }

 private:
  // `//## File "a.cuh", line 7 inlined at "b.cu", line 9`: the innermost place comes first, then where it stands.
  void source_line(std::string_view text) {
    const size_t begin = text.find('"'), end = text.find('"', begin + 1), line = text.find("line ", end);
    if (end == std::string_view::npos || line == std::string_view::npos) return;
    const std::string_view path = text.substr(begin + 1, end - begin - 1);
    const size_t digits = line + 5, behind = std::min(text.find_first_not_of("0123456789", digits), text.size());
    const std::string place = std::string(path.substr(path.rfind('/') + 1)) + ":" +
                              std::string(text.substr(digits, behind - digits));
    if (fresh_source_) innermost_ = place;
    source_ = place == innermost_ ? place : innermost_ + ", from " + place;
    fresh_source_ = false;
  }

  // nvdisasm -hex and cuobjdump print an instruction's lower half behind it, and its upper one in a line of its own.
  void upper_half(std::string_view text) {
    if (!current_.code.empty() && !current_.code.back().control.known)
      current_.code.back().control = control_of(std::strtoull(std::string(text.substr(0, 18)).c_str(), nullptr, 16));
  }

  void label(std::string_view name) {
    if (begins(name, ".text.")) {
      start(name.substr(6));
    } else if (inside_) {
      if (!labels_.emplace(std::string(name), current_.code.size()).second)
        throw ParseError(number_, "label " + std::string(name) + " defined twice");
    }
  }

  void start(std::string_view name) {
    finish();
    inside_ = fresh_source_ = true;
    source_.clear();
    current_.name = std::string(name);
    current_.sm = sm_;
  }

  int target(const std::string& name, int line) const {
    const auto found = labels_.find(name);
    if (found == labels_.end()) throw ParseError(line, "branch to " + name + ", which is not in the listing");
    // A label behind the last instruction stands for falling off the end: no successor.
    return found->second < current_.code.size() ? static_cast<int>(found->second) : -1;
  }

  // `(f) of nvdisasm names the function; cuobjdump -sass prints where it begins.
  void find_callee(Instruction& call) const {
    const std::string& operand = call.operands.back();
    const size_t begin = operand.find("`("), end = operand.rfind(')');
    if (begin != std::string::npos && end > begin + 2) {
      call.callee = operand.substr(begin + 2, end - begin - 2);
      if (const auto label = labels_.find(call.callee); label != labels_.end() && label->second < current_.code.size())
        call.entry = static_cast<int>(label->second);
    } else {
      call.callee = operand;
      if (call.has("REL") && begins(operand, "0x")) call.entry = index_of(std::strtol(operand.c_str(), nullptr, 16));
    }
  }

  int index_of(long address) const {
    const auto at = std::lower_bound(current_.code.begin(), current_.code.end(), address,
                                     [](const Instruction& i, long a) { return i.address < a; });
    return at == current_.code.end() || at->address != address ? -1 : static_cast<int>(at - current_.code.begin());
  }

  // cuobjdump -sass prints absolute addresses instead of labels.
  int address_target(const std::string& operand, int line) const {
    const int index = index_of(std::strtol(operand.c_str(), nullptr, 16));
    if (index < 0) throw ParseError(line, "branch to " + operand + ", which is not in the listing");
    return index;
  }

  void finish() {
    if (!inside_) return;
    inside_ = false;
    for (size_t i = 0; i < current_.code.size(); ++i) {
      Instruction& instruction = current_.code[i];
      if (instruction.is("CALL") && !instruction.operands.empty()) find_callee(instruction);
      if (!may_jump(instruction)) continue;
      for (const std::string& name : labels_in(instruction.text))
        if (const int to = target(name, lines_[i]); to >= 0) instruction.targets.push_back(to);
      if (instruction.targets.empty() && instruction.is("BRA") && !instruction.operands.empty() &&
          begins(instruction.operands.back(), "0x"))
        instruction.targets.push_back(address_target(instruction.operands.back(), lines_[i]));
    }
    if (current_.code.empty()) throw ParseError(number_, "function " + current_.name + " has no instructions");
    const Instruction& last = current_.code.back();
    if (!last.guard.empty() ||
        !(last.is("NOP") || last.is("BRA") || last.is("EXIT") || last.is("RET") || last.is("BPT")))
      throw ParseError(number_,
                       "function " + current_.name + " ends in the middle: its last instruction is " + last.text);
    number_labels();
    any_ = true;
    use_(std::move(current_));
    current_ = {};
    labels_.clear();
    lines_.clear();
  }

  // nvdisasm counts labels through all functions that it prints, and through what its options make it print beside
  // them.
  void number_labels() {
    constexpr std::string_view counted = ".L_x_";
    const auto each_label = [&](std::string& text, const auto& use) {
      for (size_t at = text.find(counted); at != std::string::npos; at = text.find(counted, at + 1)) {
        const size_t end = std::min(text.find_first_not_of("0123456789", at + counted.size()), text.size());
        if (const auto label = labels_.find(text.substr(at, end - at)); label != labels_.end())
          use(text, at, end - at, label->second);
      }
    };
    std::map<size_t, size_t> numbers;  // by place
    for (Instruction& instruction : current_.code)
      each_label(instruction.text, [&](std::string&, size_t, size_t, size_t place) { numbers[place] = 0; });
    size_t next = 0;
    for (auto& [place, number] : numbers) number = next++;
    const auto rename = [&](std::string& text, size_t at, size_t size, size_t place) {
      text.replace(at, size, std::string(counted) + std::to_string(numbers[place]));
    };
    if (numbers.empty()) return;
    for (Instruction& instruction : current_.code) {
      each_label(instruction.text, rename);
      for (std::string& operand : instruction.operands) each_label(operand, rename);
    }
  }

  const std::function<void(Listing&&)>& use_;
  Listing current_;
  std::vector<int> lines_;
  std::map<std::string, size_t> labels_;
  std::string source_, innermost_;  // of the instructions that follow
  bool inside_ = false, any_ = false, fresh_source_ = true;
  int number_ = 0, sm_ = 0;
};

}  // namespace

bool Instruction::has(std::string_view modifier) const {
  for (size_t at = opcode.find(modifier); at != std::string::npos; at = opcode.find(modifier, at + 1)) {
    const size_t end = at + modifier.size();
    if ((at == 0 || opcode[at - 1] == '.') && (end == opcode.size() || opcode[end] == '.')) return true;
  }
  return false;
}

void each_function(std::string_view text, const std::function<void(Listing&&)>& use) {
  Parser parser(use);
  int number = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    parser.line(++number, text.substr(begin, end - begin));
    begin = end + 1;
  }
  parser.end();
}

std::vector<Listing> parse(std::string_view text) {
  std::vector<Listing> functions;
  each_function(text, [&](Listing&& function) { functions.push_back(std::move(function)); });
  return functions;
}

std::vector<Registers> sources(const Instruction& i) {
  std::vector<Registers> result;
  const int skip = destination_operand(i);
  for (int k = 0; k < static_cast<int>(i.operands.size()); ++k) {
    if (k == skip) continue;
    const std::string& operand = i.operands[static_cast<size_t>(k)];
    Registers read{register_in(operand), 1};
    if (read.first < 0) continue;
    const bool address = operand.find('[') != std::string::npos;
    if (is_gmma(i)) read.count = k == 1 ? 4 : destination(i).count;
    else if (stores(i) && !address) read.count = memory_width(i);
    else if (i.is("HMMA")) read.count = k == 2 ? 2 : 4;
    result.push_back(read);
  }
  return result;
}

}  // namespace sass
