#include "planned_gradients.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "half.h"
#include "random.h"

namespace fa3::test {

using tools::Layout;

namespace {

// Calls body(query, head, sees) for all queries in use of all sequences that count; sees: any key.
template <class Body>
void for_each_row(const PlannedProblem& p, const Body& body) {
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.poisoned[size_t(b)]) continue;
    const PlannedSequence s = p.sequence(b);
    for (int64_t i = 0; i < s.queries; ++i) {
      const bool sees = sees_any(p, s, i);
      for (int64_t h = 0; h < p.heads; ++h) body(s, i, h, sees);
    }
  }
}

std::vector<double> read_row(const PlannedCase& made, const View& view, int64_t position) {
  std::vector<double> row;
  for (int64_t c = 0; c < view.layout.dim[3]; ++c) row.push_back(view.read(made.images, position + c));
  return row;
}
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

using Of = PlannedExpectedGradients::Of;

void set_row(Of& of, int64_t position, int64_t columns, PlannedExpectedGradients::What what) {
  std::fill_n(of.what.begin() + position, columns, what);
  std::fill_n(of.right.begin() + position, columns, 0.0);
}
void add(Of& of, int64_t position, double factor, const std::vector<double>& row) {
  for (size_t c = 0; c < row.size(); ++c) of.right[size_t(position) + c] += factor * row[c];
}

// A query of a head: what it adds to all gradients.
void differentiate(const PlannedGradients& made, const PlannedSequence& s, int64_t i, int64_t h, bool sees,
                   PlannedExpectedGradients& to) {
  const PlannedCase& m = made.forward;
  const PlannedProblem& p = m.problem;
  const bool has_sink = made.dsinks.image >= 0;
  const int64_t sink_at = has_sink ? made.dsinks.layout.position(&h) : 0;
  const double sink = has_sink ? p.sinks[size_t(h)] : -INFINITY;
  const double dlse = made.dlse.image >= 0 && (sees || has_sink)
                          ? made.dlse.read(m.images, m.query_position(made.dlse, s, i, h))
                          : 0;
  if (!sees) {
    if (has_sink && sink != -INFINITY) to.dsinks.right[size_t(sink_at)] += dlse;
    return;
  }
  const auto q = read_row(m, m.q, m.query_position(m.q, s, i, h));
  const auto o = read_row(m, m.o, m.query_position(m.o, s, i, h));
  const auto dout = read_row(m, made.dout, m.query_position(made.dout, s, i, h));
  const double lse = m.lse.read(m.images, m.query_position(m.lse, s, i, h)), delta = dot(dout, o) - dlse;
  if (has_sink) to.dsinks.right[size_t(sink_at)] -= std::exp(sink - lse) * delta;
  const int64_t group = h / p.group();
  for (int64_t j = 0; j < s.keys; ++j) {
    if (!p.sees(s, i, j)) continue;
    const auto k = read_row(m, m.k, m.key_position(m.k, s, j, group));
    const auto v = read_row(m, m.v, m.key_position(m.v, s, j, group));
    const double score = p.scale() * dot(q, k), weight = std::exp(p.transformed(score, s, i, h, j) - lse);
    const double ds = weight * (dot(dout, v) - delta) * p.slope_of_cap(score) * p.scale();
    add(to.dq, m.query_position(made.dq, s, i, h), ds, k);
    add(to.dk, m.key_position(made.dk, s, j, group), ds, q);
    add(to.dv, m.key_position(made.dv, s, j, group), weight, dout);
  }
}

