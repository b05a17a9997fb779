// Calls at the same time: several streams, several host threads, one context or several.
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <thread>

#include "device_case.h"
#include "gpu.h"
#include "random.h"

namespace fa3::test {

namespace {

struct Prepared {
  Case made;
  Expected expected;
};

// One or two random problems of every row, with their references.
std::vector<Prepared> prepare(int per_row, uint64_t stream) {
  std::vector<Prepared> prepared;
  for (const ForwardRow& row : forward_rows) {
    if (row.has(Trait::planned)) continue;  // takes other problems
    for (int i = 0; i < per_row; ++i) {
      const uint64_t number = uint64_t(&row - forward_rows.data()) * 16 + uint64_t(i);
      const uint64_t seed = tools::mix(tools::seed_of_run() ^ stream, number);
      Case made(random_problem(row, seed, 2e7));
      Expected expected = expect(made);
      prepared.push_back({std::move(made), std::move(expected)});
    }
  }
  return prepared;
}

// Runs all problems, starting with another one on each thread; returns the first complaint.
std::string run_all(const std::vector<Prepared>& prepared, size_t first) {
  const tools::Stream stream;
  for (size_t n = 0; n < prepared.size(); ++n) {
    Prepared mine = prepared[(first + n) % prepared.size()];
    if (std::string problem = run_and_verify(mine.made, mine.expected, stream); !problem.empty())
      return mine.made.problem.describe() + ": " + problem;
  }
  return "";
}

std::vector<std::string> on_threads(size_t count, const std::function<std::string(size_t)>& body) {
  std::vector<std::string> answers(count);
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < count; ++t) threads.emplace_back([&, t] {
      try {
        answers[t] = body(t);
      } catch (const std::exception& error) {
        answers[t] = error.what();
      }
    });
  }
  return answers;
}

}  // namespace

TEST_CASE("several streams at once", "[streams]") {
  gpu();
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  std::vector<Prepared> prepared = prepare(1, 1);
  std::vector<tools::Stream> streams(4);
  std::vector<std::unique_ptr<DeviceCase>> devices;
  for (const Prepared& p : prepared) {
    devices.push_back(std::make_unique<DeviceCase>(p.made));
    devices.back()->reset(WorkspaceFill::random);
  }
  // Each case stays on one stream: its calls share a workspace and outputs.
  for (int round = 0; round < 5; ++round)
    for (size_t i = 0; i < devices.size(); ++i) devices[i]->launch(streams[i % streams.size()]);
  for (size_t i = 0; i < devices.size(); ++i) {
    INFO(prepared[i].made.problem.describe());
    devices[i]->download(streams[i % streams.size()], prepared[i].made);
    CHECK(verify(prepared[i].made, prepared[i].expected) == "");
  }
}

TEST_CASE("host threads with a stream each in one context", "[threads]") {
  const Gpu& shared = gpu();
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  const std::vector<Prepared> prepared = prepare(1, 2);
  for (const std::string& answer : on_threads(6, [&](size_t t) {
         shared.context.make_current();
         return run_all(prepared, 2 * t);
       }))
    CHECK(answer == "");
}

TEST_CASE("host threads with a context each, kernels loaded on first use", "[threads]") {
  gpu();
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  const std::vector<Prepared> prepared = prepare(1, 3);
  for (const std::string& answer : on_threads(3, [&](size_t t) {
         const tools::Context own;
         return run_all(prepared, 4 * t);
       }))
    CHECK(answer == "");
}

TEST_CASE("host threads that load the same fresh context at once", "[threads]") {
  gpu();
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  const std::vector<Prepared> prepared = prepare(1, 4);
  CHECK(on_thread([&] {
          const tools::Context fresh;
          for (std::string& answer : on_threads(4, [&](size_t t) {
                 fresh.make_current();
                 if (t % 2 == 0 && fa3_preload() != FA3_OK) return std::string(fa3_last_error_message());
                 return run_all(prepared, 0);
               }))
            if (!answer.empty()) return answer;
          return std::string();
        }) == "");
}

}  // namespace fa3::test
