// Makes the cases of planned_backward.cpp, computes what is right, and judges.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "../compared.h"
#include "half.h"
#include "parallel.h"
#include "params.h"
#include "random.h"
#include "planned_backward.h"

namespace fa3::test {

namespace {

void must(fa3_status status, const char* call) {
  if (status != FA3_OK) throw std::runtime_error(std::string(call) + ": " + fa3_last_error_message());
}

std::vector<void*> bases_of(const std::vector<Image>& images) {
  std::vector<void*> bases;
  for (const Image& image : images) bases.push_back(const_cast<unsigned char*>(image.data()));
  return bases;
}

}  // namespace

PlannedProblem random_for_kernels(uint64_t seed, double budget, Trait transform) {
  PlannedProblem p = random_planned_backward(seed, {.budget = budget, .most_heads = 12}, transform);
  tools::Random random(tools::mix(seed, 21));
  PlannedProblem::Lengths lengths = p.lengths;
  const int64_t most_keys = random.chance(0.3) ? 128 : 1500;
  for (auto& pair : lengths) pair = {std::min<int64_t>(pair[0], 700), std::min<int64_t>(pair[1], most_keys)};
  if (lengths.size() > 40) lengths.resize(40);
  if (!p.packed_q && !p.packed_k && !p.uses_q && !p.has_sinks && p.mask < FA3_MASK_WINDOW) p.uses_k = true;
  p.kernel = nullptr;
  make_room(p, lengths, seed);
  return p;
}

namespace {

// The elements of a row of a tensor, as numbers.
std::vector<float> row_at(const PlannedGradients& g, const View& view, int64_t position, int64_t count) {
  std::vector<float> row(static_cast<size_t>(count));
  for (size_t c = 0; c < row.size(); ++c) row[c] = view.read(g.forward.images, position + int64_t(c));
  return row;
}
float dot(const std::vector<float>& a, const std::vector<float>& b) {
  float sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}
void add(float* to, float factor, const std::vector<float>& row) {
  for (size_t c = 0; c < row.size(); ++c) to[c] += factor * row[c];
}

// Where a row begins among the elements of dq, dk or dv, in the order of their dims.
size_t number_of(const View& view, int64_t entry, int64_t row, int64_t head) {
  const std::vector<int64_t>& dim = view.layout.dim;
  return size_t(((entry * dim[1] + row) * dim[2] + head) * dim[3]);
}

// Plain float32 code: the gradients of a head of K and V of a sequence and of the query heads that read it, with P, dS
// and the gradients rounded.
class Plain {
 public:
  Plain(const PlannedGradients& g, ExpectedGradients& to) : g_(g), p_(g.forward.problem), to_(to) {}

  void run(int64_t sequence, int64_t head_kv) const {
    const PlannedSequence s = p_.sequence(sequence);
    std::vector<std::vector<float>> k, v;
    for (int64_t j = 0; j < s.keys; ++j) {
      k.push_back(row_at(g_, g_.forward.k, g_.forward.key_position(g_.forward.k, s, j, head_kv), p_.head_dim));
      v.push_back(row_at(g_, g_.forward.v, g_.forward.key_position(g_.forward.v, s, j, head_kv), p_.head_dim_v));
    }
    std::vector<float> dk(k.size() * size_t(p_.head_dim)), dv(k.size() * size_t(p_.head_dim_v));
    for (int64_t h = head_kv * p_.group(); h < (head_kv + 1) * p_.group(); ++h)
      for (int64_t i = 0; i < s.queries; ++i) run_row(s, i, h, head_kv, k, v, dk, dv);
    for (int64_t j = 0; j < s.keys; ++j) {
      const RowPlace at = p_.place_of(s, j);
      write(1, number_of(g_.dk, at.entry, at.row, head_kv), &dk[size_t(j * p_.head_dim)], p_.head_dim, scale());
      write(2, number_of(g_.dv, at.entry, at.row, head_kv), &dv[size_t(j * p_.head_dim_v)], p_.head_dim_v, 1);
    }
  }

 private:
  float scale() const { return float(p_.scale()); }
  float rounded(float x) const {
    return p_.dtype == FA3_DTYPE_BF16 ? tools::from_bf16(tools::to_bf16(x)) : tools::from_fp16(tools::to_fp16(x));
  }
  // Softcap's derivative is fp16 in the kernels, whatever the dtype is.
  float rounded_slope(float score) const {
    return p_.softcap > 0 ? tools::from_fp16(tools::to_fp16(p_.slope_of_cap(score))) : 1;
  }
  // With FA3_FLAG_CENTERED_K rounding of dS is to meet no more than that of a key in dQ.
  std::vector<float> without_mean(std::vector<float> key, int64_t head_kv) const {
    for (size_t c = 0; c < key.size(); ++c) key[c] -= p_.key_mean(head_kv, int64_t(c));
    return key;
  }
  void write(size_t which, size_t number, const float* from, int64_t count, float factor) const {
    const bool is_fp32 = g_.dq.dtype == FA3_DTYPE_FP32;
    for (int64_t c = 0; c < count; ++c)
      to_.of[which].plain[number + size_t(c)] = is_fp32 ? from[c] * factor : rounded(from[c] * factor);
  }
  void must_be_right(size_t which, size_t number, int64_t count) const {
    std::fill_n(to_.of[which].must.begin() + int64_t(number), count, Must::be_right);
  }

