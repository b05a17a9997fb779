// Results beside what is right and what plain code makes of it.
#pragma once
#include <string>
#include <vector>

#include "references/oracle.h"

namespace fa3::test {

struct Compared {
  std::vector<float> result, right, plain;

  void add(float its, float its_right, float of_plain) {
    result.push_back(its), right.push_back(its_right), plain.push_back(of_plain);
  }
  // "", or errors that are more than 1.25 times those of plain code and, with `floor`, oracle.h's room for luck in few
  // elements. noise: of an element where float32 sums cancel each other, so that luck is all there is. relative: of its
  // size, what else float32 does (score_noise).
  std::string verdict(const char* what, double floor, double noise = 0, double relative = 0) const {
    const Errors error = errors(result, right), of_plain = errors(plain, right);
    if (error.rms <= 1.25 * of_plain.rms + (floor / 20 + relative) * error.size_rms + noise &&
        error.max <= 1.25 * of_plain.max + 2 * (floor + relative) * error.size_max + 8 * noise)
      return "";
    return std::string(what) + ": errors " + std::to_string(error.rms) + " and " + std::to_string(error.max) +
           ", of plain code " + std::to_string(of_plain.rms) + " and " + std::to_string(of_plain.max);
  }
};

}  // namespace fa3::test
