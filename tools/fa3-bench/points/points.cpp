#include "points/points.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "points/batches.h"
#include "points/kernels.h"
#include "points/planned_sets.h"

namespace fa3::bench {

std::vector<Point> Grid::points() const {
  std::vector<Point> points;
  for (const fa3_dtype dtype : dtypes)
    for (const int64_t head_dim : head_dims)
      for (const bool is_causal : causal)
        for (const int64_t seqlen : seqlens) {
          Point p{dtype, head_dim, is_causal, batch, seqlen, seqlen_k, heads, kv_heads, {}};
          p.planned = planned;
          if (p.packed_q()) finish_lengths(p, "lengths", "lengths_k");
          else if (!p.batch) p.batch = std::max<int64_t>(1, tokens / seqlen);
          if (!p.seqlen_k) p.seqlen_k = seqlen;
          if (!p.heads) p.heads = std::max<int64_t>(1, hidden / head_dim);
          if (!p.kv_heads) p.kv_heads = p.heads;
          p.head_dim_v = head_dim_v;
          points.push_back(p);
        }
  return points;
}

void Grid::check_lengths(const std::string& q, const std::string& k) {
  Point p;
  p.planned = planned;
  finish_lengths(p, q, k);
  planned = p.planned;
  seqlens = {p.seqlen};  // one point for each dtype, head dimension and mask
}

std::vector<Point> Forms::of(const Point& point) const {
  if (!point.is_fp8()) return {point};
  std::vector<Point> points;
  for (const bool two : two_level)
    for (const Scales scale : scales)
      for (const VForm form : v) {
        if (point.is_planned() && form == VForm::tiles) continue;
        Point& made = points.emplace_back(point);
        made.v = form;
        made.scales = scale;
        made.two_level = two;
      }
  return points;
}

static std::vector<Point> in_e4m3(std::vector<Point> points) {
  for (Point& p : points) p.dtype = FA3_DTYPE_E4M3;
  return points;
}

// Rows of queries and keys, as encoders and vision models have them.
static std::vector<Point> short_sequences() {
  constexpr int64_t batch_and_length[][2] = {{1024, 16}, {1024, 33},  {512, 64}, {256, 100}, {128, 128}, {128, 197},
                                             {64, 256},  {48, 320},   {32, 384}, {32, 512},  {32, 577},  {1, 128},
                                             {1, 512},   {8, 197}};
  std::vector<Point> points;
  for (const int64_t head_dim : {64, 128})
    for (const auto& [batch, length] : batch_and_length)
      for (const bool causal : {false, true}) {
        const int64_t heads = head_dim == 64 ? 12 : 16;
        points.push_back({FA3_DTYPE_BF16, head_dim, causal, batch, length, length, heads, heads, {}});
      }
  return points;
}

// One query, or four under a causal mask, on caches of keys. The mask of one query hides nothing.
static std::vector<Point> decoding() {
  struct Heads {
    int64_t head_dim, heads, kv_heads;
  };
  constexpr Heads shapes[] = {{128, 32, 8}, {128, 64, 8}, {128, 32, 1}, {128, 8, 8}, {64, 32, 8}, {256, 32, 8}};
  constexpr int64_t one[][2] = {{1, 8192}, {1, 131072}, {8, 8192}, {32, 4096}, {64, 8192}, {128, 2048}};
  constexpr int64_t four[][2] = {{8, 8192}, {64, 4096}};
  std::vector<Point> points;
  for (const auto& [head_dim, heads, kv_heads] : shapes) {
    for (const auto& [batch, keys] : one)
      points.push_back({FA3_DTYPE_BF16, head_dim, false, batch, 1, keys, heads, kv_heads, {}});
    for (const auto& [batch, keys] : four)
      points.push_back({FA3_DTYPE_BF16, head_dim, true, batch, 4, keys, heads, kv_heads, {}});
  }
  return points;
}

// Latent caches: one query, or two, of the heads that share a cache, and a prompt's.
static std::vector<Point> latent() {
  std::vector<Point> points;
  const auto add = [&](int64_t heads, int64_t batch, int64_t queries, int64_t keys) {
    points.push_back({FA3_DTYPE_BF16, 576, queries > 1, batch, queries, keys, heads, 1, {}});
    points.back().head_dim_v = 512;
  };
  for (const int64_t heads : {16, 32, 64, 128}) {
    for (const int64_t keys : {8192, 32768}) add(heads, 1, 1, keys);
    for (const int64_t batch : {16, 64, 128}) add(heads, batch, 1, 8192);
    add(heads, 128, 1, 1024);
    add(heads, 64, 2, 4096);
  }
  add(16, 1, 4096, 4096);
  return points;
}

const std::vector<PointSet>& point_sets() {
  static const std::vector<PointSet> sets = [] {
    const auto bf16 = [](int64_t d, bool causal, int64_t batch, int64_t seqlen, int64_t heads, int64_t kv_heads) {
      return Point{FA3_DTYPE_BF16, d, causal, batch, seqlen, seqlen, heads, kv_heads, {}};
    };
    Grid fp16;
    fp16.dtypes = {FA3_DTYPE_FP16};
    fp16.head_dims = {128};
    const Point table2 = bf16(128, false, 4, 8448, 16, 16);
    const std::vector<Point> extra = {
        bf16(128, true, 2, 4096, 32, 8), bf16(128, true, 1, 32768, 32, 8), bf16(128, true, 1, 131072, 8, 8),
        bf16(128, true, 16, 1000, 16, 16), bf16(128, true, 4, 4095, 16, 16), bf16(128, true, 1, 8192, 4, 4),
        bf16(128, true, 1, 4096, 8, 8), bf16(64, true, 1, 16384, 3, 3), bf16(256, true, 1, 8192, 3, 3),
        bf16(128, true, 1, 2048, 8, 8), bf16(128, true, 1, 2048, 16, 16), bf16(128, true, 1, 8192, 9, 9),
        bf16(128, false, 1, 8192, 4, 4), bf16(64, true, 4, 2048, 64, 8), table2};
    const std::vector<Point> few_heads = {
        bf16(128, true, 1, 2048, 32, 8), bf16(128, true, 1, 4096, 28, 4), bf16(128, true, 1, 8192, 8, 1),
        bf16(128, true, 2, 8192, 8, 1), bf16(128, false, 1, 8192, 8, 1), bf16(64, true, 1, 4096, 16, 2),
        bf16(256, true, 1, 4096, 8, 1), bf16(128, true, 1, 4096, 4, 4), bf16(128, true, 1, 4096, 10, 10),
        bf16(128, false, 1, 4096, 2, 2), bf16(128, true, 1, 16384, 1, 1), bf16(256, true, 1, 4096, 2, 2)};
    Grid head_dim;
    head_dim.head_dims = {32, 72, 80, 96, 112, 160, 192, 224};
    head_dim.seqlens = {512, 2048, 16384};
    std::vector<Point> unequal;
    for (const auto& [head_dim, head_dim_v] : {std::pair{192, 128}, {64, 128}, {64, 256}, {128, 64}, {256, 128}})
      for (const bool causal : {false, true})
        for (const int64_t seqlen : {1024, 8192}) {
          unequal.push_back(bf16(head_dim, causal, 16384 / seqlen, seqlen, 16, 16));
          unequal.back().head_dim_v = head_dim_v;
        }
    return std::vector<PointSet>{
        {"grid", "the paper's grid: 16384 tokens, hidden size 2048, seqlen 512 to 16384, bf16", Grid().points()},
        {"fp16", "its points at head_dim 128 in fp16", fp16.points()},
        {"extra",
         "grouped heads, odd lengths, long contexts, few heads, and table2", extra},
        {"few_heads", "few heads, or few of K and V, as where a model is divided over several cards", few_heads},
        {"fp8", "the points of grid in e4m3", in_e4m3(Grid().points())},
        {"fp8extra", "the points of extra in e4m3", in_e4m3(extra)},
        {"head_dim", "other head dimensions, from 32 to 224", head_dim.points()},
        {"unequal", "head dimensions of V that are not those of Q and K", unequal},
        {"short", "16 to 577 tokens, most of them in large batches", short_sequences()},
        {"decode", "1 and 4 queries on caches of 2048 to 131072 keys", decoding()},
        {"mla", "1 and 2 queries on latent caches of 1024 to 32768 keys, and a prompt; head_dim 576 and 512", latent()},
        {"serve_decode", "1 and 4 queries on caches in pages, with windows, sinks, in e4m3, and latent",
         planned_decoding()},
        {"serve_prefill", "chunks of prompts on caches in pages", planned_prefill()},
        {"serve_mixed", "decoding and chunks of prompts in one call", planned_mixed()},
        {"documents", "varlen sequences, as training and prefill have them", packed_documents()},
        {"masks", "windows, sinks, softcap and ALiBi", masked_and_capped()},
        {"table2", "the point of the paper's ablations", {table2}}};
  }();
  return sets;
}

std::vector<Point> Selection::points(std::vector<std::string>* left_out) const {
  std::vector<Point> all = !batches.empty() ? batches : sets.empty() ? grid.points() : std::vector<Point>();
  for (const std::string& name : sets)
    for (const PointSet& set : point_sets())
      if (set.name == name)
        for (Point p : set.points) {
          p.set = name;
          all.push_back(p);
        }

  std::vector<Point> formed;
  for (Point& p : all) {
    p.direction = direction;
    p.deterministic = deterministic;
    if (p.is_backward() && (p.is_fp8() || p.planned.e4m3_cache))
      throw std::invalid_argument(p.label() + ": e4m3 has no backward pass");
    if (p.is_backward() && p.planned.page) throw std::invalid_argument(p.label() + ": pages have no backward pass");
    for (const Point& form : forms.of(p)) formed.push_back(form);
  }

  std::vector<Point> points;
  const auto add = [&](const Point& p) {
    if (p.label().find(filter) != std::string::npos) points.push_back(p);
  };
  for (const Point& p : formed)
    for (const std::string& wanted : kernels) {
      if (wanted == library_choice) {
        add(p);
        continue;
      }
      std::vector<Point> named;
      for (const std::string& name : fitting_kernels(kernels_of_build(direction), p, wanted)) {
        named.push_back(p);
        named.back().kernel = name;
        // Which forms of e4m3 a kernel takes is not in its info, nor that it computes dq only, or what it serves.
        if ((p.is_fp8() || p.is_backward() || p.is_planned()) && !is_runnable(named.back())) named.pop_back();
      }
      if (named.empty() && left_out) left_out->push_back(p.label() + ": " + wanted + " has no kernel for it");
      for (const Point& point : named) add(point);
    }
  return points;
}

}  // namespace fa3::bench
