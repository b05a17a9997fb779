// Rules for kernels that are in no table: the preset, and a first contract.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "listings.h"
#include "rules/check.h"
#include "rules/first_contract.h"
#include "rules/meaning.h"
#include "rules/preset.h"

using namespace listings;
using Catch::Matchers::ContainsSubstring;
using Rules = std::vector<std::string>;

namespace {

Rules broken(const sass::Contract& contract, const sass::Kernel& kernel) {
  Rules rules;
  for (const sass::Finding& finding : sass::check(contract, kernel))
    if (finding.state == sass::Finding::State::broken) rules.push_back(finding.rule);
    else if (finding.state == sass::Finding::State::advice) rules.push_back("advice: " + finding.rule);
  return rules;
}

Rules broken_preset(const Lines& lines) {
  const sass::Kernel made = kernel(lines);
  return broken(sass::preset_for(made), made);
}

Rules broken_first(const sass::Kernel& of, const sass::Kernel& found) {
  return broken(sass::read_contract("first", sass::first_contract(of)), found);
}

}  // namespace

TEST_CASE("the preset: a good kernel keeps it, each kind of damage breaks its rule") {
  const auto damaged = [](const char* line, const Lines& by) {
    return broken_preset(replaced(with_producer(), line, by));
  };
  CHECK(broken_preset(with_producer()).empty());
  CHECK(damaged("FADD R4, R4, R25", {"STL [R1], R25"}) == Rules{"kernel.spills == 0", "hot[QK+PV].local == 0"});
  CHECK(damaged("FADD R4, R4, R25", {"FSEL R25, R25, -INF, P0"}) == Rules{"advice: hot[QK+PV].masks == 0"});
  CHECK(damaged("FADD R4, R4, R25", {"FADD R40, R40, R25"}) == Rules{"hot[QK+PV].touches == 0"});
  CHECK(damaged("WARPGROUP.DEPBAR.LE gsb0, 0x1", {"WARPGROUP.DEPBAR.LE gsb0, 0x0"}) ==
        Rules{"advice: hot[QK+PV].exps_overlapped > 0"});
  CHECK(broken_preset(good()) == Rules{"kernel.never_arrived == 0"});  // nobody fills its buffers
}

TEST_CASE("the preset: what a source may mean is advice") {
  const std::string first = "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT",
                    next = "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24";
  const auto damaged = [](const char* line, const Lines& by) {
    return broken_preset(replaced(with_producer(), line, by));
  };
  // A wait in the midst of QK: of one WGMMA, as ptxas does it, and of two.
  const Lines wait = {"WARPGROUP.DEPBAR.LE gsb0, 0x0", "WARPGROUP.ARRIVE"};
  CHECK(damaged("HGMMA.64x16x16", {first + ", gsb0", wait[0], wait[1]}) == Rules{"hot[QK+PV].serialised == 0"});
  CHECK(damaged("HGMMA.64x16x16", {first, next + ", gsb0", wait[0], wait[1]}) ==
        Rules{"advice: hot[QK+PV].serialised == 0"});
  CHECK(damaged("HGMMA.64x16x16",
                {first, next + ", gsb0", wait[0], wait[1], next + ", gsb0", wait[0], wait[1]}) ==
        Rules{"hot[QK+PV].serialised == 0"});
  // An array: an index leads to it, and nvdisasm has marked nothing as spilled.
  CHECK(broken_preset({"STL [R1+0x8], R6", "STL.U8 [R25+0x1], R6", "LDL R6, [R1+0x8]", "EXIT"}) ==
        Rules{"advice: kernel.spills == 0"});
  CHECK(broken_preset({"STL [R1+0x8], R6", "LDL R6, [R1+0x8]", "EXIT"}) == Rules{"kernel.spills == 0"});
  CHECK(broken_preset({"STL [R1+0x8], R6 (*\"SpillRefill\"*)", "STL [R25], R6", "LDL R6, [R1+0x8]", "EXIT"}) ==
        Rules{"kernel.spills == 0"});
}

TEST_CASE("the preset is for attention") {
  CHECK(sass::is_attention(kernel(good())));
  CHECK_FALSE(sass::is_attention(kernel({"EXIT"})));
  CHECK_FALSE(sass::is_attention(
      kernel({".L_loop", "WARPGROUP.ARRIVE", "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24, gsb0",
              "WARPGROUP.DEPBAR.LE gsb0, 0x0", "@P0 BRA `(.L_loop)", "EXIT"})));
}

