#include "quarter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace sass {
namespace {

// Clocks of a unit for the instruction of a warp, beside a WGMMA and while the tensor core has none, and until its
// scoreboard ends. Beside WGMMAs, whose accumulators go through the register file, arithmetic takes longer; more than
// the units' own rates (floors.h) it takes in any case. These clocks are fitted to what counters say of this library's
// kernels on an H200 (tests/sass/library/clocks.py).
struct Rate {
  double busy, alone, latency;
};
constexpr Rate rates[] = {{0, 0, 0}, {11, 10, 33}, {3, 2, 10}, {4, 4, 10}, {1, 1, 12}, {2, 2, 24}, {1, 1, 16}};
constexpr double to_tensor = 10, from_tensor = 100;  // from issue to the tensor core, and from its end to a wait
constexpr double from_arrival = 30;                  // from the last arrival at an mbarrier to a wait

// What is done in shared memory beside WGMMAs' operands costs so much of its clocks more.
constexpr double beside_operands = 1.2;
constexpr double most_copies = 512;  // of TMA's that wait for shared memory

constexpr double never = std::numeric_limits<double>::infinity();
// Turns of a warp that are followed, and the first one that counts. Turns of all warps count, as one may be faster.
constexpr size_t turns = 14, first = 6;

const Rate& rate_of(Unit unit) { return rates[static_cast<int>(unit)]; }

struct Wgmma {
  double ready, clocks, wavefronts;
  size_t group;
  bool last;  // of its group
  size_t position, turn;
};

struct Warp {
  size_t loop = 0;
  bool shown = false;  // the first one of its loop
  size_t position = 0, turn = 0;
  double ready = 0;
  double scoreboard[scoreboards] = {};
  // What a scoreboard waits for beside its clock: conditions of a step, as of this turn.
  const Step* awaited[scoreboards] = {};
  size_t awaited_turn[scoreboards] = {};
  std::optional<Wgmma> ready_wgmma;
  std::vector<double> groups;  // when the tensor cores are through with each
  std::vector<std::vector<double>> arrived;  // of each arrival that others wait for, when it was made in each turn
};

class Quarter {
 public:
  Quarter(const std::vector<LoopSteps>& loops, double start, double copies) : loops_(loops), issues_(loops.size()) {
    double tensor = 0;
    for (const LoopSteps& loop : loops)
      for (const Step& step : loop.steps) tensor += loop.warps * step.columns / 2;
    if (tensor > 0) copies_each_ = beside_operands * copies / tensor;
    for (size_t l = 0; l < loops.size(); ++l) {
      issues_[l].issued.assign(loops[l].steps.size(), 0);
      issues_[l].began = issues_[l].issued;
      for (int w = 0; w < loops[l].warps; ++w) {
        Warp warp;
        warp.loop = l;
        warp.shown = w == 0;
        warp.ready = start * static_cast<double>(warps_.size());
        warp.arrived.resize(static_cast<size_t>(loops[l].arrivals));
        warps_.push_back(std::move(warp));
      }
    }
    begins_.resize(loops.size());
    next_turn_.assign(loops.size(), 0);
  }

  std::vector<Issue> run() {
    constexpr double most = 1e6;
    while (!done() && clock_ < most) {
      feed_tensor_core();
      double next = never;
      bool issued = false;
      for (size_t k = 0; k < warps_.size() && !issued; ++k) {
        Warp& warp = warps_[(after_ + k) % warps_.size()];
        const double from = earliest(warp);
        if (from > clock_) {
          next = std::min(next, from);
          continue;
        }
        note(warp);
        issue(warp);
        after_ = (after_ + k + 1) % warps_.size();
        issued = true;
      }
      clock_ = issued ? clock_ + 1 : std::max(clock_ + 1, std::ceil(std::min(next, next_of_tensor_core())));
    }
    if (clock_ >= most) return {};
    for (size_t l = 0; l < loops_.size(); ++l) {
      const auto warps = static_cast<size_t>(loops_[l].warps);
      Issue& issue = issues_[l];
      issue.turn = (begins_[l][turns * warps] - begins_[l][first * warps]) / (turns - first);
      const double begin = issue.issued.front(), shown = next_turn_[l] - begin;
      for (std::vector<double>* clocks : {&issue.issued, &issue.began})
        for (double& clock : *clocks) clock = (clock - begin) * issue.turn / shown;
    }
    return std::move(issues_);
  }

 private:
  const Step& step_of(const Warp& warp) const { return loops_[warp.loop].steps[warp.position]; }

  bool done() const {
    for (size_t l = 0; l < loops_.size(); ++l)
      if (begins_[l].size() <= turns * static_cast<size_t>(loops_[l].warps) || next_turn_[l] == 0) return false;
    return true;
  }

  void note(const Warp& warp) {
    if (warp.position == 0) begins_[warp.loop].push_back(clock_);
    if (!warp.shown) return;
    if (warp.position == 0 && warp.turn == first + 1) next_turn_[warp.loop] = clock_;
    if (warp.turn == first) issues_[warp.loop].issued[warp.position] = clock_;
  }

  // When all of these have arrived: never, if one has not yet.
  double met(const std::vector<Step::Condition>& conditions, size_t turn) const {
    double from = 0;
    for (const Step::Condition& condition : conditions) {
      const int wanted = static_cast<int>(turn) + condition.later;
      if (wanted < 0) continue;
      for (const Warp& warp : warps_) {
        if (warp.loop != condition.loop) continue;
        const std::vector<double>& arrived = warp.arrived[condition.arrival];
        if (arrived.size() <= static_cast<size_t>(wanted)) return never;
        from = std::max(from, arrived[static_cast<size_t>(wanted)] + from_arrival);
      }
    }
    return from;
  }

