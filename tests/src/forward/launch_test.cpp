// What a launch of fa3_forward carries, seen by a driver that only listens.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "forward_launches.h"

namespace fa3::test {
namespace {

using U64 = std::vector<uint64_t>;
using U32 = std::vector<uint32_t>;

// The map that a launch carries in this place.
const EncodedMap& map_of(const TensorMap& map) { return fake_cuda().maps.at(map.opaque[0]); }

// Rows of q, k or v as slabs of 128 bytes, or of 64 if those are enough or the row asks for them.
void check_box(const EncodedMap& map, const ForwardRow& v, int rows) {
  const int bytes = v.is_8bit() ? 1 : 2, columns = std::max(v.d, v.dv);
  const int slab = columns * bytes <= 64 || v.has(Trait::narrow_slabs) ? 64 : 128;
  CHECK(map.box == U32{unsigned(slab / bytes), unsigned(rows), 1, 1});
  CHECK(map.swizzle == (slab == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B));
}

}  // namespace

TEST_CASE("a launch, in full", "[launch]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p = imaginary(
      {.batch = 2, .seqlen_q = 300, .seqlen_k = 500, .heads = 6, .heads_kv = 3, .head_dim = 72, .head_dim_v = 96});
  p.lse.stride[0] = 10000, p.lse.stride[1] = 1, p.lse.stride[2] = 7;
  REQUIRE(forward(p) == FA3_OK);
  CHECK(std::string(fa3_last_error_message()) == "");

  REQUIRE(fake.launches.size() == 1);
  const Launch& launch = fake.launches[0];
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  REQUIRE(fa3_forward_kernel_info(&p, 0, 0, &info) == FA3_OK);
  CHECK(launch.kernel == info.name);
  CHECK(fake.loaded == std::vector<std::string>{launch.kernel});
  const ForwardRow& v = forward_row_of(launch);
  const int q_blocks = (300 + v.Br - 1) / v.Br;
  CHECK(launch.grid[0] == unsigned(std::min(132, 12 * q_blocks)));
  CHECK((launch.grid[1] == 1 && launch.grid[2] == 1 && launch.block[1] == 1 && launch.block[2] == 1));
  CHECK(launch.block[0] == unsigned(v.threads()));
  CHECK(launch.shared == unsigned(v.smem_bytes()));
  CHECK(launch.stream == stream);

  const ListedForwardParams& f = launch.params();
  const Output& out = f.output;
  CHECK((out.o == p.o.data && out.head_dim == 96));
  CHECK((out.o_stride_batch == 300 * 6 * 96 && out.o_stride_row == 6 * 96 && out.o_stride_head == 96));
  CHECK(out.lse == p.lse.data);
  CHECK((out.lse_stride_batch == 10000 && out.lse_stride_head == 1 && out.lse_stride_row == 7));
  CHECK(static_cast<void*>(f.workspace) == workspace_memory);
  CHECK((f.visible.seqlen_q == 300 && f.visible.seqlen_k == 500 && f.tiles.heads == 6 && f.heads_per_kv == 2));
  CHECK_FALSE((f.visible.bounded_left || f.visible.bounded_right));
  CHECK(f.softmax_scale == static_cast<float>(1 / std::sqrt(72.0)));
  CHECK(f.softmax_scale_log2 == static_cast<float>(1.4426950408889634 / std::sqrt(72.0)));
  CHECK((f.tiles.q_blocks == q_blocks && f.tiles.first_row == 0 && f.tiles.batch_heads == 12));
  CHECK((f.pieces.count() == 12 * q_blocks && f.pieces.ticket_tiles == 0));
  CHECK((info.launches == 1 && info.tiles == 12 * q_blocks && info.pieces == info.tiles));
  CHECK((info.grid == int(launch.grid[0]) && info.multiprocessors == 132 && info.chosen == 1));

