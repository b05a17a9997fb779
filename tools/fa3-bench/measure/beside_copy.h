// What --combine and --append have in common: a call is checked, then timed beside a device-to-device copy of as many
// bytes as it reads and writes.
#pragma once
#include <fa3.h>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "measure/turns.h"
#include "report/result.h"

namespace fa3::bench {

// Case: Combination or Appending.
template <class Case>
struct BesideCopy {
  Case of;
  std::string problem;  // why the result is wrong
  double us = 0, copy_us = 0;

  double gigabytes_per_second() const { return double(of.bytes()) / us * 1e-3; }
  double share() const { return copy_us / us; }  // of the copy's bandwidth
};

// call and copy enqueue work on the stream; check() is "", or what is wrong with what the call left.
template <class Case, class Call, class Copy, class Check>
BesideCopy<Case> checked_and_timed(const Protocol& protocol, const tools::Stream& stream, const Case& of, Call call,
                                   Copy copy, Check check) {
  BesideCopy<Case> result{of, {}};
  call();
  stream.synchronize();
  if (protocol.checked_rows > 0) result.problem = check();
  if (!result.problem.empty()) return result;
  const std::vector<double> us = median_us(protocol, stream, {call, copy});
  result.us = us[0], result.copy_us = us[1];
  return result;
}

// Runner(protocol, one).run() for each of all. Needs a GPU.
template <class Runner, class Case>
std::vector<BesideCopy<Case>> run_each(const Protocol& protocol, const std::vector<Case>& all) {
  const tools::Context context;
  if (fa3_preload() != FA3_OK) throw tools::CudaError(std::string("fa3_preload: ") + fa3_last_error_message());
  std::vector<BesideCopy<Case>> results;
  for (const Case& one : all) results.push_back(Runner(protocol, one).run());
  return results;
}

}  // namespace fa3::bench
