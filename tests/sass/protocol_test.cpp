// The protocol between warps: who executes what, constants that reach an instruction, and the figures made of both.
#include <catch2/catch_test_macros.hpp>

#include "dataflow/lanes.h"
#include "dataflow/values.h"
#include "handovers/protocol.h"
#include "listings.h"

using namespace listings;

namespace {

// Whether one lane gets to the instruction that begins with `wanted`.
bool by_one_lane(const Lines& lines, const std::string& wanted) {
  const sass::Listing listing = sass::parse(text("toy", lines)).at(0);
  const std::vector<bool> one = sass::by_one_lane(listing, sass::control_flow(listing));
  for (size_t i = 0; i < listing.code.size(); ++i)
    if (listing.code[i].text.starts_with(wanted)) return one[i];
  throw std::logic_error("no instruction " + wanted);
}

// The values of R0 that an instruction before EXIT reads, perhaps with a guard; "?" if it depends on what is not known.
std::string values(Lines lines, sass::Meeting meeting = sass::Meeting::all, const std::string& guard = "") {
  lines.insert(lines.end(), {guard + "FADD RZ, RZ, R0", "EXIT"});
  const sass::Listing listing = sass::parse(text("toy", lines)).at(0);
  const std::vector<int> wanted{static_cast<int>(listing.code.size()) - 2};
  const sass::Values found =
      sass::operand_values(listing, sass::control_flow(listing), wanted, sass::last_operand, meeting).at(0);
  std::string result = found.runtime ? "?" : "";
  for (int k = 0; k < found.count; ++k) result += (k ? " " : "") + std::to_string(found.values[k]);
  return result;
}

double kernel_value(const Lines& lines, const std::string& figure) { return value(kernel(lines).figures, figure); }
std::string scope(const Lines& lines, const std::string& scope, const std::string& figure) {
  const sass::Kernel k = kernel(lines);
  const sass::Figure* found = sass::find(k.scopes.at(scope), figure);
  return found ? found->shown() : "no such figure";
}
std::string loop(const Lines& lines, const std::string& figure) {
  const sass::Kernel k = kernel(lines);
  const sass::Figure* found = sass::find(only_hot(k).figures, figure);
  return found ? found->shown() : "no such figure";
}

}  // namespace

TEST_CASE("one lane: comparisons of the thread's number") {
  const auto one = [](const Lines& setting, const std::string& guard) {
    Lines lines = {"S2R R0, SR_TID.X", "S2R R9, SR_CTAID.X", "LDG.E R8, [R10]"};
    lines.insert(lines.end(), setting.begin(), setting.end());
    lines.insert(lines.end(), {"@" + guard + " UTMALDG.4D [UR8], [UR6]", "EXIT"});
    return by_one_lane(lines, "@" + guard + " UTMALDG");
  };
  CHECK(one({"ISETP.NE.AND P0, PT, R0, 0x20, PT"}, "!P0"));
  CHECK_FALSE(one({"ISETP.NE.AND P0, PT, R0, 0x20, PT"}, "P0"));
  CHECK(one({"ISETP.EQ.AND P0, PT, R0, R9, PT"}, "P0"));           // with what is the same in all lanes
  CHECK_FALSE(one({"ISETP.EQ.AND P0, PT, R0, R8, PT"}, "P0"));     // with what need not be
  CHECK_FALSE(one({"ISETP.GT.AND P0, PT, R0, 0x20, PT"}, "!P0"));
  CHECK(one({"LOP3.LUT P0, RZ, R0, 0x1f, RZ, 0xc0, !PT"}, "!P0"));
  CHECK_FALSE(one({"LOP3.LUT P0, RZ, R0, 0x1e, RZ, 0xc0, !PT"}, "!P0"));
  CHECK(one({"LOP3.LUT P0, RZ, R8, 0x1f, R0, 0xf8, !PT"}, "!P0"));        // a | (b & c)
  CHECK_FALSE(one({"LOP3.LUT P0, RZ, R8, 0x1f, R0, 0x80, !PT"}, "!P0"));  // a & b & c
  CHECK(one({"LOP3.LUT R2, R0, 0x1f, RZ, 0xc0, !PT", "SHFL.BFLY PT, R3, R2, 0x1f, 0x1f",
             "ISETP.NE.AND P0, PT, R3, 0x1f, PT"}, "!P0"));
  CHECK_FALSE(one({"SHF.R.U32.HI R2, RZ, 0x5, R0", "ISETP.NE.AND P0, PT, R2, 0x2, PT"}, "!P0"));  // one warp
  CHECK_FALSE(one({"SHFL.IDX PT, R2, R0, RZ, 0x1f", "ISETP.NE.AND P0, PT, R2, 0x2, PT"}, "!P0"));
  CHECK(one({"ISETP.NE.AND P1, PT, R0, RZ, PT", "ISETP.GT.OR P0, PT, R9, 0x1, P1"}, "!P0"));
  CHECK_FALSE(one({"ISETP.NE.AND P1, PT, R0, RZ, PT", "ISETP.GT.AND P0, PT, R9, 0x1, P1"}, "!P0"));
  CHECK(one({"ISETP.NE.AND P1, PT, R0, RZ, PT", "PLOP3.LUT P0, PT, P1, PT, PT, 0x8, 0x0"}, "P0"));  // !P1
  CHECK(one({"ELECT P0, URZ, PT"}, "P0"));
  CHECK_FALSE(one({"ISETP.NE.AND P0, PT, R0, RZ, PT", "FSETP.GT.AND P0, PT, R8, RZ, PT"}, "!P0"));
  CHECK(one({"ISETP.NE.AND P0, PT, R0, RZ, PT", "VOTEU.ANY UP0, P0"}, "!P0"));  // which reads P0
}