std::string verify_one(const PlannedCase& made, const View& view, const char* name, const Of& expected, double relative,
                       double absolute) {
  std::vector<char> written = elements_of(made.images, view);
  const int64_t first = view.first / tools::element_bytes(view.dtype);
  std::string wrong;
  view.layout.for_each([&](int64_t at) {
    const auto what = expected.what[size_t(at)];
    const double x = view.read(made.images, at), right = expected.right[size_t(at)];
    written[size_t(first + at)] = what != PlannedExpectedGradients::untouched;
    if (what == PlannedExpectedGradients::anything) written[size_t(first + at)] = !view.is_poison(made.images, at);
    const bool is_near = std::abs(x - right) <= relative * std::abs(right) + absolute;
    const bool is_right = what == PlannedExpectedGradients::zero     ? x == 0
                          : what == PlannedExpectedGradients::number ? is_near
                                                                    : true;
    if (!is_right && wrong.empty())
      wrong = std::string(name) + ": element " + std::to_string(at) + " is " + std::to_string(x) + ", should be " +
              std::to_string(right);
  });
  return wrong.empty() ? check_poison(made.images, view, written, name) : wrong;
}

bool includes(Trait all, Trait one) { return uint32_t(all) & uint32_t(one); }

}  // namespace

PlannedProblem random_planned_backward(uint64_t seed, const PlannedLimits& limits, Trait transform) {
  PlannedProblem p = random_planned(seed, limits);
  tools::Random random(tools::mix(seed, 4));
  if (p.is_e4m3()) p.dtype = FA3_DTYPE_BF16;
  p.e4m3_keys = false;
  p.o_dtype = FA3_DTYPE_NONE, p.v_mean = p.lse_offset = false;
  p.want_lse = true, p.batch_invariant = false;
  p.softcap = includes(transform, Trait::softcap) ? random.pick({0.5f, 2.0f, 5.0f, 15.0f, 30.0f, 50.0f, 1e4f}) : 0;
  p.has_slopes = includes(transform, Trait::alibi), p.slopes_each = p.has_slopes && random.chance(0.5);
  if (p.has_slopes && p.mask == FA3_MASK_CHUNK)
    p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.window_left = p.window_right = 0;
  p.page_size = 0, p.pads_k = p.indexes_cache = false;
  p.packed_k = random.chance(0.7), p.uses_k = random.chance(p.packed_k ? 0.3 : 0.7);
  p.has_sinks = random.chance(0.5) && transform != Trait::centered_k;
  p.centered_k = transform == Trait::centered_k;
  PlannedProblem::Lengths lengths = p.lengths;
  if (!p.packed_k && !p.uses_k) {  // all alike, as nothing says how many are in use
    lengths.resize(std::min<size_t>(lengths.size(), 8));
    for (auto& pair : lengths) pair[1] = std::min<int64_t>(lengths[0][1], 100);
  }
  make_room(p, lengths, random.bits());
  if (random.chance(0.6)) p.poisoned.assign(p.poisoned.size(), false);  // NaN is in the sums of dsinks
  return p;
}

std::array<int64_t, 2> all_rows(const PlannedProblem& p, int64_t b) {
  const auto n = size_t(b);
  return {p.packed_q ? std::min(p.cu_q[n + 1] - p.cu_q[n], p.max_seqlen_q) : p.rows_q,
          p.packed_k ? std::min(p.cu_k[n + 1] - p.cu_k[n], p.max_seqlen_k) : p.rows_k};
}

bool sees_any(const PlannedProblem& p, const PlannedSequence& s, int64_t query) {
  for (int64_t j = 0; j < s.keys; ++j)
    if (p.sees(s, query, j)) return true;
  return false;
}

