// The benchmark's arithmetic and reports, with made-up results.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "bench_test.h"
#include "check.h"
#include "fp8.h"
#include "half.h"
#include "kernels.h"
#include "plans.h"
#include "params.h"
#include "random.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

TEST_CASE("the default is the paper's grid, in bf16") {
  const auto points = points_of({});
  CHECK(points.size() == 3 * 2 * 6);
  for (const Point& p : points) {
    CHECK(p.dtype == FA3_DTYPE_BF16);
    CHECK(p.batch * p.seqlen == 16384);
    CHECK(p.heads * p.head_dim == 2048);
    CHECK_THAT(p.flop(), WithinRel((p.causal ? 2.0 : 4.0) * 16384 * 2048 * double(p.seqlen), 1e-12));
  }
  CHECK(labels(points_of({"--set", "grid"})) == labels(points));
}

TEST_CASE("v may have a head dimension of its own") {
  const auto points = points_of({"--head-dim=192", "--head-dim-v=128", "--seqlen=1024", "--causal=0"});
  REQUIRE(points.size() == 1);
  CHECK_THAT(points[0].label(), ContainsSubstring("bf16 d192x128 full"));
  CHECK_THAT(points[0].flop(), WithinRel(2.0 * 16 * 1024 * 1024 * double(points[0].heads) * (192 + 128), 1e-12));
  const fa3_forward_params forward = points[0].shapes();
  const fa3_backward_params backward = points[0].backward_shapes();
  CHECK((forward.q.dim[3] == 192 && forward.k.dim[3] == 192 && forward.v.dim[3] == 128 && forward.o.dim[3] == 128));
  CHECK((backward.dq.dim[3] == 192 && backward.dk.dim[3] == 192 && backward.dv.dim[3] == 128 &&
         backward.dout.dim[3] == 128));
  Point gradients = points[0];
  gradients.direction = Direction::backward;
  CHECK_THAT(gradients.flop() / points[0].flop(), WithinRel((3 * 192 + 2 * 128) / (192.0 + 128), 1e-12));
}

TEST_CASE("sets hold what they are there for") {
  const auto grid = points_of({"--set=grid"}), fp16 = points_of({"--set=fp16"}), extra = points_of({"--set=extra"}),
             table2 = points_of({"--set=table2"});
  CHECK(fp16.size() == 12);
  for (const Point& p : fp16) CHECK((p.dtype == FA3_DTYPE_FP16 && p.head_dim == 128 && p.batch * p.seqlen == 16384));
  CHECK(labels(table2) == std::vector<std::string>{"bf16 d128 full batch 4 seqlen 8448 heads 16/16"});

  CHECK(extra.size() == 15);
  std::set<std::string> different;
  for (const auto& label : labels(extra)) different.insert(label);
  CHECK(different.size() == extra.size());
  for (const auto& label : labels(grid)) CHECK(different.count(label) == 0);
  CHECK(different.count(table2[0].label()) == 1);
  const auto any = [&](const auto& property) { return std::any_of(extra.begin(), extra.end(), property); };
  CHECK(any([](const Point& p) { return p.heads == 4 * p.kv_heads; }));
  CHECK(any([](const Point& p) { return p.heads == 8 * p.kv_heads; }));
  CHECK(any([](const Point& p) { return p.seqlen % 2 == 1; }));
  CHECK(any([](const Point& p) { return p.seqlen == 131072; }));
  for (const int64_t head_dim : {64, 128, 256})
    CHECK(any([=](const Point& p) { return p.head_dim == head_dim && p.batch * p.heads < 10; }));

  const auto few_heads = points_of({"--set=few_heads"});
  for (const Point& p : few_heads) CHECK((p.batch * p.kv_heads <= 10 && p.batch * p.heads <= 32));
  CHECK(std::count_if(few_heads.begin(), few_heads.end(), [](const Point& p) { return p.heads > p.kv_heads; }) == 7);
  for (const auto& label : labels(few_heads)) CHECK(different.insert(label).second);

  auto all = labels(extra);
  for (const auto& label : labels(fp16)) all.push_back(label);
  CHECK(labels(points_of({"--set", "extra,fp16"})) == all);
  CHECK(points_of({"--set", "grid,extra", "--filter", "d64 causal"}).size() == 6 + 2);
}

