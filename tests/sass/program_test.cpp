// The program as its users see it: the command line, exit statuses, JSON.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <fstream>
#include <limits>

#include "json.h"
#include "listings.h"
#include "process.h"

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

namespace {

constexpr const char* contract = "rows miniature\nhot.waits == 1 0\nhot.exps_in_flight >= 1\nhot.instructions <= 60\n";

const std::string good = std::string(FA3_CUBINS) + "/good.cubin", early = std::string(FA3_CUBINS) + "/early.cubin";

sass::Output tool(Words arguments) {
  arguments.insert(arguments.begin(), std::getenv("FA3_SASS"));
  return sass::run(arguments);
}

// Exit status 2, a message with this in it, and nothing on standard output.
void check_refused(const Words& arguments, const std::string& message) {
  std::string line;
  for (const std::string& word : arguments) line += " " + word;
  INFO("fa3-sass" << line);
  const sass::Output output = tool(arguments);
  CHECK(output.status == 2);
  CHECK(output.out.empty());
  CHECK_THAT(output.err, ContainsSubstring("fa3-sass: ") && ContainsSubstring(message));
}

}  // namespace

TEST_CASE("check: exit statuses and reports") {
  const sass::TemporaryFolder folder;
  const std::string path = folder.path() + "/m.contract", option = "--contract=" + path;
  std::ofstream(path) << contract;

  const sass::Output kept = tool({"check", good, option});
  CHECK(kept.status == 0);
  CHECK_THAT(kept.out, ContainsSubstring("ok   miniature"));
  CHECK(kept.out.find('\x1b') == std::string::npos);  // not a terminal
  CHECK(tool({"check", good, "--contract", path}).out == kept.out);
  CHECK_THAT(tool({"check", good, option, "--verbose"}).out, ContainsSubstring("hot.waits == 1 0"));
  std::ofstream(path, std::ios::app) << "hot.instructions <= 1\n";
  CHECK(tool({"check", good, option}).status == 1);
  CHECK(tool({"check", good, option, "--no-budgets"}).status == 0);
  CHECK(tool({"check", early, option, "--no-budgets"}).status == 1);
  std::ofstream(path) << contract;
  const sass::Output violated = tool({"check", early, option});
  CHECK(violated.status == 1);
  CHECK_THAT(violated.out, ContainsSubstring("FAIL miniature") && ContainsSubstring("expected == 1 0") &&
                               ContainsSubstring("WARPGROUP.DEPBAR.LE gsb0, 0x0"));

  const sass::Output output = tool({"check", early, option, "--json"});
  CHECK(output.status == 1);
  const Json report = Json::parse(output.out);
  CHECK(report["passed"] == false);
  CHECK(report["kernels"] == 1);
  REQUIRE(report["findings"].size() == 3);
  CHECK(report["findings"][0]["rule"] == "hot.waits == 1 0");
  CHECK(report["findings"][0]["state"] == "broken");
  CHECK(report["findings"][0]["instructions"].size() == 1);
  CHECK(report["findings"][2]["state"] == "kept");
}

TEST_CASE("diff: exit statuses and reports") {
  CHECK(tool({"diff", good, good}).status == 0);
  CHECK_THAT(tool({"diff", good, "miniature", "miniature"}).out, ContainsSubstring("miniature: the same"));
  const sass::Output output = tool({"diff", good, early, "mini*", "--json"});
  CHECK(output.status == 1);
  const Json kernel = Json::parse(output.out)["kernels"].at(0);
  CHECK(kernel["before"] == "miniature");
  CHECK(kernel["same"] == false);
  Json loop;
  for (const Json& part : kernel["parts"])
    if (part["part"] == "hot loop QK+PV") loop = part;
  CHECK(loop["same"] == false);
  CHECK(loop["figures"]["exps_in_flight"] == Json::array({1, 0}));
  CHECK(loop["gone"][0] == "WARPGROUP.DEPBAR.LE gsb0, 0x1");
  CHECK(loop["lines"][0]["side"] == "gone");
  CHECK(loop["lines"][0]["address"].is_number());
  CHECK_THAT(tool({"diff", good, early, "--all"}).out, ContainsSubstring("hot loop QK+PV: "));
}

TEST_CASE("list, floors, show, timeline: reports") {
  const Json listed = Json::parse(tool({"list", good, "--json"}).out)["kernels"].at(0);
  CHECK(listed["name"] == "miniature");
  CHECK(listed["loops"][0]["hot"] == true);
  CHECK(listed["loops"][0]["figures"]["exps"] == 8);
  CHECK(listed["wgmma"]["HGMMA.64x16x16.F32.BF16"] == 4);
  const Json floors = Json::parse(tool({"floors", good, "--json"}).out)["loops"].at(0);
  CHECK(floors["role"] == "QK+PV");
  CHECK(floors["tensor"] == 64);
  CHECK_THAT(tool({"show", good, "miniature", "--brief"}).out, ContainsSubstring("hot loop QK+PV"));
  const sass::Output picture = tool({"timeline", good, "miniature"});
  CHECK(picture.status == 0);
  CHECK_THAT(picture.out, ContainsSubstring("<svg") && ContainsSubstring("</svg>"));
}

