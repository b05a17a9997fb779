// What the CPU reference makes of the machine it runs on: vectors, cores, threads, memory. Tested inside the library's
// archive; the linker leads its calls of the system here (--wrap), so that the machine can be another one.
#include <catch2/catch_test_macros.hpp>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "../call.h"
#include "backward/backward.h"
#include "cpu/cores.h"
#include "error.h"
#include "forward/forward.h"

namespace fa3::test {
namespace {

struct Machine {
  std::vector<int> cpus;  // that this process may run on; empty: the real ones
  size_t mask_bytes = 128;
  bool has_memory = true;
  int more_threads = 1000;
  std::atomic<int> threads_started = 0;
} * machine;  // null: the real one

}  // namespace
}  // namespace fa3::test

using fa3::test::machine;
extern "C" {
int __real_sched_getaffinity(pid_t, size_t, cpu_set_t*);
int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t* set) {
  if (!machine || machine->cpus.empty()) return __real_sched_getaffinity(pid, bytes, set);
  if (bytes < machine->mask_bytes) {
    errno = EINVAL;
    return -1;
  }
  CPU_ZERO_S(bytes, set);
  for (int cpu : machine->cpus) CPU_SET_S(cpu, bytes, set);
  return 0;
}

int __real_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  if (machine && ++machine->threads_started > machine->more_threads) return EAGAIN;
  return __real_pthread_create(thread, attributes, run, argument);
}

void* __real_aligned_alloc(size_t, size_t);
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return machine && !machine->has_memory ? nullptr : __real_aligned_alloc(alignment, bytes);
}
}

namespace fa3::test {
namespace {

struct Pretended : Machine {
  Pretended() { machine = this; }
  ~Pretended() { machine = nullptr; }
};

ForwardProblem valid(const fa3_forward_params& params) {
  ForwardProblem problem;
  REQUIRE(validate(&params, Rules::reference, problem) == FA3_OK);
  return problem;
}

// A call with memory of its own. Every second key is the one before again, with V negated, so that O is what rounding
// has left. A few elements are not finite if these may be.
struct Call {
  Buffer q, k, v, o, lse;
  fa3_forward_params params;