TEST_CASE("sets of other shapes hold what they are there for, and all of it runs") {
  const auto head_dim = points_of({"--set=head_dim"}), unequal = points_of({"--set=unequal"}),
             short_ones = points_of({"--set=short"}), decode = points_of({"--set=decode"});
  std::set<int64_t> of_grid;
  for (const auto& p : points_of({"--set=grid"})) of_grid.insert(p.head_dim);
  std::set<int64_t> dims, lengths, queries;
  for (const auto& p : head_dim) {
    CHECK(of_grid.count(p.head_dim) == 0);
    CHECK(p.batch * p.seqlen == 16384);
    dims.insert(p.head_dim);
  }
  CHECK(head_dim.size() == dims.size() * 2 * 3);
  CHECK(dims.count(96) + dims.count(192) == 2);
  for (const auto& p : unequal) CHECK(p.v_dim() != p.head_dim);
  CHECK(unequal.size() == 5 * 2 * 2);
  for (const auto& p : short_ones) {
    CHECK(p.seqlen == p.seqlen_k);
    CHECK(p.v_dim() == p.head_dim);
    lengths.insert(p.seqlen);
  }
  CHECK(*lengths.begin() == 16);
  CHECK(*lengths.rbegin() == 577);
  int large = 0;
  for (const auto& p : decode) {
    CHECK(p.seqlen_k >= 2048);
    CHECK(p.causal == (p.seqlen > 1));
    queries.insert(p.seqlen);
    large += 2 * (p.k_elements() + p.v_elements()) >= 500000000;
  }
  CHECK(queries == std::set<int64_t>{1, 4});
  CHECK(large >= 12);
  for (const auto* set : {&head_dim, &unequal, &short_ones, &decode})
    for (const auto& p : *set) CHECK(is_runnable(p));
}

TEST_CASE("a grid of one's own") {
  const auto points = points_of({"--dtype", "bf16", "--head-dim=128", "--causal", "1", "--batch", "2", "--seqlen",
                                 "100", "--seqlen-k", "300", "--heads", "8", "--kv-heads", "2"});
  REQUIRE(points.size() == 1);
  CHECK(points[0].label() == "bf16 d128 causal batch 2 seqlen 100 heads 8/2 seqlen_k 300");
  CHECK(points[0].visible_keys(0) == 201);
  CHECK_THAT(points[0].flop(), WithinRel(4.0 * 128 * 8 * 2 * (201 + 300) * 50, 1e-12));
  CHECK(points_of({"--dtype", "fp16,bf16"}).size() == 72);
  CHECK(labels(points_of({"--dtype", "fp16", "--head-dim", "128"})) == labels(points_of({"--set", "fp16"})));
}

TEST_CASE("points of e4m3 run in every form that is asked for") {
  const auto points = points_of({"--set", "fp8"});
  REQUIRE(points.size() == 2 * 36);
  const auto grid = points_of({});
  for (size_t i = 0; i < points.size(); ++i) {
    CHECK((points[i].dtype == FA3_DTYPE_E4M3 && points[i].scales == Scales::tensor && !points[i].two_level));
    CHECK(points[i].v == (i % 2 ? VForm::tiles : VForm::rows));
    CHECK(points[i].label() == "e4m3" + grid[i / 2].label().substr(4) + (i % 2 ? " v tiles" : " v rows"));
    CHECK(points[i].flop() == grid[i / 2].flop());
  }
  CHECK(labels(points_of({"--dtype", "e4m3"})) == labels(points));
  const auto extra = labels(points_of({"--set", "extra"}));
  const auto fp8extra = labels(points_of({"--set", "fp8extra", "--v", "tiles"}));
  REQUIRE(fp8extra.size() == extra.size());
  for (size_t i = 0; i < extra.size(); ++i) CHECK(fp8extra[i] == "e4m3" + extra[i].substr(4) + " v tiles");

  const auto all = points_of({"--dtype=bf16,e4m3", "--head-dim=64", "--seqlen=100", "--causal=0", "--tokens=200",
                              "--scales=tensor,head,block", "--two-level=0,1", "--v", "tiles,rows", "--kv-heads=4"});
  REQUIRE(all.size() == 1 + 3 * 2 * 2);
  CHECK(all[0].label() == "bf16 d64 full batch 2 seqlen 100 heads 32/4");
  CHECK(all[1].label() == "e4m3 d64 full batch 2 seqlen 100 heads 32/4 v tiles");
  CHECK(all[12].label() == "e4m3 d64 full batch 2 seqlen 100 heads 32/4 v rows scales block two-level");
  std::set<std::string> different;
  for (const auto& label : labels(all)) different.insert(label);
  CHECK(different.size() == all.size());
}

