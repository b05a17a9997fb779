// Makes the cases of served_backward.cpp, computes what is right, and judges.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <thread>

#include "compared.h"
#include "half.h"
#include "memory.h"
#include "random.h"
#include "served_backward.h"

namespace fa3::test {

using tools::from_bf16, tools::to_bf16, tools::Random;

PackedTensor::PackedTensor(int64_t rows, int64_t heads, int64_t head_dim)
    : rows(rows), heads(heads), head_dim(head_dim), all(size_t(all_rows() * heads * head_dim), poison16) {}

float ServedBackward::scale() const { return float(1 / std::sqrt(double(head_dim))); }
int32_t ServedBackward::tiles() const {
  return first_tile_of_sequence(int32_t(PackedTensor::entries * q.rows), int32_t(sequences.size()), row.Br);
}
int32_t ServedBackward::first_tile(size_t n) const {
  const Sequence& s = sequences[n];
  return first_tile_of_sequence(int32_t(s.q_batch * q.rows) + s.q_row, int32_t(n), row.Br);
}

namespace {

// Of a head of a sequence, in numbers of this type, row by row.
template <class Number>
struct Matrix {
  int64_t rows, columns;
  std::vector<Number> all;

  Matrix(int64_t rows, int64_t columns) : rows(rows), columns(columns), all(size_t(rows * columns)) {}
  Matrix(const PackedTensor& from, int64_t rows, int64_t entry, int64_t row, int64_t head)
      : Matrix(rows, from.head_dim) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < columns; ++c) all[size_t(i * columns + c)] = from_bf16(from.at(entry, row, i, head)[c]);
  }
  Number* operator[](int64_t row) { return &all[size_t(row * columns)]; }
  const Number* operator[](int64_t row) const { return &all[size_t(row * columns)]; }
};
template <class Number>
Matrix<Number> of_queries(const PackedTensor& from, const Sequence& s, int64_t head) {
  return {from, s.seqlen_q, s.q_batch, s.q_row, head};
}
template <class Number>
Matrix<Number> of_keys(const PackedTensor& from, const Sequence& s, int64_t head) {
  return {from, s.seqlen_k, s.k_batch, s.k_row, head};
}

template <class Number>
Number dot(const Number* a, const Number* b, int64_t n) {
  Number sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}
template <class Number>
void add(Number* to, Number factor, const Number* x, int64_t n) {
  for (int64_t c = 0; c < n; ++c) to[c] += factor * x[c];
}

// job(n, head_kv) for all sequences and heads of K and V, on all cores.
template <class Job>
void for_each_head(const ServedBackward& made, const Job& job) {
  const size_t heads = size_t(made.heads_kv), jobs = made.sequences.size() * heads;
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned worker = 0; worker < std::max(1u, std::thread::hardware_concurrency()); ++worker)
    threads.emplace_back([&] {
      for (size_t n; (n = next++) < jobs;) job(n / heads, int(n % heads));
    });
  for (std::thread& thread : threads) thread.join();
}

constexpr double log2_e = 1.4426950408889634;

// LSE and D of a head's rows, in float64.
void prepare(ServedBackward& made, size_t n, int head) {
  const Sequence& s = made.sequences[n];
  const int64_t d = made.head_dim, rows = tiles_of_sequence(s.seqlen_q, made.row.Br) * made.row.Br;
  const int head_kv = head / made.heads_per_kv();
  const auto q = of_queries<double>(made.q, s, head), dout = of_queries<double>(made.dout, s, head);
  const auto k = of_keys<double>(made.k, s, head_kv), v = of_keys<double>(made.v, s, head_kv);
  for (int64_t i = 0; i < rows; ++i) {
    float& lse_log2 = made.lse_log2[made.number_at(n, i, head)];
    float& delta = made.delta[made.number_at(n, i, head)];
    lse_log2 = INFINITY, delta = 0;
    const Keys keys = i < s.seqlen_q ? made.visible(s).of(int32_t(i)) : Keys{0, 0};
    if (keys.none()) continue;
    std::vector<double> scores;
    for (int32_t j = keys.begin; j < keys.end; ++j) scores.push_back(dot(q[i], k[j], d) * made.scale());
    const double m = *std::max_element(scores.begin(), scores.end());
    double sum = 0, weighted = 0;
    for (int32_t j = keys.begin; j < keys.end; ++j) {
      const double p = std::exp(scores[size_t(j - keys.begin)] - m);
      sum += p, weighted += p * dot(dout[i], v[j], d);
    }
    lse_log2 = float((m + std::log(sum)) * log2_e), delta = float(weighted / sum);
  }
}

