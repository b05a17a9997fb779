// What fa3_backward accepts for the device, and what it asks of the driver.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../launches.h"
#include "../refused.h"
#include "backward_calls.h"

namespace fa3::test {
namespace {

using Change = ChangeOf<B>;
const Change bad_changes[] = {
    {"q.dtype is 0, must be a fa3_dtype", invalid, [](B& p) { p.q.dtype = FA3_DTYPE_NONE; }},
    {"q.dtype is fp32", unsupported,
     [](B& p) {
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv}) t->dtype = FA3_DTYPE_FP32;
     }},
    {"q.dtype is fp32; the kernels take", unsupported, [](B& p) { p.q.dtype = FA3_DTYPE_FP32; }},
    {"k.dtype is bf16, must be e4m3 as q's", invalid, [](B& p) { p.q.dtype = FA3_DTYPE_E4M3; }},
    {"o.dtype is fp16, must be bf16 as q's", invalid, [](B& p) { p.o.dtype = FA3_DTYPE_FP16; }},
    {"dk.dtype is bf16, must be fp32 as other gradients are", invalid, [](B& p) { p.dq.dtype = FA3_DTYPE_FP32; }},
    {"dq.dtype is bf16, must be fp32 as other gradients are", invalid,
     [](B& p) { p.dk.dtype = p.dv.dtype = FA3_DTYPE_FP32; }},
    {"dv.dtype is bf16, must be fp32 with FA3_FLAG_ACCUMULATE", invalid,
     [](B& p) { p.dq.dtype = p.dk.dtype = FA3_DTYPE_FP32, p.flags = FA3_FLAG_ACCUMULATE; }},
    {"dv.dtype is fp16, must be bf16 as q's", invalid,
     [](B& p) { p.dq.dtype = p.dk.dtype = FA3_DTYPE_FP32, p.dv.dtype = FA3_DTYPE_FP16; }},
    {"o.dtype is fp32; the kernels", unsupported, [](B& p) { p.o.dtype = FA3_DTYPE_FP32; }},
    {"dq.stride[1] is 38, must be a multiple of 4", invalid, [](B& p) { to_fp32(p), p.dq.stride[1] = 38; }},
    {"which is not a backward kernel", invalid,
     [](B& p) {
       p = imaginary_backward({.seqlen_k = 100, .head_dim = 64}), to_fp32(p);
       p.kernel = "fa3_bwdshort_bf16_d64_full_128x128";
     }},
    {"which is not a backward kernel", invalid,
     [](B& p) {
       p = imaginary_backward({.head_dim = 128}), to_fp32(p);
       p.kernel = "fa3_alg3_bf16_d128_full_64x128";
     }},
    {"dk.dtype is fp16, must be bf16 as q's", invalid, [](B& p) { p.dk.dtype = FA3_DTYPE_FP16; }},
    {"dout.stride[3] is 2, must be 1", invalid, [](B& p) { p.dout.stride[3] = 2; }},
    {"dv.stride[1] is 36, must be a multiple of 8", invalid, [](B& p) { p.dv.stride[1] = 36; }},
    {"k.stride[1] is -32, must be >= 0", invalid, [](B& p) { p.k.stride[1] = -32; }},
    {"lse.stride[0] is -1, must be >= 0", invalid, [](B& p) { p.lse.stride[0] = -1; }},
    {"dq.data is", invalid, [](B& p) { p.dq.data = static_cast<char*>(p.dq.data) + 8; }},
    {"params->kernel is \"none\", no kernel of this build", unsupported, [](B& p) { p.kernel = "none"; }},
    {"params->kernel is fa3_fwd_bf16_d64_full_256x64, which is not a backward kernel", invalid,
     [](B& p) { p.kernel = "fa3_fwd_bf16_d64_full_256x64"; }},
    {"params->kernel is fa3_bwd_queries_bf16_d256_full_128x64, which is not", invalid,
     [](B& p) { p.kernel = "fa3_bwd_queries_bf16_d256_full_128x64"; }},
    {"params->kernel is fa3_bwd_bf16_d64_causal_128x128, which is not", invalid,
     [](B& p) { p.kernel = "fa3_bwd_bf16_d64_causal_128x128"; }},
    {"params->kernel is fa3_alg3_bf16_d128_full_64x128, which adds dq in any order", invalid,
     [](B& p) { p.kernel = "fa3_alg3_bf16_d128_full_64x128", p.flags = FA3_FLAG_DETERMINISTIC; }},
};

}  // namespace