TEST_CASE("a point's parameters have its form") {
  Point p{FA3_DTYPE_E4M3, 64, true, 2, 100, 130, 8, 4, {}};
  float ones[1];
  const auto params = [&] { return p.params(nullptr, nullptr, nullptr, nullptr, nullptr, ones); };
  const auto dims = [](const fa3_tensor& t) { return std::vector<int64_t>(t.dim, t.dim + t.rank); };
  using Dims = std::vector<int64_t>;
  CHECK((params().q.dtype == FA3_DTYPE_E4M3 && params().o.dtype == FA3_DTYPE_BF16 && params().flags == 0));
  CHECK(dims(params().v) == Dims{2, 130, 4, 64});
  for (const fa3_tensor& scale : {params().q_scale, params().k_scale, params().v_scale}) {
    CHECK(dims(scale) == Dims{1, 1, 1});
    CHECK((scale.dtype == FA3_DTYPE_FP32 && scale.data == ones));
  }
  CHECK(p.scale_elements() == 1);
  p.scales = Scales::head, p.v = VForm::tiles, p.two_level = true;
  CHECK(dims(params().q_scale) == Dims{2, 8, 1});
  CHECK(dims(params().v_scale) == Dims{2, 4, 1});
  CHECK(dims(params().v) == Dims{2, 4, 9, 64, 16});
  CHECK(params().v.stride[2] == 64 * 16);
  CHECK(params().flags == FA3_FLAG_TWO_LEVEL);
  p.scales = Scales::block;
  CHECK(dims(params().q_scale) == Dims{2, 8, 2});
  CHECK(dims(params().k_scale) == Dims{2, 4, 3});
  CHECK(dims(params().v_scale) == Dims{2, 4, 3});
  CHECK(p.scale_elements() == 2 * 8 * 2);
  const Point half{FA3_DTYPE_FP16, 64, true, 2, 100, 130, 8, 4, {}};
  CHECK((half.scale_elements() == 0 && half.shapes().q_scale.rank == 0 && half.form().empty()));
}

TEST_CASE("inputs of e4m3 are N(0,1), rounded once") {
  const std::vector<uint8_t> numbers = normal_e4m3(3, 10000);
  float normal[10000];
  tools::normal(3, 0, normal, 10000);
  for (size_t i = 0; i < 10000; ++i) CHECK(numbers[i] == tools::to_e4m3(normal[i]));
}

TEST_CASE("tiles hold V as the header says") {
  const Point p{FA3_DTYPE_E4M3, 48, false, 2, 1, 37, 6, 3, {}, VForm::tiles};
  std::vector<uint8_t> v(size_t(p.k_elements()));
  for (size_t i = 0; i < v.size(); ++i) v[i] = uint8_t(tools::mix(i) % 0x7f + 1);
  const std::vector<uint8_t> tiles = tiles_of(p, v.data());
  REQUIRE(tiles.size() == 2 * 3 * 3 * 48 * 16);
  size_t at = 0;
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 3; ++h)
      for (int g = 0; g < 3; ++g)
        for (int row = 0; row < 48; ++row)
          for (int byte = 0; byte < 16; ++byte, ++at) {
            const int a16 = row / 16, c2 = row / 8 % 2, r = row % 8, q = byte / 4, b2 = byte / 2 % 2, e = byte % 2;
            const int column = 16 * a16 + 2 * r + c2, key = 16 * g + 8 * b2 + 2 * q + e;
            CHECK(tiles[at] == (key < 37 ? v[size_t(((b * 37 + key) * 3 + h) * 48 + column)] : 0));
          }
}

TEST_CASE("the protocol") {
  const Protocol usual = parse({}).protocol;
  CHECK((usual.idle_ms == 100 && usual.warmups == 5 && usual.reps == 30 && usual.passes == 1 && usual.seed == 1));
  const Protocol other = parse({"--idle-ms=0", "--warmups=0", "--reps=2", "--passes", "3", "--seed=0"}).protocol;
  CHECK((other.idle_ms == 0 && other.warmups == 0 && other.reps == 2 && other.passes == 3 && other.seed == 0));
  CHECK(parse({"--progress"}).progress);
  CHECK_FALSE(parse({"--no-progress"}).progress);
}

