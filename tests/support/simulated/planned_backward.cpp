#include "planned_backward.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "backward.h"
#include "backward/tile/backward_tiles.h"
#include "half.h"
#include "maps.h"
#include "plan/plan_backward.h"

namespace fa3::test {
namespace {

constexpr int tile_rows = backward_tile_rows;
constexpr double log2_e = 1.4426950408889634;

double value(uint16_t bits, bool bf16) { return bf16 ? tools::from_bf16(bits) : tools::from_fp16(bits); }
uint16_t rounded(double x, bool bf16) { return bf16 ? tools::to_bf16(float(x)) : tools::to_fp16(float(x)); }

using Numbers = std::vector<double>;

// Rows by a clipped map, found as the hardware finds them.
class ClippedRows {
 public:
  ClippedRows(const TensorMap& encoded, const PlannedBackwardParams& p, BackwardMap of)
      : map_(map_of(encoded)), p_(p), of_(of), bf16_(map_.dtype == FA3_DTYPE_BF16) {}

  int64_t columns() const { return map_.dim[0]; }
  Numbers read(const Sequence& s, int32_t row, int32_t head) const {
    Numbers numbers(static_cast<size_t>(columns()));
    if (const uint16_t* from = find(s, row, head))
      std::transform(from, from + columns(), numbers.begin(), [&](uint16_t bits) { return value(bits, bf16_); });
    return numbers;
  }
  void write(const Sequence& s, int32_t row, int32_t head, const Numbers& numbers) const {
    uint16_t* const to = find(s, row, head);
    for (int64_t x = 0; to && x < columns(); ++x) to[x] = rounded(numbers[size_t(x)], bf16_);
  }

 private:
  // Null: outside.
  uint16_t* find(const Sequence& s, int32_t row, int32_t head) const {
    const Place place = clipped(p_.end_of(of_, s), maps_queries(of_) ? s.seqlen_q : s.seqlen_k, row, head);
    const int32_t at[] = {place.row, place.head, place.batch, clipped_rows};
    uint64_t address = reinterpret_cast<uint64_t>(map_.data);
    for (uint32_t i = 1; i < map_.rank; ++i) {
      if (at[i - 1] < 0 || uint32_t(at[i - 1]) >= map_.dim[i]) return nullptr;
      address += uint64_t(at[i - 1]) * map_.stride[i - 1];
    }
    return reinterpret_cast<uint16_t*>(address);
  }

  Map map_;
  const PlannedBackwardParams& p_;
  BackwardMap of_;
  bool bf16_;
};

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (size_t x = 0; x < a.size(); ++x) sum += a[x] * b[x];
  return sum;
}
void add(Numbers& to, double factor, const Numbers& x) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += factor * x[i];
}

int64_t offset(const RowStrides& stride, int64_t batch, int64_t head, int64_t row) {
  return batch * stride.batch + head * stride.head + row * stride.row;
}

void zero_unseen(const Unseen& unseen, uint16_t* to, const RowStrides& stride, int32_t heads, int32_t columns,
                 GradientStore how) {
  for (int32_t n = 0; how != GradientStore::added_fp32 && n < unseen.count(); ++n)
    for (int32_t head = 0; head < heads; ++head) {
      const int64_t at = offset(stride, unseen.batch, head, unseen.row(n));
      if (how == GradientStore::rounded) std::fill_n(to + at, columns, uint16_t{0});
      else std::fill_n(reinterpret_cast<float*>(to) + at, columns, 0.f);
    }
}

void store_row(const BackwardRows& p, uint16_t* gradient, int64_t at, const Numbers& numbers) {
  for (size_t x = 0; x < numbers.size(); ++x) store(p, gradient, at + int64_t(x), numbers[x]);
}

double sink_of(const PlannedBackwardParams& p, int64_t head) { return p.sinks.sinks[head * p.sinks.sinks_stride]; }