TEST_CASE("bad arguments of fa3_backward are refused before any launch", "[launch][backward]") {
  FakeCuda& fake = fresh();
  for (const Change& change : bad_changes) {
    INFO(change.name);
    B p = imaginary_backward();
    change.apply(p);
    expect(fa3_backward_check(&p), change);
    CHECK(backward(p) == change.status);
    CHECK(fake.launches.empty());
  }
  CHECK(fa3_backward_check(nullptr) == invalid);
  const B p = imaginary_backward();
  CHECK(fa3_backward_workspace_size(&p, nullptr) == invalid);
  CHECK(fa3_backward(&p, nullptr, plenty, nullptr) == invalid);
  expect_message("workspace is NULL");
  CHECK(backward(p, workspace_of(p) - 1) == FA3_ERROR_WORKSPACE_TOO_SMALL);
  CHECK(fa3_backward(&p, p.dv.data, plenty, nullptr) == invalid);
  expect_message("workspace may overlap dv");
  CHECK(fake.calls == 0);
}

TEST_CASE("inputs of fa3_backward may repeat", "[launch][backward]") {
  B p = imaginary_backward();
  p.dlse = p.lse, p.dlse.data = reinterpret_cast<void*>(uintptr_t{10} << 42);
  for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.dout}) set_strides(*t, {0, 0, 0, 1});
  for (fa3_tensor* t : {&p.lse, &p.dlse}) set_strides(*t, {0, 0, 0});
  CHECK(fa3_backward_check(&p) == FA3_OK);
}

