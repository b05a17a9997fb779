#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "../handovers/handovers.h"
#include "../system/text.h"
#include "../time/clocks.h"
#include "../time/pressure.h"
#include "reports.h"

namespace sass {
namespace {

std::string painted(const Colours& colours, Kind kind, const std::string& text) {
  if (kind == Kind::local_memory) return colours.paint("\x1b[1;37;41m", text);
  if (kind == Kind::mask) return colours.paint("\x1b[1;31m", text);
  if (kind == Kind::wait) return colours.paint("\x1b[1;35m", text);
  switch (lane_of(kind)) {
    case Lane::tensor: return colours.paint("\x1b[1;34m", text);
    case Lane::mufu: return colours.paint("\x1b[33m", text);
    case Lane::memory: return colours.paint("\x1b[36m", text);
    case Lane::sync: return colours.paint("\x1b[35m", text);
    default: return kind == Kind::other || kind == Kind::move || kind == Kind::uniform ? text : colours.paint("\x1b[32m", text);
  }
}

bool is_event(Kind kind) {
  switch (kind) {
    case Kind::wgmma:
    case Kind::arrive:
    case Kind::wait:
    case Kind::mbarrier_wait:
    case Kind::mbarrier_arrive:
    case Kind::barrier:
    case Kind::fence:
    case Kind::tma_load:
    case Kind::tma_store:
    case Kind::branch: return true;
    default: return false;
  }
}

// One column for each group: ':' from its first WGMMA, '|' from its commit, up to its wait.
std::string rail(const Turn& turn, int position) {
  std::string text;
  for (const Group& group : turn.groups) {
    const auto place = [&](int from, int to) {
      if (to < 0) to = from + turn.size();
      return (position >= from && position <= to) ||
             (turn.cyclic && position + turn.size() >= from && position + turn.size() <= to);
    };
    if (group.commit >= 0 && place(group.commit, group.wait)) text += '|';
    else text += place(group.first, group.commit >= 0 ? group.commit : group.wait) ? ':' : ' ';
  }
  return text;
}

std::string group_name(const Turn& turn, const Group& group) {
  std::string text;
  for (int g : group.gemms) text += (text.empty() ? "" : "+") + turn.gemms[static_cast<size_t>(g)].name;
  return text;
}

std::string note(const Kernel& kernel, const Turn& turn, int position) {
  const Instruction& i = kernel.listing.code[static_cast<size_t>(turn.code[static_cast<size_t>(position)])];
  const Kind kind = turn.kinds[static_cast<size_t>(position)];
  if (kind == Kind::wgmma) {
    const Gemm* gemm = turn.gemm_at(position);
    if (!gemm) return "wgmma";
    size_t step = 0;
    while (step < gemm->steps.size() && gemm->steps[step] % turn.size() != position) ++step;
    std::string text =
        gemm->name + " " + std::to_string(step + 1) + "/" + std::to_string(gemm->steps.size()) +
        (a_in_registers(i) ? " RS" : " SS");
    if (step == 0 && gemm->zero) text += ", from zero";
    if (!i.operands.empty() && i.operands.back() == "gsb0") text += ", COMMIT";
    return text;
  }
  if (kind == Kind::wait) {
    std::string text = "WAIT until " + std::to_string(wait_count(i)) + " in flight";
    for (const Group& group : turn.groups)
      if (group.wait >= 0 && group.wait % turn.size() == position) text += ": " + group_name(turn, group) + " done";
    return text;
  }
  if (std::binary_search(turn.touches.begin(), turn.touches.end(), position)) return "TOUCHES REGISTERS IN FLIGHT";
  if (kind == Kind::multiply) {
    for (const Gemm& gemm : turn.gemms)
      if (!gemm.zero && gemm.accumulator.overlaps(destination(i))) return "rescale " + gemm.name;
  }
  if (kind == Kind::maximum) return "row max";
  return is_event(kind) || kind == Kind::exp || kind == Kind::convert || kind == Kind::mask || kind == Kind::shuffle ||
                 kind == Kind::local_memory || kind == Kind::multiply_add
             ? word_for(kind)
             : "";
}

std::string hex(int address) {
  char text[16];
  std::snprintf(text, sizeof text, "%04x", static_cast<unsigned>(address));
  return text;
}

std::string loop_heading(const Kernel& kernel, const WgmmaLoop& loop, const Colours& colours) {
  const auto& code = kernel.listing.code;
  std::string text = colours.bold(std::string(loop.hot ? "hot loop " : "boundary loop ") + loop.role) + " at " +
                     hex(code[static_cast<size_t>(loop.turn.code.front())].address) + ": " +
                     std::to_string(loop.turn.size()) + " instructions a turn\n  " + loop.gemms + "\n ";
  for (const Figure& figure : loop.figures) {
    if (figure.name == "instructions" || figure.name == "gemms" ||
        (!figure.is_text && !figure.is_share && figure.value == 0))
      continue;
    text += " " + figure.name + " " + figure.shown() + ";";
  }
  return text + "\n";
}

// Blocks of the loop that its usual way does not pass: spins, rare paths, guarded work.
std::string beside_the_way(const Kernel& kernel, const WgmmaLoop& loop) {
  std::string text;
  int begin = -1, end = -1;
  const auto flush = [&] {
    if (begin < 0) return;
    std::map<Kind, int> counts;
    for (int i = begin; i < end; ++i) ++counts[kind_of(kernel.listing.code[static_cast<size_t>(i)])];
    std::string what;
    for (const auto& [kind, count] : counts)
      if (kind != Kind::other && kind != Kind::uniform && kind != Kind::move && kind != Kind::branch)
        what += (what.empty() ? ": " : ", ") + std::to_string(count) + " " + word_for(kind);
    text += "    " + hex(kernel.listing.code[static_cast<size_t>(begin)].address) + ".." +
            hex(kernel.listing.code[static_cast<size_t>(end) - 1].address) + ", " + std::to_string(end - begin) +
            " instructions" + what + "\n";
  };
  for (int block : kernel.cfg.loops[static_cast<size_t>(loop.loop)].blocks) {
    if (std::find(loop.path.begin(), loop.path.end(), block) != loop.path.end()) continue;
    const Block& b = kernel.cfg.blocks[static_cast<size_t>(block)];
    if (b.begin != end) {
      flush();
      begin = b.begin;
    }
    end = b.end;
  }
  flush();
  return text.empty() ? "" : "  in the loop, beside its usual way:\n" + text;
}

// What is known of time in a turn: estimated clocks, control words, registers.
class Timing {
 public:
  Timing(const Kernel& kernel, const WgmmaLoop& loop)
      : code_(kernel.listing.code), turn_(loop.turn), clocks_(estimated_clocks(kernel, loop)),
        live_(live_registers(kernel.listing, kernel.cfg)), conflicts_(bank_conflicts(kernel.listing, turn_.code)) {}

