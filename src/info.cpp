#include "info.h"

#include <cstdio>
#include <cstring>

#include "error.h"
#include "rules/call.h"

namespace fa3 {
namespace {

fa3_kernel_kind kind_of(Kind kind) {
  switch (kind) {
    case Kind::forward: return FA3_KERNEL_FORWARD;
    case Kind::backward: return FA3_KERNEL_BACKWARD;
    case Kind::pass: break;
  }
  return FA3_KERNEL_PASS;
}

fa3_kernel_info describe(const Row& row) {
  fa3_kernel_info info{};
  std::snprintf(info.name, sizeof info.name, "%s", row.name);
  info.kind = kind_of(row.kind);
  info.threads = row.threads();
  info.chosen = row.has(Trait::chosen);
  info.head_dim = row.d;
  info.shared_memory_bytes = row.smem_bytes();
  if (row.kind == Kind::pass) return info;
  info.dtype = row.dtype == Dtype::bf16 ? FA3_DTYPE_BF16 : row.dtype == Dtype::fp16 ? FA3_DTYPE_FP16 : FA3_DTYPE_E4M3;
  info.head_dim_v = row.dv;
  info.causal = row.causal();
  info.block_q = row.Br;
  info.block_kv = row.Bc;
  info.stages = row.stages;
  info.producer_registers = row.producer_registers();
  info.consumer_registers = row.consumer_registers();
  return info;
}

fa3_status write(fa3_kernel_info* info, fa3_kernel_info full) {
  if (fa3_status status =
          check_struct_size("info", info, offsetof(fa3_kernel_info, kind), sizeof full, full.struct_size))
    return status;
  std::memcpy(info, &full, full.struct_size < sizeof full ? full.struct_size : sizeof full);
  return FA3_OK;
}

}  // namespace

fa3_status write_info(fa3_kernel_info* info, const Row& row) { return write(info, describe(row)); }

static fa3_status check_launch(int launch, int count) {
  if (launch >= 0 && (launch == 0 || launch < count)) return FA3_OK;
  if (count > 1)
    return fail(FA3_ERROR_INVALID_ARGUMENT, "launch is %d, must be from 0 to %d: the call has %d launches", launch,
                count - 1, count);
  return fail(FA3_ERROR_INVALID_ARGUMENT, "launch is %d, must be 0: the call has one launch", launch);
}

fa3_status write_info(fa3_kernel_info* info, const ForwardPlan& plan, int launch, int multiprocessors) {
  const int count = plan.launch_count;
  if (fa3_status status = check_launch(launch, count)) return status;
  fa3_kernel_info full = describe(rows[count ? plan.launches[launch].row : plan.forward.row]);
  full.launches = count;
  full.multiprocessors = multiprocessors;
  if (count == 0) return write(info, full);
  full.grid = plan.launches[launch].grid;
  if (plan.launches[launch].step == ForwardStep::forward) {
    full.tiles = plan.forward.tiles.count();
    full.pieces = plan.forward.pieces.count();
  }
  return write(info, full);
}

fa3_status write_info(fa3_kernel_info* info, const BackwardPlan& plan, int launch, int multiprocessors) {
  const auto count = static_cast<int>(plan.launch_count());
  if (fa3_status status = check_launch(launch, count)) return status;
  fa3_kernel_info full = describe(rows[count ? plan.launch(launch).row : plan.last.row]);
  full.launches = count;
  full.multiprocessors = multiprocessors;
  if (count == 0) return write(info, full);
  const BackwardLaunch& asked = plan.launch(launch);
  full.grid = grid_of(asked, multiprocessors);
  if (rows[asked.row].kind == Kind::backward) full.tiles = full.pieces = asked.work;
  return write(info, full);
}

}  // namespace fa3
