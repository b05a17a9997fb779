#include <catch2/catch_test_macros.hpp>

#include <algorithm>

#include "listings.h"
#include "time/floors.h"
#include "views/reports.h"

using namespace listings;

TEST_CASE("the good loop") {
  const sass::Kernel toy = kernel(good());
  REQUIRE(toy.loops.size() == 1);
  const sass::Figures& f = only_hot(toy).figures;
  CHECK(only_hot(toy).role == "QK+PV");
  CHECK(words(f, "gemms") == "QK 2 x 64x16x16 SS, PV 1 x 64x32x16 RS");
  CHECK(words(f, "types") == "F32.BF16");
  CHECK(words(f, "waits") == "1 0");
  CHECK(value(f, "groups") == 2);
  CHECK(value(f, "arrives") == 1);
  CHECK(value(f, "exps") == 8);
  CHECK(value(f, "exps_in_flight") == 1);
  CHECK(value(f, "conversions") == 4);
  CHECK(value(f, "conversions_overlapped") == 0);
  CHECK(value(f, "serialised") == 0);
  CHECK(value(f, "touches") == 0);
  CHECK(value(f, "never_waited") == 0);
  CHECK(value(f, "mbarrier_waits") == 1);
  CHECK(value(f, "maxima") == 0);  // only on the rare path
  CHECK(value(f, "instructions") == 38);
  CHECK(words(toy.figures, "setmaxnreg") == "112");
}

TEST_CASE("a loop of 8 bits: Q half in registers, and V transposed by another loop") {
  const sass::Kernel toy = kernel(eight_bits());
  REQUIRE(toy.loops.size() == 1);
  const sass::Figures& f = only_hot(toy).figures;
  CHECK(only_hot(toy).role == "QK+PV");
  CHECK(words(f, "gemms") == "QK 1 x 64x16x32 RS, QK 1 x 64x16x32 SS, PV 1 x 64x32x32 RS");
  CHECK(words(f, "types") == "F32.E4M3.E4M3");
  CHECK(value(f, "groups") == 2);
  CHECK(value(f, "exps_in_flight") == 1);
  CHECK(value(f, "conversions") == 4);
  CHECK(value(f, "touches") == 0);
  CHECK(value(toy.figures, "transposing_loads") == 2);
  CHECK(value(toy.figures, "transposing_permutes") == 4);
  CHECK(value(toy.figures, "transposing_stores") == 1);
  CHECK(value(toy.figures, "transposing_fences") == 1);
  CHECK(value(toy.figures, "transposing_instructions") == 9);
  CHECK(value(kernel(good()).figures, "transposing_loads") == 0);
  const std::string shown = sass::show_text(toy, {}, {});
  CHECK(shown.find("QK 1/2 RS, from zero") != std::string::npos);
  CHECK(shown.find("QK 2/2 SS, COMMIT") != std::string::npos);
  const sass::Floors floor = floors(toy, only_hot(toy));
  CHECK(floor.tensor == 2 * 8 + 16);
  CHECK(floor.shared_memory == 16 / 4 + (16 + 64) / 4 + 32 / 4);  // only one of QK reads Q
}

TEST_CASE("what a turn must cost") {
  sass::Kernel toy = kernel(good());
  sass::Floors f = floors(toy, only_hot(toy));
  CHECK(f.warpgroups == 1);
  CHECK(f.tensor == 2 * 8 + 16);                          // n / 2 each
  CHECK(f.shared_memory == 2 * (16 + 64) / 4 + 32 / 4);   // rows of 32 bytes, 128 bytes a clock
  CHECK(f.mufu == 8 * 8);
  CHECK(f.issue == 38);
  CHECK(std::string(f.bound().name) == "MUFU");
  CHECK(sass::floors_text(toy, {}, {}).find(" 50%") != std::string::npos);

  // Three warpgroups, one of which only loads, as setmaxnreg's two values tell.
  for (sass::Figure& figure : toy.figures) {
    if (figure.name == "threads") figure.value = 384;
    if (figure.name == "setmaxnreg") figure.text = "40 232";
  }
  if (!find(toy.figures, "threads")) toy.figures.push_back({"threads", false, 384, {}, {}, false});
  f = floors(toy, only_hot(toy));
  CHECK(f.warpgroups == 2);
  CHECK(f.tensor == 2 * 32);
}

