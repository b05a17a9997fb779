// What code of other people needs: pipelines that ptxas has given up, GEMMs behind wait<1>, backward passes of other
// designs, called functions, other architectures. Hand-made listings of what was found in their machine code.
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cstdlib>
#include <fstream>

#include "kernels/analyse.h"
#include "listings.h"
#include "system/process.h"
#include "system/tidy.h"
#include "views/reports.h"

using namespace listings;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

const std::string wait_all = "WARPGROUP.DEPBAR.LE gsb0, 0x0", wait_one = "WARPGROUP.DEPBAR.LE gsb0, 0x1";

Lines loop(const Lines& body, const std::string& name = ".L_loop") {
  Lines lines{name};
  lines.insert(lines.end(), body.begin(), body.end());
  lines.push_back("@P0 BRA `(" + name + ")");
  return lines;
}

Lines operator+(Lines a, const Lines& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Lines whole(const Lines& body) { return loop(body) + Lines{"EXIT"}; }

// Each WGMMA committed and waited for on its own, as ptxas does when it gives up on the pipeline.
Lines serialised(const Lines& wgmmas) {
  Lines lines;
  for (const std::string& wgmma : wgmmas) lines = lines + Lines{"WARPGROUP.ARRIVE", wgmma + ", gsb0", wait_all};
  return lines;
}

const Lines exps = {"MUFU.EX2 R100, R24", "MUFU.EX2 R101, R25", "MUFU.EX2 R102, R26", "MUFU.EX2 R103, R27"};
const Lines converts = {"F2FP.BF16.F32.PACK_AB R60, R101, R100", "F2FP.BF16.F32.PACK_AB R61, R103, R102"};

std::string gemms(const Lines& lines) { return only_hot(kernel(lines)).gemms; }

Lines group(int steps, const std::string& first, const std::string& next) {
  Lines lines{"WARPGROUP.ARRIVE", first};
  for (int s = 1; s < steps; ++s) lines.push_back(next);
  lines.back() += ", gsb0";
  return lines;
}

}  // namespace

TEST_CASE("serialised, S and O in the same registers: shape and operands tell QK from PV") {
  const Lines qk = serialised({"HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT",
                               "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24",
                               "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24"});
  SECTION("of another shape") {
    const Lines pv = serialised({"HGMMA.64x32x16.F32.BF16 R24, R60, gdesc[UR16].tnspB, R24",
                                 "HGMMA.64x32x16.F32.BF16 R24, R60, gdesc[UR16], R24"});
    const sass::Kernel toy = kernel(whole(qk + Lines{"MOV R100, R24", "MUFU.EX2 R60, R100"} + pv));
    CHECK(only_hot(toy).gemms == "QK 3 x 64x16x16 SS, PV 2 x 64x32x16 RS");
    CHECK(value(only_hot(toy).figures, "serialised") == 3);
  }
  SECTION("of the same shape: O is moved in and out, also between the steps of PV") {
    const Lines pv = serialised({"HGMMA.64x16x16.F32.BF16 R24, R60, gdesc[UR16].tnspB, R24"});
    const Lines body = qk + Lines{"MOV R100, R24", "MUFU.EX2 R101, R100", "F2FP.BF16.F32.PACK_AB R60, R101, R101"} +
                       Lines{"MOV R24, R110"} + pv + Lines{"MOV R110, R24", "LDL R24, [R1+0x4]"} + pv;
    CHECK(gemms(whole(body)) == "QK 3 x 64x16x16 SS, PV 2 x 64x16x16 RS");
  }
  SECTION("of the same shape, both from shared memory: the softmax stands between them") {
    const Lines body = qk + exps + Lines{"FADD R24, R24, R25"} +
                       serialised({"HGMMA.64x16x16.F32.BF16 R24, gdesc[UR16].tnspB, R24"});
    CHECK(gemms(whole(body)) == "QK 3 x 64x16x16 SS, PV 1 x 64x16x16 SS");
  }
  SECTION("Q half in registers stays one GEMM") {
    CHECK(gemms(whole(qk + serialised({"HGMMA.64x16x16.F32.BF16 R24, R52, gdesc[UR8], R24"}) + exps)) ==
          "QK 1 x 64x16x16 RS, QK 3 x 64x16x16 SS");
  }
}

