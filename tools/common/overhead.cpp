#include "overhead.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "fa3.h"
#include "layout.h"
#include "params.h"

namespace fa3::tools {

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
  using Clock = std::chrono::steady_clock;
  std::vector<double> microseconds;
  for (int call = -64; call < calls; ++call) {
    if (call % 64 == 0) stream.synchronize();
    const auto start = Clock::now();
    const fa3_status status =
        fa3_forward(&params[size_t(call + 64) % kinds], workspace.at(0), workspace_bytes, stream.get());
    const auto stop = Clock::now();
    if (status != FA3_OK) throw CudaError(std::string("fa3_forward: ") + fa3_last_error_message());
    if (call >= 0) microseconds.push_back(std::chrono::duration<double, std::micro>(stop - start).count());
  }
  stream.synchronize();
  std::sort(microseconds.begin(), microseconds.end());
  return {microseconds[microseconds.size() / 2], microseconds.front(), microseconds[microseconds.size() * 99 / 100],
          calls};
}

}  // namespace fa3::tools
