#include "backward.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "half.h"

namespace fa3::test {
namespace {

constexpr int tile_rows = backward_tile_rows;

double value(uint16_t bits, bool bf16) { return bf16 ? tools::from_bf16(bits) : tools::from_fp16(bits); }
uint16_t rounded(double x, bool bf16) { return bf16 ? tools::to_bf16(float(x)) : tools::to_fp16(float(x)); }

// Row (batch, row, head) of head_dim numbers; zeros outside of the tensor.
std::vector<double> row_of(const fa3_tensor& t, int64_t batch, int64_t row, int64_t head) {
  std::vector<double> numbers(size_t(t.dim[3]));
  if (row >= t.dim[1]) return numbers;
  const int64_t first = batch * t.stride[0] + row * t.stride[1] + head * t.stride[2];
  const auto* const from = static_cast<const uint16_t*>(t.data) + first;
  for (size_t x = 0; x < numbers.size(); ++x) numbers[x] = value(from[x], t.dtype == FA3_DTYPE_BF16);
  return numbers;
}
void write_row(const fa3_tensor& t, int64_t batch, int64_t row, int64_t head, const double* numbers) {
  auto* to = static_cast<uint16_t*>(t.data) + batch * t.stride[0] + row * t.stride[1] + head * t.stride[2];
  for (int64_t x = 0; x < t.dim[3]; ++x) to[x] = rounded(numbers[x], t.dtype == FA3_DTYPE_BF16);
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t x = 0; x < a.size(); ++x) sum += a[x] * b[x];
  return sum;
}

// Where the sum for this row of a tile and this column is, among the tile's: of 64 columns, warps have 16 rows, groups
// 8 columns, lanes two rows and two columns of those.
int64_t place(int row, int column) {
  const int lane = row % 8 * 4 + column % 8 / 2, number = row % 16 / 8 * 2 + column % 2;
  return column / 64 * 4096 + row / 16 * 1024 + column % 64 / 8 * 128 + lane * 4 + number;
}

}  // namespace

void store(const BackwardRows& p, uint16_t* gradient, int64_t at, double x) {
  float* const fp32 = reinterpret_cast<float*>(gradient) + at;
  switch (p.store) {
    case GradientStore::rounded: gradient[at] = rounded(x, p.bf16); break;
    case GradientStore::fp32: *fp32 = float(x); break;
    case GradientStore::added_fp32: *fp32 = float(*fp32 + x); break;
  }
}

namespace {

void prepare(const BackwardParams& params, int32_t tile_number) {
  const BackwardRows& p = params.rows;
  const int32_t batch_head = tile_number / p.tiles, tile = tile_number - batch_head * p.tiles;
  const int64_t batch = batch_head / p.heads, head = batch_head - batch * p.heads;
  for (int r = 0; r < tile_rows; ++r) {
    const int64_t row = int64_t{tile} * tile_rows + r;
    double lse = INFINITY, delta = 0;
    if (row < p.rows) {
      lse = p.lse[batch * p.lse_stride.batch + head * p.lse_stride.head + row * p.lse_stride.row];
      const uint16_t* o = p.o + batch * p.o_stride.batch + head * p.o_stride.head + row * p.o_stride.row;
      const uint16_t* dout = p.dout + batch * p.dout_stride.batch + head * p.dout_stride.head + row * p.dout_stride.row;
      for (int32_t x = 0; x < p.head_dim_v; ++x) delta += value(o[x], p.bf16) * value(dout[x], p.bf16);
      if (p.dlse) delta -= p.dlse[batch * p.dlse_stride.batch + head * p.dlse_stride.head + row * p.dlse_stride.row];
      if (lse == -INFINITY) lse = INFINITY, delta = 0;
    }
    p.lse_log2[int64_t{tile_number} * tile_rows + r] = float(lse * 1.4426950408889634);
    p.delta[int64_t{tile_number} * tile_rows + r] = float(delta);
  }
}

void finish(const BackwardParams& params, int columns, int32_t tile_number) {
  const BackwardRows& p = params.rows;
  const int32_t batch_head = tile_number / p.tiles, tile = tile_number - batch_head * p.tiles;
  const int64_t batch = batch_head / p.heads, head = batch_head - batch * p.heads;
  const float* const sums = p.dq_sums + int64_t{tile_number} * tile_rows * columns;
  for (int r = 0; r < tile_rows; ++r) {
    const int64_t row = int64_t{tile} * tile_rows + r;
    if (row >= p.rows) break;
    const int64_t to = batch * p.dq_stride.batch + head * p.dq_stride.head + row * p.dq_stride.row;
    for (int32_t x = 0; x < p.head_dim; ++x)
      store(p, p.dq, to + x, double(sums[place(r, x)]) * params.softmax_scale);
  }
}

// dQ of a tile of the rows that see no key.
void zero(const BackwardParams& params, int32_t tile_number) {
  const BackwardRows& p = params.rows;
  const EmptyRows& empty = params.empty;
  const int32_t batch_head = tile_number / empty.tiles, tile = tile_number - batch_head * empty.tiles;
  const int64_t batch = batch_head / p.heads, head = batch_head - batch * p.heads;
  for (int64_t row = int64_t{tile} * tile_rows; row < std::min((tile + 1) * tile_rows, empty.rows); ++row) {
    const int64_t to =
        batch * p.dq_stride.batch + head * p.dq_stride.head + (row - empty.rows) * p.dq_stride.row;
    // As the pass does, also where gradients are added: then the host is not to ask for it.
    if (p.store == GradientStore::rounded) std::fill_n(p.dq + to, p.head_dim, uint16_t{0});
    else std::fill_n(reinterpret_cast<float*>(p.dq) + to, p.head_dim, 0.f);
  }
}

template <class Function>
void each_shared_tile(const KeyOrder& order, int64_t first, int64_t end, Function function) {
  for (int64_t n = first; n < end; ++n)
    if (const int32_t tile = shared_tile(order, int32_t(n)); tile >= 0) function(tile);
}

}  // namespace

