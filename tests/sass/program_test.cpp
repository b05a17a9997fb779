// The program as its users see it: the command line, exit statuses, JSON.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "listings.h"
#include "system/process.h"
#include "system/text.h"
#include "system/tidy.h"
#include "views/json.h"

namespace fs = std::filesystem;
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
  CHECK(Json::parse(tool({"list", good, "--json"}).out)["schema"] == 1);
  CHECK(Json::parse(tool({"check", good, "--preset", "--json"}).out)["schema"] == 1);
  CHECK_THAT(tool({"show", good, "miniature", "--brief"}).out,
             ContainsSubstring("hot loop QK+PV") && Catch::Matchers::StartsWith("1  miniature\n"));
  const sass::Output picture = tool({"timeline", good, "miniature"});
  CHECK(picture.status == 0);
  CHECK_THAT(picture.out, ContainsSubstring("<svg") && ContainsSubstring("</svg>"));
}

TEST_CASE("timeline and diff of two kernels: of one file, of two files; each must be one") {
  const sass::TemporaryFolder folder;
  const std::string both = folder.path() + "/both.sass";
  std::ofstream(both) << listings::text("toy_first", listings::good())
                      << listings::text("toy_second", listings::eight_bits());
  const std::string one = tool({"timeline", both, "toy_first"}).out,
                    two = tool({"timeline", both, "toy_first", "toy_second"}).out;
  CHECK_THAT(one, ContainsSubstring(">toy_first<") && !ContainsSubstring(">toy_second<"));
  CHECK_THAT(two, ContainsSubstring(">toy_first<") && ContainsSubstring(">toy_second<"));
  CHECK_THAT(tool({"timeline", good, early, "miniature"}).out, ContainsSubstring("<title>miniature and miniature<"));
  CHECK_THAT(tool({"timeline", good, "miniature", "--all"}).out, ContainsSubstring(">prologue: "));
  CHECK(tool({"diff", both, "toy_first", "toy_second"}).status == 1);
  check_refused({"timeline", both, "toy"},
                "one kernel is wanted, by its name or number; \"toy\" means these:\n  1  toy_first\n  2  toy_second");
  check_refused({"timeline", both, "toy_first", "toy*"}, "\"toy*\" means these:");
  check_refused({"diff", both, "toy", "toy_first"}, "\"toy\" means these:");
  check_refused({"timeline", good, early, "miniature", "mini"}, "timeline takes two files, or two kernels of one");
}