TEST_CASE("the backward pass, in full", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const Shape s{
      .batch = 2, .seqlen_q = 300, .seqlen_k = 500, .heads = 6, .heads_kv = 3, .head_dim = 72, .head_dim_v = 40};
  B p = imaginary_backward(s, FA3_DTYPE_FP16);
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  p.softmax_scale = 0.25f;
  p.lse.stride[0] = 10000, p.lse.stride[1] = 1, p.lse.stride[2] = 7;
  p.dlse = tensor(reinterpret_cast<void*>(uintptr_t{10} << 42), FA3_DTYPE_FP32, {2, 6, 300});
  const size_t tiles = 2 * 6 * 5, rows = tiles * 64;
  CHECK(workspace_of(p) == rows * (4 + 4 + 4 * 128) + (2 * 6 + 1) * 4 + tiles * 4);
  REQUIRE(backward(p) == FA3_OK);

  REQUIRE(fake.launches.size() == 3);
  const Launch &first = fake.launches[0], &main = fake.launches[1], &last = fake.launches[2];
  CHECK((first.kernel == "fa3_pass_bwd_prepare_d128" && last.kernel == "fa3_pass_bwd_finish_d128"));
  CHECK(main.kernel == "fa3_bwd_fp16_d128_causal_64x128");
  CHECK((!first.early && main.early && last.early));
  CHECK((first.grid[0] == tiles && last.grid[0] == 6 * 4 * 3 && main.grid[0] == 6 * 4));  // a share is 3 tiles
  for (int launch = 0; launch < 3; ++launch) {
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_backward_kernel_info(&p, 0, launch, &info) == FA3_OK);
    CHECK((info.name == fake.launches[size_t(launch)].kernel && info.launches == 3));
    CHECK(info.multiprocessors == 132);
    CHECK(info.grid == int(fake.launches[size_t(launch)].grid[0]));
    CHECK(info.tiles == (launch == 1 ? 24 : 0));
  }
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  B nowhere = p;
  nowhere.q.data = nowhere.dk.data = nullptr;  // nobody looks there
  CHECK((fa3_backward_kernel_info(&nowhere, 0, 0, &info) == FA3_OK && workspace_of(nowhere) == workspace_of(p)));
  CHECK(fa3_backward_kernel_info(&p, 0, 3, &info) == invalid);
  CHECK(fa3_backward_kernel_info(&p, -1, 0, &info) == invalid);

  const uintptr_t workspace = reinterpret_cast<uintptr_t>(workspace_memory);
  const auto place = [&](const float* p) { return reinterpret_cast<uintptr_t>(p) - workspace; };
  const BackwardParams& g = main.carried.backward;
  for (const Launch* pass : {&first, &last})
    CHECK(std::memcmp(static_cast<const void*>(&pass->carried.backward), &g, sizeof g) == 0);
  const BackwardRows& r = g.rows;
  CHECK((static_cast<const void*>(r.o) == p.o.data && static_cast<const void*>(r.dout) == p.dout.data));
  CHECK((r.o_stride.batch == 300 * 6 * 40 && r.o_stride.row == 6 * 40 && r.o_stride.head == 40));
  CHECK((r.lse == p.lse.data && r.lse_stride.batch == 10000 && r.lse_stride.head == 1 && r.lse_stride.row == 7));
  CHECK((r.dlse == p.dlse.data && r.dlse_stride.batch == 1800 && r.dlse_stride.head == 300 && r.dlse_stride.row == 1));
  CHECK((r.rows == 300 && r.head_dim == 72 && r.head_dim_v == 40 && r.tiles == 5 && r.heads == 6 && !r.bf16));
  CHECK((place(r.lse_log2) == 0 && place(r.delta) == 4 * rows && place(r.dq_sums) == 8 * rows));

  CHECK((g.visible.seqlen_q == 300 && g.visible.seqlen_k == 500 && g.visible.right == 200 && g.visible.bounded_right));
  CHECK((g.heads_per_kv == 2 && g.order.head_tiles == 10 && g.order.heads == 3 && g.order.batch_heads == 6));
  CHECK((reinterpret_cast<uintptr_t>(g.order.added) - workspace == 8 * rows + rows * 4 * 128));
  CHECK((g.order.prepared == g.order.added + 6 && g.order.claimed == g.order.prepared + 6));
  CHECK((g.visits == g.order.claimed + 1 && g.counters == int(2 * 6 + 1 + tiles) && r.tiles_per_visit == 1));
  CHECK((g.softmax_scale == 0.25f && std::fabs(g.softmax_scale_log2 - 0.36067376f) < 1e-7f));
  REQUIRE(fake.maps.size() == 6);
  const struct {
    const TensorMap& map;
    const fa3_tensor& tensor;
    unsigned rows;
  } maps[] = {{g.q, p.q, 64},       {g.k, p.k, 128},  {g.v, p.v, 128},
              {g.dout, p.dout, 64}, {g.dk, p.dk, 64}, {g.dv, p.dv, 64}};
  for (const auto& m : maps) {
    const EncodedMap& map = fake.maps.at(m.map.opaque[0]);
    CHECK(map.promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
    CHECK(map.data == m.tensor.data);
    const bool is_value = &m.map == &g.v || &m.map == &g.dout || &m.map == &g.dv;
    CHECK(map.dim == std::vector<uint64_t>{is_value ? 40u : 72u, uint64_t(m.tensor.dim[1]), uint64_t(m.tensor.dim[2]),
                                           2});
    CHECK(map.box == std::vector<uint32_t>{64, m.rows, 1, 1});
  }

  CHECK(r.dq == p.dq.data);
  CHECK(!g.order.is_fixed());
  p.flags = FA3_FLAG_DETERMINISTIC;
  const size_t bytes = workspace_of(p);
  REQUIRE(backward(p, bytes) == FA3_OK);
  CHECK(fake.launches.at(4).carried.backward.order.is_fixed());
  CHECK((r.dq_stride.batch == 300 * 6 * 72 && r.dq_stride.row == 6 * 72 && r.dq_stride.head == 72));
  // Two tiles at once have one number.
  CHECK(workspace_of(imaginary_backward(
            {.batch = 1, .seqlen_q = 300, .seqlen_k = 200, .heads = 1, .heads_kv = 1, .head_dim = 64})) ==
        6 * 64 * (4 + 4 + 4 * 64) + (2 * 1 + 1) * 4 + 3 * 4);
}

