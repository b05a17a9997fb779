// What fa3_quantize asks of the driver, seen by a driver that only listens.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <vector>

#include "../call.h"
#include "../launches.h"

namespace fa3::test {
namespace {

fa3_quantize_params imaginary_quantization(int64_t batch, int64_t rows, int64_t heads, int64_t d) {
  const auto at = [](uintptr_t n) { return reinterpret_cast<void*>(n << 42); };
  fa3_quantize_params p{};
  p.struct_size = sizeof p;
  p.x = tensor(at(1), FA3_DTYPE_FP16, {batch, rows, heads, d});
  p.y = tensor(at(2), FA3_DTYPE_E4M3, {batch, rows, heads, d});
  p.scale = tensor(at(3), FA3_DTYPE_FP32, {batch, heads, (rows + 63) / 64});
  return p;
}

fa3_status quantize(const fa3_quantize_params& p) {
  return fa3_quantize(&p, workspace_memory, plenty, reinterpret_cast<fa3_stream>(stream));
}

// Kernels of the last call's launches, and their parameters.
struct QuantizeCall {
  std::vector<const PassRow*> passes;
  std::vector<unsigned> grids;
  std::vector<QuantizeParams> params;
};

QuantizeCall launched_by(const fa3_quantize_params& p) {
  FakeCuda& fake = fake_cuda();
  fake.launches.clear();
  REQUIRE(quantize(p) == FA3_OK);
  QuantizeCall call;
  for (const Launch& launch : fake.launches) {
    call.passes.push_back(&pass_row_of(launch));
    call.grids.push_back(launch.grid[0]);
    call.params.push_back(launch.carried.quantize);
    CHECK(launch.early == (&launch != &fake.launches.front()));
  }
  return call;
}

}  // namespace

TEST_CASE("quantize: a launch, in full", "[launch]") {
  FakeCuda& fake = fresh();
  fa3_quantize_params p = imaginary_quantization(2, 300, 6, 96);
  p.y = tensor(p.y.data, FA3_DTYPE_E4M3, {2, 6, 19, 96, 16});
  p.rotary_cos = tensor(reinterpret_cast<void*>(uintptr_t{5} << 42), FA3_DTYPE_FP32, {300, 24});
  p.rotary_sin = tensor(reinterpret_cast<void*>(uintptr_t{6} << 42), FA3_DTYPE_FP32, {300, 24});
  p.rotary_sin.stride[0] = 28;
  p.k_mean = tensor(reinterpret_cast<void*>(uintptr_t{7} << 42), FA3_DTYPE_FP32, {2, 3, 96});
  p.lse_offset = tensor(reinterpret_cast<void*>(uintptr_t{8} << 42), FA3_DTYPE_FP32, {2, 6, 300});
  p.flags = FA3_QUANTIZE_INCOHERENT | FA3_QUANTIZE_ROTARY_INTERLEAVED;
  p.seed = 99;
  REQUIRE(quantize(p) == FA3_OK);
  REQUIRE((fake.launches.size() == 1 && fake.maps.empty()));
  const Launch& launch = fake.launches[0];
  const PassRow& row = pass_row_of(launch);
  CHECK((row.pass == Pass::quantize && row.has(Trait::rotates) && row.d == 128));
  CHECK((launch.grid[0] == 3 * 5 && launch.block[0] == unsigned(row.threads())));
  CHECK((launch.shared == unsigned(row.smem_bytes()) && launch.stream == stream));
  const QuantizeParams& q = launch.carried.quantize;
  CHECK((q.x == p.x.data && q.y == p.y.data && q.scale == p.scale.data && q.mean == nullptr));
  CHECK((q.rotary_cos == p.rotary_cos.data && q.rotary_sin == p.rotary_sin.data));
  CHECK((q.k_mean == p.k_mean.data && q.lse_offset == p.lse_offset.data));
  CHECK((q.x_stride_batch == 300 * 6 * 96 && q.x_stride_row == 6 * 96 && q.x_stride_head == 96));
  CHECK((q.y_stride_batch == 6 * 19 * 96 * 16 && q.y_stride_row == 96 * 16 && q.y_stride_head == 19 * 96 * 16));
  CHECK((q.scale_stride_batch == 6 * 5 && q.scale_stride_head == 5 && q.scale_stride_block == 1));
  CHECK((q.cos_stride == 24 && q.sin_stride == 28));
  CHECK((q.k_mean_stride_batch == 3 * 96 && q.k_mean_stride_head == 96));
  CHECK((q.lse_stride_batch == 6 * 300 && q.lse_stride_head == 300 && q.lse_stride_row == 1));
  CHECK((q.batch == 2 && q.rows == 300 && q.head_dim == 96 && q.rotary_dim == 48 && q.hadamard == 32 && q.seed == 99));
  CHECK((q.hadamard_scale == static_cast<float>(1 / std::sqrt(32.0))));
  CHECK(q.softmax_scale == static_cast<float>(1 / std::sqrt(96.0)));
  CHECK((q.heads == 6 && q.heads_per_kv == 2 && q.blocks == 5 && q.scales == QuantizeParams::Granularity::block));
  CHECK((!q.bf16 && q.tiles && q.interleaved));
}

TEST_CASE("quantize: which passes, and how many thread blocks", "[launch]") {
  FakeCuda& fake = fresh();
  for (int64_t d = 16; d <= 256; d += 16) {
    fa3_quantize_params p = imaginary_quantization(1, 20000, 16, d);
    const QuantizeCall one_read = launched_by(p);
    REQUIRE(one_read.passes.size() == 1);
    const PassRow& writes = *one_read.passes[0];
    CHECK((writes.d >= d && writes.d < std::max<int64_t>(2 * d, 65) && writes.pass == Pass::quantize));
    CHECK((one_read.grids[0] == 16 * 313 && one_read.params[0].measure == QuantizeParams::Measure::none));
    CHECK((one_read.params[0].hadamard == 0 && one_read.params[0].hadamard_scale == 1));

    p.mean = tensor(reinterpret_cast<void*>(uintptr_t{4} << 42), FA3_DTYPE_FP32, {1, 16, d});
    const QuantizeCall means = launched_by(p);
    REQUIRE(means.passes.size() == 3);
    CHECK((means.passes[0]->pass == Pass::measure && means.passes[0]->d == writes.d));
    CHECK((means.passes[1]->pass == Pass::finish && means.grids[1] == 16));
    CHECK((means.passes[2] == &writes && means.grids[2] == 16 * 313));
    const QuantizeParams& q = means.params[0];
    CHECK((q.measure == QuantizeParams::Measure::sums && q.mean == p.mean.data && q.largest_count == 0));
    CHECK((q.mean_stride_batch == 0 && q.mean_stride_head == d));
    CHECK((means.grids[0] == unsigned(16 * q.parts) && means.grids[0] > 132));
    CHECK(static_cast<void*>(q.largest) == workspace_memory);
    size_t bytes = 0;
    REQUIRE(fa3_quantize_workspace_size(&p, &bytes) == FA3_OK);
    const char* const end = reinterpret_cast<char*>(q.partials + 16 * q.parts * d);
    CHECK(end - reinterpret_cast<char*>(q.largest) == int64_t(bytes));
    CHECK((q.means == q.largest && q.partials == q.means + 16 * d));

    p.scale = tensor(p.scale.data, FA3_DTYPE_FP32, {1, 16, 1});
    const QuantizeParams head = launched_by(p).params.back();
    CHECK((head.measure == QuantizeParams::Measure::extremes && head.largest_of_head == 1 && head.largest_count == 1));
    CHECK((head.means == head.largest + 16 && head.partials == head.means + 16 * d));
    p.scale = tensor(p.scale.data, FA3_DTYPE_FP32, {1, 1, 1});
    const QuantizeParams whole = launched_by(p).params.back();
    CHECK((whole.largest_of_head == 0 && whole.largest_count == 16 && whole.means == whole.largest + 16));

    p.mean = {};
    const QuantizeCall largest = launched_by(p);
    REQUIRE(largest.passes.size() == 2);
    CHECK((largest.passes[0]->pass == Pass::measure && largest.passes[1] == &writes));
    CHECK((largest.params[0].measure == QuantizeParams::Measure::largest && largest.params[1].largest_of_head == 0));
    CHECK(largest.params[1].largest_count == int32_t(largest.grids[0]));
    p.scale = tensor(p.scale.data, FA3_DTYPE_FP32, {1, 16, 1});
    const QuantizeParams parts = launched_by(p).params.back();
    CHECK((parts.largest_of_head == parts.parts && parts.largest_count == parts.parts));
    REQUIRE(fa3_quantize_workspace_size(&p, &bytes) == FA3_OK);
    CHECK(bytes >= 16 * size_t(parts.parts) * sizeof(float));
  }
  // With rotary embedding, four heads a thread block.
  fa3_quantize_params p = imaginary_quantization(2, 1000, 5, 128);
  p.rotary_cos = tensor(reinterpret_cast<void*>(uintptr_t{5} << 42), FA3_DTYPE_FP32, {1000, 64});
  p.rotary_sin = tensor(reinterpret_cast<void*>(uintptr_t{6} << 42), FA3_DTYPE_FP32, {1000, 64});
  const QuantizeCall rotary = launched_by(p);
  CHECK((rotary.grids[0] == 3 * 16 && rotary.params[0].groups == 3 && rotary.params[0].blocks == 16));
  // To measure extremes, one head.
  p.mean = tensor(reinterpret_cast<void*>(uintptr_t{4} << 42), FA3_DTYPE_FP32, {2, 5, 128});
  p.scale = tensor(p.scale.data, FA3_DTYPE_FP32, {1, 1, 1});
  const QuantizeCall measured = launched_by(p);
  REQUIRE(measured.passes.size() == 3);
  CHECK((measured.params[0].groups == 10 && measured.params[2].groups == 3));
  // A head of one block needs no measuring.
  CHECK(launched_by(imaginary_quantization(1, 10, 2, 64)).grids == std::vector<unsigned>{2});
  fa3_quantize_params small = imaginary_quantization(1, 10, 2, 64);
  small.scale = tensor(small.scale.data, FA3_DTYPE_FP32, {1, 1, 1});
  CHECK(launched_by(small).grids == std::vector<unsigned>{2, 2});
  fake.calls = 0;
  REQUIRE(quantize(small) == FA3_OK);
  CHECK(fake.calls == 3);  // the current context's id and the launches
}

TEST_CASE("quantize: what the driver refuses, and a cold capture", "[launch]") {
  FakeCuda& fake = fresh();
  const fa3_quantize_params p = imaginary_quantization(1, 10, 2, 64);
  fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CHECK(quantize(p) == FA3_ERROR_NOT_LOADED);
  expect_message("call fa3_preload before the capture");
  CHECK(fake.launches.empty());
  REQUIRE(fa3_preload() == FA3_OK);
  CHECK(quantize(p) == FA3_OK);
  fake.failing = "cuLaunchKernelEx";
  CHECK(quantize(p) == FA3_ERROR_CUDA);
  expect_message("cuLaunchKernelEx");
  fresh().context = nullptr;
  CHECK(quantize(p) == FA3_ERROR_NO_CONTEXT);
}

}  // namespace fa3::test
