#include "first_contract.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "preset.h"

namespace sass {
namespace {

struct Stated {
  const char *figure, *relation;
};
// What the author of a kernel means, and a change should not move by chance. Shares may grow and lengths shrink.
constexpr Stated kernel_figures[] = {{"registers", "=="},          {"threads", "=="},       {"parameters", "=="},
                                {"setmaxnreg", "=="},         {"stack", "<="},         {"spills", "<="},
                                {"hot_loops", "=="},          {"calls", "=="},         {"waits_without_spin", "<="},
                                {"never_arrived", "<="},      {"tma_by_many", "<="},   {"unfenced", "<="},
                                {"expected_bytes", "=="}};
constexpr Stated loop_figures[] = {{"gemms", "=="},          {"types", "=="},           {"groups", "=="},
                               {"waits", "=="},          {"serialised", "<="},      {"never_waited", "<="},
                               {"touches", "<="},        {"local", "<="},           {"masks", "=="},
                               {"exps", "=="},           {"conversions", "=="},     {"exps_in_flight", ">="},
                               {"exps_overlapped", ">="}, {"rescales", "<="},        {"releases", "=="},
                               {"parities", "=="},       {"arrives_by_many", "<="}, {"accumulators", "=="},
                               {"transposed", "=="},     {"conversion_types", "=="}, {"most_exps", "<="},
                               {"instructions", "<="}};
constexpr Stated scope_figures[] = {{"setmaxnreg", "=="}, {"waits", "=="},    {"tma_loads", "=="}, {"tma_stores", "=="},
                                {"parities", "=="},   {"releases", "=="}, {"conversion_types", "=="}};

constexpr double slack = 1.02;  // of numbers of instructions, for the compiler's moods

// The bound that all of these figures keep; nothing if there is none.
std::string bound_of(const std::vector<const Figure*>& figures, const std::string& relation) {
  const Figure& first = *figures.front();
  if (first.is_text) {
    const auto same = [&](const Figure* figure) { return figure->text == first.text; };
    // `#` would begin a comment.
    const bool can_be_written = !first.text.empty() && first.text.find('#') == std::string::npos;
    return can_be_written && std::ranges::all_of(figures, same) ? first.text : "";
  }
  double least = first.value, most = first.value;
  for (const Figure* figure : figures) {
    least = std::min(least, figure->value);
    most = std::max(most, figure->value);
  }
  Figure bound = first;
  if (relation == "==" && least != most) return "";
  if (relation == ">=") bound.value = std::floor(least * 1000) / 1000;  // as many digits as are shown
  if (relation == "<=") bound.value = first.name == "instructions" ? std::floor(most * slack) : most;
  return bound.shown();
}

class Writer {
 public:
  explicit Writer(const Kernel& kernel) : preset_(preset_for(kernel)) {}

  template <size_t n>
  void add(const std::string& scope, const std::string& role, const Stated (&stated)[n],
           const std::vector<const Figures*>& places) {
    for (const auto& [name, relation] : stated) {
      std::vector<const Figure*> figures;
      for (const Figures* place : places)
        if (const Figure* figure = find(*place, name)) figures.push_back(figure);
      if (figures.size() != places.size()) continue;
      const std::string bound = bound_of(figures, relation);
      if (bound.empty()) continue;
      text += "  " + scope + (role.empty() ? "" : "[" + role + "]") + "." + name + " " + relation + " " + bound +
              wish(scope, role, *figures.front(), bound) + "\n";
    }
  }

  std::string text;

 private:
  // Where the kernel is not what any attention kernel should be.
  std::string wish(const std::string& scope, const std::string& role, const Figure& figure,
                   const std::string& bound) const {
    for (const Rule& rule : preset_.sections[0].rules)
      if (rule.scope == scope && rule.role == role && rule.figure == figure.name &&
          (rule.relation == ">" ? bound == rule.bound : bound != rule.bound))
        return "  # should be " + (rule.relation == "==" ? rule.bound : "more than " + rule.bound);
    return "";
  }

  Contract preset_;
};

}  // namespace

std::string first_contract(const Kernel& kernel) {
  Writer writer(kernel);
  writer.text = "# What the machine code of this kernel is, to begin with: keep what is meant, and say why.\nrows " +
                kernel.record.name + "\n";
  writer.add("kernel", "", kernel_figures, {&kernel.figures});
  for (const bool hot : {true, false}) {
    std::set<std::string> roles;
    for (const WgmmaLoop& loop : kernel.loops) {
      if (loop.hot != hot || !roles.insert(loop.role).second) continue;
      std::vector<const Figures*> places;  // a rule speaks of all loops with these GEMMs
      for (const WgmmaLoop& other : kernel.loops)
        if (other.hot == hot && other.role == loop.role) places.push_back(&other.figures);
      writer.text += "\n";
      writer.add(hot ? "hot" : "boundary", loop.role, loop_figures, places);
    }
  }
  for (const auto& [scope, figures] : kernel.scopes) {
    if (find(figures, "instructions")->value == 0) continue;
    writer.text += "\n";
    writer.add(scope, "", scope_figures, {&figures});
  }
  return writer.text;
}

}  // namespace sass
