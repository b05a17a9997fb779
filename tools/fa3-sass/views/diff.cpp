#include "diff.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <deque>
#include <map>
#include <unordered_map>

#include "../loops/regions.h"
#include "../system/text.h"
#include "align.h"
#include "renaming.h"

namespace sass {
namespace {

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

// Numbers for texts: equal texts get equal numbers.
class Numbers {
 public:
  int of(const std::string& text) { return numbers_.emplace(text, static_cast<int>(numbers_.size())).first->second; }

 private:
  std::unordered_map<std::string, int> numbers_;
};

// With its registers, but without labels and .reuse, which is a hint to the register file.
std::string unlabelled(const Instruction& instruction) {
  std::string text = instruction.text;
  for (size_t at = text.find(".reuse"); at != std::string::npos; at = text.find(".reuse")) text.erase(at, 6);
  if (const size_t label = text.find("`(.L"); label != std::string::npos) text.resize(label);
  return text;
}

const char* words_for(Rewired::Way way) {
  return way == Rewired::Way::value ? "reads another value" : "goes to another place";
}

class Difference {
 public:
  Difference(const Kernel& before, const Kernel& after)
      : before_(before), after_(after), regions_before_(regions_of(before)), regions_after_(regions_of(after)) {}

  KernelDiff run() {
    KernelDiff result{before_.readable, after_.readable, {}};
    result.parts.push_back({"kernel", moved(before_.figures, after_.figures), size(before_), size(after_)});
    for (const Region& old : regions_before_) pairs_.push_back({&old, region(regions_after_, old.name)});
    for (const Region& now : regions_after_)
      if (!region(regions_before_, now.name)) pairs_.push_back({nullptr, &now});
    Matching matching(before_.listing.code.size(), -1);
    std::vector<bool> unsure(before_.listing.code.size(), true);
    for (Pair& pair : pairs_) match(pair, matching, unsure);
    for (const Rewired& found : rewired(before_, after_, matching, unsure)) rewired_[found.instruction] = found.way;
    for (const Pair& pair : pairs_) result.parts.push_back(part(pair));
    return result;
  }

 private:
  struct Pair {
    const Region *before, *after;  // one may be missing
    std::vector<Element> elements_before{}, elements_after{};
    std::vector<std::pair<int, int>> matched{};
    bool whole() const {
      return before && after && before->code.size() == after->code.size() && matched.size() == before->code.size();
    }
  };

  static int size(const Kernel& kernel) { return static_cast<int>(kernel.listing.code.size()); }
  static const Region* region(const std::vector<Region>& regions, const std::string& name) {
    const auto found = std::ranges::find(regions, name, &Region::name);
    return found == regions.end() ? nullptr : &*found;
  }
  static const Instruction& at(const Kernel& kernel, const Region& region, int position) {
    return kernel.listing.code[static_cast<size_t>(region.code[static_cast<size_t>(position)])];
  }

  std::vector<Element> elements(const Kernel& kernel, const Region& region) {
    std::vector<Element> result;
    for (int i : region.code) {
      const Instruction& instruction = kernel.listing.code[static_cast<size_t>(i)];
      result.push_back({numbers_.of(normalised(instruction)), numbers_.of(unlabelled(instruction))});
    }
    return result;
  }

  void match(Pair& pair, Matching& matching, std::vector<bool>& unsure) {
    if (!pair.before || !pair.after) return;
    pair.elements_before = elements(before_, *pair.before);
    pair.elements_after = elements(after_, *pair.after);
    pair.matched = align(pair.elements_before, pair.elements_after);
    for (const auto& [old, now] : pair.matched) {
      const size_t i = static_cast<size_t>(pair.before->code[static_cast<size_t>(old)]);
      matching[i] = pair.after->code[static_cast<size_t>(now)];
      unsure[i] = !pair.whole();
    }
  }

  // Registers and labels as they stand, for lines that differ in nothing else.
  static void replaced(const Instruction& old, const Instruction& now, const std::string& how,
                       std::vector<Line>& lines) {
    lines.push_back({old.address, -1, old.text, ""});
    lines.push_back({-1, now.address, now.text, how});
  }