CUresult simulate_prepare(const BackwardParams& p, unsigned tiles) {
  const int32_t prepared = heads_of_pass(p.order) * p.order.head_tiles;
  for (int32_t tile = 0; tile < int32_t(tiles); ++tile)
    if (tile < prepared) prepare(p, tile);
    else zero(p, tile - prepared);
  std::fill_n(p.order.added, p.counters, 0u);
  return CUDA_SUCCESS;
}

// Where a part's sums for 64 keys are.
static float* key_sums(const BackwardParams& p, int d, int gradient, int64_t part, int64_t tile) {
  return p.keys.sums + ((gradient * p.order.batch_heads + part) * p.keys.tiles + tile) * tile_rows * d;
}

static CUresult simulate_sum(const BackwardParams& p, const PassRow& row, unsigned tiles) {
  const int64_t heads = p.order.batch_heads / int32_t{p.order.parts};
  if (p.order.key_sums == 1 || int64_t{tiles} != 2 * heads * p.keys.tiles) return CUDA_ERROR_LAUNCH_FAILED;
  for (int gradient = 0; gradient < 2; ++gradient)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t key = 0; key < p.visible.seqlen_k; ++key) {
        const RowStrides& stride = gradient ? p.keys.dv_stride : p.keys.dk_stride;
        const int64_t batch = head / int32_t{p.keys.heads}, head_in_batch = head - batch * p.keys.heads;
        const int64_t to = batch * stride.batch + head_in_batch * stride.head + key * stride.row;
        for (int32_t x = 0; x < (gradient ? p.keys.head_dim_v : p.keys.head_dim); ++x) {
          double sum = 0;
          for (int64_t part = head * p.order.parts; part < (head + 1) * p.order.parts; ++part)
            sum += key_sums(p, row.d, gradient, part, key / tile_rows)[place(int(key % tile_rows), x)];
          store(p.rows, gradient ? p.keys.dv : p.keys.dk, to + x, sum * (gradient ? 1 : p.softmax_scale));
        }
      }
  return CUDA_SUCCESS;
}

CUresult simulate_finish(const BackwardParams& p, const PassRow& row, unsigned tiles) {
  const int64_t first = int64_t{p.order.done_behind} * p.order.section * p.order.share;
  const int64_t left = p.rows.dq_sums ? tiles_left(p.order) : 0;
  if (int64_t{tiles} < left) return CUDA_ERROR_LAUNCH_FAILED;
  each_shared_tile(p.order, first, first + left, [&](int32_t tile) { finish(p, row.d, tile); });
  if (p.order.key_sums == 1) return int64_t{tiles} == left ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
  return simulate_sum(p, row, tiles - unsigned(left));
}

