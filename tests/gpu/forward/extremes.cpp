// Memory beyond 2^31 elements, and the stress.
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "../gpu.h"
#include "device_case.h"
#include "half.h"
#include "params.h"
#include "random.h"

namespace fa3::test {

namespace {

// Batch entries of q, k, v and o more than 2^31 elements apart: the result must have the bits of the packed call.
struct FarApart {
  static constexpr int64_t batch = 2, seqlen = 300, heads = 2, d = 64, row = heads * d, slice = seqlen * row;
  static constexpr int64_t far = (int64_t(1) << 31) + 8 * 12345;
};

}  // namespace

TEST_CASE("strides beyond 2^31 elements", "[extremes]") {
  using F = FarApart;
  const tools::Stream& stream = gpu().stream;
  constexpr size_t bytes = size_t(F::far + F::slice) * 2, slice_bytes = size_t(F::slice) * 2;
  size_t free = 0, total = 0;
  FA3_CU(cuMemGetInfo, &free, &total);
  if (free < 4 * bytes + (size_t(1) << 30)) SKIP("needs 19 GB of free GPU memory");

  std::vector<tools::DeviceBuffer> packed, apart;
  const auto near_layout = tools::Layout::packed({F::batch, F::seqlen, F::heads, F::d});
  auto far_layout = near_layout;
  far_layout.stride[0] = F::far;
  for (int t = 0; t < 4; ++t) {
    packed.emplace_back(2 * slice_bytes);
    apart.emplace_back(bytes);
    std::vector<uint16_t> values(2 * F::slice, poison16);
    if (t < 3)
      tools::fill_normal(tools::mix(tools::seed_of_run(), 90 + uint64_t(t)), values.data(), values.size(),
                         FA3_DTYPE_BF16);
    packed[size_t(t)].upload(values.data(), 2 * slice_bytes);
    apart[size_t(t)].upload(values.data(), slice_bytes);
    apart[size_t(t)].upload(values.data() + F::slice, slice_bytes, size_t(F::far) * 2);
  }
  for (const bool is_far : {false, true}) {
    auto& memory = is_far ? apart : packed;
    const auto& layout = is_far ? far_layout : near_layout;
    fa3_forward_params params = tools::forward_params();
    fa3_tensor* tensors[4] = {&params.q, &params.k, &params.v, &params.o};
    for (int t = 0; t < 4; ++t) *tensors[t] = layout.tensor(memory[size_t(t)].at(0), FA3_DTYPE_BF16);
    const tools::DeviceBuffer workspace(tools::workspace_size(params));
    const fa3_status status = fa3_forward(&params, workspace.at(0), workspace.size(), stream.get());
    INFO(fa3_last_error_message());
    REQUIRE(status == FA3_OK);
    stream.synchronize();
  }
  std::vector<uint16_t> near_result(2 * F::slice), far_result(2 * F::slice);
  packed[3].download(near_result.data(), 2 * slice_bytes);
  apart[3].download(far_result.data(), slice_bytes);
  apart[3].download(far_result.data() + F::slice, slice_bytes, size_t(F::far) * 2);
  CHECK(near_result == far_result);
  CHECK(std::find(near_result.begin(), near_result.end(), poison16) == near_result.end());
}

TEST_CASE("inputs that repeat one row of memory give what copies of it give", "[extremes]") {
  const tools::Stream& stream = gpu().stream;
  constexpr int64_t batch = 2, seqlen = 300, heads = 3, d = 64, elements = batch * seqlen * heads * d;
  const auto copies = tools::Layout::packed({batch, seqlen, heads, d});
  auto repeated = copies;
  repeated.stride[0] = repeated.stride[1] = repeated.stride[2] = 0;
  // Of q, k and v one repeats, or all do.
  for (const int which : {0, 1, 2, 3}) {
    std::vector<uint16_t> results[2];
    for (const bool is_repeated : {false, true}) {
      std::vector<tools::DeviceBuffer> memory;
      fa3_forward_params params = tools::forward_params();
      fa3_tensor* tensors[4] = {&params.q, &params.k, &params.v, &params.o};
      for (int t = 0; t < 4; ++t) {
        const bool repeats = t < 3 && (which == t || which == 3);
        std::vector<uint16_t> values(elements, poison16);
        const size_t made = repeats ? d : elements;
        if (t < 3)
          tools::fill_normal(tools::mix(tools::seed_of_run(), 190 + uint64_t(t)), values.data(), made, FA3_DTYPE_BF16);
        if (repeats && !is_repeated)
          for (size_t i = d; i < values.size(); ++i) values[i] = values[i - d];
        const bool one_row = repeats && is_repeated;
        memory.emplace_back((one_row ? d : elements) * sizeof(uint16_t));
        memory.back().upload(values.data(), memory.back().size());
        *tensors[t] = (one_row ? repeated : copies).tensor(memory.back().at(0), FA3_DTYPE_BF16);
      }
      const tools::DeviceBuffer workspace(tools::workspace_size(params));
      const fa3_status status = fa3_forward(&params, workspace.at(0), workspace.size(), stream.get());
      INFO(fa3_last_error_message());
      REQUIRE(status == FA3_OK);
      stream.synchronize();
      results[is_repeated].resize(elements);
      memory[3].download(results[is_repeated].data(), elements * sizeof(uint16_t));
    }
    INFO("tensor " << which);
    CHECK(results[0] == results[1]);
    CHECK(std::find(results[1].begin(), results[1].end(), poison16) == results[1].end());
  }
}

// Fresh random problems on all rows until the time is over, three of four on those that the library chooses, and every
// fifth a planned one; FA3_STRESS_SECONDS (default 60).
TEST_CASE("stress", "[.stress]") {
  const tools::Stream& stream = gpu().stream;
  const char* text = std::getenv("FA3_STRESS_SECONDS");
  const double seconds = text ? std::atof(text) : 60;
  const auto start = std::chrono::steady_clock::now();
  std::vector<const ForwardRow*> chosen, named;
  for (const ForwardRow& row : forward_rows)
    if (!row.has(Trait::planned)) (is_default(row) ? chosen : named).push_back(&row);
  size_t next_chosen = 0, next_named = 0;
  int problems = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    const uint64_t seed = tools::mix(tools::seed_of_run(), 100000000 + uint64_t(problems));
    INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
    if (++problems % 5 == 0) {
      PlannedCase made(random_planned(seed));
      INFO(made.problem.describe());
      REQUIRE(run_and_verify(made, expect(made), stream, 6) == "");
      continue;
    }
    const bool other = problems % 4 == 3 && !named.empty();
    const ForwardRow& row = other ? *named[next_named++ % named.size()] : *chosen[next_chosen++ % chosen.size()];
    const Problem problem = random_problem(row, seed);
    INFO(problem.describe());
    REQUIRE(run_and_verify(problem, stream, 6) == "");
  }
  std::printf("stress: %d random problems, 6 runs each, in %.0f s\n", problems, seconds);
}

}  // namespace fa3::test
