#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cctype>
#include <map>
#include <random>
#include <stdexcept>

#include "listings.h"
#include "loops/regions.h"
#include "views/align.h"
#include "views/diff.h"

using namespace listings;
using Catch::Matchers::ContainsSubstring;

namespace {

// The loop with all that stands round it: a producer, an epilogue with its own wait, and another warp.
Lines whole() {
  const Lines entered = replaced(good(), "USETMAXREG",
                                 {"ISETP.NE.AND P5, PT, R0, 0x180, PT", "@!P5 BRA `(.L_producer)",
                                  "ISETP.NE.AND P6, PT, R0, 0x200, PT", "@!P6 BRA `(.L_other)",
                                  "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x70"});
  return replaced(entered, "EXIT",
                  {"HGMMA.64x32x16.F32.BF16 R40, R60, gdesc[UR16].tnspB, R40, gsb0",
                   "WARPGROUP.DEPBAR.LE gsb0, 0x0",
                   "MUFU.RCP R4, R4",
                   "FMUL R40, R40, R4",
                   "FMUL R41, R41, R4",
                   "F2FP.BF16.F32.PACK_AB R40, R41, R40",
                   "STSM.16.M88.4 [R2], R40",
                   "FENCE.VIEW.ASYNC.S",
                   "BAR.SYNC.DEFER_BLOCKING 0x1, 0x80",
                   "UTMASTG.4D [UR20], [UR22]",
                   "@P3 BRA `(.L_stored)",
                   "STG.E [R6.64], R4",
                   ".L_stored",
                   "EXIT",
                   ".L_producer",
                   "MOV R5, 0x4000",
                   "SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x100], R5",
                   "UTMALDG.4D [UR8], [UR10]",
                   "@P1 BRA `(.L_producer)",
                   "EXIT",
                   ".L_other",
                   "LDS R7, [R8]",
                   "LDS R9, [R10]",
                   "FADD R7, R7, R9",
                   "STG.E [R6.64], R7",
                   "EXIT"});
}

using Named = std::pair<std::string, Lines>;

// Kernels of a file, as each_difference wants them.
class Given : public sass::Source {
 public:
  explicit Given(std::vector<Named> kernels) : Source("given"), kernels_(std::move(kernels)) {
    for (const auto& [name, lines] : kernels_) add(name);
  }
  void each(const std::vector<size_t>& wanted, const std::function<void(sass::Kernel&&)>& use) const override {
    for (size_t i : wanted) {
      sass::Kernel made = kernel(kernels_[i].second, kernels_[i].first);
      made.number = static_cast<int>(i) + 1;
      use(std::move(made));
    }
  }

 private:
  std::vector<Named> kernels_;
};

std::vector<sass::KernelDiff> differences(const std::vector<Named>& before, const std::vector<Named>& after) {
  const Given first(before), second(after);
  std::vector<sass::KernelDiff> found;
  sass::each_difference(first, first.matching(""), second, second.matching(""),
                        [&](const sass::KernelDiff& diff) { found.push_back(diff); });
  return found;
}

sass::KernelDiff against_whole(const Lines& other) { return sass::difference(kernel(whole()), kernel(other)); }

std::string report(const sass::KernelDiff& diff) { return sass::diff_text(diff, {}); }

// The one part that differs.
const sass::PartDiff& differing(const sass::KernelDiff& diff) {
  const sass::PartDiff* found = nullptr;
  for (const sass::PartDiff& part : diff.parts) {
    if (part.lines.empty()) continue;
    if (found) throw std::logic_error("two parts differ");
    found = &part;
  }
  if (!found) throw std::logic_error("no part differs");
  return *found;
}

// "- gone", "+ new", in order.
std::vector<std::string> differing_lines(const sass::KernelDiff& diff) {
  std::vector<std::string> lines;
  for (const sass::Line& line : differing(diff).lines)
    if (!line.same()) lines.push_back((line.before >= 0 ? "- " : "+ ") + line.text);
  return lines;
}

// Every mention of a register in these lines.
Lines renamed(Lines lines, size_t begin, size_t end, const std::string& old, const std::string& now) {
  for (size_t l = begin; l < end; ++l)
    for (size_t at = lines[l].find(old); at != std::string::npos; at = lines[l].find(old, at + now.size()))
      if (!std::isdigit(static_cast<unsigned char>(lines[l][at + old.size()]))) lines[l].replace(at, old.size(), now);
  return lines;
}

}  // namespace