TEST_CASE("one lane: branches") {
  const Lines lines = {"S2R R0, SR_TID.X", "ISETP.NE.AND P0, PT, R0, RZ, PT", "@P0 BRA `(.L_join)", "MOV R1, 0x1",
                       "@P1 BRA `(.L_inside)", "MOV R2, 0x1", ".L_inside", "MOV R3, 0x1", ".L_join", "MOV R4, 0x1",
                       "@P0 EXIT", "MOV R5, 0x1", "EXIT"};
  CHECK_FALSE(by_one_lane(lines, "@P0 BRA"));
  for (const char* inside : {"MOV R1", "MOV R2", "MOV R3", "MOV R5"}) CHECK(by_one_lane(lines, inside));
  CHECK_FALSE(by_one_lane(lines, "MOV R4"));
  // A loop that ptxas makes to serve the lanes one after another.
  CHECK_FALSE(by_one_lane({"S2R R0, SR_TID.X", ".L_next", "@P0 ELECT P1, URZ, PT", "@P1 R2UR UR8, R0",
                           "UTMALDG.4D [UR8], [UR6]", "@P0 BRA.U.ANY `(.L_next)", "EXIT"},
                          "UTMALDG"));
  // "@!P0 BRA P1" branches if both hold.
  const Lines two = {"S2R R0, SR_TID.X", "ISETP.NE.AND P0, PT, R0, RZ, PT", "@!P0 BRA P1, `(.L_there)", "MOV R1, 0x1",
                     "EXIT", ".L_there", "MOV R2, 0x1", "EXIT"};
  CHECK_FALSE(by_one_lane(two, "MOV R1"));
  CHECK(by_one_lane(two, "MOV R2"));
  // ELECT, whose condition ptxas drops from TMA; where the warp has to be brought together first; on one way of two.
  CHECK(by_one_lane({"ELECT P2, URZ, PT", "UTMALDG.4D [UR8], [UR6]", "EXIT"}, "UTMALDG"));
  CHECK_FALSE(by_one_lane({"ELECT P2, URZ, PT", "SYNCS.ARRIVE.TRANS64 RZ, [UR4], R9", "EXIT"}, "SYNCS"));
  const Lines apart = {"BRA.DIV UR8, `(.L_apart)", "ELECT P0, URZ, PT", ".L_chosen", "@!P0 EXIT",
                       "UTMALDG.4D [UR8], [UR6]", "EXIT", ".L_apart", "WARPSYNC.COLLECTIVE R9, `(.L_together)",
                       "ELECT P0, UR62, PT", "ENDCOLLECTIVE", ".L_together", "BRA `(.L_chosen)"};
  CHECK(by_one_lane(apart, "UTMALDG"));
  CHECK_FALSE(by_one_lane(replaced(apart, "ELECT P0, UR62", {"NOP"}), "UTMALDG"));
  const Lines maybe = {"PLOP3.LUT P2, PT, PT, PT, PT, 0x8, 0x0", "@P1 BRA `(.L_other)", "ELECT P2, URZ, PT",
                       ".L_other", "@!P2 EXIT", "UTMALDG.4D [UR8], [UR6]", "EXIT"};
  CHECK(by_one_lane(maybe, "UTMALDG"));
  CHECK_FALSE(by_one_lane(replaced(maybe, "PLOP3", {"PLOP3.LUT P2, PT, PT, PT, PT, 0x80, 0x0"}), "UTMALDG"));
  // Set by one lane, kept as a bit of a register.
  const Lines bits = {"PLOP3.LUT P0, PT, PT, PT, PT, 0x8, 0x0", "ELECT P1, URZ, PT", "@!P1 BRA `(.L_rest)",
                      "PLOP3.LUT P0, PT, PT, PT, PT, 0x80, 0x0", ".L_rest",
                      "LOP3.LUT R14, R14, 0xffffffdf, RZ, 0xc0, !PT", "@P0 LOP3.LUT R14, R14, 0x20, RZ, 0xfc, !PT",
                      "LOP3.LUT P3, RZ, R14, 0x20, RZ, 0xc0, !PT", "@!P3 EXIT", "UTMALDG.4D [UR8], [UR6]", "EXIT"};
  CHECK(by_one_lane(bits, "UTMALDG"));
  CHECK_FALSE(by_one_lane(replaced(bits, "PLOP3", {"PLOP3.LUT P0, PT, PT, PT, PT, 0x80, 0x0"}), "UTMALDG"));
  CHECK_FALSE(by_one_lane(replaced(bits, "@P0 LOP3", {"@P2 LOP3.LUT R14, R14, 0x20, RZ, 0xfc, !PT"}), "UTMALDG"));
  CHECK_FALSE(by_one_lane(replaced(bits, "LOP3.LUT R14", {"NOP"}), "UTMALDG"));
  CHECK_FALSE(by_one_lane(replaced(bits, "LOP3.LUT P3", {"LOP3.LUT P3, RZ, R14, 0x21, RZ, 0xc0, !PT"}), "UTMALDG"));
}