// Zeros of a sequence, and what its rows without keys add to the gradient of a sink.
void zeros(const PlannedBackwardParams& p, int32_t sequence) {
  const UnseenRows unseen = unseen_rows(p.call, sequence);
  zero_unseen(unseen.q, p.rows.dq, p.rows.dq_stride, p.rows.heads, p.rows.head_dim, p.rows.store);
  zero_unseen(unseen.k, p.keys.dk, p.keys.dk_stride, p.keys.heads, p.keys.head_dim, p.rows.store);
  zero_unseen(unseen.k, p.keys.dv, p.keys.dv_stride, p.keys.heads, p.keys.head_dim_v, p.rows.store);
  for (int64_t head = 0; p.sinks.dsinks && head < p.rows.heads; ++head) {
    float* const sums = p.sinks.sums + head * p.sinks.each + p.sinks.each - p.zero_blocks + sequence * p.zero_slices;
    std::fill_n(sums, int32_t{p.zero_slices}, 0.f);
    for (int32_t row = unseen.q.used.begin; p.rows.dlse && row < unseen.q.used.end; ++row)
      if ((row < unseen.q.seen.begin || row >= unseen.q.seen.end) && sink_of(p, head) != -INFINITY)
        *sums -= p.rows.dlse[offset(p.rows.dlse_stride, unseen.q.batch, head, row)];
  }
}

// A tile's rows: how many there are from the first on, and where that is in the tensors.
struct Tile {
  const Sequence* sequence;  // null: there is no such tile
  int32_t first, rows;
};
Tile tile_at(const PlannedBackwardParams& p, int32_t number) {
  const PlannedTile planned = p.tiles[number / p.rows.tiles_per_visit];
  if (planned.sequence < 0) return {};
  const Sequence& s = p.sequences[planned.sequence];
  const int32_t first =
      (planned.tile * p.rows.tiles_per_visit + number % p.rows.tiles_per_visit) * tile_rows;
  return {&s, first, std::clamp(s.seqlen_q - first, 0, tile_rows)};
}

void prepare(const PlannedBackwardParams& params, int64_t head, int32_t number) {
  const BackwardRows& p = params.rows;
  const Tile tile = tile_at(params, number);
  float* const sum = params.sinks.dsinks ? params.sinks.sums + head * params.sinks.each + number : nullptr;
  if (sum) *sum = 0;
  for (int32_t r = 0; tile.sequence && r < tile_rows; ++r) {
    const int64_t at = (head * p.tiles + number) * tile_rows + r, batch = tile.sequence->q_batch;
    const int64_t row = tile.sequence->q_row + tile.first + r;
    double lse = INFINITY, delta = 0;
    if (r < tile.rows) {
      lse = p.lse[offset(p.lse_stride, batch, head, row)];
      const uint16_t *o = p.o + offset(p.o_stride, batch, head, row),
                     *dout = p.dout + offset(p.dout_stride, batch, head, row);
      for (int32_t x = 0; x < p.head_dim_v; ++x) delta += value(o[x], p.bf16) * value(dout[x], p.bf16);
      if (p.dlse) delta -= p.dlse[offset(p.dlse_stride, batch, head, row)];
      if (sum) *sum += float(std::exp(sink_of(params, head) - lse) * delta);
    }
    p.lse_log2[at] = float(lse * log2_e), p.delta[at] = float(delta);
  }
}

// Where the sum for this row of a tile and this column is, as in backward.cpp.
int64_t place(int row, int column) {
  const int lane = row % 8 * 4 + column % 8 / 2, number = row % 16 / 8 * 2 + column % 2;
  return column / 64 * 4096 + row / 16 * 1024 + column % 64 / 8 * 128 + lane * 4 + number;
}

// The exponent of a score, of q k, in powers of 2, and by how much the score changes with that. `part`: what the kernel
// has of the sequence of this number.
struct Score {
  double exponent, slope;
};
Score transformed(const TransformedBackwardParams& p, const BackwardRow& row, const Sequence& part, int32_t sequence,
                  double score, int64_t head, int64_t query, int64_t key) {
  double to_log2 = p.softmax_scale_log2, derivative = 1;
  if (row.has(Trait::softcap)) {
    score = std::tanh(score * double(p.tanh.wide[0]));
    to_log2 = p.tanh.cap_log2, derivative = 1 - score * score;
  }
  if (!row.has(Trait::alibi)) return {score * to_log2, derivative};
  const Alibi& by = p.transforms.alibi;
  const int64_t from_q_end = part.q_row + query - by.q.end_of(sequence);
  const int64_t from_k_end = part.k_row + key - by.k.end_of(sequence);
  const double slope = by.slopes[sequence * by.stride_batch + head * by.stride_head] * double(by.inverse_scale);
  return {(score - slope * std::abs(double(from_q_end - from_k_end))) * to_log2, derivative};
}