TEST_CASE("every instruction belongs to one region") {
  const sass::Kernel toy = kernel(whole());
  std::map<std::string, size_t> sizes;
  size_t all = 0;
  for (const sass::Region& region : sass::regions_of(toy)) {
    sizes[region.name] = region.code.size();
    all += region.code.size();
  }
  CHECK(sizes == std::map<std::string, size_t>{{"prologue", 6},
                                               {"hot loop QK+PV", 38},
                                               {"hot loop QK+PV, beside its usual way", 7},
                                               {"epilogue", 13},
                                               {"producer", 5},
                                               {"other warps", 5}});
  CHECK(all == toy.listing.code.size() - 1);  // all but the branch to itself at the end
}

TEST_CASE("the loop over tiles does not make the prologue an epilogue") {
  const Lines tiles = replaced(replaced(good(), "USETMAXREG", {".L_tile", "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x70"}),
                               "@P2 BRA", {"@!P2 BRA `(.L_tile)", "BRA `(.L_loop)"});
  const auto regions = sass::regions_of(kernel(tiles));
  CHECK(regions[0].name == "prologue");
  CHECK(regions[0].code == std::vector{0, 1});
}

TEST_CASE("what no branch leads to is a subroutine where there are calls") {
  const Lines lines = {"LDC R1, c[0x0][0x28]", "CALL.REL.NOINC `(.L_divide)", "EXIT", ".L_divide", "MUFU.RCP R4, R4",
                       "RET.REL.NODEC R2 `(.L_divide)", ".L_end", "BRA `(.L_end)"};
  CHECK(sass::regions_of(kernel(lines)).back().name == "subroutines");
  CHECK(sass::regions_of(kernel(replaced(lines, "CALL", {"NOP"}))).back().name == "unreachable");
}

TEST_CASE("a difference outside the hot loop is found and told where it is") {
  CHECK(against_whole(whole()).same());
  struct Case {
    const char *part, *old, *now;
    std::vector<std::string> lines;
  };
  const std::vector<Case> cases = {
      {"producer", "MOV R5, 0x4000", "MOV R5, 0x4010", {"- MOV R, 0x4000", "+ MOV R, 0x4010"}},  // expect_tx
      {"epilogue", "FENCE.VIEW.ASYNC.S", "", {"- FENCE.VIEW.ASYNC.S"}},
      {"epilogue", "BAR.SYNC.DEFER_BLOCKING 0x1", "BAR.SYNC.DEFER_BLOCKING 0x2, 0x80",
       {"- BAR.SYNC.DEFER_BLOCKING 0x1, 0x80", "+ BAR.SYNC.DEFER_BLOCKING 0x2, 0x80"}},
      {"epilogue", "@P3 BRA", "@!P3 BRA `(.L_stored)", {"- @P BRA `(.L)", "+ @!P BRA `(.L)"}},
      {"prologue", "USETMAXREG", "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x78",
       {"- USETMAXREG.TRY_ALLOC.CTAPOOL UP, 0x70", "+ USETMAXREG.TRY_ALLOC.CTAPOOL UP, 0x78"}},
      {"hot loop QK+PV, beside its usual way", "FMNMX", "FMNMX R3, R3, R4, PT",
       {"- FMNMX R, R, R, !PT", "+ FMNMX R, R, R, PT"}},
      {"other warps", "STG.E [R6.64], R7", "STG.E.64 [R6.64], R7", {"- STG.E [R.64], R", "+ STG.E.64 [R.64], R"}},
  };
  for (const Case& c : cases) {
    INFO(c.old);
    const auto diff = against_whole(replaced(whole(), c.old, *c.now ? Lines{c.now} : Lines{}));
    CHECK_FALSE(diff.same());
    CHECK(differing(diff).name == c.part);
    CHECK(differing_lines(diff) == c.lines);
    CHECK_THAT(report(diff), ContainsSubstring(c.part) && ContainsSubstring("the same: "));
  }
}

TEST_CASE("the epilogue's own wait") {
  Lines other = whole();
  *std::find(other.rbegin(), other.rend(), "WARPGROUP.DEPBAR.LE gsb0, 0x0") = "WARPGROUP.DEPBAR.LE gsb0, 0x1";
  const auto diff = against_whole(other);
  CHECK(differing(diff).name == "epilogue");
  CHECK_THAT(report(diff), ContainsSubstring("- WARPGROUP.DEPBAR.LE gsb0, 0x0\n    + WARPGROUP.DEPBAR.LE gsb0, 0x1"));
}

TEST_CASE("the record counts") {
  sass::Kernel other = kernel(whole());
  for (sass::Figure& figure : other.figures)
    if (figure.name == "setmaxnreg") figure.text = "40 112";
  CHECK_THAT(report(sass::difference(kernel(whole()), other)), ContainsSubstring("setmaxnreg: 112 -> 40 112"));
}

