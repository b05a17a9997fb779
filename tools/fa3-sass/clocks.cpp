#include "clocks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "floors.h"

namespace sass {
namespace {

enum class Unit { tensor, mufu, fma, alu, uniform, memory, control };

// Clocks of a unit for the instruction of a warp, and until its scoreboard ends. Beside WGMMAs, whose accumulators go
// through the register file, arithmetic takes longer than the units' own rates (floors.h): these clocks are fitted to
// what counters say of ten kernels of this library on an H200 (tests/sass/clocks.py).
struct Rate {
  double busy, latency;
};
constexpr Rate rates[] = {{0, 0}, {11, 33}, {3, 10}, {3, 10}, {1, 12}, {2, 24}, {1, 16}};
constexpr double to_tensor = 10, from_tensor = 120;  // from issue to the tensor core, and from its end to a wait
// How much later than the one before it a warp begins: what they do to each other settles in different ways.
constexpr double starts[] = {0, 150, 400, 900};

Unit unit_of(const Instruction& i, Kind kind) {
  switch (kind) {
    case Kind::wgmma: return Unit::tensor;
    case Kind::exp:
    case Kind::special: return Unit::mufu;
    case Kind::multiply:
    case Kind::multiply_add:
    case Kind::add: return Unit::fma;
    case Kind::shuffle:
    case Kind::shared_memory:
    case Kind::global_memory:
    case Kind::local_memory: return i.opcode[0] == 'U' || i.is("VOTEU") ? Unit::uniform : Unit::memory;
    case Kind::uniform: return Unit::uniform;
    case Kind::maximum:
    case Kind::convert:
    case Kind::mask: return Unit::alu;
    case Kind::move:
    case Kind::other:
      if (i.is("IMAD")) return Unit::fma;
      return i.is("R2UR") || i.opcode[0] == 'U' ? Unit::uniform : i.is("LDC") ? Unit::memory : Unit::alu;
    default: return Unit::control;
  }
}

struct Step {
  Unit unit;
  Control control;
  double columns = 0;   // of a WGMMA
  bool commits = false;
  int in_flight = -1;   // of a wait
};

constexpr double never = std::numeric_limits<double>::infinity();

struct Wgmma {
  double ready, clocks;
  size_t group;
  bool last;  // of its group
  size_t position, turn;
};

struct Warp {
  size_t position = 0, turn = 0;
  double ready = 0;
  double scoreboard[scoreboards] = {};
  std::optional<Wgmma> ready_wgmma;
  std::vector<double> groups;  // when the tensor cores are through with each
  size_t committed = 0;
};

class Quarter {
 public:
  Quarter(const std::vector<Step>& steps, int warps, double start) : steps_(steps), warps_(static_cast<size_t>(warps)) {
    for (size_t w = 0; w < warps_.size(); ++w) warps_[w].ready = start * static_cast<double>(w);
  }

  Clocks run() {
    // Turns of a warp that are followed, and the first one that counts. Turns of all warps count, as one may be faster.
    constexpr size_t turns = 14, first = 6;
    std::vector<double> begins;  // of all warps
    double next_turn = 0;        // of the warp whose turn is shown
    constexpr double most = 1e6;
    Clocks result;
    result.issued.assign(steps_.size(), 0);
    result.began = result.issued;
    const auto seen = [&](const Warp& warp) { return &warp == &warps_[0] && warp.turn == first; };
    while ((begins.size() <= turns * warps_.size() || next_turn == 0) && clock_ < most) {
      feed_tensor_core(result, first);
      double next = never;
      bool issued = false;
      for (size_t k = 0; k < warps_.size() && !issued; ++k) {
        Warp& warp = warps_[(after_ + k) % warps_.size()];
        const double from = earliest(warp);
        if (from > clock_) {
          next = std::min(next, from);
          continue;
        }
        if (warp.position == 0) begins.push_back(clock_);
        if (warp.position == 0 && &warp == &warps_[0] && warp.turn == first + 1) next_turn = clock_;
        if (seen(warp)) result.issued[warp.position] = clock_;
        issue(warp);
        after_ = (after_ + k + 1) % warps_.size();
        issued = true;
      }
      clock_ = issued ? clock_ + 1 : std::max(clock_ + 1, std::ceil(std::min(next, next_of_tensor_core())));
    }
    if (clock_ >= most) return {};
    result.turn = (begins[turns * warps_.size()] - begins[first * warps_.size()]) / (turns - first);
    const double begin = result.issued.front();
    for (std::vector<double>* clocks : {&result.issued, &result.began})
      for (double& clock : *clocks) clock = (clock - begin) * result.turn / (next_turn - begin);
    return result;
  }