  void run_row(const PlannedSequence& s, int64_t i, int64_t h, int64_t head_kv,
               const std::vector<std::vector<float>>& k, const std::vector<std::vector<float>>& v,
               std::vector<float>& dk, std::vector<float>& dv) const {
    const PlannedCase& made = g_.forward;
    std::vector<float> q, dout, dq(static_cast<size_t>(p_.head_dim));
    float lse = 0, delta = 0;
    for (int64_t j = 0; j < s.keys; ++j) {
      if (!p_.sees(s, i, j)) continue;
      if (q.empty()) {
        q = row_at(g_, made.q, made.query_position(made.q, s, i, h), p_.head_dim);
        dout = row_at(g_, g_.dout, made.query_position(g_.dout, s, i, h), p_.head_dim_v);
        delta = dot(dout, row_at(g_, made.o, made.query_position(made.o, s, i, h), p_.head_dim_v));
        if (g_.dlse.image >= 0) delta -= g_.dlse.read(made.images, made.query_position(g_.dlse, s, i, h));
        lse = made.lse.read(made.images, made.query_position(made.lse, s, i, h));
      }
      const float score = dot(q, k[size_t(j)]) * scale(), exact = std::exp(p_.transformed(score, s, i, h, j) - lse);
      const float weight = rounded(exact), sloped = weight * rounded_slope(score);
      const float ds = rounded(sloped * (dot(dout, v[size_t(j)]) - delta));
      add(dq.data(), ds, p_.centered_k ? without_mean(k[size_t(j)], head_kv) : k[size_t(j)]);
      add(&dk[size_t(j * p_.head_dim)], ds, q);
      add(&dv[size_t(j * p_.head_dim_v)], weight, dout);
      const RowPlace at = p_.place_of(s, j);
      must_be_right(1, number_of(g_.dk, at.entry, at.row, head_kv), p_.head_dim);
      must_be_right(2, number_of(g_.dv, at.entry, at.row, head_kv), p_.head_dim_v);
    }
    if (q.empty()) return;
    const size_t number = number_of(g_.dq, s.entry_q, s.first_query + i, h);
    write(0, number, dq.data(), p_.head_dim, scale());
    must_be_right(0, number, p_.head_dim);
  }

  const PlannedGradients& g_;
  const PlannedProblem& p_;
  ExpectedGradients& to_;
};

// Where the reference writes and plain code has nothing, gradients are 0, or of a poisoned sequence.
void find_out(ExpectedGradient& of, const std::vector<float>& untouched) {
  for (size_t n = 0; n < of.right.size(); ++n) {
    if (of.must[n] == Must::be_right) continue;
    const bool stays = std::memcmp(&of.right[n], &untouched[n], sizeof(float)) == 0;
    of.must[n] = stays ? Must::stay : of.right[n] == 0 ? Must::be_zero : Must::be_anything;
  }
}

}  // namespace

ExpectedGradients expect_rounded(const PlannedGradients& g) {
  const PlannedProblem& p = g.forward.problem;
  ExpectedGradients to;
  const View* const views[] = {&g.dq, &g.dk, &g.dv};
  fa3_backward_params call = g.params(bases_of(g.forward.images));
  call.flags &= ~uint64_t{FA3_FLAG_ACCUMULATE};
  fa3_tensor* const tensors[] = {&call.dq, &call.dk, &call.dv};
  std::vector<float> untouched;
  for (size_t n = 0; n < 3; ++n) {
    const auto count = size_t(views[n]->layout.count());
    float poison;
    std::memcpy(&poison, &poison32, sizeof poison);
    to.of[n].right.assign(count, 0), to.of[n].plain.assign(count, 0), to.of[n].must.assign(count, Must::stay);
    for (float& x : to.of[n].right) std::memcpy(&x, &poison, sizeof x);
    if (untouched.size() < count) untouched = to.of[n].right;
    tensors[n]->data = to.of[n].right.data(), tensors[n]->dtype = FA3_DTYPE_FP32;
    must(fa3_tensor_pack(tensors[n]), "fa3_tensor_pack");
  }
  if (g.dsinks.image >= 0) {
    to.dsinks.resize(size_t(p.heads));
    call.dsinks.data = to.dsinks.data(), call.dsinks.stride[0] = 1;
  }
  // Where o is rounded, dS does not sum up to 0 as it should, and centered keys take that off, too.
  std::vector<float> exact_o;
  if (p.centered_k) {
    fa3_forward_params forward = g.forward.params(bases_of(g.forward.images));
    exact_o.resize(size_t(g.forward.o.layout.count()));
    forward.o.data = exact_o.data(), forward.o.dtype = FA3_DTYPE_FP32, forward.lse = {};
    must(fa3_tensor_pack(&forward.o), "fa3_tensor_pack");
    must(fa3_reference_forward(&forward, 0), "fa3_reference_forward");
    call.o = forward.o;
  }
  must(fa3_reference_backward(&call, 0), "fa3_reference_backward");
  const Plain plain(g, to);
  tools::parallel_for(p.batch * p.heads_kv, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      if (!p.poisoned[size_t(n / p.heads_kv)]) plain.run(n / p.heads_kv, n % p.heads_kv);
  });
  for (ExpectedGradient& of : to.of) find_out(of, untouched);
  return to;
}

