// No false alarm: what official kernels do, and is right, beside what is wrong and looks alike.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "dataflow/lanes.h"
#include "listings.h"
#include "views/reports.h"

using namespace listings;
using Catch::Matchers::ContainsSubstring;

namespace {

double figure(const Lines& lines, const char* name) { return value(kernel(lines).figures, name); }

Lines operator+(Lines a, const Lines& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("mbarriers are fenced for TMA in more ways than one") {
  const auto begun = [](const Lines& fences) {
    return Lines{"S2R R0, SR_TID.X", "ISETP.NE.AND P4, PT, R0, RZ, PT", "@P4 BRA `(.L_others)",
                 "SYNCS.EXCH.64 URZ, [UR4+0x100], UR6"} +
           fences + Lines{"@P4 EXIT", "UTMALDG.4D [UR8], [UR6]", "UTMALDG.4D [UR16], [UR6]", "EXIT"};
  };
  const std::string barrier = "BAR.SYNC.DEFER_BLOCKING 0x0", fence = "FENCE.VIEW.ASYNC.S", label = ".L_others";
  for (const char* name : {"unfenced", "unfenced_tma"}) {
    CHECK(figure(begun({"MEMBAR.ALL.CTA", fence, label, barrier}), name) == 0);  // the programming guide
    CHECK(figure(begun({"NOP", label, barrier}), name) == 0);                    // fence.mbarrier_init
  }
  // Triton: all threads fence behind the barrier.
  CHECK(figure(begun({label, barrier, "MEMBAR.ALL.CTA", fence, barrier}), "unfenced_tma") == 0);
  CHECK(figure(begun({label, barrier}), "unfenced_tma") == 2);
  CHECK(figure(begun({label, barrier}), "unfenced") == 1);
  // Triton, too: ptxas has put the fence before the initial value.
  CHECK(figure(Lines{fence} + begun({label, barrier}), "unfenced_tma") == 0);
  CHECK(figure(Lines{fence, "UTMASTG.4D [UR8], [UR14]"} + begun({label, barrier}), "unfenced_tma") == 2);
  // Where nothing is loaded by TMA, a barrier of the thread block is enough.
  CHECK(figure(replaced(replaced(begun({label, barrier}), "UTMALDG", {}), "UTMALDG", {}), "unfenced_tma") == 0);
}

TEST_CASE("what another warp has handed over need not be fenced again before it is stored by TMA") {
  const auto storing = [](const Lines& between) {
    return Lines{"STS.128 [R5], R24"} + between + Lines{"UTMASTG.4D [UR8], [UR14]", "EXIT"};
  };
  const Lines wait = {".L_wait", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x100], R0", "@!P0 BRA `(.L_wait)"};
  CHECK(figure(storing(wait), "unfenced_tma") == 0);
  CHECK(figure(storing({"BAR.SYNC.DEFER_BLOCKING 0x0"}), "unfenced_tma") == 1);
  CHECK(figure(storing({"FENCE.VIEW.ASYNC.S", "BAR.SYNC.DEFER_BLOCKING 0x0"}), "unfenced_tma") == 0);
}

TEST_CASE("TMA for several lanes is repeated only if nothing differs between them") {
  const auto each = [](const Lines& before, const Lines& taken, const std::string& tma) {
    return Lines{"S2R R0, SR_TID.X"} + before + Lines{"PLOP3.LUT P0, PT, PT, PT, PT, 0x80, 0x0", ".L_next",
                                                      "@P0 ELECT P2, URZ, PT"} +
           taken + Lines{"@P2 PLOP3.LUT P0, PT, P2, PT, PT, 0x8, 0x0", tma, "@P0 BRA.U.ANY `(.L_next)", "EXIT"};
  };
  const std::string load = "UTMALDG.4D [UR8], [UR6]", add = "UBLKRED.G.S.ADD.S32 [UR6], [UR8], UR5";
  CHECK(figure(each({}, {}, load), "tma_repeated") == 1);
  CHECK(figure(each({}, {}, add), "tma_repeated") == 1);
  CHECK(figure(each({"LDC R3, c[0x0][0x210]"}, {"@P2 R2UR UR8, R3"}, load), "tma_repeated") == 1);
  // Each lane loads a row of its own.
  CHECK(figure(each({"IMAD.SHL.U32 R3, R0, 0x80, RZ"}, {"@P2 R2UR UR8, R3"}, load), "tma_repeated") == 0);
  CHECK(figure(each({"LEA R4, R0, UR4, 0x2", "LDS R3, [R4]"}, {"@P2 R2UR UR8, R3"}, load), "tma_repeated") == 0);
  CHECK(figure(each({"ISETP.GT.AND P3, PT, R0, 0x5, PT", "SEL R3, R9, RZ, P3"}, {"@P2 R2UR UR8, R3"}, load),
               "tma_repeated") == 0);
  CHECK(figure(each({"ISETP.NE.AND P3, PT, R0, RZ, PT", "@P3 EXIT"}, {}, load), "tma_repeated") == 0);  // one lane
  // Lanes with the same operands are planned together.
  CHECK(figure({"PLOP3.LUT P0, PT, PT, PT, PT, 0x80, 0x0", ".L_next", "@P0 R2UR P1, UR5, R3",
                "@P0 PLOP3.LUT P0, PT, P1, PT, PT, 0x80, 0x0", "UBLKCP.G.S [UR6], [UR5], UR4",
                "@P0 BRA.U.ANY `(.L_next)", "EXIT"},
               "tma_repeated") == 0);
  CHECK(figure({load, "EXIT"}, "tma_repeated") == 0);  // a warp issues it once
}

TEST_CASE("one lane: ELECT, turned round by PLOP3, and a vote") {
  const Lines lines = {"PLOP3.LUT P0, PT, PT, PT, PT, 0x80, 0x0", "@P5 BRA `(.L_other)", "ELECT P0, URZ, PT",
                       "PLOP3.LUT P0, PT, P0, PT, PT, 0x8, 0x0", ".L_other", "VOTEU.ALL UP1, P0", "BAR.SYNC 0x0",
                       "@!UP1 UTMASTG.3D [UR4], [UR8]", "EXIT"};
  CHECK(figure(lines, "tma_by_many") == 0);
  CHECK(figure(replaced(lines, "@!UP1", {"@UP1 UTMASTG.3D [UR4], [UR8]"}), "tma_by_many") == 1);
  CHECK(figure(replaced(lines, "VOTEU", {"VOTEU.ANY UP1, P0"}), "tma_by_many") == 1);
  CHECK(figure(replaced(lines, "ELECT", {"FSETP.GT.AND P0, PT, R8, RZ, PT"}), "tma_by_many") == 1);
  CHECK(figure(replaced(lines, "BAR", {"UISETP.GT.AND UP1, UPT, UR9, URZ, UPT"}), "tma_by_many") == 1);
  // Not so for what each lane does by itself.
  const sass::Listing listing = sass::parse(text("toy", replaced(lines, "@!UP1", {"@!UP1 STS [R4], R8"}))).at(0);
  CHECK_FALSE(sass::by_one_lane(listing, sass::control_flow(listing))[7]);
}

TEST_CASE("a look at a barrier ahead of time is no wait") {
  const std::string look = "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR24], R26";
  const Lines spin = {".L_spin", look, "@!P1 BRA `(.L_spin)"};
  const auto looking = [&](const Lines& between, const Lines& behind) {
    return Lines{look} + between + behind + Lines{".L_ready", "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR24], RZ", "EXIT"};
  };
  const Lines work = {"FADD R4, R4, R5", "@P2 BRA `(.L_more)", "FADD R4, R4, R6", ".L_more"};
  const auto loose = [](const Lines& lines) { return figure(lines, "waits_without_spin"); };
  CHECK(loose(looking(work, Lines{"@P1 BRA `(.L_ready)"} + spin)) == 0);
  CHECK(loose(looking(work, {"@P1 BRA `(.L_ready)", "FADD R4, R4, R7"})) == 1);  // goes on in either case
  CHECK(loose(looking(work, {"@!P1 EXIT"})) == 1);
  CHECK(loose(looking(work, {})) == 1);  // nobody asks
  CHECK(loose(looking(work, {"FSETP.GT.AND P1, PT, R8, RZ, PT", "@P1 BRA `(.L_ready)"})) == 1);
  CHECK(loose(looking({}, {"SYNCS.PHASECHK.TRANS64.TRYWAIT PT, [UR24], R26", "SEL R9, RZ, 0x1, PT"})) == 2);
  // Kept as a number, and tested somewhere.
  CHECK(loose(looking(work, Lines{"SEL R9, RZ, 0x1, !P1", "ISETP.NE.AND P0, PT, R9, RZ, PT",
                                  "@!P0 BRA `(.L_ready)"} + spin)) == 0);
  // Where it is not needed, it is not tested.
  CHECK(loose(looking({"@P3 BRA `(.L_end)"}, Lines{"@P1 BRA `(.L_ready)"} + spin) +
              Lines{".L_end", "FSETP.GT.AND P1, PT, R8, RZ, PT", "EXIT"}) == 0);
  // Whether it is there for all lanes.
  CHECK(loose(looking({"WARPSYNC.ALL", "VOTE.ALL P1, P1", "@P1 LDS R9, [R8]"}, {})) == 0);
  CHECK(loose(looking({"WARPSYNC.ALL", "VOTE.ALL P1, P2", "@P1 LDS R9, [R8]"}, {})) == 1);
  // The end of a thread, by a branch of its own.
  CHECK(loose({".L_last", look, "@P1 EXIT", "BRA `(.L_last)"}) == 0);
}

TEST_CASE("ptxas may split an address in any way") {
  const std::string arrival = "@!P3 SYNCS.ARRIVE";
  const auto with = [&](const Lines& lines) {
    return figure(replaced(with_producer(), arrival, lines), "never_arrived");
  };
  CHECK(with({"IMAD R9, R8, 0x8, R22", "VIADD R9, R9, 0xf8",
              "@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R9+URZ+0x10], RZ"}) == 0);  // 0x108
  CHECK(with({"IMAD R9, R8, 0x8, R22", "VIADD R9, R9, 0xf8",
              "@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R9+URZ+0x20], RZ"}) == 1);  // 0x118
}

TEST_CASE("a ring that is read in unrolled turns") {
  // A wait for the mbarrier behind the one at 0x108, where those arrive who add an index to it.
  const std::string arrival = "@!P3 SYNCS.ARRIVE";
  const Lines second = {"LDS R9, [R8]", ".L_second", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x110], R4",
                        "@!P0 BRA `(.L_second)", "@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R9+URZ+0x108], RZ"};
  const auto with = [&](const Lines& lines) {
    return figure(replaced(with_producer(), arrival, lines), "never_arrived");
  };
  CHECK(with(second) == 0);
  // No copy of a wait for the first one: of another register, or with another parity. A gap. An address that stays.
  CHECK(with(replaced(second, "SYNCS.PHASECHK", {"SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5+0x110], R4"})) == 1);
  CHECK(with(replaced(second, "SYNCS.PHASECHK", {"SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x110], R24"})) == 1);
  CHECK(with(replaced(second, "SYNCS.PHASECHK", {"SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x130], R4"})) == 1);
  CHECK(with(replaced(second, "LDS R9", {"MOV R9, 0x400"})) == 1);
  // Another parity, but as many arrivals (official FlashAttention-3, backward); of another kind of barrier.
  const Lines flipped = replaced(second, "SYNCS.PHASECHK", {"SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x110], R24"});
  const auto counted = [&](const std::string& count) {
    Lines lines = replaced(with_producer(), arrival, flipped);
    lines.insert(lines.begin(), {"UMOV UR4, 0x400", "UMOV UR6, 0x1ffe00", "SYNCS.EXCH.64 URZ, [UR4+0x108], UR6",
                                 "UMOV UR6, " + count, "SYNCS.EXCH.64 URZ, [UR4+0x110], UR6"});
    return figure(lines, "never_arrived");
  };
  CHECK(counted("0x1ffe00") == 0);
  CHECK(counted("0x1ffffe") == 1);
}