CUresult simulate(const BackwardParams& p, const BackwardRow& row, const BackwardTensors& t, unsigned blocks) {
  const int64_t batch = t.k.dim[0], heads_kv = t.k.dim[2], seqlen_k = t.k.dim[1], d = t.k.dim[3], d_v = t.v.dim[3];
  const int64_t key_blocks = (seqlen_k + row.Bc - 1) / row.Bc, heads = heads_kv * p.heads_per_kv;
  const int32_t parts = p.order.parts, ranges = p.order.ranges;
  const int32_t q_tiles = p.order.head_tiles > 0 ? int32_t{p.rows.tiles} : 0, range_tiles = q_tiles / ranges;
  const int64_t all = batch * heads_kv * parts * key_blocks;
  const bool is_dq_complete = row.has(Trait::one_key_block), leaves_sums = p.order.key_sums > 1;
  if (blocks != (row.takes_several_blocks() ? std::min<int64_t>(all, multiprocessors) : all) ||
      p.order.batch_heads != batch * heads_kv * parts || p.order.heads != heads_kv * parts ||
      p.readers * parts != p.heads_per_kv * ranges || range_tiles * ranges != q_tiles ||
      range_tiles * p.readers != p.order.head_tiles || p.order.blocks != key_blocks || p.visible.seqlen_k != seqlen_k ||
      p.visible.bounded_right != row.causal() || d > row.d || d_v > row.dv ||
      (heads > 0 && q_tiles > 0 && (t.q.dim[2] != heads || p.visible.seqlen_q != t.q.dim[1])) ||
      ((row.gradients == Gradients::keys || is_dq_complete) && p.order.done_behind > 0) ||
      (is_dq_complete && key_blocks > 1) || leaves_sums != (p.keys.sums != nullptr) || (parts > 1 && !leaves_sums) ||
      (p.rows.store != GradientStore::rounded && (!leaves_sums || p.order.done_behind > 0 || is_dq_complete)) ||
      (row.all_gradients() && is_dq_complete == (p.rows.dq_sums != nullptr)) ||
      (leaves_sums && (p.keys.heads != heads_kv || p.keys.tiles != key_blocks * (row.Bc / tile_rows))))
    return CUDA_ERROR_LAUNCH_FAILED;
  for (int64_t n = 0; n < all && p.order.head_tiles > 0; ++n)
    if (const HeadBlock block = block_ahead(p.order, int32_t(n)); block.block < p.order.blocks) {
      const TileShare share = share_of(p.order, block);
      for (int32_t tile = share.first; tile < share.first + share.tiles; ++tile) prepare(p, tile);
    }
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t part = 0; part < heads_kv * parts; ++part) {
      const int64_t hk = part / parts;
      std::vector<double> dk(size_t(seqlen_k * d)), dv(size_t(seqlen_k * d_v));
      const int64_t first_head = part / ranges * p.readers, first = part % ranges * range_tiles;
      for (int64_t h = first_head; h < first_head + p.readers; ++h)
        for (int64_t tile = first; tile < first + range_tiles; ++tile) {
          const int64_t n = (b * heads + h) * q_tiles + tile;
          if (row.all_gradients() && !is_dq_complete) {
            uint32_t& visits = p.visits[n / p.rows.tiles_per_visit];
            if (tile % p.rows.tiles_per_visit == 0 && visits++ == 0)
              std::fill_n(p.rows.dq_sums + n * tile_rows * row.d, p.rows.tiles_per_visit * tile_rows * row.d, 0.f);
          }
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t i = int64_t{tile} * tile_rows + r;
            const std::vector<double> q = row_of(t.q, b, i, h), dout = row_of(t.dout, b, i, h);
            std::vector<double> dq(size_t(d), 0);
            for (int64_t j = 0; j < seqlen_k; ++j) {
              if (row.causal() && j > i + p.visible.right) break;
              const std::vector<double> k = row_of(t.k, b, j, hk), v = row_of(t.v, b, j, hk);
              const double weight = std::exp2(dot(q, k) * p.softmax_scale_log2 - p.rows.lse_log2[n * tile_rows + r]);
              const double ds = weight * (dot(dout, v) - p.rows.delta[n * tile_rows + r]);
              for (int64_t x = 0; x < d; ++x) {
                dk[size_t(j * d + x)] += ds * q[size_t(x)] * (leaves_sums ? 1 : p.softmax_scale);
                if (is_dq_complete) dq[size_t(x)] += ds * k[size_t(x)] * p.softmax_scale;
                else if (row.all_gradients())
                  p.rows.dq_sums[n * tile_rows * row.d + place(r, int(x))] += float(ds * k[size_t(x)]);
              }
              for (int64_t x = 0; x < d_v; ++x) dv[size_t(j * d_v + x)] += weight * dout[size_t(x)];
            }
            if (is_dq_complete && i < t.dq.dim[1]) write_row(t.dq, b, i, h, dq.data());
          }
        }
      for (int64_t j = 0; j < seqlen_k; ++j) {
        if (!leaves_sums) {
          write_row(t.dk, b, j, hk, &dk[size_t(j * d)]), write_row(t.dv, b, j, hk, &dv[size_t(j * d_v)]);
          continue;
        }
        for (int gradient = 0; gradient < 2; ++gradient) {
          float* const to = key_sums(p, row.d, gradient, b * heads_kv * parts + part, j / tile_rows);
          for (int64_t x = 0; x < (gradient ? d_v : d); ++x)
            to[place(int(j % tile_rows), int(x))] = float(gradient ? dv[size_t(j * d_v + x)] : dk[size_t(j * d + x)]);
        }
      }
    }
  if (q_tiles > 0)
    each_shared_tile(p.order, 0, int64_t{p.order.done_behind} * p.order.section * p.order.share,
                     [&](int32_t tile) { finish(p, row.d, tile); });
  return CUDA_SUCCESS;
}

