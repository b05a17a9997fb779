#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>

#include "check.h"
#include "contract.h"
#include "listings.h"
#include "ptx/row.h"
#include "table.h"

using namespace listings;
using Catch::Matchers::ContainsSubstring;
using State = sass::Finding::State;

namespace {

std::vector<sass::Finding> checked(const std::string& contract, const Lines& lines = good()) {
  return sass::check(sass::read_contract("toy.contract", contract), kernel(lines));
}

std::vector<std::string> broken(const std::vector<sass::Finding>& findings) {
  std::vector<std::string> rules;
  for (const sass::Finding& finding : findings)
    if (finding.state == State::broken) rules.push_back(finding.rule);
  return rules;
}

}  // namespace

TEST_CASE("rules that hold") {
  CHECK(broken(checked("rows toy  # a comment\n"
                       "hot.gemms == QK 2 x 64x16x16 SS, PV 1 x 64x32x16 RS\n"
                       "hot[QK+PV].exps_in_flight >= 0.95\n"
                       "hot.instructions <= 38\n"
                       "hot.instructions < 38.5\n"
                       "hot.exps > 7\n"
                       "boundary.masks >= 1\n"
                       "kernel.setmaxnreg == 112\n"
                       "kernel.hot_loops == 1\n"))
            .empty());
}

TEST_CASE("a broken rule says what was expected, what was found, and where") {
  const auto findings = checked("rows t*\nhot.waits == 0 0\nhot.instructions <= 30\nhot[S+dP].exps == 1\n");
  REQUIRE(findings.size() == 3);
  CHECK(findings[0].place == "toy.contract:2");
  CHECK(findings[0].expected == "== 0 0");
  CHECK_THAT(findings[0].found, ContainsSubstring("1 0") && ContainsSubstring("hot loop QK+PV at 20"));
  CHECK(findings[0].instructions.size() == 2);
  CHECK_THAT(findings[0].instructions[0], ContainsSubstring("WARPGROUP.DEPBAR.LE gsb0, 0x1"));
  CHECK_THAT(findings[1].found, ContainsSubstring("38"));
  CHECK_THAT(findings[2].found, ContainsSubstring("no such loop"));
  for (const sass::Finding& finding : findings) CHECK(finding.state == State::broken);
  const sass::CheckResult result{findings, 1};
  CHECK_FALSE(result.passed());
  CHECK_THAT(sass::check_text(result, {}, false),
             ContainsSubstring("FAIL toy: 3 rules, 3 broken") && ContainsSubstring("expected <= 30"));
}

TEST_CASE("each kind of damage breaks its own rule") {
  const std::string contract =
      "rows toy\nhot.gemms == QK 2 x 64x16x16 SS, PV 1 x 64x32x16 RS\nhot.groups == 2\nhot.waits == 1 "
      "0\nhot.serialised == 0\n"
      "hot.touches == 0\nhot.local == 0\nhot.masks == 0\nhot.exps_in_flight >= 0.95\nhot.instructions <= 40\n";
  REQUIRE(broken(checked(contract)).empty());
  using Rules = std::vector<std::string>;
  CHECK(broken(checked(contract, replaced(good(), "FADD R4, R4, R25", {"STL [R1], R25"}))) == Rules{"hot.local == 0"});
  CHECK(broken(checked(contract, replaced(good(), "FADD R4, R4, R25", {"FSEL R25, R25, -INF, P0"}))) ==
        Rules{"hot.masks == 0"});
  CHECK(broken(checked(contract, replaced(good(), "FADD R4, R4, R25", {"FADD R40, R40, R25"}))) ==
        Rules{"hot.touches == 0"});
  CHECK(
      broken(checked(contract, replaced(good(), "WARPGROUP.DEPBAR.LE gsb0, 0x1", {"WARPGROUP.DEPBAR.LE gsb0, 0x0"}))) ==
      Rules{"hot.waits == 1 0", "hot.exps_in_flight >= 0.95"});
  CHECK(broken(checked(contract, replaced(good(), "HGMMA.64x32x16", {}))) ==
        Rules{"hot.gemms == QK 2 x 64x16x16 SS, PV 1 x 64x32x16 RS", "hot.groups == 2",
              "hot.touches == 0"});  // wait<1> lets QK run on
}

