// FlashAttention-3, forward pass, for the few rows that a step of decoding has, over K and V of e4m3: a tile is 64 rows
// of heads packed into rows (packing.h), of which only the first ForwardRow::most_rows exist.
//
// Keys stand in the rows of both products, S^T = K Q^T and O^T = V^T P^T, so that nothing is computed for rows that
// there are not, and a thread has a few scores of a block rather than 64. And K and V are operands from registers: they
// lie in shared memory as in device memory, in bytes, and are made fp16, which holds every e4m3 number, on their way to
// the product. Through wgmma, which takes K from shared memory, they would have to be written there again
// (planned/widen.cuh), which takes longer than memory takes to bring them.
//
// Each of the warps has a share of every block's keys, and sums of its own, which are put together at a piece's
// end. So no warp waits for another in between. The walk over pieces and blocks is that of fwd.cu, whose comments name
// the paper's lines (A2.n).
//
// Products are m16n8k16 (PTX ISA, Matrix Fragments for mma.m16n8k16), with lane l = 4 g + t:
//   K      a lane reads 16 neighbouring columns, 16 t and on, of keys g and g + 8; of each four, the first two stand
//          for the product's columns 2 t and 2 t + 1, the others for 2 t + 8 and 2 t + 9. Q's columns stand in the same
//          order.
//   keys   of 8 keys, the product's row g is key_of(g): so that 8 lanes that read together have no bank twice.
//   P^T    comes from S^T by a transposition in registers (movmatrix).
//   V^T    ldmatrix transposes pairs of bytes: a lane gets columns 2 g and 2 g + 1 of keys 2 t and 2 t + 1. The pairs
//          of one column are row g of the product, those of the other row g + 8. So O^T has V's columns 2 g and
//          2 g + 1 there.
#include "../planned/planned_producer.cuh"
#include "../tile/block.cuh"
#include "../tile/epilogue/packed.cuh"
#include "../tile/few_rows.cuh"
#include "../tile/loads/narrow_q.cuh"
#include "../tile/ring.cuh"
#include "../tile/scores/mask.cuh"
#include "../tile/scores/score.cuh"
#include "../tile/scores/softmax.cuh"

namespace fa3 {
using namespace ptx;

static_assert(has(Trait::few_rows) && has_wide_q && slab_row_bytes == 128 && d == dv);

// One that tile/epilogue/packed.cuh does not use.
inline constexpr int barrier_all_consumers = barrier_warpgroup + 1;

inline constexpr int row_groups = config.most_rows() / 8;  // of 8 rows, as many as a product has columns
inline constexpr int warps = 4 * consumers;
inline constexpr int key_groups = Bc / 16 / warps;         // of 16 keys that a warp has of a block
inline constexpr int steps = d / 16;                       // of K Q^T along its columns
inline constexpr int o_tiles = dv / 16;                    // of V^T P^T along O's columns
inline constexpr int lane_rows = 2 * row_groups;           // rows of which a lane has scores: 8 b + 2 t + e is 2 b + e

// In each quad pair of lanes the keys' swizzles differ in the two bits by which 4 chunks stand apart.
FA3_DEVICE int key_of(int row) { return row % 2 ? row / 2 ^ 5 : row / 2; }
static_assert([] {
  for (int g = 0; g < 8; g += 2) {
    int banks = 0;
    for (int t = 0; t < 4; t++) banks |= 1 << (t ^ g / 2) | 1 << (t ^ g / 2 ^ 5);
    if (banks != 255) return false;
  }
  return true;
}());

// What a lane has of Q: of row 8 b + g, for each step its four columns.
struct Queries {
  uint32_t pair[row_groups][steps][2];
  float inverse[lane_rows];  // of what the rows have been multiplied by

