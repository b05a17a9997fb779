#include "point.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "half.h"
#include "layout.h"
#include "params.h"

namespace fa3::bench {

std::string Point::label() const {
  char text[160];
  std::snprintf(text, sizeof text, "%s d%lld %s batch %lld seqlen %lld heads %lld/%lld", tools::dtype_name(dtype),
                (long long)head_dim, causal ? "causal" : "full", (long long)batch, (long long)seqlen, (long long)heads,
                (long long)kv_heads);
  std::string label = text;
  if (seqlen_k != seqlen) label += " seqlen_k " + std::to_string(seqlen_k);
  if (!kernel.empty()) label += " " + kernel;
  return label;
}

int64_t Point::visible_keys(int64_t i) const {
  return causal ? std::clamp<int64_t>(i + 1 + seqlen_k - seqlen, 0, seqlen_k) : seqlen_k;
}

double Point::flop() const {
  double pairs = double(seqlen) * double(seqlen_k);
  if (causal && seqlen == seqlen_k) pairs /= 2;
  if (causal && seqlen != seqlen_k) {
    pairs = 0;
    for (int64_t i = 0; i < seqlen; ++i) pairs += double(visible_keys(i));
  }
  return 4 * pairs * double(head_dim) * double(heads) * double(batch);
}

fa3_forward_params Point::params(void* q, void* k, void* v, void* o, void* lse) const {
  using tools::Layout;
  const Layout queries = Layout::packed({batch, seqlen, heads, head_dim});
  const Layout keys = Layout::packed({batch, seqlen_k, kv_heads, head_dim});
  fa3_forward_params params = tools::forward_params();
  params.q = queries.tensor(q, dtype);
  params.k = keys.tensor(k, dtype);
  params.v = keys.tensor(v, dtype);
  params.o = queries.tensor(o, dtype);
  params.lse = Layout::packed({batch, heads, seqlen}).tensor(lse, FA3_DTYPE_FP32);
  params.mask = causal ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE;
  if (!kernel.empty()) params.kernel = kernel.c_str();
  return params;
}

// All kernels of the build.
static std::vector<fa3_kernel_info> kernels_of_build() {
  std::vector<fa3_kernel_info> kernels(static_cast<size_t>(fa3_kernel_count()), tools::kernel_info());
  for (size_t i = 0; i < kernels.size(); ++i)
    if (fa3_kernel_info_at(int(i), &kernels[i]) != FA3_OK) throw std::runtime_error(fa3_last_error_message());
  return kernels;
}

// "alg2" of "fa3_alg2_bf16_d128_full".
static std::string cell(const fa3_kernel_info& info) {
  const std::string name = info.name;
  const size_t begin = name.find('_') + 1;
  return name.substr(begin, name.find('_', begin) - begin);
}

std::string fitting_kernel(const Point& point, const std::string& wanted) {
  std::string name;
  int head_dim = 0;
  for (const fa3_kernel_info& info : kernels_of_build()) {
    const bool fits = info.dtype == point.dtype && info.causal == int(point.causal) && info.head_dim >= point.head_dim;
    if (!fits || (wanted != info.name && wanted != cell(info))) continue;
    if (name.empty() || info.head_dim < head_dim) name = info.name, head_dim = info.head_dim;
  }
  return name;
}

std::string kernel_cells() {
  std::vector<std::string> cells;
  for (const fa3_kernel_info& info : kernels_of_build())
    if (std::find(cells.begin(), cells.end(), cell(info)) == cells.end()) cells.push_back(cell(info));
  std::string text;
  for (const std::string& one : cells) text += (text.empty() ? "" : ", ") + one;
  return text;
}

bool is_kernel(const std::string& wanted) {
  const auto kernels = kernels_of_build();
  return std::any_of(kernels.begin(), kernels.end(),
                     [&](const fa3_kernel_info& info) { return wanted == info.name || wanted == cell(info); });
}

std::vector<Point> Grid::points(std::vector<std::string>* left_out) const {
  std::vector<Point> points;
  const auto add = [&](const Point& p) {
    if (p.label().find(filter) != std::string::npos) points.push_back(p);
  };
  for (const fa3_dtype dtype : dtypes)
    for (const int64_t head_dim : head_dims)
      for (const bool is_causal : causal)
        for (const int64_t seqlen : seqlens) {
          Point p{dtype, head_dim, is_causal, batch, seqlen, seqlen_k, heads, kv_heads, {}};
          if (!p.batch) p.batch = std::max<int64_t>(1, tokens / seqlen);
          if (!p.seqlen_k) p.seqlen_k = seqlen;
          if (!p.heads) p.heads = std::max<int64_t>(1, hidden / head_dim);
          if (!p.kv_heads) p.kv_heads = p.heads;
          if (kernels.empty()) add(p);
          for (const std::string& wanted : kernels) {
            Point named = p;
            named.kernel = fitting_kernel(p, wanted);
            if (!named.kernel.empty()) add(named);
            else if (left_out) left_out->push_back(p.label() + ": " + wanted + " has no kernel for it");
          }
        }
  return points;
}

}  // namespace fa3::bench