TEST_CASE("what a loop does in its first turn only is beside its usual way") {
  // The first product is issued inside the loop, the next one ahead of the softmax.
  const Lines lines = {"CS2R R202, SRZ", ".L_loop", "ISETP.NE.AND P3, PT, R203, RZ, PT", "@P3 BRA `(.L_filled)",
                       "WARPGROUP.ARRIVE", "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0",
                       "WARPGROUP.DEPBAR.LE gsb0, 0x0", ".L_filled", "MUFU.EX2 R24, R24",
                       "F2FP.BF16.F32.PACK_AB R60, R25, R24", "VIADD R203, R203, 0x1", "WARPGROUP.ARRIVE",
                       "HGMMA.64x32x16.F32.BF16 R40, R60, gdesc[UR16].tnspB, R40, gsb0",
                       "WARPGROUP.DEPBAR.LE gsb0, 0x0", "ISETP.GE.AND P1, PT, R203, UR13, PT", "@P1 EXIT",
                       "WARPGROUP.ARRIVE", "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0",
                       "WARPGROUP.DEPBAR.LE gsb0, 0x0", "BRA `(.L_loop)"};
  const auto wgmmas = [](const Lines& of) { return value(only_hot(kernel(of)).figures, "wgmmas"); };
  CHECK(wgmmas(lines) == 2);
  CHECK(wgmmas(replaced(replaced(lines, "ISETP.NE", {"ISETP.EQ.AND P3, PT, R203, RZ, PT"}), "@P3",
                        {"@!P3 BRA `(.L_filled)"})) == 2);
  Lines uniform = replaced(lines, "ISETP.NE", {"ISETP.NE.AND P3, PT, RZ, UR21, PT"});
  uniform = replaced(replaced(uniform, "VIADD", {"UIADD3 UR21, UR21, 0x2, URZ"}), "CS2R", {"UMOV UR21, URZ"});
  CHECK(wgmmas(uniform) == 2);  // a sparse prefill of FlashMLA
  CHECK(wgmmas(replaced(uniform, "ISETP.NE", {"ISETP.NE.AND P3, PT, R9, UR21, PT"})) == 3);
  // Not if it may be done later, too: another number, or a counter that stands still or is set again.
  CHECK(wgmmas(replaced(lines, "ISETP.NE", {"ISETP.NE.AND P3, PT, R203, 0x1, PT"})) == 3);
  CHECK(wgmmas(replaced(lines, "VIADD", {"@P4 VIADD R203, R203, 0x1"})) == 3);
  CHECK(wgmmas(replaced(lines, "VIADD", {"VIADD R203, R203, 0x1", "MOV R203, RZ"})) == 3);
  CHECK(wgmmas(replaced(lines, "CS2R", {"LDC R203, c[0x0][0x210]"})) == 3);
  // Where there is no other way, it is the usual one.
  CHECK(wgmmas(replaced(lines, "@P3", {"@P3 EXIT"})) == 3);
}

