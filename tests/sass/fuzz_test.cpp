// Damaged input is an error or a report, never a crash or a hang (the test has a time limit).
#include <catch2/catch_test_macros.hpp>

#include <cstdlib>
#include <iostream>
#include <random>

#include "input/bundle.h"
#include "input/cubin.h"
#include "input/images.h"
#include "kernels/analyse.h"
#include "listings.h"
#include "rules/contract.h"
#include "system/text.h"
#include "views/diff.h"
#include "views/json.h"
#include "views/reports.h"
#include "views/timeline.h"

namespace {

unsigned seed() {
  static const unsigned value = [] {
    const char* given = std::getenv("FA3_SEED");
    const unsigned chosen = given ? static_cast<unsigned>(std::strtoul(given, nullptr, 0)) : std::random_device{}();
    std::cout << "fuzz seed " << chosen << " (FA3_SEED repeats it)\n";
    return chosen;
  }();
  return value;
}

size_t below(std::mt19937& random, size_t limit) { return limit == 0 ? 0 : random() % limit; }

std::string mutated(std::string text, std::mt19937& random) {
  static const char* const scraps[] = {"gsb0",
                                       "R255",
                                       "R99999999999",
                                       "`(.L_loop)",
                                       "`(.L_nowhere)",
                                       "/*",
                                       "*/",
                                       ";",
                                       "[",
                                       ")",
                                       "@",
                                       "@!PT ",
                                       ".L_loop:\n",
                                       "HGMMA.64x",
                                       "HGMMA ",
                                       "WARPGROUP.DEPBAR.LE gsb0, -5",
                                       "\n",
                                       "\t.section\t.text.g\n.text.g:\n",
                                       "BRA `(.L_loop) ;",
                                       "MUFU.EX2 "};
  for (size_t edits = 1 + below(random, 4); edits > 0 && !text.empty(); --edits) {
    const size_t at = below(random, text.size());
    switch (below(random, 6)) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, 1 + below(random, 40)); break;
      case 2: text.insert(at, scraps[below(random, std::size(scraps))]); break;
      case 3: text.resize(at); break;
      case 4: text.insert(at, text.substr(below(random, text.size()), below(random, 200))); break;
      default: {  // a whole line goes elsewhere
        const size_t begin = text.rfind('\n', at) + 1, end = std::min(text.find('\n', at), text.size() - 1) + 1;
        const std::string line = text.substr(begin, end - begin);
        text.erase(begin, end - begin);
        text.insert(below(random, text.size() + 1), line);
      }
    }
  }
  return text;
}

void report_everything(const std::string& text) {
  for (sass::Listing& listing : sass::parse(text)) {
    sass::KernelRecord record;
    record.name = listing.name;
    const sass::Kernel kernel = sass::analyse(record, std::move(listing));
    sass::show_text(kernel, {false, true}, {});
    sass::timeline_svg({&kernel}, {.whole = true});
    sass::list_text(kernel, {}, {});
    sass::list_json(kernel);
    sass::difference(kernel, kernel);
  }
}

void survive(const std::string& text, int rounds, unsigned salt) {
  int errors = 0, reports = 0;
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 random(seed() + salt + static_cast<unsigned>(round));
    const std::string damaged = mutated(text, random);
    INFO("seed " << seed() << ", round " << round << ":\n" << damaged.substr(0, 4000));
    try {
      report_everything(damaged);
      ++reports;
    } catch (const sass::ParseError&) {
      ++errors;
    } catch (const std::exception& error) {
      FAIL(error.what());
    }
  }
  CHECK(errors > 0);
  CHECK(reports > 0);
}

}  // namespace

TEST_CASE("every truncation of a listing is an error or a whole listing") {
  const std::string text = listings::text("toy", listings::good());
  for (size_t length = 0; length <= text.size(); ++length) {
    INFO("length " << length);
    try {
      report_everything(text.substr(0, length));
    } catch (const sass::ParseError&) {
      CHECK(length < text.size());
    }
  }
}

TEST_CASE("mutated hand-made listings") { survive(listings::text("toy", listings::good()), 3000, 0); }

TEST_CASE("mutated listings of consumers and a producer") {
  survive(listings::text("toy", listings::with_producer()), 3000, 40000);
}

TEST_CASE("mutated contracts") {
  const std::string text =
      "rows toy f*\nhot.exps == 8  # all\nhot[QK+PV].waits == 1 0\nkernel.local <= 0\nwaive hot.exps toy: a reason\n";
  const sass::Kernel kernel = listings::kernel(listings::good());
  for (int round = 0; round < 3000; ++round) {
    std::mt19937 random(seed() + 7 + static_cast<unsigned>(round));
    const std::string damaged = mutated(text, random);
    INFO("seed " << seed() << ", round " << round << ":\n" << damaged);
    try {
      sass::check(sass::read_contract("fuzz", damaged), kernel);
    } catch (const std::runtime_error&) {
    }
  }
  SUCCEED();
}

TEST_CASE("mutated images") {
  const std::string image = sass::read_file(std::string(FA3_CUBINS) + "/good.cubin");
  for (int round = 0; round < 4000; ++round) {
    std::mt19937 random(seed() + 100000 + static_cast<unsigned>(round));
    std::string damaged = image;
    if (round % 4 == 0) damaged.resize(below(random, damaged.size()));
    // Headers, tables and names rather than code.
    for (size_t edits = below(random, 12) + 1; edits > 0 && !damaged.empty(); --edits) {
      const size_t at = random() % 2 ? below(random, std::min<size_t>(damaged.size(), 64))
                                     : damaged.size() - 1 - below(random, std::min<size_t>(damaged.size(), 3000));
      damaged[at] = static_cast<char>(random());
    }
    INFO("seed " << seed() << ", round " << round);
    try {
      for (const sass::Image& found : sass::embedded_images("fuzz", damaged))
        CHECK(found.bytes.size() <= damaged.size());
    } catch (const std::runtime_error&) {
    }
    try {
      for (const sass::KernelRecord& kernel : sass::read_cubin(damaged).kernels)
        if (kernel.stands_alone) sass::bundle({{damaged, &kernel}});
    } catch (const std::runtime_error&) {
    }
  }
  SUCCEED();
}