TEST_CASE("a guarded instruction leaves nothing of before where the turn takes the branch with its guard") {
  const Lines qk = group(2, "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT",
                         "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24") + Lines{wait_all};
  const Lines pv = {"WARPGROUP.ARRIVE", "HGMMA.64x32x16.F32.BF16 R40, R60, gdesc[UR16].tnspB, R40, gsb0", wait_all};
  const auto masked = [&](const Lines& mask) {
    const Lines softmax = Lines{".L_on", "MUFU.EX2 R101, R100"} + converts;
    return gemms(whole(qk + Lines{"FMUL R100, R40, R2"} + mask + softmax + pv));
  };
  const std::string right = "QK 2 x 64x16x16 SS, PV 1 x 64x32x16 RS", mixed = "QK 2 x 64x16x16 SS, QK 1 x 64x32x16 RS";
  const std::string mask = "FSEL R100, R24, -INF, P6", rare = "FADD R100, R24, R5";
  CHECK(masked({"@!P3 " + mask, "@!P3 BRA `(.L_on)", rare, rare}) == right);
  CHECK(masked({"MOV R100, R24", "@P3 MOV R100, R40", "@!P3 BRA `(.L_on)", rare, rare}) == right);  // not executed
  CHECK(masked({"@!P3 " + mask}) == mixed);                                                          // nothing is known
  CHECK(masked({"@!P3 " + mask, "ISETP.NE.AND P3, PT, R9, RZ, PT", "@!P3 BRA `(.L_on)", rare, rare}) == mixed);
}

TEST_CASE("a pipelined GEMM behind wait<1> is not serialised") {
  const std::string step = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24";
  const auto turn = [&](const std::string& wait) {
    return kernel(whole(Lines{"WARPGROUP.ARRIVE", step, step + ", gsb0", wait, step, step + ", gsb0"}));
  };
  const sass::Kernel pipelined = turn(wait_one), drained = turn(wait_all);
  CHECK(only_hot(pipelined).gemms == "GEMM 4 x 64x128x16 SS");
  CHECK(value(only_hot(pipelined).figures, "groups") == 2);
  CHECK(value(only_hot(pipelined).figures, "serialised") == 0);
  CHECK(value(only_hot(drained).figures, "serialised") == 1);
}

TEST_CASE("a backward pass with P and dS in shared memory, two accumulators for each sum") {
  const auto backward = [](const std::string& dK_shape) {
    const auto sum = [](const std::string& shape, const char* r) {
      const std::string step = "HGMMA." + shape + ".F32.BF16 " + r + ", gdesc[UR44].tnspA.tnspB, " + r;
      return group(4, step, step);
    };
    const Lines scores = group(2, "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT",
                               "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24") +
                         group(2, "HGMMA.64x16x16.F32.BF16 R32, gdesc[UR12], RZ, !UPT",
                               "HGMMA.64x16x16.F32.BF16 R32, gdesc[UR12], R32");
    const Lines dS = {wait_all, "MUFU.EX2 R100, R24", "FADD R33, R32, -R4", "FMUL R33, R100, R33",
                      "F2FP.BF16.F32.PACK_AB R64, R33, R33", "STSM.16.M88.2 [R2], R64"};
    const Lines dQ = group(3, "HGMMA.64x64x16.F32.BF16 R192, gdesc[UR16].tnspA, RZ, !UPT",
                           "HGMMA.64x64x16.F32.BF16 R192, gdesc[UR16].tnspA, R192");
    return whole(scores + dS + sum("64x32x16", "R120") + dQ + sum("64x32x16", "R136") + sum(dK_shape, "R152") +
                 sum(dK_shape, "R168") + Lines{wait_all});
  };
  const std::string common = "S 2 x 64x16x16 SS, dP 2 x 64x16x16 SS, dV 8 x 64x32x16 SS, ";
  const sass::Kernel same = kernel(backward("64x32x16"));
  CHECK(only_hot(same).gemms == common + "dK 8 x 64x32x16 SS, dQ 3 x 64x64x16 SS");
  CHECK(words(same.figures, "work") == "backward");
  CHECK(gemms(backward("64x24x16")) == common + "dK 8 x 64x24x16 SS, dQ 3 x 64x64x16 SS");
}

