#include "info.h"

#include <cstdio>
#include <cstring>

#include "error.h"
#include "validate.h"

namespace fa3 {

fa3_status write_info(fa3_kernel_info* info, const Row& row, const Plan* plan, int launch, int multiprocessors) {
  size_t size = 0;
  if (fa3_status status = check_struct_size("info", info, offsetof(fa3_kernel_info, dtype), sizeof *info, size))
    return status;
  fa3_kernel_info full{};
  full.struct_size = size;
  std::snprintf(full.name, sizeof full.name, "%s", row.name);
  full.dtype = row.dtype == Dtype::bf16 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
  full.head_dim = row.d;
  full.causal = row.causal();
  full.block_q = row.Br;
  full.block_kv = row.Bc;
  full.stages = row.stages;
  full.threads = row.threads();
  full.producer_registers = row.producer_registers();
  full.consumer_registers = row.consumer_registers();
  full.shared_memory_bytes = row.smem_bytes();
  (void)launch;
  if (plan && plan->launch_count) {
    full.tiles = plan->forward.tiles.count();
    if (multiprocessors > 0) full.grid = plan->launches[launch].grid;
  }
  std::memcpy(info, &full, size < sizeof full ? size : sizeof full);
  return FA3_OK;
}

}  // namespace fa3
