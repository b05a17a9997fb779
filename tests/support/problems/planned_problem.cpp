#include "planned_problem.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "half.h"
#include "ptx/plan/packing.h"
#include "random.h"

namespace fa3::test {

using tools::Random;

namespace {

constexpr int64_t most_gap = 5, most_padding = 20, most_start = 3;  // rows

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
// Rounded down, also below 0.
int64_t chunk_of(int64_t position, int64_t size) {
  return position >= 0 ? position / size : -divide_up(-position, size);
}

template <class T>
void shuffle(std::vector<T>& all, Random& random) {
  for (size_t n = all.size(); n > 1; --n) std::swap(all[n - 1], all[size_t(random.between(0, int64_t(n) - 1))]);
}

int64_t longest(const PlannedProblem::Lengths& lengths, size_t which) {
  int64_t most = 0;
  for (const auto& pair : lengths) most = std::max(most, pair[which]);
  return most;
}

int64_t sum(const PlannedProblem::Lengths& lengths, size_t which) {
  int64_t all = 0;
  for (const auto& pair : lengths) all += pair[which];
  return all;
}

}  // namespace

double PlannedProblem::scale() const {
  return softmax_scale != 0 ? softmax_scale : 1 / std::sqrt(double(score_columns()));
}

int64_t PlannedProblem::most_keys() const {
  const int64_t rows = page_size ? pages_each * page_size : rows_k;
  return max_seqlen_k ? std::min<int64_t>(rows, max_seqlen_k) : rows;
}

PlannedSequence PlannedProblem::sequence(int64_t b) const {
  const auto n = size_t(b);
  PlannedSequence s{b, rows_q, most_keys(), packed_q ? 0 : b, 0, 0};
  if (packed_q) s.first_query = cu_q[n], s.queries = std::min(cu_q[n + 1] - cu_q[n], max_seqlen_q);
  if (uses_q) s.queries = std::min<int64_t>(s.queries, used_q[n]);
  if (packed_k) s.keys = std::min(cu_k[n + 1] - cu_k[n], max_seqlen_k);
  if (uses_k) s.keys = std::min<int64_t>(s.keys, used_k[n]);
  if (pads_k) s.padding = std::min<int64_t>(leftpad_k[n], s.keys);
  s.keys -= s.padding;
  return s;
}

RowPlace PlannedProblem::place_of(const PlannedSequence& s, int64_t key) const {
  const int64_t row = s.padding + key;
  if (packed_k) return {0, cu_k[size_t(s.number)] + row};
  if (page_size) return {page_table[size_t(s.number * pages_each + row / page_size)], row % page_size};
  return {indexes_cache ? cache_batch_idx[size_t(s.number)] : s.number, row};
}

bool PlannedProblem::sees(const PlannedSequence& s, int64_t query, int64_t key) const {
  const int64_t position = query + s.keys - s.queries;
  switch (mask) {
    case FA3_MASK_CAUSAL_TOP_LEFT: return key <= query;
    case FA3_MASK_CAUSAL_BOTTOM_RIGHT: return key <= position;
    case FA3_MASK_WINDOW:
      return (window_left < 0 || key >= position - window_left) && (window_right < 0 || key <= position + window_right);
    case FA3_MASK_CHUNK:
      return chunk_of(position, window_left) == chunk_of(key, window_left) && (window_right < 0 || key <= position);
    default: return true;
  }
}

PlannedProblem::Range PlannedProblem::keys_near(const PlannedSequence& s) const {
  Range seen{s.keys, 0};
  for (int64_t i = 0; i < s.queries; ++i)
    for (int64_t j = 0; j < s.keys; ++j)
      if (sees(s, i, j)) seen = {std::min(seen.begin, j), std::max(seen.end, j + 1)};
  if (seen.begin >= seen.end) return {0, 0};
  return {std::max<int64_t>(seen.begin - 127, 0), std::min(seen.end + 512, s.keys)};
}

std::string PlannedProblem::describe() const {
  constexpr const char* masks[] = {"full", "top-left", "bottom-right", "window", "chunk"};
  char text[320];
  std::snprintf(text, sizeof text,
                "%s %s(%d %d) batch=%lld heads=%lld/%lld head_dim=%lld/%lld scale=%.4g%s%s%s%s%s%s%s%s%s page=%lld "
                "max=%d/%d",
                tools::dtype_name(dtype), masks[mask], window_left, window_right, (long long)batch, (long long)heads,
                (long long)heads_kv, (long long)head_dim, (long long)head_dim_v, scale(), packed_q ? " cu_q" : "",
                packed_k ? " cu_k" : "", uses_q ? " used_q" : "", uses_k ? " used_k" : "", pads_k ? " leftpad" : "",
                indexes_cache ? " cache-idx" : "", has_sinks ? " sinks" : "", want_lse ? "" : " no-lse",
                batch_invariant ? " invariant" : "", (long long)page_size, max_seqlen_q, max_seqlen_k);
  std::string result = text;
  if (softcap > 0) result += " softcap=" + std::to_string(softcap);
  if (centered_k) result += " centered";
  if (k_mean != 0) result += " k-mean=" + std::to_string(k_mean);
  if (has_slopes) result += slopes_each ? " slopes of sequences" : " slopes";
  result += test::describe("q", q) + test::describe("k", k) + test::describe("v", v) + test::describe("o", o);
  if (want_lse) result += test::describe("lse", lse);
  if (is_e4m3()) {
    const auto scales = [](Scales of) { return of == Scales::head ? "head" : "tensor"; };
    result += std::string(" o-dtype=") + tools::dtype_name(output_dtype()) + " scales(q " + scales(q_scales) + " k " +
              scales(k_scales) + " v " + scales(v_scales) + ")" + (v_mean ? " v-mean" : "") +
              (lse_offset ? " lse-offset" : "");
  }
  if (!is_e4m3() && o_dtype != FA3_DTYPE_NONE) result += std::string(" o-dtype=") + tools::dtype_name(o_dtype);
  if (e4m3_keys)
    result += std::string(" over e4m3, scales of ") + (k_scales == Scales::head ? "heads" : "the tensor") + " and " +
              (v_scales == Scales::head ? "heads" : "the tensor");
  if (has_qv) result += " qv";
  if (e4m3_latent) result += one_buffer ? " over v of e4m3 in one buffer with k" : " over v of e4m3";
  if (v_in_k) result += " v-in-k";
  if (kernel) result += std::string(" kernel=") + kernel;
  result += " seed=" + std::to_string(seed) + " (queries, keys):";
  for (int64_t b = 0; b < std::min<int64_t>(batch, 24); ++b) {
    const PlannedSequence s = sequence(b);
    result += " (" + std::to_string(s.queries) + ", " + std::to_string(s.keys) +
              (poisoned[size_t(b)] ? ", NaN)" : ")");
  }
  return result;
}

void make_room(PlannedProblem& p, const PlannedProblem::Lengths& lengths, uint64_t seed) {
  Random random(seed);
  p.batch = int64_t(lengths.size());
  const int64_t gap_q = p.uses_q ? most_gap : 0, gap_k = p.uses_k ? most_gap : 0, padding = p.pads_k ? most_padding : 0;
  const int64_t most_q = longest(lengths, 0);
  const int64_t most_k = std::max<int64_t>(longest(lengths, 1) + padding, p.uses_k ? 0 : 1);  // without used_k, of all
  // A bound that cuts nothing, or the longest.
  const auto bound = [&](int64_t most) {
    const int64_t chosen = random.chance(0.15) ? most - random.between(0, most / 4)
                                               : most + random.pick<int64_t>({0, 0, 1, 100, 5000});
    return int32_t(std::max<int64_t>(chosen, 1));
  };
  if (p.packed_q) {
    p.rows_q = most_start + sum(lengths, 0) + p.batch * gap_q + random.between(0, 5);
    p.max_seqlen_q = bound(most_q + gap_q);
  } else {
    p.rows_q = std::max<int64_t>(1, most_q) + (p.uses_q ? random.between(0, 20) : 0);
    p.max_seqlen_q = random.chance(0.5) ? int32_t(p.rows_q) : 0;
  }
  p.entries_k = 1, p.pages_each = 0, p.max_seqlen_k = 0;
  if (p.packed_k) {
    p.rows_k = most_start + sum(lengths, 1) + p.batch * (gap_k + padding) + random.between(0, 5);
    p.max_seqlen_k = bound(most_k + gap_k);
  } else if (p.page_size) {
    p.rows_k = p.page_size;
    p.pages_each = std::max<int64_t>(1, divide_up(most_k, p.page_size)) + random.between(0, 2);
    for (const auto& pair : lengths) p.entries_k += divide_up(p.uses_k ? pair[1] : most_k, p.page_size);
    p.entries_k += random.between(0, 5);
  } else {
    p.rows_k = most_k + (p.uses_k ? random.between(0, 30) : 0);
    p.entries_k = p.indexes_cache ? std::max<int64_t>(1, p.batch + random.between(p.shares_keys ? -1 : 0, 3))
                                  : p.batch;
  }
  const int64_t rows_of_one = p.page_size ? p.pages_each * p.page_size : p.rows_k;
  // Without lengths of their own all sequences have as many keys as there is room for.
  if (!p.packed_k && rows_of_one > 0 && (random.chance(0.5) || !p.uses_k))
    p.max_seqlen_k = int32_t(std::clamp<int64_t>(p.uses_k ? bound(most_k) : most_k, 1, rows_of_one));
  set_numbers(p, lengths, tools::mix(seed, 1));
}

namespace {

// Pages in any order; a sequence may have its first ones from another. What is behind the keys, or far from all that
// queries see, may be anything.
void set_pages(PlannedProblem& p, Random& random) {
  std::vector<int32_t> pool(static_cast<size_t>(p.entries_k));
  for (size_t n = 0; n < pool.size(); ++n) pool[n] = int32_t(n);
  shuffle(pool, random);
  p.page_table.assign(size_t(p.batch * p.pages_each), 0);
  size_t next = 0;
  std::vector<std::array<int64_t, 2>> used;  // of each sequence, the range of pages
  for (int64_t b = 0; b < p.batch; ++b) {
    const PlannedSequence s = p.sequence(b);
    const PlannedProblem::Range near = p.keys_near(s);
    used.push_back({near.begin / p.page_size, divide_up(near.end, p.page_size)});
    const int64_t donor = p.shares_keys && b > 0 && random.chance(0.3) ? random.between(0, b - 1) : -1;
    const int64_t shared = donor < 0 ? 0 : random.between(0, used[size_t(donor)][1]);
    for (int64_t n = 0; n < p.pages_each; ++n) {
      int32_t& entry = p.page_table[size_t(b * p.pages_each + n)];
      if (n < used.back()[0] || n >= used.back()[1])
        entry = random.pick({-1, INT32_MIN, INT32_MAX, 0x7fabbeef, int32_t(p.entries_k), pool.back(), 0});
      else if (n < shared && n >= used[size_t(donor)][0]) entry = p.page_table[size_t(donor * p.pages_each + n)];
      else entry = pool[next++];
    }
  }
}

void set_cache_entries(PlannedProblem& p, Random& random) {
  std::vector<int32_t> entries(static_cast<size_t>(p.entries_k));
  for (size_t n = 0; n < entries.size(); ++n) entries[n] = int32_t(n);
  shuffle(entries, random);
  for (int64_t b = 0; b < p.batch; ++b)
    p.cache_batch_idx.push_back(b < p.entries_k && !(p.shares_keys && random.chance(0.1))
                                    ? entries[size_t(b)]
                                    : int32_t(random.between(0, p.entries_k - 1)));
}

}  // namespace

void set_numbers(PlannedProblem& p, const PlannedProblem::Lengths& lengths, uint64_t seed) {
  Random random(seed);
  p.lengths = lengths;
  for (auto* numbers : {&p.cu_q, &p.cu_k, &p.used_q, &p.used_k, &p.leftpad_k, &p.cache_batch_idx, &p.page_table})
    numbers->clear();
  p.sinks.clear(), p.slopes.clear(), p.poisoned.clear();
  if (p.packed_q) p.cu_q.push_back(int32_t(random.between(0, most_start)));
  if (p.packed_k) p.cu_k.push_back(int32_t(random.between(0, most_start)));
  for (const auto& [queries, keys] : lengths) {
    if (p.packed_q) p.cu_q.push_back(int32_t(p.cu_q.back() + queries + (p.uses_q ? random.between(0, most_gap) : 0)));
    if (p.uses_q) p.used_q.push_back(int32_t(std::min(queries, p.rows_q)));
    int64_t padding = p.pads_k ? random.between(0, most_padding) : 0;
    if (p.packed_k)
      p.cu_k.push_back(int32_t(p.cu_k.back() + padding + keys + (p.uses_k ? random.between(0, most_gap) : 0)));
    const int64_t in_use = p.packed_k ? padding + keys : std::min(padding + keys, p.most_keys());
    if (p.uses_k) p.used_k.push_back(int32_t(in_use));
    if (p.pads_k) p.leftpad_k.push_back(int32_t(std::min(padding, in_use)));
    p.poisoned.push_back(lengths.size() > 1 && random.chance(0.1));
  }
  if (p.indexes_cache) set_cache_entries(p, random);
  if (p.page_size) set_pages(p, random);
  if (p.has_sinks) {
    p.sinks.resize(size_t(p.heads));
    tools::normal(seed, 0, p.sinks.data(), p.sinks.size());
    for (float& sink : p.sinks) sink = random.chance(0.1) ? -INFINITY : 2 * sink;
  }
  if (p.has_slopes) p.slopes.resize(size_t((p.slopes_each ? p.batch : 1) * p.heads));
  for (float& slope : p.slopes) slope = random.chance(0.1) ? 0 : std::exp2(-10 * float(random.uniform()));
}

PlannedProblem::Lengths other_lengths(const PlannedProblem::Lengths& lengths, uint64_t seed) {
  Random random(seed);
  PlannedProblem::Lengths shuffled = lengths;
  shuffle(shuffled, random);
  for (auto& pair : shuffled) {
    if (random.chance(0.4)) pair[0] = random.between(0, pair[0]);
    if (random.chance(0.4)) pair[1] = random.between(0, pair[1]);
    if (random.chance(0.15)) pair = {0, 0};
  }
  return shuffled;
}

static void spoil(int32_t& number, Random& random) {
  const auto near = [&](uint32_t by) { return int32_t(uint32_t(number) + by); };
  number = random.pick({-1, -1000, INT32_MIN, INT32_MAX, INT32_MAX - 70, 1 << 30, near(1), near(-1u),
                        near(uint32_t(number)), int32_t(random.bits()), int32_t(random.between(-100, 10000))});
}

void spoil_numbers(PlannedProblem& p, uint64_t seed) {
  Random random(seed);
  for (auto* numbers : {&p.cu_q, &p.cu_k, &p.used_q, &p.used_k, &p.leftpad_k, &p.cache_batch_idx, &p.page_table})
    for (int32_t& number : *numbers)
      if (random.chance(0.3)) spoil(number, random);
}

void spoil_poisoned(PlannedProblem& p, uint64_t seed) {
  Random random(seed);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (!p.poisoned[size_t(b)]) continue;
    for (auto* numbers : {&p.used_k, &p.leftpad_k, &p.cache_batch_idx})
      if (!numbers->empty()) spoil((*numbers)[size_t(b)], random);
    for (int64_t n = 0; n < p.pages_each && p.page_size; ++n)
      spoil(p.page_table[size_t(b * p.pages_each + n)], random);
  }
}

