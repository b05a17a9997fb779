// How fa3_backward's workspace and launches follow the batch, and rows that see no key.
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "../launches.h"
#include "backward_calls.h"

namespace fa3::test {
TEST_CASE("dq of sequences with one block of keys is stored at once, by kernels of their own", "[launch][backward]") {
  FakeCuda& fake = fresh();
  for (const int64_t head_dim : {64, 128})
    for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}}) {
      B p = imaginary_backward(
          {.batch = 200, .seqlen_q = 300, .seqlen_k = 128, .heads = 6, .heads_kv = 3, .head_dim = head_dim - 8});
      p.flags = flags;
      fake.launches.clear(), fake.maps.clear();
      REQUIRE(backward(p) == FA3_OK);
      REQUIRE(fake.launches.size() == 2);  // no sums, and so no pass that rounds them
      CHECK(fake.launches[1].kernel == (head_dim == 64 ? "fa3_bwdshort_bf16_d64_full_128x128"
                                                       : "fa3_bwdshort_bf16_d128_full_64x128"));
      const BackwardParams& g = fake.launches[1].carried.backward;
      CHECK((g.rows.dq_sums == nullptr && g.visits == nullptr && g.order.dq == DqOrder::any));
      CHECK((g.order.done_behind == 0 && g.counters == 2 * 600 + 1));
      const size_t rows = 200 * 6 * (head_dim == 64 ? 384 : 320);
      CHECK(workspace_of(p) == rows * (4 + 4) + (2 * 600 + 1) * 4);
      const EncodedMap& dq = fake.maps.at(g.dq.opaque[0]);
      CHECK((dq.data == p.dq.data && dq.dim == std::vector<uint64_t>{uint64_t(head_dim - 8), 300, 6, 200}));
      CHECK(dq.box == std::vector<uint32_t>{64, 64, 1, 1});
      // One key more, and blocks add to the same dq.
      p = imaginary_backward(
          {.batch = 2, .seqlen_q = 300, .seqlen_k = 129, .heads = 6, .heads_kv = 3, .head_dim = head_dim});
      p.flags = flags;
      fake.launches.clear();
      REQUIRE(backward(p) == FA3_OK);
      CHECK(fake.launches[1].kernel == (head_dim == 64 ? "fa3_bwd_bf16_d64_full_128x128"
                                                       : "fa3_bwd_bf16_d128_full_64x128"));
      CHECK(fake.launches[1].carried.backward.rows.dq_sums != nullptr);
      p.kernel = "fa3_bwdshort_bf16_d128_full_64x128";
      CHECK(fa3_backward_check(&p) == FA3_ERROR_INVALID_ARGUMENT);
      expect_message("params->kernel is fa3_bwdshort_bf16_d128_full_64x128, which is not a backward kernel for this "
                     "dtype, mask, head_dim, head_dim_v and seqlen_k");
    }
  // The others, by name, sum dq up.
  for (const char* kernel : {"fa3_alg3_bf16_d128_full_64x128", "fa3_bwd_bf16_d128_full_64x128"}) {
    B p = imaginary_backward({.seqlen_q = 70, .seqlen_k = 70, .head_dim = 128});
    p.kernel = kernel;
    fake.launches.clear();
    REQUIRE(backward(p) == FA3_OK);
    CHECK((fake.launches.size() == 3 && fake.launches[1].carried.backward.rows.dq_sums != nullptr));
  }
}

