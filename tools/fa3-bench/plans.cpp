#include "plans.h"

#include <algorithm>
#include <cstdio>

#include "error.h"
#include "forward/split.h"

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

std::string row_of_table(const RowPlan& plan, int multiprocessors, bool taken) {
  const Row& row = rows[plan.row];
  return line("%c %-36s %4dx%-4d %7d %7d %5d %6.2f %10.1f %10.1f\n", taken ? '*' : ' ', row.name, row.Br, row.Bc,
              plan.tiles.count(), plan.pieces.count(), most_parts(plan), double(plan.pieces.count()) / multiprocessors,
              plan.whole_us, plan.predicted_us);
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
    const int to = plan.pieces.whole_tiles + int(plan.list[last].tile) + plan.pieces.each - 1;
    text += from == to ? line("    tile %d", from) : line("    tiles %d to %d", from, to);
    text += line(", blocks %d to %d", int(first.begin) * plan.pieces.grain, int(first.end) * plan.pieces.grain - 1);
    text += first.parts == 1 ? "\n" : line(", part %d of %d\n", int(first.part) + 1, int(first.parts));
    n = last + 1;
  }
  return text;
}

// Returns false if the library refuses the point.
bool add_plan(const Point& point, int multiprocessors, bool pieces, std::string& text) {
  const fa3_forward_params params = point.shapes();
  text.append("\n").append(point.label()).append("\n");
  ForwardProblem problem;
  Fit fits;
  if (validate(&params, Rules::shapes, problem) != FA3_OK || fit(problem, fits) != FA3_OK) {
    text += "  the library refuses it: " + std::string(last_message()) + "\n";
    return false;
  }
  text += "  kernel                                    tile   tiles  pieces parts  waves   whole us predicted us\n";
  const int taken = plan(problem, fits, multiprocessors).forward.row;
  const auto show = [&](int row) {
    RowPlan made;
    plan_row(problem, row, multiprocessors, made);
    text += row_of_table(made, multiprocessors, row == taken);
    if (pieces && row == taken) text += work_of(made);
  };
  for (int i = 0; i < fits.count; ++i) show(fits.rows[i]);
  if (taken == fits.v_tiles_row) show(taken);
  return true;
}

}  // namespace

Plans show_plans(const std::vector<Point>& points, int multiprocessors, bool pieces) {
  Plans plans{
      line("On %d multiprocessors. *: what the library takes; of causal problems with 4 tiles\n"
           "or more for each multiprocessor the first, whatever is predicted. parts: of one tile, at most.\n",
           multiprocessors), 0};
  plans.text += "A kernel that takes V as tiles comes last, where a pass that makes them goes before it.\n";
  for (const Point& point : points) plans.refused += !add_plan(point, multiprocessors, pieces, plans.text);
  return plans;
}

}  // namespace fa3::bench
