// The pictures: well-formed, nothing beyond the page, and everything said that the reader needs.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <regex>
#include <set>

#include "listings.h"
#include "loops/regions.h"
#include "views/svg.h"
#include "views/timeline.h"

using namespace listings;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string picture(const sass::Kernel& kernel, bool whole = false) {
  return sass::timeline_svg({&kernel}, {.whole = whole});
}

// Elements closed in their order, attributes in quotes, no bare < or & in text.
void check_well_formed(const std::string& document) {
  static const std::regex tag(R"(<(/?)([a-z]+)((?:\s+[a-zA-Z0-9-]+="[^"<]*")*)\s*(/?)>)");
  static const std::regex bare(R"([<>]|&(?!(lt|gt|amp|quot);))");
  std::vector<std::string> open;
  size_t end = 0;
  int roots = 0;
  for (std::sregex_iterator match(document.begin(), document.end(), tag), none; match != none; ++match) {
    const std::string text = document.substr(end, static_cast<size_t>(match->position()) - end);
    CHECK_FALSE(std::regex_search(text, bare));
    end = static_cast<size_t>(match->position() + match->length());
    const std::string name = (*match)[2];
    roots += open.empty() && (*match)[1].length() == 0;
    if ((*match)[1].length() > 0) {
      REQUIRE_FALSE(open.empty());
      CHECK(open.back() == name);
      open.pop_back();
    } else if ((*match)[4].length() == 0) {
      open.push_back(name);
    }
  }
  CHECK(open.empty());
  CHECK(roots == 1);
  CHECK(document.substr(end) == "\n");
}

// No text runs over the right edge, even in a wide font, and nothing is drawn outside.
void check_fits(const std::string& document) {
  std::smatch size;
  REQUIRE(std::regex_search(document, size, std::regex(R"re(<svg [^>]*width="(\d+)" height="(\d+)")re")));
  const double width = std::stod(size[1]), height = std::stod(size[2]);
  const std::regex text(R"re(<text x="([-0-9.]+)" y="([-0-9.]+)" (?:class="(\w+)")?>([^<]*)<)re"),
      box(R"re(<rect x="([-0-9.]+)" y="([-0-9.]+)" width="([-0-9.]+)" height="([-0-9.]+)")re");
  for (std::sregex_iterator match(document.begin(), document.end(), text), none; match != none; ++match) {
    const std::string look = (*match)[3], words = std::regex_replace((*match)[4].str(), std::regex("&\\w+;"), "x");
    const double x = std::stod((*match)[1]), y = std::stod((*match)[2]);
    const double each = look == "name" ? 9.1 : look == "title" ? 8.6 : 6.2;
    const double length = each * static_cast<double>(words.size());
    const bool ends = look == "lane", centred = look == "inside" || look == "tick" || look == "number";
    const double left = ends ? x - length : centred ? x - length / 2 : x;
    INFO(words);
    CHECK(left >= 0);
    CHECK(left + length <= width);
    CHECK(y <= height);
  }
  for (std::sregex_iterator match(document.begin(), document.end(), box), none; match != none; ++match) {
    CHECK(std::stod((*match)[1]) >= 0);
    CHECK(std::stod((*match)[1]) + std::stod((*match)[3]) <= width);
    CHECK(std::stod((*match)[2]) + std::stod((*match)[4]) <= height);
  }
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// A loop so long that it does not fit into a row.
Lines longer(int more) {
  Lines lines = good();
  const auto at = std::find(lines.begin(), lines.end(), "FADD R4, R4, R25");
  lines.insert(at, static_cast<size_t>(more), "FMUL R5, R5, R6");
  return lines;
}

}  // namespace

TEST_CASE("the picture shows lanes, groups, waits and rare ways, and is one well-formed element") {
  const std::string svg = picture(kernel(good()));
  CHECK(svg.rfind("<svg", 0) == 0);
  CHECK(svg.find("</svg>") == svg.size() - 7);
  for (const char* words :
       {"tensor", "MUFU", "FMA, ALU", "memory", "waits, control", "wait&lt;1&gt;", "wait&lt;0&gt;", "mbarrier", "QK",
        "PV", "exp2", "while a GEMM is in flight: 8 of 8 exp2, 0 of 4 conversions"})
    CHECK_THAT(svg, ContainsSubstring(words));
  CHECK(svg.find("http", svg.find("xmlns") + 40) == std::string::npos);  // nothing is fetched
  CHECK(svg.find("shadow") == std::string::npos);
  check_well_formed(svg);
  check_fits(svg);
}

