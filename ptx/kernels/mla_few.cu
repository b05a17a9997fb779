// Multi-head latent attention (mla.cu) for the few rows that a step of decoding has where a GPU holds few heads: a tile
// is 64 rows of heads packed into rows (packing.h), of which only the first ForwardRow::most_rows exist.
//
// Keys stand in the rows of the scores, S^T = K Q^T, and O's columns in those of the other product, O^T = V^T P^T: so
// the tensor cores compute nothing for rows that there are not, and a block takes less time than memory takes to bring
// the next one. Both products are WGMMAs of 64 x most_rows with A, the keys or columns, from shared memory.
//
// As in mla.cu the first warpgroup has the scores, both have half of O's columns each, and a stage of the ring is given
// back by halves. Both have P from shared memory, as operand B. Scores of a row lie in all four warps: they go by the m
// of before as long as that is not exceeded by much, and only then the warps tell each other their maxima.
//
// The walk is that of fwd.cu, whose lines and steps the comments name (A2.n).
#include "../isa/matrix.cuh"
#include "../tile/block.cuh"
#include "../tile/few_rows.cuh"
#include "../tile/gemm.cuh"
#include "../tile/halves_ring.cuh"
#include "../tile/packed.cuh"
#include "../tile/planned_producer.cuh"
#include "../tile/softmax.cuh"
#include "../tile/unpack.cuh"

namespace fa3 {
using namespace ptx;

static_assert(has(Trait::few_rows) && has_qv && halves_columns && Bc == 64 && slab_row_bytes == 128);
static_assert(early_q_release && dv == PartStrip::columns && config.most_rows() % PartStrip::rows == 0);

inline constexpr int most_rows = config.most_rows();
inline constexpr int lane_rows = most_rows / 4;  // a lane has row 8 b + 2 t + e as number 2 b + e; t: lane % 4
inline constexpr int strips = most_rows / PartStrip::rows;
inline constexpr int o_tiles = o_columns / 64;   // of 64 of the warpgroup's columns, 16 for each warp
using Accumulators = float[most_rows / 2];       // of a product: of row number 2 (x / 4) + x % 2

FA3_DEVICE constexpr int row_of(int x) { return 2 * (x / 4) + x % 2; }

// In units of descriptors: from one slab to the next of K and V, which follow each other, and of Q.
inline constexpr uint32_t slab_units = descriptor_units(Bc * slab_row_bytes);
inline constexpr uint32_t q_slab_units = descriptor_units(config.q_rows() * slab_row_bytes);
inline constexpr int half_slabs = o_columns / slab_columns;

// What the first warpgroup tells the other one with block t, or its warps each other.
class HandOver {
 public:
  FA3_DEVICE HandOver(Smem& smem, int warp) : smem_(smem), warp_(warp) {}

  FA3_DEVICE Element* p(uint32_t t) const { return smem_.few_p[t & 1]; }
  FA3_DEVICE Scored& scored(uint32_t t) const { return smem_.scored[t & 1]; }

  // P^T in pairs of rows, which are transposed. Behind this comes a barrier of the warpgroup.
  FA3_DEVICE void write_p(uint32_t t, const uint32_t (&P)[lane_rows]) const {
    const int lane = threadIdx.x % 32, matrix = lane / 8, row = 8 * (matrix / 2) + lane % 8;
    const uint32_t chunk = 2 * warp_ + matrix % 2;
    const uint32_t to = shared_address(p(t)) + row * slab_row_bytes + ((chunk ^ lane % 8) << 4);
#pragma unroll
    for (int n = 0; n < strips; n++)
      stmatrix_x4_trans(to + n * PartStrip::rows * slab_row_bytes, P[4 * n], P[4 * n + 1], P[4 * n + 2], P[4 * n + 3]);
    fence_proxy_async_shared();  // WGMMA reads it
  }
  // What each warp has of the warpgroup's rows, for all of its warps, behind a barrier.
  FA3_DEVICE void share(const float (&x)[lane_rows]) const {
    const int lane = threadIdx.x % 32;
    if (lane < 4)
#pragma unroll
      for (int r = 0; r < lane_rows; r++) smem_.of_warps[warp_][row(r)] = x[r];
    bar_sync(barrier_warpgroup, 128);
  }
  // Of the lane's row number r, what warp w has shared.
  FA3_DEVICE float shared_by(int w, int r) const { return smem_.of_warps[w][row(r)]; }
  // Does m of any row move with block t, so that O is multiplied by alpha?
  FA3_DEVICE bool moves(uint32_t t) const {
    bool any = false;
#pragma unroll
    for (int w = 0; w < 4; w++) any |= scored(t).moves[w];
    return __any_sync(0xffffffffu, any);
  }
  FA3_DEVICE static int row(int r) { return 8 * (r / 2) + 2 * (threadIdx.x % 4) + r % 2; }

