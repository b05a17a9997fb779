// What goes wrong around the library: no memory, lost contexts, other devices, forks. Each has its status and a
// message, whichever function meets it.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "public_calls.h"

namespace {
// Of this thread, the allocation that fails: the next one is 0. Negative: none.
thread_local int allocations_left = -1;
thread_local bool all_after_it = false;
thread_local int failed_allocations = 0;

bool fails() {
  if (allocations_left < 0 || allocations_left-- > 0) return false;
  if (all_after_it) allocations_left = 0;
  ++failed_allocations;
  return true;
}
}  // namespace

// These come before the C library's, for all that is loaded.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t bytes) { return fails() ? nullptr : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return fails() ? nullptr : __libc_calloc(count, bytes); }
void* realloc(void* data, size_t bytes) { return fails() ? nullptr : __libc_realloc(data, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return fails() ? nullptr : __libc_memalign(alignment, bytes); }
void* memalign(size_t alignment, size_t bytes) { return fails() ? nullptr : __libc_memalign(alignment, bytes); }
int posix_memalign(void** data, size_t alignment, size_t bytes) {
  *data = fails() ? nullptr : __libc_memalign(alignment, bytes);
  return *data ? 0 : ENOMEM;
}
}

namespace fa3::test {
namespace {

using Catch::Matchers::ContainsSubstring;

// Runs the call with that allocation failing. False: it needs no so many.
bool fail_allocation(const PublicCall& call, int which, bool all, fa3_status& status) {
  failed_allocations = 0, all_after_it = all;
  allocations_left = which;
  status = call.run();
  allocations_left = -1;
  return failed_allocations > 0;
}

// What a child finds wrong is its exit status: 0 for nothing, else the call's number and more.
template <class Body>
int in_a_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // it must not wait for ever
    _exit(body());
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// In a child of a process that has used the driver.
int without_a_driver() {
  int number = 0;
  for (const PublicCall& call : public_calls) {
    ++number;
    const fa3_status status = call.run();
    const std::string message = fa3_last_error_message();
    if (status != (call.asks_driver ? FA3_ERROR_NO_CONTEXT : FA3_OK)) return number;
    if (message.empty() == call.asks_driver) return 100 + number;
    const bool names_error = message.find("CUDA error 3, CUDA_ERROR_NOT_INITIALIZED") != message.npos;
    if (names_error != call.asks_driver) return 100 + number;
  }
  // The references also with threads of the child's own.
  const fa3_forward_params p = imaginary({.batch = 5, .seqlen_q = 60, .seqlen_k = 60, .heads = 4, .heads_kv = 4});
  Buffer all(1 << 20), lse(1 << 16);
  fa3_forward_params own = p;
  own.q.data = own.k.data = own.v.data = all.as(), own.o.data = all.as<char>() + (1 << 19), own.lse.data = lse.as();
  return fa3_reference_forward(&own, 4) == FA3_OK ? 0 : 99;
}

}  // namespace

TEST_CASE("without memory every function says so, and the next call is as if nothing had been", "[failures]") {
  int failed = 0, out_of_memory = 0;
  for (const PublicCall& call : public_calls)
    for (bool all : {false, true}) {
      fa3_status status;
      for (int which = 0; fresh().record = false, fail_allocation(call, which, all, status); ++which) {
        ++failed;
        out_of_memory += status == FA3_ERROR_OUT_OF_MEMORY;
        const std::string message = fa3_last_error_message();
        INFO(call.name << ", allocation " << which << ": " << message);
        if (status == FA3_ERROR_OUT_OF_MEMORY) CHECK_THAT(message, ContainsSubstring("no host memory for "));
        else if (status == FA3_ERROR_CUDA) CHECK_THAT(message, ContainsSubstring("CUDA_ERROR_OUT_OF_MEMORY"));
        else if (status == FA3_ERROR_NO_DRIVER) CHECK_THAT(message, ContainsSubstring("annot allocate"));  // dlopen's
        else CHECK(status == FA3_OK);  // it did without
        CHECK(call.run() == FA3_OK);  // and the driver, too, is found at last
        REQUIRE(which < 10000);
      }
      INFO(call.name << ": " << fa3_last_error_message());
      CHECK(status == FA3_OK);
    }
  // A context's entry for each function that asks the driver, the scratch of three references, and the lengths of one,
  // twice each.
  CHECK(out_of_memory >= 2 * (8 + 4));
  CHECK(failed > out_of_memory);
}

TEST_CASE("a reference without memory writes nothing", "[failures]") {
  int references = 0;
  for (const PublicCall& call : public_calls) {
    const std::string name = call.name;
    if (!name.starts_with("fa3_reference_forward") && name != "fa3_reference_backward") continue;
    ++references;
    INFO(name);
    std::fill_n(detail::o, 8, 77.0f), std::fill_n(detail::dv, 8, 77.0f), detail::lse[0] = 77;
    int refused = 0;
    fa3_status status;
    for (int which = 0; fail_allocation(call, which, true, status); ++which) {
      if (status != FA3_ERROR_OUT_OF_MEMORY) continue;
      ++refused;
      CHECK((detail::o[0] == 77 && detail::o[7] == 77 && detail::lse[0] == 77 && detail::dv[0] == 77));
    }
    CHECK(refused > 0);
  }
  CHECK(references == 3);
}

TEST_CASE("every function refuses a device that is no Hopper", "[failures]") {
  const int capabilities[][2] = {{8, 0}, {8, 9}, {9, 1}, {10, 0}, {12, 0}};
  for (const auto& [major, minor] : capabilities)
    for (const PublicCall& call : public_calls) {
      FakeCuda& fake = fresh();
      fake.major = major, fake.minor = minor;
      INFO(call.name);
      CHECK(call.run() == (call.asks_driver ? FA3_ERROR_WRONG_DEVICE : FA3_OK));
      if (call.asks_driver)
        expect_message(("is of compute capability " + std::to_string(major) + "." + std::to_string(minor) +
                        ", must be 9.0").c_str());
      CHECK((fake.loads == 0 && fake.launches.empty()));
    }
}

TEST_CASE("every function passes on what the driver says of a lost context or of an earlier kernel", "[failures]") {
  const char* const driver_calls[] = {"cuCtxGetId", "cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGetAttribute",
                                      "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode", "cuModuleLoadData",
                                      "cuModuleGetFunction", "cuFuncSetAttribute", "cuTensorMapEncodeTiled",
                                      "cuLaunchKernelEx"};
  const struct {
    CUresult error;
    const char* text;
  } errors[] = {{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA error 700, CUDA_ERROR_ILLEGAL_ADDRESS"},
                {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA error 709, CUDA_ERROR_CONTEXT_IS_DESTROYED"}};
  for (const auto& [error, text] : errors)
    for (const PublicCall& call : public_calls) {
      int refused = 0;
      for (const std::string driver_call : driver_calls) {
        FakeCuda& fake = fresh();
        fake.failing = driver_call, fake.failure = error;
        const fa3_status status = call.run();
        INFO(call.name << " " << driver_call << ": " << fa3_last_error_message());
        if (status != FA3_OK) {
          ++refused;
          const bool no_context = driver_call == "cuCtxGetId" && error == CUDA_ERROR_CONTEXT_IS_DESTROYED;
          CHECK(status == (no_context ? FA3_ERROR_NO_CONTEXT : FA3_ERROR_CUDA));
          expect_message(driver_call.c_str());
          expect_message(text);
          CHECK(fake.launches.empty());
        }
        CHECK(fake.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
        fake.failing.clear();
        CHECK(call.run() == FA3_OK);
      }
      INFO(call.name);
      // A launch asks for all but maybe maps; a question for the context and what its device is; nobody else at all.
      const bool loads = call.launches || std::string(call.name) == "fa3_preload";
      CHECK(refused >= (call.launches ? 10 : loads ? 8 : call.asks_driver ? 4 : 0));
      if (!call.asks_driver) CHECK(refused == 0);
    }
}

TEST_CASE("every function knows a new context at the address of one that is no more", "[failures]") {
  for (const PublicCall& call : public_calls) {
    FakeCuda& fake = fresh();
    INFO(call.name);
    REQUIRE(call.run() == FA3_OK);
    const int loads = fake.loads;
    fake.context_id += 1 << 20;
    fake.multiprocessors = 66;
    CHECK(call.run() == FA3_OK);  // the fake driver refuses another context's functions
    CHECK(fake.loads == 2 * loads);
  }
}

TEST_CASE("a context at the address of one that is no more needs no memory of its own", "[failures]") {
  int asked = 0;
  for (const PublicCall& call : public_calls) {
    if (!std::string(call.name).ends_with("of this device")) continue;
    ++asked;
    FakeCuda& fake = fresh();
    REQUIRE(call.run() == FA3_OK);
    fake.context_id += 1 << 20;
    fa3_status status;
    INFO(call.name);
    CHECK_FALSE(fail_allocation(call, 0, true, status));
    CHECK(status == FA3_OK);
  }
  CHECK(asked == 4);
}

TEST_CASE("a forked child has no context, and says so", "[failures]") {
  fresh();
  for (const PublicCall& call : public_calls) REQUIRE(call.run() == FA3_OK);
  CHECK(in_a_child(without_a_driver) == 0);
}

TEST_CASE("a fork while another thread loads kernels, under the library's lock", "[failures]") {
  FakeCuda& fake = fresh();
  fake.held = true;
  std::atomic<int> loaded = -1;
  std::thread loader([&] { loaded = fa3_preload(); });
  while (fake.loads < 1 && loaded < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int n = 0; n < 10; ++n) CHECK(in_a_child(without_a_driver) == 0);
  CHECK((fake.loads == 1 && loaded < 0));  // it is still at it
  fake.held = false;
  loader.join();
  CHECK(loaded == FA3_OK);
  CHECK(fake.loads > 1);
}

}  // namespace fa3::test