  std::string heading() const {
    int most = 0;
    for (int i : turn_.code) most = std::max(most, live_[static_cast<size_t>(i)]);
    char text[200];
    if (clocks_.turn > 0)
      std::snprintf(text, sizeof text,
                    "  about %.0f clocks a turn (an estimate: data is always there), tensor cores busy %.0f%%",
                    clocks_.turn, 100 * clocks_.tensor);
    else
      std::snprintf(text, sizeof text, "  no estimate of clocks");
    return text + (", at most " + std::to_string(most)) + " registers live, " + std::to_string(conflicts_.size()) +
           " bank conflicts\n  clock, registers live, stall, Y for yield, scoreboards: w written, r read, waits for\n";
  }

  std::string of(int position) const {
    const size_t p = static_cast<size_t>(position), i = static_cast<size_t>(turn_.code[p]);
    const Control& control = code_[i].control;
    char text[80];
    std::snprintf(text, sizeof text, "%6s %4d ", clocks_.turn > 0 ? number(clocks_.issued[p]).c_str() : "", live_[i]);
    std::string words = text;
    if (control.known) {
      std::string waits;
      for (int s = 0; s < scoreboards; ++s)
        if (control.waits_for(s)) waits += std::to_string(s);
      const auto scoreboard = [](const char* name, int s) { return s < 0 ? "  " : name + std::to_string(s); };
      std::snprintf(text, sizeof text, "%3d%c %s %s %-6s", control.stall, control.yields ? 'Y' : ' ',
                    scoreboard("w", control.written).c_str(), scoreboard("r", control.read).c_str(), waits.c_str());
      words += text;
    }
    const bool conflict = std::binary_search(conflicts_.begin(), conflicts_.end(), position);
    return words + (conflict ? " BANKS " : "       ");
  }

