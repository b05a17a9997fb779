#include "figures.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "../handovers/handovers.h"
#include "../handovers/protocol.h"
#include "../system/text.h"
#include "contents.h"
#include "../dataflow/stack.h"

namespace sass {
namespace {

Figure count_of(std::string name, std::vector<int> evidence) {
  const double value = static_cast<double>(evidence.size());
  return {std::move(name), false, value, {}, std::move(evidence), false};
}

Figure value_of(std::string name, double value) { return {std::move(name), false, value, {}, {}, false}; }
Figure text_of(std::string name, std::string text, std::vector<int> evidence = {}) {
  return {std::move(name), true, 0, std::move(text), std::move(evidence), false};
}

// The order in which papers name them, so that a rotated loop reads the same.
size_t place(const std::string& gemm) {
  static const char* const order[] = {"QK", "PV", "S", "dP", "dV", "dK", "dQ"};
  return static_cast<size_t>(std::find(std::begin(order), std::end(order), gemm) - std::begin(order));
}

std::string join(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

// Counts by kind. `rescales` is apart: multiplications of an accumulator that is added to.
struct KindName {
  Kind kind;
  const char* figure;
};
constexpr KindName counted[] = {
    {Kind::arrive, "arrives"},
    {Kind::exp, "exps"},
    {Kind::maximum, "maxima"},
    {Kind::convert, "conversions"},
    {Kind::multiply_add, "fmas"},
    {Kind::add, "adds"},
    {Kind::multiply, "multiplies"},
    {Kind::shuffle, "shuffles"},
    {Kind::mask, "masks"},
    {Kind::local_memory, "local"},
    {Kind::shared_memory, "shared"},
    {Kind::global_memory, "global"},
    {Kind::move, "moves"},
    {Kind::uniform, "uniform"},
    {Kind::mbarrier_wait, "mbarrier_waits"},
    {Kind::mbarrier_arrive, "mbarrier_arrives"},
    {Kind::barrier, "barriers"},
    {Kind::fence, "fences"},
    {Kind::tma_load, "tma_loads"},
    {Kind::tma_store, "tma_stores"},
};

}  // namespace

void describe_gemms(WgmmaLoop& loop) {
  std::map<std::pair<size_t, std::string>, size_t> steps;  // by place and description
  std::map<size_t, std::string> names;
  for (const Gemm& gemm : loop.turn.gemms) {
    const size_t at = place(gemm.name);
    names[at] = gemm.name;
    const size_t from_registers = gemm.register_steps.size(), shared_steps = gemm.steps.size() - from_registers;
    if (from_registers > 0) steps[{at, gemm.shape + " RS"}] += from_registers;
    if (shared_steps > 0) steps[{at, gemm.shape + " SS"}] += shared_steps;
  }
  std::vector<std::string> roles, texts;
  for (const auto& [at, name] : names) roles.push_back(name);
  for (const auto& [key, count] : steps)
    texts.push_back(names[key.first] + " " + std::to_string(count) + " x " + key.second);
  loop.role = join(roles, "+");
  loop.gemms = join(texts, ", ");
}

namespace {

// What covers the exponentials: the GEMMs in flight, each with how many of its WGMMAs are. One step of a GEMM that is
// otherwise done covers little.
void add_cover(const Turn& turn, Figures& figures) {
  std::vector<std::pair<std::string, int>> under;  // in program order
  std::vector<int> uncovered;
  double covered = 0;
  int exps = 0;
  for (int p = 0; p < turn.size(); ++p) {
    if (turn.kinds[static_cast<size_t>(p)] != Kind::exp) continue;
    ++exps;
    double most = 0;
    std::vector<std::string> over;
    for (const Gemm& gemm : turn.gemms) {
      const int steps = turn.steps_in_flight(gemm, p), all = static_cast<int>(gemm.steps.size());
      if (steps == 0) continue;
      most = std::max(most, static_cast<double>(steps) / all);
      over.push_back(gemm.name + " " + std::to_string(steps) + "/" + std::to_string(all));
    }
    covered += most;
    if (most < 1) uncovered.push_back(turn.code[static_cast<size_t>(p)]);
    const std::string words = over.empty() ? "nothing" : join(over, " + ");
    const auto known =
        std::find_if(under.begin(), under.end(), [&](const auto& entry) { return entry.first == words; });
    if (known != under.end()) ++known->second;
    else under.emplace_back(words, 1);
  }
  std::vector<std::string> parts;
  for (const auto& [words, count] : under) parts.push_back(std::to_string(count) + " under " + words);
  figures.push_back({"exps_covered", false, covered / exps, {}, uncovered, true});
  figures.push_back(text_of("exps_under", join(parts, ", "), uncovered));
}

// On the usual way through a loop and beside it.
void add_sums_anywhere(const Kernel& kernel, const Loop& loop, Figures& figures) {
  std::vector<int> adds, fmas;
  for (int b : loop.blocks) {
    const Block& block = kernel.cfg.blocks[static_cast<size_t>(b)];
    for (int i = block.begin; i < block.end; ++i) {
      const Kind kind = kind_of(kernel.listing.code[static_cast<size_t>(i)]);
      if (kind == Kind::add) adds.push_back(i);
      if (kind == Kind::multiply_add) fmas.push_back(i);
    }
  }
  figures.push_back(count_of("adds_anywhere", adds));
  figures.push_back(count_of("fmas_anywhere", fmas));
}

}  // namespace

Figures loop_figures(const Kernel& kernel, const WgmmaLoop& loop) {
  const Turn& turn = loop.turn;
  const auto where = [&](auto wanted) {
    std::vector<int> found;
    for (int p = 0; p < turn.size(); ++p)
      if (wanted(p)) found.push_back(turn.code[static_cast<size_t>(p)]);
    return found;
  };
  const auto has_kind = [&](Kind kind) {
    return [&turn, kind](int p) { return turn.kinds[static_cast<size_t>(p)] == kind; };
  };

  Figures figures;
  figures.push_back(value_of("instructions", turn.size()));
  figures.push_back(count_of("wgmmas", where(has_kind(Kind::wgmma))));
  figures.push_back(text_of("gemms", loop.gemms, where(has_kind(Kind::wgmma))));
  std::set<std::string> types;
  for (const Gemm& gemm : turn.gemms) types.insert(gemm.types);
  figures.push_back(text_of("types", join({types.begin(), types.end()}, " ")));
  figures.push_back(count_of("groups", where([&](int p) {
                               return std::any_of(turn.groups.begin(), turn.groups.end(),
                                                  [&](const Group& g) { return g.commit == p; });
                             })));

  std::vector<std::string> waits;
  const std::vector<int> waiting = where(has_kind(Kind::wait));
  for (int i : waiting) waits.push_back(std::to_string(wait_count(kernel.listing.code[static_cast<size_t>(i)])));
  figures.push_back(text_of("waits", join(waits, " "), waiting));

  std::vector<int> open;
  for (const Group& group : turn.groups)
    if (group.wait < 0) open.push_back(turn.code[static_cast<size_t>(group.first % turn.size())]);
  figures.push_back(count_of("never_waited", open));
  std::vector<int> serialised, touched;
  for (int p : turn.serialised) serialised.push_back(turn.code[static_cast<size_t>(p)]);
  for (int p : turn.touches) touched.push_back(turn.code[static_cast<size_t>(p)]);
  figures.push_back(count_of("serialised", serialised));
  figures.push_back(count_of("touches", touched));

  for (const KindName& entry : counted) figures.push_back(count_of(entry.figure, where(has_kind(entry.kind))));
  figures.push_back(count_of("rescales", where([&](int p) {
                               if (turn.kinds[static_cast<size_t>(p)] != Kind::multiply) return false;
                               const Registers written = destination(
                                   kernel.listing.code[static_cast<size_t>(turn.code[static_cast<size_t>(p)])]);
                               return std::any_of(turn.gemms.begin(), turn.gemms.end(), [&](const Gemm& g) {
                                 return !g.zero && g.accumulator.overlaps(written);
                               });
                             })));

  const auto share = [&](const char* name, Kind kind, bool from_commit) {
    const std::vector<int> all = where(has_kind(kind));
    const auto covered = [&](int p) { return from_commit ? turn.in_flight(p) : turn.overlapped(p); };
    const std::vector<int> outside =
        where([&](int p) { return turn.kinds[static_cast<size_t>(p)] == kind && !covered(p); });
    if (all.empty()) return;
    figures.push_back(
        {name, false, 1.0 - static_cast<double>(outside.size()) / static_cast<double>(all.size()), {}, outside, true});
  };
  share("exps_in_flight", Kind::exp, true);
  share("exps_overlapped", Kind::exp, false);
  if (find(figures, "exps")->value > 0) add_cover(turn, figures);
  share("conversions_in_flight", Kind::convert, true);
  share("conversions_overlapped", Kind::convert, false);
  const Figures protocol = protocol_figures(kernel, loop);
  figures.insert(figures.end(), protocol.begin(), protocol.end());
  const Loop none;
  const Loop& whole = kernel.cfg.loops.empty() ? none : kernel.cfg.loops[static_cast<size_t>(loop.loop)];
  figures.push_back(handovers_in(kernel, whole.blocks));
  add_sums_anywhere(kernel, whole, figures);
  return figures;
}

namespace {

// The loop that transposes 8-bit V in shared memory, 32 keys a turn, and the loop around it, over blocks of keys, whose
// fence shows the tiles to WGMMAs.
void add_transposing(const Kernel& kernel, Figures& figures) {
  using Test = bool (*)(const Instruction&);
  const auto within_loop = [&](int loop, Test wanted) {
    std::vector<int> found;
    if (loop < 0) return found;
    for (int b : kernel.cfg.loops[static_cast<size_t>(loop)].blocks) {
      const Block& block = kernel.cfg.blocks[static_cast<size_t>(b)];
      for (int i = block.begin; i < block.end; ++i)
        if (wanted(kernel.listing.code[static_cast<size_t>(i)])) found.push_back(i);
    }
    return found;
  };
  const Test loads = [](const Instruction& i) { return i.is("LDSM") && i.has("MT88"); };
  int inner = -1;  // larger loops come first
  for (size_t l = 0; l < kernel.cfg.loops.size(); ++l)
    if (!within_loop(static_cast<int>(l), loads).empty()) inner = static_cast<int>(l);
  const int outer = inner < 0 ? -1 : kernel.cfg.loops[static_cast<size_t>(inner)].parent;
  const auto add = [&](const char* name, int loop, Test wanted) {
    figures.push_back(count_of(name, within_loop(loop, wanted)));
  };
  add("transposing_loads", inner, loads);
  add("transposing_permutes", inner, [](const Instruction& i) { return i.is("PRMT"); });
  add("transposing_stores", inner, [](const Instruction& i) { return i.is("STSM"); });
  const Test fences = [](const Instruction& i) { return i.is("FENCE"); };
  std::vector<int> between = within_loop(outer, fences);
  std::erase_if(between, [&](int i) { return std::ranges::count(within_loop(inner, fences), i) > 0; });
  figures.push_back(count_of("transposing_fences", between));
  figures.push_back(value_of("transposing_instructions",
                             static_cast<double>(within_loop(inner, [](const Instruction&) { return true; }).size())));
}

}  // namespace

namespace {

// "forward" or "backward" if the loops are attention's, "gemm" if they are others', nothing without loops.
std::string work_of(const Kernel& kernel) {
  std::string work;
  for (const WgmmaLoop& loop : kernel.loops)
    for (const Gemm& gemm : loop.turn.gemms) {
      if (gemm.name == "dP" || gemm.name == "dQ" || gemm.name == "dV" || gemm.name == "dK") return "backward";
      if (gemm.name == "QK") work = "forward";
      else if (work.empty()) work = "gemm";
    }
  return work;
}

// The widths of the operands' elements.
std::string bits_of(const Kernel& kernel) {
  std::set<int> widths;
  for (const Instruction& i : kernel.listing.code)
    if (is_wgmma(i)) widths.insert(i.is("BGMMA") ? 1 : !i.is("HGMMA") ? 8 : i.has("TF32") ? 32 : 16);
  std::vector<std::string> words;
  for (int width : widths) words.push_back(std::to_string(width));
  return join(words, " ");
}

}  // namespace

Figures kernel_figures(const Kernel& kernel) {
  std::vector<int> local, masks, wgmmas, setmaxnreg, by_address;
  std::set<int> budgets;
  for (size_t i = 0; i < kernel.listing.code.size(); ++i) {
    const Instruction& instruction = kernel.listing.code[i];
    const Kind kind = kind_of(instruction);
    if (kind == Kind::local_memory) local.push_back(static_cast<int>(i));
    if (calls_by_address(instruction)) by_address.push_back(static_cast<int>(i));
    if (kind == Kind::mask) masks.push_back(static_cast<int>(i));
    if (kind == Kind::wgmma) wgmmas.push_back(static_cast<int>(i));
    if (kind == Kind::setmaxnreg && !instruction.operands.empty()) {
      setmaxnreg.push_back(static_cast<int>(i));
      budgets.insert(static_cast<int>(std::strtol(instruction.operands.back().c_str(), nullptr, 0)));
    }
  }
  std::vector<std::string> values;
  for (int budget : budgets) values.push_back(std::to_string(budget));
  double hot = 0, boundary = 0;
  for (const WgmmaLoop& loop : kernel.loops) (loop.hot ? hot : boundary) += 1;

  Figures figures;
  if (kernel.record.symbol != 0) {  // a listing given as text has no record
    figures.push_back(value_of("registers", kernel.record.registers));
    figures.push_back(value_of("threads", kernel.record.max_threads));
    figures.push_back(value_of("parameters", kernel.record.parameter_bytes));
    figures.push_back(value_of("stack", kernel.record.stack_bytes));
    figures.push_back(value_of("shared", static_cast<double>(kernel.record.shared_bytes)));
  }
  figures.push_back(text_of("work", work_of(kernel)));
  figures.push_back(text_of("bits", bits_of(kernel), wgmmas));
  figures.push_back(text_of("calls", join(kernel.followed, " ")));
  figures.push_back(text_of("unseen_calls", join(kernel.unseen, " ")));
  figures.push_back(count_of("calls_by_address", by_address));
  figures.push_back(text_of("setmaxnreg", join(values, " "), setmaxnreg));
  figures.push_back(value_of("instructions", static_cast<double>(kernel.listing.code.size())));
  figures.push_back(count_of("wgmmas", wgmmas));
  figures.push_back(count_of("spills", spills(kernel.listing, local)));
  figures.push_back(count_of("local", local));
  figures.push_back(count_of("masks", masks));
  figures.push_back(value_of("hot_loops", hot));
  figures.push_back(value_of("boundary_loops", boundary));
  add_transposing(kernel, figures);
  for (const Figures& more : {protocol_figures(kernel), handover_figures(kernel), contents_figures(kernel)})
    figures.insert(figures.end(), more.begin(), more.end());
  return figures;
}

const std::vector<std::string>& figure_names(const std::string& scope) {
  // An empty kernel has every figure but those of its record, and the shares, which need something to be a share of.
  static const auto names = [](const Figures& figures, std::vector<std::string> more) {
    for (const Figure& figure : figures) more.push_back(figure.name);
    return more;
  };
  static const std::vector<std::string> kernels =
      names(kernel_figures({}), {"registers", "threads", "parameters", "stack", "shared"});
  static const std::vector<std::string> loops = names(
      loop_figures({}, {}), {"exps_in_flight", "exps_overlapped", "exps_covered", "exps_under",
                             "conversions_in_flight", "conversions_overlapped"});
  static const std::vector<std::string> scope_names =
      names(scope_figures({}, ""), names(part_figures({}, ""), {}));
  return scope == "kernel" ? kernels : std::ranges::count(scopes(), scope) ? scope_names : loops;
}

}  // namespace sass
