// Results beside what is right and what plain code makes of it.
#pragma once
#include <string>
#include <vector>

#include "references/oracle.h"

namespace fa3::test {

struct Compared {
  std::vector<float> result, right, plain;

  void add(float number, float right_number, float plain_number) {
    result.push_back(number), right.push_back(right_number), plain.push_back(plain_number);
  }
  // "", or errors that are more than 1.25 times those of plain code and, with `floor`, oracle.h's room for luck in few
  // elements. noise: of an element where float32 sums cancel each other, so that luck is all there is. relative: of its
  // size, what else float32 does (score_noise).
  std::string verdict(const char* what, double floor, double noise = 0, double relative = 0) const {
    const Errors error = errors(result, right), plain_error = errors(plain, right);
    if (error.rms <= 1.25 * plain_error.rms + (floor / 20 + relative) * error.size_rms + noise &&
        error.max <= 1.25 * plain_error.max + 2 * (floor + relative) * error.size_max + 8 * noise)
      return "";
    return std::string(what) + ": errors " + std::to_string(error.rms) + " and " + std::to_string(error.max) +
           ", of plain code " + std::to_string(plain_error.rms) + " and " + std::to_string(plain_error.max);
  }
};

}  // namespace fa3::test