  // rows: so many exist; others become zeros.
  FA3_DEVICE void load(const Element* q, int rows) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int b = 0; b < row_groups; b++) {
      const uint32_t row = shared_address(q) + (8 * b + g) * 128;
      uint32_t largest = 0;
#pragma unroll
      for (int s = 0; s < steps; s += 2) {
        uint32_t x[4];
        ld_shared_v4_u32(x, row + s / 4 * 64 * 128 + ((2 * t + s / 2 % 2 ^ g) << 4));
#pragma unroll
        for (int i = 0; i < 4; i++) {
          pair[b][s + i / 2][i % 2] = 8 * b + g < rows ? x[i] : 0;
          if constexpr (is_bf16) largest = Narrowing::larger(largest, pair[b][s + i / 2][i % 2]);
        }
      }
      if constexpr (is_bf16) {
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        const Narrowing narrowed = Narrowing::of(max(largest, __shfl_xor_sync(0xffffffffu, largest, 2)));
#pragma unroll
        for (int s = 0; s < steps; s++)
#pragma unroll
          for (int i = 0; i < 2; i++) pair[b][s][i] = narrowed(pair[b][s][i]);
#pragma unroll
        for (int e = 0; e < 2; e++)
          inverse[2 * b + e] = __shfl_sync(0xffffffffu, narrowed.inverse, 4 * (2 * t + e));
      } else {
        inverse[2 * b] = inverse[2 * b + 1] = 1.f;
      }
    }
  }
};

// A warp's part of the work on a piece's rows.
class Warp {
 public:
  FA3_DEVICE explicit Warp(int warp) : warp_(warp) {}

  FA3_DEVICE void begin(const Params& p, const RowBlock& block, const Element* q) {
    const Visible seen = visible(p, block);
    queries_.load(q, seen.rows() - block.row);
    all_ = {0, seen.seqlen_k};
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      c_[r] = block.c * queries_.inverse[r];
      m_[r] = lowest_m, l_[r] = rounded_l_[r] = 0.f;
      keys_[r] = seen.of(block.row + 8 * (r / 2) + 2 * (threadIdx.x % 4) + r % 2);
      all_ = {max(all_.begin, keys_[r].begin), min(all_.end, keys_[r].end)};
    }
    all_ = {__reduce_max_sync(0xffffffffu, all_.begin), __reduce_min_sync(0xffffffffu, all_.end)};
#pragma unroll
    for (int i = 0; i < o_tiles; i++)
#pragma unroll
      for (int b = 0; b < row_groups; b++)
#pragma unroll
        for (int x = 0; x < 4; x++) o_[i][b][x] = 0.f;
  }

  // S^T of the warp's keys (A2.4, A2.9).
  FA3_DEVICE void multiply_keys(const Element* k) {
    const int lane = threadIdx.x % 32, t = lane % 4, key = key_of(lane / 4);
    const uint32_t own = shared_address(k) + (16 * key_groups * warp_ + key) * 128 + ((t ^ key) << 4);
#pragma unroll
    for (int n = 0; n < key_groups; n++) {
#pragma unroll
      for (int b = 0; b < row_groups; b++)
#pragma unroll
        for (int x = 0; x < 4; x++) s_[n][b][x] = 0.f;
#pragma unroll
      for (int s = 0; s < steps; s += 4) {
        const uint32_t at = (own ^ s / 4 % 2 << 6) + s / 8 * (Bc * 128) + n * 16 * 128;
        uint32_t low[4], high[4];  // keys g and g + 8
        ld_shared_v4_u32(low, at);
        ld_shared_v4_u32(high, at + 8 * 128);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const uint32_t a[4] = {widened(low[i], 0), widened(high[i], 0), widened(low[i], 1), widened(high[i], 1)};
#pragma unroll
          for (int b = 0; b < row_groups; b++) {
            float(&to)[4] = s_[n][b];
            mma_m16n8k16_f32_f16(to[0], to[1], to[2], to[3], a, queries_.pair[b][s + i][0],
                                 queries_.pair[b][s + i][1]);
          }
        }
      }
    }
  }

  // P^T from S^T of block j (A2.6, A2.13). each: m follows a row's own scores alone, so that its bits do not depend on
  // other rows.
  FA3_DEVICE void softmax(int j, bool each) {
    const int lane = threadIdx.x % 32;
    const int first = j * Bc + 16 * key_groups * warp_;
    if (first < all_.begin || first + 16 * key_groups > all_.end) {
#pragma unroll
      for (int n = 0; n < key_groups; n++)
#pragma unroll
        for (int x = 0; x < 4; x++) {
          const int key = first + 16 * n + x / 2 * 8 + key_of(lane / 4);
#pragma unroll
          for (int b = 0; b < row_groups; b++) {
            const Keys& row_keys = keys_[2 * b + x % 2];
            if (key < row_keys.begin || key >= row_keys.end) s_[n][b][x] = -INFINITY;
          }
        }
    }
    float largest[lane_rows];
    bool exceeds = each;
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      largest[r] = -INFINITY;
#pragma unroll
      for (int n = 0; n < key_groups; n++)
        largest[r] = fmaxf(largest[r], fmaxf(s_[n][r / 2][r % 2], s_[n][r / 2][2 + r % 2]));
      largest[r] *= c_[r];
      exceeds |= largest[r] > m_[r] + m_slack;
    }
    if (__any_sync(0xffffffffu, exceeds)) {
      float alpha[lane_rows];
#pragma unroll
      for (int r = 0; r < lane_rows; r++) {
        const float m = fmaxf(m_[r], column_max(largest[r]));
        alpha[r] = part_weight(m_[r], m);
        m_[r] = m, l_[r] *= alpha[r], rounded_l_[r] *= alpha[r];
      }
#pragma unroll
      for (int i = 0; i < o_tiles; i++)
#pragma unroll
        for (int b = 0; b < row_groups; b++)
#pragma unroll
          for (int x = 0; x < 4; x++) o_[i][b][x] *= alpha[2 * b + x % 2];
    }