TEST_CASE("one lane: a predicate that a register keeps for a while") {
  const Lines kept = {"S2R R0, SR_TID.X", "ISETP.NE.AND P1, PT, R0, RZ, PT", "P2R R15, PR, RZ, 0x2",
                      "FSETP.GT.AND P1, PT, R8, RZ, PT", "ISETP.NE.AND P1, PT, R15, RZ, PT", "@P1 EXIT",
                      "UTMALDG.4D [UR8], [UR6]", "EXIT"};
  CHECK(by_one_lane(kept, "UTMALDG"));
  const Lines turned = replaced(kept, "ISETP.NE.AND P1, PT, R15", {"ISETP.EQ.AND P1, PT, R15, RZ, PT"});
  CHECK(by_one_lane(replaced(turned, "@P1 EXIT", {"@!P1 EXIT"}), "UTMALDG"));
  CHECK_FALSE(by_one_lane(turned, "UTMALDG"));
  // The other way round; not that predicate alone; not always; another register; another value by now.
  CHECK_FALSE(by_one_lane(replaced(kept, "@P1 EXIT", {"@!P1 EXIT"}), "UTMALDG"));
  for (const char* other : {"P2R R15, PR, RZ, 0x3", "P2R R15, PR, RZ, 0x1", "P2R R15, PR, R14, 0x2",
                            "@P3 P2R R15, PR, RZ, 0x2", "P2R R16, PR, RZ, 0x2"})
    CHECK_FALSE(by_one_lane(replaced(kept, "P2R", {other}), "UTMALDG"));
  CHECK_FALSE(by_one_lane(replaced(kept, "FSETP", {"FSETP.GT.AND P1, PT, R8, RZ, PT", "MOV R15, 0x1"}), "UTMALDG"));
  const Lines with_two = replaced(kept, "ISETP.NE.AND P1, PT, R15", {"ISETP.NE.AND P1, PT, R15, 0x2, PT"});
  CHECK_FALSE(by_one_lane(with_two, "UTMALDG"));
  const Lines either = replaced(kept, "FSETP", {"@P2 BRA `(.L_meet)", "MOV R15, R9", ".L_meet",
                                                "FSETP.GT.AND P1, PT, R8, RZ, PT"});
  CHECK_FALSE(by_one_lane(either, "UTMALDG"));
}

