// Tiles split along the keys: parts on several thread blocks, put together by whichever warp comes last.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <array>
#include <vector>

#include "../gpu.h"
#include "device_case.h"
#include "random.h"
#include "rows.h"

namespace fa3::test {

namespace {

// What the library splits on GPUs with 132 multiprocessors; most of it also on others.
std::vector<Problem> split_problems(const ForwardRow& row) {
  const int Br = row.Br, Bc = row.Bc;
  int number = 7000;
  std::vector<Problem> problems;
  const auto add = [&](int64_t seqlen_q, int64_t seqlen_k, int64_t heads, int64_t heads_kv) -> Problem& {
    problems.push_back(plain_problem(row, 1, seqlen_q, seqlen_k, heads, heads_kv, seed_for(row, number++)));
    return problems.back();
  };
  add(1, 131072, 1, 1);                // as many parts as there can be
  add(17, 65536 + 1, 2, 1);
  add(Br, 40 * Bc, 1, 1);
  add(Br + 5, 40 * Bc + 7, 4, 2);      // GQA, and a tile that has rows for one warpgroup only
  add(2 * Br + 33, 29 * Bc + 1, 3, 3).head_dim = row.d - head_dim_unit(row);
  add(70, 3000, 6, 1).head_dim = smallest_head_dim(row);
  add(100, 4000, 2, 1).head_dim_v = row.dv / 2;
  add(2, 91 * Bc, 100, 4);             // fewer tiles than multiprocessors, but more than half as many
  add(3, 61 * Bc + 9, 200, 2);         // a full wave, and 68 tiles in equal units
  add(5, 64 * Bc, 139, 1);             // a full wave, and 7 tiles of many parts
  add(1150, 1100, 1, 1);               // with a mask: rows that see no key, alone in their warp or beside others
  add(1100, 1150, 2, 1);
  add(40 * Br, 12 * Bc, 1, 1);         // and thread blocks that only write such rows
  if (row.causal()) {
    add(1100, 1100, 2, 2).mask = FA3_MASK_CAUSAL_TOP_LEFT;
    add(900, 1500, 3, 1).mask = FA3_MASK_CAUSAL_TOP_LEFT;
    add(1500, 900, 1, 1).mask = FA3_MASK_CAUSAL_TOP_LEFT;
    // More tiles than multiprocessors, the longest cut.
    if (row.Br == 128 && row.Bc == 128) {
      add(8192, 8192, 3, 3);
      add(4096, 4200, 4, 2);
    } else if (row.d == 64) {
      add(8192, 8192, 5, 1);
      add(3600, 2900, 10, 5);
    } else if (row.d == 128) {
      add(4100, 4500, 6, 2);
      add(4100, 3500, 7, 7);
    } else {
      add(2600, 2600, 7, 7);
    }
  }
  return problems;
}

void shapes(const ForwardRow& row) {
  gpu();
  int split = 0;
  for (const Problem& problem : split_problems(row)) split += run(problem, row, 6);
  INFO("few of these problems are split on this GPU");
  CHECK(split >= 7);
}

// Parts whose maxima and sums differ as much as they can.
void patterns(const ForwardRow& row) {
  gpu();
  for (int i = 0; i < pattern_count; ++i) {
    Problem p = plain_problem(row, 1, 100, 50 * row.Bc + 11, 2, 1, seed_for(row, 7100 + i));
    p.pattern = Pattern(i);
    run(p, row);
  }
}

// One on each stream, several times over, then captured and replayed; always with garbage in the workspaces at first.
void streams_and_graphs(const ForwardRow& row) {
  gpu();
  std::vector<Case> cases;
  std::vector<Expected> expected;
  std::vector<DeviceCase> devices;
  std::vector<tools::Stream> streams(3);
  for (int i = 0; i < 3; ++i) {
    cases.emplace_back(plain_problem(row, 1, 90 + 100 * i, 2500 - 300 * i, 2, 1, seed_for(row, 7200 + i)));
    expected.push_back(expect(cases.back()));
    devices.emplace_back(cases.back());
    devices.back().reset(WorkspaceFill::random);
  }
  for (int round = 0; round < 10; ++round)
    for (size_t i = 0; i < 3; ++i) devices[i].launch(streams[i]);
  for (size_t i = 0; i < 3; ++i) {
    devices[i].download(streams[i], cases[i]);
    CHECK(verify(cases[i], expected[i]) == "");
    CHECK(devices[i].check_workspace() == "");
  }
  for (size_t i = 0; i < 3; ++i) {
    tools::Graph::begin(streams[i]);
    devices[i].launch(streams[i]);
    devices[i].launch(streams[i]);
    const tools::Graph graph = tools::Graph::end(streams[i]);
    const std::vector<Image> first = cases[i].images;
    for (const WorkspaceFill fill : {WorkspaceFill::ones, WorkspaceFill::random, WorkspaceFill::zeros}) {
      devices[i].reset(fill);
      graph.launch(streams[i]);
      graph.launch(streams[i]);
      devices[i].download(streams[i], cases[i]);
      CHECK(cases[i].images == first);
    }
  }
}

// Problems that are split differently, or not at all, take turns on one workspace.
TEST_CASE("one workspace for different problems", "[split][streams]") {
  const tools::Stream& stream = gpu().stream;
  const ForwardRow& row = forward_row(0);
  size_t bytes = 0;
  std::vector<Case> cases;
  std::vector<Expected> expected;
  std::vector<DeviceCase> devices;
  for (const auto& [seqlen_q, seqlen_k, heads] :
       {std::array{100, 4000, 2}, {700, 300, 30}, {1, 20000, 1}, {5, 2048, 139}}) {
    cases.emplace_back(plain_problem(row, 1, seqlen_q, seqlen_k, heads, 1, seed_for(row, 7300 + seqlen_q)));
    expected.push_back(expect(cases.back()));
    devices.emplace_back(cases.back());
    devices.back().reset(WorkspaceFill::zeros);  // poisons the outputs
    bytes = std::max(bytes, devices.back().workspace_bytes());
  }
  const tools::DeviceBuffer workspace(bytes);
  workspace.fill(0xa7);
  for (int round = 0; round < 3; ++round)
    for (const DeviceCase& device : devices) {
      const fa3_forward_params params = device.params();
      REQUIRE(fa3_forward(&params, workspace.at(0), bytes, stream.get()) == FA3_OK);
    }
  for (size_t i = 0; i < cases.size(); ++i) {
    INFO(cases[i].problem.describe());
    devices[i].download(stream, cases[i]);
    CHECK(verify(cases[i], expected[i]) == "");
  }
}

}  // namespace

// The paper's kernels take the same problems whole.
void whole(const ForwardRow& row) {
  gpu();
  CHECK_FALSE(run(plain_problem(row, 1, 17, 40 * row.Bc, 2, 1, seed_for(row, 7200)), row));
}

namespace {

void split_cases(const ForwardRow& row) {
  if (!row.has(Trait::splits)) return whole(row);
  SECTION("shapes") { shapes(row); }
  SECTION("patterns") { patterns(row); }
  SECTION("streams and graphs") { streams_and_graphs(row); }
}
const RowCases registered(": split along the keys", "[row][split]", split_cases);

}  // namespace

}  // namespace fa3::test
