// Time: control words, registers that are live, banks, the estimate of clocks, and what a profiler saw.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>

#include "input/disassembler.h"
#include "listing/control.h"
#include "listings.h"
#include "system/process.h"
#include "system/text.h"
#include "time/clocks.h"
#include "time/pressure.h"
#include "time/samples.h"
#include "views/reports.h"
#include "views/timeline.h"

using namespace listings;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinAbs;

namespace {

const std::string good_cubin = FA3_CUBINS "/good.cubin";

// Instructions that stall for a clock and wait for nothing.
sass::Kernel timed(const Lines& lines, int warpgroups = 1) {
  sass::Kernel toy = kernel(lines);
  for (sass::Instruction& i : toy.listing.code) {
    i.control.known = true;
    i.control.stall = 1;
  }
  std::erase_if(toy.figures, [](const sass::Figure& f) { return f.name == "threads" || f.name == "setmaxnreg"; });
  toy.figures.push_back({"threads", false, 128.0 * warpgroups, {}, {}, false});
  return toy;
}

sass::Instruction& find(sass::Kernel& kernel, const std::string& text) {
  return *std::ranges::find_if(kernel.listing.code, [&](const auto& i) { return i.text.starts_with(text); });
}

size_t position_of(const sass::Kernel& kernel, const std::string& text) {
  const std::vector<int>& code = only_hot(kernel).turn.code;
  const auto at = std::ranges::find_if(
      code, [&](int i) { return kernel.listing.code[static_cast<size_t>(i)].text.starts_with(text); });
  return static_cast<size_t>(at - code.begin());
}

sass::Clocks clocks_of(const sass::Kernel& kernel) { return estimated_clocks(kernel, only_hot(kernel)); }

// A loop of four WGMMAs, each turn's awaited in the next one, and `more`.
Lines gemm_loop(const Lines& more) {
  const std::string step = "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24";
  Lines lines = {".L_0", "WARPGROUP.ARRIVE", step, step, step, step + ", gsb0"};
  lines.insert(lines.end(), more.begin(), more.end());
  lines.insert(lines.end(), {"WARPGROUP.DEPBAR.LE gsb0, 0x1", "@P0 BRA `(.L_0)", "EXIT"});
  return lines;
}

std::vector<int> live(const Lines& lines) {
  const sass::Kernel toy = kernel(lines);
  return sass::live_registers(toy.listing, toy.cfg);
}

size_t conflicts(const Lines& lines) {
  const sass::Kernel toy = kernel(lines);
  std::vector<int> code(toy.listing.code.size());
  for (size_t i = 0; i < code.size(); ++i) code[i] = static_cast<int>(i);
  return sass::bank_conflicts(toy.listing, code).size();
}

}  // namespace

TEST_CASE("a control word is taken apart") {
  const auto word = [](uint64_t stall, uint64_t stays, uint64_t written, uint64_t read, uint64_t waits,
                       uint64_t reuses) {
    return stall << 41 | stays << 45 | written << 46 | read << 49 | waits << 52 | reuses << 58 | 0x1234567;
  };
  const sass::Control control = sass::control_of(word(13, 0, 2, 5, 0b100001, 0b0110));
  CHECK(control.known);
  CHECK(control.stall == 13);
  CHECK(control.yields);
  CHECK(control.written == 2);
  CHECK(control.read == 5);
  CHECK(control.waits_for(0));
  CHECK_FALSE(control.waits_for(1));
  CHECK(control.waits_for(5));
  CHECK(control.reuses == 0b0110);
  const sass::Control none = sass::control_of(word(1, 1, 7, 7, 0, 0));
  CHECK_FALSE(none.yields);
  CHECK(none.written == -1);
  CHECK(none.read == -1);
}

