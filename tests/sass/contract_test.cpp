#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>


#include "listings.h"
#include "ptx/params/append_params.h"
#include "ptx/params/combine_params.h"
#include "ptx/params/params.h"
#include "ptx/table/row.h"
#include "rules/check.h"
#include "rules/contract.h"
#include "rules/table.h"

using namespace listings;
using Catch::Matchers::ContainsSubstring;
using State = sass::Finding::State;

namespace {

std::vector<sass::Finding> checked(const std::string& contract, const Lines& lines = good()) {
  return sass::check(sass::read_contract("toy.contract", contract), kernel(lines));
}

std::vector<sass::Finding> without_budgets(const std::string& text, const Lines& lines = good()) {
  sass::Contract contract = sass::read_contract("toy.contract", text);
  contract.budgets = false;
  return sass::check(contract, kernel(lines));
}

std::vector<std::string> broken(const std::vector<sass::Finding>& findings) {
  std::vector<std::string> rules;
  for (const sass::Finding& finding : findings)
    if (finding.state == State::broken) rules.push_back(finding.rule);
  return rules;
}

}  // namespace

TEST_CASE("rules that hold") {
  CHECK(broken(checked("rows toy  # a comment\n"
                       "hot.gemms == QK 2 x 64x16x16 SS, PV 1 x 64x32x16 RS\n"
                       "hot[QK+PV].exps_in_flight >= 0.95\n"
                       "hot.instructions <= 38\n"
                       "hot.instructions < 38.5\n"
                       "hot.exps > 7\n"
                       "boundary.masks >= 1\n"
                       "kernel.setmaxnreg == 112\n"
                       "kernel.hot_loops == 1\n"))
            .empty());
}

TEST_CASE("the most that figures may be, rows by lines") {
  const std::string contract = "rows *\nhot.exps == 8\nmost hot.instructions hot.exps\n"
                               "  other toy  38 8  # a comment\n  other  1 -\n";
  CHECK(broken(checked(contract)) == std::vector<std::string>());
  CHECK(checked(contract).size() == 3);
  CHECK(broken(checked(contract + "toy 37 -")) == std::vector<std::string>{"hot.instructions <= 37"});
  CHECK(broken(checked(contract + "t* - 7")) == std::vector<std::string>{"hot.exps <= 7"});
  CHECK(checked(contract + "toy 37 -")[2].place == "toy.contract:6");
  CHECK(broken(checked(contract + "rows toy\nhot.exps == 9")) == std::vector<std::string>{"hot.exps == 9"});
}

TEST_CASE("a broken rule says what was expected, what was found, and where") {
  const auto findings = checked("rows t*\nhot.waits == 0 0\nhot.instructions <= 30\nhot[S+dP].exps == 1\n");
  REQUIRE(findings.size() == 3);
  CHECK(findings[0].place == "toy.contract:2");
  CHECK(findings[0].expected == "== 0 0");
  CHECK_THAT(findings[0].found, ContainsSubstring("1 0") && ContainsSubstring("hot loop QK+PV at 20"));
  CHECK(findings[0].instructions.size() == 2);
  CHECK_THAT(findings[0].instructions[0], ContainsSubstring("WARPGROUP.DEPBAR.LE gsb0, 0x1"));
  CHECK_THAT(findings[1].found, ContainsSubstring("38"));
  CHECK_THAT(findings[2].found, ContainsSubstring("no such loop"));
  for (const sass::Finding& finding : findings) CHECK(finding.state == State::broken);
  const sass::CheckResult result{findings, 1};
  CHECK_FALSE(result.passed());
  CHECK_THAT(sass::check_text(result, {}, false),
             ContainsSubstring("FAIL toy: 3 rules, 3 broken") && ContainsSubstring("expected <= 30"));
}