TEST_CASE("wrong words and missing values are refused by name") {
  const struct {
    std::vector<std::string> arguments;
    const char* named;
  } cases[] = {
      {{"--dtype", "fp8"}, "fp8"},
      {{"--dtype", ""}, "--dtype"},
      {{"--reps", "0"}, "\"0\""},
      {{"--reps", "two"}, "two"},
      {{"--reps", "99999999999"}, "99999999999"},
      {{"--reps", "5", "--reps", "6"}, "--reps"},
      {{"--seqlen"}, "--seqlen"},
      {{"--seqlen", "--list"}, "--list"},
      {{"--seqlen", "512,"}, "--seqlen"},
      {{"--seqlen", "512,,1024"}, "--seqlen"},
      {{"--seqlen", "512", "1024"}, "1024"},
      {{"--seqlen", "-5"}, "-5"},
      {{"--seqlen", "010"}, "010"},
      {{"--seqlen", "0x10"}, "0x10"},
      {{"--seqlen", "1e3"}, "1e3"},
      {{"--causal", "2"}, "2"},
      {{"--causal", "yes"}, "yes"},
      {{"--set", "mine"}, "mine"},
      {{"--set", "grid,"}, "--set"},
      {{"--what"}, "--what"},
      {{"--seq", "512"}, "--seq"},
      {{"what"}, "what"},
      {{""}, "not expected"},
      {{"--list=yes"}, "--list"},
      {{"--clock=0"}, "--clock"},
      {{"--json"}, "--json"},
      {{"--json="}, "--json"},
      {{"--json=yes"}, "yes"},
      {{"--json", "--list"}, "--list"},
      {{"--json=", "--list"}, "--list"},
      {{"--csv", "true"}, "true"},
      {{"--csv", "points.json"}, "points.json"},
      {{"--csv", "--json", "-"}, "--json"},
      {{"--filter", "--list"}, "--list"},
      {{"--filter="}, "--filter"},
      {{"--kernel"}, "--kernel"},
      // What would be passed over.
      {{"--set", "grid", "--seqlen", "512"}, "--seqlen"},
      {{"--list", "--clock"}, "--clock"},
      {{"--list", "--csv", "-"}, "--csv"},
      {{"--list", "--overhead"}, "--overhead"},
      {{"--overhead", "--csv", "-"}, "--csv"},
      {{"--overhead", "--seqlen", "512"}, "--seqlen"},
      {{"--overhead", "--reference"}, "--reference"},
      {{"--append", "--combine"}, "--combine"},
      {{"--append", "--csv", "-"}, "--csv"},
      {{"--combine", "--overhead"}, "--overhead"},
      {{"--combine", "--seqlen", "512"}, "--seqlen"},
      {{"--combine", "--json", "-"}, "--json"},
      {{"--reference", "--json", "-"}, "--json"},
      {{"--reference", "--filter", "d64"}, "--filter"},
      {{"--plan", "--csv", "-"}, "--csv"},
      {{"--plan", "--list"}, "--list"},
      {{"--pieces"}, "--pieces"},
      {{"--multiprocessors", "78"}, "--multiprocessors"},
      {{"--card", "h100"}, "--card has no meaning without --plan"},
      {{"--plan", "--card", "h300"}, "h300"},
      {{"--plan", "--card", "h20", "--multiprocessors", "78"}, "--multiprocessors"},
      {{"--plan", "--card", "h20", "--lengths", "17,300"}, "--lengths"},
      {{"--set", "fp8", "--v", "columns"}, "columns"},
      {{"--set", "fp8", "--scales", "row"}, "row"},
      {{"--set", "fp8", "--two-level", "2"}, "2"},
      {{"--set", "fp8", "--two-level"}, "--two-level"},
      {{"--v", "tiles"}, "--v has no meaning without points of e4m3"},
      {{"--set", "grid,extra", "--scales", "head"}, "--scales has no meaning"},
      {{"--reference", "--two-level", "1"}, "--two-level"},
      {{"--plan", "--multiprocessors", "0"}, "\"0\""},
      {{"--lengths", "17,300"}, "--lengths has no meaning without --plan"},
      {{"--plan", "--lengths-k", "17,300"}, "--lengths-k has no meaning without --lengths"},
      {{"--plan", "--lengths", "17,300", "--lengths-k", "5"}, "--lengths-k has 1 lengths, but --lengths 2"},
      {{"--plan", "--lengths", "17,-1"}, "\"-1\""},
      {{"--plan", "--lengths", "17,"}, "\"\""},
      {{"--plan", "--lengths", "17,300", "--lengths-k", "5,1073741825"}, "\"1073741825\""},
      {{"--plan", "--lengths", "17,300", "--batch", "2"}, "--batch"},
      {{"--plan", "--lengths", "17,300", "--seqlen", "300"}, "--seqlen"},
      {{"--plan", "--lengths", "17,300", "--set", "decode"}, "--set"},
  };
  for (const auto& [arguments, named] : cases) {
    INFO(CLI::detail::join(arguments, " "));
    CHECK_THROWS_AS(parse(arguments), std::invalid_argument);
    CHECK_THROWS_WITH(parse(arguments), ContainsSubstring(named));
  }
}