  FA3_DEVICE void signal(uint32_t t) const {
    __syncwarp();
    mbarrier_arrive_if(shared_address(&smem_.full_scored[t & 1]), threadIdx.x % 32 == 0);
  }
  FA3_DEVICE void receive(uint32_t t) const { wait(smem_.full_scored[t & 1], t >> 1 & 1); }

 private:
  Smem& smem_;
  int warp_;
};

// A consumer's half of O^T of a piece.
struct Half {
  float o[o_tiles][most_rows / 2];

  FA3_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < o_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) o[i][x] = 0.f;
    own();
  }
  FA3_DEVICE void scale(const float (&alpha)[lane_rows]) {
#pragma unroll
    for (int i = 0; i < o_tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) o[i][x] *= alpha[row_of(x)];
    own();
  }
  // O^T += V^T P^T, by descriptors of the half's first column of V, and of P.
  FA3_DEVICE void multiply(uint64_t v, uint64_t p) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Bc / k_step; step++)
#pragma unroll
      for (int i = 0; i < o_tiles; i++)
        wgmma_ss<0, 1>(o[i], moved(v, i * slab_units + descriptor_units(step * k_step * slab_row_bytes)),
                       moved(p, descriptor_units(step * 32)), true);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    own();
  }

 private:
  FA3_DEVICE void own() {
#pragma unroll
    for (int i = 0; i < o_tiles; i++) wgmma_owned(o[i]);
  }
};

// The softmax of the first warpgroup: a lane's rows of a piece.
class Softmax {
 public:
  FA3_DEVICE Softmax(const Params& p, const RowBlock& block, const HandOver& hand_over, int warp)
      : hand_over_(hand_over), warp_(warp) {
    const Visible seen = visible(p, block);
    all_ = {0, seen.seqlen_k};
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const int row = block.row + hand_over.row(r);
      keys_[r] = seen.of(row);
      all_ = {max(all_.begin, keys_[r].begin), min(all_.end, keys_[r].end)};
      c_[r] = row < seen.rows() ? p.softmax_scale_log2 : 0.f;  // what other rows hold moves no m
      m_[r] = lowest_m, l_[r] = rounded_l_[r] = 0.f;
    }
    all_ = {__reduce_max_sync(0xffffffffu, all_.begin), __reduce_min_sync(0xffffffffu, all_.end)};
  }

  // Hands over P of block t (A2.6, A2.13, A2.16), whose first key this is, and multiplies O by what it is to be
  // multiplied by before. Returns behind a barrier of the warpgroup.
  FA3_DEVICE void run(uint32_t t, Accumulators& S, int key, Half& half) {
    mask(S, key);
    float largest[lane_rows];
    bool exceeds = false;
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const int x = 4 * (r / 2) + r % 2;
      largest[r] = fmaxf(S[x], S[x + 2]) * c_[r];
      exceeds |= largest[r] > m_[r] + m_slack;
    }
    exceeds = __any_sync(0xffffffffu, exceeds);
    if (threadIdx.x % 32 == 0) hand_over_.scored(t).moves[warp_] = exceeds;
    float sum[lane_rows], rounded_sum[lane_rows];
    exponentiate(t, S, sum, rounded_sum);
    if (hand_over_.moves(t)) {
      raise(t, largest, half);
      exponentiate(t, S, sum, rounded_sum);
    }