TEST_CASE("few heads of K and V have several parts, which a pass adds up", "[launch][backward]") {
  FakeCuda& fake = fresh();
  B p = imaginary_backward({.batch = 2, .seqlen_q = 900, .seqlen_k = 300, .heads = 12, .heads_kv = 2, .head_dim = 72,
                            .head_dim_v = 40});
  const size_t tiles = 2 * 12 * 15, rows = tiles * 64, sums = 2 * (2 * 2 * 6) * 3 * 128 * 128 * 4;
  CHECK(workspace_of(p) == rows * (4 + 4 + 4 * 128) + sums + (2 * 24 + 1) * 4 + tiles * 4);
  REQUIRE(backward(p) == FA3_OK);
  REQUIRE(fake.launches.size() == 3);
  const Launch &main = fake.launches[1], &pass = fake.launches[2];
  const BackwardParams& g = main.carried.backward;
  CHECK((pass.kernel == "fa3_pass_bwd_finish_d128" && pass.early));
  CHECK(pass.grid[0] == unsigned(tiles_left(g.order)) + 2 * 2 * 2 * 6);
  CHECK(main.grid[0] == 2 * 2 * 6 * 3);
  CHECK(std::memcmp(static_cast<const void*>(&pass.carried.backward), &g, sizeof g) == 0);
  CHECK((g.order.parts == 6 && g.order.heads == 12 && g.order.batch_heads == 24 && g.order.head_tiles == 15));
  CHECK((g.readers == 1 && g.heads_per_kv == 6));
  CHECK(reinterpret_cast<uintptr_t>(g.keys.sums) == reinterpret_cast<uintptr_t>(workspace_memory) + rows * 8);
  CHECK(reinterpret_cast<uintptr_t>(g.rows.dq_sums) == reinterpret_cast<uintptr_t>(g.keys.sums) + sums);
  CHECK((g.keys.tiles == 6 && g.keys.heads == 2 && g.keys.head_dim == 72 && g.keys.head_dim_v == 40));
  CHECK((g.keys.dk == p.dk.data && g.keys.dv == p.dv.data && g.order.ranges == 1));
  CHECK((g.keys.dk_stride.batch == 300 * 2 * 72 && g.keys.dk_stride.row == 2 * 72 && g.keys.dk_stride.head == 72));
  CHECK((g.keys.dv_stride.batch == 300 * 2 * 40 && g.keys.dv_stride.row == 2 * 40 && g.keys.dv_stride.head == 40));

  // Ranges of 11, 11 and 10 of a query head's 32 tiles: as if there were 33.
  p = imaginary_backward({.batch = 1, .seqlen_q = 2048, .seqlen_k = 2048, .heads = 4, .heads_kv = 4, .head_dim = 128});
  p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
  fake.launches.clear();
  REQUIRE(backward(p) == FA3_OK);
  const BackwardParams& r = fake.launches.at(1).carried.backward;
  CHECK((r.order.ranges == 3 && r.order.parts == 3 && r.order.heads == 12 && r.order.head_tiles == 11));
  CHECK((r.readers == 1 && r.heads_per_kv == 1 && r.rows.tiles == 33));

  const auto parts = [&](const Shape& shape, int32_t mask, const char* kernel = nullptr) {
    B p = imaginary_backward(shape);
    p.mask = mask, p.kernel = kernel;
    fake.launches.clear();
    REQUIRE(backward(p, size_t{1} << 50) == FA3_OK);
    return int(fake.launches.back().carried.backward.order.parts);
  };
  const auto llama = [](int64_t heads, int64_t heads_kv, int64_t seqlen, int64_t batch = 1, int64_t head_dim = 128) {
    return Shape{.batch = batch, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = heads, .heads_kv = heads_kv,
                 .head_dim = head_dim};
  };
  constexpr int32_t full = FA3_MASK_NONE, causal = FA3_MASK_CAUSAL_TOP_LEFT;
  CHECK((parts(llama(32, 8, 2048), full) == 1 && parts(llama(32, 8, 2048), causal) == 2));
  CHECK((parts(llama(8, 1, 8192), full) == 2 && parts(llama(8, 1, 8192), causal) == 4));
  CHECK((parts(llama(32, 8, 4096), causal) == 2 && parts(llama(32, 8, 4096, 2), causal) == 1));
  CHECK((parts(llama(8, 1, 2048, 1, 256), causal) == 8 && parts(llama(2, 2, 512), causal) == 1));
  CHECK(parts(llama(4, 1, 64), full) == 1);      // the pass would take longer
  CHECK(parts(llama(64, 8, 512), causal) == 4);  // 8 would save less than a tenth
  // Few blocks of many readers take longer than their turns say.
  CHECK((parts(llama(8, 1, 8192, 2), causal) == 4 && parts(llama(16, 2, 8192, 2), causal) == 2));
  CHECK((parts(llama(16, 2, 16384), causal) == 2 && parts(llama(28, 4, 4096, 2), causal) == 7));
  CHECK((parts(llama(32, 8, 2048, 2), causal) == 2 && parts(llama(32, 8, 8192), causal) == 1));
  CHECK(parts({.batch = 1, .seqlen_q = 5000, .seqlen_k = 100, .heads = 512, .heads_kv = 1}, full) == 64);
  CHECK((parts(llama(8, 8, 2048), causal) == 2 && parts(llama(8, 8, 2048), full) == 1));
  CHECK((parts(llama(4, 4, 2048), causal) == 3 && parts(llama(9, 9, 8192), causal) == 1));
  CHECK(parts({.batch = 1, .seqlen_q = INT32_MAX - 2000, .seqlen_k = 100, .heads = 1, .heads_kv = 1}, full) > 50);
  CHECK(parts(llama(8, 1, 2048), full, "fa3_alg3_bf16_d128_full_64x128") == 1);
}

