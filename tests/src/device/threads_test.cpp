// Calls from many threads at once, each with a message of its own.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "../call.h"

namespace fa3::test {

TEST_CASE("threads do not disturb each other", "[threads]") {
  const Shape shape{.batch = 1, .seqlen_q = 20, .seqlen_k = 20, .heads = 2, .heads_kv = 1, .head_dim = 8};
  std::vector<uint16_t> qkv(20 * 2 * 8, 0x3c00), expected(20 * 2 * 8);
  const auto params = [&](void* o) {
    return describe(shape, FA3_DTYPE_FP16, qkv.data(), qkv.data(), qkv.data(), o, nullptr);
  };
  const fa3_forward_params once = params(expected.data());
  REQUIRE(fa3_reference_forward(&once, 1) == FA3_OK);

  std::atomic<int> wrong{0};
  const auto work = [&](int id) {
    std::vector<uint16_t> o(expected.size());
    const std::string mine = "k.stride[1] is " + std::to_string(8 * id + 1) + ", must be a multiple of 8";
    for (int round = 0; round < 200; ++round) {
      const fa3_forward_params good = params(o.data());
      fa3_forward_params bad = imaginary();
      const int64_t stride[] = {1 << 20, 8 * id + 1, 16, 1};
      std::copy_n(stride, 4, bad.k.stride);
      wrong += fa3_forward_check(&bad) != FA3_ERROR_INVALID_ARGUMENT;
      std::this_thread::yield();
      wrong += fa3_last_error_message() != mine;
      wrong += fa3_reference_forward(&good, 1 + id % 2) != FA3_OK || o != expected;
      wrong += fa3_last_error_message()[0] != '\0';
      wrong += fa3_preload() == FA3_OK;  // first use of the driver, raced for
      fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
      wrong += fa3_kernel_info_at(id % fa3_kernel_count(), &info) != FA3_OK;
    }
  };
  std::vector<std::thread> threads;
  for (int id = 0; id < 8; ++id) threads.emplace_back(work, id);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a thread starts without a message, and success clears it", "[threads]") {
  CHECK(fa3_forward_check(nullptr) == FA3_ERROR_INVALID_ARGUMENT);
  std::string other = "not run";
  std::thread([&] { other = fa3_last_error_message(); }).join();
  CHECK(other == "");
  CHECK(std::string(fa3_last_error_message()) == "params is NULL");
  const fa3_forward_params p = imaginary();
  CHECK(fa3_forward_check(&p) == FA3_OK);
  CHECK(std::string(fa3_last_error_message()) == "");
}

}  // namespace fa3::test