#pragma unroll
    for (int r = 0; r < lane_rows; r++) l_[r] += sum[r], rounded_l_[r] += rounded_sum[r];
  }

  // With the piece's last block: m and l of all rows, and what makes O fit l. Returns behind a barrier.
  FA3_DEVICE void hand_sums_over(uint32_t t) {
    float l[lane_rows], rounded_l[lane_rows];
    add_warps_up(l_, l);
    add_warps_up(rounded_l_, rounded_l);
    Scored& scored = hand_over_.scored(t);
    if (warp_ == 0 && threadIdx.x % 32 < 4)
#pragma unroll
      for (int r = 0; r < lane_rows; r++) {
        const int row = hand_over_.row(r);
        scored.m[row] = m_[r], scored.l[row] = l[r];
        scored.fit[row] = __fdividef(l[r], rounded_l[r] == 0.f ? 1.f : rounded_l[r]);
      }
    bar_sync(barrier_warpgroup, 128);
  }

 private:
  FA3_DEVICE void mask(Accumulators& S, int key) const {
    if (key >= all_.begin && key + Bc <= all_.end) return;
#pragma unroll
    for (int x = 0; x < most_rows / 2; x++) {
      const int of_x = key + 16 * warp_ + threadIdx.x % 32 / 4 + x / 2 % 2 * 8;
      if (of_x < keys_[row_of(x)].begin || of_x >= keys_[row_of(x)].end) S[x] = -INFINITY;
    }
  }
  FA3_DEVICE void exponentiate(uint32_t t, const Accumulators& S, float (&sum)[lane_rows],
                               float (&rounded_sum)[lane_rows]) const {
    float P[most_rows / 2], rounded[most_rows / 2];
    uint32_t pairs[lane_rows];
#pragma unroll
    for (int x = 0; x < most_rows / 2; x++) P[x] = ex2_approx_ftz(fmaf(S[x], c_[row_of(x)], -m_[row_of(x)]));
#pragma unroll
    for (int i = 0; i < lane_rows; i++) pairs[i] = pack(P[2 * i], P[2 * i + 1], multiplies_bf16);
    unpack(multiplies_bf16, pairs, rounded);
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      const int x = 4 * (r / 2) + r % 2;
      sum[r] = P[x] + P[x + 2], rounded_sum[r] = rounded[x] + rounded[x + 2];
    }
    hand_over_.write_p(t, pairs);
    bar_sync(barrier_warpgroup, 128);
  }
  // m becomes the largest score so far, of all warps' keys.
  FA3_DEVICE void raise(uint32_t t, float (&largest)[lane_rows], Half& half) {
#pragma unroll
    for (int r = 0; r < lane_rows; r++) largest[r] = column_max(largest[r]);
    hand_over_.share(largest);
    float alpha[lane_rows];
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      float m = m_[r];
#pragma unroll
      for (int w = 0; w < 4; w++) m = fmaxf(m, hand_over_.shared_by(w, r));
      alpha[r] = part_weight(m_[r], m);
      m_[r] = m, l_[r] *= alpha[r], rounded_l_[r] *= alpha[r];
    }
    half.scale(alpha);
    if (warp_ == 0 && threadIdx.x % 32 < 4)
#pragma unroll
      for (int r = 0; r < lane_rows; r++) hand_over_.scored(t).alpha[hand_over_.row(r)] = alpha[r];
  }
  // Sums of all lanes and warps, for the first warp.
  FA3_DEVICE void add_warps_up(const float (&of_lane)[lane_rows], float (&sum)[lane_rows]) const {
    float of_warp[lane_rows];
#pragma unroll
    for (int r = 0; r < lane_rows; r++) of_warp[r] = column_sum(of_lane[r]);
    hand_over_.share(of_warp);
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      sum[r] = 0.f;
#pragma unroll
      for (int w = 0; w < 4; w++) sum[r] += hand_over_.shared_by(w, r);
    }
    bar_sync(barrier_warpgroup, 128);  // all have read
  }

  const HandOver& hand_over_;
  int warp_;
  Keys keys_[lane_rows], all_;  // that a row sees, and that all see
  float c_[lane_rows], m_[lane_rows];
  float l_[lane_rows], rounded_l_[lane_rows];  // the lane's shares of the row sums; the latter of P as multiplied
};

// O of 16 rows and 16 of the warp's columns, as accumulators of 16 rows have them: the lane's numbers of rows lane / 4
// and 8 more, of columns 2 (lane % 4) and 1 more of two groups of 8.
struct Upright {
  float x[2][4];  // [group][2 (row / 8) + column]

  // Moves halves of the numbers, exactly. o: the 16 rows' own.
  FA3_DEVICE explicit Upright(const float* o) {
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
      for (int group = 0; group < 2; group++) {
        const uint32_t low = __float_as_uint(o[4 * b + 2 * group]), high = __float_as_uint(o[4 * b + 2 * group + 1]);
        const uint32_t lower = movmatrix_trans(__byte_perm(low, high, 0x5410));
        const uint32_t upper = movmatrix_trans(__byte_perm(low, high, 0x7632));
        x[group][2 * b] = __uint_as_float(__byte_perm(lower, upper, 0x5410));
        x[group][2 * b + 1] = __uint_as_float(__byte_perm(lower, upper, 0x7632));
      }
  }
};

