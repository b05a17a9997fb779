// fa3_append: each lane takes a quad of a new row. The row comes while the warp finds out where it goes.
#include "../tile/append.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::AppendParams p) {
  using namespace fa3;
  NewQuad quad(p, blockIdx.x * (config.threads() / 32) + threadIdx.x / 32);
  quad.load();
  const NewRow row = p.cu_seqlens ? quad.find_packed_row() : quad.row();
  if (quad.find_place(row)) quad.store();
}