namespace {

// A few queries at the end of long caches, prompts, chunks of prompts, and what never occurs.
std::array<int64_t, 2> random_lengths(Random& random, int64_t kind) {
  switch (kind) {
    case 0: return {random.between(1, 8), random.between(1, 3000)};
    case 1: {
      const int64_t length = random.between(1, 900);
      return {length, length};
    }
    case 2: {
      const int64_t queries = random.between(1, 300);
      return {queries, queries + random.between(0, 2000)};
    }
    case 3: return {random.between(1, 90), random.between(1, 90)};
    case 4: return {random.between(1, 700), random.between(1, 700)};
    case 5: return {0, random.between(0, 200)};
    default: return {random.between(1, 200), 0};
  }
}

PlannedProblem::Lengths draw_lengths(Random& random) {
  PlannedProblem::Lengths lengths;
  const int64_t all = random.between(0, 7);  // of one kind, or any
  const int64_t batch = all == 3 && random.chance(0.3) ? random.between(100, 300) : random.between(1, 24);
  for (int64_t n = 0; n < batch; ++n)
    lengths.push_back(random_lengths(random, all < 5 && !random.chance(0.1) ? all : random.between(0, 6)));
  if (random.chance(0.2)) lengths.insert(lengths.end(), size_t(random.between(1, 8)), {0, 0});
  return lengths;
}

void choose_mask(PlannedProblem& p, Random& random) {
  p.mask = random.pick<int32_t>({FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT,
                                 FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_MASK_WINDOW, FA3_MASK_WINDOW, FA3_MASK_WINDOW,
                                 FA3_MASK_CHUNK});
  const auto bound = [&] {
    return int32_t(random.chance(0.3) ? random.pick({-1, 0, 1, 64, 128, INT32_MAX}) : random.between(0, 600));
  };
  if (p.mask == FA3_MASK_WINDOW) p.window_left = bound(), p.window_right = random.chance(0.5) ? 0 : bound();
  if (p.mask == FA3_MASK_CHUNK)
    p.window_left = std::max(bound(), 1), p.window_right = random.chance(0.7) ? 0 : -1;
}

void choose_tensors(PlannedProblem& p, Random& random) {
  p.packed_q = random.chance(0.6);
  p.uses_q = random.chance(p.packed_q ? 0.2 : 0.6);
  switch (random.between(0, 4)) {
    case 0: p.packed_k = true; break;
    case 1: p.indexes_cache = true; break;
    case 2: break;
    default: p.page_size = random.pick({1, 2, 3, 4, 5, 7, 8, 12, 16, 16, 17, 24, 32, 48, 64, 64, 100, 128, 256, 333,
                                        512, 1000, 1024});
  }
  p.uses_k = random.chance(p.packed_k ? 0.3 : 0.85);
  p.pads_k = p.page_size == 0 && random.chance(0.25);
  p.has_sinks = random.chance(0.3);
}

// Caps far above the scores, among them and below them all. What cannot be had together stays away.
void choose_transform(PlannedProblem& p, Random& random, const PlannedLimits& limits) {
  const ForwardRow* const row = limits.row;
  const bool may_cap = row ? row->has(Trait::softcap) : !p.e4m3_keys && !p.e4m3_latent && random.chance(0.2);
  const bool may_slope = row ? row->has(Trait::alibi) : !p.has_e4m3_keys() && !limits.wide && random.chance(0.2);
  if (may_cap) p.lse_offset = false, p.softcap = random.pick({0.01f, 0.5f, 2.0f, 5.0f, 15.0f, 30.0f, 50.0f, 1e4f});
  if (!may_slope) return;
  p.has_slopes = true, p.slopes_each = random.chance(0.5), p.batch_invariant = false;
  if (p.mask == FA3_MASK_CHUNK) p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.window_left = p.window_right = 0;
}

// Head dimensions above 256; V a part of K, or a second query.
void choose_wide(PlannedProblem& p, Random& random) {
  if (p.is_e4m3()) p.dtype = FA3_DTYPE_BF16;
  p.head_dim_v = random.chance(0.5) ? 512 : 8 * random.between(1, 64);
  switch (random.between(0, 2)) {
    case 0:
      p.has_qv = true, p.head_dim = random.chance(0.5) ? 64 : 8 * random.between(1, 8);
      p.e4m3_latent = random.chance(0.5), p.one_buffer = p.e4m3_latent && random.chance(0.4);
      if (p.e4m3_latent) p.head_dim_v = divide_up(p.head_dim_v, 16) * 16;
      break;
    case 1:
      p.v_in_k = true, p.head_dim_v = std::max<int64_t>(p.head_dim_v, 256);
      p.head_dim = p.head_dim_v + (random.chance(0.5) ? 64 : 8 * random.between(1, 8));
      break;
    default: p.head_dim = 8 * random.between(p.head_dim_v > 256 ? 1 : 33, 64);
  }
}

// What goes with e4m3.
void choose_scales(PlannedProblem& p, Random& random) {
  p.o_dtype = random.pick({FA3_DTYPE_BF16, FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_E4M3});
  for (Scales* scales : {&p.q_scales, &p.k_scales, &p.v_scales})
    *scales = random.chance(0.3) ? Scales::tensor : Scales::head;
  p.v_mean = random.chance(0.5), p.lse_offset = random.chance(0.5);
}

void choose_key_scales(PlannedProblem& p, Random& random) {
  for (Scales* scales : {&p.k_scales, &p.v_scales}) *scales = random.chance(0.3) ? Scales::tensor : Scales::head;
}

// The work of the references, and rows in memory.
double work(const PlannedProblem& p, const std::array<int64_t, 2>& pair) {
  return double(pair[0]) * double(pair[1]) * double(p.heads * std::max(p.score_columns(), p.head_dim_v));
}
double elements_q(const PlannedProblem& p, const PlannedProblem::Lengths& lengths) {
  const int64_t rows = p.packed_q ? sum(lengths, 0) : int64_t(lengths.size()) * longest(lengths, 0);
  return double(rows) * double(p.heads * (p.score_columns() + p.head_dim_v));
}
double elements_k(const PlannedProblem& p, const PlannedProblem::Lengths& lengths) {
  int64_t rows = p.packed_k ? sum(lengths, 1) : int64_t(lengths.size()) * longest(lengths, 1);
  if (p.page_size) {
    rows = 0;
    for (const auto& pair : lengths) rows += divide_up(pair[1], p.page_size) * p.page_size;
  }
  return double(rows) * double(p.heads_kv * (p.head_dim + p.head_dim_v));
}

// Shorter where it helps most, until work and memory are within bounds. Where nothing says how many rows of an entry
// are in use, all have as many.
void fit_budget(const PlannedProblem& p, PlannedProblem::Lengths& lengths, double budget) {
  const bool alike[] = {!p.packed_q && !p.uses_q, !p.packed_k && !p.uses_k};
  for (auto& pair : lengths)
    for (size_t which : {0, 1})
      if (alike[which]) pair[which] = lengths[0][which];
  const auto halve = [&](std::array<int64_t, 2>& largest, size_t which) {
    if (!alike[which]) largest[which] /= 2;
    else
      for (auto& pair : lengths) pair[which] /= 2;
  };
  const auto largest = [&](auto size) {
    return std::max_element(lengths.begin(), lengths.end(),
                            [&](const auto& a, const auto& b) { return size(a) < size(b); });
  };
  constexpr double most_elements = 1e7;
  while (elements_q(p, lengths) > most_elements) halve(*largest([](const auto& pair) { return pair[0]; }), 0);
  while (elements_k(p, lengths) > most_elements) {
    if (longest(lengths, 1) <= p.page_size && lengths.size() > 1) lengths.pop_back();
    else halve(*largest([](const auto& pair) { return pair[1]; }), 1);
  }
  for (;;) {
    double all = 0;
    for (const auto& pair : lengths) all += work(p, pair);
    if (all <= budget) return;
    auto& costliest = *largest([&](const auto& pair) { return work(p, pair); });
    halve(costliest, costliest[0] > costliest[1] ? 0 : 1);
  }
}

}  // namespace

