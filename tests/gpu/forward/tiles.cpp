// Row-major V of 8 bits that is made into tiles in the workspace, in front of a forward kernel that takes those.
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "../gpu.h"
#include "device_case.h"
#include "params.h"
#include "rows.h"

namespace fa3::test {

namespace {

// The first launch of the call.
fa3_kernel_info first_launch(const Problem& problem) {
  const fa3_forward_params params = Case(problem).host_params();
  fa3_kernel_info info = tools::kernel_info();
  REQUIRE(fa3_forward_kernel_info(&params, 0, 0, &info) == FA3_OK);
  return info;
}

// The row's problem with as many query heads as it takes to be worth the pass.
Problem tiled_problem(const ForwardRow& row, int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads_kv,
                      int number) {
  Problem p = plain_problem(row, batch, seqlen_q, seqlen_k, heads_kv, heads_kv, seed_for(row, 9000 + number));
  p.kernel = nullptr;
  if (row.block_scales() && !p.two_level) p.k_scales = Scales::block;
  while (first_launch(p).kind != FA3_KERNEL_PASS) {
    p.heads += (p.heads / 4 / heads_kv + 1) * heads_kv;
    REQUIRE(p.heads < 300);
  }
  return p;
}

void check(const Problem& problem, const ForwardRow& row, int repeats) {
  CHECK(first_launch(problem).name == std::string("fa3_pass_tile_v"));
  CHECK(run(problem, row, repeats));
}

constexpr bool is_tiled(const ForwardRow& row) {
  return row.has(Trait::chosen) && row.transposes_v() && row.d == 256;
}
constexpr bool is_tiled_plainly(const ForwardRow& row) { return is_tiled(row) && !row.block_scales(); }

void small_selection(const ForwardRow& row) {
  gpu();
  check(tiled_problem(row, 1, 900, 333, 1, 0), row, 1);
}

void shapes(const ForwardRow& row) {
  gpu();
  int number = 1;
  for (const int64_t head_dim : {240, 144}) {  // narrower V is worth the pass with fewer heads
    Problem p = tiled_problem(row, 2, 1000, 1000 + head_dim + number, 2, number);
    p.head_dim = head_dim;
    check(p, row, 3);
    ++number;
  }
  for (const int64_t seqlen_k : {177, 256}) check(tiled_problem(row, 2, 1500, seqlen_k, 1, number++), row, 3);
  for (const auto order : {Storage::bhsd, Storage::hbsd}) {
    Problem p = tiled_problem(row, 2, 800, 513, 2, number++);
    p.v = Storage{order, 1, 1, 70, 1, 3, order == Storage::bhsd, order == Storage::hbsd};
    check(p, row, 3);
  }
  Problem packed = tiled_problem(row, 2, 800, 800, 2, number++);
  packed.packed_qkv = true;
  check(packed, row, 3);
}

// A graph's calls, one after the other in one workspace.
void graphs(const ForwardRow& row) {
  const tools::Stream& stream = gpu().stream;
  Problem problem = tiled_problem(row, 1, 800, 500, 1, 100);
  Case first(problem);
  problem.seed ^= 0x5eed;
  Case second(problem);
  const Expected expected_first = expect(first), expected_second = expect(second);
  DeviceCase device(first);
  device.reset(WorkspaceFill::ones);
  tools::Graph::begin(stream);
  device.launch(stream);
  device.launch(stream);
  const tools::Graph graph = tools::Graph::end(stream);
  graph.launch(stream);
  device.download(stream, first);
  CHECK(verify(first, expected_first) == "");
  device.upload_inputs(second);
  graph.launch(stream);
  graph.launch(stream);
  device.download(stream, second);
  CHECK(verify(second, expected_second) == "");
}

}  // namespace

const RowCases small_selection_cases(": V made into tiles", "[row][tiles][sanitizer]", small_selection, is_tiled);
const RowCases shapes_cases(": shapes of V made into tiles", "[row][tiles]", shapes, is_tiled_plainly);
const RowCases graphs_cases(": graphs with V made into tiles", "[tiles][graphs]", graphs, is_tiled_plainly);

}  // namespace fa3::test