 private:
  double earliest(const Warp& warp) const {
    const Step& step = steps_[warp.position];
    double from = warp.ready;
    for (int s = 0; s < scoreboards; ++s)
      if (step.control.waits_for(s)) from = std::max(from, warp.scoreboard[s]);
    if (step.in_flight >= 0 && warp.groups.size() > static_cast<size_t>(step.in_flight))
      from = std::max(from, warp.groups[warp.groups.size() - 1 - static_cast<size_t>(step.in_flight)] + from_tensor);
    if (step.unit != Unit::tensor) return std::max(from, free_[static_cast<int>(step.unit)]);
    return warp.ready_wgmma ? never : from;
  }

  void issue(Warp& warp) {
    const Step& step = steps_[warp.position];
    const Rate& rate = rates[static_cast<int>(step.unit)];
    if (step.unit == Unit::tensor) {
      warp.ready_wgmma = {clock_ + to_tensor, step.columns / 2, warp.groups.size(), step.commits, warp.position,
                          warp.turn};
      if (step.commits) warp.groups.push_back(never);
    } else {
      free_[static_cast<int>(step.unit)] = clock_ + rate.busy;
    }
    if (step.control.written >= 0) warp.scoreboard[step.control.written] = clock_ + rate.latency;
    if (step.control.read >= 0) warp.scoreboard[step.control.read] = clock_ + rate.latency;
    warp.ready = clock_ + std::max(1, step.control.stall);
    if (++warp.position == steps_.size()) {
      warp.position = 0;
      ++warp.turn;
    }
  }

  void feed_tensor_core(Clocks& result, size_t first) {
    if (running_ && clock_ >= until_) {
      if (running_->last) warps_[owner_].groups[running_->group] = until_;
      running_.reset();
    }
    if (running_) return;
    for (size_t k = 0; k < warps_.size(); ++k) {
      const size_t w = (owner_ + k) % warps_.size();
      if (!warps_[w].ready_wgmma || warps_[w].ready_wgmma->ready > clock_) continue;
      running_ = warps_[w].ready_wgmma;
      warps_[w].ready_wgmma.reset();
      owner_ = w;
      until_ = clock_ + running_->clocks;
      if (w == 0 && running_->turn == first) result.began[running_->position] = clock_;
      return;
    }
  }

  double next_of_tensor_core() const {
    if (running_) return until_;
    double next = never;
    for (const Warp& warp : warps_)
      if (warp.ready_wgmma) next = std::min(next, warp.ready_wgmma->ready);
    return next;
  }

  const std::vector<Step>& steps_;
  std::vector<Warp> warps_;
  double clock_ = 0, free_[std::size(rates)] = {}, until_ = 0;
  std::optional<Wgmma> running_;
  size_t owner_ = 0, after_ = 0;
};

}  // namespace

Clocks estimated_clocks(const Kernel& kernel, const WgmmaLoop& loop) {
  const auto is_hot = [](const WgmmaLoop& l) { return l.hot; };
  if (std::ranges::count_if(kernel.loops, is_hot) > 1) return {};
  std::vector<Step> steps;
  double columns = 0;
  for (int p = 0; p < loop.turn.size(); ++p) {
    const Instruction& i = kernel.listing.code[static_cast<size_t>(loop.turn.code[static_cast<size_t>(p)])];
    const Kind kind = loop.turn.kinds[static_cast<size_t>(p)];
    if (!i.control.known) return {};
    Step step{unit_of(i, kind), i.control};
    if (kind == Kind::wgmma) {
      step.columns = wgmma_columns(i.opcode.substr(i.opcode.find('.') + 1));
      step.commits = i.operands.back() == "gsb0";
    }
    if (kind == Kind::wait) step.in_flight = wait_count(i);
    columns += step.columns;
    steps.push_back(step);
  }
  const int warps = computing_warpgroups(kernel);
  std::vector<Clocks> runs;
  double mean = 0;
  for (double start : starts) {
    runs.push_back(Quarter(steps, warps, start).run());
    if (runs.back().turn == 0) return {};
    mean += runs.back().turn / static_cast<double>(std::size(starts));
  }
  Clocks clocks = *std::ranges::min_element(runs, {}, [&](const Clocks& run) { return std::abs(run.turn - mean); });
  for (std::vector<double>* places : {&clocks.issued, &clocks.began})
    for (double& place : *places) place *= mean / clocks.turn;
  for (const Step& step : steps)
    clocks.busy.push_back(step.unit == Unit::tensor ? step.columns / 2 : rates[static_cast<int>(step.unit)].busy);
  clocks.turn = mean;
  clocks.tensor = warps * columns / 2 / mean;
  return clocks;
}

}  // namespace sass
