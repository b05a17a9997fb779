// What may be read: bundles of kernels, wheels, standard input, listings of any kind; and what is cut off is refused.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "input/bundle.h"
#include "input/disassembler.h"
#include "input/inflate.h"
#include "input/whole.h"
#include "kernels/analyse.h"
#include "kernels/source.h"
#include "listings.h"
#include "system/pipeline.h"
#include "system/process.h"
#include "system/text.h"
#include "system/tidy.h"
#include "views/reports.h"

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;

namespace {

const std::string cubins = FA3_CUBINS;

void write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

// Another tool's compressed bytes: raw deflate, as zip files have it.
std::string deflated(const std::string& text, const std::string& level, const std::string& strategy) {
  const sass::Output output =
      sass::run({"python3", "-c",
                 "import sys, zlib\n"
                 "c = zlib.compressobj(int(sys.argv[1]), zlib.DEFLATED, -15, 9, int(sys.argv[2]))\n"
                 "sys.stdout.buffer.write(c.compress(sys.stdin.buffer.read()) + c.flush())",
                 level, strategy},
                {{}, text});
  REQUIRE(output.status == 0);
  return output.out;
}

std::string inflated(std::string_view stream) {
  std::string text;
  sass::inflate(stream, [&](std::string_view piece) { text += piece; });
  return text;
}

// A wheel with these members, made by Python.
void make_wheel(const std::string& path, const std::vector<std::pair<std::string, std::string>>& members) {
  std::vector<std::string> command{"python3", "-c",
                                   "import sys, zipfile\n"
                                   "w = zipfile.ZipFile(sys.argv[1], 'w', zipfile.ZIP_DEFLATED)\n"
                                   "for name, file in zip(sys.argv[2::2], sys.argv[3::2]): w.write(file, name)\n"
                                   "w.close()",
                                   path};
  for (const auto& [name, file] : members) command.insert(command.end(), {name, file});
  REQUIRE(sass::run(command).status == 0);
}

std::vector<std::string> lines_of(const sass::Kernel& kernel) {
  std::vector<std::string> lines;
  for (const sass::Instruction& i : kernel.listing.code) lines.push_back(std::to_string(i.address) + " " + i.text);
  return lines;
}

}  // namespace

TEST_CASE("a bundle of kernels is disassembled as each of them alone is") {
  const std::string good = sass::read_file(cubins + "/good.cubin");
  std::string other = sass::read_file(cubins + "/starved.cubin");
  for (size_t at = other.find("miniature"); at != std::string::npos; at = other.find("miniature")) other[at] = 'M';
  sass::Cubin first = sass::read_cubin(good), second = sass::read_cubin(other);
  REQUIRE(first.kernels.size() == 1);
  REQUIRE(first.kernels[0].stands_alone);
  CHECK(first.kernels[0].code_bytes % 128 == 0);
  CHECK(sass::same_kind(good, other));
  const auto disassembled = [](const std::string& image) {
    const sass::Output output = sass::run({sass::find_tool("nvdisasm"), "-c", "/dev/stdin"}, {{}, image});
    REQUIRE(output.status == 0);
    return sass::parse(output.out);
  };
  const auto alone = disassembled(good), alone_too = disassembled(other),
             both = disassembled(sass::bundle({{good, &first.kernels[0]}, {other, &second.kernels[0]}}));
  REQUIRE(both.size() == 2);
  for (size_t k = 0; k < 2; ++k) {
    const auto& code = k == 0 ? alone[0].code : alone_too[0].code;
    CHECK(both[k].name == (k == 0 ? "miniature" : "Miniature"));
    REQUIRE(both[k].code.size() == code.size());
    for (size_t i = 0; i < code.size(); ++i) {
      REQUIRE(both[k].code[i].text == code[i].text);
      REQUIRE(both[k].code[i].targets == code[i].targets);
    }
  }
}

TEST_CASE("what a look at the machine code tells is what the disassembler would") {
  const auto source = sass::open_source(cubins + "/required.cubin");
  std::vector<sass::Kernel> kernels = source->read(source->matching(""));
  REQUIRE(kernels.size() == 4);
  std::set<std::string> plain;
  for (const sass::Kernel& kernel : kernels) {
    const size_t entry = static_cast<size_t>(kernel.number) - 1;
    const sass::KernelRecord& record = *source->record(entry);
    CHECK(source->may_have_wgmmas(entry) == (kernel.record.name == "miniature"));
    if (!record.plain) continue;
    plain.insert(record.name);
    if (record.name == "required") CHECK(record.max_threads == 96 * 2);  // .reqntid
    CHECK(sass::list_text(sass::plain_kernel(record, kernel.number), {}, {}) == sass::list_text(kernel, {}, {}));
  }
  const auto calls = [&](const std::string& name) {
    const auto kernel = std::ranges::find(kernels, name, [](const sass::Kernel& k) { return k.record.name; });
    return std::ranges::any_of(kernel->listing.code, [](const auto& i) { return i.is("CALL"); });
  };
  CHECK(calls("divided"));
  CHECK(calls("raised"));
  CHECK(plain == std::set<std::string>{"divided", "required"});
  CHECK_FALSE(sass::open_source(cubins + "/starved.cubin")->record(0)->plain);
  const std::string listed = sass::run({std::getenv("FA3_SASS"), "list", cubins + "/required.cubin"}).out;
  CHECK(listed.starts_with("4 kernels, 1 of them with WGMMAs\n#  kernel"));
  CHECK(sass::list_summary(22182, 0) == "22182 kernels, none with WGMMAs: nothing here is attention for Hopper\n");
}