 private:
  static std::string number(double clock) { return std::to_string(static_cast<int>(clock)); }

  const std::vector<Instruction>& code_;
  const Turn& turn_;
  Clocks clocks_;
  std::vector<int> live_, conflicts_;
};

std::string loop_text(const Kernel& kernel, const WgmmaLoop& loop, const ShowOptions& options, const Colours& colours) {
  const Turn& turn = loop.turn;
  std::string text = loop_heading(kernel, loop, colours);
  std::optional<Timing> timing;
  if (options.clocks) timing.emplace(kernel, loop);
  if (timing) text += timing->heading();
  for (int p = 0; p < turn.size();) {
    const bool event = is_event(turn.kinds[static_cast<size_t>(p)]);
    int end = p + 1;
    while (!event && end < turn.size() && !is_event(turn.kinds[static_cast<size_t>(end)])) ++end;
    if (!event && (end - p > 3 || options.brief))
      text += "  " + rail(turn, p) + "       " + colours.bold("-- " + stretch_text(turn, p, end)) + "\n";
    for (; p < end; ++p) {
      if (!event && options.brief) continue;
      const Instruction& i = kernel.listing.code[static_cast<size_t>(turn.code[static_cast<size_t>(p)])];
      std::string remark = note(kernel, turn, p);
      if (!i.source.empty()) remark += (remark.empty() ? "" : ", ") + i.source;
      std::string shown = i.text;
      if (!remark.empty()) shown.resize(std::max<size_t>(shown.size() + 1, 68), ' ');
      const Kind kind = turn.kinds[static_cast<size_t>(p)];
      text += "  " + rail(turn, p) + " " + colours.dim((timing ? timing->of(p) : "") + hex(i.address)) + "  " +
              painted(colours, kind, shown) +
              (remark.empty() ? "" : colours.dim("// ") + painted(colours, kind, remark)) + "\n";
    }
  }
  return text + beside_the_way(kernel, loop);
}

// Of sm_100: innermost loops that work with tensor memory, and what happens in them.
std::string tensor_memory_loops(const Kernel& kernel) {
  std::string text;
  for (size_t l = 0; l < kernel.cfg.loops.size(); ++l) {
    const Loop& loop = kernel.cfg.loops[l];
    const auto is_inside = [&](const Loop& other) {
      return other.parent == static_cast<int>(l) && other.blocks.size() > 1;
    };
    if (loop.blocks.size() < 2 || std::ranges::any_of(kernel.cfg.loops, is_inside)) continue;
    Turn turn;
    for (int block : loop.blocks)
      for (int i = kernel.cfg.blocks[static_cast<size_t>(block)].begin;
           i < kernel.cfg.blocks[static_cast<size_t>(block)].end; ++i) {
        turn.code.push_back(i);
        turn.kinds.push_back(kind_of(kernel.listing.code[static_cast<size_t>(i)]));
      }
    const auto in_tensor_memory = [](Kind kind) { return kind == Kind::umma || kind == Kind::tensor_memory; };
    if (std::ranges::none_of(turn.kinds, in_tensor_memory)) continue;
    const auto& code = kernel.listing.code;
    text += "loop at " + hex(code[static_cast<size_t>(turn.code.front())].address) + ": " +
            std::to_string(turn.size()) + " instructions: " + stretch_text(turn, 0, turn.size()) + "\n";
    for (int p = 0; p < turn.size(); ++p) {
      const Kind kind = turn.kinds[static_cast<size_t>(p)];
      if (!in_tensor_memory(kind) && kind != Kind::umma_commit && kind != Kind::mbarrier_wait &&
          kind != Kind::mbarrier_arrive)
        continue;
      const Instruction& i = code[static_cast<size_t>(turn.code[static_cast<size_t>(p)])];
      text += "     " + hex(i.address) + "  " + i.text + "  // " + word_for(kind) + "\n";
    }
  }
  return text;
}

std::string producers(const Kernel& kernel) {
  std::string text;
  for (size_t l = 0; l < kernel.cfg.loops.size(); ++l) {
    const Loop& loop = kernel.cfg.loops[l];
    int loads = 0, stores = 0, waits = 0, instructions = 0;
    bool wgmma = false, innermost = true;
    for (const Loop& other : kernel.cfg.loops)
      innermost &= other.parent != static_cast<int>(l) || other.blocks.size() < 2;
    for (int block : loop.blocks)
      for (int i = kernel.cfg.blocks[static_cast<size_t>(block)].begin;
           i < kernel.cfg.blocks[static_cast<size_t>(block)].end; ++i) {
        const Kind kind = kind_of(kernel.listing.code[static_cast<size_t>(i)]);
        wgmma |= kind == Kind::wgmma;
        loads += kind == Kind::tma_load;
        stores += kind == Kind::tma_store;
        waits += kind == Kind::mbarrier_wait;
        ++instructions;
      }
    if (wgmma || !innermost || loop.blocks.size() < 2 || loads + stores == 0) continue;
    const Block& header = kernel.cfg.blocks[static_cast<size_t>(loop.header)];
    text += "TMA loop at " + hex(kernel.listing.code[static_cast<size_t>(header.begin)].address) + ": " +
            std::to_string(instructions) + " instructions, " + std::to_string(loads) + " loads, " +
            std::to_string(stores) + " stores, " + std::to_string(waits) + " mbarrier waits\n";
  }
  return text;
}

}  // namespace

std::string stretch_text(const Turn& turn, int begin, int end) {
  std::map<std::string, int> counts;
  for (int p = begin; p < end; ++p) ++counts[word_for(turn.kinds[static_cast<size_t>(p)])];
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [word, count] : counts) sorted.emplace_back(count, word);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [count, word] : sorted) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + word;
  return text;
}

std::string show_text(const Kernel& kernel, const ShowOptions& options, const Colours& colours) {
  constexpr size_t a_line = 120;
  const std::string number = kernel.number > 0 ? std::to_string(kernel.number) + "  " : "";
  std::string text = colours.bold(number + shortened(kernel.readable, a_line)) + "\n ";
  for (const Figure& figure : kernel.figures)
    if (figure.is_text ? !figure.text.empty() : figure.value != 0)
      text += " " + figure.name + " " + figure.shown() + ";";
  text += "\n\n";
  const std::string blackwell_loops = tensor_memory_loops(kernel);
  if (kernel.loops.empty()) text += blackwell_loops.empty() ? "no loop with WGMMAs\n" : blackwell_loops;
  for (const WgmmaLoop& loop : kernel.loops) {
    if (loop.hot || options.all) text += loop_text(kernel, loop, options, colours) + "\n";
    else text += loop_heading(kernel, loop, colours) + "\n";
  }
  return text + producers(kernel) + handover_text(kernel);
}

}  // namespace sass