TEST_CASE("a backward pass by blocks of queries: the one sum of dS is dQ") {
  const Lines body = group(1, "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT", "") +
                     group(1, "HGMMA.64x16x16.F32.BF16 R32, gdesc[UR12], RZ, !UPT", "") +
                     Lines{wait_all, "MUFU.EX2 R100, R24", "FMUL R33, R100, R32"} +
                     Lines{"F2FP.BF16.F32.PACK_AB R64, R33, R33"};
  CHECK(gemms(whole(body + group(1, "HGMMA.64x32x16.F32.BF16 R80, R64, gdesc[UR16].tnspB, R80", ""))) ==
        "S 1 x 64x16x16 SS, dP 1 x 64x16x16 SS, dQ 1 x 64x32x16 RS");
  CHECK(gemms(whole(body + group(1, "HGMMA.64x32x16.F32.BF16 R80, gdesc[UR20], gdesc[UR16].tnspB, R80", ""))) ==
        "S 1 x 64x16x16 SS, dP 1 x 64x16x16 SS, dQ 1 x 64x32x16 SS");
}

TEST_CASE("a backward pass shared by two warpgroups, P passed through shared memory") {
  const Lines scores = loop(group(1, "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT", "") + Lines{wait_all} + exps +
                                converts + group(1, "HGMMA.64x32x16.F32.BF16 R80, R60, gdesc[UR16].tnspB, R80", "") +
                                Lines{wait_all},
                            ".L_scores");
  const Lines gradients = loop(group(1, "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT", "") +
                                   Lines{wait_all, "LDS R100, [R2]", "FMUL R101, R100, R24",
                                         "F2FP.BF16.F32.PACK_AB R60, R101, R101"} +
                                   group(1, "HGMMA.64x32x16.F32.BF16 R80, R60, gdesc[UR16].tnspB, R80", "") +
                                   Lines{wait_all},
                               ".L_gradients");
  const sass::Kernel both = kernel(scores + gradients + Lines{"EXIT"});
  REQUIRE(both.loops.size() == 2);
  CHECK(both.loops[0].role == "S+dV");
  CHECK(both.loops[1].role == "dP+dK");
  CHECK(words(both.figures, "work") == "backward");
  const sass::Kernel alone = kernel(scores + Lines{"EXIT"});
  CHECK(only_hot(alone).role == "QK+PV");
}

TEST_CASE("what a kernel does, and with how many bits") {
  CHECK(words(kernel(good()).figures, "work") == "forward");
  CHECK(words(kernel(good()).figures, "bits") == "16");
  CHECK(words(kernel(eight_bits()).figures, "work") == "forward");
  CHECK(words(kernel(eight_bits()).figures, "bits") == "8");
  const sass::Kernel gemm =
      kernel(whole(group(1, "HGMMA.64x128x8.F32.TF32 R24, gdesc[UR8], R24", "") + Lines{wait_all}));
  CHECK(words(gemm.figures, "work") == "gemm");
  CHECK(words(gemm.figures, "bits") == "32");
  CHECK(words(kernel({"EXIT"}).figures, "work").empty());
}

TEST_CASE("what covers the exponentials") {
  const std::string step = "HGMMA.64x32x16.F32.BF16 R40, R60, gdesc[UR16].tnspB, R40";
  const Lines qk = {"WARPGROUP.ARRIVE", "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0"};
  SECTION("a whole GEMM") {
    const Lines body = qk + group(4, step, step) + Lines{wait_one} + exps + Lines{wait_all} + converts;
    const sass::Kernel toy = kernel(whole(body));
    CHECK(words(only_hot(toy).figures, "exps_under") == "4 under PV 4/4");
    CHECK(value(only_hot(toy).figures, "exps_covered") == 1);
  }
  SECTION("the last step of a serialised one, and nothing") {
    const Lines pv = serialised({step, step, step});
    const Lines body = qk + Lines{wait_all} + pv + Lines{"WARPGROUP.ARRIVE", step + ", gsb0"} +
                       Lines(exps.begin(), exps.end() - 1) + Lines{wait_all, exps.back()} + converts;
    const sass::Kernel toy = kernel(whole(body));
    const sass::Figures& f = only_hot(toy).figures;
    CHECK(value(f, "exps_in_flight") == 0.75);
    CHECK(words(f, "exps_under") == "3 under PV 1/4, 1 under nothing");
    CHECK(value(f, "exps_covered") == Approx(3 * 0.25 / 4));
    CHECK(sass::find(f, "exps_covered")->evidence.size() == 4);
  }
}