  REQUIRE(fake.maps.size() == 4);
  const auto map = [&](const TensorMap& m) { return fake.maps.at(m.opaque[0]); };
  const uint32_t Bc = v.Bc;
  const struct {
    EncodedMap map;
    fa3_tensor tensor;
    uint32_t rows;
  } maps[] = {{map(f.q), p.q, 64}, {map(f.k), p.k, Bc}, {map(f.v), p.v, Bc}, {map(f.o), p.o, 16}};
  for (const auto& m : maps) {
    const uint64_t seqlen = m.tensor.dim[1], heads = m.tensor.dim[2];
    CHECK(m.map.data == m.tensor.data);
    CHECK(m.map.type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
    const uint64_t columns = m.tensor.data == p.v.data || m.tensor.data == p.o.data ? 96 : 72;
    CHECK(m.map.dim == U64{columns, seqlen, heads, 2});
    CHECK(m.map.stride == U64{columns * 2 * heads, columns * 2, columns * 2 * heads * seqlen});
    check_box(m.map, v, int(m.rows));
    CHECK(m.map.element_stride == U32{1, 1, 1, 1});
    CHECK(m.map.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE);
    CHECK(m.map.promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    CHECK(m.map.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }
}

TEST_CASE("a launch with packed heads, in full", "[launch]") {
  for (const auto& [heads, query_rows, box_heads, box_queries] :
       {std::array<int64_t, 4>{1, 1, 1, 64}, {4, 4, 4, 16}, {7, 8, 8, 8}, {28, 32, 32, 2}, {64, 64, 64, 1},
        {100, 128, 64, 1}}) {
    INFO(heads << " heads for each of K and V");
    FakeCuda& fake = fresh();
    const int64_t all = 3 * heads;
    fa3_forward_params p = causal(
        {.batch = 2, .seqlen_q = 5, .seqlen_k = 9000, .heads = all, .heads_kv = 3, .head_dim = 72});
    set_strides(p.q, {1 << 24, 80 * all, 80, 1}), set_strides(p.o, {1 << 25, 88 * all, 88, 1});
    set_strides(p.lse, {1 << 20, 7, 7 * all});
    REQUIRE(forward(p) == FA3_OK);
    REQUIRE(fake.launches.size() == 1);
    const Launch& launch = fake.launches[0];
    const ForwardRow& v = forward_row_of(launch);
    REQUIRE(v.packs_heads());
    CHECK(is_complete(launch.carried));
    const ListedForwardParams& f = launch.params();
    CHECK((f.visible.seqlen_q == 5 && f.visible.right == 8995 && f.heads_per_kv == heads));
    CHECK(1 << f.visible.packing.shift == query_rows);
    CHECK((f.tiles.heads == 3 && f.tiles.batch_heads == 6 && f.tiles.q_blocks == (5 * query_rows + v.Br - 1) / v.Br));
    CHECK(f.tiles.first_row == (5 * query_rows + 63) / 64 * 64 - f.tiles.q_blocks * v.Br);
    const Output& out = f.output;
    CHECK((out.o == p.o.data && out.o_stride_batch == 1 << 25 && out.o_stride_row == 88 * all));
    CHECK((out.o_stride_head == 88 && out.lse_stride_head == 7 && out.lse_stride_row == 7 * all));

    REQUIRE(fake.maps.size() == 3);
    const EncodedMap& q = map_of(f.q);
    const uint64_t row = uint64_t(2 * 80 * all), head = heads == 1 ? 16 : 160;  // of one head there is no next
    CHECK(q.data == p.q.data);
    CHECK(q.dim == U64{72, uint64_t(heads), 5, 3, 2});
    CHECK(q.stride == U64{head, row, 160 * uint64_t(heads), 2 << 24});
    CHECK(q.box == U32{64, unsigned(box_heads), unsigned(box_queries), 1, 1});
    CHECK(q.swizzle == CU_TENSOR_MAP_SWIZZLE_128B);
    CHECK(map_of(f.k).dim == U64{72, 9000, 3, 2});
    for (const TensorMap* map : {&f.k, &f.v}) CHECK(map_of(*map).promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  }
  // A single K/V head has no next one.
  FakeCuda& fake = fresh();
  const Shape one{.batch = 1, .seqlen_q = 1, .seqlen_k = 9000, .heads = 8, .heads_kv = 1, .head_dim = 64};
  REQUIRE(forward(imaginary(one)) == FA3_OK);
  REQUIRE(forward_row_of(fake.launches[0]).packs_heads());
  CHECK(map_of(fake.launches[0].params().q).stride == U64{128, 16, 16, 16});
}

TEST_CASE("a launch of e4m3, in full", "[launch]") {
  const auto at = [](uintptr_t n) { return reinterpret_cast<void*>(n << 42); };
  for (const auto& [head_dim, d] : {std::pair<int64_t, int64_t>{48, 48}, {80, 80}, {208, 208}, {48, 208}, {80, 16}})
    for (const bool tiles : {false, true}) {
      INFO("head dimensions " << head_dim << " and " << d << ", tiles " << tiles);
      FakeCuda& fake = fresh();
      fa3_forward_params p = imaginary_e4m3({2, 300, 500, 6, 3, head_dim, d});
      if (tiles) p.v = tensor(p.v.data, FA3_DTYPE_E4M3, {2, 3, 32, d, 16}), p.v.stride[1] = 1 << 20;
      p.o = tensor(p.o.data, FA3_DTYPE_E4M3, {2, 300, 6, d});
      p.q_scale = tensor(at(6), FA3_DTYPE_FP32, {2, 6, 5}), set_strides(p.q_scale, {1000, 70, 3});
      p.k_scale = tensor(at(7), FA3_DTYPE_FP32, {2, 3, 1}), set_strides(p.k_scale, {50, 5, 99});
      p.v_scale = tensor(at(8), FA3_DTYPE_FP32, {1, 1, 1});
      p.o_scale = tensor(at(9), FA3_DTYPE_FP32, {1});
      p.v_mean = tensor(at(10), FA3_DTYPE_FP32, {2, 3, d}), set_strides(p.v_mean, {4000, 400, 1});
      p.lse_offset = tensor(at(11), FA3_DTYPE_FP32, {2, 6, 300}), set_strides(p.lse_offset, {5000, 2, 13});
      REQUIRE(forward(p) == FA3_OK);
      REQUIRE(fake.launches.size() == 1);
      const Launch& launch = fake.launches[0];
      const ForwardRow& v = forward_row_of(launch);
      CHECK((v.dtype == Dtype::e4m3 && v.d >= head_dim && v.dv >= d && v.transposes_v() == !tiles));
      CHECK(is_complete(launch.carried));

      const auto& f = launch.params();
      CHECK((f.output.o == p.o.data && f.output.dtype == Dtype::e4m3 && f.output.head_dim == d));
      CHECK((f.output.o_stride_batch == 300 * 6 * d && f.output.o_stride_row == 6 * d && f.output.o_stride_head == d));
      const Scales& s = f.scales;
      CHECK((s.q.data == at(6) && s.q.stride_batch == 1000 && s.q.stride_head == 70 && s.q.stride_block == 3));
      CHECK((s.k.data == at(7) && s.k.stride_batch == 50 && s.k.stride_head == 5 && s.k.stride_block == 0));
      CHECK((s.v.data == at(8) && s.v.stride_batch == 0 && s.v.stride_head == 0 && s.v.stride_block == 0));
      CHECK((s.o == at(9) && s.v_mean == at(10) && s.lse_offset == at(11)));
      CHECK((s.v_mean_stride_batch == 4000 && s.v_mean_stride_head == 400));
      CHECK((s.lse_offset_stride_batch == 5000 && s.lse_offset_stride_head == 2 && s.lse_offset_stride_row == 13));

      REQUIRE(fake.maps.size() == 3);
      for (const EncodedMap& map : fake.maps) {
        CHECK(map.type == CU_TENSOR_MAP_DATA_TYPE_UINT8);
        CHECK(map.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE);
        CHECK(map.promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
        CHECK(map.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
      }
      const uint64_t n = uint64_t(d), n_q = uint64_t(head_dim);
      CHECK(map_of(f.q).data == p.q.data);
      CHECK(map_of(f.q).dim == U64{n_q, 300, 6, 2});
      CHECK(map_of(f.q).stride == U64{6 * n_q, n_q, 300 * 6 * n_q});
      check_box(map_of(f.q), v, 64);
      CHECK(map_of(f.k).data == p.k.data);
      CHECK(map_of(f.k).dim == U64{n_q, 500, 3, 2});
      CHECK(map_of(f.k).stride == U64{3 * n_q, n_q, 500 * 3 * n_q});
      check_box(map_of(f.k), v, v.stage_keys());
      CHECK(map_of(f.v).data == p.v.data);
      if (tiles) {
        // Lines of 16 columns of a tile; tiles; heads; batch.
        CHECK(map_of(f.v).dim == U64{256, n / 16, 32, 3, 2});
        CHECK(map_of(f.v).stride == U64{256, 16 * n, 1 << 20, 3 * 32 * 16 * n});
        CHECK(map_of(f.v).box == U32{256, unsigned(v.dv / 16), unsigned(v.Bc / 16), 1, 1});
        CHECK(map_of(f.v).swizzle == CU_TENSOR_MAP_SWIZZLE_NONE);
      } else {
        CHECK(map_of(f.v).dim == U64{n, 500, 3, 2});
        CHECK(map_of(f.v).stride == U64{3 * n, n, 500 * 3 * n});
        check_box(map_of(f.v), v, v.stage_keys());
      }
    }
}

TEST_CASE("what e4m3 need not have is null, and o may have 16 bits", "[launch]") {
  FakeCuda& fake = fresh();
  for (const int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16}) {
    fa3_forward_params p = imaginary_e4m3();
    p.o.dtype = dtype;
    REQUIRE(forward(p) == FA3_OK);
    const auto& f = fake.launches.back().params();
    CHECK(f.output.dtype == (dtype == FA3_DTYPE_BF16 ? Dtype::bf16 : Dtype::fp16));
    CHECK((f.scales.o == nullptr && f.scales.v_mean == nullptr && f.scales.lse_offset == nullptr));
    CHECK((f.scales.q.data == p.q_scale.data && f.scales.q.stride_block == 0));
  }
  // Without lse nobody asks for its offset.
  fa3_forward_params p = imaginary_e4m3();
  p.lse_offset = tensor(reinterpret_cast<void*>(uintptr_t{9} << 42), FA3_DTYPE_FP32, {2, 4, 130});
  REQUIRE(forward(p) == FA3_OK);
  CHECK(fake.launches.back().params().scales.lse_offset == p.lse_offset.data);
  p.lse = {};
  REQUIRE(forward(p) == FA3_OK);
  CHECK(fake.launches.back().params().scales.lse_offset == nullptr);
  // Without keys a pass writes rows of any type.
  p = imaginary_e4m3({.seqlen_q = 9, .seqlen_k = 0, .head_dim = 32});
  for (const int32_t dtype : {FA3_DTYPE_E4M3, FA3_DTYPE_FP16}) {
    p.o.dtype = dtype;
    p.o_scale = dtype == FA3_DTYPE_E4M3 ? tensor(reinterpret_cast<void*>(uintptr_t{10} << 42), FA3_DTYPE_FP32, {1})
                                        : fa3_tensor{};
    REQUIRE(forward(p) == FA3_OK);
    REQUIRE(row_of(fake.launches.back()).kind == Kind::pass);
    CHECK(fake.launches.back().carried.empty_rows.output.dtype ==
          (dtype == FA3_DTYPE_E4M3 ? Dtype::e4m3 : Dtype::fp16));
  }
}

TEST_CASE("strides reach the maps, and those of single elements are made legal", "[launch]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p =
      imaginary({.batch = 1, .seqlen_q = 9, .seqlen_k = 9, .heads = 2, .heads_kv = 1, .head_dim = 64}, FA3_DTYPE_FP16);
  p.kernel = "fa3_fwd_fp16_d64_full_256x64";  // whose heads are not packed
  const int64_t q[] = {-5, 1024, 72, 1}, k[] = {1, 64, 3, 1}, v[] = {INT64_MIN, 0, INT64_MAX, 1};
  std::copy_n(q, 4, p.q.stride), std::copy_n(k, 4, p.k.stride), std::copy_n(v, 4, p.v.stride);
  REQUIRE(forward(p) == FA3_OK);
  REQUIRE(fake.maps.size() == 4);
  CHECK(fake.maps[0].type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  CHECK(fake.maps[0].stride == U64{2048, 144, 16});
  CHECK(fake.maps[1].stride == U64{128, 16, 16});
  CHECK(fake.maps[2].stride == U64{0, 16, 16});
}

TEST_CASE("broadcasts reach the maps as strides of 0", "[launch]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p =
      imaginary({.batch = 2, .seqlen_q = 9, .seqlen_k = 9, .heads = 2, .heads_kv = 2, .head_dim = 64});
  p.kernel = "fa3_fwd_bf16_d64_full_256x64";
  set_strides(p.q, {0, 0, 64, 1}), set_strides(p.k, {128, 0, 0, 1}), set_strides(p.v, {0, 0, 0, 1});
  REQUIRE(forward(p) == FA3_OK);
  REQUIRE(fake.maps.size() == 4);
  CHECK(fake.maps[0].stride == U64{0, 128, 0});  // of rows, heads and batch
  CHECK(fake.maps[1].stride == U64{0, 0, 256});
  CHECK(fake.maps[2].stride == U64{0, 0, 0});
  CHECK(fake.maps[2].dim == U64{64, 9, 2, 2});
}

TEST_CASE("without keys, a pass writes the rows", "[launch]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p =
      imaginary({.batch = 2, .seqlen_q = 300, .seqlen_k = 0, .heads = 6, .heads_kv = 3, .head_dim = 72});
  p.k.data = p.v.data = nullptr;
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  for (const bool wants_lse : {true, false}) {
    if (!wants_lse) p.lse = {};
    REQUIRE(forward(p) == FA3_OK);
    const Launch& launch = fake.launches.back();
    REQUIRE(row_of(launch).kind == Kind::pass);
    REQUIRE(fa3_forward_kernel_info(&p, 0, 0, &info) == FA3_OK);
    CHECK((launch.kernel == info.name && info.kind == FA3_KERNEL_PASS && info.launches == 1 && info.tiles == 0));
    CHECK((launch.grid[0] == unsigned(info.grid) && info.grid >= 1 && launch.block[0] == unsigned(info.threads)));
    CHECK(launch.shared == 0);
    const EmptyRowsParams& e = launch.carried.empty_rows;
    CHECK((e.rows == 300 && e.batch_heads == 12 && e.heads == 6));
    CHECK((e.output.o == p.o.data && e.output.head_dim == 72 && e.output.o_stride_row == 6 * 72));
    CHECK(e.output.lse == (wants_lse ? p.lse.data : nullptr));
  }
  CHECK((fake.launches.size() == 2 && fake.maps.empty()));
}

TEST_CASE("the launch carries the plan", "[launch]") {
  FakeCuda& fake = fresh();
  const auto run = [&](const fa3_forward_params& p) -> const Launch& {
    REQUIRE(forward(p) == FA3_OK);
    return fake.launches.back();
  };
  CHECK(run(causal({.seqlen_q = 300, .seqlen_k = 500, .head_dim = 128})).params().visible.right == 200);
  CHECK(run(causal({.seqlen_q = 500, .seqlen_k = 300})).params().visible.right == -200);
  CHECK(run(causal({.seqlen_q = 300, .seqlen_k = 500}, FA3_MASK_CAUSAL_TOP_LEFT)).params().visible.right == 0);
  CHECK(run(causal({})).params().visible.bounded_right);
  fa3_forward_params scaled = imaginary();
  scaled.softmax_scale = 0.375f;
  CHECK(run(scaled).params().softmax_scale == 0.375f);
  // The smallest number is not the default, and stays above 0: scores of -inf times 0 would be NaN.
  scaled.softmax_scale = 0x1p-149f;
  CHECK(run(scaled).params().softmax_scale == 0x1p-149f);
  CHECK(run(scaled).params().softmax_scale_log2 == 0x1p-149f);
  // Rows that see no key are in no tile, and thread blocks beyond the tiles write them.
  const Launch& empty = run(causal({.batch = 3, .seqlen_q = 5000, .seqlen_k = 300, .heads = 1, .heads_kv = 1}));
  CHECK(empty.params().tiles.first_row > 0);
  const int Br = forward_row_of(empty).Br;
  CHECK(int(empty.grid[0]) == 3 * ((empty.params().tiles.first_row + Br - 1) / Br));
  // Split problems: list, tickets and partial results, one behind the other.
  const fa3_forward_params split[] = {
      imaginary({.batch = 1, .seqlen_q = 100, .seqlen_k = 9000, .heads = 2, .heads_kv = 2, .head_dim = 128}),
      causal({.batch = 1, .seqlen_q = 4096, .seqlen_k = 4096, .heads = 3, .heads_kv = 3, .head_dim = 128}),
      imaginary({.batch = 1, .seqlen_q = 256, .seqlen_k = 8192, .heads = 200, .heads_kv = 1, .head_dim = 64})};
  for (const fa3_forward_params& p : split) {
    const Launch& launch = run(p);
    const ListedForwardParams& f = launch.params();
    CHECK((f.pieces.listed > 0 && f.pieces.ticket_tiles > 0));
    CHECK(is_complete(launch.carried));
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_forward_kernel_info(&p, 0, 0, &info) == FA3_OK);
    CHECK((info.tiles == f.tiles.count() && info.pieces == f.pieces.count() && info.pieces > info.tiles));
    CHECK(launch.grid[0] == unsigned(std::min<int64_t>(132, info.pieces)));
    const char* tickets = reinterpret_cast<const char*>(f.tickets);
    const char* partials = static_cast<const char*>(f.partials);
    CHECK(tickets >= workspace_memory + sizeof(Workspace));
    CHECK(partials >= tickets + f.pieces.ticket_tiles * forward_row_of(launch).warpgroups() * sizeof(Tickets));
    size_t bytes = 0;
    REQUIRE(fa3_forward_workspace_size(&p, 0, &bytes) == FA3_OK);
    CHECK(size_t(partials - workspace_memory) < bytes);
    // One byte less is refused.
    fake.launches.clear();
    CHECK(fa3_forward(&p, workspace_memory, bytes - 1, nullptr) == FA3_ERROR_WORKSPACE_TOO_SMALL);
    expect_message(("must be at least " + std::to_string(bytes)).c_str());
    CHECK(fake.launches.empty());
  }
}

TEST_CASE("grids follow the device's multiprocessors", "[launch]") {
  FakeCuda& fake = fresh();
  const auto run = [&](const fa3_forward_params& p) { REQUIRE(forward(p) == FA3_OK); };
  // Persistent blocks.
  const auto call = [](int64_t batch) {
    return imaginary({.batch = batch, .seqlen_q = 8, .seqlen_k = 100, .heads = 2, .head_dim = 256});
  };
  run(call(20));
  CHECK(fake.launches.back().grid[0] == 40);
  fake.multiprocessors = 7;  // of another context, at the same address
  fake.context_id += 5000;
  run(call(2));
  CHECK(fake.launches.back().grid[0] == 4);
  run(call(20));
  CHECK(fake.launches.back().grid[0] == 7);
  fa3_forward_params p = call(20);
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  CHECK(fa3_forward_kernel_info(&p, 0, 0, &info) == FA3_OK);
  CHECK((info.tiles == 40 && info.grid == 7));
  // Those of short sequences have one tile each.
  run(imaginary({.batch = 20, .seqlen_q = 8, .heads = 2}));
  CHECK(fake.launches.back().grid[0] == 40);
}

TEST_CASE("questions about the current device are answered for its multiprocessors", "[launch]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p =
      imaginary({.batch = 1, .seqlen_q = 100, .seqlen_k = 9000, .heads = 5, .heads_kv = 5, .head_dim = 128});
  std::set<size_t> sizes;
  std::set<int64_t> pieces;
  for (const int multiprocessors : {132, 114, 24, 5, 1, 1024}) {
    INFO(multiprocessors << " multiprocessors");
    fresh().multiprocessors = multiprocessors;
    size_t asked = 0, named = 0;
    fa3_kernel_info current = FA3_KERNEL_INFO_INIT, other = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_forward_workspace_size(&p, 0, &asked) == FA3_OK);
    REQUIRE(fa3_forward_kernel_info(&p, 0, 0, &current) == FA3_OK);
    CHECK(current.multiprocessors == multiprocessors);
    REQUIRE(forward(p) == FA3_OK);
    CHECK(fake.launches.back().kernel == current.name);
    CHECK(fake.launches.back().grid[0] == unsigned(current.grid));
    CHECK(current.grid == std::min<int64_t>(current.pieces, multiprocessors));
    CHECK(fa3_forward(&p, workspace_memory, asked - 1, nullptr) == FA3_ERROR_WORKSPACE_TOO_SMALL);
    CHECK(fa3_forward(&p, workspace_memory, asked, nullptr) == FA3_OK);

    fake.multiprocessors = 77, fake.context_id += 5000;  // another device does not matter
    REQUIRE(fa3_forward_workspace_size(&p, multiprocessors, &named) == FA3_OK);
    REQUIRE(fa3_forward_kernel_info(&p, multiprocessors, 0, &other) == FA3_OK);
    CHECK(named == asked);
    CHECK(std::memcmp(&current, &other, sizeof current) == 0);
    const size_t few_kilobytes = 8192;
    CHECK(named <= size_t(3) * multiprocessors * current.block_q * 4 * (current.head_dim_v + 8) + few_kilobytes);
    sizes.insert(named), pieces.insert(current.pieces);
  }
  CHECK((sizes.size() > 2 && pieces.size() > 2));
}

// Rows whose sequences have lengths of their own: planned_launch_test.cpp.
TEST_CASE("a named kernel is launched with its own numbers", "[launch]") {
  FakeCuda& fake = fresh();
  int loaded = 0;
  for (const ForwardRow& v : forward_rows) {
    if (v.has(Trait::planned)) continue;
    ++loaded;
    INFO(v.name);
    fake.maps.clear(), fake.launches.clear();
    const int unit = head_dim_unit(v);
    const fa3_forward_params p = named(v, {.batch = 2, .seqlen_q = 300, .seqlen_k = 500, .heads = 6, .heads_kv = 3,
                                           .head_dim = v.d - unit, .head_dim_v = v.dv - unit});
    REQUIRE(forward(p) == FA3_OK);
    REQUIRE(fake.launches.size() == 1);
    const Launch& launch = fake.launches[0];
    CHECK(launch.kernel == v.name);
    CHECK(fake.loaded.back() == v.name);
    CHECK(launch.block[0] == unsigned(v.threads()));
    CHECK(launch.shared == unsigned(v.smem_bytes()));
    // Two heads share each of K and V.
    const bool packs_heads = v.packs_heads();
    const int query_rows = packs_heads ? 2 : 1, q_blocks = (300 * query_rows + v.Br - 1) / v.Br;
    const int tiles = 12 / query_rows * q_blocks;
    const ListedForwardParams& f = launch.params();
    CHECK((f.tiles.q_blocks == q_blocks && f.pieces.count() >= tiles));
    CHECK((v.has(Trait::splits) || f.pieces.count() == tiles));
    CHECK(launch.grid[0] == unsigned(std::min(132, f.pieces.count())));
    CHECK(f.tiles.first_row == (v.causal() ? (300 * query_rows + 63) / 64 * 64 - q_blocks * v.Br : 0));
    REQUIRE(fake.maps.size() == (v.is_8bit() || packs_heads ? 3 : 4));
    if (packs_heads) CHECK(map_of(f.q).box == U32{64, 2, 32, 1, 1});
    else check_box(map_of(f.q), v, q_box_rows);
    check_box(map_of(f.k), v, v.stage_keys());
    if (!v.is_8bit() || v.transposes_v()) check_box(map_of(f.v), v, v.stage_keys());
    else CHECK(map_of(f.v).box == U32{256, unsigned(v.dv / 16), unsigned(v.Bc / 16), 1, 1});
  }
  CHECK((fake.loads == loaded && loaded > 100));
  const ForwardRow& first = forward_row(0);
  fa3_forward_params wrong = named(first);
  wrong.kernel = "none";
  fake.launches.clear(), fake.calls = 0;
  CHECK(forward(wrong) == FA3_ERROR_UNSUPPORTED);
  wrong = named(first);
  wrong.mask = first.causal() ? FA3_MASK_NONE : FA3_MASK_CAUSAL_TOP_LEFT;
  CHECK(forward(wrong) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK(fake.calls == 0);
}

}  // namespace fa3::test
