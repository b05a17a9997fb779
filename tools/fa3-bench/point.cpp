#include "point.h"

#include <algorithm>

#include "half.h"
#include "layout.h"
#include "params.h"

namespace fa3::bench {

const char* name(Direction direction) { return direction == Direction::backward ? "bwd" : "fwd"; }

const char* name(VForm form) { return form == VForm::tiles ? "tiles" : "rows"; }

const char* name(Scales scales) {
  return scales == Scales::block ? "block" : scales == Scales::head ? "head" : "tensor";
}

std::string Point::kind() const {
  std::string kind = std::string(is_backward() ? "bwd " : "") + tools::dtype_name(dtype) + " d" +
                     std::to_string(head_dim);
  if (v_dim() != head_dim) kind += 'x' + std::to_string(head_dim_v);
  return kind + (causal ? " causal" : " full");
}

std::string Point::form() const {
  if (!is_fp8()) return deterministic ? " deterministic" : "";
  std::string form = std::string(" v ") + name(v);
  if (scales != Scales::tensor) form += std::string(" scales ") + name(scales);
  return two_level ? form + " two-level" : form;
}

std::string Point::label() const {
  std::string label = kind() + " batch " + std::to_string(batch) + " seqlen " + std::to_string(seqlen) + " heads " +
                      std::to_string(heads) + "/" + std::to_string(kv_heads);
  if (seqlen_k != seqlen) label += " seqlen_k " + std::to_string(seqlen_k);
  label += form();
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
  const int64_t columns = is_backward() ? 3 * head_dim + 2 * v_dim() : head_dim + v_dim();
  return 2 * pairs * double(columns) * double(heads) * double(batch);
}

static std::vector<int64_t> scale_dims(Scales scales, int64_t batch, int64_t heads, int64_t seqlen) {
  if (scales == Scales::tensor) return {1, 1, 1};
  return {batch, heads, scales == Scales::head ? 1 : (seqlen + FA3_SCALE_ROWS - 1) / FA3_SCALE_ROWS};
}

int64_t Point::scale_elements() const {
  const auto count = [&](int64_t n, int64_t length) {
    return tools::Layout::packed(scale_dims(scales, batch, n, length)).count();
  };
  return is_fp8() ? std::max(count(heads, seqlen), count(kv_heads, seqlen_k)) : 0;
}

fa3_forward_params Point::params(void* q, void* k, void* v_data, void* o, void* lse, void* scale_data) const {
  using tools::Layout;
  const Layout queries = Layout::packed({batch, seqlen, heads, head_dim});
  const Layout keys = Layout::packed({batch, seqlen_k, kv_heads, head_dim});
  const Layout values = Layout::packed({batch, seqlen_k, kv_heads, v_dim()});
  fa3_forward_params params = tools::forward_params();
  params.q = queries.tensor(q, dtype);
  params.k = keys.tensor(k, dtype);
  params.v = values.tensor(v_data, dtype);
  if (v_in_k()) params.v = params.k, params.v.dim[3] = v_dim();
  params.o = Layout::packed({batch, seqlen, heads, v_dim()}).tensor(o, o_dtype());
  params.lse = Layout::packed({batch, heads, seqlen}).tensor(lse, FA3_DTYPE_FP32);
  params.mask = causal ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE;
  if (!library_chooses() && !is_backward()) params.kernel = kernel.c_str();
  if (is_fp8()) {
    const auto scale = [&](int64_t n, int64_t length) {
      return Layout::packed(scale_dims(scales, batch, n, length)).tensor(scale_data, FA3_DTYPE_FP32);
    };
    params.q_scale = scale(heads, seqlen);
    params.k_scale = params.v_scale = scale(kv_heads, seqlen_k);
    if (v == VForm::tiles)
      params.v = Layout::packed({batch, kv_heads, v_groups(), v_dim(), v_tile_keys}).tensor(v_data, dtype);
    if (two_level) params.flags = FA3_FLAG_TWO_LEVEL;
  }
  return params;
}

fa3_backward_params Point::backward_params(const fa3_forward_params& forward, void* dout, void* dq, void* dk,
                                           void* dv) const {
  fa3_backward_params params = tools::backward_params();
  params.q = params.dq = forward.q;
  params.k = params.dk = forward.k;
  params.v = params.dv = forward.v;
  params.o = params.dout = forward.o;
  params.lse = forward.lse;
  params.dout.data = dout, params.dq.data = dq, params.dk.data = dk, params.dv.data = dv;
  params.mask = forward.mask;
  if (!library_chooses()) params.kernel = kernel.c_str();
  if (deterministic) params.flags = FA3_FLAG_DETERMINISTIC;
  return params;
}

}  // namespace fa3::bench
