#include "plans/plans.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>

#include "error.h"
#include "forward/plan/planned.h"
#include "forward/plan/split.h"
#include "points/rows.h"

namespace fa3::bench {

namespace {

template <class... Values>
std::string line(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

int most_parts(const RowPlan& plan) {
  int parts = 1;
  for (int n = 0; n < plan.pieces.entries(); ++n) parts = std::max(parts, int(plan.list[n].parts));
  return parts;
}

constexpr const char* columns =
    "  kernel                                            tile   tiles  pieces parts  waves   whole us predicted us\n";

struct Figures {
  int tiles, pieces, parts;
  double whole_us, predicted_us;
};
std::string row_of_table(const ForwardRow& row, const Figures& figures, int multiprocessors, bool taken) {
  return line("%c %-44s %4dx%-4d %7d %7d %5d %6.2f %10.1f %10.1f\n", taken ? '*' : ' ', row.name, row.Br, row.Bc,
              figures.tiles, figures.pieces, figures.parts, double(figures.pieces) / multiprocessors,
              figures.whole_us, figures.predicted_us);
}

// Pieces that differ in their tile only, on one line.
std::string work_of(const RowPlan& plan) {
  std::string text;
  if (plan.pieces.whole_tiles > 0) text += line("    tiles 0 to %d whole\n", plan.pieces.whole_tiles - 1);
  for (int n = 0; n < plan.pieces.entries();) {
    const Listed& first = plan.list[n];
    int last = n;
    const auto follows = [&](const Listed& next) {
      return next.tile == plan.list[last].tile + 1 && next.part == first.part && next.parts == first.parts &&
             next.begin == first.begin && next.end == first.end;
    };
    while (last + 1 < plan.pieces.entries() && follows(plan.list[last + 1])) ++last;
    const int from = plan.pieces.whole_tiles + int(first.tile);
    const int to = plan.pieces.whole_tiles + int(plan.list[last].tile) + plan.pieces.tiles_per_entry - 1;
    text += from == to ? line("    tile %d", from) : line("    tiles %d to %d", from, to);
    text += line(", blocks %d to %d", int(first.begin) * plan.pieces.grain, int(first.end) * plan.pieces.grain - 1);
    text += first.parts == 1 ? "\n" : line(", part %d of %d\n", int(first.part) + 1, int(first.parts));
    n = last + 1;
  }
  return text;
}

// Returns false if the library refuses the call.
bool find_rows(const fa3_forward_params& params, ForwardProblem& problem, Fit& fits, std::string& text) {
  if (validate(&params, Rules::shapes, problem) == FA3_OK && fit(problem, fits) == FA3_OK) return true;
  text += "  the library refuses it: " + std::string(last_message()) + "\n";
  return false;
}

bool add_plan(const Point& point, const Card& card, bool pieces, std::string& text) {
  ForwardProblem problem;
  Fit fits;
  if (!find_rows(point.shapes(), problem, fits, text)) return false;
  text += columns;
  const int taken = plan(problem, fits, card).forward.row;
  const auto show = [&](int row) {
    RowPlan made;
    plan_row({{problem, forward_row(row)}, card}, made);
    text += row_of_table(forward_row(row),
                         {made.tiles.count(), made.pieces.count(), most_parts(made), made.whole_us, made.predicted_us},
                         card.multiprocessors, row == taken);
    if (pieces && row == taken) text += work_of(made);
  };
  for (int i = 0; i < fits.count; ++i) show(fits.rows[i]);
  if (taken == fits.v_tiles_row) show(taken);
  return true;
}

// A plan for varlen sequences, and the memory that it lies in.
struct PackedPlan {
  PlanForwardParams params;
  std::vector<PlannedPiece> entries;
  PredictedTimes times;

  explicit PackedPlan(const PlanForwardParams& p) : params(p) {
    std::vector<std::max_align_t> memory(size_t(plan_bytes(p)) / sizeof(std::max_align_t) + 1);
    const PlannedPieces plan = plan_at(memory.data(), p);
    const auto scratch = std::make_unique<PlanScratch>();
    plan_forward(InTurn(), params, plan, *scratch);
    times = predicted_times(params, *scratch);
    entries.assign(plan.entries, plan.entries + plan.counts->entries);
  }
  Figures figures() const {
    int tiles = 0, parts = 1;
    for (const PlannedPiece& entry : entries) tiles += entry.part == 0, parts = std::max(parts, int(entry.parts));
    return {tiles * params.heads, int(entries.size()) * params.heads, parts, double(times.whole) / 1e3,
            double(times.planned) / 1e3};
  }
  // Of which sequence an entry is: its rows begin where no others do, or in an entry of a batch.
  int sequence_of(const PlannedPiece& entry) const {
    const int32_t* const cu_q = params.lengths.cu_q;
    if (!cu_q) return entry.sequence.q_batch;
    return int(std::upper_bound(cu_q, cu_q + params.lengths.batch, entry.sequence.q_row) - cu_q) - 1;
  }
};

// Pieces that differ in their query block only, on one line.
std::string work_of(const PackedPlan& plan) {
  std::string text = line("    each for %d heads:\n", plan.params.heads);
  const auto& entries = plan.entries;
  for (size_t n = 0; n < entries.size();) {
    const PlannedPiece& first = entries[n];
    size_t last = n;
    const auto follows = [&](const PlannedPiece& next) {
      return next.sequence.q_row == first.sequence.q_row && next.sequence.q_batch == first.sequence.q_batch &&
             next.q_block == entries[last].q_block + 1 &&
             next.part == first.part && next.parts == first.parts && next.begin == first.begin &&
             next.end == first.end;
    };
    while (last + 1 < entries.size() && follows(entries[last + 1])) ++last;
    text += line("    sequence %d, query block", plan.sequence_of(first));
    text += n == last ? line(" %d", first.q_block) : line("s %d to %d", first.q_block, entries[last].q_block);
    text += line(", blocks %d to %d", first.begin, first.end - 1);
    text += first.parts == 1 ? "\n" : line(", part %d of %d\n", first.part + 1, first.parts);
    n = last + 1;
  }
  return text;
}

// The lengths lie on the host, as the planner runs here.
bool add_planned_plan(const Point& point, int multiprocessors, bool pieces, std::string& text) {
  ForwardProblem problem;
  Fit fits;
  if (point.query_rows() == 0) {
    text += "  there is nothing to compute\n";
    return true;
  }
  Rows rows(point);
  Addresses at;
  at.cu_q = rows.cu_q.data(), at.cu_k = rows.cu_k.data(), at.used_k = rows.used_k.data();
  if (!find_rows(point.params(at), problem, fits, text)) return false;
  std::vector<PackedPlan> plans;
  std::vector<int> rows_of_plans;
  for (int i = 0; i < fits.count; ++i) {
    PlanForwardParams params;
    if (!plan_forward_params({problem, forward_row(fits.rows[i])}, multiprocessors, params)) continue;
    plans.emplace_back(params);
    rows_of_plans.push_back(fits.rows[i]);
  }
  if (plans.empty()) {
    text += "  the lengths are too many: kernels cannot count their rows, tiles or parts\n";
    return false;
  }
  const auto sooner = [](const PackedPlan& a, const PackedPlan& b) { return a.times.planned < b.times.planned; };
  const auto fastest = std::ranges::min_element(plans, sooner) - plans.begin();
  text += columns;
  for (size_t i = 0; i < plans.size(); ++i) {
    const bool taken = int64_t(i) == fastest;
    text += row_of_table(forward_row(rows_of_plans[i]), plans[i].figures(), multiprocessors, taken);
    if (pieces && taken) text += work_of(plans[i]);
  }
  return true;
}

}  // namespace

Plans show_plans(const std::vector<Point>& points, const Card& card, bool pieces) {
  Plans plans{
      line("On %d multiprocessors, with %.2f TB/s of memory. *: what the library takes; of causal problems with\n"
           "4 tiles or more for each multiprocessor the first, whatever is predicted. parts: of one tile, at most.\n",
           card.multiprocessors, card.memory_bytes_per_us / 1e6), 0};
  plans.text += "A kernel that takes V as tiles comes last, where a pass that makes them goes before it. Of planned\n"
                "calls, which the device plans, *: predicted to be the fastest.\n";
  for (const Point& p : points) {
    plans.text.append("\n").append(p.label()).append("\n");
    const bool is_wide = p.head_dim > 256 || p.v_dim() > 256;  // such are planned, too
    plans.refused += !(p.is_planned() || is_wide ? add_planned_plan(p, card.multiprocessors, pieces, plans.text)
                                                : add_plan(p, card, pieces, plans.text));
  }
  return plans;
}

}  // namespace fa3::bench