TEST_CASE("timeline and diff of two kernels: of one file, of two files; each must be one") {
  const sass::TemporaryFolder folder;
  const std::string both = folder.path() + "/both.sass";
  std::ofstream(both) << listings::text("toy_first", listings::good())
                      << listings::text("toy_second", listings::of_8_bits());
  const std::string one = tool({"timeline", both, "toy_first"}).out,
                    two = tool({"timeline", both, "toy_first", "toy_second"}).out;
  CHECK_THAT(one, ContainsSubstring(">toy_first<") && !ContainsSubstring(">toy_second<"));
  CHECK_THAT(two, ContainsSubstring(">toy_first<") && ContainsSubstring(">toy_second<"));
  CHECK_THAT(tool({"timeline", good, early, "miniature"}).out, ContainsSubstring("<title>miniature and miniature<"));
  CHECK_THAT(tool({"timeline", good, "miniature", "--all"}).out, ContainsSubstring(">prologue: "));
  CHECK(tool({"diff", both, "toy_first", "toy_second"}).status == 1);
  check_refused({"timeline", both, "toy"}, "one kernel is wanted; \"toy\" means these:\n  toy_first\n  toy_second");
  check_refused({"timeline", both, "toy_first", "toy*"}, "one kernel is wanted; \"toy*\"");
  check_refused({"diff", both, "toy", "toy_first"}, "one kernel is wanted; \"toy\"");
  check_refused({"timeline", good, early, "miniature", "mini"}, "timeline takes two files, or two kernels of one");
}

TEST_CASE("JSON: counts have no point, what is no number is null, and names need not be UTF-8") {
  sass::Kernel kernel = listings::kernel(listings::good());
  kernel.record.name = "quote \" backslash \\ bell \a high \xff";
  kernel.figures = {{"count", false, 12, {}, {}, false},
                    {"share", false, 0.25, {}, {}, true},
                    {"endless", false, std::numeric_limits<double>::infinity(), {}, {}, false},
                    {"words", true, 0, "1 0", {}, false}};
  const std::string text = sass::list_json({kernel});
  CHECK_THAT(text, ContainsSubstring(R"("figures":{"count":12,"share":0.25,"endless":null,"words":"1 0"})"));
  CHECK(text.find('\n') == text.size() - 1);
  CHECK(Json::parse(text)["kernels"][0]["name"] == "quote \" backslash \\ bell \a high \xef\xbf\xbd");
}

TEST_CASE("a flag takes no value, and an option needs its own") {
  check_refused({"list", good, "--json=yes"}, "json was given");
  check_refused({"show", good, "--all=1"}, "all was given");
  check_refused({"check", good, "--contract"}, "--contract: 1 required FILE missing");
  check_refused({"check", good, "--contract="}, "--contract: 1 required FILE missing");
  check_refused({"check", good, "--contract", "--json"}, "--json: cannot be read");
  check_refused({"check", good, "--contracts"}, "--contracts: 1 required FOLDER missing");
}

TEST_CASE("no kernel matches: an error of every verb") {
  const sass::TemporaryFolder folder;
  const std::string option = "--contract=" + folder.path() + "/m.contract";
  std::ofstream(folder.path() + "/m.contract") << contract;
  for (const char* verb : {"list", "show", "timeline", "floors", "check"})
    check_refused({verb, good, "no_such_kernel"}, "good.cubin: no kernel matches \"no_such_kernel\"");
  check_refused({"check", good, "no_such_kernel", option}, "no kernel matches \"no_such_kernel\"");
  check_refused({"diff", good, early, "no_such_kernel"}, "early.cubin: no kernel matches \"no_such_kernel\"");
  check_refused({"diff", good, "miniature", "no_such_kernel"}, "no kernel matches \"no_such_kernel\"");
  check_refused({"list", good, std::string(1000, 'x')}, "no kernel matches");
}

TEST_CASE("words: files and kernels in any order, none too many") {
  CHECK(tool({"list", "--json", "miniature", good}).out == tool({"list", good, "miniature", "--json"}).out);
  check_refused({"list", good, "check"}, "no kernel matches \"check\"");  // though it is a verb, too
  check_refused({"list", "/no/such/file"}, "/no/such/file: no such file");
  check_refused({"list", good, early}, "not expected: " + early);
  check_refused({"list", good, "miniature", "mini"}, "not expected: mini");
  check_refused({"list", good, "--colour"}, "--colour");
  check_refused({"diff", good}, "diff takes two files, or two kernels of one");
  check_refused({"diff", good, early, "miniature", "mini"}, "diff takes two files, or two kernels of one");
  check_refused({"frobnicate"}, "frobnicate");
  check_refused({"frobnicate"}, "[OPTIONS] [VERB]");
  check_refused({}, "A verb is required");
}

TEST_CASE("help: the verbs, their options, the exit statuses") {
  const sass::Output all = tool({"--help"});
  CHECK(all.status == 0);
  for (const char* word : {"list", "show", "timeline", "floors", "check", "diff", "Exit status: 0; 1 if"})
    CHECK_THAT(all.out, ContainsSubstring(word));
  CHECK(tool({"help"}).out == all.out);
  const sass::Output check = tool({"check", "--help"});
  CHECK(check.status == 0);
  for (const char* word : {"[FILE] [KERNEL]", "--contracts FOLDER", "--contract FILE", "--no-budgets", "--verbose",
                           "--json", "Exit status: 0; 1 if"})
    CHECK_THAT(check.out, ContainsSubstring(word));
}
