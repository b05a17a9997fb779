#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "diff.h"
#include "listings.h"

using namespace listings;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("normalised: no register, predicate or label numbers, but the form stays") {
  const auto form = [](const std::string& line) {
    return sass::normalised(sass::parse(text("f", {".L_x_7", line, "EXIT"}))[0].code[0]);
  };
  CHECK(form("FFMA R24, R24, UR10, -R8.reuse") == "FFMA R, R, UR, -R");
  CHECK(form("@!P0 BRA `(.L_x_7)") == "@!P BRA `(.L)");
  CHECK(form("HGMMA.64x64x16.F32.BF16 R56, R100, gdesc[UR16].tnspB, R56, UP0") ==
        "HGMMA.64x64x16.F32.BF16 R, R, gdesc[UR].tnspB, R, UP");
  CHECK(form("FFMA R24, RZ, 2, c[0x0][0x480]") == "FFMA R, RZ, 2, c[0x0][0x480]");
}

TEST_CASE("the same code in other registers is the same") {
  Lines other = good();
  for (std::string& line : other)
    for (const auto& [old, now] : {std::pair<std::string, std::string>{"R60", "R90"},
                                   {"R61", "R91"},
                                   {"R62", "R92"},
                                   {"R63", "R93"},
                                   {"UR8", "UR20"}})
      if (const size_t at = line.find(old); at != std::string::npos) line.replace(at, old.size(), now);
  const auto diff = sass::difference(kernel(good()), kernel(other));
  CHECK(diff.same());
  CHECK_THAT(sass::diff_text({diff}, {}), ContainsSubstring("the same"));
}

TEST_CASE("what moved and what appeared") {
  const auto diff = sass::difference(
      kernel(good()), kernel(replaced(good(), "FADD R4, R4, R25", {"FSEL R25, R25, -INF, P0", "STL [R1], R4"})));
  CHECK_FALSE(diff.same());
  const std::string report = sass::diff_text({diff}, {});
  CHECK_THAT(report, ContainsSubstring("masks: 0 -> 1") && ContainsSubstring("local: 0 -> 1") &&
                         ContainsSubstring("instructions: 38 -> 39"));
  CHECK_THAT(report, ContainsSubstring("+ FSEL R, R, -INF, P") && ContainsSubstring("+ STL [R], R") &&
                         ContainsSubstring("- FADD R, R, R"));
}

TEST_CASE("the shortest edit") {
  const auto edit = sass::changes({"a", "b", "c", "d"}, {"a", "c", "x", "d"});
  REQUIRE(edit.size() == 2);
  CHECK_FALSE(edit[0].appeared);
  CHECK(edit[0].instruction == "b");
  CHECK(edit[1].appeared);
  CHECK(edit[1].instruction == "x");
  CHECK(sass::changes({}, {}).empty());
  CHECK(sass::changes({"a"}, {}).size() == 1);
}

TEST_CASE("kernels on one side only") {
  const auto diffs =
      sass::differences({kernel(good(), "a"), kernel(good(), "b")}, {kernel(good(), "b"), kernel(good(), "c")});
  REQUIRE(diffs.size() == 3);
  CHECK(diffs[0].after.empty());
  CHECK(diffs[1].same());
  CHECK(diffs[2].before.empty());
}