TEST_CASE("kernels of one name, of one file: each is found, and has a number") {
  const sass::TemporaryFolder folder;
  const std::string path = folder.path() + "/both.so";
  write(path, "two images: " + sass::read_file(cubins + "/good.cubin") + sass::read_file(cubins + "/starved.cubin"));
  const auto source = sass::open_source(path);
  REQUIRE(source->entries().size() == 2);
  CHECK(source->matching("2") == std::vector<size_t>{1});
  CHECK(source->matching("mini*").size() == 2);
  CHECK_THROWS_WITH(source->matching("3"), ContainsSubstring("no kernel 3: it has 2"));
  CHECK_THROWS_WITH(source->matching("0"), ContainsSubstring("no kernel 0"));
  CHECK_THROWS_WITH(source->matching("99999999999999999999999"), ContainsSubstring("it has 2"));
  const auto second = source->read({1});
  CHECK(second.at(0).number == 2);
  CHECK(lines_of(second[0]) == lines_of(listings::kernels_of(cubins + "/starved.cubin").at(0)));
}

TEST_CASE("work of several threads comes in order, within its budget, and stops at an error") {
  std::atomic<int> under_way = 0, most = 0;
  std::vector<size_t> seen;
  const auto make = [&](size_t i) {
    most = std::max<int>(most, ++under_way);
    std::this_thread::sleep_for(std::chrono::microseconds(i * 7919 % 300));
    if (i == 150) throw std::runtime_error("the 150th");
    return i;
  };
  const auto use = [&](size_t i) {
    seen.push_back(i);
    --under_way;
  };
  const auto cost = [](size_t i) { return i == 20 ? 1000 : 10; };  // one dearer than all that is allowed
  CHECK_THROWS_WITH(sass::in_order({200, 8, 50}, cost, make, use), "the 150th");
  REQUIRE(seen.size() == 150);
  for (size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == i);
  CHECK(most <= 6);  // five, and the one that is handed over
}

TEST_CASE("deflate: what zlib has compressed") {
  std::mt19937 random(20240711);
  std::string noise, runs, words;
  for (int i = 0; i < 200000; ++i) noise += static_cast<char>(random());
  for (int i = 0; i < 3000; ++i) runs += std::string(random() % 700, static_cast<char>(random()));
  for (int i = 0; i < 60000; ++i) words += std::to_string(random() % 977) + " ";
  for (const std::string& text : {std::string(), std::string("a"), noise, runs, words, noise + words + noise})
    for (const char* level : {"0", "1", "9"})
      for (const char* strategy : {"0", "2", "4"}) {  // usual, Huffman alone, fixed codes
        INFO("level " << level << ", strategy " << strategy << ", " << text.size());
        const std::string stream = deflated(text, level, strategy);
        CHECK(inflated(stream) == text);
        CHECK_THROWS(inflated(std::string_view(stream).substr(0, stream.size() - 1)));
      }
  const std::string stream = deflated(words, "9", "0");
  for (int round = 0; round < 2000; ++round) {  // damage is an error or another text, never a crash
    std::string damaged = stream;
    for (int edits = 0; edits < 3; ++edits) damaged[random() % damaged.size()] = static_cast<char>(random());
    if (round % 3 == 0) damaged.resize(random() % damaged.size());
    try {
      inflated(damaged);
    } catch (const std::runtime_error&) {
    }
  }
}