TEST_CASE("registers may be renamed value by value, but not mixed up") {
  const Lines lines = whole();
  const auto place = [&](const char* line) {
    return static_cast<size_t>(std::find(lines.begin(), lines.end(), line) - lines.begin());
  };
  const size_t other_warp = place(".L_other"), end = place("FADD R7, R7, R9");
  // R9 of the other warp only; elsewhere it is another value.
  CHECK(against_whole(renamed(lines, other_warp, end + 1, "R9", "R11")).same());
  const Lines moved_once = renamed(lines, other_warp, end + 1, "R9", "R99");
  CHECK(against_whole(renamed(moved_once, other_warp, end + 2, "R7", "R9")).same());

  const auto wrong = against_whole(replaced(lines, "FADD R7, R7, R9", {"FADD R7, R7, R7"}));
  CHECK(differing(wrong).name == "other warps");
  CHECK(differing_lines(wrong) == std::vector<std::string>{"- FADD R7, R7, R9", "+ FADD R7, R7, R7"});
  CHECK_THAT(report(wrong), ContainsSubstring("// reads another value"));

  // The value is in the same register, but another one has been put there meanwhile.
  const auto lost = against_whole(
      replaced(renamed(lines, other_warp, end, "R9", "R7"), "FADD R7, R7, R9", {"FADD R7, R7, R7"}));
  CHECK_THAT(report(lost), ContainsSubstring("- FADD R7, R7, R9"));
  // Predicates and uniform registers are registers, too.
  const auto other_predicate = against_whole(replaced(lines, "@!P6 BRA", {"@!P5 BRA `(.L_other)"}));
  CHECK_THAT(report(other_predicate), ContainsSubstring("- @!P6 BRA"));
}

TEST_CASE("a branch to another place") {
  const Lines skips = replaced(whole(), "LDS R7", {"@P4 BRA `(.L_skip)", "LDS R7, [R8]", ".L_first"});
  const Lines to_second = replaced(skips, "FADD R7, R7", {".L_skip", "FADD R7, R7, R9"}),
              to_first = replaced(to_second, "@P4", {"@P4 BRA `(.L_first)"});
  const auto skipped = sass::difference(kernel(to_first), kernel(to_second));
  CHECK(differing(skipped).name == "other warps");
  CHECK_THAT(report(skipped), ContainsSubstring("+ @P4 BRA `(.L_skip)  // goes to another place"));
  const auto diff = against_whole(replaced(whole(), "@P3 BRA", {"@P3 BRA `(.L_loop)"}));
  CHECK_FALSE(diff.same());
  const auto inside = against_whole(replaced(whole(), "@P1 BRA `(.L_rare)", {"@P1 BRA `(.L_joined)"}));
  CHECK_FALSE(inside.same());
  Lines shifted = whole();
  std::swap(*std::find(shifted.begin(), shifted.end(), ".L_producer"), *std::find(shifted.begin(), shifted.end(),
                                                                                  "MOV R5, 0x4000"));
  const auto diff_shifted = against_whole(shifted);
  CHECK_FALSE(diff_shifted.same());
}

TEST_CASE("the same instructions in another order") {
  Lines other = whole();
  std::swap(*std::find(other.begin(), other.end(), "LDS R7, [R8]"),
            *std::find(other.begin(), other.end(), "LDS R9, [R10]"));
  const auto loads = against_whole(other);  // they look the same but for their registers
  CHECK(differing_lines(loads) == std::vector<std::string>{"- LDS R7, [R8]", "+ LDS R7, [R8]"});
  CHECK_THAT(report(loads), ContainsSubstring("other warps: 5 instructions, 1 of them in another place"));
  other = whole();
  std::swap(*std::find(other.begin(), other.end(), "STSM.16.M88.4 [R2], R40"),
            *std::find(other.begin(), other.end(), "FENCE.VIEW.ASYNC.S"));
  const auto diff = against_whole(other);
  CHECK_THAT(report(diff), ContainsSubstring("epilogue: 13 instructions, 1 of them in another place"));
}

TEST_CASE("of many alike the one that is gone is reported") {
  const Lines other = replaced(replaced(good(), "FFMA R25", {}), "FFMA R29", {});
  const auto diff = sass::difference(kernel(good()), kernel(other));
  std::vector<int> gone;
  for (const sass::Line& line : differing(diff).lines)
    if (!line.same()) gone.push_back(line.before / 16);
  CHECK(gone == std::vector{10, 14});
}