TEST_CASE("each query tile's dQ is rounded once, by a thread block of a later section or by the last pass",
          "[launch][backward]") {
  FakeCuda& fake = fresh();
  const Shape shapes[] = {
      {.batch = 3, .seqlen_q = 70, .seqlen_k = 130, .heads = 100, .heads_kv = 100, .head_dim = 64},
      {.batch = 1, .seqlen_q = 900, .seqlen_k = 170, .heads = 700, .heads_kv = 350, .head_dim = 128},
      {.batch = 2, .seqlen_q = 64, .seqlen_k = 2000, .heads = 40, .heads_kv = 20, .head_dim = 128},
      {.batch = 1, .seqlen_q = 70, .seqlen_k = 2048, .heads = 21, .heads_kv = 21, .head_dim = 64},  // causal: 11 and 10
      {.batch = 1, .seqlen_q = 5000, .seqlen_k = 5000, .heads = 4, .heads_kv = 1, .head_dim = 64},
  };
  for (const Shape& shape : shapes)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT}) {
      B p = imaginary_backward(shape);
      p.mask = mask;
      fake.launches.clear();
      REQUIRE(backward(p) == FA3_OK);
      const KeyOrder& order = fake.launches.at(1).carried.backward.order;
      REQUIRE(fake.launches.size() == 3);
      const int64_t by_thread_blocks = int64_t{order.done_behind} * order.section * order.share;
      const int64_t keys_grid = 2 * ((shape.seqlen_k + 127) / 128) * 2 * shape.batch * shape.heads_kv;
      const int64_t all = by_thread_blocks + int64_t{fake.launches[2].grid[0]} - (order.parts > 1 ? keys_grid : 0);
      std::vector<int> rounded(size_t(order.head_tiles) * size_t(order.batch_heads));
      for (int64_t n = 0; n < all; ++n)
        if (const int32_t tile = shared_tile(order, int32_t(n)); tile >= 0) ++rounded.at(size_t(tile));
      CHECK(rounded == std::vector<int>(rounded.size(), 1));
      // About as many thread blocks later as the machine runs at once.
      CHECK((order.behind == order.sections || int64_t{order.behind - 1} * order.section >= 132));
      // Each section that thread blocks finish has one behind it with as many of them.
      CHECK(order.done_behind >= 0);
      CHECK((order.done_behind + (order.done_behind ? order.behind : 0)) * order.section_heads <= order.batch_heads);
    }
  CHECK(fake.launches[1].carried.backward.order.done_behind == 0);  // one head
}

TEST_CASE("thread blocks of Algorithm 3 round no dQ", "[launch][backward]") {
  FakeCuda& fake = fresh();
  B p = imaginary_backward({.batch = 1, .seqlen_q = 70, .seqlen_k = 70, .heads = 300, .heads_kv = 300,
                            .head_dim = 128});
  p.kernel = "fa3_alg3_bf16_d128_full_64x128";
  REQUIRE(backward(p) == FA3_OK);
  REQUIRE(fake.launches.size() == 3);
  CHECK(fake.launches[1].carried.backward.order.done_behind == 0);
  CHECK(fake.launches[2].grid[0] == 300 * 2);
}

