// CUDA graphs: capture after preload, replay on other numbers, and the clear error of a cold capture.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>

#include "device_case.h"
#include "gpu.h"
#include "random.h"

namespace fa3::test {

namespace {
uint64_t seed_for(int number) { return tools::mix(tools::seed_of_run(), 8000000 + uint64_t(number)); }
}  // namespace

// Captures a call whose kernel is not loaded: it must be refused with a message that holds `word`, and spoil nothing.
static std::string capture_cold(const DeviceCase& device, const tools::Stream& stream, const std::string& word) {
  tools::Graph::begin(stream);
  const fa3_status cold = device.try_launch(stream);
  const std::string message = fa3_last_error_message();
  const tools::Graph empty = tools::Graph::end(stream);  // throws if the refusal spoilt the capture
  if (cold != FA3_ERROR_NOT_LOADED) return std::string("a cold capture returned ") + fa3_status_string(cold);
  return message.find(word) == std::string::npos ? "the message does not name " + word + ": " + message : "";
}

static std::string capture_and_replay(const DeviceCase& device, const tools::Stream& stream, Case& made,
                                      const Expected& expected) {
  tools::Graph::begin(stream);
  device.launch(stream);
  const tools::Graph graph = tools::Graph::end(stream);
  graph.launch(stream);
  device.download(stream, made);
  return verify(made, expected);
}

TEST_CASE("a captured call is replayed on other inputs", "[graphs]") {
  const tools::Stream& stream = gpu().stream;
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (const ForwardRow& row : forward_rows) {
    if (row.has(Trait::planned)) continue;  // takes other problems
    Problem problem = random_problem(row, seed_for(int(&row - forward_rows.data())), 2e7);
    Case first(problem);
    problem.seed ^= 0x5eed;
    Case second(problem);
    INFO(problem.describe());
    const Expected expected_first = expect(first), expected_second = expect(second);

    DeviceCase device(first);
    device.reset(WorkspaceFill::random);
    if (!is_default(row)) device.launch(stream);  // not loaded by fa3_preload
    tools::Graph::begin(stream);
    device.launch(stream);
    device.launch(stream);  // two nodes that share a workspace, one after the other
    const tools::Graph graph = tools::Graph::end(stream);

    for (int replay = 0; replay < 3; ++replay) {
      device.reset(WorkspaceFill::random);
      graph.launch(stream);
      device.download(stream, first);
      CHECK(verify(first, expected_first) == "");
    }
    device.reset(WorkspaceFill::ones);
    device.upload_inputs(second);
    graph.launch(stream);
    graph.launch(stream);
    device.download(stream, second);
    CHECK(verify(second, expected_second) == "");
  }
}

TEST_CASE("a capture in a fresh context is refused until the kernels are loaded", "[graphs]") {
  gpu();
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  Case made(random_problem(forward_row(0), seed_for(100), 1e7));
  const Expected expected = expect(made);
  CHECK(on_thread([&]() -> std::string {
          const tools::Context fresh;
          const tools::Stream stream;
          DeviceCase device(made);
          device.reset(WorkspaceFill::zeros);
          if (std::string problem = capture_cold(device, stream, "fa3_preload"); !problem.empty()) return problem;
          if (fa3_preload() != FA3_OK) return fa3_last_error_message();
          return capture_and_replay(device, stream, made, expected);
        }) == "");
}

TEST_CASE("fa3_preload does not load what the library does not choose", "[graphs]") {
  gpu();
  const auto row = std::find_if_not(forward_rows.begin(), forward_rows.end(), is_default);
  if (row == forward_rows.end()) SKIP("the table has no such row");
  Case made(plain_problem(*row, 1, 100, 150, 2, 1, seed_for(101)));
  const Expected expected = expect(made);
  CHECK(on_thread([&]() -> std::string {
          const tools::Context fresh;
          const tools::Stream stream;
          DeviceCase device(made);
          device.reset(WorkspaceFill::zeros);
          if (fa3_preload() != FA3_OK) return fa3_last_error_message();
          if (std::string problem = capture_cold(device, stream, row->name); !problem.empty()) return problem;

          device.launch(stream);
          device.download(stream, made);
          if (std::string problem = verify(made, expected); !problem.empty()) return problem;
          device.reset(WorkspaceFill::ones);
          return capture_and_replay(device, stream, made, expected);
        }) == "");
}

}  // namespace fa3::test