void fill(ServedBackward& made, uint64_t seed) {
  uint64_t row = 0;
  const auto write = [&](PackedTensor& to, int64_t entry, int64_t first, int64_t count) {
    std::vector<float> numbers(size_t(to.heads * to.head_dim));
    for (int64_t i = 0; i < count; ++i) {
      tools::normal(seed, row++ * numbers.size(), numbers.data(), numbers.size());
      std::transform(numbers.begin(), numbers.end(), to.at(entry, first, i, 0), to_bf16);
    }
  };
  for (size_t n = 0; n < made.sequences.size(); ++n) {
    const Sequence& s = made.sequences[n];
    if (made.poisoned[n]) continue;
    for (PackedTensor* to : {&made.q, &made.dout}) write(*to, s.q_batch, s.q_row, s.seqlen_q);
    for (PackedTensor* to : {&made.k, &made.v}) write(*to, s.k_batch, s.k_row, s.seqlen_k);
  }
  made.lse_log2.assign(size_t(made.heads * made.tiles() * made.row.Br), std::bit_cast<float>(poison32));
  made.delta = made.lse_log2;
  for_each_head(made, [&](size_t n, int head_kv) {
    for (int head = 0; head < made.heads_per_kv(); ++head) prepare(made, n, head_kv * made.heads_per_kv() + head);
  });
}

// The gradients of a head of K and V, and of the query heads that read it, in numbers of this type; P, dS and gradients
// are rounded. way: which of Ways to write.
template <class Number, class Round>
void differentiate(const ServedBackward& made, size_t n, int head_kv, Round round,
                   std::vector<float> ExpectedGradients::Ways::*way, ExpectedGradients& to) {
  const Sequence& s = made.sequences[n];
  const int64_t d = made.head_dim;
  const Number scale = made.scale(), scale_log2 = Number(double(made.scale()) * log2_e);
  const auto k = of_keys<Number>(made.k, s, head_kv), v = of_keys<Number>(made.v, s, head_kv);
  Matrix<Number> dk(s.seqlen_k, d), dv(s.seqlen_k, d);
  const auto write = [&](const PackedTensor& tensor, ExpectedGradients::Ways& ways, const uint16_t* at, const Number* x,
                         Number factor) {
    float* const out = (ways.*way).data() + (at - tensor.all.data());
    for (int64_t c = 0; c < d; ++c) out[c] = float(round(x[c] * factor));
  };
  for (int reader = 0; reader < made.heads_per_kv(); ++reader) {
    const int head = head_kv * made.heads_per_kv() + reader;
    const auto q = of_queries<Number>(made.q, s, head), dout = of_queries<Number>(made.dout, s, head);
    for (int64_t i = 0; i < s.seqlen_q; ++i) {
      const Keys keys = made.visible(s).of(int32_t(i));
      const Number lse_log2 = made.lse_log2[made.number_at(n, i, head)];
      const Number delta = made.delta[made.number_at(n, i, head)];
      std::vector<Number> dq(static_cast<size_t>(d));
      for (int32_t j = keys.begin; j < keys.end; ++j) {
        const Number p = round(std::exp2(dot(q[i], k[j], d) * scale_log2 - lse_log2));
        const Number ds = round(p * (dot(dout[i], v[j], d) - delta));
        add(dv[j], p, dout[i], d);
        add(dk[j], ds, q[i], d);
        add(dq.data(), ds, k[j], d);
      }
      write(made.dq, to.dq, made.dq.at(s.q_batch, s.q_row, i, head), dq.data(), scale);
    }
  }
  for (int64_t j = 0; j < s.seqlen_k; ++j) {
    write(made.dk, to.dk, made.dk.at(s.k_batch, s.k_row, j, head_kv), dk[j], scale);
    write(made.dv, to.dv, made.dv.at(s.k_batch, s.k_row, j, head_kv), dv[j], 1);
  }
}

// What became of a tensor of gradients: its rows are judged one after the other, then all that is around them.
class Judged {
 public:
  Judged(const char* name, const PackedTensor& tensor, const ExpectedGradients::Ways& expected)
      : name_(name), tensor_(tensor), expected_(expected), is_row_(tensor.all.size(), false) {}

  // A row that may have any contents.
  void pass(const uint16_t* at) { std::fill_n(is_row_.begin() + (at - tensor_.all.data()), tensor_.head_dim, true); }
  void judge(const uint16_t* at, bool has_pairs) {
    pass(at);
    const auto first = size_t(at - tensor_.all.data());
    for (size_t c = first; c < first + size_t(tensor_.head_dim); ++c) {
      const float x = from_bf16(tensor_.all[c]);
      if (has_pairs ? !std::isfinite(x) : x != 0) note(c, "is " + std::to_string(x));
      if (has_pairs) compared_.add(x, expected_.right[c], expected_.plain[c]);
    }
  }
  std::string verdict() {
    for (size_t c = 0; c < is_row_.size(); ++c)
      if (!is_row_[c] && tensor_.all[c] != poison16) note(c, "was overwritten");
    // Of rows that see one key, dS is what float32 leaves of two numbers of size sqrt(head_dim) that are the same.
    return wrong_.empty() ? compared_.verdict(name_, 0x1p-8, 0x1p-20) : wrong_;
  }

