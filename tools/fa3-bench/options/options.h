// The command line of fa3-bench.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "points/points.h"
#include "report/result.h"

namespace fa3::bench {

struct Options {
  Selection selection;
  Protocol protocol;
  bool append = false, combine = false, overhead = false, reference = false, list = false, plan = false, pieces = false;
  std::string card;         // that plans are for, by its name,
  int multiprocessors = 0;  // or by so many; neither: this machine's
  bool progress = false;  // already decided: a terminal, or asked for
  std::string csv, json;  // files; "-" is standard output
  std::string answer;     // the help text or the version, if it was asked for

  // Throws std::invalid_argument with a message for the user, which names the wrong word.
  static Options parse(int argc, const char* const* argv);
};

}  // namespace fa3::bench