TEST_CASE("a first cell means all kernels of it with the smallest head_dim that fits, a name itself") {
  const auto row = [](const char* name, fa3_dtype dtype, int head_dim, bool causal) {
    fa3_kernel_info info = tools::kernel_info();
    std::snprintf(info.name, sizeof info.name, "%s", name);
    info.dtype = dtype, info.head_dim = info.head_dim_v = head_dim, info.causal = causal;
    return info;
  };
  const std::vector<fa3_kernel_info> table = {row("fa3_fwd_bf16_d256_full_128x64", FA3_DTYPE_BF16, 256, false),
                                              row("fa3_fwd_bf16_d128_full_192x64", FA3_DTYPE_BF16, 128, false),
                                              row("fa3_fwd_bf16_d128_causal_192x64", FA3_DTYPE_BF16, 128, true),
                                              row("fa3_fwd_bf16_d128_full_128x128", FA3_DTYPE_BF16, 128, false),
                                              row("fa3_fwd_bf16_d64_full_256x64", FA3_DTYPE_BF16, 64, false),
                                              row("fa3_fwd2_bf16_d128_full_64x64", FA3_DTYPE_BF16, 128, false),
                                              row("fa3_fwd_fp16_d128_full_192x64", FA3_DTYPE_FP16, 128, false)};
  const auto fitting = [&](int64_t head_dim, const std::string& wanted) {
    return fitting_kernels(table, {FA3_DTYPE_BF16, head_dim, false, 1, 512, 512, 1, 1, {}}, wanted);
  };
  using Names = std::vector<std::string>;
  CHECK(fitting(128, "fwd") == Names{"fa3_fwd_bf16_d128_full_192x64", "fa3_fwd_bf16_d128_full_128x128"});
  CHECK(fitting(72, "fwd") == fitting(128, "fwd"));
  CHECK(fitting(64, "fwd") == Names{"fa3_fwd_bf16_d64_full_256x64"});
  CHECK(fitting(136, "fwd") == Names{"fa3_fwd_bf16_d256_full_128x64"});
  CHECK(fitting(257, "fwd").empty());
  CHECK(fitting(256, "fwd2").empty());
  CHECK(fitting(128, "fa3_fwd_bf16_d128_full_128x128") == Names{"fa3_fwd_bf16_d128_full_128x128"});
  CHECK(fitting(8, "fa3_fwd_bf16_d256_full_128x64") == Names{"fa3_fwd_bf16_d256_full_128x64"});
  for (const char* other : {"fa3_fwd_bf16_d64_full_256x64", "fa3_fwd_bf16_d128_causal_192x64",
                            "fa3_fwd_fp16_d128_full_192x64", "fa3_fwd_bf16_d128_full", "128x128"})
    CHECK(fitting(128, other).empty());

  // Every kernel of the build can be asked for, by either name.
  for (const fa3_kernel_info& info : kernels_of_build(Direction::forward)) {
    const std::string name = info.name, cell = name.substr(4, name.find('_', 4) - 4);
    const Point p{fa3_dtype(info.dtype), info.head_dim, info.causal == 1, 1, 512, 512, 1, 1, {},
                  VForm::rows, Scales::tensor, false, Direction::forward, false, info.head_dim_v};
    CHECK(fitting_kernels(kernels_of_build(Direction::forward), p, name) == Names{name});
    const Names of_cell = fitting_kernels(kernels_of_build(Direction::forward), p, cell);
    CHECK(std::count(of_cell.begin(), of_cell.end(), name) == 1);
    CHECK((is_kernel(name, Direction::forward) && is_kernel(cell, Direction::forward)));
  }
}

TEST_CASE("each point runs by each kernel that is asked for, if one fits") {
  std::vector<std::string> left_out;
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--dtype=bf16,fp16", "--head-dim=72", "--seqlen=512", "--causal=0,1"});
    left_out.clear();
    return parse(more).selection.points(&left_out);
  };
  for (const Point& p : with({})) {
    CHECK(p.library_chooses());
    CHECK(p.shapes().kernel == nullptr);
  }
  CHECK(labels(with({"--kernel=auto"})) == labels(with({})));
  for (const Point& p : with({"--kernel", "fwd"})) {
    const fa3_forward_params params = p.shapes();
    CHECK(params.kernel == p.kernel);
    CHECK(tools::forward_kernel_info(params, 132).name == p.kernel);
    CHECK_THAT(p.label(), ContainsSubstring(" heads 28/28 " + p.kernel));
  }

  // A name means itself, for the points that it fits.
  const auto all = with({"--kernel=fwd"});
  const auto wanted = [](const Point& p) { return p.dtype == FA3_DTYPE_BF16 && p.causal; };
  const std::string name = std::find_if(all.begin(), all.end(), wanted)->kernel;
  const auto points = with({"--kernel", "auto," + name});
  REQUIRE(points.size() == 5);
  CHECK(points[1].label() == "bf16 d72 causal batch 32 seqlen 512 heads 28/28");
  CHECK(points[2].label() == points[1].label() + " " + name);
  REQUIRE(left_out.size() == 3);
  CHECK(left_out[0] == "bf16 d72 full batch 32 seqlen 512 heads 28/28: " + name + " has no kernel for it");
  CHECK(with({"--kernel=auto,fwd", "--filter", name}).size() == 1);
  CHECK(points_of({"--kernel", name, "--head-dim", "256"}).empty());

  for (const char* wrong : {"fw", "fwd_bf16", "", "fwd,", "fa3_fwd", "FWD", "fa3_auto"})
    CHECK_THROWS_WITH(parse({"--kernel", wrong}), ContainsSubstring("nor a kernel of this build, which has fwd"));
}

