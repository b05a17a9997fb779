// The benchmark's arithmetic and reports, with made-up results.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <stdexcept>

#include "check.h"
#include "options.h"
#include "params.h"
#include "random.h"
#include "report.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

static Options parse(std::vector<std::string> arguments) {
  std::vector<char*> argv = {nullptr};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return Options::parse(int(argv.size()), argv.data());
}

static std::string printed(const Report& report, void (Report::*print)(FILE*) const) {
  char* text = nullptr;
  size_t size = 0;
  FILE* file = open_memstream(&text, &size);
  (report.*print)(file);
  std::fclose(file);
  const std::string result(text, size);
  std::free(text);
  return result;
}

TEST_CASE("the default grid is the paper's") {
  const auto points = parse({}).grid.points();
  CHECK(points.size() == 2 * 3 * 2 * 6);
  for (const Point& p : points) {
    CHECK(p.batch * p.seqlen == 16384);
    CHECK(p.heads * p.head_dim == 2048);
    CHECK_THAT(p.flop(), WithinRel((p.causal ? 2.0 : 4.0) * 16384 * 2048 * double(p.seqlen), 1e-12));
  }
}

TEST_CASE("single points and wrong options") {
  const auto points = parse({"--dtype", "bf16", "--head-dim=128", "--causal", "1", "--batch", "2", "--seqlen", "100",
                             "--seqlen-k", "300", "--heads", "8", "--kv-heads", "2"})
                          .grid.points();
  REQUIRE(points.size() == 1);
  CHECK(points[0].label() == "bf16 d128 causal batch 2 seqlen 100 heads 8/2 seqlen_k 300");
  CHECK(points[0].visible_keys(0) == 201);
  CHECK_THAT(points[0].flop(), WithinRel(4.0 * 128 * 8 * 2 * (201 + 300) * 50, 1e-12));
  CHECK(parse({"--filter", "bf16 d64 causal"}).grid.points().size() == 6);
  CHECK_THROWS_AS(parse({"--dtype", "fp8"}), std::invalid_argument);
  CHECK_THROWS_AS(parse({"--reps", "0"}), std::invalid_argument);
  CHECK_THROWS_AS(parse({"--seqlen"}), std::invalid_argument);
  CHECK_THROWS_AS(parse({"--what"}), std::invalid_argument);
}

TEST_CASE("each point runs with each kernel that is asked for, if one fits") {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--dtype=bf16,fp16", "--head-dim=72", "--seqlen=512", "--causal=0,1"});
    return parse(more).grid;
  };
  for (const Point& p : with({}).points()) {
    CHECK(p.kernel.empty());
    CHECK(p.params(nullptr, nullptr, nullptr, nullptr, nullptr).kernel == nullptr);
  }

  // A cell means what the library would choose, where that is of this cell.
  const auto points = with({"--kernel", "fwd"}).points();
  REQUIRE(points.size() == 4);
  for (const Point& p : points) {
    fa3_forward_params params = p.params(nullptr, nullptr, nullptr, nullptr, nullptr);
    fa3_kernel_info chosen = tools::kernel_info();
    CHECK(params.kernel == p.kernel);
    params.kernel = nullptr;
    REQUIRE(fa3_forward_kernel_info(&params, 132, 0, &chosen) == FA3_OK);
    CHECK(p.kernel == chosen.name);
    CHECK_THAT(p.label(), ContainsSubstring(" heads 28/28 " + p.kernel));
    CHECK(p.params(nullptr, nullptr, nullptr, nullptr, nullptr).kernel == p.kernel);
  }

  // A name means itself, for the points that it fits.
  const std::string name = points[1].kernel;
  std::vector<std::string> left_out;
  const auto mixed = with({"--kernel=" + name + ",fwd"}).points(&left_out);
  REQUIRE(mixed.size() == 5);
  CHECK(mixed[1].label() == points[1].label());
  CHECK(mixed[2].label() == points[1].label());
  REQUIRE(left_out.size() == 3);
  CHECK(left_out[0] == "bf16 d72 full batch 32 seqlen 512 heads 28/28: " + name + " has no kernel for it");
  CHECK(with({"--kernel=fwd", "--filter", name}).points().size() == 1);
  CHECK(parse({"--kernel", name, "--head-dim", "256"}).grid.points().empty());

  for (const char* wrong : {"fw", "fwd_bf16", "", "fwd,", "fa3_fwd", "FWD"})
    CHECK_THROWS_WITH(parse({"--kernel", wrong}), ContainsSubstring("no kernel of this build, which has fwd"));
  CHECK_THROWS_AS(parse({"--kernel"}), std::invalid_argument);

  // Every kernel of the build can be asked for, by either name, and fits its own point.
  for (int i = 0; i < fa3_kernel_count(); ++i) {
    fa3_kernel_info info = tools::kernel_info();
    REQUIRE(fa3_kernel_info_at(i, &info) == FA3_OK);
    const std::string full = info.name, cell = full.substr(4, full.find('_', 4) - 4);
    const Point p{fa3_dtype(info.dtype), info.head_dim, info.causal == 1, 1, 512, 512, 1, 1, {}};
    CHECK(fitting_kernel(p, full) == full);
    CHECK(fitting_kernel(p, cell) == full);
    CHECK_THAT(kernel_cells(), ContainsSubstring(cell));
  }
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
  good.point = parse({}).grid.points()[0];
  good.kernel = "fa3_fwd_bf16_d64_full";
  good.checked = true;
  good.add_pass({0.2});
  Result refused = good;
  refused.problem = "k.stride[3] is 2, must be 1";
  report.results = {good, refused};
  const std::string csv = printed(report, &Report::print_csv);
  CHECK_THAT(csv, ContainsSubstring(
                      "direction,dtype,head_dim,causal,batch,seqlen,heads,kv_heads,median_ms,min_ms,tflops,checked,"));
  CHECK_THAT(csv, ContainsSubstring("fwd,bf16,64,0,32,512,32,32,0.20000,0.20000,343.6,1,fa3_fwd_bf16_d64_full,512,"));
  CHECK_THAT(printed(report, &Report::print_json),
             ContainsSubstring("\"A \\\"card\\\"\"") && ContainsSubstring("\"tflops\": 343.60"));
  CHECK_THAT(printed(report, &Report::print_table),
             ContainsSubstring("1071 TFLOP/s") && ContainsSubstring("FAILED: k.stride[3]"));
}

TEST_CASE("the check finds a wrong row, a wrong LSE and an element that was not written") {
  const Point point{FA3_DTYPE_FP16, 64, true, 2, 40, 50, 4, 2, {}};
  std::vector<uint16_t> tensors[4];
  for (int t = 0; t < 4; ++t) {
    tensors[t].resize(size_t(t == 1 || t == 2 ? point.kv_elements() : point.q_elements()));
    tools::fill_normal(uint64_t(t), tensors[t].data(), tensors[t].size(), point.dtype);
  }
  std::vector<float> lse(size_t(point.batch * point.heads * point.seqlen));
  const auto params =
      point.params(tensors[0].data(), tensors[1].data(), tensors[2].data(), tensors[3].data(), lse.data());
  REQUIRE(fa3_reference_forward(&params, 1) == FA3_OK);
  const HostTensors host{tensors[0].data(), tensors[1].data(), tensors[2].data(), tensors[3].data(), lse.data()};
  const auto verdict = [&] { return check_rows(point, host, 2000, 7); };
  CHECK(verdict() == "");
  SECTION("o") {
    tensors[3][12345] ^= 0x40;
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