TEST_CASE("constants that reach an instruction") {
  CHECK(values({"MOV R0, 0x4000"}) == "16384");
  CHECK(values({"MOV R1, 0x4000", "SEL R0, R1, RZ, P0"}) == "0 16384");
  CHECK(values({"HFMA2.MMA R0, -RZ, RZ, 2, 0"}) == "1073741824");  // 0x40000000
  CHECK(values({"HFMA2.MMA R0, -RZ, RZ, 0, 5.9604644775390625e-08"}) == "1");
  CHECK(values({"HFMA2.MMA R0, -RZ, RZ, 0, -1.5"}) == "48640");  // 0xbe00
  CHECK(values({"UMOV UR4, 0x30", "IMAD.U32 R1, RZ, RZ, UR4", "SHF.L.U32 R0, R1, 0x4, RZ"}) == "768");
  CHECK(values({"MOV R1, 0x5", "LOP3.LUT R0, R1, 0x1, RZ, 0xc, !PT"}) == "0");  // !a & b
  CHECK(values({"MOV R1, 0x5", "LOP3.LUT R0, R1, 0x1, RZ, 0x3c, !PT"}) == "4");
  CHECK(values({"MOV R1, 0x7", "IMAD.WIDE.U32 R2, R1, -0x55555555, RZ", "SHF.R.U32.HI R0, RZ, 0x1, R3"}) == "2");
  CHECK(values({"MOV R1, 0x5", "IADD3 R0, -R1, 0x8, RZ"}) == "3");
  CHECK(values({"MOV R1, 0x5", "LEA R0, R1, 0x100, 0x3"}) == "296");
  CHECK(values({"CS2R R0, SRZ"}) == "0");
  CHECK(values({"LDG.E R0, [R2]"}) == "?0");
  CHECK(values({"MOV R0, 0x1", "@P0 MOV R0, 0x2"}) == "1 2");
  CHECK(values({"MOV R0, 0x1", "ISETP.NE.AND P0, PT, R0, RZ, PT", "UISETP.NE.AND UP0, UPT, UR4, URZ, UPT"}) == "1");
  const Lines ways = {"MOV R0, 0x1", "@P0 BRA `(.L_meet)", "MOV R0, 0x2", ".L_meet"};
  CHECK(values(ways) == "1 2");
  CHECK(values(ways, sass::Meeting::unknown) == "?0");
  CHECK(values({"MOV R0, RZ", ".L_loop", "MOV R1, R0", "IADD3 R0, R0, 0x1, RZ", "@P0 BRA `(.L_loop)", "MOV R0, R1"}) ==
        "0");  // in the loop's first turn
}