TEST_CASE("an axis with a title and numbers") {
  const std::string svg = picture(kernel(good()));
  CHECK_THAT(svg, ContainsSubstring("instructions of a turn, in program order (not time)"));
  for (const char* number : {">0</text>", ">10</text>", ">20</text>", ">30</text>"})
    CHECK_THAT(svg, ContainsSubstring(number));
}

TEST_CASE("rare ways: where they leave, where they come back, what they do") {
  const sass::Kernel toy = kernel(good());
  const auto ways = sass::rare_ways(toy, only_hot(toy));
  REQUIRE(ways.size() == 2);
  CHECK(ways[0].leaves == 1);  // the spin of the wait
  CHECK(ways[0].returns == 2);
  CHECK(ways[0].code.size() == 3);
  CHECK(ways[1].leaves == 31);
  CHECK(ways[1].returns == 32);
  const std::string svg = picture(toy);
  CHECK_THAT(svg, ContainsSubstring("rare way 2, from 31 to 32: 4 instructions (") &&
                      ContainsSubstring("1 maximum") && ContainsSubstring("branch to a rare way"));
  CHECK(count(svg, "<circle") == 3);  // and the one in the legend
}

TEST_CASE("a long loop is folded into rows of one scale") {
  CHECK(count(picture(kernel(good())), ">tensor</text>") == 1);
  const std::string svg = picture(kernel(longer(600)));
  CHECK(count(svg, ">tensor</text>") == 3);
  CHECK_THAT(svg, ContainsSubstring(">600</text>"));
  check_well_formed(svg);
  check_fits(svg);
}

TEST_CASE("any name: long ones are broken, signs of XML and bytes of no text are written so that it stays XML") {
  for (const std::string& name :
       {std::string("a<b>&c\"d'e]]>"), std::string("bytes\xff\x80\x01\x1b[31m"), std::string(3000, 'x'),
        "void kernel<" + std::string(200, 'y') + ", (Flag)1, " + std::string(300, 'z') + ">(Params)"}) {
    sass::Kernel toy = kernel(good());
    toy.readable = name;
    for (const bool whole : {false, true}) {
      const std::string svg = picture(toy, whole);
      check_well_formed(svg);
      check_fits(svg);
    }
    const std::string two = sass::timeline_svg({&toy, &toy}, {});
    check_well_formed(two);
    check_fits(two);
  }
  CHECK(sass::xml_text("a<b>&\"\xff") == "a&lt;b&gt;&amp;&quot;?");
}

TEST_CASE("lines are broken behind spaces and commas, nothing is lost") {
  CHECK(sass::wrapped("short", 20) == std::vector<std::string>{"short"});
  CHECK(sass::wrapped("", 20) == std::vector<std::string>{""});
  CHECK(sass::wrapped("some words, and more of them", 12) ==
        std::vector<std::string>{"some words, ", "and more of ", "them"});
  CHECK(sass::wrapped(std::string(25, 'x'), 10) ==
        std::vector<std::string>{std::string(10, 'x'), std::string(10, 'x'), std::string(5, 'x')});
}

TEST_CASE("the whole kernel on one page: every region, one legend") {
  const sass::Kernel toy = kernel(good());
  const std::string hot = picture(toy), whole = picture(toy, true);
  CHECK(hot.find(">prologue") == std::string::npos);
  CHECK_THAT(whole, ContainsSubstring(">prologue: 2 instructions<") && ContainsSubstring(">hot loop QK+PV: 38") &&
                        ContainsSubstring(">hot loop QK+PV, beside its usual way: 7") &&
                        ContainsSubstring("instructions, in order of addresses"));
  CHECK(count(whole, ">in flight: committed, and not yet waited for<") == 1);
  check_well_formed(whole);
  check_fits(whole);
}

TEST_CASE("a picture of clocks: nothing lies outside, and no row is folded") {
  for (const Lines& lines : {good(), longer(600)}) {
    sass::Kernel toy = kernel(lines);
    for (sass::Instruction& i : toy.listing.code) {
      i.control.known = true;
      i.control.stall = 4;
    }
    const std::string svg = sass::timeline_svg({&toy}, {.clocks = true});
    CHECK(count(svg, ">tensor</text>") == 1);
    check_well_formed(svg);
    check_fits(svg);
  }
}