 private:
  void note(size_t at, const std::string& what) {
    if (!wrong_.empty()) return;
    const auto n = int64_t(at) / tensor_.head_dim;
    wrong_ = std::string(name_) + " row " + std::to_string(n / tensor_.heads - PackedTensor::around) + " head " +
             std::to_string(n % tensor_.heads) + " " + what;
  }

  const char* name_;
  const PackedTensor& tensor_;
  const ExpectedGradients::Ways& expected_;
  std::vector<bool> is_row_;
  Compared compared_;
  std::string wrong_;
};

}  // namespace

ServedBackward packed_gradients(const BackwardRow& row, int heads_kv, const std::vector<std::array<int, 2>>& lengths,
                                Bounds bounds, uint64_t seed) {
  Random random(seed);
  ServedBackward made{.row = row, .heads = 4, .heads_kv = heads_kv};
  int32_t q_end[PackedTensor::entries] = {}, k_end[PackedTensor::entries] = {};
  for (const auto& [seqlen_q, seqlen_k] : lengths) {
    const int32_t entry = made.sequences.size() < lengths.size() / 2 ? 0 : 1;
    const auto q_row = int32_t(q_end[entry] + random.between(0, 3));
    const auto k_row = int32_t(k_end[entry] + random.between(0, 3));
    const int32_t diagonal = seqlen_k - seqlen_q;
    made.sequences.push_back(
        {q_row, entry, k_row, entry, seqlen_q, seqlen_k, bounds.left_of(diagonal), bounds.right_of(diagonal)});
    made.poisoned.push_back(random.chance(0.15));
    q_end[entry] = q_row + seqlen_q, k_end[entry] = k_row + seqlen_k;
  }
  const int64_t rows_q = std::max(q_end[0], q_end[1]) + 1, rows_k = std::max(k_end[0], k_end[1]) + 1;
  made.q = PackedTensor(rows_q, made.heads, made.head_dim), made.k = PackedTensor(rows_k, heads_kv, made.head_dim);
  made.dout = made.dq = made.q, made.v = made.dk = made.dv = made.k;
  fill(made, seed);
  return made;
}

ExpectedGradients expect(const ServedBackward& made) {
  ExpectedGradients to;
  for (auto& [ways, tensor] : {std::pair{&to.dq, &made.dq}, {&to.dk, &made.dk}, {&to.dv, &made.dv}})
    ways->right.assign(tensor->all.size(), NAN), ways->plain = ways->right;
  for_each_head(made, [&](size_t n, int head_kv) {
    if (made.poisoned[n]) return;
    using Ways = ExpectedGradients::Ways;
    differentiate<double>(made, n, head_kv, [](double x) { return x; }, &Ways::right, to);
    differentiate<float>(made, n, head_kv, [](float x) { return from_bf16(to_bf16(x)); }, &Ways::plain, to);
  });
  return to;
}

std::string verify(const ServedBackward& made, const ExpectedGradients& expected) {
  Judged dq("dq", made.dq, expected.dq), dk("dk", made.dk, expected.dk), dv("dv", made.dv, expected.dv);
  for (size_t n = 0; n < made.sequences.size(); ++n) {
    const Sequence& s = made.sequences[n];
    const auto judge = [&](Judged& judged, const uint16_t* at, bool has_pairs) {
      if (made.poisoned[n]) judged.pass(at);
      else judged.judge(at, has_pairs);
    };
    std::vector<bool> is_seen(size_t(s.seqlen_k), false);
    for (int32_t i = 0; i < s.seqlen_q; ++i) {
      const Keys keys = made.visible(s).of(i);
      for (int32_t j = keys.begin; j < keys.end; ++j) is_seen[size_t(j)] = true;
      for (int head = 0; head < made.heads; ++head) judge(dq, made.dq.at(s.q_batch, s.q_row, i, head), !keys.none());
    }
    for (int32_t j = 0; j < s.seqlen_k; ++j)
      for (int head = 0; head < made.heads_kv; ++head) {
        judge(dk, made.dk.at(s.k_batch, s.k_row, j, head), is_seen[size_t(j)]);
        judge(dv, made.dv.at(s.k_batch, s.k_row, j, head), is_seen[size_t(j)]);
      }
  }
  for (Judged* judged : {&dq, &dk, &dv})
    if (const std::string bad = judged->verdict(); !bad.empty()) return bad;
  return "";
}

}  // namespace fa3::test
