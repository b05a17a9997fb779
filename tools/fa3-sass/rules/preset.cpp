#include "preset.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "../dataflow/stack.h"

namespace sass {
namespace {

struct PresetRule {
  const char *scope, *figure, *relation, *bound;
};
constexpr PresetRule rules[] = {
    {"kernel", "spills", "==", "0"},
    // The protocol between warps: waits that spin, at barriers that something arrives at; TMA from one lane; a fence
    // between what threads store and what TMA reads of it.
    {"kernel", "waits_without_spin", "==", "0"},
    {"kernel", "never_arrived", "==", "0"},
    {"kernel", "tma_repeated", "==", "0"},
    {"kernel", "unfenced_tma", "==", "0"},
    // Hand-overs (handovers.h): no barrier that only one side knows, no loop that waits for one phase for ever, no
    // buffer written again while a bulk copy reads it, no semaphore released before what it guards is in memory.
    {"kernel", "never_awaited", "==", "0"},
    {"kernel", "unexpected_loads", "==", "0"},
    {"kernel", "never_loaded", "==", "0"},
    {"kernel", "parity_never_flips", "==", "0"},
    {"kernel", "waits_left_out", "==", "0"},
    {"kernel", "odd_counts", "==", "0"},
    {"kernel", "odd_named_barriers", "==", "0"},
    {"kernel", "never_read_out", "==", "0"},
    {"kernel", "released_in_flight", "==", "0"},
    // The pipeline is as it was written: ptxas has not given it up, and nobody touches what a WGMMA owns.
    {"hot", "serialised", "==", "0"},
    {"hot", "never_waited", "==", "0"},
    {"hot", "touches", "==", "0"},
    {"hot", "local", "==", "0"},
    {"boundary", "serialised", "==", "0"},
    {"boundary", "never_waited", "==", "0"},
    {"boundary", "touches", "==", "0"},
    {"boundary", "local", "==", "0"},
    // Of attention. Masks are for blocks at the border. Part of the softmax at least runs under WGMMAs.
    {"hot", "masks", "==", "0"},
    {"hot", "exps_overlapped", ">", "0"},
};

// What attention may mean: masks that depend on data, exponentials that other warpgroups hide.
bool is_of_attention(std::string_view figure) { return figure == "masks" || figure == "exps_overlapped"; }

// So may a source mean to have an array, or to wait in the midst of a GEMM, where ptxas has not put the waits there.
bool is_advice(const Rule& rule, const Kernel& kernel) {
  if (rule.figure == "spills") return are_of_arrays(kernel.listing, find(kernel.figures, "spills")->evidence);
  if (rule.figure != "serialised") return is_of_attention(rule.figure);
  return std::ranges::none_of(kernel.loops, [&](const WgmmaLoop& loop) {
    return loop.hot == (rule.scope == "hot") && loop.role == rule.role && loop.turn.one_by_one;
  });
}

}  // namespace

bool belongs_to(const std::string& preset, const Kernel& kernel) {
  const bool wgmmas = find(kernel.figures, "wgmmas")->value > 0, attention = is_attention(kernel);
  return preset == "any" || (preset == "gemm" ? wgmmas && !attention : attention);
}

bool is_attention(const Kernel& kernel) {
  const Figure* work = find(kernel.figures, "work");
  return work && (work->text == "forward" || work->text == "backward");
}

bool keeps_every_rule(const KernelRecord& record) { return record.plain && record.hands_nothing_over; }

Contract preset_for(const Kernel& kernel) {
  Contract contract{"preset", {Section{1, {"*"}, {}, {}}}};
  const bool attention = is_attention(kernel);
  const auto add = [&](const PresetRule& rule, const std::string& role, const Figures& figures) {
    if (!find(figures, rule.figure) || (is_of_attention(rule.figure) && !attention)) return;
    Rule made;
    made.line = static_cast<int>(&rule - rules) + 1;
    made.scope = rule.scope;
    made.role = role;
    made.figure = rule.figure;
    made.relation = rule.relation;
    made.bound = rule.bound;
    made.advice = is_advice(made, kernel);
    contract.sections[0].rules.push_back(made);
  };
  for (const PresetRule& rule : rules) {
    const std::string scope = rule.scope;
    if (scope == "kernel") add(rule, "", kernel.figures);
    std::set<std::string> roles;
    for (const WgmmaLoop& loop : kernel.loops)
      if (scope == (loop.hot ? "hot" : "boundary") && roles.insert(loop.role).second)
        add(rule, loop.role, loop.figures);
  }
  return contract;
}

}  // namespace sass
