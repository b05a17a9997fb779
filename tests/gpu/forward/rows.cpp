// Every row of the table of kernels against the float64 reference. The cases are named after the rows.
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "../gpu.h"
#include "device_case.h"
#include "params.h"
#include "random.h"
#include "rows.h"

namespace fa3::test {

// The problem must run on this row, or the test would test another; only without keys there is nothing to compute.
static void require_row(Case& made, const ForwardRow& row) {
  const fa3_forward_params params = made.host_params();
  fa3_kernel_info info = tools::kernel_info();
  const fa3_status status = fa3_forward_kernel_info(&params, 0, 0, &info);
  INFO(fa3_last_error_message());
  REQUIRE(status == FA3_OK);
  if (made.problem.seqlen_k == 0 && info.launches > 0) REQUIRE(info.kind == FA3_KERNEL_PASS);
  else REQUIRE(std::string(info.name) == row.name);
}

bool run(const Problem& problem, const ForwardRow& row, int repeats) {
  INFO(problem.describe());
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  Case made(problem);
  if (problem.kernel) require_row(made, row);
  const std::string verdict = run_and_verify(made, expect(made), gpu().stream, repeats);
  CHECK(verdict == "");
  return tools::workspace_size(made.host_params()) > FA3_FORWARD_WORKSPACE_BYTES;
}

namespace {

class RowCase : public Catch::ITestInvoker {
 public:
  RowCase(void (*body)(const ForwardRow&), const ForwardRow& row) : body_(body), row_(row) {}
  void invoke() const override { body_(row_); }