// Stores dQ of a tile.
void finish(const PlannedBackwardParams& params, int columns, int64_t head, int32_t number) {
  const BackwardRows& p = params.rows;
  const Tile tile = tile_at(params, number);
  const float* const sums = p.dq_sums + (head * p.tiles + number) * tile_rows * columns;
  for (int32_t r = 0; r < tile.rows; ++r) {
    const Sequence& s = *tile.sequence;
    const int64_t to = offset(p.dq_stride, s.q_batch, head, s.q_row + tile.first + r);
    for (int32_t x = 0; x < p.head_dim; ++x)
      store(p, p.dq, to + x, double(sums[place(r, x)]) * params.softmax_scale);
  }
}

// Where the sums of a part are for a key of a sequence.
float* key_sums(const PlannedBackwardParams& p, const Sequence& s, int gradient, int64_t part, int64_t key) {
  return (gradient ? p.unrounded.dv : p.unrounded.dk) +
         offset(gradient ? p.unrounded.dv_stride : p.unrounded.dk_stride, s.k_batch, part, s.k_row + key);
}
void leave_sums(const PlannedBackwardParams& p, const Sequence& s, int64_t part, int64_t key, const Numbers& dk,
                const Numbers& dv) {
  for (int gradient = 0; gradient < 2; ++gradient)
    for (size_t x = 0; x < (gradient ? dv : dk).size(); ++x) {
      float& to = key_sums(p, s, gradient, part, key)[x];
      to = float((gradient ? dv : dk)[x] + (p.unrounded.adds ? double{to} : 0));
    }
}
// Stores dK and dV as the sums over the parts.
void sum_keys(const PlannedBackwardParams& p) {
  const int64_t heads = p.keys.heads, parts = p.order.parts;
  for (int32_t n = 0; n < p.counts->blocks; ++n)
    for (int64_t j = 0; j < std::min(int32_t{p.call.Bc}, p.blocks[n].sequence.seqlen_k - p.blocks[n].key); ++j)
      for (int64_t head = 0; head < heads; ++head)
        for (int gradient = 0; gradient < 2; ++gradient) {
          const Sequence& s = p.blocks[n].sequence;
          const int64_t key = p.blocks[n].key + j;
          const int64_t to =
              offset(gradient ? p.keys.dv_stride : p.keys.dk_stride, s.k_batch, head, s.k_row + key);
          for (int32_t x = 0; x < (gradient ? p.keys.head_dim_v : p.keys.head_dim); ++x) {
            double sum = 0;
            for (int64_t part = head * parts; part < (head + 1) * parts; ++part)
              sum += double(key_sums(p, s, gradient, part, key)[x]);
            store(p.rows, gradient ? p.keys.dv : p.keys.dk, to + x, sum * (gradient ? 1. : double(p.softmax_scale)));
          }
        }
}

// The share of the n-th key block of the list.
void finish_share(const PlannedBackwardParams& p, int columns, int32_t n) {
  const ListedBlock listed = listed_block(*p.counts, p.order.section, n);
  const PlannedBlock& block = p.blocks[listed.entry];
  const QTiles share = share_of(block, p.call.Bc);
  for (int32_t head = listed.head * p.readers; head < (listed.head + 1) * p.readers; ++head)
    for (int32_t tile = share.begin; tile < share.end; ++tile)
      finish(p, columns, head, block.first_tile * p.rows.tiles_per_visit + tile);
}

// Do thread blocks that take key blocks in their order, and add to dQ in theirs, come to an end? As bwd.cu waits, a
// tile of each thread block in turn.
template <int Br>
bool ends(const PlannedBackwardParams& p, int32_t thread_blocks) {
  struct Working {
    KeyBlockWork<Br, 128> block;
    QueryTile tile;
    int left;
  };
  const int32_t tiles = p.rows.heads * p.call.most_tiles, all = p.counts->blocks * p.order.heads;
  std::vector<int32_t> visits(size_t(2 * tiles));
  std::vector<std::optional<Working>> working(static_cast<size_t>(thread_blocks));
  for (int32_t next = 0;;) {
    bool moved = false, is_working = false;
    for (std::optional<Working>& at : working) {
      if (!at && next < all) {
        const KeyBlockWork<Br, 128> block(p, next++);
        at = {block, QueryTile(block), block.all};
      }
      if (!at) continue;
      is_working = true;
      const Visible seen = visible_of(p.blocks[at->block.batch].sequence, true, true, {0});
      const auto turn = at->block.turn(p, seen, at->tile.tile);
      const int32_t number = at->tile.number(at->block) + (turn.second ? tiles : 0);
      if (number < 0 || number >= (p.order.spread.second > 0 ? 2 : 1) * tiles) return false;
      if (p.order.is_fixed() && visits[size_t(number)] < turn.rank) continue;
      ++visits[size_t(number)], moved = true;
      at->tile.next(p, at->block);
      if (--at->left == 0) at.reset();
    }
    if (!is_working) return true;
    if (!moved) return false;
  }
}

}  // namespace

