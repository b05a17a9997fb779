// What latent/mla_few.cu and mla_few_e4m3.cu share, latent attention of few rows, where keys stand in the rows of the
// scores, S^T = K Q^T, and O's columns in those of the other product, O^T = V^T P^T: what a lane has of both, which
// keys its rows see, what warps tell each other, how P gets to shared memory, and how O^T leaves.
#pragma once
#include "../isa/matrix.cuh"
#include "../isa/wgmma.cuh"
#include "../tile/epilogue/packed.cuh"
#include "../tile/few_rows.cuh"
#include "../tile/scores/softmax.cuh"

namespace fa3 {

static_assert(dv == PartStrip::columns && config.most_rows() % PartStrip::rows == 0);

inline constexpr int most_rows = config.most_rows();
inline constexpr int lane_rows = most_rows / 4;  // a lane has row 8 b + 2 t + e as number 2 b + e; t: lane % 4
inline constexpr int strips = most_rows / PartStrip::rows;
inline constexpr int o_tiles = o_columns / 64;   // of 64 of the warpgroup's columns, 16 for each warp
using Accumulators = float[most_rows / 2];       // of a product: of row number 2 (x / 4) + x % 2
// In units of descriptors, from one slab to the next of Q.
inline constexpr uint32_t q_slab_units = descriptor_units(config.q_rows() * slab_row_bytes);

FA3_DEVICE constexpr int row_of(int x) { return 2 * (x / 4) + x % 2; }
FA3_DEVICE int lane_row(int r) { return 8 * (r / 2) + 2 * (threadIdx.x % 4) + r % 2; }

// The keys that a lane's rows of a piece see.
class SeenKeys {
 public:
  FA3_DEVICE SeenKeys(const Params& p, const RowBlock& block) {
    const Visible seen = visible(p, block);
    all_ = {0, seen.seqlen_k};
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      keys_[r] = seen.of(block.row + lane_row(r));
      all_ = {max(all_.begin, keys_[r].begin), min(all_.end, keys_[r].end)};
    }
    all_ = {__reduce_max_sync(0xffffffffu, all_.begin), __reduce_min_sync(0xffffffffu, all_.end)};
  }
  // Scores of a warp's 16 keys of the block that begins with this one.
  FA3_DEVICE void mask(Accumulators& S, int key, int warp) const {
    if (key >= all_.begin && key + Bc <= all_.end) return;
#pragma unroll
    for (int x = 0; x < most_rows / 2; x++) {
      const int x_key = key + 16 * warp + threadIdx.x % 32 / 4 + x / 2 % 2 * 8;
      if (x_key < keys_[row_of(x)].begin || x_key >= keys_[row_of(x)].end) S[x] = -INFINITY;
    }
  }

 private:
  Keys keys_[lane_rows], all_;  // that a row sees, and that all rows of the warp's lanes see
};

// Scores of a row lie in all four warps of a warpgroup. What these tell each other of the rows.
class AmongWarps {
 public:
  FA3_DEVICE AmongWarps(float (&warp_rows)[4][most_rows], int warpgroup, int warp)
      : warp_rows_(warp_rows), warpgroup_(warpgroup), warp_(warp) {}

  FA3_DEVICE void sync() const { ptx::bar_sync(barrier_warpgroup + warpgroup_, 128); }
  // What each warp has, for all of them, behind a barrier.
  FA3_DEVICE void share(const float (&x)[lane_rows]) const {
    if (threadIdx.x % 32 < 4)
#pragma unroll
      for (int r = 0; r < lane_rows; r++) warp_rows_[warp_][lane_row(r)] = x[r];
    sync();
  }
  // Of the lane's row number r, what warp w has shared.
  FA3_DEVICE float shared_by(int w, int r) const { return warp_rows_[w][lane_row(r)]; }
  // The sum of what all have shared.
  FA3_DEVICE float sum(int r) const { return shared_by(0, r) + shared_by(1, r) + shared_by(2, r) + shared_by(3, r); }
  // m becomes the largest score of all warps' keys so far. alpha: what l and O are to be multiplied by. largest: of the
  // lane's keys.
  FA3_DEVICE void raise(const float (&largest)[lane_rows], float (&m)[lane_rows], float (&alpha)[lane_rows]) const {
    float warp_largest[lane_rows];
#pragma unroll
    for (int r = 0; r < lane_rows; r++) warp_largest[r] = column_max(largest[r]);
    share(warp_largest);
#pragma unroll
    for (int r = 0; r < lane_rows; r++) {
      float raised = m[r];
#pragma unroll
      for (int w = 0; w < 4; w++) raised = fmaxf(raised, shared_by(w, r));
      alpha[r] = part_weight(m[r], raised);
      m[r] = raised;
    }
  }
  // What any warp says, bit by bit, the same in all lanes.
  FA3_DEVICE static uint32_t any(const uint32_t (&warp_bits)[4]) {
    return __reduce_or_sync(0xffffffffu, warp_bits[0] | warp_bits[1] | warp_bits[2] | warp_bits[3]);
  }

