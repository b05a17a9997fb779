// Row-major V of 8 bits that is made into tiles in the workspace: when, and what is launched for that.
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "../call.h"
#include "../launches.h"

namespace fa3::test {
namespace {

constexpr const char* pass = "fa3_pass_tile_v";

struct Form {
  bool blocks = false, two_level = false;
};

fa3_forward_params grid_point(int64_t seqlen, int32_t mask, int64_t head_dim, Form form = {}, int64_t heads_kv = 0) {
  const int64_t heads = 2048 / head_dim;
  fa3_forward_params p =
      imaginary_e4m3({16384 / seqlen, seqlen, seqlen, heads, heads_kv ? heads_kv : heads, head_dim});
  p.mask = mask;
  if (form.blocks) p.v_scale = tensor(p.v_scale.data, FA3_DTYPE_FP32, {1, 1, seqlen / FA3_SCALE_ROWS});
  if (form.two_level) p.flags = FA3_FLAG_TWO_LEVEL;
  return p;
}

// Kernels of the call's launches, as the library tells them.
std::vector<std::string> launches_of(const fa3_forward_params& p) {
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  std::vector<std::string> names;
  do {
    REQUIRE(fa3_forward_kernel_info(&p, 132, int32_t(names.size()), &info) == FA3_OK);
    names.push_back(info.name);
    CHECK((info.tiles > 0) == (info.kind == FA3_KERNEL_FORWARD));
  } while (int(names.size()) < info.launches);
  CHECK(fa3_forward_kernel_info(&p, 132, int32_t(names.size()), &info) == FA3_ERROR_INVALID_ARGUMENT);
  if (names.size() == 2) expect_message("launch is 2, must be from 0 to 1: the call has 2 launches");
  else expect_message("launch is 1, must be 0: the call has one launch");
  return names;
}
bool is_tiled(const fa3_forward_params& p) {
  const auto names = launches_of(p);
  const bool tiled = names.front() == pass;
  CHECK(names.size() == (tiled ? 2 : 1));
  if (tiled) CHECK(names.back().find("tiles") != std::string::npos);
  return tiled;
}

size_t workspace_of(const fa3_forward_params& p) {
  size_t bytes = 0;
  REQUIRE(fa3_forward_workspace_size(&p, 132, &bytes) == FA3_OK);
  return bytes;
}

}  // namespace

// The lengths are those from which the pass was measured to gain: tests/records/diary/fp8.md.
TEST_CASE("V is made into tiles where that is worth a pass", "[tile_v]") {
  const struct {
    Form form;
    int64_t full, causal;  // the shortest
  } expected[] = {
      {{}, 2048, 4096}, {{true, false}, 2048, 4096}, {{false, true}, 4096, 8192}, {{true, true}, 4096, 8192}};
  for (const auto& [form, full, causal] : expected)
    for (int64_t seqlen = 512; seqlen <= 16384; seqlen *= 2)
      for (const int64_t head_dim : {64, 128, 256})
        for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT}) {
          const fa3_forward_params p = grid_point(seqlen, mask, head_dim, form);
          INFO(form.blocks << form.two_level << " " << head_dim << " " << seqlen << " " << mask);
          const bool tiled = head_dim == 256 && seqlen >= (mask == FA3_MASK_NONE ? full : causal);
          CHECK(is_tiled(p) == tiled);
          // As many bytes as V has, behind what is there anyway.
          const size_t v_bytes = size_t(16384) * 2048;
          CHECK((workspace_of(p) >= v_bytes) == tiled);
          CHECK(workspace_of(p) < v_bytes + (54 << 20));
        }
  // Smaller V sooner.
  CHECK_FALSE(is_tiled(grid_point(1024, FA3_MASK_NONE, 256)));
  CHECK(is_tiled(grid_point(1024, FA3_MASK_NONE, 256, {}, 1)));
}

TEST_CASE("V is not made into tiles if it comes so, if a kernel is named, or in 16 bits", "[tile_v]") {
  const fa3_forward_params p = grid_point(8192, FA3_MASK_NONE, 256);
  REQUIRE(is_tiled(p));
  for (int i = 0; i < 2; ++i) {  // the plans are remembered
    fa3_forward_params named = p;
    named.kernel = "fa3_fwd_e4m3_d256_full_128x64";
    CHECK(launches_of(named) == std::vector<std::string>{named.kernel});
    CHECK(workspace_of(named) < 60 << 20);
    CHECK(is_tiled(p));
  }
  fa3_forward_params tiles = p;
  tiles.v = tensor(p.v.data, FA3_DTYPE_E4M3, {2, 8, 512, 256, 16});
  CHECK_FALSE(is_tiled(tiles));
  CHECK_FALSE(is_tiled(imaginary({2, 8192, 8192, 8, 8, 256})));
  // More tiles than the pass can count, of a V that repeats itself.
  fa3_forward_params many = imaginary_e4m3({1, 8192, int64_t{1} << 30, 64, 64, 256});
  for (fa3_tensor* x : {&many.k, &many.v}) set_strides(*x, {0, 256, 0, 1});
  CHECK_FALSE(is_tiled(many));
}