TEST_CASE("each kind of damage breaks its own rule") {
  const std::string contract =
      "rows toy\nhot.gemms == QK 2 x 64x16x16 SS, PV 1 x 64x32x16 RS\nhot.groups == 2\nhot.waits == 1 "
      "0\nhot.serialised == 0\n"
      "hot.touches == 0\nhot.local == 0\nhot.masks == 0\nhot.exps_in_flight >= 0.95\nhot.instructions <= 40\n";
  REQUIRE(broken(checked(contract)).empty());
  using Rules = std::vector<std::string>;
  CHECK(broken(checked(contract, replaced(good(), "FADD R4, R4, R25", {"STL [R1], R25"}))) == Rules{"hot.local == 0"});
  CHECK(broken(checked(contract, replaced(good(), "FADD R4, R4, R25", {"FSEL R25, R25, -INF, P0"}))) ==
        Rules{"hot.masks == 0"});
  CHECK(broken(checked(contract, replaced(good(), "FADD R4, R4, R25", {"FADD R40, R40, R25"}))) ==
        Rules{"hot.touches == 0"});
  CHECK(
      broken(checked(contract, replaced(good(), "WARPGROUP.DEPBAR.LE gsb0, 0x1", {"WARPGROUP.DEPBAR.LE gsb0, 0x0"}))) ==
      Rules{"hot.waits == 1 0", "hot.exps_in_flight >= 0.95"});
  CHECK(broken(checked(contract, replaced(good(), "HGMMA.64x32x16", {}))) ==
        Rules{"hot.gemms == QK 2 x 64x16x16 SS, PV 1 x 64x32x16 RS", "hot.groups == 2",
              "hot.touches == 0"});  // wait<1> lets QK run on
}

TEST_CASE("each kind of damage to a loop of 8 bits breaks its own rule") {
  const std::string contract =
      "rows toy\nhot.gemms == QK 1 x 64x16x32 RS, QK 1 x 64x16x32 SS, PV 1 x 64x32x32 RS\nhot.types == "
      "F32.E4M3.E4M3\nhot.touches == 0\nhot.conversions == 4\nkernel.transposing_loads == 2\n"
      "kernel.transposing_permutes == 4\nkernel.transposing_stores == 1\nkernel.transposing_fences == 1\n"
      "kernel.transposing_instructions <= 10\n";
  const auto rules = [&](const std::string& old, const Lines& lines) {
    return broken(checked(contract, replaced(eight_bits(), old, lines)));
  };
  using Rules = std::vector<std::string>;
  REQUIRE(broken(checked(contract, eight_bits())).empty());
  CHECK(rules("QGMMA.64x16x32.F32.E4M3.E4M3 R24, R56",
              {"QGMMA.64x16x32.F32.E4M3.E4M3 R24, gdesc[UR8], RZ, !UPT"}) ==
        Rules{"hot.gemms == QK 1 x 64x16x32 RS, QK 1 x 64x16x32 SS, PV 1 x 64x32x32 RS"});
  CHECK(rules("FADD R4, R4, R25", {"FADD R57, R4, R25"}).empty());  // QK is done, and Q may change
  CHECK(rules("QGMMA.64x32x32",
              {"MOV R57, R4", "QGMMA.64x32x32.F32.E4M3.E4M3 R40, R60, gdesc[UR16], R40, gsb0"}) ==
        Rules{"hot.touches == 0"});  // Q changes in flight
  CHECK(rules("F2FP.SATFINITE.E4M3", {}) == Rules{"hot.conversions == 4"});
  CHECK(rules("LDSM.16.MT88.4 R8", {"LDSM.16.M88.4 R8, [R3]"}) == Rules{"kernel.transposing_loads == 2"});
  CHECK(rules("PRMT R12", {}) == Rules{"kernel.transposing_permutes == 4"});
  CHECK(rules("STSM", {"STSM.16.M88.2 [R2], R12", "STSM.16.M88.2 [R2+0x10], R14"}) ==
        Rules{"kernel.transposing_stores == 1"});
  CHECK(rules("FENCE", {}) == Rules{"kernel.transposing_fences == 1"});
  CHECK(broken(checked(contract, replaced(replaced(eight_bits(), "FENCE", {}), "IADD3 R3", {"FENCE.VIEW.ASYNC.S"}))) ==
        Rules{"kernel.transposing_fences == 1"});  // for each 32 keys, not for the block
  CHECK(rules("PRMT R12", {"PRMT R12, R4, 0x6420, R5", "NOP", "NOP"}) ==
        Rules{"kernel.transposing_instructions <= 10"});
  // An instruction too many is a matter of budgets, another compiler's own.
  const Lines longer = replaced(eight_bits(), "PRMT R12", {"PRMT R12, R4, 0x6420, R5", "NOP", "NOP"});
  CHECK(broken(without_budgets(contract, longer)).empty());
}