TEST_CASE("of rows that see no key nothing is read, and their dq is zeros", "[launch][backward]") {
  FakeCuda& fake = fresh();
  for (const int64_t head_dim : {64, 256}) {
    B p = imaginary_backward({.batch = 2, .seqlen_q = 300, .seqlen_k = 170, .heads = 4, .heads_kv = 2,
                              .head_dim = head_dim, .head_dim_v = 40});
    p.dlse = p.lse, p.dlse.data = reinterpret_cast<void*>(uintptr_t{10} << 42);
    p.lse.stride[0] = 10000, p.lse.stride[1] = 1, p.lse.stride[2] = 7;
    p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
    fake.launches.clear(), fake.maps.clear();
    REQUIRE(backward(p) == FA3_OK);
    const Launch& first = fake.launches.at(0);
    const BackwardParams& g = first.carried.backward;
    constexpr int64_t empty = 130;
    const auto behind = [&](const fa3_tensor& t, int dim, int size) {
      return static_cast<void*>(static_cast<char*>(t.data) + empty * t.stride[dim] * size);
    };
    CHECK((g.rows.rows == 170 && g.empty.rows == empty && g.empty.tiles == 3));
    CHECK(int64_t{first.grid[0]} == int64_t{g.order.head_tiles} * g.order.batch_heads + 2 * 4 * 3);
    CHECK((g.visible.seqlen_q == 170 && g.visible.seqlen_k == 170 && g.visible.right == 0));
    CHECK((g.rows.o == behind(p.o, 1, 2) && g.rows.dout == behind(p.dout, 1, 2) && g.rows.dq == behind(p.dq, 1, 2)));
    CHECK((g.rows.lse == behind(p.lse, 2, 4) && g.rows.dlse == behind(p.dlse, 2, 4)));
    for (const auto& [map, tensor] : {std::pair{g.q, p.q}, {g.dout, p.dout}}) {
      const EncodedMap& encoded = fake.maps.at(map.opaque[0]);
      CHECK((encoded.data == behind(tensor, 1, 2) && encoded.dim[1] == 170));
    }
    CHECK(fake.maps.at(g.k.opaque[0]).data == p.k.data);
    if (head_dim == 256) CHECK(fake.maps.at(g.dq.opaque[0]).data == behind(p.dq, 1, 2));
    // With the other corner all rows see the first key.
    p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
    fake.launches.clear();
    REQUIRE(backward(p) == FA3_OK);
    const BackwardParams& all = fake.launches.at(0).carried.backward;
    CHECK((all.rows.rows == 300 && all.empty.rows == 0 && all.rows.o == p.o.data));
  }
}

TEST_CASE("many batch entries are worked on in several runs in a bounded workspace", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const Shape shapes[] = {
      {.batch = 20000, .seqlen_q = 160, .seqlen_k = 160, .heads = 8, .heads_kv = 8, .head_dim = 64},
      {.batch = 300, .seqlen_q = 3000, .seqlen_k = 2000, .heads = 16, .heads_kv = 4, .head_dim = 128},
      {.batch = 40000, .seqlen_q = 16, .seqlen_k = 16, .heads = 128, .heads_kv = 16, .head_dim = 128},
      {.batch = 3, .seqlen_q = 300000, .seqlen_k = 129, .heads = 16, .heads_kv = 16, .head_dim = 128},
  };
  for (const Shape& shape : shapes)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
      B p = imaginary_backward(shape);
      p.mask = mask;
      const size_t bytes = workspace_of(p);
      CHECK(bytes < (size_t{3} << 30));
      if (shape.batch > 3) CHECK(bytes < (size_t{1} << 30) + (size_t{1} << 28));
      fake.launches.clear(), fake.maps.clear();
      REQUIRE(backward(p, bytes) == FA3_OK);
      int64_t entries = 0;
      size_t n = 0;
      while (n < fake.launches.size()) {
        const BackwardParams& g = fake.launches[n].carried.backward;
        CHECK(!fake.launches[n].early);  // what is in the workspace is read no more
        CHECK(fake.launches[n].kernel.find("prepare") != std::string::npos);
        const EncodedMap& k = fake.maps.at(g.k.opaque[0]);
        CHECK(k.data == static_cast<char*>(p.k.data) + entries * p.k.stride[0] * 2);
        const int64_t rows = shape.seqlen_q - g.rows.rows;
        CHECK(static_cast<const void*>(g.rows.dq) ==
              static_cast<char*>(p.dq.data) + (entries * p.dq.stride[0] + rows * p.dq.stride[1]) * 2);
        CHECK(g.rows.lse == static_cast<float*>(p.lse.data) + entries * p.lse.stride[0] + rows * p.lse.stride[2]);
        CHECK(static_cast<void*>(g.keys.dv) == static_cast<char*>(p.dv.data) + entries * p.dv.stride[0] * 2);
        entries += int64_t(k.dim.back());
        for (++n; n < fake.launches.size() && fake.launches[n].early; ++n)
          CHECK(std::memcmp(static_cast<const void*>(&fake.launches[n].carried.backward), &g, sizeof g) == 0);
      }
      CHECK(entries == shape.batch);
      fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
      for (size_t i = 0; i < n; ++i) {
        REQUIRE(fa3_backward_kernel_info(&p, 0, int32_t(i), &info) == FA3_OK);
        CHECK((info.launches == int32_t(n) && info.name == fake.launches[i].kernel));
        CHECK(info.grid == int32_t(fake.launches[i].grid[0]));
      }
      CHECK(fa3_backward_kernel_info(&p, 0, int32_t(n), &info) == FA3_ERROR_INVALID_ARGUMENT);
    }
}