TEST_CASE("the report has a limit, and --all") {
  Lines other = whole();
  for (int i = 0; i < 50; ++i) other = replaced(other, "EXIT", {"NANOSLEEP 0x" + std::to_string(i), "EXIT"});
  const auto diff = against_whole(other);
  const std::string brief = sass::diff_text(diff, {}), all = sass::diff_text(diff, {}, true);
  CHECK_THAT(brief, ContainsSubstring("... and 13 lines more; --all lists them"));
  CHECK(all.find("--all") == std::string::npos);
  CHECK(std::count(all.begin(), all.end(), '\n') > std::count(brief.begin(), brief.end(), '\n'));
}

TEST_CASE("a region on one side only") {
  const auto diff = sass::difference(kernel(whole()), kernel(good()));
  CHECK_THAT(report(diff), ContainsSubstring("producer: only in the first, 5 instructions"));
  CHECK_THAT(report(sass::difference(kernel(good()), kernel(whole()))),
             ContainsSubstring("producer: only in the second, 5 instructions"));
}

TEST_CASE("side by side: as many pairs as can be, exact ones first, in order") {
  using Pairs = std::vector<std::pair<int, int>>;
  CHECK(sass::align({}, {{1, 1}}) == Pairs{});
  CHECK(sass::align({{1, 1}, {2, 2}, {3, 3}}, {{1, 1}, {3, 3}}) == Pairs{{0, 0}, {2, 1}});
  CHECK(sass::align({{1, 1}, {1, 2}, {1, 3}}, {{1, 1}, {1, 3}}) == Pairs{{0, 0}, {2, 1}});
  CHECK(sass::align({{1, 1}, {1, 2}}, {{1, 2}, {1, 9}}) == Pairs{{0, 0}, {1, 1}});  // two pairs, though none is exact
  // Against a plain table, on sequences of few letters.
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<sass::Element> a(random() % 30), b(random() % 30);
    for (auto* sequence : {&a, &b})
      for (sass::Element& element : *sequence)
        element = {static_cast<int>(random() % 4), static_cast<int>(random() % 6)};
    std::vector<std::vector<int>> best(a.size() + 1, std::vector<int>(b.size() + 1, 0));
    const auto gain = [](const sass::Element& x, const sass::Element& y) {
      return x.form != y.form ? 0 : x.whole == y.whole ? 1001 : 1000;
    };
    for (size_t i = 0; i < a.size(); ++i)
      for (size_t j = 0; j < b.size(); ++j)
        best[i + 1][j + 1] = std::max({best[i][j + 1], best[i + 1][j], best[i][j] + gain(a[i], b[j])});
    int found = 0, last_a = -1, last_b = -1;
    for (const auto& [i, j] : sass::align(a, b)) {
      CHECK((i > last_a && j > last_b));
      CHECK(gain(a[static_cast<size_t>(i)], b[static_cast<size_t>(j)]) > 0);
      found += gain(a[static_cast<size_t>(i)], b[static_cast<size_t>(j)]);
      last_a = i, last_b = j;
    }
    CHECK(found == best[a.size()][b.size()]);
  }
}

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
  CHECK_THAT(sass::diff_text(diff, {}), ContainsSubstring("the same"));
}

TEST_CASE("what moved and what appeared") {
  const auto diff = sass::difference(
      kernel(good()), kernel(replaced(good(), "FADD R4, R4, R25", {"FSEL R25, R25, -INF, P0", "STL [R1], R4"})));
  CHECK_FALSE(diff.same());
  const std::string report = sass::diff_text(diff, {});
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
  const auto diffs = differences({{"a", good()}, {"b", good()}}, {{"b", good()}, {"c", good()}});
  REQUIRE(diffs.size() == 3);
  CHECK(diffs[0].after.empty());
  CHECK(diffs[1].same());
  CHECK(diffs[2].before.empty());
}

TEST_CASE("more kernels than are read at once, in another order") {
  std::vector<Named> before, after;
  for (int i = 0; i < 40; ++i) before.emplace_back("k" + std::to_string(i), good());
  after.assign(before.rbegin(), before.rend());
  after[3].second = replaced(good(), "FADD R4", {});  // k36
  after.emplace_back("k40", good());
  const auto diffs = differences(before, after);
  REQUIRE(diffs.size() == 41);
  for (size_t i = 0; i < 40; ++i) {
    CHECK(diffs[i].before == "k" + std::to_string(i));
    CHECK(diffs[i].same() == (i != 36));
  }
  CHECK(diffs[40].before.empty());
}

TEST_CASE("kernels of one name are paired in their order") {
  const Named one{"toy", good()}, other{"toy", replaced(good(), "FADD R4", {})};
  const auto same = differences({one, other}, {one, other});
  REQUIRE(same.size() == 2);
  CHECK((same[0].same() && same[1].same()));
  const auto more = differences({one}, {one, other});
  REQUIRE(more.size() == 2);
  CHECK(more[1].before.empty());
}