TEST_CASE("each query tile is prepared once, by the first pass or by a thread block of an earlier section",
          "[launch][backward]") {
  FakeCuda& fake = fresh();
  const struct {
    Shape shape;
    bool full, causal;  // are some rows left to thread blocks?
  } cases[] = {
      {{.batch = 3, .seqlen_q = 70, .seqlen_k = 2048, .heads = 100, .heads_kv = 100, .head_dim = 64}, true, false},
      {{.batch = 1, .seqlen_q = 900, .seqlen_k = 4096, .heads = 35, .heads_kv = 35, .head_dim = 128}, true, true},
      {{.batch = 1, .seqlen_q = 900, .seqlen_k = 4096, .heads = 70, .heads_kv = 35, .head_dim = 128}, true, false},
      {{.batch = 2, .seqlen_q = 64, .seqlen_k = 2000, .heads = 40, .heads_kv = 20, .head_dim = 128}, true, false},
      {{.batch = 1, .seqlen_q = 5000, .seqlen_k = 5000, .heads = 4, .heads_kv = 4, .head_dim = 64}, false, false},
      {{.batch = 4, .seqlen_q = 300, .seqlen_k = 1900, .heads = 100, .heads_kv = 100, .head_dim = 64}, false, false},
  };
  for (const auto& [shape, full, causal] : cases)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT})
      for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}}) {
        const bool ahead = flags == 0 && (mask == FA3_MASK_NONE ? full : causal);
        B p = imaginary_backward(shape);
        p.mask = mask, p.flags = flags;
        fake.launches.clear();
        REQUIRE(backward(p) == FA3_OK);
        const KeyOrder& order = fake.launches.at(1).carried.backward.order;
        const unsigned pass = fake.launches[0].grid[0];
        CHECK(pass == unsigned(heads_of_pass(order) * order.head_tiles));
        std::vector<int> prepared(size_t(order.head_tiles) * size_t(order.batch_heads));
        CHECK((pass < prepared.size()) == ahead);
        std::fill_n(prepared.begin(), pass, 1);
        std::vector<int> key_blocks(size_t(order.batch_heads));  // that have said so
        for (int32_t n = 0; n < order.batch_heads * order.blocks; ++n) {
          const HeadBlock block = block_ahead(order, n);
          if (block.block >= order.blocks) continue;
          CHECK(block.batch_head >= heads_of_pass(order));
          ++key_blocks.at(size_t(block.batch_head));
          const TileShare share = share_of(order, block);
          for (int32_t tile = share.first; tile < share.first + share.tiles; ++tile) ++prepared.at(size_t(tile));
        }
        CHECK(prepared == std::vector<int>(prepared.size(), 1));
        for (int32_t head = 0; head < order.batch_heads; ++head)
          CHECK(key_blocks[size_t(head)] == (head < heads_of_pass(order) ? 0 : order.blocks));
        if (ahead) CHECK(int64_t{order.ahead - 1} * order.section >= 256);
      }
}

TEST_CASE("thread blocks of the backward pass take several key blocks each", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const auto grid = [&](int64_t heads) {
    B p = imaginary_backward({.seqlen_q = 100, .seqlen_k = 257, .heads = heads, .heads_kv = heads, .head_dim = 64});
    fake.launches.clear();
    REQUIRE(backward(p) == FA3_OK);
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    for (const int32_t multiprocessors : {1, 100, 1000}) {
      REQUIRE(fa3_backward_kernel_info(&p, multiprocessors, 1, &info) == FA3_OK);
      CHECK((info.grid == std::min<int64_t>(multiprocessors, info.tiles) && info.pieces == info.tiles));
    }
    CHECK(info.tiles == 2 * heads * 3);  // of 128 keys; the batch has 2
    return fake.launches.at(1).grid[0];
  };
  CHECK(grid(21) == 126);
  CHECK(grid(22) == 132);
  CHECK(grid(23) == 132);
}

