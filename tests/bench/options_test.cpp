// Words of the command line: the protocol, kernels, and what is refused.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <stdexcept>

#include "../../tools/fa3-bench/points/kernels.h"
#include "bench_test.h"
#include "params.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;

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
      {{"--batches", "batches.txt"}, "batches.txt"},
      {{"--batches", "-"}, "no file's name"},
      {{"--batches", "none.json"}, "none.json cannot be read"},
      {{"--page", "0"}, "\"0\""},
      {{"--window", "-1"}, "\"-1\""},
      {{"--window", "5", "--chunk", "5"}, "a window or a chunk"},
      {{"--softcap", "0"}, "\"0\""},
      {{"--softcap", "x"}, "\"x\""},
      {{"--sinks=1"}, "--sinks"},
      {{"--set", "grid", "--sinks"}, "--set has no meaning beside --sinks"},
      {{"--overhead", "--alibi"}, "--alibi"},
      {{"--append", "--cold"}, "--cold"},
      {{"--list", "--plan-in-call"}, "--plan-in-call"},
      {{"--direction", "bwd", "--page", "16"}, "pages have no backward pass"},
      {{"--direction", "bwd", "--e4m3-cache"}, "e4m3 has no backward pass"},
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
    const Names cell_kernels = fitting_kernels(kernels_of_build(Direction::forward), p, cell);
    CHECK(std::count(cell_kernels.begin(), cell_kernels.end(), name) == 1);
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

}  // namespace fa3::bench
