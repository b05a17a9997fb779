// A planned call of the CPU reference on the case's own images, which stand for a GPU's memory.
#pragma once
#include <catch2/catch_test_macros.hpp>

#include "planned_case.h"

namespace fa3::test {

// threads: 0 for all cores.
inline void run(PlannedCase& made, int threads = 1) {
  const fa3_forward_params params = made.host_params();
  const fa3_status status = fa3_reference_forward(&params, threads);
  INFO(fa3_last_error_message());
  REQUIRE(status == FA3_OK);
}

}  // namespace fa3::test
