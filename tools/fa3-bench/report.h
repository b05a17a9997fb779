// Results as a table, CSV and JSON.
#pragma once
#include <cstdio>
#include <optional>
#include <vector>

#include "cuda_driver.h"
#include "overhead.h"
#include "result.h"

namespace fa3::bench {

struct Report {
  tools::DeviceInfo device;
  Protocol protocol;
  int passes = 1;
  std::vector<Result> results;
  std::optional<tools::Overhead> overhead;

  void print_table(FILE* out) const;
  void print_overhead(FILE* out) const;
  void print_csv(FILE* out) const;
  void print_json(FILE* out) const;

 private:
  double peak_share(const Result& result) const;
};

}  // namespace fa3::bench