// m and l of a lane's two rows of each 16, lane / 4 and 8 more.
struct RowSums {
  float m[strips][2], l[strips][2], fit[strips][2];  // fit: what makes O fit l, as it is of rounded P

  FA3_DEVICE void clear() {
#pragma unroll
    for (int n = 0; n < strips; n++) m[n][0] = m[n][1] = lowest_m, l[n][0] = l[n][1] = 0.f, fit[n][0] = fit[n][1] = 1.f;
  }
  FA3_DEVICE void read(const Scored& scored) {
#pragma unroll
    for (int n = 0; n < strips; n++)
#pragma unroll
      for (int b = 0; b < 2; b++) {
        const int row = PartStrip::rows * n + threadIdx.x % 32 / 4 + 8 * b;
        m[n][b] = scored.m[row], l[n][b] = scored.l[row], fit[n][b] = scored.fit[row];
      }
  }
};

// What the part leaves for the pass that adds parts up, of the n-th 16 rows.
FA3_DEVICE void store_part(const Half& half, const RowSums& sums, const Params& p, const RowBlock& block, int n,
                           int first) {
  const int lane = threadIdx.x % 32;
  const PartStrip strip(p.partials, block.partial + PartStrip::rows * n);
#pragma unroll
  for (int i = 0; i < o_tiles; i++) {
    const Upright o(&half.o[i][8 * n]);
#pragma unroll
    for (int group = 0; group < 2; group++) {
      const float(&x)[4] = o.x[group], low = sums.fit[n][0], high = sums.fit[n][1];
      __stcg(strip.o((first + 64 * i) / 8 + group, lane),
             make_float4(x[0] * low, x[1] * low, x[2] * high, x[3] * high));
    }
  }
  if (first == 0 && lane % 4 == 0)
#pragma unroll
    for (int b = 0; b < 2; b++) __stcg(strip.sums(lane / 4 + 8 * b), make_float2(sums.m[n][b], sums.l[n][b]));
}

// O and LSE of the n-th 16 rows.
FA3_DEVICE void store_rows(const Half& half, const RowSums& sums, const Params& p, const RowBlock& block, int n,
                           int first) {
  const int lane = threadIdx.x % 32;
  const Sinks sinks(p, block, n);
  FinishedRow row[2];
  float weight[2];
  Place place[2];
#pragma unroll
  for (int b = 0; b < 2; b++) {
    row[b] = sinks.finish(b, sums.m[n][b], sums.l[n][b]);
    weight[b] = row[b].weight * sums.fit[n][b];
    place[b] = place_of(p, block, block.row + PartStrip::rows * n + lane / 4 + 8 * b);
    if (first == 0 && lane % 4 == 0 && place[b].exists && p.output.lse) *lse_of(p, block, place[b]) = row[b].lse;
  }
#pragma unroll
  for (int i = 0; i < o_tiles; i += 2) {
    const Upright tiles[2] = {Upright(&half.o[i][8 * n]), Upright(&half.o[i + 1][8 * n])};
#pragma unroll
    for (int b = 0; b < 2; b++) {
      uint32_t pairs[4];
#pragma unroll
      for (int group = 0; group < 4; group++) {
        const float(&x)[4] = tiles[group / 2].x[group % 2];
        // Of a row that sees no key P were 0, but V need not have been finite.
        pairs[group] = sums.l[n][b] == 0.f ? 0 : pack(x[2 * b] * weight[b], x[2 * b + 1] * weight[b]);
      }
      const uint4 eight = transpose_quad(pairs);  // of group lane % 4
      const int column = first + 64 * (i + lane % 4 / 2) + 8 * (lane % 2);
      if (place[b].exists && column < p.output.head_dim)
        *reinterpret_cast<uint4*>(o_of(p, block, place[b]) + column) = eight;
    }
  }
}