TEST_CASE("parts whose last tiles may be of no row leave rows few enough to be counted", "[launch][backward]") {
  FakeCuda& fake = fresh();
  int several = 0;
  for (const int64_t head_dim : {64, 128})
    for (const int64_t seqlen_k : {100, 200})
      for (const int64_t left : {0, 1000, 5000, 100000}) {
        const int64_t seqlen_q = INT32_MAX - 1024 - left;
        const B p = imaginary_backward({.batch = 1, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .heads = 1,
                                        .heads_kv = 1, .head_dim = head_dim});
        fake.launches.clear();
        REQUIRE(backward(p, size_t{1} << 50) == FA3_OK);
        const BackwardParams& g = fake.launches.at(1).carried.backward;
        CHECK(int64_t{g.rows.tiles} * backward_tile_rows <= INT32_MAX);
        CHECK(int64_t{g.rows.tiles} * backward_tile_rows >= seqlen_q);
        several += g.order.ranges > 1;
      }
  CHECK(several == 16);
}

TEST_CASE("sums of two parts have a place, as those of more have", "[launch][backward]") {
  FakeCuda& fake = fresh();
  B p = imaginary_backward(
      {.batch = 1, .seqlen_q = 2048, .seqlen_k = 2048, .heads = 32, .heads_kv = 8, .head_dim = 128});
  p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
  REQUIRE(backward(p, workspace_of(p)) == FA3_OK);
  const BackwardParams& g = fake.launches.at(1).carried.backward;
  REQUIRE(g.order.parts == 2);
  REQUIRE(fake.launches.size() == 3);
  const size_t sums = 2 * (2 * 8) * 2048 * 128 * sizeof(float), rows = 32 * 2048;
  const auto place = [&](const float* p) {
    return reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(workspace_memory);
  };
  CHECK((place(g.keys.sums) == rows * 8 && place(g.rows.dq_sums) == rows * 8 + sums));
  CHECK(workspace_of(p) == rows * (8 + 4 * 128) + sums + (2 * 16 + 1) * 4 + rows / 64 * 4);
}