namespace {
// Of a row of dQ whose dS sum up to this.
void take_off_mean(Numbers& dq, double sum, const CenteredBackwardParams& p, const BackwardRow& row, int32_t sequence,
                   int32_t head_kv) {
  if (!row.has(Trait::centered_k)) return;
  const float* const mean = p.key_mean(sequence / p.call.cuts.each, head_kv, row.d);
  for (size_t x = 0; x < dq.size(); ++x) dq[x] -= sum * mean[x];
}
}  // namespace

CUresult simulate_plan_backward(const PlanBackwardPassParams& p) {
  const auto scratch = std::make_unique<BackwardPlanScratch>();
  plan_backward(InTurn(), p.call, p.spread_shift, p.list, *scratch);
  return CUDA_SUCCESS;
}

CUresult simulate_key_means(const CenteredBackwardParams& p, const PassRow& row, unsigned blocks) {
  const int32_t heads = p.keys.heads, batch = p.call.lengths.batch;
  if (int64_t{blocks} != int64_t{batch} * heads || p.rows.head_dim > row.d) return CUDA_ERROR_LAUNCH_FAILED;
  for (int32_t b = 0; b < batch; ++b) {
    const Unseen rows = unseen_rows(p.call, b).k;
    const int32_t keys = rows.seen.end - rows.seen.begin, count = std::min(keys, most_mean_keys);
    for (int32_t head = 0; head < heads; ++head)
      for (int32_t column = 0; column < row.d; ++column) {
        double sum = 0;
        for (int32_t n = 0; n < count && column < p.rows.head_dim; ++n) {
          const int64_t at = offset(p.k_stride, rows.batch, head, rows.seen.begin + mean_key(n, keys));
          sum += value(p.k_rows[at + column], p.rows.bf16);
        }
        const double mean = count > 0 ? sum / count : 0;
        p.key_mean(b, head, row.d)[column] = std::isfinite(mean) ? float(mean) : 0;
      }
  }
  return CUDA_SUCCESS;
}

CUresult simulate_prepare_planned(const PlannedBackwardParams& p, unsigned blocks) {
  if (p.zero_blocks != p.call.lengths.batch * p.zero_slices) return CUDA_ERROR_LAUNCH_FAILED;
  for (int32_t b = 0; b < p.call.lengths.batch; ++b) zeros(p, b);
  for (int32_t n = 0; n < int32_t(blocks) - p.zero_blocks; ++n)
    for (int32_t i = 0; i < p.rows.tiles_per_visit; ++i)
      prepare(p, n % int32_t{p.rows.heads}, n / p.rows.heads * p.rows.tiles_per_visit + i);
  std::fill_n(p.order.added, p.counters, 0u);
  return CUDA_SUCCESS;
}

