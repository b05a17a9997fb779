#include "diff.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "text.h"

namespace sass {
namespace {

// Beyond this many table cells only counts of instructions are compared.
constexpr size_t largest_table = 40'000'000;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

std::vector<std::pair<Figure, Figure>> moved(const Figures& before, const Figures& after) {
  std::vector<std::pair<Figure, Figure>> result;
  for (const Figure& old : before) {
    const Figure* now = find(after, old.name);
    if (!now || now->shown() != old.shown()) result.emplace_back(old, now ? *now : Figure{});
  }
  for (const Figure& now : after)
    if (!find(before, now.name)) result.emplace_back(Figure{}, now);
  return result;
}

std::vector<std::string> sequence(const Kernel& kernel, const std::vector<int>& code) {
  std::vector<std::string> result;
  for (int i : code) result.push_back(normalised(kernel.listing.code[static_cast<size_t>(i)]));
  return result;
}

std::vector<Change> count_changes(const std::vector<std::string>& before, const std::vector<std::string>& after) {
  std::map<std::string, int> balance;
  for (const std::string& line : before) --balance[line];
  for (const std::string& line : after) ++balance[line];
  std::vector<Change> result;
  for (const auto& [line, count] : balance)
    for (int i = 0; i < std::abs(count); ++i) result.push_back({count > 0, line});
  return result;
}

// Loops by role; several of one role in program order, the hot one apart from boundary loops.
std::map<std::string, const WgmmaLoop*> by_role(const Kernel& kernel) {
  std::map<std::string, const WgmmaLoop*> result;
  for (const WgmmaLoop& loop : kernel.loops) {
    const std::string base = (loop.hot ? "hot loop " : "boundary loop ") + loop.role;
    std::string name = base;
    for (int n = 2; result.count(name); ++n) name = base + " #" + std::to_string(n);
    result[name] = &loop;
  }
  return result;
}

}  // namespace

std::string normalised(const Instruction& instruction) {
  std::string result;
  const std::string& text = instruction.text;
  for (size_t i = 0; i < text.size();) {
    if (!is_word(text[i]) || (i > 0 && is_word(text[i - 1]))) {
      result += text[i++];
      continue;
    }
    size_t end = i;
    while (end < text.size() && is_word(text[end])) ++end;
    std::string word = text.substr(i, end - i);
    if (const size_t reuse = word.find(".reuse"); reuse != std::string::npos) word.erase(reuse);
    if (word.rfind(".L", 0) == 0) word = ".L";
    for (const char* name : {"UR", "R", "UP", "P", "B"}) {
      const size_t length = std::string(name).size();
      size_t digits = length;
      while (digits < word.size() && std::isdigit(static_cast<unsigned char>(word[digits]))) ++digits;
      if (word.rfind(name, 0) == 0 && digits > length && (digits == word.size() || word[digits] == '.')) {
        word = name + word.substr(digits);
        break;
      }
    }
    result += word;
    i = end;
  }
  return result;
}

std::vector<Change> changes(const std::vector<std::string>& before, const std::vector<std::string>& after) {
  size_t head = 0, tail = 0;
  while (head < before.size() && head < after.size() && before[head] == after[head]) ++head;
  while (tail < before.size() - head && tail < after.size() - head &&
         before[before.size() - 1 - tail] == after[after.size() - 1 - tail])
    ++tail;
  const size_t n = before.size() - head - tail, m = after.size() - head - tail;
  if (n * m > largest_table) return count_changes(before, after);
  std::vector<std::vector<int>> common(n + 1, std::vector<int>(m + 1, 0));  // longest common subsequence of the rests
  for (size_t i = n; i-- > 0;)
    for (size_t j = m; j-- > 0;)
      common[i][j] =
          before[head + i] == after[head + j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
  std::vector<Change> result;
  for (size_t i = 0, j = 0; i < n || j < m;) {
    if (i < n && j < m && before[head + i] == after[head + j]) ++i, ++j;
    else if (j == m || (i < n && common[i + 1][j] >= common[i][j + 1])) result.push_back({false, before[head + i++]});
    else result.push_back({true, after[head + j++]});
  }
  return result;
}

bool KernelDiff::same() const {
  return !before.empty() && !after.empty() && std::all_of(parts.begin(), parts.end(), [](const LoopDiff& part) {
    return part.figures.empty() && part.instructions.empty();
  });
}

KernelDiff difference(const Kernel& before, const Kernel& after) {
  KernelDiff result{before.readable, after.readable, {}};
  LoopDiff whole{"kernel", moved(before.figures, after.figures), {}};
  const auto old_loops = by_role(before), new_loops = by_role(after);
  if (old_loops.empty() && new_loops.empty()) {
    std::vector<std::string> a, b;
    for (const Instruction& i : before.listing.code) a.push_back(normalised(i));
    for (const Instruction& i : after.listing.code) b.push_back(normalised(i));
    whole.instructions = changes(a, b);
  }
  result.parts.push_back(std::move(whole));
  for (const auto& [role, loop] : old_loops) {
    const auto other = new_loops.find(role);
    LoopDiff part{role, moved(loop->figures, other == new_loops.end() ? Figures{} : other->second->figures), {}};
    if (other != new_loops.end())
      part.instructions = changes(sequence(before, loop->turn.code), sequence(after, other->second->turn.code));
    result.parts.push_back(std::move(part));
  }
  for (const auto& [role, loop] : new_loops)
    if (!old_loops.count(role)) result.parts.push_back({role, moved({}, loop->figures), {}});
  return result;
}

std::vector<KernelDiff> differences(const std::vector<Kernel>& before, const std::vector<Kernel>& after) {
  std::vector<KernelDiff> result;
  const auto named = [](const std::vector<Kernel>& kernels, const std::string& name) {
    return std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& k) { return k.record.name == name; });
  };
  for (const Kernel& old : before) {
    const auto now = named(after, old.record.name);
    if (now == after.end()) result.push_back({old.readable, "", {}});
    else result.push_back(difference(old, *now));
  }
  for (const Kernel& now : after)
    if (named(before, now.record.name) == before.end()) result.push_back({"", now.readable, {}});
  return result;
}

std::string diff_text(const std::vector<KernelDiff>& diffs, const Colours& colours) {
  std::string text;
  for (const KernelDiff& diff : diffs) {
    if (diff.before.empty() || diff.after.empty()) {
      text += diff.before.empty() ? colours.green("only in the second: " + diff.after)
                                  : colours.red("only in the first: " + diff.before);
      text += "\n";
      continue;
    }
    text += colours.bold(diff.before == diff.after ? diff.before : diff.before + " -> " + diff.after) +
            (diff.same() ? ": the same\n" : "\n");
    for (const LoopDiff& part : diff.parts) {
      if (part.figures.empty() && part.instructions.empty()) continue;
      text += "  " + part.role + "\n";
      for (const auto& [old, now] : part.figures)
        text += "    " + (old.name.empty() ? now.name : old.name) + ": " + (old.name.empty() ? "-" : old.shown()) +
                " -> " + (now.name.empty() ? "-" : now.shown()) + "\n";
      for (const Change& change : part.instructions)
        text += change.appeared ? colours.green("    + " + change.instruction) + "\n"
                                : colours.red("    - " + change.instruction) + "\n";
    }
  }
  return text;
}

}  // namespace sass