TEST_CASE("the backward pass of large head dimensions, by two kernels", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const Shape s{
      .batch = 2, .seqlen_q = 300, .seqlen_k = 500, .heads = 6, .heads_kv = 3, .head_dim = 64, .head_dim_v = 136};
  B p = imaginary_backward(s, FA3_DTYPE_FP16);
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  const size_t rows = 2 * 6 * 5 * 64;
  CHECK(workspace_of(p) == rows * (4 + 4));
  REQUIRE(backward(p) == FA3_OK);
  REQUIRE(fake.launches.size() == 3);
  const Launch &first = fake.launches[0], &keys = fake.launches[1], &queries = fake.launches[2];
  CHECK(first.kernel == "fa3_pass_bwd_prepare_d256");
  CHECK(keys.kernel == "fa3_bwd_keys_fp16_d256_causal_64x64");
  CHECK(queries.kernel == "fa3_bwd_queries_fp16_d256_causal_128x64");
  CHECK((!first.early && keys.early && queries.early));
  CHECK((first.grid[0] == 12 * 5 && keys.grid[0] == 6 * 8 && queries.grid[0] == 12 * 3));
  const int tiles[] = {0, 48, 36};
  for (int launch = 0; launch < 3; ++launch) {
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_backward_kernel_info(&p, 7, launch, &info) == FA3_OK);
    CHECK((info.name == fake.launches[size_t(launch)].kernel && info.launches == 3 && info.tiles == tiles[launch]));
    CHECK((info.multiprocessors == 7 && info.grid == int(fake.launches[size_t(launch)].grid[0])));
  }

  const BackwardParams& g = keys.carried.backward;
  for (const Launch* other : {&first, &queries})
    CHECK(std::memcmp(static_cast<const void*>(&other->carried.backward), &g, sizeof g) == 0);
  const uintptr_t workspace = reinterpret_cast<uintptr_t>(workspace_memory);
  CHECK((reinterpret_cast<uintptr_t>(g.rows.lse_log2) == workspace && g.rows.delta == g.rows.lse_log2 + rows));
  CHECK((g.rows.dq_sums == nullptr && g.order.added == nullptr && g.visits == nullptr));
  CHECK((g.order.done_behind == 0 && g.order.blocks == 8));
  CHECK((g.query_order.batch_heads == 12 && g.query_order.blocks == 3 && g.query_order.section_heads == 12));
  CHECK((g.query_order.sections == 1 && g.query_order.section == 36));
  REQUIRE(fake.maps.size() == 7);
  const struct {
    const TensorMap& map;
    const fa3_tensor& tensor;
  } maps[] = {{g.q, p.q},   {g.k, p.k},   {g.v, p.v},  {g.dout, p.dout},
              {g.dk, p.dk}, {g.dv, p.dv}, {g.dq, p.dq}};
  for (const auto& m : maps) {
    const EncodedMap& map = fake.maps.at(m.map.opaque[0]);
    CHECK(map.data == m.tensor.data);
    const bool is_value = &m.map == &g.v || &m.map == &g.dout || &m.map == &g.dv;
    CHECK(map.dim == std::vector<uint64_t>{is_value ? 136u : 64u, uint64_t(m.tensor.dim[1]),
                                           uint64_t(m.tensor.dim[2]), 2});
    CHECK(map.box == std::vector<uint32_t>{64, 64, 1, 1});
  }

  // dQ needs no fixed order.
  p.flags = FA3_FLAG_DETERMINISTIC;
  REQUIRE(backward(p) == FA3_OK);
  CHECK(!fake.launches.at(4).carried.backward.order.is_fixed());
  // Of each dQ a single thread block has all, so a fixed order takes no other sections.
  B fixed = imaginary_backward({.seqlen_q = 300, .seqlen_k = 500, .head_dim = 256});
  fixed.flags = FA3_FLAG_DETERMINISTIC;
  REQUIRE(backward(fixed) == FA3_OK);
  CHECK(fake.launches.back().carried.backward.order.section_heads == 1);

  // The two go with one another.
  for (const int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16})
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT}) {
      p = imaginary_backward({.head_dim = 256}, dtype);
      p.mask = mask;
      REQUIRE(backward(p) == FA3_OK);
      const std::string which = std::string(dtype == FA3_DTYPE_BF16 ? "bf16" : "fp16") + "_d256_" +
                                (mask == FA3_MASK_NONE ? "full" : "causal");
      const size_t last = fake.launches.size() - 1;
      CHECK(fake.launches[last - 1].kernel == "fa3_bwd_keys_" + which + "_64x64");
      CHECK(fake.launches[last].kernel == "fa3_bwd_queries_" + which + "_128x64");
    }
}

TEST_CASE("the backward pass of nothing", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const auto kernels = [&](const Shape& shape) {
    fake.launches.clear(), fake.maps.clear();
    REQUIRE(backward(imaginary_backward(shape)) == FA3_OK);
    std::vector<std::string> names;
    for (const Launch& launch : fake.launches) names.push_back(launch.kernel);
    return names;
  };
  using Names = std::vector<std::string>;
  fake.calls = 0;
  CHECK(kernels({.batch = 0}) == Names{});
  CHECK(fake.calls == 0);
  CHECK(kernels({.seqlen_q = 0}) == Names{"fa3_bwdshort_bf16_d64_full_128x128"});  // dk = dv = 0
  CHECK_FALSE(fake.launches[0].early);
  CHECK(kernels({.heads = 0}) == Names{"fa3_bwdshort_bf16_d64_full_128x128"});
  CHECK(kernels({.seqlen_k = 0}) == Names{"fa3_pass_bwd_prepare_d64"});  // dq = 0
  CHECK(fake.maps.empty());
  CHECK(kernels({.heads = 0, .heads_kv = 0}) == Names{});
  CHECK(kernels({.seqlen_q = 0, .head_dim = 256}) == Names{"fa3_bwd_keys_bf16_d256_full_64x64"});
  CHECK(kernels({.seqlen_k = 0, .head_dim = 256}) == Names{"fa3_pass_bwd_prepare_d256"});
  CHECK(fake.maps.empty());
  kernels({.batch = 1, .seqlen_q = 70, .seqlen_k = 0, .heads = 300, .heads_kv = 300});
  CHECK(fake.launches.at(0).grid[0] == 300 * 2);
  // Also of many heads, thread blocks round nothing.
  kernels({.batch = 1, .seqlen_q = 0, .seqlen_k = 70, .heads = 300, .heads_kv = 300});
  CHECK(fake.launches.at(0).carried.backward.order.done_behind == 0);
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  const B rowless = imaginary_backward({.batch = 0});
  CHECK(fa3_backward_kernel_info(&rowless, 0, 0, &info) == FA3_OK);
  CHECK((std::string(info.name) == "fa3_bwdshort_bf16_d64_full_128x128" && info.launches == 0 && info.grid == 0));
  CHECK(info.multiprocessors == 132);
}

