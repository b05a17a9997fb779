// Loops that warpgroups of their own run: who runs which, what they hand over, and their clocks.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

#include <algorithm>

#include "listings.h"
#include "time/clocks.h"
#include "time/floors.h"
#include "time/team.h"

using namespace listings;
using Catch::Matchers::WithinAbs;

namespace {

// The first warpgroup multiplies, takes exponentials and arrives at 100; the second waits there, multiplies, and gives
// the buffer back at 108.
Lines pair() {
  return {"UMOV UR4, 0x400",
          "S2R R0, SR_TID.X",
          "ISETP.GE.AND P5, PT, R0, 0x80, PT",
          "SYNCS.EXCH.64 URZ, [UR4+0x100], UR6",
          "SYNCS.EXCH.64 URZ, [UR4+0x108], UR6",
          "MOV R8, RZ",
          "MOV R9, 0x80000000",
          "@P5 BRA `(.L_second)",
          "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xb0",
          ".L_first",
          "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x108], R9",
          "@!P0 BRA `(.L_spin_first)",
          ".L_free",
          "WARPGROUP.ARRIVE",
          "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0",
          "WARPGROUP.DEPBAR.LE gsb0, 0x0",
          "MUFU.EX2 R24, R24",
          "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x100], RZ",
          "@P1 BRA `(.L_first)",
          "EXIT",
          ".L_spin_first",
          "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x108], R9",
          "@!P0 BRA `(.L_spin_first)",
          "BRA `(.L_free)",
          ".L_second",
          "USETMAXREG.DEALLOC.CTAPOOL 0x50",
          ".L_next",
          "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x100], R8",
          "@!P0 BRA `(.L_spin_second)",
          ".L_full",
          "WARPGROUP.ARRIVE",
          "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24, gsb0",
          "WARPGROUP.DEPBAR.LE gsb0, 0x0",
          "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108], RZ",
          "@P1 BRA `(.L_next)",
          "EXIT",
          ".L_spin_second",
          "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x100], R8",
          "@!P0 BRA `(.L_spin_second)",
          "BRA `(.L_full)"};
}

// With control words: a clock each, and branches behind a wait wait for its scoreboard.
sass::Kernel timed(const Lines& lines, int warpgroups = 2, int registers = 128) {
  sass::Kernel toy = kernel(lines);
  toy.record.registers = registers;
  for (size_t i = 0; i < toy.listing.code.size(); ++i) {
    sass::Control& control = toy.listing.code[i].control;
    control.known = true;
    control.stall = 1;
    if (toy.listing.code[i].text.find("TRYWAIT") == std::string::npos) continue;
    control.written = 0;
    toy.listing.code[i + 1].control.waits = 1;
  }
  std::erase_if(toy.figures, [](const sass::Figure& f) { return f.name == "threads"; });
  toy.figures.push_back({"threads", false, 128.0 * warpgroups, {}, {}, false});
  return toy;
}

const sass::Member& member(const sass::Team& team, const std::string& shape) {
  const auto multiplies = [&](const sass::Member& m) { return m.loop->gemms.find(shape) != std::string::npos; };
  return *std::ranges::find_if(team, multiplies);
}

int later(const Lines& lines, const std::string& shape) {
  const sass::Kernel toy = timed(lines);
  const sass::Team team = team_of(toy);
  REQUIRE(team.size() == 2);
  REQUIRE(member(team, shape).handovers.size() == 1);
  return member(team, shape).handovers[0].later;
}

double turn(const Lines& lines) {
  const sass::Kernel toy = timed(lines);
  std::vector<double> turns;
  for (const sass::WgmmaLoop& loop : toy.loops) turns.push_back(estimated_clocks(toy, loop).turn);
  REQUIRE(turns.size() == 2);
  CHECK_THAT(turns[0], WithinAbs(turns[1], 0.02 * turns[1]));
  return turns[0];
}

const std::string one = "64x64x16", other = "64x256x16";

}  // namespace

TEST_CASE("a wait is for this turn's arrival, or for a buffer given back") {
  CHECK(later(pair(), other) == 0);
  CHECK(later(pair(), one) == -1);
  const Lines two = replaced(pair(), "SYNCS.EXCH.64 URZ, [UR4+0x108]",
                             {"SYNCS.EXCH.64 URZ, [UR4+0x108], UR6", "SYNCS.EXCH.64 URZ, [UR4+0x110], UR6"});
  CHECK(later(two, one) == -2);
  // What arrives before the loop is one ahead; what is made up for behind it, the first turn leaves out.
  const std::string arrive = "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x100], RZ";
  CHECK(later(replaced(pair(), "USETMAXREG.TRY", {"USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xb0", arrive}), other) == -1);
  CHECK(later(replaced(pair(), "EXIT", {arrive, "EXIT"}), other) == 1);
}

