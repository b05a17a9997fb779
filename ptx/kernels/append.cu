// fa3_append: each lane takes a unit of a new row. The row comes while the warp finds out where it goes.
#include "../tile/append.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::AppendParams p) {
  using namespace fa3;
  NewUnit unit(p, blockIdx.x * (config.threads() / 32) + threadIdx.x / 32);
  unit.load();
  const NewRow row = p.cu_seqlens ? unit.find_packed_row() : unit.row();
  if (unit.find_place(row)) unit.store();
}