void choose_cache(PlannedProblem& p, const ForwardRow& row) {
  p.e4m3_keys = row.has_wide_q(), p.e4m3_latent = row.is_latent();
}

void change_to_e4m3(PlannedProblem& p) {
  Random random(p.seed);
  p.dtype = FA3_DTYPE_E4M3, p.e4m3_keys = false;
  choose_scales(p, random);
}

void change_keys_to_e4m3(PlannedProblem& p) {
  Random random(p.seed);
  p.e4m3_keys = true;
  choose_key_scales(p, random);
}

// Queries of a call on a row for few rows, whose heads are few enough then.
int64_t most_queries(PlannedProblem& p, const ForwardRow& row) {
  if (row.most_rows() < Packing::of(p.heads / p.heads_kv).rows(1)) p.heads = p.heads_kv;
  return row.most_rows() / Packing::of(p.heads / p.heads_kv).rows(1);
}

PlannedProblem random_planned(uint64_t seed, const PlannedLimits& limits) {
  Random random(seed);
  PlannedProblem p;
  p.seed = seed;
  p.dtype = random.pick({FA3_DTYPE_BF16, FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_E4M3});
  if (limits.row) p.dtype = dtype_of(*limits.row);
  if (limits.row) choose_cache(p, *limits.row);
  else p.e4m3_keys = !limits.wide && !p.is_e4m3() && random.chance(0.2);
  p.one_buffer = p.e4m3_latent && random.chance(0.4);
  const int64_t unit = p.has_e4m3_keys() ? 16 : 8, unit_v = p.e4m3_latent ? 16 : unit;
  choose_mask(p, random);
  choose_tensors(p, random);
  const bool may_widen_o = !limits.wide && !p.has_e4m3_keys();
  const bool widens_o = limits.row ? limits.row->stores_fp32() : may_widen_o && random.chance(0.15);
  if (widens_o) p.o_dtype = FA3_DTYPE_FP32;
  if (limits.row && !widens_o && !p.packed_q && !p.packed_k)
    p.uses_k = true;  // the row takes no call without anything of its own
  do {
    p.heads_kv = random.pick<int64_t>({1, 1, 2, 2, 3, 4, 8});
    p.heads = p.heads_kv * random.pick<int64_t>({1, 1, 2, 3, 4, 5, 7, 8, 12, 16, 71});
  } while (p.heads > limits.most_heads);
  const int64_t units = limits.most_head_dim / unit;
  p.head_dim = random.pick<int64_t>({64, 128, 128, 256});
  if (p.head_dim > limits.most_head_dim || random.chance(0.4)) p.head_dim = unit * random.between(1, units);
  p.head_dim_v = random.chance(0.75) ? p.head_dim : unit * random.between(1, units);
  if (limits.row) {
    p.kernel = limits.row->name;
    p.head_dim = random.chance(0.5) ? limits.row->d : unit * random.between(1, limits.row->d / unit);
    p.head_dim_v = random.chance(0.5) ? limits.row->dv : unit_v * random.between(1, limits.row->dv / unit_v);
    p.has_qv = limits.row->has(Trait::qv);
    if (p.has_qv && !p.e4m3_latent && p.head_dim_v >= 256 && random.chance(0.5))  // as one tensor
      p.has_qv = false, p.v_in_k = true, p.head_dim += p.head_dim_v;
  }
  if (limits.wide) choose_wide(p, random);
  if (random.chance(0.3))
    p.softmax_scale = float((0.3 + 1.7 * random.uniform()) / std::sqrt(double(p.score_columns())));
  p.want_lse = !random.chance(0.2);
  p.batch_invariant = random.chance(0.15);
  if (p.is_e4m3()) choose_scales(p, random);
  if (p.e4m3_keys) choose_key_scales(p, random);
  if (!widens_o) choose_transform(p, random, limits);
  p.q = random_storage(random, false), p.o = random_storage(random, false), p.lse = random_storage(random, false);
  p.k = random_storage(random, true), p.v = random_storage(random, true);
  for (Storage* s : {&p.q, &p.k, &p.v, &p.o, &p.lse}) s->share_batch = false, s->pad_s %= p.page_size ? 4 : 50;
  PlannedProblem::Lengths lengths = draw_lengths(random);
  const bool has_few_rows = limits.row && limits.row->has(Trait::few_rows);
  const int64_t most = has_few_rows ? most_queries(p, *limits.row) : INT32_MAX;
  if (has_few_rows) {
    p.batch_invariant = false, p.uses_q = p.uses_q && p.packed_q;
    for (auto& pair : lengths) pair[0] = std::min(pair[0], most);
  }
  if (limits.row && limits.row->has(Trait::multicast)) p.batch_invariant = false;
  fit_budget(p, lengths, limits.budget);
  make_room(p, lengths, random.bits());
  p.max_seqlen_q = int32_t(std::min<int64_t>(p.max_seqlen_q, most));
  return p;
}

}  // namespace fa3::test