TEST_CASE("the usual way round leaves out spins and rare paths") {
  const sass::Kernel toy = kernel(good());
  for (int i : only_hot(toy).turn.code) {
    CHECK_FALSE(toy.listing.code[static_cast<size_t>(i)].is("FMNMX"));
    CHECK_FALSE(toy.listing.code[static_cast<size_t>(i)].is("EXIT"));
  }
  const std::string shown = sass::show_text(toy, {}, {});
  CHECK(shown.find("beside its usual way") != std::string::npos);
  CHECK(shown.find("QK 2/2 SS, COMMIT") != std::string::npos);
  CHECK(shown.find("WAIT until 0 in flight: PV done") != std::string::npos);
}

TEST_CASE("serialised: a wait round each WGMMA") {
  const Lines bad = replaced(
      good(), "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8]",
      {"HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "WARPGROUP.ARRIVE"});
  const sass::Kernel toy = kernel(bad);
  const sass::Figures& f = only_hot(toy).figures;
  CHECK(value(f, "serialised") == 1);
  CHECK(value(f, "groups") == 3);
  CHECK(words(f, "waits") == "0 1 0");
  CHECK(value(f, "arrives") == 2);
  CHECK(words(f, "gemms") == "QK 2 x 64x16x16 SS, PV 1 x 64x32x16 RS");
}

TEST_CASE("spilled: local memory in the loop") {
  const Lines bad =
      replaced(good(), "FSETP", {"STL [R1+0x4], R4", "LDL R4, [R1+0x4]", "FSETP.GT.AND P1, PT, R4, 1048576, PT"});
  const sass::Kernel toy = kernel(bad);
  CHECK(value(only_hot(toy).figures, "local") == 2);
  CHECK(value(toy.figures, "local") == 2);
}

TEST_CASE("hoisted wait: no exponential in PV's shadow") {
  const Lines bad = replaced(replaced(good(), "WARPGROUP.DEPBAR.LE gsb0, 0x0", {}), "WARPGROUP.DEPBAR.LE gsb0, 0x1",
                             {"WARPGROUP.DEPBAR.LE gsb0, 0x1", "FMUL R3, R3, R3", "WARPGROUP.DEPBAR.LE gsb0, 0x0"});
  const sass::Kernel toy = kernel(bad);
  const sass::Figures& f = only_hot(toy).figures;
  CHECK(value(f, "exps_in_flight") == 0);
  CHECK(sass::find(f, "exps_in_flight")->evidence.size() == 8);
  CHECK(words(f, "waits") == "1 0");
}

TEST_CASE("half hoisted wait: the share says how many") {
  const Lines bad = replaced(replaced(good(), "WARPGROUP.DEPBAR.LE gsb0, 0x0", {}), "MUFU.EX2 R26",
                             {"WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.EX2 R26, R26"});
  CHECK(value(only_hot(kernel(bad)).figures, "exps_in_flight") == 0.25);
}

TEST_CASE("missing group") {
  SECTION("PV is not committed on its own") {
    const Lines bad =
        replaced(good(), "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR12]", {"HGMMA.64x16x16.F32.BF16 R24, gdesc[UR12], R24"});
    const sass::Figures f = only_hot(kernel(bad)).figures;
    CHECK(value(f, "groups") == 1);
    CHECK(value(f, "exps_in_flight") == 1);
    CHECK(value(f, "touches") > 0);  // wait<1> no longer covers QK, whose scores are read
  }
  SECTION("PV is missing") {
    const Lines bad = replaced(good(), "HGMMA.64x32x16", {});
    const sass::Figures f = only_hot(kernel(bad)).figures;
    CHECK(value(f, "groups") == 1);
    CHECK(words(f, "gemms") == "QK 2 x 64x16x16 SS");
  }
}

TEST_CASE("a wait is missing: PV's operands are overwritten in flight") {
  const sass::Kernel toy = kernel(replaced(good(), "WARPGROUP.DEPBAR.LE gsb0, 0x0", {}));
  const sass::Figures& f = only_hot(toy).figures;
  CHECK(value(f, "touches") == 4);  // the four conversions into R60..R63
  CHECK(words(f, "waits") == "1");
  CHECK(value(f, "never_waited") == 0);  // the next turn's wait<1> covers it
  const sass::Kernel none =
      kernel(replaced(replaced(good(), "WARPGROUP.DEPBAR.LE gsb0, 0x0", {}), "WARPGROUP.DEPBAR.LE gsb0, 0x1", {}));
  CHECK(value(only_hot(none).figures, "never_waited") == 2);
}

TEST_CASE("an accumulator touched in flight") {
  const Lines bad = replaced(good(), "FADD R4, R4, R25", {"FMUL R41, R41, R5"});
  const sass::Kernel toy = kernel(bad);
  const sass::Figures& f = only_hot(toy).figures;
  CHECK(value(f, "touches") == 1);
  CHECK(value(f, "rescales") == 1);
  CHECK(sass::show_text(toy, {}, {}).find("TOUCHES REGISTERS IN FLIGHT") != std::string::npos);
}

TEST_CASE("a count of groups that cannot be is taken for none") {
  const auto negative = kernel(replaced(good(), "WARPGROUP.DEPBAR.LE gsb0, 0x1", {"WARPGROUP.DEPBAR.LE gsb0, -5"}));
  CHECK(words(only_hot(negative).figures, "waits") == "0 0");
}

TEST_CASE("masks are told from other selections") {
  CHECK(value(only_hot(kernel(replaced(good(), "FADD R4, R4, R25", {"FSEL R25, R25, -INF , !P0"}))).figures, "masks") ==
        1);
  CHECK(
      value(only_hot(kernel(replaced(good(), "FADD R4, R4, R25", {"@P0 IMAD.MOV.U32 R25, RZ, RZ, -0x800000"}))).figures,
            "masks") == 1);
  CHECK(value(only_hot(kernel(replaced(good(), "FADD R4, R4, R25", {"FSEL R25, R25, R26, !P0"}))).figures, "masks") ==
        0);
}

TEST_CASE("two loops with the same GEMMs: the shorter is hot, if it has no masks, the other a boundary loop") {
  Lines two = good();
  two.erase(two.begin() + (std::find(two.begin(), two.end(), "EXIT") - two.begin()), two.end());
  Lines second = replaced(good(), "FADD R4, R4, R25", {"FSEL R25, R25, -INF , !P0", "FSEL R26, R26, -INF , !P0"});
  for (std::string& line : second) {
    for (size_t at = line.find(".L_"); at != std::string::npos; at = line.find(".L_", at + 3)) line.insert(at + 3, "2");
  }
  two.insert(two.end(), second.begin(), second.end());
  two.insert(two.end() - 2, {".L_rare", "BRA `(.L_joined)", ".L_spin", "BRA `(.L_ready)"});
  const sass::Kernel toy = kernel(two);
  REQUIRE(toy.loops.size() == 2);
  CHECK(toy.loops[0].hot);
  CHECK_FALSE(toy.loops[1].hot);
  CHECK(value(toy.loops[1].figures, "masks") == 2);
  CHECK(value(toy.figures, "masks") == 2);
  CHECK(value(toy.figures, "boundary_loops") == 1);
  // Longer as registers are short.
  Lines spilled(12, "LDL R4, [R1+0x4]");
  spilled.push_back("FADD R4, R4, R25");
  const sass::Kernel longer = kernel(replaced(two, "FADD R4, R4, R25", spilled));
  CHECK(longer.loops[0].turn.size() > longer.loops[1].turn.size());
  CHECK(longer.loops[0].hot);
  CHECK_FALSE(longer.loops[1].hot);
}

TEST_CASE("a group that is waited for in the next turn") {
  // QK first, its wait at the top of the next turn.
  const Lines rotated = {".L_0",
                         "WARPGROUP.DEPBAR.LE gsb0, 0x0",
                         "MUFU.EX2 R24, R24",
                         "MUFU.EX2 R25, R25",
                         "F2FP.BF16.F32.PACK_AB R60, R25, R24",
                         "WARPGROUP.ARRIVE",
                         "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0",
                         "MUFU.EX2 R5, R6",
                         "@P0 BRA `(.L_0)",
                         "EXIT"};
  const sass::Kernel toy = kernel(rotated);
  const sass::Figures& f = only_hot(toy).figures;
  CHECK(value(f, "never_waited") == 0);
  CHECK(value(f, "exps") == 3);
  CHECK(sass::find(f, "exps_in_flight")->evidence.size() == 2);
  CHECK(value(f, "touches") == 0);
}

TEST_CASE("a backward loop's GEMMs are told apart") {
  CHECK(only_hot(kernel(backward())).gemms ==
        "S 1 x 64x16x16 SS, dP 1 x 64x16x16 SS, dV 1 x 64x32x16 RS, dK 1 x 64x32x16 RS");
}

TEST_CASE("a number that is loaded does not come from its address") {
  // A guarded address may still be an accumulator of PV; a scale read there goes into the exponentials.
  const Lines scaled = replaced(replaced(good(), "WARPGROUP.DEPBAR.LE gsb0, 0x0",
                                         {"WARPGROUP.DEPBAR.LE gsb0, 0x0", "@!P3 LOP3.LUT R40, R2, 0x3, RZ, 0xc0, !PT",
                                          "@!P3 LDS R6, [R40+0x100]"}),
                                "FFMA R24, R24, UR10", {"FFMA R24, R24, R6, -R3.reuse"});
  CHECK(only_hot(kernel(scaled)).gemms == only_hot(kernel(good())).gemms);
}
