// What only a machine with a GPU can refuse: nothing is launched, and the message names the cause.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "device_case.h"
#include "gpu.h"

namespace fa3::test {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("refused calls launch nothing", "[refusals]") {
  const tools::Stream& stream = gpu().stream;
  Case made(plain_problem(forward_row(0), 1, 50, 50, 1, 1, 1));
  DeviceCase device(made);
  device.reset(WorkspaceFill::zeros);
  const tools::DeviceBuffer workspace(256);
  fa3_forward_params params = device.params();

  CHECK(fa3_forward(&params, nullptr, FA3_FORWARD_WORKSPACE_BYTES, stream.get()) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("workspace"));
  CHECK(fa3_forward(&params, workspace.at(0), FA3_FORWARD_WORKSPACE_BYTES - 1, stream.get()) ==
        FA3_ERROR_WORKSPACE_TOO_SMALL);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("workspace"));
  CHECK(fa3_forward(&params, workspace.at(8), FA3_FORWARD_WORKSPACE_BYTES, stream.get()) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("workspace"));
  params.k.stride[3] = 2;
  CHECK(fa3_forward(&params, workspace.at(0), FA3_FORWARD_WORKSPACE_BYTES, stream.get()) != FA3_OK);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("k.stride[3]"));
  params = device.params();
  params.kernel = "none";
  CHECK(fa3_forward(&params, workspace.at(0), FA3_FORWARD_WORKSPACE_BYTES, stream.get()) == FA3_ERROR_UNSUPPORTED);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("params->kernel is \"none\""));
  for (const ForwardRow& row : forward_rows) {
    if (dtype_of(row) == made.problem.dtype && row.mask == forward_row(0).mask) continue;
    params.kernel = row.name;
    CHECK(fa3_forward(&params, workspace.at(0), FA3_FORWARD_WORKSPACE_BYTES, stream.get()) ==
          FA3_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(fa3_last_error_message(), ContainsSubstring(row.name));
  }

  const std::vector<Image> untouched = made.images;
  device.download(stream, made);
  CHECK(made.images == untouched);
}

TEST_CASE("without a current context", "[refusals]") {
  gpu();
  Case made(plain_problem(forward_row(0), 1, 50, 50, 1, 1, 1));
  const DeviceCase device(made);
  const fa3_forward_params params = device.params();
  const tools::DeviceBuffer workspace(256);
  CHECK(on_thread([&]() -> std::string {
          if (fa3_forward(&params, workspace.at(0), FA3_FORWARD_WORKSPACE_BYTES, nullptr) != FA3_ERROR_NO_CONTEXT)
            return "fa3_forward did not return FA3_ERROR_NO_CONTEXT";
          if (fa3_preload() != FA3_ERROR_NO_CONTEXT) return "fa3_preload did not return FA3_ERROR_NO_CONTEXT";
          return "";
        }) == "");
}

}  // namespace fa3::test
