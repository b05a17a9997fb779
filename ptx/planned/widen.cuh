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
#include "../tile/ring.cuh"

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

// What a lane has of a warp's 8 rows.
struct WidenedChunk {
  int row;
  uint32_t from, to;  // its first chunk in a slab of bytes, and the place of that in the first of two slabs

  FA3_DEVICE explicit WidenedChunk(int first_row) {
    const int lane = threadIdx.x % 32, pair = lane / 8, swizzle = lane / 4 % 2 ? pair ^ 5 : pair, chunk = lane % 4;
    row = first_row + swizzle;
    from = row * 128 + ((chunk ^ swizzle) << 4);
    to = row * 128 + ((2 * chunk ^ swizzle) << 4);
  }
};

// What a warp has of each landing: rows 8 * mender and on, and then those of every 8 * menders-th group.
struct Widener : WidenedChunk {
  FA3_DEVICE explicit Widener(int mender) : WidenedChunk(8 * mender) {}

  FA3_DEVICE void widen(uint32_t landing, uint32_t stage) const {
    // So many reads are under way together: a single consumer leaves more registers.
    constexpr int halves = (d + 63) / 64, groups = Bc / 8 / Landing::menders;
    constexpr int together = consumers == 1 ? 8 : config.producers() == 2 ? 4 : 2;
    constexpr int all = groups * halves;
    static_assert(Bc % (8 * Landing::menders) == 0);
    const uint32_t source = landing + from, target = stage + to;
#pragma unroll
    for (int first = 0; first < all; first += together) {
      uint32_t bytes[together][4];
#pragma unroll
      for (int n = 0; n < together; n++)
        if (first + n < all) {
          const int group = (first + n) / halves, half = (first + n) % halves;
          ptx::ld_shared_v4_u32(bytes[n], (source ^ half % 2 << 6) + half / 2 * (Bc * 128) +
                                              group * Landing::menders * 1024);
        }
#pragma unroll
      for (int n = 0; n < together; n++)
        if (first + n < all) {
          const int group = (first + n) / halves, half = (first + n) % halves;
          const uint32_t at = target + half * (Bc * 128) + group * Landing::menders * 1024;
          const uint32_t(&x)[4] = bytes[n];
          ptx::st_shared_v4_u32(at, widened(x[0], 0), widened(x[0], 1), widened(x[1], 0), widened(x[1], 1));
          ptx::st_shared_v4_u32(at ^ 16, widened(x[2], 0), widened(x[2], 1), widened(x[3], 0), widened(x[3], 1));
        }
    }
  }
};

// One of the warps. Landings come in the order in which a ring's uses need them: K, then V of the block before, which
// use 0 lacks; and an end in place of the K of the use that has only the last V.
FA3_DEVICE void widen_landings(Smem& smem, int mender) {
  using namespace ptx;
  static_assert(!widens || slab_row_bytes == 128);
  Landing& landing = smem.landing;
  const Widener widener(mender);
  const int lane = threadIdx.x % 32;
  uint32_t buffer = 0, parity = 0;
  const auto await = [&] { wait(landing.full[buffer], parity); };
  const auto widen = [&](const Element* to) {
    widener.widen(shared_address(landing.v[buffer]), shared_address(to));
  };
  const auto release = [&] {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared_address(&landing.empty[buffer]));
    if (++buffer == Landing::buffers) buffer = 0, parity ^= 1;
  };
  const auto fill = [&](uint64_t& full) {  // behind __syncwarp
    if (lane == 0) mbarrier_arrive(shared_address(&full));
  };
  for (uint32_t i = 0;; i++) {
    const uint32_t s = KvRing::index(i);
    await();
    const bool end = __shfl_sync(0xffffffffu, lane == 0 ? landing.end[buffer] : 0, 0);  // lane 0 releases
    if (end && i == 0) return;
    wait(smem.empty_k[s], KvRing::parity(i) ^ 1);
    if (!end) widen(smem.stage[s].k);
    fence_proxy_async_shared();
    release();
    if (split_stage) fill(smem.full_k[s]);
    if (i > 0) {
      await();
      if (split_stage) wait(smem.empty_v[s], KvRing::parity(i) ^ 1);
      widen(smem.stage[s].v);
      fence_proxy_async_shared();
      release();
    }
    fill(split_stage ? smem.full_v[s] : smem.full_k[s]);
    if (end) return;
  }
}

}  // namespace fa3
