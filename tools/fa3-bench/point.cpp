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
  std::string label = text;
  if (seqlen_k != seqlen) label += " seqlen_k " + std::to_string(seqlen_k);
  if (!library_chooses()) label += " " + kernel;
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
  if (!library_chooses()) params.kernel = kernel.c_str();
  return params;
}

}  // namespace fa3::bench
