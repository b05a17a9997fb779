#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "listing/sass.h"
#include "listings.h"

using Catch::Matchers::ContainsSubstring;
using listings::text;

TEST_CASE("an instruction is taken apart") {
  const auto functions = sass::parse(
      text("f", {".L_0", "@!P0 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR7+0x30040], RZ",
                 "HGMMA.64x64x16.F32.BF16 R56, R100, gdesc[UR16].tnspB, R56, UP0", "@P3 BRA `(.L_0)", "EXIT"}));
  REQUIRE(functions.size() == 1);
  const auto& code = functions[0].code;
  REQUIRE(code.size() == 4);
  CHECK(code[0].guard == "@!P0");
  CHECK(code[0].is("SYNCS"));
  CHECK(code[0].has("ARRIVE"));
  CHECK_FALSE(code[0].has("ARR"));
  CHECK(code[0].operands == std::vector<std::string>{"RZ", "[UR7+0x30040]", "RZ"});
  CHECK(code[1].address == 0x10);
  CHECK(code[1].operands.size() == 5);
  CHECK(code[2].targets == std::vector<int>{0});
  CHECK(code[3].targets.empty());
}

TEST_CASE("registers that instructions read and write") {
  const auto parsed = [](const std::string& line) { return sass::parse(text("f", {line, "EXIT"}))[0].code[0]; };
  const auto wgmma = parsed("HGMMA.64x64x16.F32.BF16 R56, R100, gdesc[UR16].tnspB, R56, gsb0");
  CHECK(sass::destination(wgmma).first == 56);
  CHECK(sass::destination(wgmma).count == 32);
  CHECK(sass::sources(wgmma).front().first == 100);
  CHECK(sass::sources(wgmma).front().count == 4);
  CHECK(sass::destination(parsed("QGMMA.64x96x32.F32.E4M3.E4M3 R88, gdesc[UR8], R88")).count == 48);
  CHECK(sass::destination(parsed("SHFL.BFLY PT, R41, R40, 0x1, 0x1f")).first == 41);
  CHECK(sass::destination(parsed("LDS.128 R8, [R2+0x10]")).count == 4);
  CHECK(sass::destination(parsed("STS.128 [R2+0x10], R8")).count == 0);
  CHECK(sass::sources(parsed("STS.128 [R2+0x10], R8")).back().count == 4);
  CHECK(sass::destination(parsed("ISETP.GE.AND P0, PT, R3, 0x1, PT")).count == 0);
  CHECK(sass::destination(parsed("UIADD3 UR6, UP0, UR12, 0x1, URZ")).count == 0);
  CHECK(sass::destination(parsed("CS2R R14, SRZ")).count == 2);
}

TEST_CASE("cuobjdump's listing is understood too") {
  const auto functions = sass::parse(
      "\tcode for sm_90a\n\t\tFunction : f\n\t.headerflags\t@\"EF_CUDA_SM90\"\n"
      "        /*0000*/                   MOV R1, R2 ;          /* 0x00000a00ff017b82 */\n"
      "                                                         /* 0x000e220000000800 */\n"
      "        /*0010*/              @P0 BRA 0x0 ;              /* 0x00000a00ff017b82 */\n"
      "        /*0020*/                   EXIT ;                /* 0x00000a00ff017b82 */\n\t\t.....\n");
  REQUIRE(functions.size() == 1);
  CHECK(functions[0].name == "f");
  CHECK(functions[0].code[1].targets == std::vector<int>{0});
}

TEST_CASE("where an instruction comes from, if the listing says so") {
  const std::string listing = text("f", {"NOP", "FADD R0, R0, R1", "FMUL R0, R0, R1", "EXIT"});
  const auto with = [&](const std::string& before, const std::string& remark) {
    std::string marked = listing;
    marked.insert(marked.rfind('\n', marked.find(before)) + 1, remark);
    return marked;
  };
  CHECK(sass::parse(listing)[0].code[1].source.empty());
  const auto plain = sass::parse(with("FADD", "\t//## File \"/home/x/kernel.cu\", line 12\n"))[0].code;
  CHECK(plain[0].source.empty());
  CHECK(plain[1].source == "kernel.cu:12");
  CHECK(plain[2].source == "kernel.cu:12");
  const auto inlined = sass::parse(with("FADD", "\t//## File \"/i/ptx.cuh\", line 7 inlined at \"/k.cu\", line 9\n"
                                                "\t//## File \"/k.cu\", line 9\n"))[0].code;
  CHECK(inlined[1].source == "ptx.cuh:7, from k.cu:9");
}

TEST_CASE("damage is an error that names the line") {
  const std::string whole = text("f", {".L_0", "MOV R1, R2", "@P0 BRA `(.L_0)", "EXIT"});
  CHECK_NOTHROW(sass::parse(whole));
  CHECK_THROWS_WITH(sass::parse(""), ContainsSubstring("no SASS function"));
  CHECK_THROWS_WITH(sass::parse(whole.substr(0, whole.find("EXIT") + 2)),
                    ContainsSubstring("line 7") && ContainsSubstring("semicolon"));
  CHECK_THROWS_WITH(sass::parse(whole.substr(0, whole.find("        /*0020"))),
                    ContainsSubstring("ends in the middle"));
  CHECK_THROWS_WITH(sass::parse(text("f", {"@P0 BRA `(.L_7)", "EXIT"})), ContainsSubstring(".L_7"));
  CHECK_THROWS_WITH(sass::parse(text("f", {".L_0", ".L_0", "EXIT"})), ContainsSubstring("twice"));
  CHECK_THROWS_WITH(sass::parse(text("f", {})), ContainsSubstring("no instructions"));
  CHECK_THROWS_WITH(sass::parse(text("f", {"123", "EXIT"})), ContainsSubstring("no instruction"));
  CHECK_THROWS_WITH(sass::parse(".text.f:\n /*0010*/ NOP ;\n /*0000*/ EXIT ;\n"), ContainsSubstring("do not increase"));
  CHECK_THROWS_WITH(sass::parse(".text.f:\n /*0000*/ EXIT ;\n rubbish\n"), ContainsSubstring("line 3"));
}
