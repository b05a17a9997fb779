#include "overhead.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "fa3.h"
#include "layout.h"
#include "params.h"

namespace fa3::tools {

namespace {

using Clock = std::chrono::steady_clock;

// Sorted times of single calls, in microseconds.
std::vector<double> time_calls(const Stream& stream, int calls, const std::function<void(int)>& call) {
  constexpr int until_drained = 64;
  int n = 0;
  for (const auto end = Clock::now() + std::chrono::milliseconds(250); Clock::now() < end; ++n) {
    if (n % until_drained == 0) stream.synchronize();
    call(n);
  }
  std::vector<double> microseconds;
  for (int i = 0; i < calls; ++i, ++n) {
    if (i % until_drained == 0) stream.synchronize();
    const auto start = Clock::now();
    call(n);
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  stream.synchronize();
  std::sort(microseconds.begin(), microseconds.end());
  return microseconds;
}

struct alignas(64) Parameters {
  char bytes[960];
};
constexpr const char* empty_kernel = R"(.version 8.0
.target sm_90
.address_size 64
.visible .entry empty(.param .align 64 .b8 parameters[960]) { ret; }
)";

std::vector<double> time_launches(const Stream& stream, int calls) {
  CUmodule loaded;
  CUfunction function;
  FA3_CU(cuModuleLoadData, &loaded, empty_kernel);
  const Handle<CUmodule, &Driver::cuModuleUnload> module(loaded);
  FA3_CU(cuModuleGetFunction, &function, loaded, "empty");
  Parameters parameters{};
  void* arguments[] = {&parameters};
  return time_calls(stream, calls, [&](int) {
    FA3_CU(cuLaunchKernel, function, 2, 1, 1, 512, 1, 1, 0, stream.get(), arguments, nullptr);
  });
}

}  // namespace

Overhead host_overhead(int calls) {
  constexpr int64_t heads = 2, heads_kv = 1, head_dim = 128, rows = 128, kinds = 4;
  const size_t bytes = size_t(rows * heads * head_dim) * 2;
  const Stream stream;
  const DeviceBuffer memory(kinds * 4 * bytes), lse(kinds * rows * heads * 4);
  memory.fill(0);

  std::vector<fa3_forward_params> params;
  for (int64_t i = 0; i < kinds; ++i) {
    const int64_t seqlen = rows - 16 * i;
    const auto q = Layout::packed({1, seqlen, heads, head_dim}), kv = Layout::packed({1, seqlen, heads_kv, head_dim});
    const size_t at = size_t(i) * 4 * bytes;
    fa3_forward_params p = forward_params();
    p.q = q.tensor(memory.at(at), FA3_DTYPE_BF16);
    p.k = kv.tensor(memory.at(at + bytes), FA3_DTYPE_BF16);
    p.v = kv.tensor(memory.at(at + 2 * bytes), FA3_DTYPE_BF16);
    p.o = q.tensor(memory.at(at + 3 * bytes), FA3_DTYPE_BF16);
    p.lse = Layout::packed({1, heads, seqlen}).tensor(lse.at(size_t(i * rows * heads) * 4), FA3_DTYPE_FP32);
    p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
    params.push_back(p);
  }

  size_t workspace_bytes = 0;
  for (const fa3_forward_params& p : params) workspace_bytes = std::max(workspace_bytes, workspace_size(p));
  const DeviceBuffer workspace(workspace_bytes);
  const auto sorted = time_calls(stream, calls, [&](int i) {
    if (fa3_forward(&params[size_t(i) % kinds], workspace.at(0), workspace_bytes, stream.get()) != FA3_OK)
      throw CudaError(std::string("fa3_forward: ") + fa3_last_error_message());
  });
  return {sorted[sorted.size() / 2], sorted.front(), sorted[sorted.size() * 99 / 100],
          time_launches(stream, calls)[size_t(calls) / 2], calls};
}

}  // namespace fa3::tools
