// A libcuda.so.1 for tests: it answers as told, refuses what the real one does, and records what it was asked. A test
// that links it has it loaded before libfa3 looks for the driver, so libfa3 finds this one.
#pragma once
#include <cuda.h>

#include <atomic>
#include <string>
#include <vector>

#include "launched.h"

namespace fa3::test {

struct EncodedMap {
  CUtensorMapDataType type;
  void* data;
  std::vector<uint64_t> dim, stride;
  std::vector<uint32_t> box, element_stride;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion promotion;
  CUtensorMapFloatOOBfill fill;
};

struct Launch {
  std::string kernel;
  unsigned grid[3], block[3], shared;
  CUstream stream;
  Launched carried;
  bool early;  // may start while the launch before it ends
  unsigned cluster;

  const auto& params() const { return carried.forward; }
};

struct FakeCuda {
  // Answers. Without a context, cuCtxGetId says that there is none.
  std::atomic<CUcontext> context{};
  std::atomic<unsigned long long> context_id{};
  int major = 9, minor = 0, multiprocessors = 132;
  int memory_kilohertz = 2619000, memory_bits = 5120, cache_bytes = 50 << 20, kilohertz = 1980000;  // of an H100 SXM
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult capture_result = CUDA_SUCCESS;
  std::string failing;  // the call that fails
  CUresult failure = CUDA_ERROR_UNKNOWN;
  int spared = 0;  // so many of its calls succeed before
  bool record = true;
  bool slow = false;  // devices and modules take their time, so that threads meet there
  std::atomic<bool> held{};  // a module is not loaded before this is false

  // Questions.
  std::vector<EncodedMap> maps;
  std::vector<Launch> launches;
  std::vector<std::string> loaded;  // kernels, in order
  std::atomic<int> loads{}, unloads{}, calls{};
  std::atomic<CUstream> asked_about_capture{};  // the last stream
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUstreamCaptureMode capture_mode_at_load = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

[[gnu::visibility("default")]] FakeCuda& fake_cuda();

}  // namespace fa3::test
