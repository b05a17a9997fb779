// Points of the backward pass: the command line's words for them, their parameters and kernels, and their reports.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "../../tools/fa3-bench/points/kernels.h"
#include "bench_test.h"
#include "params.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;
using Words = std::vector<std::string>;

static Words backward(Words more) {
  more.insert(more.begin(), {"--direction", "bwd"});
  return more;
}

static std::vector<Point> backward_points(Words more) { return points_of(backward(std::move(more))); }

TEST_CASE("the backward pass has the forward's points, with 2.5 times the FLOPs") {
  for (const Words& words : {Words{}, Words{"--set", "grid,fp16,extra"}, Words{"--seqlen=100", "--seqlen-k=300"}}) {
    const auto forward = points_of(words), points = backward_points(words);
    REQUIRE(points.size() == forward.size());
    for (size_t i = 0; i < points.size(); ++i) {
      CHECK(points[i].is_backward());
      CHECK_FALSE(forward[i].is_backward());
      CHECK(points[i].label() == "bwd " + forward[i].label());
      CHECK(points[i].flop() == 2.5 * forward[i].flop());
    }
  }
  CHECK(labels(points_of({"--direction", "fwd"})) == labels(points_of({})));
}

TEST_CASE("what has no backward pass is refused") {
  const struct {
    Words words;
    const char* named;
  } cases[] = {
      {{"--set", "fp8"}, "bwd e4m3 d64 full batch 32 seqlen 512 heads 32/32 v rows: e4m3 has no backward pass"},
      {{"--set", "grid,fp8extra", "--kernel", "bwd"}, "e4m3 has no backward pass"},
      {{"--dtype", "bf16,e4m3"}, "e4m3 has no backward pass"},
      {{"--v", "tiles"}, "--v has no meaning"},
      {{"--plan"}, "--plan has no meaning beside --direction"},
      {{"--overhead"}, "--overhead has no meaning beside --direction"},
      {{"--reference"}, "--reference has no meaning beside --direction"},
      {{"--direction", "fwd"}, "--direction"},
  };
  for (const auto& [words, named] : cases) {
    CHECK_THROWS_AS(parse(backward(words)), std::invalid_argument);
    CHECK_THROWS_WITH(parse(backward(words)), ContainsSubstring(named));
  }
  CHECK_THROWS_WITH(parse({"--direction", "both"}), ContainsSubstring("both"));
  CHECK_THROWS_WITH(parse({"--deterministic"}), ContainsSubstring("--deterministic has no meaning without"));
}

TEST_CASE("parameters of the backward pass are those of the forward pass, and its gradients") {
  Point p{FA3_DTYPE_FP16, 64, true, 2, 100, 130, 8, 4, "fa3_bwd_some"};
  p.direction = Direction::backward;
  char memory[9];
  const fa3_forward_params forward = p.params({&memory[0], &memory[1], &memory[2], &memory[3], &memory[4]});
  CHECK(forward.kernel == nullptr);  // the name is of a backward kernel
  const fa3_backward_params params = p.backward_params(forward, {&memory[5], &memory[6], &memory[7], &memory[8]});
  const auto same = [](const fa3_tensor& tensor, const fa3_tensor& shape, const char* data) {
    return tensor.data == data && tensor.dtype == shape.dtype && tensor.rank == shape.rank &&
           std::equal(tensor.dim, tensor.dim + tensor.rank, shape.dim) &&
           std::equal(tensor.stride, tensor.stride + tensor.rank, shape.stride);
  };
  CHECK((same(params.q, forward.q, &memory[0]) && same(params.dq, forward.q, &memory[6])));
  CHECK((same(params.k, forward.k, &memory[1]) && same(params.dk, forward.k, &memory[7])));
  CHECK((same(params.v, forward.v, &memory[2]) && same(params.dv, forward.v, &memory[8])));
  CHECK((same(params.o, forward.o, &memory[3]) && same(params.dout, forward.o, &memory[5])));
  CHECK(same(params.lse, forward.lse, &memory[4]));
  CHECK((params.mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT && params.flags == 0 && params.dlse.rank == 0));
  CHECK(params.kernel == p.kernel);
  p.deterministic = true;
  CHECK(p.backward_shapes().flags == FA3_FLAG_DETERMINISTIC);
  p.kernel.clear();
  CHECK(p.backward_shapes().kernel == nullptr);

  const auto points = backward_points({"--deterministic", "--seqlen", "512"});
  for (const Point& point : points) {
    CHECK(point.backward_shapes().flags == FA3_FLAG_DETERMINISTIC);
    CHECK_THAT(point.label(), Catch::Matchers::EndsWith(" deterministic"));
  }
}