TEST_CASE("two kernels side by side, in one scale") {
  const sass::Kernel one = kernel(good(), "first"), other = kernel(longer(100), "second");
  const std::string svg = sass::timeline_svg({&one, &other}, {});
  check_well_formed(svg);
  check_fits(svg);
  CHECK(count(svg, ">tensor</text>") == 2);
  std::smatch left, right;
  REQUIRE(std::regex_search(svg, left, std::regex(R"re(<text x="([0-9.]+)" y="([0-9.]+)" class="name">first<)re")));
  REQUIRE(std::regex_search(svg, right, std::regex(R"re(<text x="([0-9.]+)" y="([0-9.]+)" class="name">second<)re")));
  CHECK(std::stod(left[1]) < std::stod(right[1]));
  CHECK(left[2] == right[2]);
  // Ten instructions are as long on the left as on the right.
  const std::regex tick(R"re(<text x="([0-9.]+)" y="[0-9.]+" class="tick">([0-9]+)<)re");
  std::vector<std::pair<int, double>> ticks;
  for (std::sregex_iterator match(svg.begin(), svg.end(), tick), none; match != none; ++match)
    ticks.emplace_back(std::stoi((*match)[2]), std::stod((*match)[1]));
  std::vector<double> steps;
  for (size_t t = 1; t < ticks.size(); ++t)
    if (ticks[t].first > ticks[t - 1].first)
      steps.push_back((ticks[t].second - ticks[t - 1].second) / (ticks[t].first - ticks[t - 1].first));
  REQUIRE(steps.size() > 2);
  CHECK(std::abs(steps.front() - steps.back()) < 0.05);
}

TEST_CASE("in the legend no two things have one colour") {
  const sass::Kernel forward =
      kernel(replaced(with_producer(), "FADD R4, R4, R25",
                      {"STL [R1], R4", "FMUL R40, R40, R5", "FSEL R25, R25, -INF, P0", "BAR.SYNC 0x1, 0x80"}));
  const sass::Kernel gradients =
      kernel(replaced(backward(), "@P0 BRA",
                      {"STSM.16.M88.2 [R2], R64", "HGMMA.64x64x16.F32.BF16 R192, gdesc[UR16].tnspA, RZ, !UPT, gsb0",
                       "WARPGROUP.DEPBAR.LE gsb0, 0x0", "@P0 BRA `(.L_0)"}));
  const std::string page = sass::timeline_svg({&forward, &gradients}, {});
  std::set<std::string> colours;
  size_t squares = 0;
  const std::string square = "width=\"10.0\" height=\"10.0\" fill=\"";
  for (size_t at = page.find(square); at != std::string::npos; at = page.find(square, at + 1), ++squares)
    colours.insert(page.substr(at + square.size(), 7));
  CHECK(squares > 20);
  CHECK(colours.size() == squares);
  for (const char* name : {"QK", "PV", "S", "dP", "dV", "dK", "dQ"})
    CHECK_THAT(page, ContainsSubstring("class=\"small\">" + std::string(name) + "<"));
}

TEST_CASE("a kernel without WGMMAs: said, and shown with --all") {
  const sass::Kernel plain = kernel({"LDC R1, c[0x0][0x28]", "STG.E [R2.64], R4", "EXIT"});
  CHECK_THAT(picture(plain), ContainsSubstring("no loop with WGMMAs"));
  CHECK_THAT(picture(plain, true), ContainsSubstring("code: 3 instructions"));
  check_fits(picture(plain, true));
}

TEST_CASE("loops without WGMMAs are bars, but not where their code is scattered") {
  const auto looping = [](size_t between) {
    Lines lines = {"LDC R1, c[0x0][0x28]"};
    lines.push_back(".L_x_1");
    lines.insert(lines.end(), 20, "IADD3 R5, R5, 0x1, RZ");
    lines.push_back("BRA `(.L_x_2)");
    lines.push_back(".L_x_3");
    lines.insert(lines.end(), between, "FMUL R6, R6, R7");
    lines.push_back("EXIT");
    lines.push_back(".L_x_2");
    lines.push_back("ISETP.NE.AND P0, PT, R5, 0x64, PT");
    lines.push_back("@P0 BRA `(.L_x_1)");
    lines.push_back("BRA `(.L_x_3)");
    return picture(kernel(lines), true);
  };
  CHECK_THAT(looping(10), ContainsSubstring("loop of 23 instructions"));
  CHECK_THAT(looping(100), !ContainsSubstring("loop of"));
}

TEST_CASE("readable on light and on dark ground") {
  const std::string svg = picture(kernel(good()));
  CHECK_THAT(svg, ContainsSubstring("prefers-color-scheme:dark") && ContainsSubstring("class=\"page\""));
  // Every text and line has its colour from the style, which knows both grounds.
  static const std::regex own(R"(<(text|line) [^>]*(fill|stroke)=)");
  CHECK_FALSE(std::regex_search(svg, own));
}