TEST_CASE("called functions are followed") {
  const Lines mma = {"WARPGROUP.ARRIVE", "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24, gsb0", wait_all};
  const Lines calling = whole({"MOV R20, 32@lo(back)", "CALL.REL.NOINC `($toy$mma)", "IADD3 R3, R3, 0x1, RZ"});
  const Lines inside = calling + Lines{"$toy$mma"} + mma +
                       Lines{"@P1 BRA `(.L_back)", "FADD R5, R5, R6", ".L_back", "RET.REL.NODEC R20 `(toy)"};
  const auto check_followed = [](const sass::Kernel& toy) {
    REQUIRE(toy.loops.size() == 1);
    CHECK(toy.loops[0].gemms == "GEMM 1 x 64x16x16 SS");
    CHECK(toy.loops[0].turn.size() == 9);  // the call, the function's usual way with its return, the rest of the loop
    CHECK(toy.unseen.empty());
  };
  SECTION("in the kernel's section") {
    const sass::Kernel toy = kernel(inside);
    check_followed(toy);
    CHECK(toy.followed == std::vector<std::string>{"$toy$mma"});
    CHECK(value(toy.figures, "wgmmas") == 1);  // the copy stands for the function
    CHECK(sass::list_text(toy, {}, {}).find("with the functions it calls: $toy$mma") != std::string::npos);
  }
  SECTION("twice, and through another one") {
    Lines twice = replaced(inside, "IADD3", {"CALL.REL.NOINC `($toy$other)"});
    twice = twice + Lines{"$toy$other", "CALL.REL.NOINC `($toy$mma)", "RET.REL.NODEC R20 `(toy)"};
    const sass::Kernel toy = kernel(twice);
    CHECK(only_hot(toy).gemms == "GEMM 2 x 64x16x16 SS");
    CHECK(toy.followed.size() == 2);
  }
  SECTION("in a section of its own, and as cuobjdump prints it") {
    const Lines elsewhere = replaced(calling, "CALL", {"CALL.ABS.NOINC `(mma)"});
    const auto listings = sass::parse(text("toy", elsewhere) +
                                      text("mma", mma + Lines{"@P1 BRA `(.L_back)", "FADD R5, R5, R6", ".L_back",
                                                              "RET.ABS.NODEC R20 0x0"}));
    check_followed(sass::analyse({}, listings[0], {{"mma", listings[1]}}));
    const sass::Kernel alone = sass::analyse({}, listings[0]);
    CHECK(alone.loops.empty());
    CHECK(alone.unseen == std::vector<std::string>{"mma"});
    CHECK(words(alone.figures, "unseen_calls") == "mma");
    CHECK(sass::list_text(alone, {}, {}).find("calls what this file does not have: mma") != std::string::npos);
    check_followed(kernel(replaced(inside, "CALL", {"CALL.REL.NOINC 0x50"})));
  }
  SECTION("recursion ends, and a function without WGMMAs stays a call") {
    const sass::Kernel self = kernel(replaced(inside, "FADD", {"CALL.REL.NOINC `($toy$mma)"}));
    CHECK(value(self.figures, "wgmmas") == 1);
    const sass::Kernel plain = kernel(replaced(inside, "HGMMA", {"FADD R4, R4, R5"}));
    CHECK(plain.listing.code.size() == kernel(inside).listing.code.size());
    CHECK(kernel(replaced(replaced(replaced(inside, "WARPGROUP.DEPBAR", {}), "WARPGROUP.ARRIVE", {}), "HGMMA", {}))
              .followed.empty());
  }
}

TEST_CASE("a called function, through the whole way") {
  const sass::TemporaryFolder folder;
  const std::string path = folder.path() + "/calls.sass";
  const Lines mma = {"WARPGROUP.ARRIVE", "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24, gsb0", wait_all,
                     "RET.ABS.NODEC R20 0x0"};
  std::ofstream(path) << text("mma", mma) << text("toy", loop({"CALL.ABS.NOINC `(mma)"}) + Lines{"EXIT"});
  const std::vector<sass::Kernel> kernels = kernels_of(path, "toy");
  REQUIRE(kernels.size() == 1);
  CHECK(only_hot(kernels[0]).gemms == "GEMM 1 x 64x16x16 SS");
}