FA3_DEVICE void consumer(const Params& p, Smem& smem, int number, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();  // A1.12, A2.1
  const HalvesRing ring{smem};
  const HandOver hand_over(smem, warp);
  const Descriptors descriptors(smem);
  const auto k = [&](uint32_t i) { return descriptors.k(KvRing::index(i)); };
  const auto v = [&](uint32_t i) { return moved(descriptors.v(KvRing::index(i)), number * half_slabs * slab_units); };
  const auto p_of = [&](uint32_t t) { return descriptor_start(hand_over.p(t)) | qk_descriptor; };

  Half half;
  uint32_t first = 0;  // use of the K/V ring that holds the block that comes next
  uint32_t t = 0;      // of the blocks that are computed
  for (uint32_t q_use = 0;; q_use++) {
    wait(smem.full_q[QRing::full_index(q_use)], QRing::full_parity(q_use));  // A2.3
    const uint32_t q_buffer = QRing::index(q_use);
    const RowBlock& block = smem.row_block[RowBlockRing::index(q_use)];
    // Shuffled, as the compiler must know that they are the same in all lanes.
    const int blocks = __shfl_sync(0xffffffffu, block.blocks, 0), skipped = __shfl_sync(0xffffffffu, block.skipped, 0);
    const int parts = __shfl_sync(0xffffffffu, block.parts, 0);
    if (blocks == RowBlock::end_of_work) break;
    if (number == 0) ring.skip(first, first + skipped);
    first += skipped;
    const uint32_t end = first + blocks;
    RowSums sums;
    sums.clear();
    half.clear();

    if (number == 0 && blocks > 0) {
      Softmax softmax(p, block, hand_over, warp);
      const uint64_t q = descriptors.q(q_buffer);
      for (uint32_t i = first; i != end; i++, t++) {
        // A2.4, A2.9: by V's left columns, which come first, and then by K's own and the others; what is widened in
        // its stage comes the other way round.
        Accumulators S;
        const auto issue = [&](int from, auto count, bool accumulate) {
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < 4 * count(); step++) {
            const uint32_t slab = from + step / 4, within = descriptor_units(step % 4 * 32);
            wgmma_ss(S, moved(k(i), slab * slab_units + within), moved(q, slab * q_slab_units + within),
                     step > 0 || accumulate);
          }
          wgmma_commit_group();
        };
        using HalfOfSlabs = std::integral_constant<int, half_slabs>;
        const auto issue_left = [&] {
          ring.wait_left(i);
          issue(1, HalfOfSlabs(), widens_latent);
        };
        if constexpr (!widens_latent) issue_left();
        ring.wait_right(i);                              // A2.8
        issue(0, std::integral_constant<int, 1>(), !widens_latent);
        issue(1 + half_slabs, HalfOfSlabs(), true);
        if constexpr (widens_latent) issue_left();
        wgmma_wait_group<0>();                           // A2.12
        wgmma_owned(S);
        if (i == end - 1) mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));

        softmax.run(t, S, (block.begin + int(end - 1 - i)) * Bc, half);
        if (i == end - 1) {
          softmax.hand_sums_over(t);
          sums.read(hand_over.scored(t));
        }
        hand_over.signal(t);
        half.multiply(v(i), p_of(t));                    // A2.11, A2.19
        ring.release_left(i);                            // A2.15
      }
    } else {
      mbarrier_arrive(shared_address(&smem.empty_q[q_buffer]));
      for (uint32_t i = first; i != end; i++, t++) {
        hand_over.receive(t);
        const Scored& scored = hand_over.scored(t);
        if (hand_over.moves(t)) {
          float alpha[lane_rows];
#pragma unroll
          for (int r = 0; r < lane_rows; r++) alpha[r] = scored.alpha[hand_over.row(r)];
          half.scale(alpha);
        }
        if (i == end - 1) sums.read(scored);
        half.multiply(v(i), p_of(t));
        ring.release_right(i);
      }
    }
    first = end;
    // A2.20: the warp has 16 columns of each 64.
#pragma unroll
    for (int n = 0; n < strips; n++) {
      if (block.row < 0 || block.row + PartStrip::rows * n >= visible(p, block).rows()) break;
      const int first_column = number * o_columns + 16 * warp;
      if (parts > 1) store_part(half, sums, p, block, n, first_column);
      else store_rows(half, sums, p, block, n, first_column);
    }
  }
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  const int warp = warp_of_block();
  Smem& smem = set_up(p, warp);
  if (warp / 4 >= consumers) planned_producer(p, smem, warp - 4 * consumers);
  else consumer(p, smem, warp / 4, warp % 4);
}