TEST_CASE("presets: attention, gemm, any; and what a broken rule means") {
  const Lines gemm = {".L_loop", "WARPGROUP.ARRIVE", "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24, gsb0",
                      "WARPGROUP.DEPBAR.LE gsb0, 0x0", "FSEL R2, R2, -INF, P1", "@P0 BRA `(.L_loop)", "EXIT"};
  const auto belongs = [](const Lines& lines) {
    const sass::Kernel made = kernel(lines);
    std::string presets;
    for (const char* preset : {"attention", "gemm", "any"})
      if (sass::belongs_to(preset, made)) presets += std::string(presets.empty() ? "" : " ") + preset;
    return presets;
  };
  CHECK(belongs(good()) == "attention any");
  CHECK(belongs(gemm) == "gemm any");
  CHECK(belongs({"EXIT"}) == "any");
  CHECK(broken_preset(gemm).empty());  // masks are no matter of a GEMM
  CHECK(broken_preset(replaced(gemm, "WARPGROUP.DEPBAR", {})) == Rules{"hot[GEMM].never_waited == 0"});
  const sass::Kernel whole = kernel(with_producer());
  const sass::Contract preset = sass::preset_for(whole);
  for (const sass::Rule& rule : preset.sections[0].rules) {
    INFO(rule.figure);
    CHECK_FALSE(sass::meaning_of(rule.figure).empty());
  }
  // Advice does not fail, and a sentence says what may happen.
  sass::CheckResult result;
  const sass::Kernel masked = kernel(replaced(with_producer(), "FADD R4, R4, R25", {"FSEL R25, R25, -INF, P0"}));
  sass::check_contract(sass::preset_for(masked), masked, result);
  CHECK(result.passed());
  CHECK_THAT(sass::check_text(result, {}, false),
             ContainsSubstring("1 with advice") && ContainsSubstring("Scores are masked in every turn."));
  sass::check_contract(sass::preset_for(kernel(good())), kernel(good()), result);
  CHECK_FALSE(result.passed());
  CHECK(sass::check_text(result, {}, false).starts_with("2 kernels, 1 of them breaks rules:\n"));
}

TEST_CASE("a first contract: the kernel keeps it, a spoilt one does not") {
  const sass::Kernel toy = kernel(with_producer());
  const std::string text = sass::first_contract(toy);
  CHECK_THAT(text, ContainsSubstring("rows toy\n") && ContainsSubstring("  hot[QK+PV].waits == 1 0\n") &&
                       ContainsSubstring("  hot[QK+PV].gemms == QK 2 x 64x16x16 SS, PV 1 x 64x32x16 RS\n") &&
                       ContainsSubstring("  hot[QK+PV].instructions <= ") && !ContainsSubstring("should be"));
  for (const Lines& lines : {good(), eight_bits(), with_producer(), Lines{"EXIT"}}) {
    const sass::Kernel made = kernel(lines);
    CHECK(broken_first(made, made).empty());
  }
  const auto spoilt = [&](const char* line, const Lines& by) {
    return broken_first(toy, kernel(replaced(with_producer(), line, by)));
  };
  CHECK(spoilt("WARPGROUP.DEPBAR.LE gsb0, 0x1", {"WARPGROUP.DEPBAR.LE gsb0, 0x0"}).front() ==
        "hot[QK+PV].waits == 1 0");
  CHECK(spoilt("FADD R4, R4, R25", {"STL [R1], R25"}) == Rules{"kernel.spills <= 0", "hot[QK+PV].local <= 0"});
}

TEST_CASE("a first contract says where the kernel is not what it should be") {
  const Lines drained = replaced(replaced(good(), "WARPGROUP.DEPBAR.LE gsb0, 0x1", {"WARPGROUP.DEPBAR.LE gsb0, 0x0"}),
                                 "FADD R4, R4, R25", {"STL [R1], R25"});
  const sass::Kernel toy = kernel(drained);
  CHECK_THAT(sass::first_contract(toy), ContainsSubstring("kernel.spills <= 1  # should be 0\n") &&
                                            ContainsSubstring("exps_overlapped >= 0  # should be more than 0\n"));
  CHECK(broken_first(toy, toy).empty());
}

TEST_CASE("a first contract speaks of loops with the same GEMMs together") {
  sass::Kernel toy = kernel(good());
  sass::WgmmaLoop longer = toy.loops.at(0);
  for (sass::Figure& figure : longer.figures) {
    if (figure.name == "instructions") figure.value = 100;
    if (figure.name == "exps") figure.value = 9;
    if (figure.name == "exps_in_flight") figure.value = 2.0 / 3;
  }
  toy.loops.push_back(longer);
  const std::string text = sass::first_contract(toy);
  CHECK_THAT(text, ContainsSubstring("instructions <= 102\n") && ContainsSubstring("exps_in_flight >= 0.666\n") &&
                       !ContainsSubstring(".exps =="));
  CHECK(broken_first(toy, toy).empty());
}
