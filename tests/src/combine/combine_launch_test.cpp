// What fa3_combine asks of the driver, seen by a driver that only listens.
#include <catch2/catch_test_macros.hpp>

#include "../call.h"
#include "../launches.h"

namespace fa3::test {
namespace {

fa3_combine_params imaginary_combination(int64_t parts, int64_t batch, int64_t rows, int64_t heads, int64_t d,
                                         fa3_dtype dtype = FA3_DTYPE_BF16) {
  const auto at = [](uintptr_t n) { return reinterpret_cast<void*>(n << 42); };
  fa3_combine_params p{};
  p.struct_size = sizeof p;
  p.o_parts = tensor(at(1), dtype, {parts, batch, rows, heads, d});
  p.lse_parts = tensor(at(2), FA3_DTYPE_FP32, {parts, batch, heads, rows});
  p.o = tensor(at(3), FA3_DTYPE_FP16, {batch, rows, heads, d});
  p.lse = tensor(at(4), FA3_DTYPE_FP32, {batch, heads, rows});
  return p;
}

fa3_status combine(const fa3_combine_params& p) { return fa3_combine(&p, reinterpret_cast<fa3_stream>(stream)); }

const Launch& launched_by(const fa3_combine_params& p) {
  FakeCuda& fake = fake_cuda();
  fake.launches.clear();
  REQUIRE(combine(p) == FA3_OK);
  REQUIRE(fake.launches.size() == 1);
  return fake.launches[0];
}

}  // namespace

TEST_CASE("combine: a launch, in full", "[launch]") {
  FakeCuda& fake = fresh();
  fa3_combine_params p = imaginary_combination(3, 2, 300, 6, 96);
  set_strides(p.o_parts, {8, 80000000, 800, 800000, 1});
  set_strides(p.lse_parts, {1, 200000, 30000, 7});
  set_strides(p.o, {500000, 1600, 120, 1});
  set_strides(p.lse, {5000, 700, 2});
  const Launch& launch = launched_by(p);
  CHECK(fake.maps.empty());
  const PassRow& row = pass_row_of(launch);
  CHECK((std::string(row.name) == "fa3_pass_combine" && !launch.early));
  CHECK((launch.block[0] == unsigned(row.threads()) && launch.shared == unsigned(row.smem_bytes())));
  CHECK(launch.stream == stream);
  const CombineParams& c = launch.carried.combine;
  CHECK((c.o_parts == p.o_parts.data && c.lse_parts == p.lse_parts.data && c.o == p.o.data && c.lse == p.lse.data));
  CHECK((c.o_parts_stride_part == 8 && c.o_parts_stride_batch == 80000000 && c.o_parts_stride_row == 800 &&
         c.o_parts_stride_head == 800000));
  CHECK((c.lse_parts_stride_part == 1 && c.lse_parts_stride_batch == 200000 && c.lse_parts_stride_head == 30000 &&
         c.lse_parts_stride_row == 7));
  CHECK((c.o_stride_batch == 500000 && c.o_stride_row == 1600 && c.o_stride_head == 120));
  CHECK((c.lse_stride_batch == 5000 && c.lse_stride_head == 700 && c.lse_stride_row == 2));
  CHECK((c.parts_dtype == CombineDtype::bf16 && c.o_dtype == CombineDtype::fp16));
  CHECK((c.parts == 3 && c.batch_heads == 12 && c.rows == 300 && c.heads == 6 && c.pieces == 12));
  // 128 threads, 12 a row: ten slots of two rows.
  CHECK((c.shares == 1 && c.slots == 10 && c.head_slots == 10 && c.tile_heads == 1));
  CHECK((launch.grid[0] == 15 * 12 && c.tiles_along_heads == 12));
  p.lse = {};
  CHECK(launched_by(p).carried.combine.lse == nullptr);
  p.o_parts.dtype = FA3_DTYPE_FP32, p.o.dtype = FA3_DTYPE_BF16;
  const CombineParams& wide = launched_by(p).carried.combine;
  CHECK((wide.parts_dtype == CombineDtype::fp32 && wide.o_dtype == CombineDtype::bf16 && wide.pieces == 24));
  // One part has no stride, and none has no address.
  fa3_combine_params few = imaginary_combination(1, 1, 10, 1, 64);
  few.o_parts.stride[0] = 77;
  CHECK(launched_by(few).carried.combine.o_parts_stride_part == 0);
  CHECK(launched_by(imaginary_combination(0, 1, 10, 1, 64)).carried.combine.parts == 0);
}

TEST_CASE("combine: tiles and shares", "[launch]") {
  fresh();
  const auto params = [](const fa3_combine_params& p) { return launched_by(p).carried.combine; };
  // Many rows: no shares, however many parts.
  CombineParams c = params(imaginary_combination(64, 4, 4096, 16, 128));
  CHECK((c.shares == 1 && c.slots == 8 && c.head_slots == 8));
  CHECK(fake_cuda().launches[0].grid[0] == 4096 / 16 * 64);
  // Few: as many as have a batch of parts, or threads for their pieces.
  c = params(imaginary_combination(64, 4, 1, 32, 128));
  CHECK((c.shares == 8 && c.slots == 1 && c.head_slots == 1 && c.tile_heads == 1));
  CHECK(fake_cuda().launches[0].grid[0] == 128);
  c = params(imaginary_combination(9, 4, 1, 32, 64));
  CHECK((c.shares == 4 && c.slots == 4 && c.head_slots == 1 && c.tile_heads == 4));
  CHECK(fake_cuda().launches[0].grid[0] == 32);
  c = params(imaginary_combination(3, 4, 1, 32, 64));
  CHECK((c.shares == 1 && c.slots == 16 && c.tile_heads == 16));
  CHECK(fake_cuda().launches[0].grid[0] == 8);
  // The widest row takes all threads.
  c = params(imaginary_combination(64, 1, 3, 1, 512, FA3_DTYPE_FP32));
  CHECK((c.pieces == 128 && c.shares == 1 && c.slots == 1));
}

TEST_CASE("combine: every row, piece and part has one thread", "[launch]") {
  fresh();
  for (const int64_t d : {8, 24, 64, 72, 128, 192, 256, 264, 512})
    for (const fa3_dtype dtype : {FA3_DTYPE_FP16, FA3_DTYPE_FP32})
      for (const int64_t rows : {1, 2, 3, 7, 16, 17, 65})
        for (const int64_t heads : {1, 5, 40})
          for (const int64_t parts : {0, 1, 4, 33}) {
            const Launch& launch = launched_by(imaginary_combination(parts, 2, rows, heads, d, dtype));
            INFO(d << " " << rows << " " << heads << " " << parts);
            CHECK(is_complete(launch.carried.combine, pass_row_of(launch), launch.grid[0]));
          }
}

// As many rows as o can have: its strides say where each is, within 2^40 bytes.
TEST_CASE("combine: the largest problem", "[launch]") {
  fresh();
  for (const int64_t rows : {int64_t{1}, int64_t{3}, int64_t{17}, int64_t{1} << 20})
    for (const int64_t d : {8, 128, 176, 264, 512}) {
      const int64_t heads = ((int64_t{1} << 40) - 1) / (2 * d * rows);
      if (heads > INT32_MAX - 65536) continue;
      fa3_combine_params p = imaginary_combination(1, 1, 1, 1, d, FA3_DTYPE_FP32);
      p.o_parts.dim[2] = p.lse_parts.dim[3] = p.o.dim[1] = rows;
      p.o_parts.dim[3] = p.lse_parts.dim[2] = p.o.dim[2] = heads;
      for (int i = 0; i < 4; ++i) p.o_parts.stride[i] = p.lse_parts.stride[i] = 0;
      p.o.stride[1] = d, p.o.stride[2] = rows * d;
      p.lse = {};
      const Launch& launch = launched_by(p);
      INFO(rows << " " << d);
      CHECK(int64_t{launch.grid[0]} * launch.carried.combine.slots * combine_rows >= rows * heads);
      CHECK(launch.grid[0] <= unsigned(INT32_MAX));
    }
}

TEST_CASE("combine: what the driver refuses, and a cold capture", "[launch]") {
  FakeCuda& fake = fresh();
  const fa3_combine_params p = imaginary_combination(2, 1, 10, 2, 64);
  fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CHECK(combine(p) == FA3_ERROR_NOT_LOADED);
  expect_message("call fa3_preload before the capture");
  CHECK(fake.launches.empty());
  REQUIRE(fa3_preload() == FA3_OK);
  CHECK(combine(p) == FA3_OK);
  fake.calls = 0;
  CHECK(combine(p) == FA3_OK);
  CHECK(fake.calls == 2);  // the current context's id and the launch
  fake.failing = "cuLaunchKernelEx";
  CHECK(combine(p) == FA3_ERROR_CUDA);
  expect_message("cuLaunchKernelEx");
  fresh().context = nullptr;
  CHECK(combine(p) == FA3_ERROR_NO_CONTEXT);
}

}  // namespace fa3::test