TEST_CASE("constants that instructions with one guard hand to each other") {
  // With guard @!P1, R0 when "@!P1 FADD RZ, RZ, R0" is come to.
  const auto guarded = [](Lines lines, sass::Meeting meeting = sass::Meeting::all) {
    lines.insert(lines.begin(), "MOV R0, 0x80000000");
    return values(lines, meeting, "@!P1 ");
  };
  CHECK(guarded({}) == "2147483648");
  CHECK(guarded({"@!P1 MOV R0, 0x2000"}) == "8192");
  CHECK(guarded({"@!P1 MOV R0, 0x2000", "@!P1 SEL R0, R0, 0x4000, !P2"}) == "8192 16384");
  CHECK(guarded({"@!P1 MOV R0, 0x2000", "@P1 MOV R0, 0x3000"}) == "8192");
  CHECK(guarded({"@!P1 MOV R0, 0x2000", "@!P1 MOV R0, 0x3000"}) == "12288");
  CHECK(guarded({"@!P1 MOV R0, 0x2000", "VOTEU.ALL UP1, P1"}) == "8192");  // which reads P1
  CHECK(guarded({"@!P1 MOV R0, 0x2000", "MOV R0, 0x3000"}) == "12288");
  CHECK(guarded({"@!P1 LDS R0, [R2]"}) == "?0");
  CHECK(guarded({"LDS R0, [R2]", "@!P1 MOV R0, 0x2000"}) == "8192");
  CHECK(guarded({"@P1 MOV R0, 0x2000"}) == "2147483648");
  // Another guard; the same one, of another value by now.
  CHECK(guarded({"@!P2 MOV R0, 0x2000"}) == "8192 2147483648");
  CHECK(guarded({"@!UP1 MOV R0, 0x2000"}) == "8192 2147483648");
  for (const char* change : {"ISETP.NE.AND P1, PT, R9, RZ, PT", "ISETP.NE.AND P3, P1, R9, RZ, PT",
                             "IADD3 R9, P3, P1, R9, R8, R7", "R2P PR, R9, 0x2", "CALL.REL.NOINC `(.L_meet)"}) {
    INFO(change);
    CHECK(guarded({"@!P1 MOV R0, 0x2000", change, ".L_meet"}) == "8192 2147483648");
  }
  // Without a guard, or on ways that meet, it may be either.
  CHECK(values({"MOV R0, 0x1", "@!P1 MOV R0, 0x2", "@!P1 MOV R0, 0x3"}) == "1 3");
  CHECK(guarded({"@P2 BRA `(.L_meet)", "@!P1 MOV R0, 0x2000", ".L_meet"}) == "8192 2147483648");
  const Lines both = {"@P2 BRA `(.L_other)",   "@!P1 MOV R0, 0x2000", "BRA `(.L_meet)",
                      ".L_other", "@!P1 MOV R0, 0x3000", ".L_meet"};
  CHECK(guarded(both) == "8192 12288");
  CHECK(guarded(both, sass::Meeting::unknown) == "?0");
  CHECK(guarded({"@!P1 MOV R0, 0x2000", ".L_next"}, sass::Meeting::unknown) == "8192");
  CHECK(guarded({"@!P1 MOV R0, 0x2000", ".L_loop", "@P3 BRA `(.L_loop)"}) == "8192");
}

TEST_CASE("a sound protocol") {
  const Lines lines = with_producer();
  for (const char* figure : {"tma_by_many", "waits_without_spin", "never_arrived", "unfenced"}) {
    INFO(figure);
    CHECK(kernel_value(lines, figure) == 0);
  }
  CHECK(kernel_value(lines, "tma_loads") == 1);
  CHECK(kernel_value(lines, "tma_stores") == 1);
  CHECK(kernel_value(lines, "mbarrier_waits") == 3);  // not their copies that spin
  CHECK(words(kernel(lines).figures, "expected_bytes") == "8192/16384");
  CHECK(scope(lines, "prologue", "setmaxnreg") == "+112");
  CHECK(scope(lines, "producer", "setmaxnreg") == "-32");
  CHECK(scope(lines, "producer", "tma_loads") == "1");
  CHECK(scope(lines, "producer", "parities") == "1 0");
  CHECK(scope(lines, "epilogue", "tma_stores") == "1");
  CHECK(scope(lines, "epilogue", "releases") == "0");
  CHECK(scope(lines, "epilogue", "waits") == "none");
  CHECK(loop(lines, "releases") == "0");
  CHECK(loop(lines, "arrives_by_many") == "0");
  CHECK(loop(lines, "accumulators") == "PV adds, QK overwrites");
  CHECK(loop(lines, "transposed") == "PV B");
  CHECK(loop(lines, "conversion_types") == "BF16.F32");
  CHECK(loop(lines, "compares") == "GT constant");
  CHECK(loop(lines, "masks_anywhere") == "0");
  CHECK(loop(lines, "most_exps") == "9");
  CHECK(loop(lines, "most_multiplies") == "1");
  CHECK(loop(lines, "longest_instructions") == "46");  // by way of a wait that spins once, and the rare path
}