TEST_CASE("a later rule replaces an earlier one for its rows") {
  CHECK(broken(checked("rows *\nhot.instructions <= 10\nrows toy\nhot.instructions <= 40\n")).empty());
  CHECK(broken(checked("rows *\nhot.instructions <= 10\nrows other\nhot.instructions <= 40\n")).size() == 1);
}

TEST_CASE("waivers") {
  const auto findings = checked("rows *\nhot.instructions <= 10\nwaive hot.instructions t?y: the toy is large\n");
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].state == State::waived);
  CHECK(findings[0].reason == "the toy is large");
  CHECK(broken(checked("rows *\nhot.instructions <= 10\nwaive hot.instructions other: no\n")).size() == 1);
  const auto stale = checked("rows *\nhot.instructions <= 100\nwaive hot.instructions: was large\n");
  CHECK(broken(stale) == std::vector<std::string>{"waive hot.instructions"});
}

TEST_CASE("without budgets a contract loses them alone") {
  const auto rules = [](const std::string& text) { return broken(without_budgets(text)); };
  using Rules = std::vector<std::string>;
  REQUIRE(broken(checked("rows *\nhot.adds == 7\n")).empty());
  // What a budget has replaced does not come back; by itself it is held.
  CHECK(rules("rows *\nhot.adds == 0\nrows toy\nhot.adds == 8\n").empty());
  CHECK(rules("rows *\nhot.adds == 0\n") == Rules{"hot.adds == 0"});
  CHECK(rules("rows *\nhot.adds == 0\nrows other\nhot.adds == 8\n") == Rules{"hot.adds == 0"});
  CHECK(rules("rows *\nhot.adds == 8\nrows toy\nhot.adds == 0\n") == Rules{"hot.adds == 0"});
  CHECK(rules("rows *\nhot.adds >= 8\nrows toy\nhot.adds == 8\n") == Rules{"hot.adds >= 8"});
  // A waiver of a budget is not out of date, a waiver of what is held still may be, or serves.
  CHECK(rules("rows *\nhot.adds == 8\nwaive hot.adds: not counted\n").empty());
  CHECK(rules("rows *\nhot.instructions <= 1\nwaive hot.instructions: large\n").empty());
  CHECK(rules("rows *\nhot.exps == 8\nwaive hot.exps: no more\n") == Rules{"waive hot.exps"});
  CHECK(rules("rows *\nwaive hot.adds: no rule at all\nhot.exps == 8\n") == Rules{"waive hot.adds"});
  const auto waived = without_budgets("rows *\nhot.adds >= 8\nhot.adds == 8\nwaive hot.adds: few\n");
  REQUIRE(waived.size() == 1);
  CHECK(waived[0].state == State::waived);
  // A contract of nothing else is one.
  CHECK(without_budgets("rows *\nhot.instructions <= 1\n").empty());
  CHECK(rules("rows other\nhot.instructions <= 1\n") == Rules{"every kernel has a contract"});
}

TEST_CASE("a kernel without a contract is a broken finding") {
  CHECK(broken(checked("rows other\nhot.exps == 1\n")) == std::vector<std::string>{"every kernel has a contract"});
}