  // Whether another warp of the loop has not come as far as this one, which stands at a barrier for all of them.
  bool is_ahead(const Warp& warp) const {
    return std::ranges::any_of(warps_, [&](const Warp& other) {
      return other.loop == warp.loop && std::pair(other.turn, other.position) < std::pair(warp.turn, warp.position);
    });
  }

  double earliest(const Warp& warp) const {
    const Step& step = step_of(warp);
    if (step.meets && is_ahead(warp)) return never;
    double from = warp.ready;
    for (int s = 0; s < scoreboards; ++s)
      if (step.control.waits_for(s)) {
        from = std::max(from, warp.scoreboard[s]);
        if (warp.awaited[s]) from = std::max(from, met(warp.awaited[s]->conditions, warp.awaited_turn[s]));
      }
    if (step.in_flight >= 0 && warp.groups.size() > static_cast<size_t>(step.in_flight))
      from = std::max(from, warp.groups[warp.groups.size() - 1 - static_cast<size_t>(step.in_flight)] + from_tensor);
    if (step.unit != Unit::tensor) return std::max(from, free_[static_cast<int>(step.unit)]);
    return warp.ready_wgmma ? never : from;
  }

  void issue(Warp& warp) {
    const Step& step = step_of(warp);
    const Rate& rate = rate_of(step.unit);
    if (step.unit == Unit::tensor) {
      warp.ready_wgmma = {clock_ + to_tensor,  step.columns / 2, step.wavefronts, warp.groups.size(),
                          step.commits,        warp.position,    warp.turn};
      if (step.commits) warp.groups.push_back(never);
    } else {
      free_[static_cast<int>(step.unit)] = clock_ + (running_ ? rate.busy : rate.alone);
      accesses_ += beside_operands * step.wavefronts;
    }
    for (const int s : {step.control.written, step.control.read}) {
      if (s < 0) continue;
      warp.scoreboard[s] = clock_ + (step.latency > 0 ? step.latency : rate.latency);
      warp.awaited[s] = nullptr;
    }
    if (step.control.written >= 0 && !step.conditions.empty()) {
      warp.awaited[step.control.written] = &step;
      warp.awaited_turn[step.control.written] = warp.turn;
    }
    if (step.arrival >= 0) warp.arrived[static_cast<size_t>(step.arrival)].push_back(clock_);
    warp.ready = clock_ + std::max(1, step.control.stall);
    if (++warp.position == loops_[warp.loop].steps.size()) {
      warp.position = 0;
      ++warp.turn;
    }
  }

  // Shared memory serves a WGMMA's operands, what warps load and store meanwhile, and then TMA, which has time, up to a
  // point. What of that does not fit into the WGMMA's own clocks makes it longer.
  void share_memory() {
    const double left = until_ - began_ - running_->wavefronts - served_;
    const double must = accesses_ + std::max(0.0, copies_ - most_copies);
    until_ += std::max(0.0, must - left);
    const double spare = std::max(0.0, left - accesses_);
    served_ += must + std::min(spare, std::min(copies_, most_copies));
    copies_ = std::max(0.0, std::min(copies_, most_copies) - spare);
    accesses_ = 0;
  }

  void feed_tensor_core() {
    if (running_ && clock_ >= until_) share_memory();
    if (running_ && clock_ >= until_) {
      if (running_->last) warps_[owner_].groups[running_->group] = until_;
      running_.reset();
      idle_ = until_;
    }
    if (running_) return;
    for (size_t k = 0; k < warps_.size(); ++k) {
      const size_t w = (owner_ + k) % warps_.size();
      Warp& warp = warps_[w];
      if (!warp.ready_wgmma || warp.ready_wgmma->ready > clock_) continue;
      running_ = warp.ready_wgmma;
      warp.ready_wgmma.reset();
      owner_ = w;
      until_ = clock_ + running_->clocks;
      const double idle = clock_ - idle_;
      copies_ = std::max(0.0, copies_ - std::max(0.0, idle - accesses_)) + running_->clocks * copies_each_;
      accesses_ = std::max(0.0, accesses_ - idle);
      began_ = clock_;
      served_ = 0;
      if (warp.shown && running_->turn == first) issues_[warp.loop].began[running_->position] = clock_;
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

  const std::vector<LoopSteps>& loops_;
  std::vector<Warp> warps_;
  std::vector<Issue> issues_;
  std::vector<std::vector<double>> begins_;  // of each loop's turns, by all its warps
  std::vector<double> next_turn_;            // of the warp whose turn is shown
  double clock_ = 0, free_[std::size(rates)] = {}, until_ = 0;
  std::optional<Wgmma> running_;
  double began_ = 0, served_ = 0, idle_ = 0;  // of it; when the tensor cores had nothing more
  // Clocks of shared memory not yet served: warps' accesses, and TMA's, which comes by so much each clock of a WGMMA.
  double accesses_ = 0, copies_ = 0, copies_each_ = 0;
  size_t owner_ = 0, after_ = 0;
};

}  // namespace

double busy_clocks(Unit unit) { return rate_of(unit).busy; }

std::vector<Issue> run_quarter(const std::vector<LoopSteps>& loops, double start, double copies) {
  return Quarter(loops, start, copies).run();
}

}  // namespace sass