  Call(const Shape& s, int32_t dtype, int mask = FA3_MASK_NONE, bool finite = true)
      : q(s.batch * s.seqlen_q * s.heads * s.head_dim * 4),
        k(s.batch * s.seqlen_k * s.heads_kv * s.head_dim * 4),
        v(k.bytes()),
        o(q.bytes()),
        lse(s.batch * s.seqlen_q * s.heads * 4),
        params(describe(s, dtype, q.as(), k.as(), v.as(), o.as(), lse.as())) {
    params.mask = mask;
    const size_t element = dtype == FA3_DTYPE_FP32 ? 4 : 2;
    std::mt19937 random(static_cast<unsigned>(s.seqlen_q + dtype));
    std::normal_distribution<float> normal;
    for (Buffer* buffer : {&q, &k, &v})
      for (size_t i = 0; i < buffer->bytes() / 4; ++i) {
        float value = normal(random);
        if (!finite && random() % 5000 == 0) value = random() % 2 ? NAN : -INFINITY;
        if (dtype == FA3_DTYPE_FP32) buffer->as<float>()[i] = value;
        else if (dtype == FA3_DTYPE_FP16) buffer->as<_Float16>()[i] = static_cast<_Float16>(value);
        else buffer->as<uint16_t>()[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      }
    const size_t key = s.heads_kv * s.head_dim * element, keys = s.batch * s.seqlen_k;
    for (size_t j = 1; j < keys; j += 2) {
      std::memcpy(k.as<char>() + j * key, k.as<char>() + (j - 1) * key, key);
      std::memcpy(v.as<char>() + j * key, v.as<char>() + (j - 1) * key, key);
      for (size_t i = element - 1; i < key; i += element) v.as<unsigned char>()[j * key + i] ^= 0x80;  // the sign
    }
  }

  std::vector<unsigned char> outputs() {
    std::vector<unsigned char> bytes(o.as<unsigned char>(), o.as<unsigned char>() + o.bytes());
    bytes.insert(bytes.end(), lse.as<unsigned char>(), lse.as<unsigned char>() + lse.bytes());
    return bytes;
  }
};

constexpr Shape many_blocks{.batch = 12, .seqlen_q = 5, .seqlen_k = 9, .heads = 2, .heads_kv = 1, .head_dim = 8};

int threads_started(int threads) {
  Call call(many_blocks, FA3_DTYPE_BF16);
  machine->threads_started = 0;
  REQUIRE(reference_forward(valid(call.params), threads) == FA3_OK);
  return machine->threads_started;
}

// A folder in the place of /, with /proc and /sys.
class Root {
 public:
  Root() : path_(std::filesystem::temp_directory_path() / ("fa3-machine-test-" + std::to_string(getpid()))) {}
  ~Root() { std::filesystem::remove_all(path_); }
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = path_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  int usable_cores() const { return fa3::usable_cores(path_.c_str()); }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("vectors of any width give the same bits", "[machine]") {
  const Shape shapes[] = {
      {.batch = 1, .seqlen_q = 150, .seqlen_k = 150, .heads = 4, .heads_kv = 2, .head_dim = 64},
      {.batch = 2, .seqlen_q = 67, .seqlen_k = 131, .heads = 3, .heads_kv = 1, .head_dim = 40},
      {.batch = 3, .seqlen_q = 1, .seqlen_k = 200, .heads = 2, .heads_kv = 2, .head_dim = 256},
  };
  int n = 0;
  for (const Shape& shape : shapes)
    for (int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32})
      for (int mask : {FA3_MASK_NONE, FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
        const bool finite = ++n % 3 != 0;
        INFO("seqlen_q " << shape.seqlen_q << " dtype " << dtype << " mask " << mask << " finite " << finite);
        Call call(shape, dtype, mask, finite);
        if (n % 2 == 0) call.params.o.dtype = FA3_DTYPE_FP32;
        REQUIRE(reference_forward(valid(call.params), 1, 2) == FA3_OK);
        const auto expected = call.outputs();
        for (int widest : {4, 8}) {
          std::memset(call.o.as(), poison, call.o.bytes());
          REQUIRE(reference_forward(valid(call.params), 3, widest) == FA3_OK);
          CHECK((call.outputs() == expected));
        }
      }
}

TEST_CASE("windows, chunks and sinks have the same bits with vectors of any width", "[machine]") {
  const Shape shape{.batch = 2, .seqlen_q = 150, .seqlen_k = 231, .heads = 6, .heads_kv = 2, .head_dim = 40};
  std::vector<float> sinks = {0.5f, -3, 2, -INFINITY, 7, 0};
  int n = 0;
  for (const auto& [mask, left, right] :
       {std::array{int{FA3_MASK_WINDOW}, 17, 0}, {FA3_MASK_WINDOW, 3, 9}, {FA3_MASK_WINDOW, 100, -1},
        {FA3_MASK_WINDOW, 0, 0}, {FA3_MASK_CHUNK, 70, 0}, {FA3_MASK_CHUNK, 13, -1}}) {
    INFO("mask " << mask << " left " << left << " right " << right);
    Call call(shape, FA3_DTYPE_BF16, mask, ++n % 2 != 0);
    call.params.window_left = left, call.params.window_right = right;
    if (n % 3) call.params.sinks = tensor(sinks.data(), FA3_DTYPE_FP32, {6});
    REQUIRE(reference_forward(valid(call.params), 1, 2) == FA3_OK);
    const auto expected = call.outputs();
    for (int widest : {4, 8}) {
      std::memset(call.o.as(), poison, call.o.bytes());
      REQUIRE(reference_forward(valid(call.params), 3, widest) == FA3_OK);
      CHECK((call.outputs() == expected));
    }
  }
}

TEST_CASE("gradients have the same bits with vectors of any width", "[machine]") {
  const Shape shapes[] = {
      {.batch = 1, .seqlen_q = 150, .seqlen_k = 131, .heads = 4, .heads_kv = 2, .head_dim = 40},
      {.batch = 2, .seqlen_q = 67, .seqlen_k = 200, .heads = 3, .heads_kv = 1, .head_dim = 16},
  };
  for (const Shape& shape : shapes)
    for (int mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_MASK_WINDOW})
      for (bool finite : {true, false}) {
        Call call(shape, FA3_DTYPE_BF16, mask, finite);
        auto& f = call.params;
        if (mask == FA3_MASK_WINDOW) f.window_left = 41, f.window_right = 3;
        REQUIRE(reference_forward(valid(f), 1) == FA3_OK);
        Buffer dq(call.q.bytes()), dk(call.k.bytes()), dv(call.k.bytes());
        fa3_backward_params p{};
        p.struct_size = sizeof p;
        p.q = p.dout = p.dq = f.q, p.k = p.dk = f.k, p.v = p.dv = f.v, p.o = f.o, p.lse = f.lse, p.mask = mask;
        p.window_left = f.window_left, p.window_right = f.window_right;
        p.dq.data = dq.as(), p.dk.data = dk.as(), p.dv.data = dv.as();
        p.dq.dtype = p.dk.dtype = p.dv.dtype = FA3_DTYPE_FP32;
        BackwardProblem problem;
        REQUIRE(validate(&p, Rules::reference, problem) == FA3_OK);
        std::vector<std::vector<unsigned char>> results;
        for (int widest : {2, 4, 8}) {
          REQUIRE(reference_backward(problem, 2, widest) == FA3_OK);
          std::vector<unsigned char>& bytes = results.emplace_back();
          for (Buffer* b : {&dq, &dk, &dv})
            bytes.insert(bytes.end(), b->as<unsigned char>(), b->as<unsigned char>() + b->bytes());
        }
        CHECK((results[0] == results[1] && results[0] == results[2]));
      }
}

TEST_CASE("one thread for each usable core, or as many as asked for", "[machine]") {
  Pretended pretended;
  pretended.cpus = {0, 2, 3, 7};
  CHECK(threads_started(0) == 3);  // and the caller
  CHECK(threads_started(1) == 0);
  CHECK(threads_started(7) == 6);
  CHECK(threads_started(1000) == 11);  // a block for each
}

TEST_CASE("fewer threads than wanted do the same", "[machine]") {
  Call call(many_blocks, FA3_DTYPE_BF16);
  REQUIRE(reference_forward(valid(call.params), 1) == FA3_OK);
  const auto expected = call.outputs();
  Pretended pretended;
  for (int more : {0, 2}) {
    pretended.more_threads = more, pretended.threads_started = 0;
    std::memset(call.o.as(), poison, call.o.bytes());
    REQUIRE(reference_forward(valid(call.params), 8) == FA3_OK);
    CHECK(pretended.threads_started == more + 1);
    CHECK((call.outputs() == expected));
  }
}

TEST_CASE("without memory nothing is written, and the message says so", "[machine]") {
  Call call(many_blocks, FA3_DTYPE_BF16);
  Pretended pretended;
  pretended.has_memory = false;
  CHECK(reference_forward(valid(call.params), 2) == FA3_ERROR_OUT_OF_MEMORY);
  CHECK(std::string(last_message()).starts_with("no host memory for "));
  CHECK((call.o.untouched() && call.lse.untouched() && pretended.threads_started == 0));
}

TEST_CASE("usable cores are those of the affinity mask, on machines of any size", "[machine]") {
  Root root;
  Pretended pretended;
  pretended.cpus = {1, 3, 4};
  CHECK(root.usable_cores() == 3);
  pretended.mask_bytes = 4096 / 8;
  pretended.cpus = {5, 1023, 1024, 2000, 4095};
  CHECK(root.usable_cores() == 5);
}

TEST_CASE("a CPU quota of version 2", "[machine]") {
  Root root;
  Pretended pretended;
  for (int cpu = 0; cpu < 16; ++cpu) pretended.cpus.push_back(cpu);
  root.write("proc/self/cgroup", "0::/slice/unit\n");
  CHECK(root.usable_cores() == 16);
  root.write("sys/fs/cgroup/slice/unit/cpu.max", "max 100000\n");
  CHECK(root.usable_cores() == 16);
  root.write("sys/fs/cgroup/slice/unit/cpu.max", "2000000 100000\n");
  CHECK(root.usable_cores() == 16);
  root.write("sys/fs/cgroup/slice/unit/cpu.max", "250000 50000\n");
  CHECK(root.usable_cores() == 5);
  root.write("sys/fs/cgroup/slice/cpu.max", "300001 100000\n");
  CHECK(root.usable_cores() == 4);
  root.write("sys/fs/cgroup/cpu.max", "20000 100000\n");  // a container's own group is at the top
  CHECK(root.usable_cores() == 1);
}

TEST_CASE("a CPU quota of version 1", "[machine]") {
  Root root;
  Pretended pretended;
  for (int cpu = 0; cpu < 16; ++cpu) pretended.cpus.push_back(cpu);
  root.write("proc/self/cgroup", "5:cpuset:/other\n4:cpuacct,cpu:/group\n1:name=systemd:/other\n0::/other\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "100000\n");
  CHECK(root.usable_cores() == 16);
  root.write("sys/fs/cgroup/cpu/group/cpu.cfs_period_us", "50000\n");
  root.write("sys/fs/cgroup/cpu/group/cpu.cfs_quota_us", "300000\n");
  CHECK(root.usable_cores() == 6);
}

}  // namespace fa3::test