TEST_CASE("medians and spreads") {
  Result result;
  result.add_pass({3, 1, 2, 5, 4});
  CHECK(result.median_ms == 3);
  CHECK(result.min_ms == 1);
  CHECK_THAT(result.spread, WithinRel((4.6 - 1.4) / 3, 1e-12));
  result.add_pass({2, 2, 2, 2, 2});
  CHECK(result.median_ms == 2.5);
  CHECK(result.min_ms == 1);
  CHECK_THAT(result.spread, WithinRel(1 / 2.5, 1e-12));
}

TEST_CASE("reports") {
  Report report;
  report.device.name = "A \"card\"";
  report.device.sms = 132;
  report.device.max_clock_khz = 1980000;
  Result good;
  good.point = points_of({})[0];
  good.kernel = "fa3_fwd_bf16_d64_full_256x64";
  good.checked = true;
  good.add_pass({0.2});
  Result refused;
  refused.point = good.point;
  refused.problem = "k.stride[3] is 2, must be 1";
  report.results = {good, refused};
  CHECK(printed(report, &Report::print_csv) ==
        "direction,dtype,head_dim,causal,batch,seqlen,heads,kv_heads,median_ms,min_ms,tflops,checked,seqlen_k,kernel,"
        "spread,passes,reps,v,scales,two_level,head_dim_v\n"
        "fwd,bf16,64,0,32,512,32,32,0.20000,0.20000,343.6,1,512,fa3_fwd_bf16_d64_full_256x64,0.0000,1,30,rows,,0,64\n"
        "fwd,bf16,64,0,32,512,32,32,,,,0,512,,,1,30,rows,,0,64\n");
  CHECK_THAT(printed(report, &Report::print_table),
             ContainsSubstring("1071 TFLOP/s") && ContainsSubstring("FAILED: k.stride[3]"));

  const auto json = nlohmann::json::parse(printed(report, &Report::print_json));
  CHECK(json["device"] == report.device.name);
  CHECK(json["protocol"]["reps"] == 30);
  CHECK_FALSE(json.contains("host_overhead_us"));
  CHECK(json["points"][0]["tflops"] == good.tflops());
  CHECK(json["points"][0]["pass_median_ms"] == std::vector<double>{0.2});
  CHECK(json["points"][1]["problem"] == refused.problem);
  report.device.name = "\xff";  // no UTF-8
  report.overhead = tools::Overhead{3.5, 3, 5, 2.5, 4096};
  CHECK(nlohmann::json::parse(printed(report, &Report::print_json))["host_overhead_us"]["median"] == 3.5);

  // The list says of a point and the protocol what the report says, and which columns the CSV has.
  const auto list = nlohmann::json::parse(printed(report, &Report::print_list));
  CHECK(list["protocol"] == json["protocol"]);
  for (const auto& [key, value] : list["points"][0].items()) CHECK(json["points"][0][key] == value);
  CHECK(list["points"][0]["label"] == good.point.label());
  CHECK(list["points"][0]["flop"] == good.point.flop());
  CHECK(list["points"][0]["library_chooses"] == true);
  CHECK((list["points"][0]["v"] == "rows" && list["points"][0]["scales"] == ""));
  CHECK(printed(report, &Report::print_csv).rfind(std::string(list["csv_columns"]) + "\n", 0) == 0);
}

TEST_CASE("reports tell the forms of e4m3 apart, and its peak is twice that of 16 bits") {
  Report report;
  report.device.sms = 132;
  report.device.max_clock_khz = 1980000;
  const auto points = points_of({"--set=fp8,grid", "--scales=block", "--two-level=1", "--filter=d64 full batch 1 "});
  for (const Point& p : points) {
    Result& result = report.results.emplace_back();
    result.point = p;
    result.add_pass({2});
  }
  REQUIRE(report.results.size() == 3);
  const std::string csv = printed(report, &Report::print_csv);
  CHECK_THAT(csv, ContainsSubstring("fwd,e4m3,64,0,1,16384,32,32,2.00000,2.00000,1099.5,0,16384,,0.0000,1,30,"
                                    "rows,block,1,64\n"));
  CHECK_THAT(csv, ContainsSubstring(",1,30,tiles,block,1,64\n") && ContainsSubstring(",1,30,rows,,0,64\n"));
  CHECK_THAT(printed(report, &Report::print_table), ContainsSubstring(" v tiles scales block two-level\n"));
  const auto json = nlohmann::json::parse(printed(report, &Report::print_json));
  CHECK_THAT(json["points"][0]["peak_share"], WithinRel(double(json["points"][2]["peak_share"]) / 2, 1e-9));
  CHECK((json["points"][1]["v"] == "tiles" && json["points"][1]["scales"] == "block"));
  CHECK(json["points"][1]["two_level"] == true);
}