 private:
  float (&warp_rows_)[4][most_rows];
  int warpgroup_, warp_;
};

// What a warpgroup has of O^T of a piece: tiles of 64 columns.
template <int tiles>
struct TransposedO {
  float o[tiles][most_rows / 2];

  FA3_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) o[i][x] = 0.f;
    own();
  }
  // by: of a tile and a lane's row number.
  template <class By>
  FA3_DEVICE void scale(const By& by) {
#pragma unroll
    for (int i = 0; i < tiles; i++)
#pragma unroll
      for (int x = 0; x < most_rows / 2; x++) o[i][x] *= by(i, row_of(x));
    own();
  }
  FA3_DEVICE void own() {
#pragma unroll
    for (int i = 0; i < tiles; i++) ptx::wgmma_owned(o[i]);
  }
};

// P^T of a warp's 16 keys, in pairs of rows, which are transposed.
FA3_DEVICE void write_p(Element* p, const uint32_t (&P)[lane_rows], int warp) {
  const int lane = threadIdx.x % 32, matrix = lane / 8, row = 8 * (matrix / 2) + lane % 8;
  const uint32_t chunk = 2 * warp + matrix % 2;
  const uint32_t to = ptx::shared_address(p) + row * slab_row_bytes + ((chunk ^ lane % 8) << 4);
#pragma unroll
  for (int n = 0; n < strips; n++)
    ptx::stmatrix_x4_trans(to + n * PartStrip::rows * slab_row_bytes, P[4 * n], P[4 * n + 1], P[4 * n + 2],
                           P[4 * n + 3]);
}

// O of 16 rows and 16 of the warp's columns, as a lane stores it: of rows lane / 4 and 8 more, two pairs of columns.
struct Upright {
  float x[2][4];  // [pair][2 (row / 8) + column]

  // Moves halves of the numbers, exactly. o: the 16 rows' own. In O^T a group of 8 rows has 8 neighbouring columns, or
  // every other one of the 16 (latent/latent_fragments.cuh).
  FA3_DEVICE explicit Upright(const float* o) {
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
      for (int group = 0; group < 2; group++) {
        const uint32_t low = __float_as_uint(o[4 * b + 2 * group]), high = __float_as_uint(o[4 * b + 2 * group + 1]);
        const uint32_t lower = ptx::movmatrix_trans(__byte_perm(low, high, 0x5410));
        const uint32_t upper = ptx::movmatrix_trans(__byte_perm(low, high, 0x7632));
        (keeps_latent ? x[0][2 * b + group] : x[group][2 * b]) = __uint_as_float(__byte_perm(lower, upper, 0x5410));
        (keeps_latent ? x[1][2 * b + group] : x[group][2 * b + 1]) = __uint_as_float(__byte_perm(lower, upper, 0x7632));
      }
  }
  // The first of a pair, among the 16.
  FA3_DEVICE static int column(int pair) {
    const int t = threadIdx.x % 4;
    return keeps_latent ? 4 * t + 2 * pair : 2 * t + 8 * pair;
  }
};

// m and l of a lane's two rows of each 16, lane / 4 and 8 more.
struct RowSums {
  float m[strips][2], l[strips][2], fit[strips][2];  // fit: what makes O fit l, as it is of rounded P

  FA3_DEVICE void clear() {
#pragma unroll
    for (int n = 0; n < strips; n++) m[n][0] = m[n][1] = lowest_m, l[n][0] = l[n][1] = 0.f, fit[n][0] = fit[n][1] = 1.f;
  }
  // Of all rows. Without row_fit O fits already.
  FA3_DEVICE void read(const float* row_m, const float* row_l, const float* row_fit = nullptr) {
#pragma unroll
    for (int n = 0; n < strips; n++)
#pragma unroll
      for (int b = 0; b < 2; b++) {
        const int row = PartStrip::rows * n + threadIdx.x % 32 / 4 + 8 * b;
        m[n][b] = row_m[row], l[n][b] = row_l[row];
        if (row_fit) fit[n][b] = row_fit[row];
      }
  }
};

