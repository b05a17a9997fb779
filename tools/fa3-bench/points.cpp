#include "points.h"

#include <algorithm>
#include <stdexcept>

#include "kernels.h"

namespace fa3::bench {

std::vector<Point> Grid::points() const {
  std::vector<Point> points;
  for (const fa3_dtype dtype : dtypes)
    for (const int64_t head_dim : head_dims)
      for (const bool is_causal : causal)
        for (const int64_t seqlen : seqlens) {
          Point p{dtype, head_dim, is_causal, batch, seqlen, seqlen_k, heads, kv_heads, {}};
          if (!p.batch) p.batch = std::max<int64_t>(1, tokens / seqlen);
          if (!p.seqlen_k) p.seqlen_k = seqlen;
          if (!p.heads) p.heads = std::max<int64_t>(1, hidden / head_dim);
          if (!p.kv_heads) p.kv_heads = p.heads;
          p.head_dim_v = head_dim_v;
          points.push_back(p);
        }
  return points;
}

std::vector<Point> Forms::of(const Point& point) const {
  if (!point.is_fp8()) return {point};
  std::vector<Point> points;
  for (const bool two : two_level)
    for (const Scales scale : scales)
      for (const VForm form : v) {
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
    return std::vector<PointSet>{
        {"grid", "the paper's grid: 16384 tokens, hidden size 2048, seqlen 512 to 16384, bf16", Grid().points()},
        {"fp16", "its points at head_dim 128 in fp16", fp16.points()},
        {"extra",
         "grouped heads, odd lengths, long contexts, few heads, and table2", extra},
        {"fp8", "the points of grid in e4m3", in_e4m3(Grid().points())},
        {"fp8extra", "the points of extra in e4m3", in_e4m3(extra)},
        {"table2", "the point of the paper's ablations", {table2}}};
  }();
  return sets;
}

std::vector<Point> Selection::points(std::vector<std::string>* left_out) const {
  std::vector<Point> all = sets.empty() ? grid.points() : std::vector<Point>();
  for (const std::string& name : sets)
    for (const PointSet& set : point_sets())
      if (set.name == name) all.insert(all.end(), set.points.begin(), set.points.end());

  std::vector<Point> formed;
  for (Point& p : all) {
    p.direction = direction;
    p.deterministic = deterministic;
    if (p.is_backward() && p.is_fp8()) throw std::invalid_argument(p.label() + ": e4m3 has no backward pass");
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
        // Which forms of e4m3 a kernel takes is not in its info, nor that it computes dq only.
        if ((p.is_fp8() || p.is_backward()) && !is_runnable(named.back())) named.pop_back();
      }
      if (named.empty() && left_out) left_out->push_back(p.label() + ": " + wanted + " has no kernel for it");
      for (const Point& point : named) add(point);
    }
  return points;
}

}  // namespace fa3::bench