TEST_CASE("a plan names the library's kernel, or why it has none") {
  const auto plan = planned(points_of({"--head-dim=64,1000", "--causal=0", "--seqlen=512", "--kernel=auto"}), 132);
  REQUIRE(plan.size() == 2);
  CHECK_THAT(plan[0].kernel, ContainsSubstring("_bf16_d64_full"));
  CHECK(plan[0].problem.empty());
  CHECK(plan[1].kernel.empty());
  CHECK_THAT(plan[1].problem, ContainsSubstring("dim[3]"));
}

TEST_CASE("plans show every kernel that fits, the one that is taken and its pieces") {
  const std::vector<Point> points =
      points_of({"--head-dim=128", "--causal=1", "--seqlen=4096", "--batch=1", "--heads=4"});
  const std::string plans = show_plans(points, assumed_card(132), true).text;
  size_t lines = 0, stars = 0;
  for (const fa3_kernel_info& info : kernels_of_build(Direction::forward)) {
    const size_t at = plans.find(std::string(" ") + info.name + " ");
    if (at == std::string::npos) continue;
    ++lines;
    CHECK((info.dtype == FA3_DTYPE_BF16 && info.head_dim == 128 && info.causal == 1 && info.chosen == 1));
    const bool taken = plans[at - 1] == '*';
    stars += taken;
    const fa3_forward_params params = points[0].shapes();
    CHECK((tools::forward_kernel_info(params, 132).name == std::string(info.name)) == taken);
  }
  CHECK((lines == 2 && stars == 1));
  CHECK_THAT(plans,
             ContainsSubstring("part 1 of 2") && ContainsSubstring("part 2 of 2") && ContainsSubstring("tiles 0 to 3"));
  CHECK_THAT(show_plans(points, assumed_card(132), false).text, !ContainsSubstring("part 1"));
  const Plans some =
      show_plans(points_of({"--head-dim=64,1000", "--causal=0", "--seqlen=512"}), assumed_card(132), true);
  CHECK_THAT(some.text, ContainsSubstring("q.dim[3]"));
  CHECK(some.refused == 1);
  CHECK(parse({"--plan", "--pieces", "--multiprocessors=78"}).multiprocessors == 78);
}

TEST_CASE("plans of decoding follow from the card") {
  const std::vector<Point> points = points_of(
      {"--head-dim=128", "--causal=0", "--seqlen=1", "--seqlen-k=30000", "--batch=12", "--heads=28", "--kv-heads=4"});
  std::set<std::string> plans;
  for (const NamedCard& known : known_cards) {
    CHECK(parse({"--plan", std::string("--card=") + known.name}).card == known.name);
    plans.insert(show_plans(points, known.card, true).text);
  }
  CHECK(plans.size() == std::size(known_cards));
  CHECK_THAT(show_plans(points, known_cards[0].card, false).text, ContainsSubstring("with 3.35 TB/s of memory"));
}

TEST_CASE("plans of packed sequences show what the device would make of their lengths") {
  const auto plan = [](std::vector<std::string> arguments, bool pieces) {
    for (const char* word : {"--plan", "--head-dim=128", "--heads=8", "--kv-heads=2"}) arguments.push_back(word);
    const Options options = parse(arguments);
    return show_plans(options.selection.points(), {options.lengths, options.lengths_k}, 132, pieces);
  };
  const Plans causal = plan({"--lengths=17,4096,300,0", "--causal=1"}, true);
  CHECK(causal.refused == 0);
  CHECK_THAT(causal.text, ContainsSubstring("\nbf16 d128 causal lengths 17,4096,300,0 heads 8/2\n") &&
                              ContainsSubstring("\n* fa3_fwdserved_bf16_d128_window_192x64         192x64       200     248") &&
                              ContainsSubstring("each for 8 heads:\n    sequence 1, query block") &&
                              ContainsSubstring("\n    sequence 2, query block 0, blocks 0 to 1\n") &&
                              ContainsSubstring("\n    sequence 0, query block 0, blocks 0 to 0\n") &&
                              ContainsSubstring("query blocks 15 to 20, blocks 0 to 47, part 1 of 2\n") &&
                              !ContainsSubstring("sequence 3"));
  // Heads of one K/V head are packed.
  const Plans decode = plan({"--lengths=1,1,1", "--lengths-k=131072,0,300", "--causal=0"}, true);
  CHECK_THAT(decode.text, ContainsSubstring("lengths 1,1,1 heads 8/2 lengths_k 131072,0,300\n") &&
                              ContainsSubstring("each for 2 heads:\n    sequence 0, query block 0, blocks ") &&
                              ContainsSubstring("\n    sequence 0, query block 0, blocks 0 to 48, part 1 of 42\n") &&
                              ContainsSubstring("\n    sequence 2, query block 0, blocks 0 to 4\n") &&
                              ContainsSubstring("\n    sequence 1, query block 0, blocks 0 to 0\n"));
  const Plans full = plan({"--lengths=1000,4096", "--causal=0"}, true);
  CHECK_THAT(full.text, ContainsSubstring("\n    sequence 1, query blocks 0 to 31, blocks 0 to 31\n"));
  CHECK_THAT(plan({"--lengths=1000,4096", "--causal=0"}, false).text, !ContainsSubstring("sequence 1"));
  CHECK(plan({"--lengths=0,0", "--causal=0"}, true).refused == 0);
  const Plans many = plan({"--lengths=1,1", "--lengths-k=700000000,700000000", "--causal=0"}, false);
  CHECK(many.refused == 1);
  CHECK_THAT(many.text, ContainsSubstring("\n  the lengths are too many: "));
}