// What the part leaves for the pass that adds parts up, of the n-th 16 rows.
FA3_DEVICE void store_part(const float (&o)[o_tiles][most_rows / 2], const RowSums& sums, const Params& p,
                           const RowBlock& block, int n, int first) {
  const int lane = threadIdx.x % 32;
  const PartStrip strip(p.partials, block.partial + PartStrip::rows * n);
  float4* to[2];  // of a pair; if each store's place were computed, ptxas would do that before the pieces, and spill
#pragma unroll
  for (int pair = 0; pair < 2; pair++) {
    const int column = first + Upright::column(pair);
    to[pair] = strip.o(column / 8, lane / 4 * 4 + column % 8 / 2);
  }
#pragma unroll
  for (int i = 0; i < o_tiles; i++) {
    const Upright upright(&o[i][8 * n]);
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
      const float(&x)[4] = upright.x[pair], low = sums.fit[n][0], high = sums.fit[n][1];
      __stcg(to[pair] + 8 * i * PartStrip::to_next_group,
             make_float4(x[0] * low, x[1] * low, x[2] * high, x[3] * high));
    }
  }
  if (first == 0 && lane % 4 == 0)
#pragma unroll
    for (int b = 0; b < 2; b++) __stcg(strip.sums(lane / 4 + 8 * b), make_float2(sums.m[n][b], sums.l[n][b]));
}

// O and LSE of the n-th 16 rows.
FA3_DEVICE void store_rows(const float (&o)[o_tiles][most_rows / 2], const RowSums& sums, const Params& p,
                           const RowBlock& block, int n, int first) {
  const int lane = threadIdx.x % 32;
  const Sinks sinks(p, block, n);
  FinishedRow row[2];
  float weight[2];
  RowPlace place[2];
#pragma unroll
  for (int b = 0; b < 2; b++) {
    row[b] = sinks.finish(b, sums.m[n][b], sums.l[n][b]);
    weight[b] = row[b].weight * sums.fit[n][b];
    place[b] = place_of(p, block, block.row + PartStrip::rows * n + lane / 4 + 8 * b);
    if (first == 0 && lane % 4 == 0 && place[b].exists && p.output.lse) *lse_of(p, block, place[b]) = row[b].lse;
  }
#pragma unroll
  for (int i = 0; i < o_tiles; i += 2) {
    const Upright tiles[2] = {Upright(&o[i][8 * n]), Upright(&o[i + 1][8 * n])};
#pragma unroll
    for (int b = 0; b < 2; b++) {
      uint32_t pairs[4];
#pragma unroll
      for (int pair = 0; pair < 4; pair++) {
        const float(&x)[4] = tiles[pair / 2].x[pair % 2];
        // Of a row that sees no key P were 0, but V need not have been finite.
        pairs[pair] = sums.l[n][b] == 0.f ? 0 : pack(x[2 * b] * weight[b], x[2 * b + 1] * weight[b]);
      }
      const auto store = [&](int column, auto columns) {
        if (place[b].exists && column < p.output.head_dim)
          *reinterpret_cast<decltype(columns)*>(o_of(p, block, place[b]) + column) = columns;
      };
      if constexpr (keeps_latent) {
        const int column = first + 64 * i + Upright::column(0);
        store(column, make_uint2(pairs[0], pairs[1]));
        store(column + 64, make_uint2(pairs[2], pairs[3]));
      } else {
        store(first + 64 * (i + lane % 4 / 2) + 8 * (lane % 2), transpose_quad(pairs));  // of pair lane % 4
      }
    }
  }
}

// A warpgroup's half of O^T's columns, of which the warp has 16 of each 64, of a tile or of a part of one.
FA3_DEVICE void store_columns(const float (&o)[o_tiles][most_rows / 2], const RowSums& sums, const Params& p,
                              const RowBlock& block, int parts, int warpgroup, int warp) {
#pragma unroll
  for (int n = 0; n < strips; n++) {
    if (block.row < 0 || block.row + PartStrip::rows * n >= visible(p, block).rows()) break;
    const int first_column = warpgroup * o_columns + 16 * warp;
    if (parts > 1) store_part(o, sums, p, block, n, first_column);
    else store_rows(o, sums, p, block, n, first_column);
  }
}

}  // namespace fa3
