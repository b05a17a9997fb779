// Several things on the device, timed by turns: so that none of them has the better minutes.
#pragma once
#include <functional>
#include <vector>

#include "cuda_driver.h"
#include "report/result.h"

namespace fa3::bench {

// Of each: the median of the passes' medians, in microseconds. All of them take a turn in each pass.
std::vector<double> median_us(const Protocol& protocol, const tools::Stream& stream,
                              const std::vector<std::function<void()>>& enqueue);

}  // namespace fa3::bench