CUresult simulate_lengths(const TransformedBackwardParams& p, const CenteredBackwardParams& means,
                          const BackwardRow& row, unsigned blocks) {
  const ClippedRows q(p.q, p, BackwardMap::q), dout(p.dout, p, BackwardMap::dout), k(p.k, p, BackwardMap::k);
  const ClippedRows v(p.v, p, BackwardMap::v), dk(p.dk, p, BackwardMap::dk), dv(p.dv, p, BackwardMap::dv);
  const bool is_complete = row.has(Trait::one_key_block), sums_dq = row.all_gradients() && !is_complete;
  // Each part of a head of K and V is a head.
  const int64_t heads = p.order.heads, most = p.call.most_blocks * heads, tiles = p.rows.tiles;
  const int32_t Br = row.listed_rows(), parts = p.order.parts;
  const bool rounds = p.rows.store == GradientStore::rounded;
  if ((!rounds && (is_complete || p.order.done_behind > 0)) || q.columns() > row.d || v.columns() > row.dv ||
      sums_dq != (p.rows.dq_sums != nullptr) || p.readers * parts != p.heads_per_kv ||
      heads != int64_t{p.keys.heads} * parts || p.order.batch_heads != heads || p.keys.sums != nullptr ||
      (parts > 1 && (is_complete || p.keys.tiles != p.call.most_blocks * (row.Bc / tile_rows) || p.unrounded.adds)) ||
      (p.order.key_sums > 1) != (!rounds || parts > 1) ||
      (parts > 1 && row.has(Trait::softcap) && p.order.done_behind > 0) || heads % p.order.section_heads != 0 ||
      p.counts->blocks > p.call.most_blocks ||
      int64_t{blocks} != (row.takes_several_blocks() ? std::min<int64_t>(most, multiprocessors) : most) ||
      p.call.Br != Br || p.call.Bc != row.Bc)
    return CUDA_ERROR_LAUNCH_FAILED;
  if (sums_dq)
    for (const int32_t thread_blocks : {1, multiprocessors})
      if (!(row.Br == 128 ? ends<128>(p, thread_blocks) : ends<64>(p, thread_blocks))) return CUDA_ERROR_LAUNCH_FAILED;
  for (int32_t n = 0; n < p.counts->blocks; ++n)
    for (int32_t part = 0; part < heads; ++part) {
      const int32_t head_kv = part / parts;
      const PlannedBlock& block = p.blocks[n];
      const Sequence& s = block.sequence;
      const Visible seen = visible_of(s, row.bounded_left(), row.bounded_right(), {0});
      const int32_t keys = std::min(row.Bc, s.seqlen_k - block.key), end = std::min(s.seqlen_q, block.end * Br);
      if (keys <= 0 || block.first >= block.end || block.start < block.first || block.start >= block.end ||
          (is_complete && keys < s.seqlen_k))
        return CUDA_ERROR_LAUNCH_FAILED;
      std::vector<Numbers> gradients_k(size_t(keys), Numbers(size_t(k.columns()))), k_rows;
      std::vector<Numbers> gradients_v(size_t(keys), Numbers(size_t(v.columns()))), v_rows;
      for (int32_t j = 0; j < keys; ++j)
        k_rows.push_back(k.read(s, block.key + j, head_kv)), v_rows.push_back(v.read(s, block.key + j, head_kv));
      for (int32_t head = part * p.readers; head < (part + 1) * p.readers; ++head)
        for (int32_t i = block.first * Br; i < end; ++i) {
          const int64_t visit = head * (tiles / p.rows.tiles_per_visit) + block.first_tile + i / Br;
          const int64_t at = visit * Br + i % Br;
          const Numbers its_q = q.read(s, i, head), its_dout = dout.read(s, i, head);
          Numbers its_dq(its_q.size());
          double sum = 0;
          for (int32_t j = 0; j < keys; ++j) {
            if (!seen.sees(i, block.key + j)) continue;
            const Score score = transformed(p, row, s, p.tiles[block.first_tile].sequence,
                                            dot(its_q, k_rows[size_t(j)]), head, i, block.key + j);
            const double weight = std::exp2(score.exponent - p.rows.lse_log2[at]);
            const double ds = weight * score.slope * (dot(its_dout, v_rows[size_t(j)]) - p.rows.delta[at]);
            add(gradients_k[size_t(j)], ds * (rounds && parts == 1 ? p.softmax_scale : p.unrounded.dk_scale), its_q);
            add(gradients_v[size_t(j)], weight, its_dout);
            add(its_dq, ds, k_rows[size_t(j)]), sum += ds;
          }
          take_off_mean(its_dq, sum, means, row, p.tiles[block.first_tile].sequence, head_kv);
          if (is_complete) {
            for (double& x : its_dq) x *= p.softmax_scale;
            ClippedRows(p.dq, p, BackwardMap::dq).write(s, i, head, its_dq);
            continue;
          }
          if (!sums_dq) continue;
          float* const sums = p.rows.dq_sums + at / tile_rows * tile_rows * row.d;
          if (i % Br == 0 && p.visits[visit]++ == 0) std::fill_n(p.rows.dq_sums + visit * Br * row.d, Br * row.d, 0.f);
          for (size_t x = 0; x < its_dq.size(); ++x)
            sums[place(int(at % tile_rows), int(x))] += float(its_dq[x]);
        }
      for (int32_t j = 0; j < keys; ++j) {
        const Numbers &its_dk = gradients_k[size_t(j)], &its_dv = gradients_v[size_t(j)];
        if (p.order.key_sums > 1) leave_sums(p, s, part, block.key + j, its_dk, its_dv);
        else dk.write(s, block.key + j, head_kv, its_dk), dv.write(s, block.key + j, head_kv, its_dv);
      }
    }
  for (int32_t n = p.order.behind; p.order.done_behind > 0 && n < p.counts->blocks * heads; ++n)
    finish_share(p, row.d, n - p.order.behind);
  return CUDA_SUCCESS;
}