TEST_CASE("code for other architectures is refused, or left out beside Hopper's") {
  const sass::TemporaryFolder folder;
  const std::string path = folder.path() + "/listing.sass";
  const std::string other = "\t.target\tsm_120a\n" + text("blackwell", {"EXIT"});
  std::ofstream(path) << other;
  CHECK_THROWS_MATCHES(kernels_of(path), std::runtime_error,
                       MessageMatches(ContainsSubstring("has code for sm_120, but none for sm_90")));
  CHECK(sass::run({std::getenv("FA3_SASS"), "list", path}).status == 2);
  std::ofstream(path) << other << "\t.target\tsm_90a\n" << text("hopper", {"EXIT"});
  const std::vector<sass::Kernel> kernels = kernels_of(path);
  REQUIRE(kernels.size() == 1);
  CHECK(kernels[0].record.name == "hopper");
  std::ofstream(path) << "\tcode for sm_80\n\t\tFunction : f\n        /*0000*/                   EXIT ;\n";
  CHECK_THROWS_MATCHES(kernels_of(path), std::runtime_error, MessageMatches(ContainsSubstring("sm_80")));
}

TEST_CASE("tensor memory of sm_100: listed, classified and drawn; rules are for Hopper") {
  const sass::TemporaryFolder folder;
  const std::string path = folder.path() + "/listing.sass";
  const Lines mma = {
      ".L_more", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x100], R0", "@!P0 BRA `(.L_more)", ".L_next",
      "UTCQMMA gdesc[UR4], gdesc[UR6], tmem[UR35], tmem[UR28], idesc[UR29], !UPT",
      "UTCHMMA gdesc[UR18], gdesc[UR58], tmem[UR52], tmem[UR46], idesc[UR47], !UPT", "UTCBAR [UR21], URZ",
      "LDTM.x32 R132, tmem[UR9]", "FMUL2 R132, R132.F32x2.HI_LO, R4.F32x2.HI_LO", "STTM.x2 tmem[UR9], R164",
      "UTCCP.T.S.4x32dp128bit tmem[UR21+0x80], gdesc[UR10]", "@P1 BRA `(.L_rest)", "EXIT", ".L_rest",
      "BRA `(.L_next)"};
  std::ofstream(path) << "\t.target\tsm_100a\n" << text("blackwell", mma);
  const std::vector<sass::Kernel> kernels = kernels_of(path);
  REQUIRE(kernels.size() == 1);
  const std::vector<sass::Instruction>& code = kernels[0].listing.code;
  CHECK(sass::kind_of(code[2]) == sass::Kind::umma);
  CHECK(sass::kind_of(code[4]) == sass::Kind::umma_commit);
  CHECK(sass::kind_of(code[5]) == sass::Kind::tensor_memory);
  CHECK(sass::kind_of(code[6]) == sass::Kind::multiply);
  CHECK(sass::destination(code[5]).count == 32);
  CHECK(sass::sources(code[7]).back().count == 2);
  const auto tool = [&](const std::vector<std::string>& words) {
    std::vector<std::string> command{std::getenv("FA3_SASS")};
    command.insert(command.end(), words.begin(), words.end());
    return sass::run(command);
  };
  CHECK_THAT(tool({"list", path}).out, ContainsSubstring("1 UTCHMMA 1 UTCQMMA"));
  CHECK_THAT(tool({"show", path}).out, ContainsSubstring("3 tensor memory, 2 control, 2 tcgen05 mma") &&
                                           ContainsSubstring("UTCBAR [UR21], URZ  // tcgen05 commit"));
  CHECK_THAT(tool({"timeline", "--all", path, "blackwell"}).out,
             ContainsSubstring(">MMA into tensor memory<") && ContainsSubstring(">tensor memory<"));
  for (const char* verb : {"check", "floors", "contract"}) {
    const sass::Output refused = verb == std::string("contract") ? tool({verb, "--init", path}) : tool({verb, path});
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, ContainsSubstring("has code for sm_100, but what " + std::string(verb)));
  }
  // Beside Hopper's it is left out.
  std::ofstream(path, std::ios::app) << "\t.target\tsm_90a\n" << text("hopper", {"EXIT"});
  CHECK(kernels_of(path).at(0).record.name == "hopper");
}
