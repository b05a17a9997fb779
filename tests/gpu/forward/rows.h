// Problems of a given row of the table, run on it and verified.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <utility>

#include "problems/problem.h"

namespace fa3::test {

// Checks that the problem runs on that row, if it names one, and its results. Returns whether the library splits it
// along the keys.
bool run(const Problem& problem, const ForwardRow& row, int repeats = 3);

constexpr bool every_row(const ForwardRow&) { return true; }

// Registers a test case for every forward row that it applies to, named after it; but not for those with lengths of
// their own, which take other problems (served.cpp).
template <void (*body)(const ForwardRow&), bool (*applies)(const ForwardRow&) = every_row>
struct RowCases {
  RowCases(const char* what, const char* tags) {
    [&]<size_t... n>(std::index_sequence<n...>) {
      (add<n>(forward_rows[n].name + std::string(what), tags), ...);
    }(std::make_index_sequence<forward_rows.size()>());
  }

 private:
  template <size_t n>
  static void run() {
    body(forward_rows[n]);
  }
  template <size_t n>
  static void add(const std::string& name, const char* tags) {
    if constexpr (applies(forward_rows[n]) && !forward_rows[n].has(Trait::own_lengths))
      REGISTER_TEST_CASE(run<n>, name, tags);
  }
};

// A seed of its own for every row and problem, from the seed of the run.
uint64_t seed_for(const ForwardRow& row, int number);

}  // namespace fa3::test