namespace {

// Of rows that see one key, dS is what float32 leaves of two sums of head_dim_v products that are the same.
double noise_of_ds(const PlannedProblem& p) { return 0x1p-23 * std::sqrt(double(p.head_dim_v)); }
// So many of them may add up to a row of dk.
int64_t most_rows(const PlannedProblem& p) {
  int64_t most = 1;
  for (int64_t b = 0; b < p.batch; ++b) most = std::max(most, p.sequence(b).queries);
  return most * p.group();
}
double relative_noise(const PlannedGradients& g) {
  const PlannedCase& made = g.forward;
  if (made.problem.softcap == 0 && !made.problem.has_slopes) return 0;
  double largest = 0;
  made.lse.layout.for_each([&](int64_t at) {
    const double lse = std::abs(made.lse.read(made.images, at));
    if (std::isfinite(lse)) largest = std::max(largest, lse);
  });
  return score_noise(largest);
}

}  // namespace

std::string verify(const PlannedGradients& g, const ExpectedGradients& expected) {
  const View* const views[] = {&g.dq, &g.dk, &g.dv};
  const char* const names[] = {"dq", "dk", "dv"};
  const PlannedProblem& p = g.forward.problem;
  const bool bf16 = p.dtype == FA3_DTYPE_BF16;
  for (size_t i = 0; i < 3; ++i) {
    const View& view = *views[i];
    const ExpectedGradient& of = expected.of[i];
    Compared compared;
    std::string wrong;
    size_t n = 0;
    view.layout.for_each([&](int64_t at) {
      const float x = view.read(g.forward.images, at), before = g.adds ? PlannedGradients::before(at) : 0;
      const Must must = of.must[n];
      if (must == Must::be_right) compared.add(x - before, of.right[n], of.plain[n]);
      const bool is_wrong = must == Must::stay      ? !(g.adds ? x == before : view.is_poison(g.forward.images, at))
                            : must == Must::be_zero ? x != before
                                                    : must == Must::be_right && !std::isfinite(x);
      if (is_wrong && wrong.empty())
        wrong = std::string(names[i]) + " element " + std::to_string(n) + " is " + std::to_string(x) +
                (must == Must::stay ? ", was overwritten" : must == Must::be_zero ? ", must be " : "") +
                (must == Must::be_zero ? std::to_string(before) : "");
      ++n;
    });
    if (!wrong.empty()) return wrong;
    // A sum with what was there is rounded to float32, and so is the difference from it here.
    const double noise = noise_of_ds(p) * (i == 1 ? std::sqrt(double(most_rows(p))) : 1) + (g.adds ? 0x1p-22 : 0);
    wrong = compared.verdict(names[i], bf16 ? 0x1p-8 : 0x1p-11, noise, relative_noise(g));
    if (!wrong.empty()) return wrong;
  }
  for (size_t h = 0; h < expected.dsinks.size(); ++h) {
    const float x = g.dsinks.read(g.forward.images, int64_t(h) * g.dsinks.layout.stride[0]), right = expected.dsinks[h];
    if (std::isnan(right)) continue;  // of a poisoned sequence
    if (!(std::fabs(x - right) <= 1e-3f + 1e-4f * std::fabs(right)))
      return "dsinks " + std::to_string(h) + " is " + std::to_string(x) + ", must be " + std::to_string(right);
  }
  return check_around(g);
}

std::string check_around(const PlannedGradients& g) {
  for (const View* output : g.outputs()) {
    const View& view = *output;
    std::vector<Image> images = g.forward.images;
    view.layout.for_each([&](int64_t at) { view.write_poison(images, at); });
    std::vector<char> none(elements_of(images, view).size(), false);
    if (const std::string bad = check_poison(images, view, none, "a gradient"); !bad.empty()) return bad;
  }
  return "";
}

}  // namespace fa3::test
