// The table of hand-overs, the rules on it, and the figures of constants and modes.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "listings.h"
#include "reports.h"

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

double of_kernel(const Lines& lines, const std::string& figure) { return value(kernel(lines).figures, figure); }
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
    CHECK(of_kernel(sound(), rule) == 0);
  }
  const std::string shown = sass::show_text(kernel(sound()), {}, {});
  CHECK_THAT(shown, ContainsSubstring("hand-overs\n") && ContainsSubstring("mbarrier at 508") &&
                        ContainsSubstring("arrive: loop QK+PV\n") &&
                        ContainsSubstring("wait (parity 1 first): producer") &&
                        ContainsSubstring("barrier 0 for 256 threads"));
}

TEST_CASE("hand-overs: what nobody waits for, and where no load ends") {
  CHECK(of_kernel(spoilt(release, {"@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x148], RZ"}), "never_awaited") == 1);
  // vLLM: what follows the base of shared memory has lost it, so that the address is one where no barrier is made.
  const auto made = [](const Lines& places) {
    Lines lines = spoilt(release, {"@!P3 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x148], RZ"});
    for (const std::string& place : places)
      lines.insert(lines.begin() + 1, "SYNCS.EXCH.64 URZ, [UR4+" + place + "], UR6");
    return lines;
  };
  CHECK(of_kernel(made({"0x108"}), "never_awaited") == 0);
  CHECK(of_kernel(made({"0x108", "0x148"}), "never_awaited") == 1);
  // A load that ends at another barrier than that which expects its bytes.
  const auto loaded = [](const std::string& barrier) {
    const Lines before = {"SYNCS.ARRIVE.TRANS64 RZ, [UR4+0x100], R8", "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108], RZ",
                          "UIADD3 UR9, UR4, " + barrier + ", URZ", "UTMALDG.4D [UR8], [UR6]"};
    const Lines other = {"SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4+0x108], R6"};
    return in_a_loop(joined(joined(before, wait("UR4+0x100", "R6")), other));
  };
  CHECK(of_kernel(loaded("0x100"), "unexpected_loads") == 0);
  CHECK(of_kernel(loaded("0x100"), "never_loaded") == 0);
  CHECK(of_kernel(loaded("0x108"), "unexpected_loads") == 1);
  CHECK(of_kernel(loaded("0x108"), "never_loaded") == 1);
  // Nothing is said of an address that is not known.
  CHECK(of_kernel(replaced(loaded("0x108"), "UIADD3 UR9", {"R2UR UR9, R30"}), "never_loaded") == 0);
}

TEST_CASE("hand-overs: a parity that never flips") {
  const auto waited = [](const Lines& before, const std::string& parity, const std::string& arrival) {
    return in_a_loop(joined(joined(before, wait("UR4+0x100", parity)), {arrival}));
  };
  const std::string arrival = "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x100], RZ";
  const Lines flips = {"SHF.L.U32 R3, R6, 0x1f, RZ"};
  CHECK(of_kernel(waited(flips, "R3", arrival), "parity_never_flips") == 0);
  CHECK(of_kernel(waited({}, "RZ", arrival), "parity_never_flips") == 1);
  CHECK(of_kernel(waited({"MOV R2, 0x1", "SHF.L.U32 R3, R2, 0x1f, RZ"}, "R3", arrival), "parity_never_flips") == 1);
  CHECK(of_kernel(waited({"LDS R3, [R9]"}, "R3", arrival), "parity_never_flips") == 0);
  CHECK(of_kernel(waited({}, "RZ", "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108], RZ"), "parity_never_flips") == 0);
}

TEST_CASE("hand-overs: counts and named barriers") {
  const auto init = [](const std::string& count) {
    return Lines{"UMOV UR4, 0x400", "UMOV UR5, " + count, "UIADD3 UR6, -UR5, 0x100000, URZ",
                 "USHF.L.U32 UR7, UR6, 0xb, URZ", "USHF.L.U32 UR6, UR6, 0x1, URZ",
                 "SYNCS.EXCH.64 URZ, [UR4+0x100], UR6", "EXIT"};
  };
  CHECK(text_of(init("0x8"), "mbarrier_counts") == "8");
  CHECK(of_kernel(init("0x8"), "odd_counts") == 0);
  CHECK(of_kernel(init("0x0"), "odd_counts") == 1);

  const auto odd = [](const Lines& lines) { return of_kernel(joined(lines, {"EXIT"}), "odd_named_barriers"); };
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
  CHECK(of_kernel(in_a_loop(joined(store, {"DEPBAR.LE SB0, 0x0"})), "never_read_out") == 0);
  CHECK(of_kernel(in_a_loop(store), "never_read_out") == 1);
  CHECK(of_kernel(joined(store, {"EXIT"}), "never_read_out") == 0);  // the last thing that it does
  CHECK(of_kernel(in_a_loop({"UTMASTG.4D [UR8], [UR14]", "UTMACMDFLUSH"}), "never_read_out") == 0);
  CHECK(text_of(joined(store, {"DEPBAR.LE SB0, 0x1", "DEPBAR.LE SB0, 0x0", "CCTL.IVALL", "EXIT"}), "bulk_groups") ==
        "1 commit, waits 1 0c");

  const Lines reduction = {"UBLKRED.G.S.ADD.F32.RN [UR10], [UR6], UR7", "UTMACMDFLUSH"};
  const Lines released = {"MEMBAR.ALL.GPU", "REDG.E.ADD.STRONG.GPU desc[UR26][R2.64], R19", "EXIT"};
  const auto in_flight = [&](const Lines& between) {
    return of_kernel(joined(joined(reduction, between), released), "released_in_flight");
  };
  CHECK(in_flight({"DEPBAR.LE SB0, 0x0", "CCTL.IVALL"}) == 0);
  CHECK(in_flight({"DEPBAR.LE SB0, 0x0"}) == 1);  // only read
  CHECK(in_flight({}) == 1);
  CHECK(of_kernel(released, "released_in_flight") == 0);
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
  CHECK(of_kernel({"ULDC.64 UR4, c[0x0][0x210]", "FMUL R1, R2, c[0x0][0x220]", "LDC R1, c[0x0][0x28]", "EXIT"},
                  "parameter_words") == 3);
  CHECK(text_of({"UBLKRED.G.S.ADD.F32.RN [UR10], [UR6], UR7", "EXIT"}, "reductions") == "UBLKRED.G.S.ADD.F32.RN");
  CHECK(value(kernel(with_producer()).scopes.at("epilogue"), "adds") == 0);
  CHECK(value(only_hot(kernel(good())).figures, "adds_anywhere") == 7);
}