TEST_CASE("arguments of printf are no spills, and a call by address has no name") {
  const Lines lines = {"LDC.64 R8, c[0x4][R2]", "STL.64 [R1], R4", "STL [R1+0x8], R6", "CALL.ABS.NOINC R8", "EXIT"};
  CHECK(figure(lines, "local") == 2);
  CHECK(figure(lines, "spills") == 0);
  CHECK(figure(lines, "calls_by_address") == 1);
  const sass::Kernel toy = kernel(lines);
  CHECK(toy.unseen.empty());
  CHECK_THAT(sass::list_text(toy, {}, {}), ContainsSubstring("calls by address, which are not followed: 1") &&
                                               !ContainsSubstring("R8"));
  // What is read again was spilled: the whole of it, or a half; and so is what is read at any place.
  CHECK(figure(replaced(lines, "EXIT", {"LDL.LU R6, [R1+0x8] (*\"SpillRefill\"*)", "EXIT"}), "spills") == 2);
  CHECK(figure(replaced(lines, "EXIT", {"LDL R6, [R1+0x4]", "EXIT"}), "spills") == 2);
  CHECK(figure(replaced(lines, "EXIT", {"LDL R6, [R5+0x4]", "EXIT"}), "spills") == 3);
  CHECK(figure(replaced(lines, "CALL", {}), "spills") == 2);  // no function, no arguments
}