TEST_CASE("warpgroups of each loop, by the registers that setmaxnreg leaves them") {
  const auto counts = [](int warpgroups, int registers) {
    const sass::Kernel toy = timed(pair(), warpgroups, registers);
    const sass::Team team = team_of(toy);
    std::vector<int> result;
    for (const std::string& shape : {one, other})
      if (!team.empty()) result.push_back(member(team, shape).warpgroups);
    return result;
  };
  CHECK(counts(2, 128) == std::vector<int>{1, 1});
  CHECK(counts(3, 128) == std::vector<int>{1, 2});
  CHECK(counts(3, 144) == std::vector<int>{2, 1});
  CHECK(counts(3, 100).empty());  // more than the launch gives, however they are shared out
  const sass::Kernel toy = timed(pair(), 3, 128);
  for (const sass::WgmmaLoop& loop : toy.loops)
    CHECK(floors(toy, loop).warpgroups == (loop.gemms.find(other) == std::string::npos ? 1 : 2));
  CHECK(floors_together(toy).warpgroups == 3);
  CHECK(floors_together(toy).tensor == 32 + 2 * 128);
}

TEST_CASE("no team where loops hand nothing over, or follow each other") {
  const Lines free = replaced(pair(), "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+0x108]", {"NOP"});
  const sass::Kernel toy = timed(free);
  CHECK(team_of(toy).empty());
  CHECK(estimated_clocks(toy, toy.loops[0]).turn == 0);
  CHECK(team_of(timed(replaced(pair(), "EXIT", {"@P3 BRA `(.L_second)", "EXIT"}))).empty());
}

TEST_CASE("loops that wait for each other take the same time a turn, and a second buffer makes it shorter") {
  const double single = turn(pair());
  CHECK(single > 2 * 120 + 32 + 128);  // one after the other, each with the wait for its product
  const double twice = turn(replaced(pair(), "SYNCS.EXCH.64 URZ, [UR4+0x108]",
                                     {"SYNCS.EXCH.64 URZ, [UR4+0x108], UR6", "SYNCS.EXCH.64 URZ, [UR4+0x110], UR6"}));
  CHECK(twice < single - 50);
  CHECK(twice >= 32 + 128);
}

TEST_CASE("products whose operands fill shared memory's bandwidth take longer where warps use it, too") {
  const auto turn_of = [](const std::string& product, const std::string& access) {
    Lines lines = {".L_0", "WARPGROUP.ARRIVE"};
    for (int step = 0; step < 8; ++step) {
      lines.push_back(product + (step == 7 ? ", gsb0" : ""));
      lines.insert(lines.end(), {access, access});
    }
    lines.insert(lines.end(), {"WARPGROUP.DEPBAR.LE gsb0, 0x1", "@P0 BRA `(.L_0)", "EXIT"});
    sass::Kernel toy = kernel(lines);
    for (sass::Instruction& i : toy.listing.code) i.control.known = true;
    return estimated_clocks(toy, only_hot(toy)).turn;
  };
  const std::string shared = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24",
                    registers = "HGMMA.64x64x16.F32.BF16 R24, R60, gdesc[UR8], R24";
  const std::string store = "STS.128 [R2], R80", load = "LDS R80, [R2]";
  // Clocks of the tensor cores, or those of shared memory for operands, and a fifth more for what warps do there.
  CHECK_THAT(turn_of(shared, "FADD R80, R80, R2"), WithinAbs(8 * 32, 4));
  CHECK_THAT(turn_of(shared, store), WithinAbs(8 * 32 + 1.2 * 16 * 16, 40));
  CHECK_THAT(turn_of(shared, load), WithinAbs(8 * 32 + 1.2 * 16 * 4, 20));
  CHECK_THAT(turn_of(registers, load), WithinAbs(8 * 32, 8));  // has room for it
  CHECK_THAT(turn_of(registers, store), WithinAbs(8 * 16 + 1.2 * 16 * 16, 40));
}

TEST_CASE("warpgroups that meet at a named barrier in every turn wait for the last") {
  const auto issued = [](const std::string& barrier) {
    Lines lines = {".L_0", "WARPGROUP.ARRIVE", "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24, gsb0",
                   "WARPGROUP.DEPBAR.LE gsb0, 0x0", barrier, "FADD R3, R3, R4", "@P0 BRA `(.L_0)", "EXIT"};
    const sass::Kernel toy = timed(lines);
    return estimated_clocks(toy, only_hot(toy)).turn;
  };
  // Both products, one after the other, and then both waits at once, not beside the other's product.
  const double apart = issued("NOP"), together = issued("BAR.SYNC.DEFER_BLOCKING 0x1, 0x100");
  CHECK(together > apart + 80);
  CHECK(issued("BAR.SYNC.DEFER_BLOCKING 0x1, 0x80") == apart);  // each on its own
  CHECK(issued("BAR.SYNC.DEFER_BLOCKING R9, 0x100") == apart);  // each at another one, as in ping-pong
}