TEST_CASE("the check of e4m3 finds errors beyond its roundings") {
  const Point point{FA3_DTYPE_E4M3, 64, true, 2, 40, 50, 4, 2, {}};
  std::vector<uint8_t> inputs[3];
  std::vector<float> floats[3];
  for (int t = 0; t < 3; ++t) {
    inputs[t] = normal_e4m3(uint64_t(t), size_t(t ? point.k_elements() : point.q_elements()));
    for (const uint8_t bits : inputs[t]) floats[t].push_back(tools::from_e4m3(bits));
  }
  std::vector<uint16_t> o(size_t(point.q_elements()));
  std::vector<float> lse(size_t(point.batch * point.heads * point.seqlen));
  Point exact = point;
  exact.dtype = FA3_DTYPE_FP32;
  auto params = exact.params(floats[0].data(), floats[1].data(), floats[2].data(), o.data(), lse.data(), nullptr);
  params.o.dtype = FA3_DTYPE_BF16;
  REQUIRE(fa3_reference_forward(&params, 1) == FA3_OK);
  const HostTensors host{inputs[0].data(), inputs[1].data(), inputs[2].data(), o.data(), lse.data()};
  const auto verdict = [&] { return check_rows(point, host, 2000, 7); };
  const auto change = [&](size_t at, float by) { o[at] = tools::to_bf16(tools::from_bf16(o[at]) + by); };
  CHECK(verdict() == "");
  float largest = 0;
  for (size_t i = 64 * 100; i < 64 * 101; ++i) largest = std::max(largest, std::abs(tools::from_bf16(o[i])));
  SECTION("an error of e4m3") {
    change(64 * 100, largest / 10);
    CHECK(verdict() == "");
  }
  SECTION("o") {
    change(64 * 100, largest / 6);
    CHECK_THAT(verdict(), ContainsSubstring("o of batch"));
  }
  SECTION("lse") {
    lse[100] += 1e-2f;
    CHECK_THAT(verdict(), ContainsSubstring("lse of batch"));
  }
}

TEST_CASE("the check finds a wrong row, a wrong LSE and an element that was not written") {
  Point point{FA3_DTYPE_FP16, 64, true, 2, 40, 50, 4, 2, {}};
  point.head_dim_v = GENERATE(0, 24, 128);
  std::vector<uint16_t> tensors[4];
  for (int t = 0; t < 4; ++t) {
    tensors[t].resize(size_t(t == 0   ? point.q_elements()
                             : t == 1 ? point.k_elements()
                             : t == 2 ? point.v_elements()
                                      : point.o_elements()));
    tools::fill_normal(uint64_t(t), tensors[t].data(), tensors[t].size(), point.dtype);
  }
  std::vector<float> lse(size_t(point.batch * point.heads * point.seqlen));
  const auto params =
      point.params(tensors[0].data(), tensors[1].data(), tensors[2].data(), tensors[3].data(), lse.data(), nullptr);
  REQUIRE(fa3_reference_forward(&params, 1) == FA3_OK);
  const HostTensors host{tensors[0].data(), tensors[1].data(), tensors[2].data(), tensors[3].data(), lse.data()};
  const auto verdict = [&] { return check_rows(point, host, 2000, 7); };
  CHECK(verdict() == "");
  SECTION("o") {
    tensors[3][1234] ^= 0x4000;
    CHECK_THAT(verdict(), ContainsSubstring("o of batch"));
  }
  SECTION("lse") {
    lse[100] += 1e-3f;
    CHECK_THAT(verdict(), ContainsSubstring("lse of batch"));
  }
  SECTION("not written") {
    tensors[3][7] = 0xffff;
    CHECK_THAT(verdict(), ContainsSubstring("not written"));
  }
}

}  // namespace fa3::bench
