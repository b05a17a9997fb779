#include "point.h"

#include <algorithm>
#include <cstdio>

#include "half.h"
#include "layout.h"
#include "params.h"

namespace fa3::bench {

std::string Point::label() const {
  char text[160];
  std::snprintf(text, sizeof text, "%s d%lld %s batch %lld seqlen %lld heads %lld/%lld", tools::dtype_name(dtype),
                (long long)head_dim, causal ? "causal" : "full", (long long)batch, (long long)seqlen, (long long)heads,
                (long long)kv_heads);
  return seqlen_k == seqlen ? text : std::string(text) + " seqlen_k " + std::to_string(seqlen_k);
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
  return params;
}

std::vector<Point> Grid::points() const {
  std::vector<Point> points;
  for (const fa3_dtype dtype : dtypes)
    for (const int64_t head_dim : head_dims)
      for (const bool is_causal : causal)
        for (const int64_t seqlen : seqlens) {
          Point p{dtype, head_dim, is_causal, batch, seqlen, seqlen_k, heads, kv_heads};
          if (!p.batch) p.batch = std::max<int64_t>(1, tokens / seqlen);
          if (!p.seqlen_k) p.seqlen_k = seqlen;
          if (!p.heads) p.heads = std::max<int64_t>(1, hidden / head_dim);
          if (!p.kv_heads) p.kv_heads = p.heads;
          if (p.label().find(filter) != std::string::npos) points.push_back(p);
        }
  return points;
}

}  // namespace fa3::bench
