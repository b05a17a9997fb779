// K and V of e4m3 under Q of 16 bits: both land beside their stage, in bytes, and warps of the producer warpgroup that
// have nothing else to do make fp16 of them, which holds every e4m3 number. As in a stage of 16 bits, a use of the ring
// is full when K of its block and V of the block before are there.
//
// Both sides are slabs of 128 bytes with the same swizzle. A warp reads 8 rows at a time, of each 4 chunks of 16 bytes,
// half of a slab, of which each becomes 2 chunks. Which lanes have which rows is chosen so that no bank is asked twice:
// of 8 lanes that read or write together, 4 have a row r and 4 the row r ^ 5. So their chunks c ^ r and c ^ r ^ 5, with
// c < 4, are all 8; and so are 2 c ^ r and 2 c ^ r ^ 5 where they write.
#pragma once
#include "../isa/fence.cuh"
#include "../isa/shared.cuh"
#include "ring.cuh"

namespace fa3 {

static_assert([] {
  for (int r = 0; r < 8; r++)
    for (int h = 0; h < 2; h++) {
      int read = 0, written = 0;
      for (int lane = 0; lane < 8; lane++) {
        const int row = lane / 4 ? r ^ 5 : r, c = lane % 4;
        read |= 1 << (c ^ row), written |= 1 << (2 * c + h ^ row);
      }
      if (read != 255 || written != 255) return false;
    }
  return true;
}());

// What a lane has of a landing.
struct Widener {
  uint32_t from, to;  // its first chunk of a landing, and the place of that in K or V of a stage

  FA3_DEVICE Widener() {
    const int lane = threadIdx.x % 32, pair = lane / 8, row = lane / 4 % 2 ? pair ^ 5 : pair, chunk = lane % 4;
    from = row * 128 + ((chunk ^ row) << 4);
    to = row * 128 + ((2 * chunk ^ row) << 4);
  }

  FA3_DEVICE void widen(uint32_t landing, uint32_t stage) const {
    // So many reads are under way together: a single consumer leaves more registers.
    constexpr int halves = (d + 63) / 64, all = Bc / 8 * halves;
    constexpr int together = consumers == 1 ? 8 : config.producers() == 2 ? 4 : 2;
    static_assert(all % together == 0);
    const uint32_t source = landing + from, target = stage + to;
#pragma unroll
    for (int first = 0; first < all; first += together) {
      uint32_t bytes[together][4];
#pragma unroll
      for (int n = 0; n < together; n++) {
        const int group = (first + n) / halves, half = (first + n) % halves;
        ptx::ld_shared_v4_u32(bytes[n], (source ^ half % 2 << 6) + half / 2 * (Bc * 128) + group * 1024);
      }
#pragma unroll
      for (int n = 0; n < together; n++) {
        const int group = (first + n) / halves, half = (first + n) % halves;
        const uint32_t at = target + half * (Bc * 128) + group * 1024;
        const auto widened = [](uint32_t four, int h) { return ptx::cvt_rn_f16x2_e4m3x2(uint16_t(four >> 16 * h)); };
        const uint32_t(&x)[4] = bytes[n];
        ptx::st_shared_v4_u32(at, widened(x[0], 0), widened(x[0], 1), widened(x[1], 0), widened(x[1], 1));
        ptx::st_shared_v4_u32(at ^ 16, widened(x[2], 0), widened(x[2], 1), widened(x[3], 0), widened(x[3], 1));
      }
    }
  }
};

// One of the warps, each of which takes every `menders`-th landing: what it waits for is then hidden behind the others.
// Landings come in the order in which uses of the ring need them: K of use 0; of each other use K, and V of the block
// before. So odd ones are K. Where there is only the last V, an end comes in K's place, and behind that V a stop for
// each warp.
FA3_DEVICE void widen_landings(Smem& smem, int mender) {
  using namespace ptx;
  static_assert(!widens || (slab_row_bytes == 128 && Landing::menders % 2 == 0));
  Landing& landing = smem.landing;
  const Widener widener;
  const bool leads = threadIdx.x % 32 == 0;
  for (uint32_t n = mender, buffer = mender, parity = 0;; n += Landing::menders) {
    const bool is_k = n % 2 == 1 || n == 0;
    const uint32_t i = (n + 1) / 2, s = KvRing::index(i);
    wait(landing.full[buffer], parity);
    const uint32_t end = __shfl_sync(0xffffffffu, leads ? landing.end[buffer] : 0, 0);  // that lane releases
    if (end == Landing::stop) return;
    wait(split_stage && !is_k ? smem.empty_v[s] : smem.empty_k[s], KvRing::parity(i) ^ 1);
    if (!end)
      widener.widen(shared_address(landing.v[buffer]), shared_address(is_k ? smem.stage[s].k : smem.stage[s].v));
    fence_proxy_async_shared();
    __syncwarp();
    if (leads) {
      mbarrier_arrive(shared_address(&landing.empty[buffer]));
      mbarrier_arrive(shared_address(split_stage && !is_k ? &smem.full_v[s] : &smem.full_k[s]));
      // Use 0 of the ring holds no V.
      if (n == 0) mbarrier_arrive(shared_address(split_stage ? &smem.full_v[s] : &smem.full_k[s]));
    }
    for (buffer += Landing::menders; buffer >= Landing::buffers; buffer -= Landing::buffers) parity ^= 1;
  }
}

}  // namespace fa3