PlannedGradients::PlannedGradients(const PlannedProblem& chosen, bool with_dlse, bool with_dsinks, fa3_dtype gradients,
                                   bool adds)
    : forward(chosen), adds(adds) {
  const PlannedProblem& p = forward.problem;
  const fa3_dtype dtype = gradients == FA3_DTYPE_NONE ? p.dtype : gradients;
  std::vector<Image>& images = forward.images;
  const auto place = [&](Storage s, fa3_dtype dtype, const Layout& like, int64_t head_dim) {
    s.share_heads = s.share_batch = false;
    return add_view(images, lay_out(s, dtype, like.dim[0], like.dim[1], like.dim[2], head_dim), dtype,
                    p.guard ? 16 * s.shift : 0, p.guard);
  };
  dout = place(p.q, p.output_dtype(), forward.o.layout, p.head_dim_v);
  dq = place(p.o, dtype, forward.q.layout, p.head_dim);
  dk = place(p.v, dtype, forward.k.layout, p.head_dim), dv = place(p.k, dtype, forward.k.layout, p.head_dim_v);
  if (with_dlse) dlse = add_view(images, forward.lse.layout, FA3_DTYPE_FP32, p.guard ? 4 : 0, p.guard);
  if (with_dsinks) {
    Layout layout = Layout::packed({p.heads});
    layout.stride[0] = 1 + p.q.shift % 3;
    dsinks = add_view(images, layout, FA3_DTYPE_FP32, p.guard ? 4 : 0, p.guard);
  }
  std::vector<void*> bases;
  for (Image& image : images) bases.push_back(image.data());
  const fa3_forward_params call = forward.params(bases);
  if (fa3_reference_forward(&call, 0) != FA3_OK) std::abort();

  uint64_t row = 0;
  std::vector<float> numbers(static_cast<size_t>(p.head_dim_v));
  for_each_row(p, [&](const PlannedSequence& s, int64_t i, int64_t h, bool sees) {
    const auto poison = [&](const View& view, int64_t columns) {
      for (int64_t c = 0; c < columns; ++c) view.write_poison(images, forward.query_position(view, s, i, h) + c);
    };
    tools::normal(tools::mix(p.seed, 7), row++ * 256, numbers.data(), numbers.size());
    if (with_dlse && (sees || with_dsinks))
      dlse.write(images, forward.query_position(dlse, s, i, h), numbers[0] + 0.25f);
    if (sees) dout.write_row(images, forward.query_position(dout, s, i, h), numbers, 1);
    else poison(forward.q, p.head_dim), poison(forward.o, p.head_dim_v), poison(forward.lse, 1);
  });
  poison_outputs();
}

fa3_backward_params PlannedGradients::params(const std::vector<void*>& bases) const {
  const PlannedProblem& p = forward.problem;
  const fa3_forward_params f = forward.params(bases);
  fa3_backward_params params = FA3_BACKWARD_PARAMS_INIT;
  const auto tensor = [&](const View& view, bool packed) {
    View t = view;
    if (packed) t.layout.dim.erase(t.layout.dim.begin()), t.layout.stride.erase(t.layout.stride.begin());
    return t.tensor(bases);
  };
  params.q = f.q, params.k = f.k, params.v = f.v, params.o = f.o, params.lse = f.lse;
  params.dout = tensor(dout, p.packed_q), params.dq = tensor(dq, p.packed_q);
  params.dk = tensor(dk, p.packed_k), params.dv = tensor(dv, p.packed_k);
  if (dlse.image >= 0) params.dlse = tensor(dlse, p.packed_q);
  params.sinks = f.sinks;
  if (dsinks.image >= 0) params.dsinks = dsinks.tensor(bases);
  params.mask = f.mask, params.softmax_scale = f.softmax_scale, params.kernel = f.kernel;
  params.window_left = f.window_left, params.window_right = f.window_right;
  params.cu_seqlens_q = f.cu_seqlens_q, params.cu_seqlens_k = f.cu_seqlens_k;
  params.seqused_q = f.seqused_q, params.seqused_k = f.seqused_k;
  params.max_seqlen_q = f.max_seqlen_q, params.max_seqlen_k = f.max_seqlen_k;
  params.softcap = f.softcap, params.alibi_slopes = f.alibi_slopes;
  if (p.centered_k) params.flags |= FA3_FLAG_CENTERED_K;
  if (adds) params.flags |= FA3_FLAG_ACCUMULATE;
  return params;
}

