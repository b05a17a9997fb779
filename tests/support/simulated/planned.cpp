#include "planned.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "half.h"

namespace fa3::test {
namespace {

using Row = std::vector<double>;

Row row_at(const fa3_tensor& t, int64_t batch, int64_t row, int64_t head) {
  Row numbers(size_t(t.dim[3]));
  // TMA gives zeros for what lies outside of the tensor.
  if (batch < 0 || batch >= t.dim[0] || row < 0 || row >= t.dim[1] || head >= t.dim[2]) return numbers;
  const int64_t from = batch * t.stride[0] + row * t.stride[1] + head * t.stride[2];
  for (size_t x = 0; x < numbers.size(); ++x)
    numbers[x] = double(tools::read_element(t.data, from + int64_t(x),
                                            fa3_dtype(t.dtype)));
  return numbers;
}

// Where a sequence's key lies.
struct Place {
  int64_t batch, row;
};
Place place_of(const PlannedForwardParams& p, const Sequence& s, int64_t key) {
  if (!p.page_table) return {s.k_batch, s.k_row + key};
  const int64_t page_size = p.page_size, row = s.k_row + key, page = row / page_size;
  return {p.page_table[int64_t{s.k_batch} * p.table_stride + page], row % page_size};
}

fa3_dtype dtype_of(Dtype dtype) {
  return dtype == Dtype::bf16 ? FA3_DTYPE_BF16 : dtype == Dtype::fp16 ? FA3_DTYPE_FP16 : FA3_DTYPE_E4M3;
}
// Of a row without scales it is 1.
double scale_at(const ScaleTensor& scale, int64_t sequence, int64_t head) {
  return scale.data ? double(scale.data[sequence * scale.stride_batch + head * scale.stride_head]) : 1;
}

// A row of V, a latent cache of e4m3 or not.
Row value_at(const Launched& launch, const fa3_tensor& v, const Place& at, int64_t head) {
  Row row = row_at(v, at.batch, at.row, head);
  const LatentScales& scales = launch.planned.latent_scales;
  if (!launch.row->forward()->is_latent() || at.batch < 0 || at.batch >= scales.batches || at.row < 0 ||
      at.row >= scales.rows)
    return row;
  const float* const row_scales =
      scales.data + at.batch * scales.stride_batch + at.row * scales.stride_row + head * scales.stride_head;
  for (size_t x = 0; x < row.size(); ++x) row[x] *= double(row_scales[x / FA3_LATENT_SCALE_COLUMNS]);
  return row;
}

double transformed(const Launched& launch, double score, int64_t sequence, int64_t head, double distance) {
  const Alibi& by = launch.planned.transforms.alibi;
  const double cap = double(launch.planned.transforms.softcap.cap) * double(launch.planned.softmax_scale);
  if (launch.row->forward()->has(Trait::softcap)) score = cap * std::tanh(score / cap);
  if (!by.slopes) return score;
  return score - double(by.slopes[sequence * by.stride_batch + head * by.stride_head]) * distance;
}

// A query's row of a tile: O and LSE in float64, and then rounded.
void compute(const Launched& launch, const PlannedTensors& t, const PlannedPiece& piece, const Keys& keys,
             int64_t query, int64_t head) {
  const auto& p = launch.planned;
  const Output& out = p.output;
  const Scales& scales = p.scales;
  const Sequence& s = piece.sequence;
  const int64_t number = piece.sequence_number;
  const int64_t head_kv = head / int64_t{p.heads_per_kv}, row = s.q_row + query;
  const bool has_qv = launch.row->forward()->has(Trait::qv);
  const Row q = row_at(t.q, s.q_batch, row, head), qv = has_qv ? row_at(t.qv, s.q_batch, row, head) : Row{};
  const auto product = [](const Row& a, const Row& b) {
    double dot = 0;
    for (size_t x = 0; x < a.size() && x < b.size(); ++x) dot += a[x] * b[x];
    return dot;
  };
  const auto score = [&](const Place& at) {
    double dot = product(q, row_at(t.k, at.batch, at.row, head_kv));
    if (has_qv) dot += product(qv, value_at(launch, t.v, at, head_kv));
    return dot * double(p.softmax_scale) * scale_at(scales.q, number, head) * scale_at(scales.k, number, head_kv);
  };
  const double offset = scales.lse_offset && !keys.none()
                            ? double(scales.lse_offset[s.q_batch * scales.lse_offset_stride_batch +
                                                       head * scales.lse_offset_stride_head +
                                                       row * scales.lse_offset_stride_row])
                            : 0;
  const double sink = p.sinks ? double(p.sinks[head * p.sinks_stride]) - offset : -INFINITY;
  std::vector<double> scores;
  double most = sink;
  for (int32_t key = keys.begin; key < keys.end; ++key) {
    const Place at = place_of(p, s, key);
    // The piece's sequence may be a part of the call's.
    const int64_t behind = s.q_row + query - launch.planned.transforms.alibi.q.end_of(piece.sequence_number);
    const double distance = std::abs(double(behind + s.seqlen_k - key));
    scores.push_back(transformed(launch, score(at), number, head, distance));
    most = std::isnan(scores.back()) ? scores.back() : std::max(most, scores.back());
  }
  const double sink_weight = sink == -INFINITY ? 0 : std::exp(sink - most);
  double sum = sink_weight;
  Row o(size_t(out.head_dim));
  for (int32_t key = keys.begin; key < keys.end; ++key) {
    const Place at = place_of(p, s, key);
    const double weight = std::exp(scores[size_t(key - keys.begin)] - most);
    const Row v = value_at(launch, t.v, at, head_kv);
    for (size_t x = 0; x < o.size() && x < v.size(); ++x) o[x] += weight * v[x];
    sum += weight;
  }
  const int64_t to = s.q_batch * out.o_stride_batch + row * out.o_stride_row + head * out.o_stride_head;
  const double v_scale = scale_at(scales.v, number, head_kv), o_scale = scales.o ? double(*scales.o) : 1;
  for (size_t x = 0; x < o.size(); ++x) {
    double value = o[x] / sum * v_scale;
    if (scales.v_mean)
      value += (sum - sink_weight) / sum * double(scales.v_mean[number * scales.v_mean_stride_batch +
                                                            head_kv * scales.v_mean_stride_head + int64_t(x)]);
    tools::write_element(out.o, to + int64_t(x), float(keys.none() ? 0 : value / o_scale),
                         launch.row->forward()->stores_fp32() ? FA3_DTYPE_FP32 : dtype_of(out.dtype));
  }
  if (out.lse)
    out.lse[s.q_batch * out.lse_stride_batch + head * out.lse_stride_head + row * out.lse_stride_row] =
        float(keys.none() ? sink : most + std::log(sum) + offset);
}

bool same(const Sequence& a, const Sequence& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Do the entries of a tile hold each of its blocks once, and has each part a slot of its own?
bool is_whole(std::vector<PlannedPiece> parts, const Blocks& blocks, int32_t slots, std::set<int32_t>& taken) {
  std::sort(parts.begin(), parts.end(), [](const PlannedPiece& a, const PlannedPiece& b) { return a.part < b.part; });
  int32_t begin = blocks.begin;
  for (size_t i = 0; i < parts.size(); ++i) {
    const PlannedPiece& part = parts[i];
    if (part.part != int32_t(i) || part.parts != int32_t(parts.size()) || part.slot != parts[0].slot ||
        !same(part.sequence, parts[0].sequence) || part.sequence_number != parts[0].sequence_number ||
        part.begin != begin || part.end <= begin)
      return false;
    begin = part.end;
    if (part.parts == 1) continue;
    if (part.slot < 0 || part.slot + part.parts > slots || !taken.insert(part.slot + part.part).second) return false;
  }
  return begin == blocks.end;
}

// Of kernels whose O is in two halves: tiles whose parts wait for the pass that adds them up.
struct SplitTile {
  std::function<void()> compute;
  const void* partials;
  int32_t tile_rows;
};
std::vector<SplitTile> left_to_pass;

}  // namespace

CUresult simulate_planned(const Launched& launch, const PlannedTensors& t) {
  const auto& p = launch.planned;
  const ForwardRow& row = *launch.row->forward();
  const Packing packing = row.packs_heads() ? p.visible.packing : Packing{0};
  const int32_t heads_of_tile = row.packs_heads() ? int32_t{p.heads_per_kv} : 1;
  const int64_t heads = int64_t{p.tiles.heads} * heads_of_tile;
  // Tiles by sequence, query block and slot: wrong lengths may make sequences overlap, or be the same.
  std::map<std::tuple<std::array<int32_t, 8>, int32_t, int32_t>, std::vector<PlannedPiece>> tiles;
  for (int32_t n = 0; n < p.counts->entries; ++n) {
    const PlannedPiece& entry = p.entries[n];
    const int32_t slot = entry.parts == 1 ? -1 - n : entry.slot;
    tiles[{std::bit_cast<std::array<int32_t, 8>>(entry.sequence), entry.q_block, slot}].push_back(entry);
  }
  std::set<int32_t> slots;
  for (const auto& [at, parts] : tiles) {
    const Sequence& s = parts[0].sequence;
    const Visible seen = visible_of(s, row.bounded_left(), row.bounded_right(), packing);
    const int32_t first = parts[0].q_block * row.Br, end = std::min(first + row.Br, seen.rows());
    if (first < 0 || first >= end || s.q_row < 0 || int64_t{s.q_row} + s.seqlen_q > t.q.dim[1] ||
        s.seqlen_q > p.visible.seqlen_q || s.q_batch < 0 || s.q_batch >= t.q.dim[0] || heads != t.q.dim[2] ||
        (p.page_table && s.k_row % p.box_rows != 0) ||
        !is_whole(parts, tile_blocks(seen, first, row.Br, row.Bc), p.counts->slots, slots))
      return CUDA_ERROR_LAUNCH_FAILED;
    const auto compute_rows = [=, piece = parts[0], heads_of_call = int32_t{p.tiles.heads}] {
      for (int32_t head = 0; head < heads_of_call; ++head)
        for (int32_t r = first; r < end; ++r)
          if (packing.head(r) < heads_of_tile)
            compute(launch, t, piece, seen.of(r), packing.query(r), int64_t{head} * heads_of_tile + packing.head(r));
    };
    if (row.halves_columns() && parts.size() > 1) left_to_pass.push_back({compute_rows, p.partials, row.Br});
    else compute_rows();
  }
  return CUDA_SUCCESS;
}

CUresult simulate_add_parts(const PlannedForwardParams& p) {
  for (const SplitTile& tile : std::exchange(left_to_pass, {})) {
    if (tile.partials != p.partials || tile.tile_rows != p.tile_rows) return CUDA_ERROR_LAUNCH_FAILED;
    tile.compute();
  }
  return CUDA_SUCCESS;
}

}  // namespace fa3::test