CUresult simulate_queries_of_lengths(const TransformedBackwardParams& p, const CenteredBackwardParams& means,
                                     const BackwardRow& row, unsigned blocks) {
  const ClippedRows q(p.q, p, BackwardMap::q), dout(p.dout, p, BackwardMap::dout), k(p.k, p, BackwardMap::k);
  const ClippedRows v(p.v, p, BackwardMap::v), dq(p.dq, p, BackwardMap::dq);
  const BlockOrder& order = p.query_order;
  if (int64_t{blocks} != int64_t{p.rows.heads} * p.call.most_tiles || order.batch_heads != p.rows.heads ||
      order.blocks != p.call.most_tiles || order.sections * order.section_heads != order.batch_heads ||
      order.section != order.section_heads * order.blocks || p.call.Br != row.Br)
    return CUDA_ERROR_LAUNCH_FAILED;
  for (int32_t n = 0; n < int32_t(blocks); ++n) {
    const int32_t section = n / order.section;
    const HeadBlock block = block_at(order, section, n - section * order.section);
    const int32_t head = block.batch_head, head_kv = head / p.heads_per_kv, number = order.blocks - 1 - block.block;
    if (p.tiles[number].sequence < 0) continue;
    const Sequence& s = p.sequences[p.tiles[number].sequence];
    const Visible seen = visible_of(s, row.bounded_left(), row.bounded_right(), {0});
    const int32_t first = p.tiles[number].tile * row.Br;
    for (int32_t i = first; i < std::min(first + row.Br, s.seqlen_q); ++i) {
      const int64_t at = head * int64_t{p.rows.tiles} * tile_rows + int64_t{number} * row.Br + i - first;
      const Numbers its_q = q.read(s, i, head), its_dout = dout.read(s, i, head);
      Numbers its_dq(its_q.size());
      double sum = 0;
      for (int32_t j = 0; j < s.seqlen_k; ++j) {
        if (!seen.sees(i, j)) continue;
        const Numbers its_k = k.read(s, j, head_kv);
        const Score score = transformed(p, row, s, p.tiles[number].sequence, dot(its_q, its_k), head, i, j);
        const double weight = std::exp2(score.exponent - p.rows.lse_log2[at]) * score.slope;
        const double ds = weight * (dot(its_dout, v.read(s, j, head_kv)) - p.rows.delta[at]) * p.softmax_scale;
        add(its_dq, ds, its_k), sum += ds;
      }
      take_off_mean(its_dq, sum, means, row, p.tiles[number].sequence, head_kv);
      if (p.rows.store == GradientStore::rounded) dq.write(s, i, head, its_dq);
      else store_row(p.rows, p.rows.dq, offset(p.rows.dq_stride, s.q_batch, head, s.q_row + i), its_dq);
    }
  }
  return CUDA_SUCCESS;
}

CUresult simulate_finish_planned(const PlannedBackwardParams& params, const PassRow& row, unsigned blocks) {
  const BackwardRows& p = params.rows;
  const int32_t heads = p.heads;
  const int64_t summed = params.order.parts > 1 ? int64_t{2} * params.keys.heads * params.keys.tiles : 0;
  if (int64_t{blocks} != params.finish_blocks + (params.sinks.dsinks ? heads : 0) + summed)
    return CUDA_ERROR_LAUNCH_FAILED;
  if (summed > 0) sum_keys(params);
  for (int32_t n = 0; n < params.finish_blocks / params.finish_sharers; ++n)
    if (const int32_t number = params.counts->blocks * int32_t{params.order.heads} - 1 - n; number >= 0)
      finish_share(params, row.d, number);
  for (int64_t head = 0; params.sinks.dsinks && head < heads; ++head) {
    double sum = 0;
    for (int32_t i = 0; i < params.sinks.each; ++i) sum += params.sinks.sums[head * params.sinks.each + i];
    params.sinks.dsinks[head * params.sinks.dsinks_stride] = float(0 - sum);
  }
  return CUDA_SUCCESS;
}

}  // namespace fa3::test