TEST_CASE("kernels of the backward pass are asked for by name and first cell, but for those of dq alone and of lengths") {
  Words left_out;
  const auto with = [&](const Words& more) {
    left_out.clear();
    return parse(backward(more)).selection.points(&left_out);
  };
  const auto kernels = kernels_of_build(Direction::backward);
  for (const fa3_kernel_info& info : kernels) {
    const std::string name = info.name, cell = name.substr(4, name.find('_', 4) - 4);
    const bool runs_no_point = name.rfind("fa3_bwd_queries", 0) == 0 || name.rfind("fa3_bwdplanned", 0) == 0;
    CHECK((info.kind == FA3_KERNEL_BACKWARD && is_kernel(name, Direction::backward)));
    CHECK_FALSE(is_kernel(name, Direction::forward));
    const char* const seqlen = cell == "bwdshort" ? "--seqlen=128" : "--seqlen=512";
    const Words shape = {"--dtype", info.dtype == FA3_DTYPE_BF16 ? "bf16" : "fp16", seqlen, "--head-dim",
                         std::to_string(info.head_dim), "--causal", std::to_string(info.causal), "--kernel"};
    for (const std::string& word : {name, cell}) {
      Words words = shape;
      words.push_back(word);
      const auto points = with(words);
      const auto runs = [&](const Point& p) { return p.kernel == name; };
      CHECK(std::count_if(points.begin(), points.end(), runs) == (runs_no_point ? 0 : 1));
      for (const Point& p : points) CHECK(kernel_of(p, 132).name == p.kernel);
    }
  }

  const auto points = with({"--kernel=bwd,auto", "--seqlen=1024", "--causal=1"});
  REQUIRE(points.size() == 6);
  CHECK(points[3].label() == "bwd bf16 d128 causal batch 16 seqlen 1024 heads 16/16");
  CHECK(points[2].label() == points[3].label() + " " + points[2].kernel);
  CHECK((points[3].library_chooses() && !points[2].library_chooses()));
  const auto plan = plan_points(points, 132);
  CHECK((plan[3].kernel == plan[2].kernel && plan[2].kernel == points[2].kernel));
  CHECK_THAT(plan[5].kernel, ContainsSubstring("fa3_bwd_keys_bf16_d256_causal_"));

  const std::string name = points[2].kernel;
  CHECK(with({"--kernel", name, "--seqlen=512"}).size() == 2);  // at d 64 and 128
  REQUIRE(left_out.size() == 4);
  CHECK(left_out[0] == "bwd bf16 d64 full batch 32 seqlen 512 heads 32/32: " + name + " has no kernel for it");
  CHECK_THROWS_WITH(parse(backward({"--kernel", "fwd"})), ContainsSubstring("\"fwd\" is neither auto nor a kernel") &&
                                                              ContainsSubstring(" for --direction bwd"));
  CHECK_THROWS_WITH(parse({"--kernel", "bwd", "--direction", "fwd"}), ContainsSubstring("which has fwd"));
  CHECK(parse({"--kernel", "bwd", "--direction", "bwd"}).selection.points().size() == 36);
}

TEST_CASE("a point that the library refuses says so in the list") {
  const auto plan = plan_points(backward_points({"--head-dim=264,100", "--causal=0", "--seqlen=512"}), 132);
  REQUIRE(plan.size() == 2);
  for (const Result& result : plan) CHECK((result.kernel.empty() && !result.problem.empty()));
  CHECK_THAT(plan[0].problem, ContainsSubstring("fa3_backward_kernel_info: ") && ContainsSubstring("264"));
}

TEST_CASE("reports tell the direction, in the columns of the forward pass") {
  Report report;
  report.device.sms = 132;
  report.device.max_clock_khz = 1980000;
  for (const Point& point : backward_points({"--head-dim=64", "--causal=0", "--deterministic"})) {
    Result& result = report.results.emplace_back();
    result.point = point, result.kernel = "fa3_bwd_some", result.checked = true;
    result.add_pass({0.4});
  }
  const std::string csv = printed(report, &Report::print_csv);
  CHECK_THAT(csv, ContainsSubstring("\nbwd,bf16,64,0,32,512,32,32,0.40000,0.40000,429.5,1,512,fa3_bwd_some,"
                                    "0.0000,1,30,rows,,0,64\n"));
  report.results.resize(2);
  CHECK_THAT(printed(report, &Report::print_table),
             ContainsSubstring("  fa3_bwd_some deterministic\n") &&
                 ContainsSubstring("geometric mean of bwd bf16 d64 full deterministic: "));
  for (const auto print : {&Report::print_json, &Report::print_list}) {
    const auto point = nlohmann::json::parse(printed(report, print))["points"][0];
    CHECK((point["direction"] == "bwd" && point["deterministic"] == true));
    CHECK(point["flop"] == 10.0 * 512 * 512 * 64 * 32 * 32);
  }

  Report forward;
  forward.results = plan_points(points_of({"--head-dim=64"}), 132);
  const std::string forward_csv = printed(forward, &Report::print_csv);
  CHECK(csv.substr(0, csv.find('\n')) == forward_csv.substr(0, forward_csv.find('\n')));
  const auto point = nlohmann::json::parse(printed(forward, &Report::print_list))["points"][0];
  CHECK((point["direction"] == "fwd" && point["deterministic"] == false));
}

}  // namespace fa3::bench