TEST_CASE("control words of an image are those of its listing in hexadecimal") {
  const sass::Output listing = sass::run({sass::find_tool("nvdisasm"), "-c", "-hex", good_cubin});
  REQUIRE(listing.status == 0);
  const auto printed = sass::parse(listing.out);
  const sass::Kernel image = kernels_of(good_cubin, "miniature").at(0);
  const auto found = std::ranges::find(printed, image.listing.name, &sass::Listing::name);
  REQUIRE(found != printed.end());
  REQUIRE(found->code.size() == image.listing.code.size());
  int stalls = 0, waits = 0, reuses = 0;
  for (size_t i = 0; i < found->code.size(); ++i) {
    const sass::Control &a = found->code[i].control, &b = image.listing.code[i].control;
    CHECK(a.known);
    CHECK(b.known);
    CHECK(std::tie(a.stall, a.yields, a.written, a.read, a.waits, a.reuses) ==
          std::tie(b.stall, b.yields, b.written, b.read, b.waits, b.reuses));
    stalls += b.stall > 1;
    waits += b.waits > 0;
    // What nvdisasm writes as .reuse must be a bit of the word.
    const bool written = found->code[i].text.find(".reuse") != std::string::npos;
    CHECK(written == (b.reuses != 0));
    reuses += written;
  }
  CHECK(stalls > 10);
  CHECK(waits > 5);
  CHECK(reuses > 0);
}

TEST_CASE("live registers: read later on some way, and not written in between for sure") {
  CHECK(live({"MOV R1, R2", "FADD R3, R1, R4", "STG.E [R5], R3", "EXIT"}) == std::vector<int>{3, 3, 2, 0});
  CHECK(live({"@P0 MOV R3, R2", "STG.E [R5], R3", "EXIT"}) == std::vector<int>{3, 2, 0});
  // What is read behind the loop, or in its next turn, is live in all of it.
  CHECK(live({".L_0", "FADD R4, R4, R6", "@P0 BRA `(.L_0)", "STG.E [R5], R7", "EXIT"}) ==
        std::vector<int>{4, 4, 2, 0});
  const sass::Kernel toy = kernel({"HGMMA.64x16x16.F32.BF16 R24, R60, gdesc[UR8], R24, gsb0", "EXIT"});
  CHECK(sass::live_registers(toy.listing, toy.cfg).front() == 8 + 4);
}

TEST_CASE("bank conflicts: three registers of one bank, but for the reuse cache") {
  CHECK(conflicts({"FFMA R2, R4, R6, R8", "EXIT"}) == 1);
  CHECK(conflicts({"FFMA R2, R4, R6, R9", "EXIT"}) == 0);
  CHECK(conflicts({"FFMA R2, R4, R6, R6", "EXIT"}) == 0);
  CHECK(conflicts({"FFMA R2, R4, UR6, R8", "EXIT"}) == 0);
  CHECK(conflicts({"FFMA R0, R4.reuse, R1, R3", "FFMA R2, R4, R6, R8", "EXIT"}) == 0);
  CHECK(conflicts({"FFMA R0, R1, R4.reuse, R3", "FFMA R2, R4, R6, R8", "EXIT"}) == 1);  // another operand's
  CHECK(conflicts({"FFMA R0, R4.reuse, R1, R3", "NOP", "FFMA R2, R4, R6, R8", "EXIT"}) == 1);
}

TEST_CASE("the estimate: no less than the busiest unit needs") {
  const sass::Clocks bound = clocks_of(timed(gemm_loop({}), 2));
  CHECK_THAT(bound.turn, WithinAbs(2 * 4 * 128, 8));
  CHECK_THAT(bound.tensor, WithinAbs(1, 0.01));
  const sass::Clocks more = clocks_of(timed(gemm_loop(Lines(200, "MUFU.EX2 R5, R6")), 2));
  CHECK(more.turn > 2 * 200 * 8);
  CHECK(more.tensor < 0.5);
  CHECK(clocks_of(timed(gemm_loop({}), 1)).turn < bound.turn);
}

TEST_CASE("the estimate: stalls, scoreboards and waits for groups") {
  const auto clock = [](const sass::Kernel& toy, const std::string& text) {
    return clocks_of(toy).issued[position_of(toy, text)];
  };
  sass::Kernel toy = timed(gemm_loop({"MUFU.EX2 R5, R6", "FADD R7, R5, R5", "FADD R8, R7, R7"}));
  CHECK(clock(toy, "FADD R7") - clock(toy, "MUFU") < 5);
  find(toy, "MUFU").control.written = 3;
  find(toy, "FADD R7").control.waits = 1u << 3;
  CHECK(clock(toy, "FADD R7") - clock(toy, "MUFU") > 20);
  find(toy, "FADD R7").control.stall = 15;
  CHECK(clock(toy, "FADD R8") - clock(toy, "FADD R7") >= 15);
  // A wait until none is in flight, and what lies behind it, comes after the last WGMMA.
  const sass::Kernel drained = timed(replaced(gemm_loop({}), "WARPGROUP.DEPBAR", {"WARPGROUP.DEPBAR.LE gsb0, 0x0"}));
  CHECK(clock(drained, "@P0 BRA") > 4 * 128);
  CHECK(clocks_of(drained).turn > clocks_of(timed(gemm_loop({}))).turn + 50);
}

