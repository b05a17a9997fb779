#include "info.h"

#include <cstdio>
#include <cstring>

#include "error.h"
#include "validate.h"

namespace fa3 {

fa3_status write_info(fa3_kernel_info* info, const Variant& variant, const Schedule* schedule, int multiprocessors) {
  size_t size = 0;
  if (fa3_status status = check_struct_size("info", info, offsetof(fa3_kernel_info, kind), sizeof *info, size))
    return status;
  fa3_kernel_info full{};
  full.struct_size = size;
  std::snprintf(full.name, sizeof full.name, "%s", variant.name);
  full.kind = FA3_KERNEL_FORWARD;
  full.dtype = variant.dtype == Dtype::bf16 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
  full.head_dim = full.head_dim_v = variant.d;
  full.causal = variant.causal();
  full.block_q = variant.Br;
  full.block_kv = variant.Bc;
  full.stages = variant.stages;
  full.threads = variant.threads();
  full.producer_registers = variant.producer_registers();
  full.consumer_registers = variant.consumer_registers();
  full.shared_memory_bytes = variant.smem_bytes();
  full.chosen = is_default(variant);
  if (schedule) {
    full.grid = grid(*schedule, multiprocessors);
    full.launches = full.grid > 0;
    full.multiprocessors = multiprocessors;
    full.tiles = schedule->selection.tiles;
    full.pieces = schedule->split.items();
  }
  std::memcpy(info, &full, size < sizeof full ? size : sizeof full);
  return FA3_OK;
}

}  // namespace fa3