TEST_CASE("gradients in float32 are stored by a pass, of one part, too", "[launch][backward]") {
  FakeCuda& fake = fresh();
  for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_ACCUMULATE}})
    for (const int64_t seqlen_k : {100, 2048}) {
      const int64_t keys = seqlen_k == 100 ? 128 : 2048;
      B p = imaginary_backward(
          {.batch = 2, .seqlen_q = 2048, .seqlen_k = seqlen_k, .heads = 64, .heads_kv = 64, .head_dim = 128});
      to_fp32(p);
      p.flags = flags;
      const size_t bytes = workspace_of(p);
      fake.launches.clear(), fake.maps.clear();
      REQUIRE(backward(p, bytes) == FA3_OK);
      const auto has = [&](size_t n, const char* name) {
        return fake.launches.at(n).kernel.find(name) != std::string::npos;
      };
      REQUIRE(fake.launches.size() == 3);
      CHECK((has(0, "prepare") && has(1, "fa3_bwd_bf16_d128") && has(2, "finish")));
      const BackwardParams& g = fake.launches[1].carried.backward;
      CHECK(g.rows.store == (flags ? GradientStore::added_fp32 : GradientStore::fp32));
      CHECK((g.order.parts == 1 && g.order.key_sums == 2 && g.order.done_behind == 0 && g.rows.bf16 == 1));
      const int64_t dq_grid = int64_t{fake.launches[2].grid[0]} - 2 * 2 * 64 * keys / 64;
      CHECK((dq_grid == tiles_left(g.order) && dq_grid >= 2 * 64 * 2048 / 64));
      CHECK((static_cast<void*>(g.rows.dq) == p.dq.data && static_cast<void*>(g.keys.dk) == p.dk.data));
      // Nothing is stored by maps of these.
      CHECK((fake.maps.at(g.dk.opaque[0]).data == p.k.data && fake.maps.at(g.dv.opaque[0]).data == p.v.data));
      const size_t rows = 2 * 64 * 2048, sums = size_t{2} * 2 * 64 * size_t(keys) * 128 * sizeof(float);
      CHECK(bytes == rows * (8 + 4 * 128) + sums + (2 * 128 + 1) * 4 + rows / 64 * 4);
      for (fa3_tensor* t : {&p.dq, &p.dk, &p.dv}) t->dtype = FA3_DTYPE_BF16;
      p.flags = 0;
      CHECK(workspace_of(p) < bytes);
    }
  // Zeros are stored, but not added: of rows that see no key, and of keys that nobody sees.
  for (const bool adds : {false, true}) {
    B p = imaginary_backward(
        {.batch = 2, .seqlen_q = 300, .seqlen_k = 170, .heads = 4, .heads_kv = 2, .head_dim = 64});
    to_fp32(p);
    p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.flags = adds ? FA3_FLAG_ACCUMULATE : 0;
    fake.launches.clear();
    REQUIRE(backward(p) == FA3_OK);
    const Launch& first = fake.launches.at(0);
    const KeyOrder& order = first.carried.backward.order;
    CHECK(int64_t{first.grid[0]} == int64_t{order.head_tiles} * order.batch_heads + (adds ? 0 : 2 * 4 * 3));
    p = imaginary_backward({.batch = 2, .seqlen_q = 0, .seqlen_k = 170, .heads = 4, .heads_kv = 2, .head_dim = 64});
    to_fp32(p);
    p.flags = adds ? FA3_FLAG_ACCUMULATE : 0;
    fake.launches.clear();
    REQUIRE(backward(p) == FA3_OK);
    CHECK(fake.launches.size() == (adds ? 0 : 2));
  }
  // The batch is worked on in several runs sooner, so that sums of dk and dv do not make the workspace larger.
  B p = imaginary_backward(
      {.batch = 300, .seqlen_q = 200, .seqlen_k = 4000, .heads = 16, .heads_kv = 16, .head_dim = 128});
  to_fp32(p);
  CHECK(workspace_of(p) < (size_t{1} << 30) + (size_t{1} << 28));
  // So many keys that the last pass's thread blocks could not be counted.
  p = imaginary_backward(
      {.batch = 16000000, .seqlen_q = 1, .seqlen_k = 2049, .heads = 1, .heads_kv = 1, .head_dim = 8});
  CHECK(fa3_backward_check(&p) == FA3_OK);
  to_fp32(p);
  CHECK(fa3_backward_check(&p) == FA3_ERROR_UNSUPPORTED);
  expect_message("the kernels count up to 2147483647 rows and 268435455 blocks in all");
}

}  // namespace fa3::test