 private:
  void (*body_)(const ForwardRow&);
  const ForwardRow& row_;
};

}  // namespace

RowCases::RowCases(const char* what, const char* tags, void (*body)(const ForwardRow&),
                   bool (*applies)(const ForwardRow&)) {
  for (const ForwardRow& row : forward_rows)
    if (applies(row) && !row.has(Trait::planned))
      Catch::AutoReg(Catch::Detail::make_unique<RowCase>(body, row), CATCH_INTERNAL_LINEINFO, {},
                     {row.name + std::string(what), tags});
}

uint64_t seed_for(const ForwardRow& row, int number) {
  return tools::mix(tools::seed_of_run(), uint64_t(&row - forward_rows.data()) * 1000003 + uint64_t(number));
}

namespace {

// Of the rows that the library chooses, a third on whichever it does choose. The others share most of their code with
// one another, as those of 8 bits do, and GPU time is scarce.
void random_shapes(const ForwardRow& row) {
  gpu();
  for (int i = 0; i < (!is_default(row) ? 8 : row.is_8bit() ? 12 : 24); ++i) {
    Problem p = random_problem(row, seed_for(row, i));
    if (is_default(row) && i % 3 == 2) p.kernel = nullptr;
    run(p, row);
  }
}

// Shapes at the borders of tiles, ring and grid, and the corners of the API.
void borders(const ForwardRow& row) {
  gpu();
  const int Br = row.Br, Bc = row.Bc, ring = row.stages * Bc;
  int number = 1000;
  const auto problem = [&](int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads, int64_t heads_kv) {
    return plain_problem(row, batch, seqlen_q, seqlen_k, heads, heads_kv, seed_for(row, number++));
  };
  const int64_t lengths[][2] = {
      {1, 1},           {1, Bc},         {1, ring + 1},  {Br, Bc},         {Br, Bc + 1},
      {Br + 1, Bc - 1}, {63, 2 * Bc},    {64, ring},     {65, ring + Bc},  {Br - 1, ring - 1},
      {2 * Br, 2},      {3 * Br + 5, 3}, {Br, 2 * ring}, {2 * Br, 2 * Br}, {129, 2 * ring + 7}};
  for (const auto& [seqlen_q, seqlen_k] : lengths) {
    Problem p = problem(2, seqlen_q, seqlen_k, 2, 1);
    run(p, row);
    if (!row.causal()) continue;
    p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
    run(p, row);
  }
  run(problem(1, 100, 150, 16, 1), row);   // MQA
  run(problem(1, 77, 90, 24, 8), row);     // GQA with a ratio of 3
  run(problem(70, 5, 9, 8, 8), row);       // more tiles than thread blocks, each almost empty
  run(problem(50, 1, 4 * ring + 3, 16, 2), row);  // decoding, several tiles per thread block
  run(problem(7, 3 * Br + 1, ring, 8, 8), row);   // the last tile of each head has rows for one warpgroup only
  run(problem(30, Br + 70, 100, 8, 8), row);      // and under a causal mask tiles whose rows see nothing, or some
  run(problem(1, 6 * Br + 70, Bc, 3, 1), row);    // and more blocks of rows that are in no tile than tiles
  run(problem(5, 3 * Br + 200, 30, 8, 8), row);
  run(problem(2, Br + 9, 0, 2, 2), row);   // no keys at all: O = 0, LSE = -inf
  run(problem(40, Br + 9, 0, 8, 8), row);
  run(problem(0, 10, 10, 2, 2), row);
  run(problem(2, 0, 10, 2, 2), row);
  run(problem(2, 10, 10, 0, 2), row);
  Problem no_lse = problem(2, Br + 3, Bc + 3, 3, 3);
  no_lse.want_lse = false;
  run(no_lse, row);
  Problem empty = problem(2, 3 * Br + 130, 70, 3, 3);
  empty.want_lse = false, empty.head_dim = row.d - head_dim_unit(row);
  run(empty, row);
}

// Views: slices of a packed QKV tensor, padding of every dimension, every storage order, shared (stride 0) heads and
// batch.
void views(const ForwardRow& row) {
  gpu();
  int number = 2000;
  const auto problem = [&] {
    return plain_problem(row, 2, row.Br + 17, row.Br + 17, 4, 2, seed_for(row, number++));
  };
  Problem packed = problem();
  packed.packed_qkv = true;
  run(packed, row);
  for (const auto order : {Storage::bshd, Storage::bhsd, Storage::sbhd, Storage::hbsd}) {
    Problem p = problem();
    p.q = p.k = p.v = p.o = p.lse = Storage{order, 1, 1, 70, 1, 3, false, false};
    run(p, row);
  }
  Problem empty = plain_problem(row, 2, 4 * row.Br + 17, 90, 4, 2, seed_for(row, number++));
  empty.o = empty.lse = Storage{Storage::sbhd, 1, 1, 70, 1, 3, false, false};
  run(empty, row);
  Problem shared = problem();
  shared.k.share_batch = shared.v.share_heads = true;
  run(shared, row);
}

// Numbers that strain the softmax, each long enough to wrap the ring.
void patterns(const ForwardRow& row) {
  gpu();
  for (int i = 0; i < pattern_count; ++i) {
    Problem p = plain_problem(row, 1, row.Br + 31, 3 * row.stages * row.Bc + 11, 2, 1,
                              seed_for(row, 3000 + i));
    p.pattern = Pattern(i);
    run(p, row);
  }
  for (int i = 0; i < 6; ++i) {  // nearly all rows meet their spike after a first block of nine keys
    Problem p = plain_problem(row, 2, 300, row.Bc + 9, 2, 2, seed_for(row, 3100 + i));
    p.pattern = Pattern::spikes;
    if (row.causal()) p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
    run(p, row);
  }
  if (row.causal() || row.dtype != Dtype::fp16) return;
  Problem p = plain_problem(row, 1, 64, 131072, 1, 1, seed_for(row, 3000 + pattern_count));
  p.pattern = Pattern::sink;  // the sums have to grow
  run(p, row);
}

// Numbers that are not finite stay where they belong.
void not_finite(const ForwardRow& row, int64_t seqlen_k) {
  const tools::Stream& stream = gpu().stream;
  const auto outcome = [&](Case& made) {
    DeviceCase device(made);
    device.reset(WorkspaceFill::random);
    device.launch(stream);
    device.download(stream, made);
    return gather(made);
  };
  // Without a mask all rows see all keys; with it the first 50 see none.
  Problem p = plain_problem(row, 1, seqlen_k + 50, seqlen_k, 1, 1, seed_for(row, 6000));
  Case clean(p);
  const auto q_position = [&](int64_t i, int64_t c) {
    const int64_t index[4] = {0, i, 0, c};
    return clean.q.layout.position(index);
  };
  // The row that will hold a NaN has equal scores before: like NaN, they never move the reference m of its warp's rows
  // (ptx/tile/scores/speculative.cuh), which would show in the last bits of the others.
  const int64_t nan_row = row.Br + 3;
  for (int64_t c = 0; c < p.head_dim; ++c) clean.q.write(clean.images, q_position(nan_row, c), 0);
  const Case zero_row = clean;
  const Output expected = outcome(clean);

  Case with_nan_row = zero_row;
  with_nan_row.q.write_poison(with_nan_row.images, q_position(nan_row, 1));
  const Output with_nan = outcome(with_nan_row);
  int64_t wrong = 0;
  for (int64_t i = 0; i < p.seqlen_q; ++i) {
    const auto same = [&](float a, float b) { return i == nan_row ? std::isnan(a) : a == b; };
    wrong += !same(with_nan.lse[size_t(i)], expected.lse[size_t(i)]);
    for (int64_t c = 0; c < p.v_dim(); ++c)
      wrong += !same(with_nan.o[size_t(i * p.v_dim() + c)], expected.o[size_t(i * p.v_dim() + c)]);
  }
  INFO("a NaN in row " << nan_row << " of q");
  CHECK(wrong == 0);

  Case infinite_v = zero_row;
  for (int64_t i = 0; i < p.seqlen_k; ++i) {
    const int64_t at = infinite_v.v_position(0, i, 0, 0);
    if (p.is_e4m3()) infinite_v.v.write_poison(infinite_v.images, at);  // it has no infinity
    else infinite_v.v.write(infinite_v.images, at, INFINITY);
  }
  const Output with_infinity = outcome(infinite_v);
  wrong = 0;
  for (int64_t i = 0; i < p.seqlen_q; ++i) {
    const bool empty = p.visible_keys(i) == 0;
    wrong += with_infinity.lse[size_t(i)] != expected.lse[size_t(i)];
    for (int64_t c = 0; c < p.v_dim(); ++c) {
      const float o = with_infinity.o[size_t(i * p.v_dim() + c)];
      wrong += c > 0 || empty ? o != expected.o[size_t(i * p.v_dim() + c)] : std::isfinite(o);
    }
  }
  INFO("infinite elements of v in column 0 (NaN in e4m3)");
  CHECK(wrong == 0);
}

void not_finite(const ForwardRow& row) {
  not_finite(row, row.Br + 20);
  if (is_default(row)) not_finite(row, 30 * row.Bc);  // split along the keys
}

// Head dimensions between this row's and the next smaller row's; and, by name, some for which whole slabs are filled
// with zeros, and pairs of which either is the smaller one.
void head_dims(const ForwardRow& row) {
  gpu();
  const int unit = head_dim_unit(row);
  const auto run_with = [&](int64_t d, int64_t dv = 0) {
    Problem p = plain_problem(row, 1, 70, 90, 2, 2, seed_for(row, 4000 + int(d + 256 * dv)));
    p.head_dim = d;
    if (dv) p.head_dim_v = dv;
    run(p, row);
  };
  if (is_default(row))
    for (int64_t d = row.d; d >= smallest_head_dim(row); d -= unit) run_with(d);
  for (const int64_t d : {row.d - unit, row.d / 2 + unit, row.d / 2, unit}) run_with(d);
  for (const int64_t d : {int64_t{row.d}, int64_t{row.d / 2 + unit}, int64_t{unit}})
    for (const int64_t dv : {int64_t{row.dv}, int64_t{row.dv / 2 + unit}, int64_t{unit}}) run_with(d, dv);
}

// A few small problems that use every path, for compute-sanitizer.
void small_selection(const ForwardRow& row) {
  gpu();
  const int ring = row.stages * row.Bc;
  Problem p = plain_problem(row, 1, row.Br + 3, ring + row.Bc + 1, 2, 1, seed_for(row, 5000));
  run(p, row);
  p = plain_problem(row, 2, 40, 50, 2, 2, seed_for(row, 5001));
  p.q = p.k = p.v = p.o = p.lse = Storage{Storage::bshd, 1, 1, 3, 1, 1, false, false};
  p.head_dim = row.d - head_dim_unit(row), p.head_dim_v = row.dv / 2;
  run(p, row);
  // More tiles than thread blocks: 140 in which most warpgroups have no rows, and twice 70.
  run(plain_problem(row, 10, 5, ring + 1, 14, 2, seed_for(row, 5002)), row);
  run(plain_problem(row, 5, row.Br + 5, row.Bc + 1, 14, 14, seed_for(row, 5003)), row);
  // Under a causal mask, rows that are in no tile.
  run(plain_problem(row, 1, 3 * row.Br + 5, 70, 2, 1, seed_for(row, 5006)), row);
  // Split along the keys, where the library does that.
  run(plain_problem(row, 1, 40, 13 * row.Bc + 5, 2, 1, seed_for(row, 5004)), row);
  if (is_default(row))
    run(plain_problem(row, 1, 2, 21 * row.Bc, 200, 8, seed_for(row, 5005)), row);
}

}  // namespace

const RowCases random_shapes_cases(": random shapes", "[row]", random_shapes);
const RowCases borders_cases(": borders", "[row]", borders);
const RowCases views_cases(": views", "[row]", views);
const RowCases patterns_cases(": patterns", "[row]", patterns);
const RowCases not_finite_cases(": not finite", "[row]", not_finite);
const RowCases head_dims_cases(": head dimensions", "[row]", head_dims);
const RowCases small_selection_cases(": small selection", "[row][sanitizer]", small_selection);

}  // namespace fa3::test