TEST_CASE("contracts that cannot be read name file and line") {
  const auto read = [](const char* text) { return sass::read_contract("x.contract", text); };
  CHECK_THROWS_WITH(read(""), ContainsSubstring("no rules"));
  CHECK_THROWS_WITH(read("hot.exps == 1"), ContainsSubstring("x.contract:1") && ContainsSubstring("before the first"));
  CHECK_THROWS_WITH(read("rows\n"), ContainsSubstring("pattern"));
  CHECK_THROWS_WITH(read("rows *\nhot.exps = 1"), ContainsSubstring("x.contract:2") && ContainsSubstring("=="));
  CHECK_THROWS_WITH(read("rows *\nhot.exps =="), ContainsSubstring("bound"));
  CHECK_THROWS_WITH(read("rows *\nexps == 1"), ContainsSubstring("scope"));
  CHECK_THROWS_WITH(read("rows *\nwarm.exps == 1"), ContainsSubstring("no scope warm"));
  CHECK_THROWS_WITH(read("rows *\nhot.expz == 1"), ContainsSubstring("no figure expz"));
  CHECK_THROWS_WITH(read("rows *\nkernel.exps == 1"), ContainsSubstring("no figure exps"));
  CHECK_THROWS_WITH(read("rows *\nwaive hot.exps"), ContainsSubstring("reason"));
  CHECK_THROWS_WITH(read("rows *\nwhatever"), ContainsSubstring("not a rule"));
  CHECK_THROWS_WITH(read("most\n"), ContainsSubstring("`most` needs a figure"));
  CHECK_THROWS_WITH(read("most hot.exps hot.masks\n* 1"), ContainsSubstring("x.contract:2: patterns of rows"));
  CHECK_THROWS_WITH(read("most hot.exps hot.masks\n* b 1"), ContainsSubstring("b is neither a number nor -"));
  CHECK_THROWS_WITH(read("most hot.expz\n* 1"), ContainsSubstring("no figure expz"));
  CHECK_THROWS_WITH(checked("rows *\nhot.exps == many\n"), ContainsSubstring("not a number"));
  CHECK_THROWS_WITH(checked("rows *\nhot.gemms == table\n"), ContainsSubstring("the table does not determine"));
}

TEST_CASE("the table determines every row's GEMMs") {
  REQUIRE(sass::table_rows().size() == static_cast<size_t>(fa3::row_count));
  for (const fa3::ForwardRow& v : fa3::forward_rows) {
    INFO(v.name);
    const auto figure = [&](const char* scope, const char* name) {
      const auto found = sass::table_figure(v.name, scope, name);
      return found ? found->shown() : std::string("nothing");
    };
    if (!v.has(fa3::Trait::speculative)) continue;
    const int depth = 32 / v.element_bytes();
    // Sums on two levels have registers for 128 columns, or for a quarter of 256.
    const bool sums = v.has(fa3::Trait::two_level) && v.d == 256;
    // And with four warpgroups WGMMAs have no more than 128 columns.
    const int parts = sums ? 4 : v.widens_latent() ? 2 : 1, pv = parts * v.stage_keys() / depth;
    const std::string n = std::to_string(v.stage_keys()), d = std::to_string(v.o_columns() / parts);
    const std::string k = std::to_string(depth);
    const std::string shape = " x 64x" + n + "x" + k;
    const int columns = v.d + (v.has(fa3::Trait::qv) ? v.dv : 0);
    const int steps = columns / depth, from_registers = v.has(fa3::Trait::q_in_registers) ? steps / 2 : 0;
    CHECK(figure("hot", "gemms") ==
          (from_registers ? "QK " + std::to_string(from_registers) + shape + " RS, " : "") + "QK " +
              std::to_string(steps - from_registers) + shape + " SS, PV " + std::to_string(pv) + " x 64x" + d + "x" +
              k + " RS");
    CHECK(figure("hot", "wgmmas") == std::to_string(steps + pv));
    CHECK(figure("hot", "arrives") == std::to_string((v.split_stage() || v.halves_columns() ? 2 : 1) +
                                                     v.has(fa3::Trait::qv) + (sums ? 3 : 0)));
    CHECK(figure("hot", "conversions") == std::to_string(v.stage_keys() / 4));
    CHECK(figure("hot", "exps") == std::to_string(v.stage_keys() / 2));
    CHECK(figure("kernel", "threads") == std::to_string(v.threads()));
    // A single consumer and its one producer keep the registers that they begin with.
    if (v.consumers() + v.producers() <= 2) CHECK(figure("kernel", "setmaxnreg") == "");
    else
      CHECK_THAT(figure("kernel", "setmaxnreg"), ContainsSubstring(std::to_string(v.consumer_registers())) &&
                                                     ContainsSubstring(std::to_string(v.producer_registers())));
    const bool multiplies_bf16 = v.dtype == fa3::Dtype::bf16 && !v.has_wide_q();
    CHECK(figure("hot", "types") == (v.is_8bit() ? "F32.E4M3.E4M3" : multiplies_bf16 ? "F32.BF16" : "F32"));
    // Of 32 keys, each of two warps has half of the columns; a load and a store take 16 of them.
    const int transposed = v.transposes_v() ? v.dv / 32 : 0;
    CHECK(figure("kernel", "transposing_loads") == std::to_string(transposed));
    CHECK(figure("kernel", "transposing_permutes") == std::to_string(4 * transposed));
    CHECK(figure("kernel", "transposing_stores") == std::to_string(transposed));
    CHECK(figure("kernel", "transposing_fences") == std::to_string(transposed > 0));
    CHECK(figure("kernel", "parameters") ==
          std::to_string(v.transforms_scores() ? (v.is_8bit() || v.has(fa3::Trait::qv) ? 2560 : 2432)
                         : v.is_latent()       ? 2496
                         : v.has(fa3::Trait::planned)
                             ? (v.has(fa3::Trait::qv) || v.is_8bit() || v.has_wide_q() ? 2432 : 2304)
                             : (v.is_8bit() ? 4096 : 3968)));
  }
  CHECK(sass::table_figure("fa3_pass_empty_rows", "kernel", "parameters")->value == sizeof(fa3::EmptyRowsParams));
  CHECK(sass::table_figure("fa3_pass_tile_v", "kernel", "parameters")->value == sizeof(fa3::TileVParams));
  CHECK(sass::table_figure("fa3_pass_finish", "kernel", "parameters")->value == sizeof(fa3::QuantizeParams));
  CHECK(sass::table_figure("fa3_pass_combine", "kernel", "parameters")->value == sizeof(fa3::CombineParams));
  CHECK(sass::table_figure("fa3_pass_append", "kernel", "parameters")->value == sizeof(fa3::AppendParams));
  CHECK_FALSE(sass::table_figure("toy", "hot", "gemms"));
}