TEST_CASE("a later rule replaces an earlier one for its rows") {
  CHECK(broken(checked("rows *\nhot.instructions <= 10\nrows toy\nhot.instructions <= 40\n")).empty());
  CHECK(broken(checked("rows *\nhot.instructions <= 10\nrows other\nhot.instructions <= 40\n")).size() == 1);
}

TEST_CASE("waivers") {
  const auto findings = checked("rows *\nhot.instructions <= 10\nwaive hot.instructions t?y: the toy is large\n");
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].state == State::waived);
  CHECK(findings[0].reason == "the toy is large");
  CHECK(broken(checked("rows *\nhot.instructions <= 10\nwaive hot.instructions other: no\n")).size() == 1);
  const auto stale = checked("rows *\nhot.instructions <= 100\nwaive hot.instructions: was large\n");
  CHECK(broken(stale) == std::vector<std::string>{"waive hot.instructions"});
}

TEST_CASE("a kernel without a contract is a broken finding") {
  CHECK(broken(checked("rows other\nhot.exps == 1\n")) == std::vector<std::string>{"every kernel has a contract"});
}

TEST_CASE("contracts that cannot be read name file and line") {
  const auto read = [](const char* text) { return sass::read_contract("x.contract", text); };
  CHECK_THROWS_WITH(read(""), ContainsSubstring("no rules"));
  CHECK_THROWS_WITH(read("hot.exps == 1"), ContainsSubstring("x.contract:1") && ContainsSubstring("before the first"));
  CHECK_THROWS_WITH(read("rows\n"), ContainsSubstring("pattern"));
  CHECK_THROWS_WITH(read("rows *\nhot.exps = 1"), ContainsSubstring("x.contract:2") && ContainsSubstring("=="));
  CHECK_THROWS_WITH(read("rows *\nhot.exps =="), ContainsSubstring("bound"));
  CHECK_THROWS_WITH(read("rows *\nexps == 1"), ContainsSubstring("scope"));
  CHECK_THROWS_WITH(read("rows *\nwarm.exps == 1"), ContainsSubstring("no scope warm"));
  CHECK_THROWS_WITH(read("rows *\nhot.expz == 1"), ContainsSubstring("no figure expz"));
  CHECK_THROWS_WITH(read("rows *\nkernel.exps == 1"), ContainsSubstring("no figure exps"));
  CHECK_THROWS_WITH(read("rows *\nwaive hot.exps"), ContainsSubstring("reason"));
  CHECK_THROWS_WITH(read("rows *\nwhatever"), ContainsSubstring("not a rule"));
  CHECK_THROWS_WITH(checked("rows *\nhot.exps == many\n"), ContainsSubstring("not a number"));
  CHECK_THROWS_WITH(checked("rows *\nhot.gemms == table\n"), ContainsSubstring("the table does not determine"));
}

TEST_CASE("the table determines every row's GEMMs") {
  REQUIRE(sass::table_rows().size() == static_cast<size_t>(fa3::row_count));
  for (const fa3::Row& v : fa3::rows) {
    INFO(v.name);
    const auto figure = [&](const char* scope, const char* name) {
      const auto found = sass::table_figure(v.name, scope, name);
      return found ? found->shown() : std::string("nothing");
    };
    if (!v.has(fa3::Trait::speculative)) continue;
    const int depth = 32 / v.element_bytes();
    const std::string n = std::to_string(v.Bc), d = std::to_string(v.d), k = std::to_string(depth);
    CHECK(figure("hot", "gemms") == "QK " + std::to_string(v.d / depth) + " x 64x" + n + "x" + k + " SS, PV " +
                                        std::to_string(v.Bc / depth) + " x 64x" + d + "x" + k + " RS");
    CHECK(figure("hot", "exps") == std::to_string(v.Bc / 2));
    CHECK(figure("kernel", "threads") == std::to_string(v.threads()));
    CHECK_THAT(figure("kernel", "setmaxnreg"), ContainsSubstring(std::to_string(v.consumer_registers())) &&
                                                   ContainsSubstring(std::to_string(v.producer_registers())));
    CHECK(figure("hot", "types") != "nothing");
  }
  CHECK_FALSE(sass::table_figure("toy", "hot", "gemms"));
}

TEST_CASE("check over the table misses no row") {
  const auto result = sass::check_table({}, "/nowhere", "", true);
  CHECK(result.findings.size() == static_cast<size_t>(fa3::row_count));
  CHECK_FALSE(result.passed());
  CHECK_THROWS(sass::check_table({}, "/nowhere", "no_such_row", true));
}
