// Every row of the table of kernels against the float64 reference. The cases are named after the rows.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <functional>
#include <vector>

#include "device_case.h"
#include "gpu.h"
#include "params.h"
#include "random.h"
#include "rows.h"

namespace fa3::test {

const Variant& row(const char* name) {
  for (const Variant& variant : variants)
    if (std::string(variant.name) == name) return variant;
  throw std::logic_error(name);
}

// The problem must run on this row, or the test would test another.
static void require_row(Case& made, const Variant& variant) {
  const fa3_forward_params params = made.host_params();
  fa3_kernel_info info = tools::kernel_info();
  const fa3_status status = fa3_forward_kernel_info(&params, 0, 0, &info);
  INFO(fa3_last_error_message());
  REQUIRE(status == FA3_OK);
  REQUIRE(std::string(info.name) == variant.name);
}

bool run(const Problem& problem, const Variant& variant, int repeats) {
  INFO(problem.describe());
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  Case made(problem);
  if (problem.kernel) require_row(made, variant);
  const std::string verdict = run_and_verify(made, expect(made), gpu().stream, repeats);
  CHECK(verdict == "");
  return tools::workspace_size(made.host_params()) > FA3_FORWARD_WORKSPACE_BYTES;
}

uint64_t seed_for(const Variant& variant, int number) {
  return tools::mix(tools::seed_of_run(), uint64_t(&variant - variants) * 1000003 + uint64_t(number));
}

namespace {

// Of the rows that the library chooses, a third on whichever it does choose. The others share most of their code with one
// another, and GPU time is scarce.
void random_shapes(const Variant& variant) {
  gpu();
  for (int i = 0; i < (is_default(variant) ? 24 : 8); ++i) {
    Problem p = random_problem(variant, seed_for(variant, i));
    if (is_default(variant) && i % 3 == 2) p.kernel = nullptr;
    run(p, variant);
  }
}

// Shapes at the borders of tiles, ring and grid, and the corners of the API.
void borders(const Variant& variant) {
  gpu();
  const int Br = variant.Br, Bc = variant.Bc, ring = variant.stages * Bc;
  int number = 1000;
  const auto problem = [&](int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads, int64_t heads_kv) {
    return plain_problem(variant, batch, seqlen_q, seqlen_k, heads, heads_kv, seed_for(variant, number++));
  };
  const int64_t lengths[][2] = {
      {1, 1},           {1, Bc},         {1, ring + 1},  {Br, Bc},         {Br, Bc + 1},
      {Br + 1, Bc - 1}, {63, 2 * Bc},    {64, ring},     {65, ring + Bc},  {Br - 1, ring - 1},
      {2 * Br, 2},      {3 * Br + 5, 3}, {Br, 2 * ring}, {2 * Br, 2 * Br}, {129, 2 * ring + 7}};
  for (const auto& [seqlen_q, seqlen_k] : lengths) {
    Problem p = problem(2, seqlen_q, seqlen_k, 2, 1);
    run(p, variant);
    if (!variant.causal()) continue;
    p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
    run(p, variant);
  }
  run(problem(1, 100, 150, 16, 1), variant);   // MQA
  run(problem(1, 77, 90, 24, 8), variant);     // GQA with a ratio of 3
  run(problem(70, 5, 9, 8, 8), variant);       // more tiles than thread blocks, each almost empty
  run(problem(50, 1, 4 * ring + 3, 16, 2), variant);  // decoding, several tiles per thread block
  run(problem(7, 3 * Br + 1, ring, 8, 8), variant);   // the last tile of each head has rows for one warpgroup only
  run(problem(30, Br + 70, 100, 8, 8), variant);      // and under a causal mask tiles whose rows see nothing, or some
  run(problem(1, 6 * Br + 70, Bc, 3, 1), variant);    // and more blocks of rows that are in no tile than tiles
  run(problem(5, 3 * Br + 200, 30, 8, 8), variant);
  run(problem(2, Br + 9, 0, 2, 2), variant);   // no keys at all: O = 0, LSE = -inf
  run(problem(40, Br + 9, 0, 8, 8), variant);
  run(problem(0, 10, 10, 2, 2), variant);
  run(problem(2, 0, 10, 2, 2), variant);
  run(problem(2, 10, 10, 0, 2), variant);
  Problem no_lse = problem(2, Br + 3, Bc + 3, 3, 3);
  no_lse.want_lse = false;
  run(no_lse, variant);
  Problem blind = problem(2, 3 * Br + 130, 70, 3, 3);
  blind.want_lse = false, blind.head_dim = variant.d - 8;
  run(blind, variant);
}

// Views: slices of a packed QKV tensor, padding of every dimension, every storage order, shared (stride 0) heads and
// batch.
void views(const Variant& variant) {
  gpu();
  int number = 2000;
  const auto problem = [&] {
    return plain_problem(variant, 2, variant.Br + 17, variant.Br + 17, 4, 2, seed_for(variant, number++));
  };
  Problem packed = problem();
  packed.packed_qkv = true;
  run(packed, variant);
  for (const auto order : {Storage::bshd, Storage::bhsd, Storage::sbhd, Storage::hbsd}) {
    Problem p = problem();
    p.q = p.k = p.v = p.o = p.lse = Storage{order, 1, 1, 70, 1, 3, false, false};
    run(p, variant);
  }
  Problem blind = plain_problem(variant, 2, 4 * variant.Br + 17, 90, 4, 2, seed_for(variant, number++));
  blind.o = blind.lse = Storage{Storage::sbhd, 1, 1, 70, 1, 3, false, false};
  run(blind, variant);
  Problem shared = problem();
  shared.k.share_batch = shared.v.share_heads = true;
  run(shared, variant);
}

// Numbers that strain the softmax, each long enough to wrap the ring.
void patterns(const Variant& variant) {
  gpu();
  for (int i = 0; i < pattern_count; ++i) {
    Problem p = plain_problem(variant, 1, variant.Br + 31, 3 * variant.stages * variant.Bc + 11, 2, 1,
                              seed_for(variant, 3000 + i));
    p.pattern = Pattern(i);
    run(p, variant);
  }
  for (int i = 0; i < 6; ++i) {  // nearly all rows meet their spike after a first block of nine keys
    Problem p = plain_problem(variant, 2, 300, variant.Bc + 9, 2, 2, seed_for(variant, 3100 + i));
    p.pattern = Pattern::spikes;
    if (variant.causal()) p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
    run(p, variant);
  }
  if (variant.causal() || variant.dtype != Dtype::fp16) return;
  Problem p = plain_problem(variant, 1, 64, 131072, 1, 1, seed_for(variant, 3000 + pattern_count));
  p.pattern = Pattern::sink;  // the sums have to grow
  run(p, variant);
}

// Numbers that are not finite stay where they belong.
void not_finite(const Variant& variant, int64_t seqlen_k) {
  const tools::Stream& stream = gpu().stream;
  const auto outcome = [&](Case& made) {
    DeviceCase device(made);
    device.reset(WorkspaceFill::random);
    device.launch(stream);
    device.download(stream, made);
    return gather(made);
  };
  // Without a mask all rows see all keys; with it the first 50 see none.
  Problem p = plain_problem(variant, 1, seqlen_k + 50, seqlen_k, 1, 1, seed_for(variant, 6000));
  Case clean(p);
  const auto q_element = [&](Case& made, int64_t i, int64_t c) -> uint16_t& {
    const int64_t index[4] = {0, i, 0, c};
    return made.q.data<uint16_t>(made.images)[made.q.layout.position(index)];
  };
  // The row that will hold a NaN has equal scores before: like NaN, they never move the reference m of its warp's rows
  // (ptx/tile/speculative.cuh), which would show in the last bits of the others.
  const int64_t row = variant.Br + 3;
  for (int64_t c = 0; c < p.head_dim; ++c) q_element(clean, row, c) = 0;
  const Case zero_row = clean;
  const Output expected = outcome(clean);

  Case nan_row = zero_row;
  q_element(nan_row, row, 1) = poison16;
  const Output with_nan = outcome(nan_row);
  int64_t wrong = 0;
  for (int64_t i = 0; i < p.seqlen_q; ++i) {
    const auto same = [&](float a, float b) { return i == row ? std::isnan(a) : a == b; };
    wrong += !same(with_nan.lse[size_t(i)], expected.lse[size_t(i)]);
    for (int64_t c = 0; c < p.head_dim; ++c)
      wrong += !same(with_nan.o[size_t(i * p.head_dim + c)], expected.o[size_t(i * p.head_dim + c)]);
  }
  INFO("a NaN in row " << row << " of q");
  CHECK(wrong == 0);

  Case infinite_v = zero_row;
  for (int64_t i = 0; i < p.seqlen_k; ++i) {
    const int64_t at[4] = {0, i, 0, 0};
    infinite_v.v.data<uint16_t>(infinite_v.images)[infinite_v.v.layout.position(at)] =
        p.dtype == FA3_DTYPE_BF16 ? 0x7f80 : 0x7c00;
  }
  const Output with_infinity = outcome(infinite_v);
  wrong = 0;
  for (int64_t i = 0; i < p.seqlen_q; ++i) {
    const bool empty = p.visible_keys(i) == 0;
    wrong += with_infinity.lse[size_t(i)] != expected.lse[size_t(i)];
    for (int64_t c = 0; c < p.head_dim; ++c) {
      const float o = with_infinity.o[size_t(i * p.head_dim + c)];
      wrong += c > 0 || empty ? o != expected.o[size_t(i * p.head_dim + c)] : std::isfinite(o);
    }
  }
  INFO("infinite elements of v in column 0");
  CHECK(wrong == 0);
}

void not_finite(const Variant& variant) {
  not_finite(variant, variant.Br + 20);
  if (is_default(variant)) not_finite(variant, 30 * variant.Bc);  // split along the keys
}

// Head dimensions between this row's and the next smaller row's; and, by name, some for which whole slabs are filled
// with zeros.
void head_dims(const Variant& variant) {
  gpu();
  const auto run_with = [&](int64_t d) {
    Problem p = plain_problem(variant, 1, 70, 90, 2, 2, seed_for(variant, 4000 + int(d)));
    p.head_dim = d;
    run(p, variant);
  };
  if (is_default(variant))
    for (int64_t d = variant.d; d >= smallest_head_dim(variant); d -= 8) run_with(d);
  for (const int64_t d : {variant.d - 8, variant.d / 2 + 8, variant.d / 2, 8}) run_with(d);
}

// A few small problems that use every path, for compute-sanitizer.
void small_selection(const Variant& variant) {
  gpu();
  const int ring = variant.stages * variant.Bc;
  Problem p = plain_problem(variant, 1, variant.Br + 3, ring + variant.Bc + 1, 2, 1, seed_for(variant, 5000));
  run(p, variant);
  p = plain_problem(variant, 2, 40, 50, 2, 2, seed_for(variant, 5001));
  p.q = p.k = p.v = p.o = p.lse = Storage{Storage::bshd, 1, 1, 3, 1, 1, false, false};
  p.head_dim = variant.d - 8;
  run(p, variant);
  // More tiles than thread blocks: 140 in which most warpgroups have no rows, and twice 70.
  run(plain_problem(variant, 10, 5, ring + 1, 14, 2, seed_for(variant, 5002)), variant);
  run(plain_problem(variant, 5, variant.Br + 5, variant.Bc + 1, 14, 14, seed_for(variant, 5003)), variant);
  // Under a causal mask, rows that are in no tile.
  run(plain_problem(variant, 1, 3 * variant.Br + 5, 70, 2, 1, seed_for(variant, 5006)), variant);
  // Split along the keys, where the library does that.
  run(plain_problem(variant, 1, 40, 13 * variant.Bc + 5, 2, 1, seed_for(variant, 5004)), variant);
  if (is_default(variant))
    run(plain_problem(variant, 1, 2, 21 * variant.Bc, 200, 8, seed_for(variant, 5005)), variant);
}

}  // namespace

#define FA3_VARIANT(kernel, dtype, d, mask, ...) FA3_ROW_CASES("fa3_" #kernel "_" #dtype "_d" #d "_" #mask)
#define FA3_ROW_CASES(name)                                                         \
  TEST_CASE(name ": random shapes", "[row]") { random_shapes(row(name)); }          \
  TEST_CASE(name ": borders", "[row]") { borders(row(name)); }                      \
  TEST_CASE(name ": views", "[row]") { views(row(name)); }                          \
  TEST_CASE(name ": patterns", "[row]") { patterns(row(name)); }                    \
  TEST_CASE(name ": not finite", "[row]") { not_finite(row(name)); }                \
  TEST_CASE(name ": head dimensions", "[row]") { head_dims(row(name)); }            \
  TEST_CASE(name ": small selection", "[row][sanitizer]") { small_selection(row(name)); }
#include "ptx/variants.def"

}  // namespace fa3::test