  std::vector<Line> listing(const Pair& pair, const std::vector<std::pair<int, int>>& matched, bool exactly) const {
    std::vector<Line> lines;
    int old = 0, now = 0;
    const auto up_to = [&](int end_before, int end_after) {
      for (; old < end_before; ++old) {
        const Instruction& i = at(before_, *pair.before, old);
        lines.push_back({i.address, -1, exactly ? i.text : normalised(i), ""});
      }
      for (; now < end_after; ++now) {
        const Instruction& i = at(after_, *pair.after, now);
        lines.push_back({-1, i.address, exactly ? i.text : normalised(i), ""});
      }
    };
    for (const auto& [next_before, next_after] : matched) {
      up_to(next_before, next_after);
      const Instruction &a = at(before_, *pair.before, old), &b = at(after_, *pair.after, now);
      const auto found = rewired_.find(pair.before->code[static_cast<size_t>(old)]);
      if (found != rewired_.end() && (!exactly || found->second == Rewired::Way::place))
        replaced(a, b, words_for(found->second), lines);
      else lines.push_back({a.address, b.address, exactly ? a.text : normalised(a), ""});
      ++old, ++now;
    }
    up_to(pair.before ? static_cast<int>(pair.before->code.size()) : 0,
          pair.after ? static_cast<int>(pair.after->code.size()) : 0);
    return std::ranges::all_of(lines, &Line::same) ? std::vector<Line>{} : lines;
  }

  // As many of each instruction on both sides.
  static bool only_reordered(const std::vector<Line>& lines) {
    std::map<std::string, int> balance;
    for (const Line& line : lines) balance[line.text] += (line.before >= 0) - (line.after >= 0);
    return !lines.empty() && std::ranges::all_of(balance, [](const auto& entry) { return entry.second == 0; });
  }

  // Where instructions read other values, they may be the same ones in another order: that is the plainer report.
  std::vector<Line> lines_of(const Pair& pair) const {
    std::vector<Line> lines = listing(pair, pair.matched, false);
    if (!pair.whole() || lines.empty()) return lines;
    std::vector<Element> a = pair.elements_before, b = pair.elements_after;
    for (std::vector<Element>* elements : {&a, &b})
      for (Element& element : *elements) element.form = element.whole;
    std::vector<Line> exact = listing(pair, align(a, b), true);
    return only_reordered(exact) ? exact : lines;
  }

  PartDiff part(const Pair& pair) const {
    PartDiff result{(pair.before ? pair.before : pair.after)->name};
    const auto figures = [](const Region* region) {
      return region && region->loop ? region->loop->figures : Figures{};
    };
    result.figures = moved(figures(pair.before), figures(pair.after));
    result.before = pair.before ? static_cast<int>(pair.before->code.size()) : 0;
    result.after = pair.after ? static_cast<int>(pair.after->code.size()) : 0;
    result.lines = lines_of(pair);
    result.reordered = only_reordered(result.lines);
    return result;
  }

