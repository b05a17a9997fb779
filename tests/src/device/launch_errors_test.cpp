// What fa3_forward refuses, and what it says of the driver's errors.
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "../forward/forward_launches.h"

namespace fa3::test {

TEST_CASE("arguments are checked before the driver is asked", "[launch]") {
  FakeCuda& fake = fresh();
  fake.context = nullptr;
  fa3_forward_params p = imaginary();
  CHECK(fa3_forward(&p, nullptr, 64, nullptr) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK(fa3_forward(&p, workspace_memory, 8, nullptr) == FA3_ERROR_WORKSPACE_TOO_SMALL);
  p.k.rank = 3;
  CHECK(forward(p) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK(forward(imaginary({.batch = 0})) == FA3_OK);
  CHECK(fake.calls == 0);
}

TEST_CASE("the workspace that a call needs may not lie in a tensor, however large it is said to be", "[launch]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p =
      imaginary({.batch = 1, .seqlen_q = 100, .seqlen_k = 9000, .heads = 2, .heads_kv = 2, .head_dim = 128});
  size_t needed = 0;
  REQUIRE(fa3_forward_workspace_size(&p, 0, &needed) == FA3_OK);
  REQUIRE(needed > FA3_FORWARD_WORKSPACE_BYTES);
  fake.calls = 0;
  const struct {
    const char* name;
    const fa3_tensor& tensor;
  } tensors[] = {{"q", p.q}, {"k", p.k}, {"v", p.v}, {"o", p.o}, {"lse", p.lse}};
  for (const auto& t : tensors) {
    INFO(t.name);
    // Its end reaches into the tensor, its beginning is far away.
    char* const before = static_cast<char*>(t.tensor.data) - (needed + 15) / 16 * 16;
    CHECK(fa3_forward(&p, before + 16, plenty, stream) == FA3_ERROR_INVALID_ARGUMENT);
    expect_message(("workspace may overlap " + std::string(t.name) + ": workspace is 0x").c_str());
    expect_message((" needs " + std::to_string(needed) + " bytes, " + t.name + ".data is 0x").c_str());
    CHECK((fake.loads == 0 && fake.maps.empty()));
  }
  CHECK(fake.launches.empty());
  for (const auto& t : tensors)
    CHECK(fa3_forward(&p, static_cast<char*>(t.tensor.data) - (needed + 15) / 16 * 16, plenty, stream) == FA3_OK);
  // What it does not need does not matter.
  CHECK(fa3_forward(&p, static_cast<char*>(p.q.data) - needed / 16 * 16 - 16, SIZE_MAX, stream) == FA3_OK);
}

TEST_CASE("no context, and the wrong device", "[launch]") {
  FakeCuda& fake = fresh();
  const fa3_forward_params p = imaginary();
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  size_t bytes = 12345;
  const int capabilities[][2] = {{10, 3}, {9, 1}, {8, 0}, {10, 0}, {0, 9}};
  for (const auto& [major, minor] : capabilities) {
    fake.major = major, fake.minor = minor;
    CHECK(forward(p) == FA3_ERROR_WRONG_DEVICE);
    expect_message(
        ("compute capability " + std::to_string(major) + "." + std::to_string(minor) + ", must be 9.0").c_str());
    CHECK(fa3_preload() == FA3_ERROR_WRONG_DEVICE);
    CHECK(fa3_forward_kernel_info(&p, 0, 0, &info) == FA3_ERROR_WRONG_DEVICE);
    CHECK(fa3_forward_workspace_size(&p, 0, &bytes) == FA3_ERROR_WRONG_DEVICE);
    CHECK((info.name[0] == '\0' && bytes == 12345));
  }
  fresh().context = nullptr;
  CHECK(forward(p) == FA3_ERROR_NO_CONTEXT);
  CHECK(fa3_preload() == FA3_ERROR_NO_CONTEXT);
  expect_message("a context must be current in the calling thread: cuCtxGetId: CUDA error 201");
  // A context that another thread has destroyed, even one that this thread knows; and a driver that nobody has started.
  REQUIRE((fresh().context != nullptr && forward(p) == FA3_OK));
  fake.loads = 0, fake.launches.clear();
  for (const CUresult none : {CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_DEINITIALIZED,
                              CUDA_ERROR_INVALID_CONTEXT}) {
    fake.failing = "cuCtxGetId", fake.failure = none;
    CHECK(forward(p) == FA3_ERROR_NO_CONTEXT);
    expect_message(("cuCtxGetId: CUDA error " + std::to_string(none)).c_str());
    CHECK(fa3_preload() == FA3_ERROR_NO_CONTEXT);
    CHECK(fa3_forward_workspace_size(&p, 0, &bytes) == FA3_ERROR_NO_CONTEXT);
  }
  CHECK((fake.loads == 0 && fake.launches.empty() && bytes == 12345));
}

TEST_CASE("a driver's error is not an answer to a question", "[launch]") {
  const fa3_forward_params p = imaginary();
  for (const char* call : {"cuCtxGetId", "cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGetAttribute"}) {
    FakeCuda& fake = fresh();
    fake.failing = call, fake.failure = CUDA_ERROR_INVALID_VALUE;
    size_t bytes = 12345;
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    CHECK(fa3_forward_workspace_size(&p, 0, &bytes) == FA3_ERROR_CUDA);
    expect_message(call);
    CHECK(fa3_forward_kernel_info(&p, 0, 0, &info) == FA3_ERROR_CUDA);
    expect_message(call);
    CHECK((bytes == 12345 && info.name[0] == '\0'));
    fake.calls = 0;
    CHECK(fa3_forward_workspace_size(&p, 132, &bytes) == FA3_OK);
    CHECK(fa3_forward_kernel_info(&p, 132, 0, &info) == FA3_OK);
    CHECK(fake.calls == 0);
  }
}

TEST_CASE("the driver's errors come back with call and name, and a failed load leaves nothing behind", "[launch]") {
  const fa3_forward_params p = imaginary();
  for (const char* call :
       {"cuCtxGetId", "cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGetAttribute", "cuStreamIsCapturing",
        "cuThreadExchangeStreamCaptureMode", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute",
        "cuTensorMapEncodeTiled", "cuLaunchKernelEx"}) {
    FakeCuda& fake = fresh();
    fake.failing = call, fake.failure = CUDA_ERROR_INVALID_VALUE;
    CHECK(forward(p) == FA3_ERROR_CUDA);
    expect_message(call);
    expect_message(": CUDA error 1, CUDA_ERROR_INVALID_VALUE (invalid argument)");
    if (std::string(call) == "cuTensorMapEncodeTiled")
      expect_message(
          "for q (data 0x40000000000; head_dim, seqlen, heads, batch 16, 3, 4, 2; the last three 128, 32, 384 bytes "
          "apart)");
    CHECK(fake.launches.empty());
    CHECK(fake.unloads == (std::string(call) == "cuModuleGetFunction" || std::string(call) == "cuFuncSetAttribute"));
    CHECK(fake.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    fake.failing.clear();
    CHECK(forward(p) == FA3_OK);
  }
  FakeCuda& fake = fresh();
  fake.failing = "cuModuleLoadData";
  CHECK(fa3_preload() == FA3_ERROR_CUDA);
  expect_message("cuModuleLoadData for fa3_");
  fresh().failing = "cuLaunchKernelEx", fake.failure = static_cast<CUresult>(1001);
  CHECK(forward(p) == FA3_ERROR_CUDA);
  CHECK(std::string(fa3_last_error_message()) == "cuLaunchKernelEx: CUDA error 1001");
}

TEST_CASE("a map that the driver refuses is described, whichever it is", "[launch]") {
  const auto refused = [](const fa3_forward_params& p, const std::vector<std::string>& maps) {
    for (size_t n = 0; n < maps.size(); ++n) {
      FakeCuda& fake = fresh();
      fake.failing = "cuTensorMapEncodeTiled", fake.spared = int(n);
      CHECK(forward(p) == FA3_ERROR_CUDA);
      expect_message(("cuTensorMapEncodeTiled for " + maps[n]).c_str());
      CHECK((fake.maps.size() == n && fake.launches.empty()));
    }
  };
  const std::string apart = "; the last three 128, 32, 384 bytes apart)", kv = "16, 5, 2, 2; the last three 64, 32, ";
  refused(imaginary(), {"q (data 0x40000000000; head_dim, seqlen, heads, batch 16, 3, 4, 2" + apart,
                        "k (data 0x80000000000; head_dim, seqlen, heads, batch " + kv,
                        "v (data 0xc0000000000; head_dim, seqlen, heads, batch " + kv, "o (data 0x100000000000; "});
  const Shape decode{.batch = 2, .seqlen_q = 3, .seqlen_k = 9000, .heads = 20, .heads_kv = 5, .head_dim = 64};
  refused(imaginary(decode),
          {"q with packed heads (data 0x40000000000; head_dim, heads of a K/V head, seqlen, K/V heads, batch 64, 4, 3, "
           "5, 2; the last four 128, 2560, 512, 7680 bytes apart)", "k (", "v ("});
  fa3_forward_params tiles = imaginary_e4m3({2, 300, 500, 6, 3, 48});
  tiles.v = tensor(tiles.v.data, FA3_DTYPE_E4M3, {2, 3, 32, 48, 16});
  refused(tiles, {"q (", "k (", "v as tiles (data 0xc0000000000; head_dim / 16, groups, heads, batch 3, 32, 3, 2; the "
                                "last three 768, 24576, 73728 bytes apart)"});
}

}  // namespace fa3::test
