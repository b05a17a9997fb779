// Times points on the GPU by the project's protocol.
#pragma once
#include <vector>

#include "measure/calls.h"

namespace fa3::bench {

class Bench {
 public:
  Bench(const Protocol& protocol, const std::vector<Point>& points) : protocol_(protocol), calls_(protocol, points) {}

  // One pass over one point: checks before it times, on the first pass. Nothing where there is a problem already.
  void run(Result& result);

 private:
  double measure_clock(const Calls::Enqueue& enqueue) const;

  Protocol protocol_;
  Calls calls_;
};

}  // namespace fa3::bench
