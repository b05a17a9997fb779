// What fa3_append asks of the driver, seen by a driver that only listens.
#include <catch2/catch_test_macros.hpp>

#include <array>

#include "../imaginary.h"
#include "../launches.h"
#include "append.h"

namespace fa3::test {
namespace {

using P = fa3_append_params;

void* at(uintptr_t place) { return reinterpret_cast<void*>(place << 42); }

// Batched rows into pages, with q, rotary embedding and a cache of e4m3 for v.
P imaginary_append() {
  P p = imaginary_params<P>();
  p.v = tensor(at(2), FA3_DTYPE_BF16, {2, 10, 4, 48}), p.v_cache = tensor(at(4), FA3_DTYPE_E4M3, {2, 100, 4, 48});
  p.v_scale = tensor(at(16), FA3_DTYPE_FP32, {2, 4, 1});
  return p;
}

fa3_status append(const P& p) { return fa3_append(&p, reinterpret_cast<fa3_stream>(stream)); }

const Launch& launched_by(const P& p) {
  FakeCuda& fake = fake_cuda();
  fake.launches.clear();
  const fa3_status status = append(p);
  INFO(fa3_last_error_message());
  REQUIRE(status == FA3_OK);
  REQUIRE(fake.launches.size() == 1);
  return fake.launches[0];
}

// Rows of k, and of q if it has heads, for sequences of one length in caches of their own.
P plain(int64_t batch, int64_t rows, int64_t heads, int64_t heads_kv, int64_t d, int64_t dv, int64_t rotary_dim) {
  P p = FA3_APPEND_PARAMS_INIT;
  p.k = tensor(at(1), FA3_DTYPE_FP16, {batch, rows, heads_kv, d});
  p.k_cache = tensor(at(3), FA3_DTYPE_FP16, {batch, 100, heads_kv, d});
  if (dv > 0) {
    p.v = tensor(at(2), FA3_DTYPE_FP16, {batch, rows, heads_kv, dv});
    p.v_cache = tensor(at(4), FA3_DTYPE_FP16, {batch, 100, heads_kv, dv});
  }
  p.cache_seqlens = tensor(at(5), FA3_DTYPE_INT32, {batch});
  if (heads > 0) p.q = p.q_out = tensor(at(8), FA3_DTYPE_FP16, {batch, rows, heads, d});
  if (rotary_dim > 0) {
    p.rotary_cos = tensor(at(10), FA3_DTYPE_FP32, {300, rotary_dim / 2});
    p.rotary_sin = tensor(at(11), FA3_DTYPE_FP32, {300, rotary_dim / 2});
  }
  return p;
}

}  // namespace

TEST_CASE("append: a launch, in full", "[launch]") {
  FakeCuda& fake = fresh();
  P p = imaginary_append();
  p.flags = FA3_APPEND_ROTARY_INTERLEAVED;
  set_strides(p.k, {3000, 264, 64, 1}), set_strides(p.v, {2000, 192, 48, 1}), set_strides(p.q, {6000, 64, 640, 1});
  set_strides(p.k_cache, {100000, 64, 6400, 1}), set_strides(p.v_cache, {40000, 192, 48, 1});
  set_strides(p.q_out, {7000, 512, 64, 1}), set_strides(p.page_table, {77, 1}), set_strides(p.v_scale, {0, 3, 9});
  set_strides(p.rotary_cos, {20, 1}), set_strides(p.rotary_sin, {0, 1});
  const Launch& launch = launched_by(p);
  CHECK(fake.maps.empty());
  const PassRow& row = pass_row_of(launch);
  CHECK((std::string(row.name) == "fa3_pass_append" && !launch.early && launch.stream == stream));
  CHECK((launch.block[0] == unsigned(row.threads()) && launch.shared == unsigned(row.smem_bytes())));
  const AppendParams& a = launch.carried.append;
  const AppendTensor &q = a.tensors[0], &k = a.tensors[1], &v = a.tensors[2];
  CHECK((q.x == p.q.data && q.y == p.q_out.data && !q.scale && q.heads == 8));
  CHECK((q.x_stride_batch == 6000 && q.x_stride_row == 64 && q.x_stride_head == 640));
  CHECK((q.y_stride_batch == 7000 && q.y_stride_row == 512 && q.y_stride_head == 64));
  CHECK((k.x == p.k.data && k.y == p.k_cache.data && !k.scale && k.heads == 4));
  CHECK((k.x_stride_batch == 3000 && k.x_stride_row == 264 && k.x_stride_head == 64));
  CHECK((k.y_stride_batch == 100000 && k.y_stride_row == 64 && k.y_stride_head == 6400));
  CHECK((v.x == p.v.data && v.y == p.v_cache.data && v.scale == p.v_scale.data && v.heads == 4));
  CHECK((v.x_stride_row == 192 && v.y_stride_batch == 40000 && v.scale_stride_batch == 0 && v.scale_stride_head == 3));
  // 8 chunks of which 4 are rotated: 2 quads of them, and 2 of the rest. Of v 6 chunks, 3 quads.
  CHECK((k.quads.chunks == 8 && k.quads.rotated == 4 && k.quads_of_head == 4 && q.quads_of_head == 4));
  CHECK((v.quads.chunks == 6 && v.quads.rotated == 0 && v.quads_of_head == 3));
  CHECK((a.q_end == 16 && a.k_end == 24 && a.quads == 30 && a.lane_shift == 5 && a.segments == 1));
  CHECK((a.rows == 20 && a.rows_of_sequence == 10 && launch.grid[0] == 5));
  CHECK((!a.cu_seqlens && a.seqused == p.seqused_new.data && a.cache_seqlens == p.cache_seqlens.data));
  CHECK((!a.cache_batch_idx && a.page_table == p.page_table.data && a.page_table_stride == 77 && !a.slots));
  CHECK((a.positions == p.rotary_positions.data && a.positions_64 && !a.positions_of_rows));
  CHECK((a.rotary_cos == p.rotary_cos.data && a.cos_stride == 20 && a.sin_stride == 0 && a.angles == 300));
  CHECK((a.rotary_sin == p.rotary_sin.data && a.caches == 2 && a.cache_rows == 100 && a.capacity == 300));
  CHECK((a.bf16 && a.interleaved));
}

TEST_CASE("append: what says where rows go", "[launch]") {
  fresh();
  P p = plain(3, 5, 0, 2, 64, 32, 0);
  AppendParams a = launched_by(p).carried.append;
  CHECK((a.cache_seqlens && !a.page_table && !a.cache_batch_idx && !a.slots && !a.rotary_cos && !a.positions));
  CHECK((a.rows == 15 && a.rows_of_sequence == 5 && a.caches == 3 && a.cache_rows == 100 && a.capacity == 100));
  CHECK((!a.bf16 && a.tensors[0].heads == 0 && a.q_end == 0));
  p.k_cache.dim[0] = p.v_cache.dim[0] = 8, p.cache_batch_idx = tensor(at(6), FA3_DTYPE_INT32, {3});
  a = launched_by(p).carried.append;
  CHECK((a.cache_batch_idx == p.cache_batch_idx.data && a.caches == 8 && a.capacity == 100));
  // Packed: rows are numbered through all sequences.
  p.k = tensor(at(1), FA3_DTYPE_FP16, {15, 2, 64}), p.v = tensor(at(2), FA3_DTYPE_FP16, {15, 2, 32});
  p.cu_seqlens_new = tensor(at(7), FA3_DTYPE_INT32, {4});
  a = launched_by(p).carried.append;
  CHECK((a.cu_seqlens == p.cu_seqlens_new.data && a.batch == 3 && a.rows == 15 && a.rows_of_sequence == 15));
  CHECK((a.tensors[1].x_stride_row == 128 && a.tensors[2].x_stride_row == 64));
  // A page table for more positions than can be numbered.
  p.cache_batch_idx = {}, p.page_table = tensor(at(6), FA3_DTYPE_INT32, {3, INT32_MAX});
  CHECK(launched_by(p).carried.append.capacity == INT32_MAX);
  // Slots of either size.
  p.page_table = p.cu_seqlens_new = p.cache_seqlens = {};
  for (const int32_t dtype : {FA3_DTYPE_INT32, FA3_DTYPE_INT64}) {
    p.slot_mapping = tensor(at(7), dtype, {15});
    p.rotary_positions = tensor(at(9), FA3_DTYPE_INT32 + FA3_DTYPE_INT64 - dtype, {15});
    p.rotary_cos = p.rotary_sin = tensor(at(10), FA3_DTYPE_FP32, {300, 16});
    a = launched_by(p).carried.append;
    CHECK((a.slots == p.slot_mapping.data && a.slots_64 == (dtype == FA3_DTYPE_INT64) && !a.cache_seqlens));
    CHECK((a.positions_of_rows && a.positions_64 == (dtype == FA3_DTYPE_INT32) && a.rows_of_sequence == 15));
    CHECK((a.caches == 8 && a.cache_rows == 100));
  }
  // Of caches without rows no slot is one.
  p.k_cache.dim[1] = p.v_cache.dim[1] = 0;
  a = launched_by(p).carried.append;
  CHECK((a.caches == 0 && a.cache_rows == 1));
}

// The kernel's numbers are those that the caller gave: what it carries is the call again.
TEST_CASE("append: the parameter block holds the call", "[launch]") {
  fresh();
  const auto same = [](const fa3_tensor& a, const fa3_tensor& b) {
    bool is_same = a.rank == b.rank && a.data == b.data && (a.rank == 0 || a.dtype == b.dtype);
    for (int i = 0; i < a.rank; ++i) is_same = is_same && (a.dim[i] == b.dim[i] || b.dim[i] == 1);
    for (int i = 0; i < a.rank; ++i) is_same = is_same && (b.dim[i] == 1 || a.stride[i] == b.stride[i]);
    return is_same;
  };
  for (const P& p : {imaginary_append(), plain(2, 3, 4, 2, 64, 0, 32), plain(1, 1, 0, 1, 8, 8, 0)}) {
    const P c = call_of(launched_by(p).carried.append);
    CHECK((same(c.k, p.k) && same(c.v, p.v) && same(c.k_cache, p.k_cache) && same(c.v_cache, p.v_cache)));
    CHECK((same(c.q, p.q) && same(c.q_out, p.q_out) && same(c.cache_seqlens, p.cache_seqlens)));
    CHECK((same(c.seqused_new, p.seqused_new) && same(c.page_table, p.page_table)));
    CHECK((same(c.rotary_cos, p.rotary_cos) && same(c.rotary_positions, p.rotary_positions)));
    CHECK((same(c.v_scale, p.v_scale) && c.flags == p.flags));
  }
}

TEST_CASE("append: every chunk of every row has one thread", "[launch]") {
  fresh();
  for (const int64_t d : {16, 64, 72, 128, 256, 576, 1024})
    for (const int64_t dv : {0, 8, 40, 128})
      for (const int64_t rotary_dim : {int64_t{0}, int64_t{16}, d / 16 * 16})
        for (const int64_t heads_kv : {1, 2, 5})
          for (const int64_t heads : {0, 7})
            for (const int64_t rows : {1, 9, 33}) {
              const Launch& launch = launched_by(plain(2, rows, heads, heads_kv, d, dv, rotary_dim));
              INFO(d << " " << dv << " " << rotary_dim << " " << heads_kv << " " << heads << " " << rows);
              CHECK(is_complete(launch.carried.append, pass_row_of(launch), launch.grid[0]));
            }
}

TEST_CASE("append: of nothing there is no launch", "[launch]") {
  FakeCuda& fake = fresh();
  for (const auto& [batch, rows, heads, heads_kv] : {std::array{0, 10, 2, 2}, {2, 0, 2, 2}, {2, 10, 0, 0}}) {
    INFO(batch << " " << rows << " " << heads_kv);
    REQUIRE(append(plain(batch, rows, heads, heads_kv, 64, 0, 0)) == FA3_OK);
    CHECK(fake.launches.empty());
  }
}

TEST_CASE("append: the largest problem", "[launch]") {
  fresh();
  // Four rows of a warp.
  P p = plain(1, 1, 0, 1, 16, 0, 0);
  p.k.dim[0] = p.k_cache.dim[0] = p.cache_seqlens.dim[0] = 1;
  p.k.dim[1] = INT32_MAX - 65536, p.k.stride[1] = 16;
  const Launch& launch = launched_by(p);
  const AppendParams& a = launch.carried.append;
  CHECK((a.rows == INT32_MAX - 65536 && a.quads == 1 && a.lane_shift == 0));
  CHECK(int64_t{launch.grid[0]} * pass_row_of(launch).threads() >= a.rows);
  // A warp for each row: numbers of warps, and of rows beyond the last, are below 2^31.
  p = plain(1, 1, 0, 32, 16, 0, 0);
  p.k.dim[1] = INT32_MAX - 65536, p.k.stride[1] = 0;
  const Launch& wide = launched_by(p);
  CHECK(int64_t{wide.grid[0]} * (pass_row_of(wide).threads() / 32) <= INT32_MAX);
}

TEST_CASE("append: what the driver refuses, and a cold capture", "[launch]") {
  FakeCuda& fake = fresh();
  const P p = imaginary_append();
  fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CHECK(append(p) == FA3_ERROR_NOT_LOADED);
  expect_message("call fa3_preload before the capture");
  CHECK(fake.launches.empty());
  REQUIRE(fa3_preload() == FA3_OK);
  CHECK(append(p) == FA3_OK);
  fake.calls = 0;
  CHECK(append(p) == FA3_OK);
  CHECK(fake.calls == 2);  // the current context's id and the launch
  fake.failing = "cuLaunchKernelEx";
  CHECK(append(p) == FA3_ERROR_CUDA);
  expect_message("cuLaunchKernelEx");
  fresh().context = nullptr;
  CHECK(append(p) == FA3_ERROR_NO_CONTEXT);
}

}  // namespace fa3::test
