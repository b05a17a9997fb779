// The benchmark's arithmetic and reports, with made-up results.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>

#include "bench_test.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

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
  report.device.name = std::string(1, char(0xff));  // no UTF-8
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

}  // namespace fa3::bench