TEST_CASE("JSON: counts have no point, what is no number is null, and names need not be UTF-8") {
  sass::Kernel kernel = listings::kernel(listings::good());
  kernel.record.name = "quote \" backslash \\ bell \a high \xff";
  kernel.figures = {{"count", false, 12, {}, {}, false},
                    {"share", false, 0.25, {}, {}, true},
                    {"endless", false, std::numeric_limits<double>::infinity(), {}, {}, false},
                    {"words", true, 0, "1 0", {}, false}};
  const std::string text = sass::list_json(kernel);
  CHECK_THAT(text, ContainsSubstring(R"("figures":{"count":12,"share":0.25,"endless":null,"words":"1 0"})"));
  CHECK(text.find('\n') == std::string::npos);
  CHECK(Json::parse(text)["name"] == "quote \" backslash \\ bell \a high \xef\xbf\xbd");
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

TEST_CASE("a directory, a device and a missing file of a known kind are no kernels") {
  check_refused({"list", "missing.so"}, "missing.so: no such file");
  check_refused({"list", good, "missing.whl"}, "missing.whl: no such file");
  check_refused({"list", "/dev/null"}, "/dev/null: holds no CUDA machine code");
  check_refused({"list", "/tmp"}, "/tmp: no such file");
  check_refused({"diff", "-", "-"}, "standard input can be read only once");
  check_refused({"check", good, "--preset", "--contract=x"}, "--preset has rules of its own");
  check_refused({"contract", good}, "--init is required");
}

TEST_CASE("help, VERB --help and --version: of every verb, and nothing beside them") {
  const std::string version = tool({"--version"}).out;
  CHECK_THAT(version, ContainsSubstring("fa3-sass ") && ContainsSubstring("."));
  for (const char* verb : {"list", "show", "timeline", "floors", "check", "contract", "diff"}) {
    INFO(verb);
    const sass::Output help = tool({verb, "--help"});
    CHECK(help.status == 0);
    CHECK_THAT(help.out, ContainsSubstring("[FILE]") && ContainsSubstring("Exit status: 0; 1 if"));
    CHECK(tool({verb, "-h"}).out == help.out);
    CHECK(tool({"help", verb}).out == help.out);
    CHECK(tool({verb, "--version"}).out == version);
    check_refused({verb, good, "miniature", "mini", "one", "too many"}, "expected");
    check_refused({verb, good, "--nonsense"}, "--nonsense");
  }
  check_refused({"help", "frobnicate"}, "frobnicate");
  check_refused({"--json", "list", good}, "--json");
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

TEST_CASE("a kernel's number: what list prints selects it") {
  const sass::TemporaryFolder folder;
  const std::string both = folder.path() + "/both.sass";
  std::ofstream(both) << listings::text("toy_first", listings::good())
                      << listings::text("toy_second", listings::eight_bits());
  CHECK_THAT(tool({"list", both}).out, ContainsSubstring("\n1  toy_first ") && ContainsSubstring("\n2  toy_second "));
  CHECK_THAT(tool({"list", both, "second"}).out, ContainsSubstring("\n2  toy_second "));
  CHECK(Json::parse(tool({"list", both, "2", "--json"}).out)["kernels"].at(0)["number"] == 2);
  CHECK(tool({"show", both, "2"}).out == tool({"show", both, "toy_second"}).out);
  CHECK(tool({"diff", both, "1", "toy_first"}).status == 0);
  CHECK(tool({"timeline", both, "2"}).out == tool({"timeline", both, "toy_second"}).out);
  check_refused({"show", both, "3"}, "both.sass: no kernel 3: it has 2");
}

TEST_CASE("kernels of one name: which is meant is asked, by number") {
  const sass::TemporaryFolder folder;
  const std::string both = folder.path() + "/both.so";
  std::ofstream(both, std::ios::binary) << sass::read_file(good) << sass::read_file(early);
  check_refused({"timeline", both, "miniature"}, "means these:\n  1  miniature\n  2  miniature");
  CHECK(tool({"diff", both, "1", "2"}).status == 1);
}

TEST_CASE("a name of 1200 characters is shortened, but not in JSON") {
  const sass::TemporaryFolder folder;
  const std::string name = "begin_" + std::string(1200, 'x') + "_end", path = folder.path() + "/long.sass";
  std::ofstream(path) << listings::text(name, listings::with_producer())
                      << listings::text(name + "2", listings::with_producer());
  std::ofstream(folder.path() + "/m.contract") << "rows begin*\nhot.exps == 8\n";
  const std::string option = "--contract=" + folder.path() + "/m.contract";
  for (const Words& words : {Words{"list", path}, {"show", path}, {"floors", path}, {"diff", path, path},
                             {"check", path, "--preset"}, {"check", path, option}}) {
    const sass::Output output = tool(words);
    INFO(words[0]);
    CHECK(output.status == 0);
    CHECK_THAT(output.out, ContainsSubstring("begin_xxx") && ContainsSubstring("...") && ContainsSubstring("xxx_end"));
    CHECK(output.out.find(std::string(120, 'x')) == std::string::npos);
  }
  check_refused({"timeline", path, "begin_"}, "means these:\n  1  begin_xxx");
  CHECK(Json::parse(tool({"list", path, "1", "--json"}).out)["kernels"][0]["name"] == name);
}

TEST_CASE("standard input") {
  const std::string expected = tool({"list", good}).out;
  for (const std::string& file : {good, std::string(FA3_CUBINS) + "/good.fatbin"}) {
    const sass::Output read = sass::run({std::getenv("FA3_SASS"), "list", "-"}, {{}, sass::read_file(file)});
    CHECK(read.status == 0);
    CHECK(read.out == expected);
  }
  const sass::Output piped =
      sass::run({"sh", "-c", "cat \"$1\" | \"$0\" diff - \"$1\"", std::getenv("FA3_SASS"), good});
  CHECK(piped.status == 0);
  const sass::Output nothing = sass::run({std::getenv("FA3_SASS"), "list", "-"});
  CHECK(nothing.status == 2);
  CHECK_THAT(nothing.err, ContainsSubstring("standard input: holds no CUDA machine code"));
}

TEST_CASE("check --preset, and contract --init") {
  CHECK_THAT(tool({"check", good, "--preset"}).out,
             ContainsSubstring("1 broken") && ContainsSubstring("kernel.never_arrived == 0") &&  // it has no producer
                 ContainsSubstring("\nhand-overs\n"));
  const sass::Output bad = tool({"check", std::string(FA3_CUBINS) + "/starved.cubin", "--preset"});
  CHECK(bad.status == 1);
  CHECK_THAT(bad.out, ContainsSubstring("kernel.spills == 0") && ContainsSubstring("FAIL miniature"));
  const sass::TemporaryFolder folder;
  const std::string both = folder.path() + "/both.sass";
  std::ofstream(both) << listings::text("first", listings::good()) << listings::text("second", listings::good());
  CHECK_THAT(tool({"check", both, "--preset"}).out,
             Catch::Matchers::StartsWith("2 kernels, 2 of them break rules:\n      2  kernel.never_arrived == 0\n") &&
                 ContainsSubstring("FAIL 2 second: ") && ContainsSubstring("\n    Nothing in the kernel arrives"));
  const std::string sound = folder.path() + "/sound.sass";
  std::ofstream(sound) << listings::text("sound", listings::with_producer());
  CHECK_THAT(tool({"check", sound, "--preset"}).out, !ContainsSubstring("hand-overs"));
  CHECK_THAT(tool({"check", sound, "--preset", "--verbose"}).out, ContainsSubstring("\nhand-overs\n"));
  const std::string path = folder.path() + "/first.contract";
  const sass::Output first = tool({"contract", "--init", good, "miniature"});
  CHECK(first.status == 0);
  std::ofstream(path) << first.out;
  CHECK(tool({"check", good, "--contract=" + path}).status == 0);
  CHECK(tool({"check", early, "--contract=" + path}).status == 1);
  CHECK(tool({"contract", "--init", good}).out == first.out);
  std::ofstream(folder.path() + "/no.sass") << listings::text("nothing", {"EXIT"});
  check_refused({"check", "--preset", folder.path() + "/no.sass"}, "none of these kernels is attention");
  check_refused({"check", "--preset=gemm", good}, "none of these kernels is a GEMM");
  check_refused({"check", "--preset=conv", good}, "conv");
  CHECK(tool({"check", "--preset=any", folder.path() + "/no.sass"}).status == 0);
  check_refused({"timeline", folder.path() + "/no.sass", "nothing"}, "nothing: no loop with WGMMAs to draw; --all");
  CHECK(tool({"timeline", folder.path() + "/no.sass", "nothing", "--all"}).status == 0);
}

TEST_CASE("what cannot be written is an error; a reader that has left is none of ours") {
  const auto shell = [](const std::string& line) {
    return sass::run({"bash", "-c", line, std::getenv("FA3_SASS"), good});
  };
  for (const char* words : {"list \"$1\"", "list \"$1\" --json", "show \"$1\"", "--help", "list --help", "--version",
                            "timeline \"$1\"", "floors \"$1\"", "diff \"$1\" \"$1\"", "check --preset \"$1\"",
                            "contract --init \"$1\""}) {
    INFO(words);
    const sass::Output full = shell(std::string("\"$0\" ") + words + " > /dev/full");
    CHECK(full.status == 2);
    CHECK_THAT(full.err, ContainsSubstring("standard output: cannot be written: No space left"));
    CHECK(shell(std::string("\"$0\" ") + words + " >&-").status == 2);
  }
  const sass::Output left = shell("\"$0\" show --all \"$1\" | true; echo ${PIPESTATUS[0]}");
  CHECK((left.out == "141\n" || left.out == "0\n"));  // by SIGPIPE, unless it was faster
  CHECK(left.err.empty());
}

// The size that it states comes behind the first eight bytes of its header.
std::string fat_binary(const std::string& entries) {
  const uint64_t size = entries.size();
  return std::string("\x50\xed\x55\xba\1\0\x10\0", 8) + std::string(reinterpret_cast<const char*>(&size), 8) + entries;
}

// Code for this architecture, as PTX or as machine code, that nobody can read.
constexpr uint16_t ptx = 1, elf = 2;
std::string entry_for(uint16_t kind, uint32_t architecture, uint64_t size) {
  struct {
    uint16_t kind, version = 0x101;
    uint32_t header_size = sizeof *this;
    uint64_t size;
    uint32_t unused[3] = {}, architecture, more[8] = {};
  } entry{.kind = kind, .size = size, .architecture = architecture};
  return std::string(reinterpret_cast<const char*>(&entry), sizeof entry) + std::string(size, '\0');
}

TEST_CASE("code for other architectures is named") {
  const sass::TemporaryFolder folder;
  const std::string path = folder.path() + "/other.so";
  std::ofstream(path) << fat_binary(entry_for(elf, 86, 64) + entry_for(elf, 80, 8))
                      << fat_binary(entry_for(elf, 120, 8));
  check_refused({"list", path}, "other.so: has code for sm_80, sm_86, sm_120, but none for sm_90, and other code is");
}

TEST_CASE("fat binaries for data centre GPUs of Blackwell, where there is nothing for Hopper") {
  const sass::TemporaryFolder folder;
  const std::string blackwell = sass::read_file(std::string(FA3_CUBINS) + "/blackwell.fatbin"),
                    hopper = sass::read_file(std::string(FA3_CUBINS) + "/good.fatbin"),
                    path = folder.path() + "/library.so";
  std::ofstream(path) << fat_binary(entry_for(elf, 80, 8)) << blackwell;
  const sass::Output listed = tool({"list", path});
  CHECK(listed.status == 0);
  CHECK_THAT(listed.out, ContainsSubstring("1  doubled"));
  CHECK_THAT(tool({"check", "--preset=any", path}).err, ContainsSubstring("has code for sm_100, but what check says"));
  std::ofstream(path) << blackwell << hopper;
  CHECK_THAT(tool({"list", path}).out, ContainsSubstring("miniature") && !ContainsSubstring("doubled"));
}

TEST_CASE("a library of hundreds of megabytes takes little memory, here and in the programs that are asked") {
  const sass::TemporaryFolder folder;
  const std::string path = folder.path() + "/large.fatbin",
                    kernel = sass::read_file(std::string(FA3_CUBINS) + "/good.fatbin").substr(16),
                    other = entry_for(elf, 80, 16 << 20);
  {
    std::ofstream file(path);
    std::string one = kernel;
    for (int i = 0; i < 12; ++i) one += other;
    file << fat_binary(one);
    for (int i = 0; i < 12; ++i) file << fat_binary(other + kernel);
  }
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stdout))
      execl(std::getenv("FA3_SASS"), "fa3-sass", "list", path.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  rusage usage{};  // ru_maxrss: of the program, or of one that it started
  REQUIRE(wait4(child, &status, 0, &usage) == child);
  CHECK(status == 0);
  CHECK(usage.ru_maxrss < (200 << 10));  // KiB
}

TEST_CASE("nothing is left in the folder for temporary files, however the program ends") {
  const sass::TemporaryFolder folder;
  const std::string fatbin = std::string(FA3_CUBINS) + "/good.fatbin";
  const auto left = [&] { return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()); };
  const auto shell = [&](const std::string& line) {
    return sass::run({"bash", "-c", "export TMPDIR=$2; " + line, std::getenv("FA3_SASS"), fatbin, folder.path()});
  };
  CHECK(shell("\"$0\" list \"$1\"").status == 0);
  CHECK(left() == 0);
  CHECK(shell("\"$0\" list \"$1\" > /dev/full").status == 2);
  CHECK(left() == 0);
  // While it waits for standard input, and at random moments of its work.
  for (const char* signal : {"TERM", "INT", "HUP"}) {
    const std::string command = "set -m; (trap - INT; exec \"$0\" list - < <(sleep 100)) & "
                                "for n in {1..999}; do [ \"$(ls $TMPDIR)\" ] && break; sleep 0.1; done; "
                                "ls $TMPDIR | wc -l; kill -" + std::string(signal) + " -- -$!; wait $!";
    CHECK(shell(command).out == "1\n");
    CHECK(left() == 0);
  }
  for (int round = 0; round < 12; ++round) {
    shell("set -m; \"$0\" list \"$1\" & sleep 0.0" + std::to_string(round * 7 % 10) + "; kill -TERM -- -$!; wait $!");
    INFO("round " << round);
    CHECK(left() == 0);
  }
  // Who was told to ignore a hang-up does.
  CHECK(shell("trap '' HUP; \"$0\" list - < <(sleep 0.4; cat \"$1\") & sleep 0.2; kill -HUP $!; wait $!").status == 0);
}