TEST_CASE("a wait may end the thread") {
  const auto with_last_wait = [](const std::string& end) {
    const std::string wait = "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x118], RZ";
    return replaced(with_producer(), "@P2 BRA `(.L_more)",
                    {"@P2 BRA `(.L_more)", wait, end, ".L_over", wait, "@!P0 BRA `(.L_over)"});
  };
  CHECK(kernel_value(with_last_wait("@P0 EXIT"), "waits_without_spin") == 0);
  CHECK(kernel_value(with_last_wait("@P0 EXIT"), "mbarrier_waits") == 4);
  CHECK(kernel_value(with_last_wait("@!P0 EXIT"), "waits_without_spin") == 1);  // ends it too early
  CHECK(kernel_value(with_last_wait("@P1 EXIT"), "waits_without_spin") == 1);   // whatever the wait says
}

TEST_CASE("each fault of the protocol moves its figure") {
  const auto spoilt = [](const std::string& old, const Lines& lines) { return replaced(with_producer(), old, lines); };
  const std::string release = "@!P3 SYNCS.ARRIVE";
  // Given back before PV is done, never, by all lanes, by all but one.
  CHECK(loop(spoilt("WARPGROUP.DEPBAR.LE gsb0, 0x1", {"WARPGROUP.DEPBAR.LE gsb0, 0x1",
                                                        "@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108], RZ"}),
                "releases") == "1 0");
  CHECK(loop(spoilt(release, {}), "releases") == "none");
  CHECK(kernel_value(spoilt(release, {}), "never_arrived") == 1);
  CHECK(loop(spoilt(release, {"SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108], RZ"}), "arrives_by_many") == "1");
  CHECK(loop(spoilt(release, {"@P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108], RZ"}), "arrives_by_many") == "1");
  // Fences.
  CHECK(kernel_value(spoilt("FENCE.VIEW.ASYNC.S", {}), "unfenced") == 2);  // the store, and the arrival behind it
  CHECK(kernel_value(spoilt("FENCE.VIEW.ASYNC.S", {}), "unfenced_tma") == 1);
  CHECK(kernel_value(spoilt("STSM", {"STS.128 [R5], R24"}), "unfenced") == 0);
  CHECK(kernel_value(replaced(spoilt("STSM", {"STS.128 [R5], R24"}), "FENCE", {}), "unfenced") == 1);
  CHECK(kernel_value(spoilt("NOP", {}), "unfenced") == 1);
  // Who issues TMA.
  CHECK(kernel_value(spoilt("@P3 EXIT", {}), "tma_by_many") == 1);
  CHECK(kernel_value(spoilt("@P3 BRA `(.L_stored)", {}), "tma_by_many") == 1);
  // Waits that do not spin: the result unused, overwritten, one try more.
  CHECK(kernel_value(spoilt("@!P0 BRA `(.L_full)", {}), "waits_without_spin") == 1);
  CHECK(kernel_value(spoilt("@!P0 BRA `(.L_full)", {"ISETP.NE.AND P0, PT, R9, RZ, PT", "@!P0 BRA `(.L_full)"}),
                  "waits_without_spin") == 1);
  CHECK(kernel_value(spoilt("@P0 BRA `(.L_given)", {"BRA `(.L_given)"}), "waits_without_spin") == 2);
  // Bytes, parities, registers.
  CHECK(words(kernel(spoilt("MOV R7, 0x4000", {"MOV R7, 0x3000"})).figures, "expected_bytes") == "8192/12288");
  CHECK(words(kernel(spoilt("MOV R7, 0x4000", {"LDC R7, c[0x0][0x210]"})).figures, "expected_bytes") == "runtime");
  CHECK(scope(spoilt("LOP3.LUT R4, R4, 0x1, RZ, 0xc,", {"LOP3.LUT R4, R4, 0x1, RZ, 0xc0, !PT"}), "producer",
                 "parities") == "0 0");
  CHECK(scope(spoilt("USETMAXREG.DEALLOC", {"USETMAXREG.DEALLOC.CTAPOOL 0x18"}), "producer", "setmaxnreg") == "-24");
  // Products.
  CHECK(loop(spoilt("HGMMA.64x32x16", {"HGMMA.64x32x16.F32.BF16 R40, R60, gdesc[UR16].tnspB, RZ, !UPT, gsb0"}),
                "accumulators") == "PV overwrites, QK overwrites");
  CHECK(loop(spoilt("HGMMA.64x32x16", {"HGMMA.64x32x16.F32.BF16 R40, R60, gdesc[UR16].tnspB, R40, UP0, gsb0"}),
                "accumulators") == "PV overwrites or adds, QK overwrites");
  CHECK(loop(spoilt("HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8]",
                       {"HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24"}), "accumulators") == "PV adds, QK adds");
  CHECK(loop(spoilt("HGMMA.64x32x16", {"HGMMA.64x32x16.F32.BF16 R40, R60, gdesc[UR16], R40, gsb0"}),
                "transposed") == "none");
  CHECK(loop(spoilt("F2FP.BF16.F32.PACK_AB R60", {"F2FP.F16.F32.PACK_AB R60, R25, R24"}), "conversion_types") ==
        "BF16.F32 F16.F32");
  // Beside the usual way.
  CHECK(loop(spoilt("FMNMX R3", {"FSEL R3, R3, -INF, P6"}), "masks_anywhere") == "1");
  CHECK(loop(spoilt("FMNMX R3", {"MUFU.EX2 R3, R3"}), "most_exps") == "10");
  CHECK(loop(spoilt("FMNMX R3", {"FMUL R3, R3, R4", "FMUL R3, R3, R4"}), "most_multiplies") == "3");
  CHECK(loop(spoilt("FMNMX R3", {"FMUL R3, R3, R4", "FMUL R3, R3, R4"}), "longest_instructions") == "47");
  CHECK(loop(spoilt("FSETP.GT.AND P1, PT, R4, 1048576", {"FSETP.GT.AND P1, PT, R4, R5, PT"}), "compares") == "GT");
  // Behind the loop.
  const Lines waits = spoilt("STSM", {"WARPGROUP.DEPBAR.LE gsb0, 0x1", "STSM.16.M88.4 [R5], R24"});
  CHECK(scope(waits, "epilogue", "waits") == "1");
}