TEST_CASE("the table determines what a row's warps tell each other") {
  const auto figure = [](const char* row, const char* scope, const char* name) {
    const auto found = sass::table_figure(row, scope, name);
    return found ? found->shown() : std::string("nothing");
  };
  const char *together = "fa3_fwd_bf16_d128_full_192x64", *split = "fa3_fwd_fp16_d256_causal_128x64",
             *rows = "fa3_fwd_e4m3_d128_full_192x96", *tiles = "fa3_fwdvtiles_e4m3_d256_full_128x64",
             *sums = "fa3_fwdtwolevel_e4m3_d256_full_128x64", *plain = "fa3_alg1_bf16_d128_full_128x176",
             *alone = "fa3_alg2nows_bf16_d128_causal_128x128", *bwd = "fa3_bwd_bf16_d128_full_64x128",
             *queries = "fa3_bwd_queries_bf16_d256_full_128x64";
  CHECK(figure(together, "kernel", "expected_bytes") == "0/16384, 16384, 16384/32768");
  CHECK(figure(split, "kernel", "expected_bytes") == "0/32768, 32768");
  CHECK(figure(rows, "kernel", "expected_bytes") == "12288, runtime");
  CHECK(figure(tiles, "kernel", "expected_bytes") == "16384, 16384/32768, runtime");
  CHECK(figure(plain, "kernel", "expected_bytes") == "0/16384, 45056");
  CHECK(figure(alone, "kernel", "expected_bytes") == "16384, 32768");
  CHECK(figure(bwd, "kernel", "expected_bytes") == "16640, 32768");
  CHECK(figure(queries, "kernel", "expected_bytes") == "32768");
  CHECK(figure("fa3_pass_finish", "kernel", "expected_bytes") == "nothing");
  CHECK(figure(together, "producer", "tma_loads") == "8");
  CHECK(figure(rows, "producer", "tma_loads") == "5");
  CHECK(figure(tiles, "producer", "tma_loads") == "7");
  CHECK(figure(together, "epilogue", "tma_stores") == "2");
  CHECK(figure(split, "epilogue", "tma_stores") == "0");  // from registers
  // Slabs of 64 bytes; K wider than V.
  const char *narrow = "fa3_fwd_bf16_d96_full_192x64", *unequal = "fa3_fwd_bf16_d192x128_causal_128x96";
  CHECK(figure(narrow, "kernel", "expected_bytes") == "0/12288, 12288, 12288/24576");
  CHECK((figure(narrow, "producer", "tma_loads") == "12" && figure(narrow, "epilogue", "tma_stores") == "3"));
  CHECK(figure(unequal, "kernel", "expected_bytes") == "0/24576, 24576, 36864");
  CHECK((figure(unequal, "producer", "tma_loads") == "10" && figure(unequal, "epilogue", "tma_stores") == "2"));
  CHECK(figure(unequal, "hot", "gemms") == "QK 12 x 64x96x16 SS, PV 6 x 64x128x16 RS");
  const struct {
    const char *row, *prologue, *epilogue, *producer, *first_releases, *last_releases;
  } arrivals[] = {
      {"fa3_fwd_bf16_d64_full_256x64", "0 0 0", "0 0 0 0 0", "1 1 1 0 0 1", "0 0", "1 0 0"},
      {together, "0 0 0", "0 0 0 0 0", "1 1 1 0 0 1", "0 0 0", "1 0 0 0"},
      {"fa3_fwd_bf16_d128_full_128x128", "0 0 0 0 0", "0 0 0 0 0 0 0 0", "1 1 1 1 1 0 0 1", "0 0 0 0 0",
       "1 1 1 0 0 0 0"},
      {split, "0 0 0 0 0", "0 0 0 0 0 0 0 0", "1 1 1 1 1 0 0 1", "0 0 0 0", "0 1 1 1 0 0"}};
  for (const auto& a : arrivals) {
    INFO(a.row);
    CHECK(figure(a.row, "prologue", "parities") == a.prologue);
    CHECK(figure(a.row, "epilogue", "parities") == a.epilogue);
    CHECK(figure(a.row, "producer", "parities") == a.producer);
    CHECK(figure(a.row, "prologue", "releases") == a.first_releases);
    CHECK(figure(a.row, "epilogue", "releases") == a.last_releases);
  }
  // K and V of a block, and Q. V of e4m3 comes in slabs of 128 columns, and Q's buffer has the rows that may exist.
  const char *latent = "fa3_fwdplannedfp8mla_bf16_d64x512_window_64x128",
             *sixteen_bits = "fa3_fwdplannedmla_bf16_d64x512_window_64x128",
             *few = "fa3_fwdplannedfp8mla16rows_bf16_d64x512_window_64x128",
             *half = "fa3_fwdplannedfp8mla32rows_fp16_d64x512_window_64x128";
  CHECK((figure(latent, "producer", "tma_loads") == "7" && figure(sixteen_bits, "producer", "tma_loads") == "11"));
  CHECK(figure(latent, "kernel", "expected_bytes") == "0/73728, 32768, 8192");
  CHECK((figure(few, "kernel", "expected_bytes") == "0/18432, 40960" && figure(few, "producer", "tma_loads") == "7"));
  CHECK(figure(half, "kernel", "expected_bytes") == "0/36864, 40960");
  CHECK(figure(latent, "hot", "accumulators") == "PV overwrites or adds, QK overwrites");
  CHECK(figure(latent, "hot", "gemms") == "QK 36 x 64x64x16 SS, PV 8 x 64x128x16 RS");
  CHECK((figure(latent, "hot", "mbarrier_waits") == "3" && figure(latent, "hot", "arrives") == "3"));
  CHECK(figure("fa3_fwdplanned_bf16_d128_window_192x64", "producer", "parities") == "0 1 1 0 1 0 1 1 0");
  CHECK(figure("fa3_fwdplannedpacked_bf16_d64_window_64x128", "producer", "parities") == "0 1 1 1 0 1 0 0 1 1 0");
  CHECK(figure(rows, "prologue", "parities") == "nothing");
  CHECK(figure(unequal, "hot", "most_multiplies") == "117");
  CHECK(figure(unequal, "boundary", "most_multiplies") == "66");
  CHECK((figure("fa3_fwd_bf16_d64_full_256x64", "hot", "maxima") == "1" && figure(together, "hot", "maxima") == "0"));
  CHECK(figure(together, "prologue", "setmaxnreg") == "+160");
  CHECK(figure(together, "producer", "setmaxnreg") == "-32");
  CHECK(figure(bwd, "prologue", "setmaxnreg") == "+208 -64");
  CHECK(figure(alone, "prologue", "setmaxnreg") == "none");
  CHECK(figure(together, "hot", "releases") == "0");
  CHECK(figure(split, "hot", "releases") == "1 0");
  CHECK(figure(split, "hot", "parities") == "0 0");
  // With shared keys a stage has one barrier, but K and V are awaited in two stages, behind one fence.
  const char* turns = "fa3_fwdsharedkeys_bf16_d128_full_64x64";
  CHECK((figure(turns, "hot", "mbarrier_waits") == "2" && figure(turns, "hot", "arrives") == "1"));
  CHECK((figure(turns, "hot", "releases") == "1 0" && figure(turns, "hot", "parities") == "0 0"));
  CHECK(figure(turns, "kernel", "setmaxnreg") == "40 232");
  CHECK(figure(together, "hot", "accumulators") == "PV overwrites or adds, QK overwrites");
  CHECK(figure(sums, "hot", "accumulators") == "PV overwrites, QK overwrites");
  CHECK(figure(plain, "hot", "accumulators") == "PV adds, QK overwrites");
  CHECK(figure(together, "hot", "transposed") == "PV B");
  CHECK(figure(rows, "hot", "transposed") == "none");
  CHECK(figure(split, "hot", "conversion_types") == "F16.F32");
  CHECK(figure(split, "epilogue", "conversion_types") == "F16.F32");
  CHECK(figure(rows, "epilogue", "conversion_types") == "nothing");  // O's type is a parameter
  CHECK(figure(together, "hot", "most_exps") == "66");
  CHECK(figure(rows, "hot", "most_exps") == "100");
  CHECK(figure(together, "boundary", "exps") == "34");
  CHECK(figure(plain, "hot", "most_exps") == "90");
  CHECK(figure(plain, "boundary", "masks") == "88");
  CHECK(figure(plain, "boundary", "adds") == "88");
  CHECK(figure(plain, "hot", "masks") == "nothing");
}

