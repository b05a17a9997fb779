// WGMMA's operand A from a latent cache's bytes in shared memory (latent/mla_few_e4m3.cu): ldmatrix brings them to
// registers, where they become fp16, for both products, S^T = K Q^T and O^T = V^T P^T.
//
// With lane l = 4 g + t of a warp:
//   K      ldmatrix gives a lane four neighbouring columns, 4 t and on, of key g: the first two stand for the product's
//          columns 2 t and 2 t + 1, the others for 2 t + 8 and 2 t + 9. Q's columns are put into the same order.
//   V^T    ldmatrix transposes pairs of bytes: a lane gets columns 2 g and 2 g + 1 of keys 2 t and 2 t + 1. The pairs
//          of one column are row g of the product, those of the other row g + 8. So O^T has V's columns 2 g and
//          2 g + 1 there.
#pragma once
#include "../isa/fence.cuh"
#include "../isa/matrix.cuh"
#include "../isa/shared.cuh"
#include "../isa/wgmma.cuh"
#include "../tile/element.cuh"
#include "../tile/smem.cuh"

namespace fa3 {

inline constexpr int slab_bytes = Bc * slab_row_bytes;  // of V: 128 columns, which share a scale

// Products are issued in pairs of k steps. While they run, the next pair's fragments are made, in the place of those of
// three pairs before, or of two, for want of registers. Four k steps at a time, and two such groups in turn, are slower
// (tests/records/diary/latent.md).
inline constexpr int pairs = (splits_latent ? o_columns : dv) / 32;
inline constexpr int pairs_in_turn = splits_latent && config.fits_scales() ? 2 : 3;
static_assert(Bc == 64);  // so both products have as many

// Operand A of a k step, and the bytes that a pair's is made of.
using Fragment = uint32_t[4];
using Bytes = uint32_t[4];

// Where a lane's ldmatrix reads a stage's V, and what it makes of it.
class LatentReader {
 public:
  FA3_DEVICE explicit LatentReader(int warp) {
    const int lane = threadIdx.x % 32, key = 16 * warp + lane % 16;
    k_ = key * slab_row_bytes + ((lane / 16 ^ key % 8) << 4);
    v_ = lane * slab_row_bytes + ((warp ^ lane % 8) << 4);
  }
  // The n-th 32 of the columns that lie in V, of the warp's 16 keys.
  FA3_DEVICE void load_keys(Bytes& bytes, uint32_t v, int n) const {
    ptx::ldmatrix_x4(bytes, (v + k_ ^ n % 4 * 32) + n / 4 * slab_bytes);
  }
  FA3_DEVICE static void widen_keys(Fragment (&a)[2], const Bytes& bytes) {
#pragma unroll
    for (int step = 0; step < 2; step++) {
      const uint32_t low = bytes[2 * step], high = bytes[2 * step + 1];  // keys g, and g + 8
      a[step][0] = widened(low, 0), a[step][1] = widened(high, 0);
      a[step][2] = widened(low, 1), a[step][3] = widened(high, 1);
    }
  }
  // Of the warp's 16 of the n / 2-th 64 columns of V, 32 keys.
  FA3_DEVICE void load_columns(Bytes& bytes, uint32_t v, int n) const {
    ptx::ldmatrix_x4_trans(bytes, (v + v_ ^ n / 2 % 2 * 64) + n / 4 * slab_bytes + n % 2 * 32 * slab_row_bytes);
  }
  FA3_DEVICE static void widen_columns(Fragment (&a)[2], const Bytes& bytes) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t by_columns = __byte_perm(bytes[i], 0, 0x3120);
      a[i / 2][i % 2 * 2] = widened(by_columns, 0), a[i / 2][i % 2 * 2 + 1] = widened(by_columns, 1);
    }
  }

 private:
  uint32_t k_, v_;  // in a slab
};

// Issues all products of a block. load: the n-th pair's bytes; widen: their fragments; multiply: issues one of its two
// k steps; wait: for all that has been committed, or for what has the place of the next pair's fragments.
template <class Load, class Widen, class Multiply, class Wait>
FA3_DEVICE void multiply_pairs(const Load& load, const Widen& widen, const Multiply& multiply, const Wait& wait) {
  Fragment a[pairs_in_turn][2];
  Bytes bytes;
  load(bytes, 0);
#pragma unroll
  for (int n = 0; n < pairs; n++) {
    widen(a[n % pairs_in_turn], bytes);
    if (n < pairs - 1) load(bytes, n + 1);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 2; step++) multiply(a[n % pairs_in_turn][step], n, step);
    ptx::wgmma_commit_group();
    wait(n == pairs - 1);
  }
}

// Zeros in rows of the warpgroup's columns of V that are not the sequence's, which may hold anything.
FA3_DEVICE void clear_rows(uint32_t v, int first) {
  for (int at = first * slab_row_bytes + threadIdx.x % 128 * 16; at < slab_bytes; at += 128 * 16)
#pragma unroll
    for (int i = 0; i < LatentShare::scales; i++) ptx::st_shared_v4_u32(v + i * slab_bytes + at, 0, 0, 0, 0);
  ptx::fence_proxy_async_shared();  // TMA writes there next
}

}  // namespace fa3
