#include "plans.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>

#include "error.h"
#include "forward/plan/lengths.h"
#include "forward/plan/split.h"

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

// Returns false if the library refuses the point. change: what makes another problem of it, before rows are looked for.
template <class Change>
bool find_rows(const Point& point, const std::string& label, ForwardProblem& problem, Fit& fits, std::string& text,
               Change change) {
  const fa3_forward_params params = point.shapes();
  text.append("\n").append(label).append("\n");
  if (validate(&params, Rules::shapes, problem) == FA3_OK) {
    change(problem);
    if (fit(problem, fits) == FA3_OK) return true;
  }
  text += "  the library refuses it: " + std::string(last_message()) + "\n";
  return false;
}

bool add_plan(const Point& point, const Card& card, bool pieces, std::string& text) {
  ForwardProblem problem;
  Fit fits;
  if (!find_rows(point, point.label(), problem, fits, text, [](ForwardProblem&) {})) return false;
  text += columns;
  const int taken = plan(problem, fits, card).forward.row;
  const auto show = [&](int row) {
    RowPlan made;
    plan_row(problem, row, card, made);
    text += row_of_table(forward_row(row),
                         {made.tiles.count(), made.pieces.count(), most_parts(made), made.whole_us, made.predicted_us},
                         card.multiprocessors, row == taken);
    if (pieces && row == taken) text += work_of(made);
  };
  for (int i = 0; i < fits.count; ++i) show(fits.rows[i]);
  if (taken == fits.v_tiles_row) show(taken);
  return true;
}

// A plan for packed lengths, and the memory that it lies in.
struct PackedPlan {
  PlanLengthsParams params;
  std::vector<Planned> entries;
  PredictedTimes times;

  explicit PackedPlan(const PlanLengthsParams& p) : params(p) {
    std::vector<std::max_align_t> memory(size_t(plan_bytes(p)) / sizeof(std::max_align_t) + 1);
    const LengthsPlan plan = plan_at(memory.data(), p);
    const auto scratch = std::make_unique<PlanScratch>();
    plan_lengths(InTurn(), params, plan, *scratch);
    times = predicted_times(params, *scratch);
    entries.assign(plan.entries, plan.entries + plan.counts->entries);
  }
  Figures figures() const {
    int tiles = 0, parts = 1;
    for (const Planned& entry : entries) tiles += entry.part == 0, parts = std::max(parts, int(entry.parts));
    return {tiles * params.heads, int(entries.size()) * params.heads, parts, double(times.whole) / 1e3,
            double(times.planned) / 1e3};
  }
  // Of which sequence an entry is: its rows begin where no others do.
  int sequence_of(const Planned& entry) const {
    const int32_t* const cu_q = params.lengths.cu_q;
    return int(std::upper_bound(cu_q, cu_q + params.lengths.batch, entry.sequence.q_row) - cu_q) - 1;
  }
};

// Pieces that differ in their query block only, on one line.
std::string work_of(const PackedPlan& plan) {
  std::string text = line("    each for %d heads:\n", plan.params.heads);
  const auto& entries = plan.entries;
  for (size_t n = 0; n < entries.size();) {
    const Planned& first = entries[n];
    size_t last = n;
    const auto follows = [&](const Planned& next) {
      return next.sequence.q_row == first.sequence.q_row && next.q_block == entries[last].q_block + 1 &&
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

std::string label_of(const Point& point, const SequenceLengths& lengths) {
  const auto list = [](const std::vector<int64_t>& all) {
    std::string text;
    for (const int64_t n : all) text.append(text.empty() ? "" : ",").append(std::to_string(n));
    return text;
  };
  std::string label = point.kind() + " lengths " + list(lengths.q) + " heads " + std::to_string(point.heads) + "/" +
                      std::to_string(point.kv_heads);
  if (lengths.k != lengths.q) label += " lengths_k " + list(lengths.k);
  label += point.form();
  return point.library_chooses() ? label : label + " " + point.kernel;
}

// Where each sequence begins, and the last one ends; empty if that is more than kernels can count.
std::vector<int32_t> starts_of(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> starts{0};
  for (const int64_t length : lengths) {
    if (length > most_packed_rows - starts.back()) return {};
    starts.push_back(starts.back() + int32_t(length));
  }
  return starts;
}

bool add_plan(const Point& point, const std::string& label, const SequenceLengths& lengths, int multiprocessors,
              bool pieces, std::string& text) {
  ForwardProblem problem;
  Fit fits;
  const std::vector<int32_t> cu_q = starts_of(lengths.q), cu_k = starts_of(lengths.k);
  const bool can_be_counted = !cu_q.empty() && !cu_k.empty();
  const auto pack = [&](ForwardProblem& whole) {
    if (!can_be_counted) return;
    whole.served = true;
    whole.lengths = {cu_q.data(), cu_k.data(), nullptr, nullptr, nullptr, nullptr, int32_t(whole.batch),
                     int32_t(whole.seqlen_q), int32_t(whole.seqlen_k)};
    whole.total_q = cu_q.back(), whole.total_k = cu_k.back();
    whole.window = {-1, whole.causal ? 0 : -1, true};
    whole.causal = false, whole.causal_offset = 0;
  };
  if (!find_rows(point, label, problem, fits, text, pack)) return false;
  std::vector<PackedPlan> plans;
  std::vector<int> rows_of_plans;
  for (int i = 0; i < fits.count && can_be_counted; ++i) {
    PlanLengthsParams params;
    if (!plan_lengths_params(problem, forward_row(fits.rows[i]), multiprocessors, params)) continue;
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

Plans show_plans(const std::vector<Point>& points, const SequenceLengths& lengths, int multiprocessors, bool pieces) {
  Plans plans{line("On %d multiprocessors, as the device plans packed sequences. *: predicted to be the fastest.\n"
                   "parts: of one tile, at most.\n",
                   multiprocessors), 0};
  for (const Point& point : points)
    plans.refused += !add_plan(point, label_of(point, lengths), lengths, multiprocessors, pieces, plans.text);
  return plans;
}

Plans show_plans(const std::vector<Point>& points, const Card& card, bool pieces) {
  Plans plans{
      line("On %d multiprocessors, with %.2f TB/s of memory. *: what the library takes; of causal problems with\n"
           "4 tiles or more for each multiprocessor the first, whatever is predicted. parts: of one tile, at most.\n",
           card.multiprocessors, card.memory_bytes_per_us / 1e6), 0};
  plans.text += "A kernel that takes V as tiles comes last, where a pass that makes them goes before it.\n";
  for (const Point& p : points) {
    // Above 256 the device plans sequences of one length, too.
    const bool is_wide = p.head_dim > 256 || p.v_dim() > 256;
    const SequenceLengths alike{std::vector(size_t(p.batch), p.seqlen), std::vector(size_t(p.batch), p.seqlen_k)};
    const bool made = is_wide ? add_plan(p, p.label(), alike, card.multiprocessors, pieces, plans.text)
                              : add_plan(p, card, pieces, plans.text);
    plans.refused += !made;
  }
  return plans;
}

}  // namespace fa3::bench
