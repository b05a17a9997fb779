// The table of hand-overs, the rules on it, and the figures of constants and modes.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "handovers/handovers.h"
#include "listings.h"
#include "views/reports.h"

using namespace listings;
using Catch::Matchers::ContainsSubstring;

namespace {

const std::string release = "@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108]";

// Its shared memory begins where it is known to.
Lines sound() {
  Lines lines = with_producer();
  lines.insert(lines.begin(), "UMOV UR4, 0x400");
  return lines;
}
Lines spoilt(const std::string& old, const Lines& lines) { return replaced(sound(), old, lines); }

double kernel_value(const Lines& lines, const std::string& figure) { return value(kernel(lines).figures, figure); }
std::string text_of(const Lines& lines, const std::string& figure) { return words(kernel(lines).figures, figure); }

// A loop of some instructions, executed after the base of shared memory is in UR4.
Lines in_a_loop(Lines inside) {
  Lines lines = {"UMOV UR4, 0x400", "MOV R6, RZ", ".L_loop"};
  lines.insert(lines.end(), inside.begin(), inside.end());
  lines.insert(lines.end(), {"IADD3 R6, R6, 0x1, RZ", "@P2 BRA `(.L_loop)", "EXIT"});
  return lines;
}
Lines wait(const std::string& barrier, const std::string& parity) {
  return {".L_try", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [" + barrier + "], " + parity, "@!P0 BRA `(.L_try)"};
}
Lines joined(Lines a, const Lines& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("hand-overs: a sound kernel") {
  // But for one of its waits, which is for one parity.
  for (const char* rule : {"never_awaited", "unexpected_loads", "never_loaded", "odd_counts", "odd_named_barriers",
                           "never_read_out", "released_in_flight"}) {
    INFO(rule);
    CHECK(kernel_value(sound(), rule) == 0);
  }
  const std::string shown = sass::show_text(kernel(sound()), {}, {});
  CHECK_THAT(shown, ContainsSubstring("hand-overs\n") && ContainsSubstring("mbarrier at 508") &&
                        ContainsSubstring("arrive: loop QK+PV\n") &&
                        ContainsSubstring("wait (parity 1 first, flips with turns): producer") &&
                        ContainsSubstring("barrier 0 for 256 threads"));
}

TEST_CASE("hand-overs: bytes that one lane expects, in a register that held a parity") {
  const Lines led = {"MOV R8, R4", "@!P3 MOV R8, 0x2000", "@!P3 SEL R8, R8, 0x4000, P1"};
  const Lines lines = replaced(spoilt("SEL R8", led), "SYNCS.ARRIVE.TRANS64 RZ",
                               {"@!P3 SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x100], R8"});
  CHECK(text_of(lines, "expected_bytes") == "8192/16384");
  CHECK_THAT(sass::handover_text(kernel(lines)), ContainsSubstring("expect 16384 or 8192 bytes: producer\n"));
  // All lanes expect them, where one of them alone has them.
  const Lines by_all = replaced(lines, "@!P3 SYNCS.ARRIVE.TRANS64 RZ", {"SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x100], R8"});
  CHECK(text_of(by_all, "expected_bytes") == "8192/16384/2147483648");
}

TEST_CASE("hand-overs: what nobody waits for, and where no load ends") {
  CHECK(kernel_value(spoilt(release, {"@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x148], RZ"}), "never_awaited") == 1);
  // vLLM: an address for the cluster has lost the base of shared memory, so that no barrier is made there.
  const Lines lost = spoilt(release, {"@!P3 SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [UR4+0x148], RZ"});
  CHECK(kernel_value(lost, "never_awaited") == 0);
  Lines made = lost;
  made.insert(made.begin() + 1, "SYNCS.EXCH.64 URZ, [UR4+0x148], UR6");
  CHECK(kernel_value(made, "never_awaited") == 1);
  // Nor is it one at which loads end that have lost it, too: these may be at any.
  const Lines made_and_lost = {"UMOV UR4, 0x400",  "UMOV UR12, 0x38860", "UMOV UR9, 0x38870",
                               "SYNCS.EXCH.64 URZ, [UR4+0x38860], UR6", "SYNCS.EXCH.64 URZ, [UR4+0x38870], UR6",
                               "SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [UR12], RZ",
                               "SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x38870], R8", "UTMALDG.4D [UR8], [UR6]"};
  const auto lost_too = [&](const Lines& lines) {
    return kernel_value(joined(joined(lines, wait("UR4+0x38870", "R6")), {"EXIT"}), "unexpected_loads");
  };
  CHECK(lost_too(made_and_lost) == 0);
  CHECK(lost_too(replaced(made_and_lost, "UMOV UR12", {"UMOV UR12, 0x38c60"})) == 0);
  CHECK(lost_too(replaced(replaced(made_and_lost, "UMOV UR12", {"UMOV UR12, 0x38c60"}), "UMOV UR9",
                          {"UMOV UR9, 0x38c60"})) == 1);
  // A load that ends at another barrier than that which expects its bytes.
  const auto loaded = [](const std::string& barrier) {
    const Lines before = {"SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x100], R8", "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108], RZ",
                          "UIADD3 UR9, UR4, " + barrier + ", URZ", "UTMALDG.4D [UR8], [UR6]"};
    const Lines other = {"SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4+0x108], R6"};
    return in_a_loop(joined(joined(before, wait("UR4+0x100", "R6")), other));
  };
  CHECK(kernel_value(loaded("0x100"), "unexpected_loads") == 0);
  CHECK(kernel_value(loaded("0x100"), "never_loaded") == 0);
  CHECK(kernel_value(loaded("0x108"), "unexpected_loads") == 1);
  CHECK(kernel_value(loaded("0x108"), "never_loaded") == 1);
  // Nothing is said of an address that is not known.
  CHECK(kernel_value(replaced(loaded("0x108"), "UIADD3 UR9", {"R2UR UR9, R30"}), "never_loaded") == 0);
}

TEST_CASE("hand-overs: cp.async's arrival expects no bytes") {
  const Lines copies = {"SYNCS.ARRIVE.TRANS64.RED.A0T1 RZ, [UR4+0x100], RZ",
                        "ARRIVES.LDGSTSBAR.64.TRANSCNT [UR4+0x100]"};
  const sass::Kernel copied = kernel(in_a_loop(joined(copies, wait("UR4+0x100", "R6"))));
  CHECK(words(copied.figures, "expected_bytes") == "none");
  CHECK_THAT(sass::handover_text(copied), ContainsSubstring("announce what cp.async copies: ") &&
                                              !ContainsSubstring(" bytes"));
}

TEST_CASE("hand-overs: a parity that never flips") {
  const auto waited = [](const Lines& before, const std::string& parity, const std::string& arrival) {
    return in_a_loop(joined(joined(before, wait("UR4+0x100", parity)), {arrival}));
  };
  const std::string arrival = "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x100], RZ";
  const Lines flips = {"SHF.L.U32 R3, R6, 0x1f, RZ"};
  CHECK(kernel_value(waited(flips, "R3", arrival), "parity_never_flips") == 0);
  CHECK(kernel_value(waited({}, "RZ", arrival), "parity_never_flips") == 1);
  CHECK(kernel_value(waited({"MOV R2, 0x1", "SHF.L.U32 R3, R2, 0x1f, RZ"}, "R3", arrival), "parity_never_flips") == 1);
  CHECK(kernel_value(waited({"LDS R3, [R9]"}, "R3", arrival), "parity_never_flips") == 0);
  CHECK(kernel_value(waited({}, "RZ", "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108], RZ"), "parity_never_flips") == 0);
}

// A role that loads, one that always waits for what is loaded and gives it back, and one that leaves that wait out
// where it has nothing to do: the backward pass had it so.
namespace {

struct Roles {
  Lines skip = {"LDS R20, [UR4+0x180]", "ISETP.GE.AND P3, PT, R20, 0x1, PT", "@!P3 BRA `(.L_nothing)"};
  Lines count = {"UIADD3 UR6, UR6, 0x1, URZ"};
  Lines parity = {"ULOP3.LUT UR7, UR6, 0x1, URZ, 0xc0, !UPT", "IMAD.U32 R3, RZ, RZ, UR7", "SHF.L.U32 R3, R3, 0x1f, RZ"};
  Lines end = {"LDS R21, [UR4+0x184]", "ISETP.GE.AND P4, PT, R21, c[0x0][0x210], PT", "@P4 EXIT"};
  Lines skipped = {};  // what it does in any case
  Lines to_load = {};  // the role that loads, before that
  Lines reader_arrives = {"@!P5 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108], RZ"};
};

Lines three_roles(const Roles& roles) {
  const Lines begin = {"UMOV UR4, 0x400", "UMOV UR6, URZ", "SYNCS.EXCH.64 URZ, [UR4+0x100], UR8",
                       "SYNCS.EXCH.64 URZ, [UR4+0x108], UR8", "SYNCS.EXCH.64 URZ, [UR4+0x110], UR8",
                       "SYNCS.EXCH.64 URZ, [UR4+0x118], UR8", "@P1 BRA `(.L_load)", "@P2 BRA `(.L_read)"};
  // The one that may leave it out. At 110 and 118 it meets the one that loads.
  Lines lines = joined(begin, {".L_compute"});
  for (const Lines& part : {roles.end, roles.parity, roles.skip})
    lines = joined(lines, part);
  lines = joined(lines, {"SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x100], R3", "@!P0 BRA `(.L_spin)", ".L_nothing"});
  lines = joined(lines, roles.skipped);
  lines = joined(lines, {"SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x118], RZ"});
  lines = joined(joined(lines, roles.count), {"BRA `(.L_compute)"});
  // The one that always waits.
  lines = joined(lines, {".L_read"});
  lines = joined(joined(lines, roles.end), roles.parity);
  lines = joined(lines, {".L_again", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x100], R3", "@!P0 BRA `(.L_again)"});
  lines = joined(joined(lines, roles.reader_arrives), {"UIADD3 UR6, UR6, 0x1, URZ", "BRA `(.L_read)"});
  // The one that loads.
  lines = joined(lines, {"UMOV UR6, 0x1", ".L_load"});
  lines = joined(joined(joined(lines, roles.end), roles.parity), roles.to_load);
  lines = joined(lines, {"LOP3.LUT R4, R3, 0x80000000, RZ, 0x3c, !PT"});
  lines = joined(lines, {".L_free", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x108], R4", "@!P0 BRA `(.L_free)",
                         "SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x100], R8", "UIADD3 UR9, UR4, 0x100, URZ",
                         "UTMALDG.4D [UR8], [UR6]", "UIADD3 UR6, UR6, 0x1, URZ", "BRA `(.L_load)"});
  return joined(lines, {".L_spin", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x100], R3", "@!P0 BRA `(.L_spin)",
                        "BRA `(.L_nothing)"});
}

double left_out(const Roles& roles) { return kernel_value(three_roles(roles), "waits_left_out"); }
Roles with(Lines Roles::*part, const Lines& lines) {
  Roles roles;
  roles.*part = lines;
  return roles;
}

}  // namespace

TEST_CASE("hand-overs: a wait that is left out in some turns, while its parity goes on") {
  const Roles faulty;
  CHECK(left_out(faulty) == 1);
  CHECK(left_out(with(&Roles::skip, {})) == 0);
  // The parity goes on only where it waits.
  Roles together = with(&Roles::count, {});
  together.skip = joined(together.skip, {"UIADD3 UR6, UR6, 0x1, URZ"});
  CHECK(left_out(together) == 0);
  CHECK(left_out(with(&Roles::count, {"LDS R9, [UR4+0x188]", "R2UR UR6, R9"})) == 0);
  CHECK(left_out(with(&Roles::count, {"ULOP3.LUT UR6, UR6, 0x1, URZ, 0x3c, !UPT"})) == 1);
  // The same warps in every turn, and one lane for all.
  CHECK(left_out(with(&Roles::skip, {"ISETP.GE.AND P3, PT, R20, 0x1, PT", "@!P3 BRA `(.L_nothing)"})) == 0);
  CHECK(left_out(with(&Roles::skip, joined({"S2R R22, SR_TID.X", "LDS R20, [UR4+0x180]"},
                                           {"ISETP.GE.AND P3, PT, R20, R22, PT", "@!P3 BRA `(.L_nothing)"}))) == 0);
  // The last turn leaves it out: there is no next one.
  CHECK(left_out(with(&Roles::skipped, {"@!P3 EXIT"})) == 0);
  CHECK(left_out(with(&Roles::skip, {"UIADD3 UR20, UR6, 0x1, URZ", "UISETP.LT.AND UP3, UPT, UR20, UR30, UPT",
                                     "PLOP3.LUT P3, PT, PT, PT, UP3, 0x80, 0x0", "@!P3 BRA `(.L_nothing)"})) == 0);
}

TEST_CASE("hand-overs: who leaves a wait out may know of that phase otherwise") {
  const Lines meets = {".L_known", "SYNCS.PHASECHK.TRANS64.TRYWAIT P6, [UR4+0x110], R3", "@!P6 BRA `(.L_known)"};
  const std::string arrival = "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x110], RZ";
  // From the one that always waits.
  Roles told = with(&Roles::skipped, meets);
  CHECK(left_out(told) == 1);
  told.reader_arrives.push_back(arrival);
  CHECK(left_out(told) == 0);
  // Through the one that loads: it waits for one turn less than that.
  Roles third = with(&Roles::skipped, meets);
  third.to_load = {arrival};
  CHECK(left_out(third) == 1);
  // At a named barrier, with others, or among themselves.
  CHECK(left_out(with(&Roles::skipped, {"BAR.SYNC 0x1, 0x100"})) == 1);
  Roles named = with(&Roles::skipped, {"BAR.SYNC 0x1, 0x100"});
  named.reader_arrives.push_back("BAR.ARV 0x1, 0x100");
  CHECK(left_out(named) == 0);
  // It loads for itself.
  CHECK(left_out(with(&Roles::skipped, {"@!P5 SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x100], R8"})) == 0);
}

TEST_CASE("hand-overs: counts and named barriers") {
  const auto init = [](const std::string& count, const std::string& awaited = "UR4+0x100") {
    const Lines lines = {"UMOV UR4, 0x400", "UMOV UR5, " + count, "UIADD3 UR6, -UR5, 0x100000, URZ",
                         "USHF.L.U32 UR7, UR6, 0xb, URZ", "USHF.L.U32 UR6, UR6, 0x1, URZ",
                         "SYNCS.EXCH.64 URZ, [UR4+0x100], UR6"};
    return joined(joined(lines, wait(awaited, "R6")), {"EXIT"});
  };
  CHECK(text_of(init("0x8"), "mbarrier_counts") == "8");
  CHECK(kernel_value(init("0x8"), "odd_counts") == 0);
  CHECK(kernel_value(init("0x0"), "odd_counts") == 1);
  CHECK(kernel_value(init("0x0", "UR4+0x140"), "odd_counts") == 0);  // not used, as in the FlashAttention-3 of xformers

  const auto odd = [](const Lines& lines) { return kernel_value(joined(lines, {"EXIT"}), "odd_named_barriers"); };
  CHECK(odd({"BAR.SYNC 0x1, 0x100", "BAR.ARV 0x1, 0x100"}) == 0);
  CHECK(odd({"BAR.SYNC 0x1, 0x100", "BAR.ARV 0x1, 0x80"}) == 1);
  // Official FlashAttention-3: all computing warps meet, and hand over to another one through the same barrier.
  CHECK(odd({"BAR.SYNC 0x1, 0x100", "BAR.ARV 0x1, 0x120", "BAR.SYNC 0x1, 0x120"}) == 0);
  CHECK(odd({"BAR.SYNC 0x0", "BAR.ARV 0x0, 0x100"}) == 0);  // as many as there are
  CHECK(odd({"BAR.ARV 0x1, 0x100"}) == 1);                     // nobody meets there
  CHECK(odd({"BAR.ARV 0x1, 0x100", "BAR.SYNC R9, 0x100"}) == 0);  // or perhaps somebody does
  CHECK(odd({"BAR.SYNC 0x1, 0x88"}) == 1);                     // no number of warps
  CHECK(text_of({"BAR.SYNC 0x1, 0x100", "BAR.SYNC 0x1, 0x100", "EXIT"}, "named_barriers") == "1: 256 x 2");
}

TEST_CASE("hand-overs: bulk groups and semaphores") {
  const Lines store = {"STS.128 [R5], R24", "UTMASTG.4D [UR8], [UR14]", "UTMACMDFLUSH"};
  CHECK(kernel_value(in_a_loop(joined(store, {"DEPBAR.LE SB0, 0x0"})), "never_read_out") == 0);
  CHECK(kernel_value(in_a_loop(store), "never_read_out") == 1);
  CHECK(kernel_value(joined(store, {"EXIT"}), "never_read_out") == 0);  // the last thing that it does
  CHECK(kernel_value(in_a_loop({"UTMASTG.4D [UR8], [UR14]", "UTMACMDFLUSH"}), "never_read_out") == 0);
  CHECK(text_of(joined(store, {"DEPBAR.LE SB0, 0x1", "DEPBAR.LE SB0, 0x0", "CCTL.IVALL", "EXIT"}), "bulk_groups") ==
        "1 commit, waits 1 0c");
  // The scoreboard of another instruction.
  CHECK(text_of(joined(store, {"DEPBAR.LE SB1, 0x0", "EXIT"}), "bulk_groups") == "1 commit");
  CHECK(kernel_value(in_a_loop(joined(store, {"DEPBAR.LE SB1, 0x0"})), "never_read_out") == 1);

  const Lines reduction = {"UBLKRED.G.S.ADD.F32.RN [UR10], [UR6], UR7", "UTMACMDFLUSH"};
  const Lines released = {"MEMBAR.ALL.GPU", "REDG.E.ADD.STRONG.GPU desc[UR26][R2.64], R19", "EXIT"};
  const auto in_flight = [&](const Lines& between) {
    return kernel_value(joined(joined(reduction, between), released), "released_in_flight");
  };
  CHECK(in_flight({"DEPBAR.LE SB0, 0x0", "CCTL.IVALL"}) == 0);
  CHECK(in_flight({"DEPBAR.LE SB0, 0x0"}) == 1);  // only read
  CHECK(in_flight({}) == 1);
  CHECK(kernel_value(released, "released_in_flight") == 0);
  CHECK(text_of({"LDG.E.STRONG.GPU R4, desc[UR4][R2.64]", "CCTL.IVALL", "FENCE.VIEW.ASYNC.G", "EXIT"}, "semaphores") ==
        "1 acquire, 1 proxy fence");
  CHECK(text_of({"ACQBULK", "PREEXIT", "PREEXIT", "EXIT"}, "grid_dependency") == "1 wait, 2 launches");
}

TEST_CASE("constants and modes") {
  CHECK(text_of({"PRMT R1, R2, 0x6420, R3", "PRMT R1, R2, R4, R3", "EXIT"}, "permutes") == "6420");
  CHECK(text_of({"F2FP.BF16.F32.PACK_AB R1, R2, R3", "FMUL R1, R2, R3", "FADD.RZ R1, R2, R3", "EXIT"}, "roundings") ==
        "F2FP.BF16.F32, FADD.RZ");
  CHECK(text_of({"VOTE.ANY P0, P1", "@P0 BRA `(.L_a)", ".L_a", "EXIT"}, "votes") == "ANY, if so");
  CHECK(text_of({"VOTE.ANY P0, !P1", "@!P0 BRA `(.L_a)", ".L_a", "EXIT"}, "votes") == "ANY of none, if not");
  CHECK(text_of({"UMOV UR9, 0x40000040", "UMOV UR11, 0x80000020", "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24, gsb0",
                 "EXIT"}, "descriptors") == "40000040, 80000020");
  CHECK(text_of({"UMOV UR9, 0x40000040", "UMOV UR11, 0x80000020",
                 "HGMMA.64x16x16.F32.BF16 R24, R4, gdesc[UR8].tnspB, R24, gsb0", "EXIT"}, "descriptors") == "80000020");
  CHECK(kernel_value({"ULDC.64 UR4, c[0x0][0x210]", "FMUL R1, R2, c[0x0][0x220]", "LDC R1, c[0x0][0x28]", "EXIT"},
                  "parameter_words") == 3);
  CHECK(text_of({"UBLKRED.G.S.ADD.F32.RN [UR10], [UR6], UR7", "EXIT"}, "reductions") == "UBLKRED.G.S.ADD.F32.RN");
  CHECK(value(kernel(with_producer()).scopes.at("epilogue"), "adds") == 0);
  CHECK(value(only_hot(kernel(good())).figures, "adds_anywhere") == 7);
}