TEST_CASE("a wheel: the libraries in it, and the same kernels as outside") {
  const sass::TemporaryFolder folder;
  const std::string wheel = folder.path() + "/some-1.0-py3-none-any.whl";
  write(folder.path() + "/plain.so", "nothing here");
  make_wheel(wheel, {{"some/plain.so", folder.path() + "/plain.so"},
                     {"some/lib/good.so", cubins + "/good.cubin"},
                     {"some/module.cpython-311.so.1", cubins + "/good.fatbin"},
                     {"some/early.cubin", cubins + "/early.cubin"},
                     {"some/again.so", cubins + "/early.cubin"},
                     {"some/text.py", cubins + "/touched.cubin"}});
  const auto kernels = listings::kernels_of(wheel);
  REQUIRE(kernels.size() >= 2);
  CHECK(kernels[0].image == wheel + ":some/lib/good.so");
  CHECK(lines_of(kernels[0]) == lines_of(listings::kernels_of(cubins + "/good.cubin").at(0)));
  CHECK(lines_of(kernels.back()) == lines_of(listings::kernels_of(cubins + "/early.cubin").at(0)));
  CHECK(kernels.size() <= 3);  // the fat binary's image may be the same as the cubin

  const std::string bytes = sass::read_file(wheel);
  write(wheel, bytes.substr(0, bytes.size() / 2));
  CHECK_THROWS_WITH(sass::open_source(wheel), ContainsSubstring("cut off or damaged: no whole zip file"));
  std::string damaged = bytes;
  damaged[bytes.find("good.so") + 1000] ^= 1;
  write(wheel, damaged);
  CHECK_THROWS_WITH(sass::open_source(wheel), ContainsSubstring("good.so: ") && ContainsSubstring("damaged"));
  make_wheel(wheel, {{"some/plain.so", folder.path() + "/plain.so"}});
  CHECK_THROWS_WITH(sass::open_source(wheel), ContainsSubstring("holds no CUDA machine code"));
}

TEST_CASE("listings: of code alone, and of all that a cubin holds") {
  const sass::TemporaryFolder folder;
  const std::string nvdisasm = sass::find_tool("nvdisasm"), path = folder.path() + "/good.sass";
  const auto wanted = lines_of(listings::kernels_of(cubins + "/good.cubin").at(0));
  for (const std::vector<std::string>& options : {std::vector<std::string>{}, {"-c"}, {"-g"}, {"-hex"}}) {
    std::vector<std::string> command{nvdisasm};
    command.insert(command.end(), options.begin(), options.end());
    command.push_back(cubins + "/good.cubin");
    write(path, sass::run(command).out);
    INFO((options.empty() ? "no option" : options[0]));
    const auto kernels = listings::kernels_of(path);
    REQUIRE(kernels.size() == 1);
    CHECK(lines_of(kernels[0]) == wanted);
  }
}

TEST_CASE("what is cut off is refused: libraries, archives, images, fat binaries, listings") {
  const sass::TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes) {
    write(folder.path() + "/file", bytes);
    CHECK_THROWS_WITH(sass::open_source(folder.path() + "/file"),
                      ContainsSubstring("cut off") || ContainsSubstring("ends in the middle") ||
                          ContainsSubstring("line "));
  };
  const auto cut = [&](const std::string& bytes) {
    for (const size_t size : {bytes.size() - 1, bytes.size() * 3 / 4, bytes.size() / 2, size_t{100}}) {
      INFO(size << " bytes of " << bytes.size());
      refused(bytes.substr(0, size));
    }
  };
  const std::string cubin = sass::read_file(cubins + "/good.cubin"), host = sass::read_file("/proc/self/exe");
  cut(cubin);
  refused("a library without tables" + cubin.substr(0, cubin.size() / 2));
  const std::string fatbin = sass::read_file(cubins + "/good.fatbin");
  cut(fatbin);
  refused("a library" + fatbin.substr(0, fatbin.size() - 1));
  CHECK(*sass::stated_end(host) <= host.size());
  refused(host.substr(0, host.size() - 1));
  CHECK(*sass::stated_end(host.substr(0, 20)) > 20);

  const std::string header = "good.cubin/     0           0     0     644     " + std::to_string(cubin.size());
  const std::string archive = "!<arch>\n" + header + std::string(58 - header.size(), ' ') + "`\n" + cubin;
  write(folder.path() + "/whole.a", archive);
  CHECK(listings::kernels_of(folder.path() + "/whole.a").size() == 1);
  refused(archive.substr(0, archive.size() - 1));
  const std::string listing = listings::text("toy", listings::good());
  refused(listing.substr(0, listing.size() / 2));
}

TEST_CASE("objects for the device linker beside what it made of them") {
  const sass::TemporaryFolder folder;
  const std::string linked = sass::read_file(cubins + "/good.cubin");
  std::string object = linked;
  object[16] = 1;  // e_type: ET_REL
  write(folder.path() + "/object", object);
  CHECK(listings::kernels_of(folder.path() + "/object").size() == 1);
  write(folder.path() + "/library", "both: " + object + linked);
  const auto kernels = listings::kernels_of(folder.path() + "/library");
  REQUIRE(kernels.size() == 1);
  CHECK_THAT(kernels[0].image, ContainsSubstring("+0x") && !ContainsSubstring("+0x6"));
}

TEST_CASE("bytes that only look like a fat binary's beginning") {
  const sass::TemporaryFolder folder;
  write(folder.path() + "/file", sass::read_file(cubins + "/good.cubin") + "\x50\xed\x55\xba and more of that");
  CHECK(listings::kernels_of(folder.path() + "/file").size() == 1);
}