TEST_CASE("a barrier's address may stand in a register") {
  Lines lines = replaced(with_producer(), "@!P3 SYNCS.ARRIVE",
                         {"MOV R9, 0x24400", "@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R9+0x6108], RZ"});
  CHECK(kernel_value(lines, "never_arrived") == 1);
  const std::string wait = "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x108]";
  lines = replaced(lines, wait, {"MOV R10, 0x408", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R10+0x2a108], R4"});
  lines = replaced(lines, wait, {"SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R10+0x2a108], R4"});
  CHECK(kernel_value(lines, "never_arrived") == 0);  // the same array, and its second barrier
  // FlashKDA: the arrival has all of the address, of the first one, in a register.
  lines = replaced(lines, "@!P3 SYNCS.ARRIVE", {"MOV R9, 0x2a508", "@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R9+URZ], RZ"});
  CHECK(kernel_value(lines, "never_arrived") == 0);
  CHECK(kernel_value(replaced(lines, "MOV R9, 0x2a508", {"MOV R9, 0x2a708"}), "never_arrived") == 1);
  // And another wait's address depends on what is not known.
  lines = replaced(lines, "IADD3 R6", {".L_again", "LDS R11, [R8]",
                                       "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R11+0x2a108], R4",
                                       "@!P0 BRA `(.L_again)", "IADD3 R6, R6, 0x1, RZ"});
  CHECK(kernel_value(lines, "never_arrived") == 0);
  // An address that nothing is known of, beside one that is.
  const std::string arrival = "@!P3 SYNCS.ARRIVE";
  lines = replaced(with_producer(), arrival, {"LDS R9, [R8]", "@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R9+URZ], RZ"});
  CHECK(kernel_value(lines, "never_arrived") == 0);
  lines = replaced(with_producer(), arrival, {"LDS R9, [R8]", "@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R9+URZ+0x8], RZ"});
  CHECK(kernel_value(lines, "never_arrived") == 1);
}
