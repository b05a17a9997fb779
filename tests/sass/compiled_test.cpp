// Machine code that is wrong on purpose (miniature.cu), through the whole way: image, disassembler, loop, contract.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <fstream>

#include "input/images.h"
#include "listings.h"
#include "rules/check.h"
#include "system/text.h"
#include "system/tidy.h"
#include "views/diff.h"

using Catch::Matchers::ContainsSubstring;

namespace {

constexpr const char* contract =
    "rows miniature\n"
    "kernel.parameters == 48\n"
    "kernel.stack == 0\n"
    "kernel.local == 0\n"
    "kernel.hot_loops == 1\n"
    "hot.gemms == QK 4 x 64x16x16 SS, PV 1 x 64x64x16 RS\n"
    "hot.types == F32.BF16\n"
    "hot.groups == 2\n"
    "hot.waits == 1 0\n"
    "hot.serialised == 0\n"
    "hot.touches == 0\n"
    "hot.local == 0\n"
    "hot.exps == 8\n"
    "hot.conversions == 4\n"
    "hot.exps_in_flight >= 1\n"
    "hot.instructions <= 60\n";

std::string cubin(const std::string& name) { return std::string(FA3_CUBINS) + "/" + name + ".cubin"; }

std::vector<std::string> broken(const std::string& name) {
  std::vector<std::string> rules;
  sass::CheckResult result;
  for (const sass::Kernel& kernel : listings::kernels_of(cubin(name)))
    sass::check_contract(sass::read_contract("m", contract), kernel, result);
  for (const sass::Finding& finding : result.findings)
    if (finding.state == sass::Finding::State::broken) rules.push_back(finding.rule);
  return rules;
}

bool has(const std::vector<std::string>& rules, const char* rule) {
  return std::find(rules.begin(), rules.end(), rule) != rules.end();
}

}  // namespace

TEST_CASE("the loop as it should be keeps every rule") { CHECK(broken("good").empty()); }

TEST_CASE("an accumulator touched in flight: serialised") {
  const auto rules = broken("touched");
  CHECK(has(rules, "hot.serialised == 0"));
  CHECK(has(rules, "hot.groups == 2"));
  CHECK_FALSE(has(rules, "hot.local == 0"));
  CHECK_FALSE(has(rules, "hot.gemms == QK 4 x 64x16x16 SS, PV 1 x 64x64x16 RS"));
}

TEST_CASE("registers starved: local memory") {
  const auto rules = broken("starved");
  CHECK(has(rules, "hot.local == 0"));
  CHECK(has(rules, "kernel.local == 0"));
  CHECK(has(rules, "kernel.stack == 0"));
}

TEST_CASE("a wait too early: no exponential in flight, and nothing else") {
  CHECK(broken("early") == std::vector<std::string>{"hot.waits == 1 0", "hot.exps_in_flight >= 1"});
}

TEST_CASE("what changed between two builds") {
  const auto good = listings::kernels_of(cubin("good")), early = listings::kernels_of(cubin("early"));
  const std::string report = sass::diff_text(sass::difference(good.at(0), early.at(0)), {});
  CHECK_THAT(report, ContainsSubstring("exps_in_flight: 1 -> 0") && ContainsSubstring("waits: 1 0 -> 0") &&
                         ContainsSubstring("- WARPGROUP.DEPBAR.LE gsb0, 0x1"));
  CHECK(sass::difference(good[0], good[0]).same());
}

TEST_CASE("images inside other files") {
  const std::string good = sass::read_file(cubin("good")), early = sass::read_file(cubin("early"));
  const std::string file =
      "some bytes \x7f"
      "ELF and more" +
      good + std::string(77, 'x') + early + good;
  const auto images = sass::embedded_images("library", file);
  REQUIRE(images.size() == 2);  // each content once
  CHECK(images[0].bytes == good);
  CHECK(images[1].bytes == early);
  CHECK_THAT(images[0].name, ContainsSubstring("library+0x"));

  const sass::TemporaryFolder folder;
  std::ofstream(folder.path() + "/lib.so", std::ios::binary) << file;
  CHECK(listings::kernels_of(folder.path() + "/lib.so").size() == 2);
  std::ofstream(folder.path() + "/empty.so", std::ios::binary) << "nothing here";
  CHECK_THROWS_WITH(listings::kernels_of(folder.path() + "/empty.so"), ContainsSubstring("no CUDA machine code"));
}

TEST_CASE("a fat binary") {
  const auto kernels = listings::kernels_of(std::string(FA3_CUBINS) + "/good.fatbin");
  REQUIRE(kernels.size() == 1);
  CHECK(listings::only_hot(kernels[0]).gemms == "QK 4 x 64x16x16 SS, PV 1 x 64x64x16 RS");
}