  const Kernel& before_;
  const Kernel& after_;
  const std::vector<Region> regions_before_, regions_after_;
  std::vector<Pair> pairs_;
  std::map<int, Rewired::Way> rewired_;  // by instruction of `before`
  Numbers numbers_;
};

// What the report shows of a part: differing lines and a few beside them, in pieces.
constexpr int context = 2;
constexpr size_t shown_at_once = 40;

std::vector<bool> shown_lines(const std::vector<Line>& lines) {
  const int count = static_cast<int>(lines.size());
  std::vector<bool> shown(lines.size(), false);
  for (int l = 0; l < count; ++l)
    if (!lines[static_cast<size_t>(l)].same())
      for (int near = std::max(0, l - context); near <= std::min(count - 1, l + context); ++near)
        shown[static_cast<size_t>(near)] = true;
  return shown;
}

std::string hex(int address) {
  char text[16];
  std::snprintf(text, sizeof text, "%04x", static_cast<unsigned>(address));
  return text;
}

// Where a piece begins: the first address in it on either side.
std::string place(const std::vector<Line>& lines, size_t begin, const std::vector<bool>& shown) {
  int before = -1, after = -1;
  for (size_t l = begin; l < lines.size() && shown[l]; ++l) {
    if (before < 0) before = lines[l].before;
    if (after < 0) after = lines[l].after;
  }
  return (before < 0 ? "-" : hex(before)) + " | " + (after < 0 ? "-" : hex(after));
}

std::string listing_text(const PartDiff& part, const Colours& colours, bool all) {
  const std::vector<bool> shown = shown_lines(part.lines);
  const size_t wanted = static_cast<size_t>(std::ranges::count(shown, true));
  const size_t limit = all ? wanted : shown_at_once;
  std::string text;
  size_t count = 0;
  for (size_t l = 0; l < part.lines.size() && count < limit; ++l) {
    if (!shown[l]) continue;
    const Line& line = part.lines[l];
    if (l == 0 || !shown[l - 1]) text += "    " + colours.dim("at " + place(part.lines, l, shown)) + "\n";
    const std::string words = line.text + (line.note.empty() ? "" : "  // " + line.note);
    text += line.same() ? "      " + words + "\n"
                        : "    " + (line.before >= 0 ? colours.red("- " + words) : colours.green("+ " + words)) + "\n";
    ++count;
  }
  if (count < wanted) text += "    ... and " + std::to_string(wanted - count) + " lines more; --all lists them\n";
  return text;
}

std::string heading(const PartDiff& part) {
  size_t gone = 0, appeared = 0;
  for (const Line& line : part.lines) {
    gone += line.after < 0;
    appeared += line.before < 0;
  }
  if (part.lines.empty()) return part.name;
  if (part.after == 0) return part.name + ": only in the first, " + std::to_string(part.before) + " instructions";
  if (part.before == 0) return part.name + ": only in the second, " + std::to_string(part.after) + " instructions";
  return part.name + ": " + std::to_string(part.before) +
         (part.before == part.after ? "" : " -> " + std::to_string(part.after)) + " instructions, " +
         (part.reordered ? std::to_string(gone) + " of them in another place"
                         : std::to_string(gone) + " gone, " + std::to_string(appeared) + " new");
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
  Numbers numbers;
  std::vector<Element> a, b;
  for (const std::string& line : before) a.push_back({numbers.of(line), 0});
  for (const std::string& line : after) b.push_back({numbers.of(line), 0});
  std::vector<Change> result;
  size_t old = 0, now = 0;
  const auto up_to = [&](size_t end_before, size_t end_after) {
    while (old < end_before) result.push_back({false, before[old++]});
    while (now < end_after) result.push_back({true, after[now++]});
  };
  for (const auto& [next_before, next_after] : align(a, b)) {
    up_to(static_cast<size_t>(next_before), static_cast<size_t>(next_after));
    ++old, ++now;
  }
  up_to(before.size(), after.size());
  return result;
}

bool KernelDiff::same() const {
  return !before.empty() && !after.empty() && std::ranges::all_of(parts, &PartDiff::same);
}

KernelDiff difference(const Kernel& before, const Kernel& after) { return Difference(before, after).run(); }

void each_difference(const Source& before, const std::vector<size_t>& chosen_before, const Source& after,
                     const std::vector<size_t>& chosen_after, const std::function<void(const KernelDiff&)>& use) {
  constexpr size_t at_once = 16;
  std::map<std::string, std::deque<size_t>> partners;  // several of one name, in file order
  for (size_t now : chosen_after) partners[after.entries()[now].name].push_back(now);
  for (size_t begin = 0; begin < chosen_before.size(); begin += at_once) {
    std::vector<size_t> olds, nows;  // pairs
    for (size_t i = begin; i < std::min(begin + at_once, chosen_before.size()); ++i) {
      std::deque<size_t>& candidates = partners[before.entries()[chosen_before[i]].name];
      if (candidates.empty()) continue;
      olds.push_back(chosen_before[i]);
      nows.push_back(candidates.front());
      candidates.pop_front();
    }
    std::vector<size_t> ascending = nows;
    std::sort(ascending.begin(), ascending.end());
    std::map<size_t, Kernel> read;
    for (Kernel& kernel : after.read(ascending))
      read.emplace(static_cast<size_t>(kernel.number) - 1, std::move(kernel));
    std::vector<Kernel> first = before.read(olds);
    size_t pair = 0;
    for (size_t i = begin; i < std::min(begin + at_once, chosen_before.size()); ++i) {
      if (pair == olds.size() || olds[pair] != chosen_before[i]) {
        use({before.entries()[chosen_before[i]].readable, "", {}});
      } else {
        use(difference(first[pair], read.at(nows[pair])));
        ++pair;
      }
    }
  }
  for (size_t now : chosen_after) {
    const std::deque<size_t>& left = partners[after.entries()[now].name];
    if (std::ranges::count(left, now)) use({"", after.entries()[now].readable, {}});
  }
}

std::string diff_text(const KernelDiff& diff, const Colours& colours, bool all) {
  if (diff.before.empty() || diff.after.empty())
    return (diff.before.empty() ? colours.green("only in the second: " + shortened(diff.after))
                                : colours.red("only in the first: " + shortened(diff.before))) + "\n";
  const std::string before = shortened(diff.before), after = shortened(diff.after);
  std::string text = colours.bold(diff.before == diff.after ? before : before + " -> " + after) +
          (diff.same() ? ": the same\n" : "\n");
  if (diff.same()) return text;
  std::string same;
  for (const PartDiff& part : diff.parts) {
    if (part.same()) {
      same += (same.empty() ? "" : "; ") + part.name + " (" + std::to_string(part.before) + ")";
      continue;
    }
    text += "  " + colours.bold(heading(part)) + "\n";
    // All figures of a loop that is on one side only would say little.
    for (const auto& [old, now] : part.before > 0 && part.after > 0 ? part.figures : decltype(part.figures){})
      text += "    " + (old.name.empty() ? now.name : old.name) + ": " + (old.name.empty() ? "-" : old.shown()) +
              " -> " + (now.name.empty() ? "-" : now.shown()) + "\n";
    text += listing_text(part, colours, all);
  }
  if (!same.empty()) text += "  the same: " + same + "\n";
  return text;
}

}  // namespace sass
