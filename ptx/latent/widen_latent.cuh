// V of e4m3, a latent cache (VLayout::latent), becomes 16 bits in its stage. Its bytes land where the left half of V's
// columns will be, each 128 columns in one slab, as soon as that half is given back. Warps of a second producer
// warpgroup make two slabs of each one, from the right on, which are free later. A warp has the same rows of all slabs,
// so that it need not wait for others: what it writes over it has read before.
//
// A number becomes float32, is multiplied by its scale, and rounded to Q's dtype: what other implementations compute
// with, too.
#pragma once
#include "../isa/fence.cuh"
#include "../isa/shared.cuh"
#include "../tile/ring.cuh"
#include "../planned/widen.cuh"

namespace fa3 {

// One of the warps. A lane has so many rows, 8 apart.
struct LatentWidener : WidenedChunk {
  static constexpr int slab_bytes = Bc * slab_row_bytes, rows = Bc / 8 / config.menders();

  FA3_DEVICE explicit LatentWidener(int warp) : WidenedChunk(8 * rows * warp) {}

  // Two numbers of four bytes, the h-th.
  FA3_DEVICE static uint32_t scaled(uint32_t four, int h, float scale) {
    const uint32_t exact = widened(four >> 16 * h, 0);  // the upper half, taken as it is, would spill
    return pack(ptx::cvt_f32_f16(exact & 0xffff) * scale, ptx::cvt_f32_f16(exact >> 16) * scale);
  }
  // The n-th 128 columns. Rows from `keys` on become zeros, whatever they are.
  FA3_DEVICE void widen(const Stage& stage, int n, const LandedLatent& landed, int keys) const {
    const uint32_t v = ptx::shared_address(stage.v), source = v + n * slab_bytes + from;
    const uint32_t target = v + 2 * n * slab_bytes + to;
    float scale[rows];
    uint32_t bytes[rows][2][4];  // [row][half of the slab]
#pragma unroll
    for (int r = 0; r < rows; r++) {
      scale[r] = landed.scales[row + 8 * r][n];
#pragma unroll
      for (int half = 0; half < 2; half++)
        ptx::ld_shared_v4_u32(bytes[r][half], (source ^ half << 6) + r * 8 * slab_row_bytes);
    }
    if (keys < Bc)
#pragma unroll
      for (int r = 0; r < rows; r++) {
        if (row + 8 * r < keys) continue;
        scale[r] = 0.f;
#pragma unroll
        for (int x = 0; x < 8; x++) bytes[r][x / 4][x % 4] = 0;
      }
    __syncwarp();  // all lanes have read
#pragma unroll
    for (int r = 0; r < rows; r++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const uint32_t(&x)[4] = bytes[r][half];
        const uint32_t at = target + half * slab_bytes + r * 8 * slab_row_bytes;
        const float s = scale[r];
        ptx::st_shared_v4_u32(at, scaled(x[0], 0, s), scaled(x[0], 1, s), scaled(x[1], 0, s), scaled(x[1], 1, s));
        ptx::st_shared_v4_u32(at ^ 16, scaled(x[2], 0, s), scaled(x[2], 1, s), scaled(x[3], 0, s),
                              scaled(x[3], 1, s));
      }
  }
};

// One of the warps, until no more blocks come.
FA3_DEVICE void widen_latent(Smem& smem, int warp) {
  constexpr int groups = config.latent_scales();
  const LatentWidener widener(warp);
  for (uint32_t i = 0;; i++) {
    const uint32_t s = KvRing::index(i);
    const LandedLatent& landed = smem.landed[s];
    wait(landed.full, KvRing::parity(i));
    const int keys = __shfl_sync(0xffffffffu, landed.keys, 0);
    if (keys == LandedLatent::end_of_work) return;
    wait(smem.empty_k[s], KvRing::parity(i) ^ 1);
#pragma unroll
    for (int n = groups - 1; n >= 0; n--) {
      widener.widen(smem.stage[s], n, landed, keys);
      if (n != groups / 2 && n != 0) continue;
      ptx::fence_proxy_async_shared();
      __syncwarp();
      ptx::mbarrier_arrive_if(ptx::shared_address(&(n > 0 ? smem.full_k : smem.full_v)[s]), threadIdx.x % 32 == 0);
    }
  }
}

}  // namespace fa3