TEST_CASE("the pass for V and its forward kernel, in full", "[tile_v]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p = imaginary_e4m3({2, 5000, 5005, 6, 3, 240});
  p.v.stride[0] = int64_t{1} << 24, p.v.stride[1] = 512, p.v.stride[2] = int64_t{5} << 20;
  const size_t bytes = workspace_of(p);
  REQUIRE(fa3_forward(&p, workspace_memory, bytes - 1, reinterpret_cast<fa3_stream>(stream)) ==
          FA3_ERROR_WORKSPACE_TOO_SMALL);
  CHECK(fake.launches.empty());
  REQUIRE(fa3_forward(&p, workspace_memory, bytes, reinterpret_cast<fa3_stream>(stream)) == FA3_OK);
  REQUIRE(fake.launches.size() == 2);
  const Launch &first = fake.launches[0], &second = fake.launches[1];
  CHECK(std::vector<std::string>{first.kernel, second.kernel} == launches_of(p));
  CHECK((!first.early && second.early));  // the kernel waits for the pass itself
  CHECK((first.stream == stream && second.stream == stream));

  const TileVParams& t = first.carried.tile_v;
  const int64_t groups = 313, tiles = 2 * 3 * groups;
  CHECK((t.v == p.v.data && t.stride_batch == 1 << 24 && t.stride_row == 512 && t.stride_head == 5 << 20));
  CHECK((t.batch == 2 && t.keys == 5005 && t.head_dim == 240 && t.heads == 3 && t.groups == groups));
  CHECK((first.block[0] == unsigned(row_of(first).threads) && first.grid[1] == 1 && first.grid[2] == 1));
  const unsigned at_once = first.block[0] / 128;  // 128 threads have two columns each
  CHECK(first.grid[0] == (tiles + at_once - 1) / at_once);

  // The last thread block may have fewer.
  const fa3_forward_params odd = imaginary_e4m3({1, 5000, 5005, 6, 3, 240});
  REQUIRE(is_tiled(odd));
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  REQUIRE(fa3_forward_kernel_info(&odd, 132, 0, &info) == FA3_OK);
  CHECK(info.grid == int((3 * groups + at_once - 1) / at_once));

  const uint8_t* const begin = reinterpret_cast<const uint8_t*>(workspace_memory);
  CHECK(t.tiles + tiles * 16 * 240 == begin + bytes);
  CHECK(t.tiles >= begin + FA3_FORWARD_WORKSPACE_BYTES);
  CHECK((t.tiles - begin) % 256 == 0);

  REQUIRE(fake.maps.size() == 3);
  const EncodedMap& map = fake.maps.at(second.params().v.opaque[0]);
  CHECK(map.data == t.tiles);
  CHECK(map.dim == std::vector<uint64_t>{256, 15, 313, 3, 2});
  CHECK(map.stride == std::vector<uint64_t>{256, 3840, 3840 * 313, 3840 * 313 * 3});
}

TEST_CASE("V as tiles stands behind the results of split tiles", "[tile_v]") {
  FakeCuda& fake = fresh();
  int split = 0;
  for (int64_t heads = 1; heads <= 12; ++heads)
    for (const int64_t seqlen_q : {700, 1500, 4100}) {
      const fa3_forward_params p = imaginary_e4m3({1, seqlen_q, 9000, heads, 1, 256});
      if (!is_tiled(p)) continue;
      fake.launches.clear();
      REQUIRE(fa3_forward(&p, workspace_memory, plenty, reinterpret_cast<fa3_stream>(stream)) == FA3_OK);
      const auto& f = fake.launches.back().params();
      const ForwardRow& row = forward_row_of(fake.launches.back());
      int32_t slots = 0;
      for (int32_t n = 0; n < f.pieces.listed; ++n)
        if (f.list[n].parts > 1) slots = std::max<int32_t>(slots, f.list[n].slot + f.list[n].parts);
      split += slots > 0;
      const char* const partials_end =
          static_cast<const char*>(f.partials) + int64_t{slots} * (row.Br / 16) * row.partial_bytes();
      CHECK(partials_end <= reinterpret_cast<const char*>(fake.launches[0].carried.tile_v.tiles));
    }
  CHECK(split > 5);
}

TEST_CASE("nothing is enqueued before all launches of a call are ready", "[tile_v]") {
  const fa3_forward_params p = grid_point(8192, FA3_MASK_NONE, 256);
  FakeCuda& fake = fresh();
  fake.failing = "cuTensorMapEncodeTiled";
  CHECK(fa3_forward(&p, workspace_memory, plenty, nullptr) == FA3_ERROR_CUDA);
  CHECK((fake.launches.empty() && fake.loaded.size() == 2));
  expect_message("cuTensorMapEncodeTiled for q");
}

}  // namespace fa3::test