TEST_CASE("rules for the code before, behind and beside the loops") {
  CHECK(broken(checked("rows toy\nprologue.setmaxnreg == +112\nprologue.waits == none\nproducer.tma_loads == 1\n"
                       "epilogue.tma_stores == 1\nproducer.parities == 1 0\n", with_producer()))
            .empty());
  CHECK(broken(checked("rows toy\nepilogue.waits == 0\nproducer.tma_loads == 2\n", with_producer())) ==
        std::vector<std::string>{"epilogue.waits == 0", "producer.tma_loads == 2"});
  const auto read = [](const char* text) { return sass::read_contract("x.contract", text); };
  CHECK_THROWS_WITH(read("rows *\nproducer[QK].tma_loads == 1"), ContainsSubstring("not to producer"));
  CHECK_THROWS_WITH(read("rows *\nproducer.releasez == 1"), ContainsSubstring("no figure releasez"));
  CHECK_THROWS_WITH(read("rows *\nconsumer.waits == 1"), ContainsSubstring("no scope consumer"));
}

TEST_CASE("check over the table misses no row") {
  const auto result = sass::TableCheck("/nowhere", [](const std::string&) { return true; }, true).result();
  CHECK(result.findings.size() == static_cast<size_t>(fa3::row_count));
  CHECK_FALSE(result.passed());
  CHECK_THROWS(sass::TableCheck("/nowhere", [](const std::string&) { return false; }, true).result());
}
