// The command line of fa3-bench.
#pragma once
#include <string>

#include "point.h"
#include "result.h"

namespace fa3::bench {

struct Options {
  Grid grid;
  Protocol protocol;
  int passes = 1;
  bool overhead = false, reference = false, list = false, help = false;
  bool progress = false;  // already decided: a terminal, or asked for
  std::string csv, json;  // files; "-" is standard output

  // Throws std::invalid_argument with a message for the user.
  static Options parse(int argc, char* argv[]);
};

extern const char* const usage;

}  // namespace fa3::bench
