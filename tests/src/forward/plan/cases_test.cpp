// The planner's cases as src/README.md has them, each with an example: the planner does there what the table says.
#include <catch2/catch_test_macros.hpp>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "plans.h"

namespace fa3::test {
namespace {

// The cells of the table's row that begins with this case.
std::vector<std::string> cells_of(const std::string& name) {
  std::ifstream file(FA3_SOURCE_ROOT "/src/README.md");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| " + name)) continue;
    std::vector<std::string> cells;
    std::istringstream text(line.substr(1));
    for (std::string cell; std::getline(text, cell, '|');) cells.push_back(cell.substr(1, cell.size() - 2));
    return cells;
  }
  return {};
}

std::string to_tenth(double us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", us);
  return text;
}

Shape decode(int64_t batch, int64_t seqlen_k) { return {batch, 1, seqlen_k, 32, 8, 128}; }

}  // namespace

TEST_CASE("the planner's cases are those of the table in src/README.md", "[plan]") {
  constexpr int32_t causal = FA3_MASK_CAUSAL_TOP_LEFT;
  const struct {
    const char* name;
    ForwardProblem problem;
    int whole_tiles;       // that are in no list
    int pieces;
    std::set<int> parts;   // of the tiles in the list
    std::set<int> blocks;  // of some of their pieces
  } cases[] = {
      {"no mask: last wave in equal parts", problem_of(square(1, 8192, 4, 128)), 132, 132 + 40 * 3, {3}, {43}},
      {"no mask: last wave cut at quotas", problem_of(square(1, 16384, 16, 128)), 1320, 1507, {3, 4}, {109}},
      {"packed heads, few tiles", problem_of(decode(1, 8192)), 0, 8 * 16, {16}, {8}},
      {"packed heads, long tiles", problem_of(decode(64, 8192)), 380, 380 + 132 * 3, {3}, {71, 42, 15}},
      {"packed heads, many short tiles", problem_of(decode(32, 4096)), 256, 256, {}, {}},
      {"causal, few tiles: all in parts", problem_of(square(1, 8192, 1, 64), causal), 0, 127, {1, 2, 3, 4, 5, 6, 7},
       {19}},
      {"causal, few tiles: the longest", problem_of(square(1, 16384, 3, 64), causal), 0, 192 + 45, {1, 2}, {196}},
      {"causal, many tiles, few keys", problem_of(square(64, 256, 16, 128), causal), 1784, 2048, {1}, {4}},
      {"causal, many tiles: whole", problem_of(square(1, 16384, 16, 128), causal), 1376, 1376, {}, {}}};
  for (const auto& c : cases) {
    INFO(c.name);
    const RowPlan& made = row_plan(c.problem);
    const std::vector<std::string> cells = cells_of(c.name);
    REQUIRE(cells.size() == 6);
    RowPlan timed;  // as fa3-bench shows it; where no row is compared a call's plan has rough times
    plan_row(c.problem, made.row, assumed_card(132), timed);
    CHECK((cells[3] == to_tenth(timed.whole_us) && cells[4] == to_tenth(timed.predicted_us)));
    CHECK((made.pieces.whole_tiles == c.whole_tiles && made.pieces.count() == c.pieces));
    std::set<int> parts, blocks;
    for (int n = 0; n < made.pieces.entries(); ++n) {
      parts.insert(int(made.list[n].parts));
      blocks.insert(int(made.list[n].end) - int(made.list[n].begin));
    }
    CHECK(parts == c.parts);
    for (const int n : c.blocks) CHECK(blocks.contains(n));
  }
}

}  // namespace fa3::test