CUresult simulate_queries(const BackwardParams& p, const BackwardRow& row, const BackwardTensors& t, unsigned blocks) {
  const BlockOrder& order = p.query_order;
  const fa3_tensor& dq = t.dq;
  const int64_t batch = dq.dim[0], seqlen_q = dq.dim[1], heads = dq.dim[2], d = dq.dim[3];
  const int64_t query_blocks = (seqlen_q + row.Br - 1) / row.Br;
  if (blocks != batch * heads * query_blocks || order.batch_heads != batch * heads || order.blocks != query_blocks ||
      p.rows.heads != heads || p.rows.rows != seqlen_q || p.visible.seqlen_q != seqlen_q || d > row.d ||
      p.visible.bounded_right != row.causal() ||
      (p.visible.seqlen_k > 0 && (t.k.dim[1] != p.visible.seqlen_k || t.k.dim[2] * p.heads_per_kv != heads)))
    return CUDA_ERROR_LAUNCH_FAILED;
  for (unsigned number = 0; number < blocks; ++number) {
    const int32_t section = int32_t(number) / order.section;
    const HeadBlock block = block_at(order, section, int32_t(number) - section * order.section);
    const int64_t b = block.batch_head / heads, h = block.batch_head - b * heads, hk = h / p.heads_per_kv;
    const int64_t first = int64_t{row.causal() ? order.blocks - 1 - block.block : block.block} * row.Br;
    for (int64_t i = first; i < std::min(first + row.Br, seqlen_q); ++i) {
      const std::vector<double> q = row_of(t.q, b, i, h), dout = row_of(t.dout, b, i, h);
      const int64_t n = int64_t{block.batch_head} * p.rows.tiles * tile_rows + i;
      std::vector<double> sum(size_t(d), 0);
      for (int64_t j = 0; j < p.visible.seqlen_k; ++j) {
        if (row.causal() && j > i + p.visible.right) break;
        const std::vector<double> k = row_of(t.k, b, j, hk), v = row_of(t.v, b, j, hk);
        const double weight = std::exp2(dot(q, k) * p.softmax_scale_log2 - p.rows.lse_log2[n]);
        const double ds = weight * (dot(dout, v) - p.rows.delta[n]);
        for (int64_t x = 0; x < d; ++x) sum[size_t(x)] += ds * k[size_t(x)] * p.softmax_scale;
      }
      if (p.rows.store == GradientStore::rounded) write_row(dq, b, i, h, sum.data());
      const RowStrides& stride = p.rows.dq_stride;
      for (int64_t x = 0; p.rows.store != GradientStore::rounded && x < d; ++x)
        store(p.rows, p.rows.dq, b * stride.batch + h * stride.head + i * stride.row + x, sum[size_t(x)]);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace fa3::test