TEST_CASE("no estimate without control words, or of several main loops") {
  CHECK(clocks_of(kernel(gemm_loop({}))).turn == 0);
  const sass::Kernel plain = kernel(good());
  CHECK_THAT(sass::show_text(plain, {.clocks = true}, {}), ContainsSubstring("no estimate of clocks"));
  CHECK_THROWS_WITH(sass::timeline_svg({&plain}, {.clocks = true}), ContainsSubstring("without control words"));
}

TEST_CASE("show and timeline tell clocks") {
  const sass::Kernel toy = timed(good());
  const std::string shown = sass::show_text(toy, {.clocks = true}, {});
  CHECK_THAT(shown, ContainsSubstring("clocks a turn (an estimate: data is always there), tensor cores busy ") &&
                        ContainsSubstring(" registers live, 0 bank conflicts"));
  const std::string picture = sass::timeline_svg({&toy}, {.clocks = true});
  CHECK_THAT(picture, ContainsSubstring("clocks of a turn, estimated") && ContainsSubstring(">100</text>"));
}

TEST_CASE("what a profiler saw: time where its samples are; another build is refused") {
  const sass::Kernel toy = timed(good());
  const auto csv = [&](const std::string& slow) {
    std::string text = "\"Kernel Name\",\"toy\"\n\"#\",\"Address\",\"Source\",\"Warp Stall Sampling (All Samples)\"\n";
    for (const sass::Instruction& i : toy.listing.code)
      text += "\"1\",\"0x7f00\",\"" + i.text + "\",\"" + (i.text.starts_with(slow) ? "1,000" : "1") + "\"\n";
    return text;
  };
  const std::vector<double> samples = sass::samples_of(toy, "file.csv", csv("WARPGROUP.DEPBAR.LE gsb0, 0x1"));
  REQUIRE(samples.size() == toy.listing.code.size());
  CHECK(std::ranges::count(samples, 1000) == 1);
  const std::string picture = sass::timeline_svg({&toy}, {.samples = &samples});
  CHECK_THAT(picture, ContainsSubstring("1037 samples of a profiler") && ContainsSubstring("as profiled"));
  const auto refuses = [&](std::string text, const std::string& old, const std::string& now, const char* words) {
    if (!old.empty()) text.replace(text.find(old), old.size(), now);
    CHECK_THROWS_WITH(sass::samples_of(toy, "file.csv", text), ContainsSubstring(words));
  };
  refuses(csv(""), "MUFU.EX2", "MUFU.RCP", "has MUFU.RCP where the kernel has MUFU.EX2");
  refuses("a,b\n1,2\n", "", "", "no columns");
  refuses(csv("").substr(0, 600), "", "", "instructions, but the kernel ");
}

TEST_CASE("what a profiler saw, as ncu prints it") {
  // Of fa3_fwd_bf16_d128_full_192x64 on an H200: the end of QK, and PV, to the wait that scores are behind.
  const std::string csv = sass::read_file(FA3_NCU_SOURCE);
  Lines lines;
  for (size_t at = csv.find("\"0x"); at != std::string::npos; at = csv.find("\n\"0x", at + 1)) {
    const size_t from = csv.find("\",\"", at) + 3, to = csv.find('"', from);
    lines.push_back(csv.substr(csv.find_first_not_of(' ', from), to - csv.find_first_not_of(' ', from)));
  }
  lines.push_back("EXIT");  // a listing must end
  sass::Kernel cut = kernel(lines);
  cut.listing.code.pop_back();
  const std::vector<double> samples = sass::samples_of(cut, "ncu_source.csv", csv);
  REQUIRE(samples.size() == 26);
  const auto most = std::ranges::max_element(samples);
  CHECK(*most == 13783);
  CHECK(cut.listing.code[static_cast<size_t>(most - samples.begin())].text == "WARPGROUP.DEPBAR.LE gsb0, 0x1");
  CHECK(samples.front() == 1024);
}
