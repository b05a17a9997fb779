// The GPU of this test run.
#pragma once
#include <functional>
#include <string>

#include "cuda_driver.h"

namespace fa3::test {

// The reason why GPU tests cannot run here; empty if they can. FA3_TEST_NO_GPU=1 hides the GPU.
const std::string& why_no_gpu();

// A context with every kernel that the library chooses loaded, current to the main thread for the whole run, and a
// stream. Skips the running test case, with the reason, where there is no Hopper GPU.
struct Gpu {
  tools::Context context;
  tools::Stream stream;
};
const Gpu& gpu();

// Runs body on a thread of its own, which starts without a context, and returns its answer or its exception's text.
std::string on_thread(const std::function<std::string()>& body);

}  // namespace fa3::test
