#include "gpu.h"

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <thread>

#include "fa3.h"

namespace fa3::test {

const std::string& why_no_gpu() {
  static const std::string reason = std::getenv("FA3_TEST_NO_GPU") ? "FA3_TEST_NO_GPU is set" : tools::why_no_hopper();
  return reason;
}

const Gpu& gpu() {
  if (!why_no_gpu().empty()) SKIP("needs a Hopper GPU: " << why_no_gpu());
  // Never destroyed: the driver may be gone when static objects are.
  static const Gpu* instance = [] {
    auto* made = new Gpu;
    if (fa3_preload() != FA3_OK) FAIL("fa3_preload: " << fa3_last_error_message());
    return made;
  }();
  return *instance;
}

std::string on_thread(const std::function<std::string()>& body) {
  std::string answer;
  std::thread([&] {
    try {
      answer = body();
    } catch (const std::exception& error) {
      answer = error.what();
    }
  }).join();
  return answer;
}

}  // namespace fa3::test