#pragma unroll
    for (int n = 0; n < key_groups; n++)
#pragma unroll
      for (int b = 0; b < row_groups; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float P[2];
#pragma unroll
          for (int e = 0; e < 2; e++) {
            P[e] = ex2_approx_ftz(fmaf(s_[n][b][2 * half + e], c_[2 * b + e], -m_[2 * b + e]));
            l_[2 * b + e] += P[e];
          }
          const uint32_t rounded = cvt_rn_f16x2_f32(P[1], P[0]);
          rounded_l_[2 * b] += cvt_f32_f16(uint16_t(rounded));
          rounded_l_[2 * b + 1] += cvt_f32_f16(uint16_t(rounded >> 16));
          p_[n][b][half] = movmatrix_trans(rounded);
        }
  }

  // O^T += V^T P^T (A2.11, A2.19).
  FA3_DEVICE void multiply_values(const Element* v) {
    const int lane = threadIdx.x % 32, key = key_of(lane % 8), matrix = lane / 8;
    // Matrices 0 and 1 are 16 bytes of both groups of 8 keys, 2 and 3 the next 16 bytes.
    const uint32_t own = shared_address(v) + (16 * key_groups * warp_ + 8 * (matrix % 2) + key) * 128 +
                         ((matrix / 2 ^ key) << 4);
#pragma unroll
    for (int n = 0; n < key_groups; n++)
#pragma unroll
      for (int i = 0; i < o_tiles; i += 2) {
        uint32_t x[4];
        ldmatrix_x4_trans(x, (own ^ i % 8 << 4) + i / 8 * (Bc * 128) + n * 16 * 128);
#pragma unroll
        for (int m = 0; m < 2; m++) {
          const uint32_t low = __byte_perm(x[2 * m], 0, 0x3120), high = __byte_perm(x[2 * m + 1], 0, 0x3120);
          const uint32_t a[4] = {widened(low, 0), widened(low, 1), widened(high, 0), widened(high, 1)};
#pragma unroll
          for (int b = 0; b < row_groups; b++) {
            float(&to)[4] = o_[i + m][b];
            mma_m16n8k16_f32_f16(to[0], to[1], to[2], to[3], a, p_[n][b][0], p_[n][b][1]);
          }
        }
      }
  }

  // The warp's sums, where the others find them.
  FA3_DEVICE void write(WarpShare& to) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const int row = 8 * (r / 2) + 2 * t + r % 2;
#pragma unroll
      for (int i = 0; i < o_tiles; i++)
        *reinterpret_cast<float2*>(&to.o[row][16 * i + 2 * g]) =
            make_float2(o_[i][r / 2][r % 2], o_[i][r / 2][2 + r % 2]);
      const float l = column_sum(l_[r]), rounded_l = column_sum(rounded_l_[r]);
      if (g == 0) to.m[row] = m_[r], to.l[row] = l, to.rounded_l[row] = rounded_l;
    }
  }

 private:
  int warp_;
  Queries queries_;
  Keys keys_[lane_rows], all_;  // that a row sees, and that all rows see
  float c_[lane_rows], m_[lane_rows];
  float l_[lane_rows], rounded_l_[lane_rows];  // the lane's shares of the row sums
  float s_[key_groups][row_groups][4], o_[o_tiles][row_groups][4];
  uint32_t p_[key_groups][row_groups][2];
};

