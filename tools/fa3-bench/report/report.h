// Results as a table, CSV and JSON.
#pragma once
#include <cstdio>
#include <optional>
#include <vector>

#include "cuda_driver.h"
#include "overhead.h"
#include "report/result.h"

namespace fa3::bench {

struct Report {
  tools::DeviceInfo device;
  Protocol protocol;
  std::vector<Result> results;
  std::optional<tools::Overhead> overhead;

  void print_table(FILE* out) const;
  void print_overhead(FILE* out) const;
  void print_csv(FILE* out) const;
  void print_json(FILE* out) const;
  void print_list(FILE* out) const;  // as JSON: points and protocol, nothing measured

 private:
  double peak(const Result& result, double mhz) const;
  double peak_share(const Result& result) const;  // at the card's highest SM clock
};

}  // namespace fa3::bench
