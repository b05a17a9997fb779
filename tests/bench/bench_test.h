// What tests of the benchmark ask of it: points of a command line, reports as text.
#pragma once
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "../../tools/fa3-bench/options/options.h"
#include "../../tools/fa3-bench/report/report.h"

namespace fa3::bench {

inline Options parse(std::vector<std::string> arguments) {
  std::vector<char*> argv = {nullptr};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return Options::parse(int(argv.size()), argv.data());
}

inline std::string printed(const Report& report, void (Report::*print)(FILE*) const) {
  char* text = nullptr;
  size_t size = 0;
  FILE* file = open_memstream(&text, &size);
  (report.*print)(file);
  std::fclose(file);
  const std::string result(text, size);
  std::free(text);
  return result;
}

inline std::vector<Point> points_of(std::vector<std::string> arguments) {
  return parse(std::move(arguments)).selection.points();
}

inline std::vector<std::string> labels(const std::vector<Point>& points) {
  std::vector<std::string> labels;
  for (const Point& p : points) labels.push_back(p.label());
  return labels;
}

}  // namespace fa3::bench