TEST_CASE("an installed copy finds the library and the contracts beside it, and nothing of the build") {
  const sass::TemporaryFolder folder;
  const fs::path root = folder.path();
  for (const char* libraries : {"lib", "lib64", "lib/x86_64-linux-gnu"}) {
    INFO(libraries);
    const fs::path prefix = root / fs::path(libraries).filename();
    fs::create_directories(prefix / "bin");
    fs::create_directories(prefix / libraries);
    const std::string program = prefix / "bin/fa3-sass";
    fs::copy_file(std::getenv("FA3_SASS"), program);
    const auto installed = [&](Words words) {
      words.insert(words.begin(), program);
      return sass::run(words, {root.string(), {}});
    };
    const sass::Output alone = installed({"list"});
    CHECK(alone.status == 2);
    CHECK_THAT(alone.err, ContainsSubstring("no libfa3.so beside this program") &&
                              ContainsSubstring((prefix / libraries / "libfa3.so").string()));
    const sass::Output unchecked = installed({"check", good});
    CHECK(unchecked.status == 2);
    CHECK_THAT(unchecked.err, ContainsSubstring("no contracts beside this program"));
    fs::copy_file(good, prefix / libraries / "libfa3.so");
    CHECK_THAT(installed({"list"}).out, ContainsSubstring("miniature"));
    // Contracts are those beside it: one that says nothing true is asked.
    fs::create_directories(prefix / "share/fa3/contracts");
    const std::string row = "fa3_fwd_bf16_d64_full_256x64";
    std::ofstream(prefix / "share/fa3/contracts/fwd.contract") << "rows fa3_fwd_*\nhot.exps == 7\n";
    std::ofstream(prefix / "row.sass") << listings::text(row, listings::good());
    CHECK_THAT(installed({"check", (prefix / "row.sass").string(), row}).out, ContainsSubstring("hot.exps == 7"));
  }
}