TEST_CASE("the backward pass runs on the smallest head dimension that holds the problem's, or by name",
          "[launch][backward]") {
  FakeCuda& fake = fresh();
  for (const int64_t head_dim : {8, 64, 72, 128}) {
    B p = imaginary_backward({.seqlen_k = 200, .head_dim = head_dim});
    REQUIRE(backward(p) == FA3_OK);
    CHECK(fake.launches[fake.launches.size() - 2].kernel ==
          (head_dim <= 64 ? "fa3_bwd_bf16_d64_full_128x128" : "fa3_bwd_bf16_d128_full_64x128"));
    p.kernel = "fa3_bwd_bf16_d128_full_64x128";
    REQUIRE(backward(p) == FA3_OK);
    CHECK(fake.launches[fake.launches.size() - 2].kernel == p.kernel);
    p.flags = FA3_FLAG_DETERMINISTIC;
    CHECK(fa3_backward_check(&p) == FA3_OK);
    // Of two that differ, the larger one counts.
    for (const auto& [d, dv] : {std::pair<int64_t, int64_t>{head_dim, 8}, {8, head_dim}}) {
      p = imaginary_backward({.seqlen_k = 200, .head_dim = d, .head_dim_v = dv});
      REQUIRE(backward(p) == FA3_OK);
      CHECK(fake.launches[fake.launches.size() - 2].kernel ==
            (head_dim <= 64 ? "fa3_bwd_bf16_d64_full_128x128" : "fa3_bwd_bf16_d128_full_64x128"));
      p.kernel = "fa3_bwd_bf16_d64_full_128x128";
      CHECK(backward(p) == (head_dim <= 64 ? FA3_OK : invalid));
    }
  }
  const B many = imaginary_backward({.batch = 1 << 20, .seqlen_q = 1, .seqlen_k = 1, .heads = 4096, .heads_kv = 1});
  CHECK(fa3_backward_check(&many) == unsupported);
}

TEST_CASE("rows and blocks that the backward kernels cannot count are refused", "[launch][backward]") {
  const auto check = [](const Shape& shape) {
    const B p = imaginary_backward(shape);
    return fa3_backward_check(&p);
  };
  // A tile of 64 rows for each head.
  constexpr int64_t tiles = INT32_MAX / 64, blocks = INT32_MAX / 2;
  CHECK(check({.batch = 1, .seqlen_q = 1, .seqlen_k = 1, .heads = tiles, .heads_kv = 1, .head_dim = 72}) == FA3_OK);
  CHECK(check({.batch = 1, .seqlen_q = 1, .seqlen_k = 1, .heads = tiles + 1, .heads_kv = 1, .head_dim = 72}) ==
        unsupported);
  expect_message("q has 1 * 33554432 heads of 1 tiles of 64 rows, k 1 blocks of keys for each of its heads; the "
                 "kernels count up to 2147483647 rows and 1073741823 blocks in all");
  // A block of keys for each, and no rows.
  CHECK(check({.batch = 1, .seqlen_q = 0, .seqlen_k = 1, .heads = blocks, .heads_kv = blocks, .head_dim = 8}) ==
        FA3_OK);
  CHECK(check({.batch = 1, .seqlen_q = 0, .seqlen_k = 1, .heads = blocks + 1, .heads_kv = blocks + 1,
               .head_dim = 8}) == unsupported);
  // Rows are counted in tiles of 64 and 128, as the kernel takes them.
  for (const auto& [seqlen_q, head_dim] : {std::pair{65, 72}, {1, 64}, {128, 64}, {65, 256}}) {
    CHECK(check({.batch = 1, .seqlen_q = seqlen_q, .seqlen_k = 1, .heads = tiles / 2, .heads_kv = 1,
                 .head_dim = head_dim}) == FA3_OK);
    CHECK(check({.batch = 1, .seqlen_q = seqlen_q, .seqlen_k = 1, .heads = tiles / 2 + 1, .heads_kv = 1,
                 .head_dim = head_dim}) == unsupported);
  }
}

}  // namespace fa3::test