// O and LSE of a piece's rows, or what the part leaves for them (packed.cuh). A warp has a row at a time; a lane some
// neighbouring columns.
FA3_DEVICE void store_rows(const Params& p, Smem& smem, const RowBlock& block, int warp) {
  const int rows = min(visible(p, block).rows() - block.row, config.most_rows());
  if (block.row < 0 || rows <= 0) return;
  constexpr int columns = dv / 32;
  const int lane = threadIdx.x % 32;
  const PackedRows partial(p, block);
#pragma unroll 1
  for (int row = warp; row < rows; row += warps) {
    const RowPlace place = place_of(p, block, block.row + row);
    if (!place.exists) continue;
    float m = lowest_m, l = 0.f, rounded_l = 0.f, o[columns] = {};
#pragma unroll
    for (int w = 0; w < warps; w++) m = fmaxf(m, smem.warp_share[w].m[row]);
#pragma unroll
    for (int w = 0; w < warps; w++) {
      const WarpShare& share = smem.warp_share[w];
      const float weight = part_weight(share.m[row], m);
      l = add_in_order(l, weight, share.l[row]);
      rounded_l = add_in_order(rounded_l, weight, share.rounded_l[row]);
#pragma unroll
      for (int c = 0; c < columns; c++) o[c] = add_in_order(o[c], weight, share.o[row][lane * columns + c]);
    }
    // Of a row that sees no key P were 0, but V need not have been finite.
    const float fit = block.v_scale * __fdividef(l, rounded_l == 0.f ? 1.f : rounded_l);
#pragma unroll
    for (int c = 0; c < columns; c++) o[c] = l == 0.f ? 0.f : o[c] * fit;
    if (block.parts == 1) {
      store_row(o, m, l, sink_of(p, block, block.row + row), p, block, place);
    } else {
      float* const to = partial.o(row) + block.part * dv + lane * columns;
#pragma unroll
      for (int c = 0; c < columns; c += 2) __stcg(reinterpret_cast<float2*>(to + c), make_float2(o[c], o[c + 1]));
      if (lane == 0) __stcg(&partial.sums(row)[block.part], make_float2(m, l));
    }
  }
  if (block.parts == 1) return;
  if constexpr (consumers > 1) bar_sync(barrier_all_consumers, 32 * warps);  // all have written
  if (warp < 4) add_up_parts(partial, rows, p, smem, block, 0, warp);
}

FA3_DEVICE void consumer(const Params& p, Smem& smem, int number) {
  if constexpr (config.moves_registers()) setmaxnreg_inc<config.consumer_registers()>();
  const KvRing ring{smem};
  Warp warp(number);
  uint32_t i = 0;  // use of the K/V ring; the V in it is done with
  for (uint32_t q_use = 0;; q_use++) {
    wait(smem.full_q[QRing::full_index(q_use)], QRing::full_parity(q_use));  // A2.3
    const RowBlock& block = smem.row_block[RowBlockRing::index(q_use)];
    // Shuffled, as the compiler must know that they are the same in all lanes.
    const int blocks = __shfl_sync(0xffffffffu, block.blocks, 0), skipped = __shfl_sync(0xffffffffu, block.skipped, 0);
    if (blocks == RowBlock::end_of_work) break;
    ring.skip(i, i + skipped, false);
    i += skipped;
    warp.begin(p, block, smem.q[QRing::index(q_use)]);
#pragma unroll 1
    for (int left = blocks; left > 0; left--) {
      ring.wait_k(i);                                           // A2.8
      const Stage& stage = smem.stage[KvRing::index(i)];
      warp.multiply_keys(stage.k);
      if (left < blocks) warp.multiply_values(stage.v);
      __syncwarp();  // all lanes have read
      ring.release_v(i, true);                                  // A2.15
      warp.softmax(block.begin + left - 1, p.invariant);
      i++;
    }
    if (blocks > 0) {
      ring.wait_v(i);                                           // A2.18
      warp.multiply_values(smem.stage[KvRing::index(i)].v);
    }
    bar_sync(barrier_all_consumers, 32 * warps);  // what was written of the piece before has been read
    warp.write(smem.warp_share[number]);
    bar_sync(barrier_all_consumers, 32 * warps);
    store_rows(p, smem, block, number);                         // A2.20
    mbarrier_arrive(shared_address(&smem.empty_q[QRing::index(q_use)]));
  }
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  const int warp = warp_of_block();
  Smem& smem = set_up(p, warp);
  if (warp >= warps) planned_producer(p, smem, warp % 4);
  else consumer(p, smem, warp);
}