fa3_backward_params PlannedGradients::host_params() {
  std::vector<void*> bases;
  for (Image& image : forward.images) bases.push_back(image.data());
  return params(bases);
}

std::vector<const View*> PlannedGradients::outputs() const {
  std::vector<const View*> views = {&dq, &dk, &dv};
  if (dsinks.image >= 0) views.push_back(&dsinks);
  return views;
}

void PlannedGradients::poison_outputs() {
  for (const View* view : outputs())
    view->layout.for_each([&](int64_t at) {
      if (adds && view != &dsinks) view->write(forward.images, at, before(at));
      else view->write_poison(forward.images, at);
    });
}

PlannedExpectedGradients expect(const PlannedGradients& made) {
  using Expected = PlannedExpectedGradients;
  const PlannedCase& m = made.forward;
  const PlannedProblem& p = m.problem;
  Expected to;
  for (const auto& [of, view] : {std::pair{&to.dq, &made.dq}, {&to.dk, &made.dk}, {&to.dv, &made.dv}}) {
    of->right.assign(size_t(view->layout.extent()), 0);
    of->what.assign(of->right.size(), Expected::untouched);
  }
  bool any_poisoned = false;  // so that NaN may be in sums over all rows
  for (int64_t b = 0; b < p.batch; ++b) {
    const PlannedSequence s = p.sequence(b);
    const auto [queries, keys] = all_rows(p, b);
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t h = 0; h < p.heads; ++h)
        set_row(to.dq, m.query_position(made.dq, s, i, h), p.head_dim, Expected::zero);
    for (int64_t j = 0; j < keys; ++j)
      for (int64_t h = 0; h < p.heads_kv; ++h) {
        set_row(to.dk, m.key_position(made.dk, s, j, h), p.head_dim, Expected::zero);
        set_row(to.dv, m.key_position(made.dv, s, j, h), p.head_dim_v, Expected::zero);
      }
    const auto what = p.poisoned[size_t(b)] ? Expected::anything : Expected::number;
    any_poisoned |= what == Expected::anything && s.queries > 0;
    for (int64_t i = 0; i < s.queries; ++i)
      for (int64_t h = 0; h < p.heads && sees_any(p, s, i); ++h)
        set_row(to.dq, m.query_position(made.dq, s, i, h), p.head_dim, what);
    for (int64_t j = 0; j < s.keys; ++j) {
      bool is_seen = false;
      for (int64_t i = 0; i < s.queries && !is_seen; ++i) is_seen = p.sees(s, i, j);
      for (int64_t h = 0; h < p.heads_kv && is_seen; ++h) {
        set_row(to.dk, m.key_position(made.dk, s, j, h), p.head_dim, what);
        set_row(to.dv, m.key_position(made.dv, s, j, h), p.head_dim_v, what);
      }
    }
  }
  if (made.dsinks.image >= 0) {
    to.dsinks.right.assign(size_t(made.dsinks.layout.extent()), 0);
    to.dsinks.what.assign(to.dsinks.right.size(), any_poisoned ? Expected::anything : Expected::number);
  }
  for_each_row(p, [&](const PlannedSequence& s, int64_t i, int64_t h, bool sees) {
    differentiate(made, s, i, h, sees, to);
  });
  return to;
}

std::string verify(const PlannedGradients& made, const PlannedExpectedGradients& expected, double relative,
                   double absolute) {
  const PlannedCase& m = made.forward;
  const std::tuple<const View*, const char*, const Of*> all[] = {
      {&made.dq, "dq", &expected.dq}, {&made.dk, "dk", &expected.dk}, {&made.dv, "dv", &expected.dv}};
  for (const auto& [view, name, of] : all)
    if (std::string bad = verify_one(m, *view, name, *of, relative, absolute); !bad.empty()) return bad;
  if (made.dsinks.image < 0) return "";
  return verify_one(m, made.dsinks, "dsinks", expected.dsinks, relative, absolute);
}

}  // namespace fa3::test
