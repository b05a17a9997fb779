#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "half.h"

namespace fa3::test {

using tools::Random;

const char* name(Pattern pattern) {
  constexpr const char* names[pattern_count] = {"normal",    "outliers", "large",    "growing",
                                                "shrinking", "spikes",   "constant", "tiny", "sink"};
  return names[int(pattern)];
}

double Problem::scale() const { return softmax_scale != 0 ? softmax_scale : 1 / std::sqrt(double(head_dim)); }

int64_t Problem::visible_keys(int64_t i) const {
  if (mask == FA3_MASK_NONE) return seqlen_k;
  const int64_t offset = mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT ? seqlen_k - seqlen_q : 0;
  return std::clamp<int64_t>(i + offset + 1, 0, seqlen_k);
}

std::string describe(const char* which, const Storage& s) {
  constexpr const char* orders[] = {"bshd", "bhsd", "sbhd", "hbsd"};
  char text[128];
  std::snprintf(text, sizeof text, " %s=%s pad(d%d h%d s%d b%d) shift%d%s%s", which, orders[s.order], s.pad_d, s.pad_h,
                s.pad_s, s.pad_b, s.shift, s.share_heads ? " heads shared" : "", s.share_batch ? " batch shared" : "");
  return text;
}

std::string Problem::describe() const {
  constexpr const char* masks[] = {"full", "top-left", "bottom-right"};
  char text[256];
  std::snprintf(text, sizeof text,
                "%s %s batch=%lld seqlen_q=%lld seqlen_k=%lld heads=%lld/%lld head_dim=%lld/%lld scale=%.4g %s%s%s",
                tools::dtype_name(dtype), masks[mask], (long long)batch, (long long)seqlen_q, (long long)seqlen_k,
                (long long)heads, (long long)heads_kv, (long long)head_dim, (long long)v_dim(), scale(), name(pattern),
                want_lse ? "" : " no-lse", packed_qkv ? " packed-qkv" : "");
  std::string result = text;
  if (!packed_qkv) result += test::describe("q", q) + test::describe("k", k) + test::describe("v", v);
  result += test::describe("o", o);
  if (want_lse) result += test::describe("lse", lse);
  if (is_e4m3()) {
    constexpr const char* scales[] = {"tensor", "head", "block"};
    std::snprintf(text, sizeof text, " o-dtype=%s scales(q %s k %s v %s)%s%s%s%s", tools::dtype_name(output_dtype()),
                  scales[int(q_scales)], scales[int(k_scales)], scales[int(v_scales)], v_tiles ? " v-tiles" : "",
                  v_mean ? " v-mean" : "", lse_offset ? " lse-offset" : "", two_level ? " two-level" : "");
    result += text;
  }
  if (kernel) result += std::string(" kernel=") + kernel;
  return result + " seed=" + std::to_string(seed);
}

fa3_dtype dtype_of(const ForwardRow& row) {
  switch (row.dtype) {
    case Dtype::bf16: return FA3_DTYPE_BF16;
    case Dtype::fp16: return FA3_DTYPE_FP16;
    default: return FA3_DTYPE_E4M3;
  }
}

int head_dim_unit(const ForwardRow& row) { return row.dtype == Dtype::e4m3 ? 16 : 8; }

int64_t smallest_head_dim(const ForwardRow& row) {
  int below = 0;
  for (const ForwardRow& other : forward_rows)
    if (std::string_view(other.kernel) == row.kernel && other.dtype == row.dtype && other.mask == row.mask &&
        other.d < row.d)
      below = std::max(below, other.d);
  return below + head_dim_unit(row);
}

// What e4m3 needs beside the tensors. A row that takes scales for each block of K or V is for those, so it gets no
// problem in which neither has them.
static void add_scales(Problem& p, const ForwardRow& row, Random random) {
  p.o_dtype = random.pick({FA3_DTYPE_BF16, FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_E4M3});
  p.q_scales = random.pick({Scales::tensor, Scales::head, Scales::block});
  p.k_scales = random.pick({Scales::tensor, Scales::head});
  p.v_scales = random.pick({Scales::tensor, Scales::head});
  if (row.block_scales()) {
    const int64_t which = random.between(0, 2);
    if (which != 0) p.k_scales = Scales::block;
    if (which != 1) p.v_scales = Scales::block;
  }
  p.v_tiles = !row.transposes_v();
  p.v_mean = random.chance(0.5);
  p.lse_offset = random.chance(0.5);
  p.two_level = row.has(Trait::two_level);
}

// What the row determines, and for e4m3 what goes with it.
static Problem problem_of(const ForwardRow& row, uint64_t seed) {
  Problem p;
  p.seed = seed;
  p.dtype = dtype_of(row);
  p.mask = row.causal() ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE;
  p.head_dim = row.d;
  if (row.dv != row.d) p.head_dim_v = row.dv;
  p.kernel = row.name;
  if (p.is_e4m3()) add_scales(p, row, Random(tools::mix(seed, 8)));
  return p;
}

Storage random_storage(Random& random, bool input) {
  Storage s;
  if (random.chance(0.3)) {
    if (input && random.chance(0.15)) s.share_heads = true;
    return s;
  }
  s.order = random.pick({Storage::bshd, Storage::bshd, Storage::bhsd, Storage::bhsd, Storage::sbhd, Storage::hbsd});
  if (random.chance(0.5)) s.pad_d = int(random.between(0, 6));
  if (random.chance(0.4)) s.pad_h = int(random.between(0, 3));
  if (random.chance(0.6)) s.pad_s = int(random.between(0, 200));
  if (random.chance(0.3)) s.pad_b = int(random.between(0, 2));
  s.shift = int(random.between(0, 17));
  if (input && random.chance(0.1)) s.share_batch = true;
  return s;
}

// Lengths next to the tile and ring boundaries, where masks, tails and wrap-around live.
static int64_t near_multiple(Random& random, int64_t of, int64_t most) {
  return std::max<int64_t>(1, of * random.between(1, most) + random.pick<int64_t>({-1, 0, 1, -8, 8, 0}));
}

static void random_shape(Problem& p, const ForwardRow& row, Random& random) {
  p.heads_kv = random.pick<int64_t>({1, 1, 2, 2, 3, 4});
  p.heads = p.heads_kv * random.pick<int64_t>({1, 1, 2, 3, 4, 5, 8});
  p.batch = random.between(1, 3);
  switch (random.between(0, 9)) {
    case 0:  // tiny
      p.seqlen_q = random.between(1, 80), p.seqlen_k = random.between(1, 80);
      break;
    case 1:  // square, as in training
      p.seqlen_q = p.seqlen_k = random.between(1, 900);
      break;
    case 2:  // the ring wraps many times
      p.seqlen_q = random.between(1, 200), p.seqlen_k = random.between(1000, 5000);
      break;
    case 3:  // more queries than keys
      p.seqlen_q = random.between(300, 2500), p.seqlen_k = random.between(1, 300);
      break;
    case 4:  // many small tiles: several per thread block
      p.heads_kv = random.between(5, 32), p.heads = p.heads_kv * random.between(1, 3), p.batch = random.between(4, 10);
      p.seqlen_q = random.between(1, 2 * row.Br), p.seqlen_k = random.between(1, 150);
      break;
    case 5:  // decoding: a few queries at the end of a long sequence
      p.seqlen_q = random.between(1, 8), p.seqlen_k = random.between(1, 4000);
      break;
    case 6:  // decoding with several tiles per thread block, in which most warpgroups have no rows
      p.heads_kv = random.between(8, 32), p.heads = p.heads_kv * random.between(1, 4), p.batch = random.between(6, 20);
      p.seqlen_q = random.between(1, 3), p.seqlen_k = row.Bc * random.between(1, 4 * row.stages);
      break;
    case 7:  // few tiles with many keys each: split along the keys
      p.batch = 1, p.heads_kv = random.between(1, 2), p.heads = p.heads_kv * random.between(1, 3);
      p.seqlen_q = random.between(1, 2 * row.Br);
      p.seqlen_k = random.between(10, 150) * row.Bc - random.between(0, 70);
      break;
    case 8:  // a wave of tiles on most GPUs, and a few more, which are split
      p.heads_kv = random.between(133, 260), p.heads = p.heads_kv, p.batch = 1;
      p.seqlen_q = random.between(1, 3), p.seqlen_k = random.between(20, 40) * row.Bc - random.between(0, 70);
      break;
    default:
      p.seqlen_q = near_multiple(random, random.chance(0.5) ? row.Br : 64, 3);
      p.seqlen_k = near_multiple(random, row.Bc, 2 * row.stages + 2);
  }
}

// Cheaper by whatever is largest, keeping the shape's character.
static void fit_budget(Problem& p, double budget) {
  const auto work = [&] {
    return double(p.batch) * double(p.heads) * double(p.seqlen_q) * double(p.seqlen_k) *
           double(std::max(p.head_dim, p.v_dim()));
  };
  while (work() > budget && p.batch > 1) --p.batch;
  while (work() > budget && p.heads > p.heads_kv) p.heads -= p.heads_kv;
  while (work() > budget && p.heads_kv > 1) p.heads = --p.heads_kv;
  while (work() > budget) (p.seqlen_q > p.seqlen_k ? p.seqlen_q : p.seqlen_k) /= 2;
}

Problem random_problem(const ForwardRow& row, uint64_t seed, double budget) {
  Random random(seed);
  Problem p = problem_of(row, seed);
  if (row.causal() && random.chance(0.5)) p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
  const int unit = head_dim_unit(row);
  if (random.chance(0.5)) {
    p.head_dim = unit * random.between(smallest_head_dim(row) / unit, row.d / unit);
    p.head_dim_v = std::min<int64_t>(p.head_dim, row.dv);
  }
  if (random.chance(0.3)) p.head_dim_v = unit * random.between(1, row.dv / unit);
  random_shape(p, row, random);
  fit_budget(p, budget);
  p.pattern = random.chance(0.4) ? Pattern::normal : Pattern(random.between(0, pattern_count - 1));
  if (random.chance(0.3)) p.softmax_scale = float((0.3 + 1.7 * random.uniform()) / std::sqrt(double(p.head_dim)));
  p.q = random_storage(random, false);
  p.k = random_storage(random, true);
  p.v = random_storage(random, true);
  p.o = random_storage(random, false);
  p.lse = random_storage(random, false);
  p.packed_qkv = p.seqlen_q == p.seqlen_k && random.chance(0.3);
  p.want_lse = !random.chance(0.15);
  return p;
}

Problem plain_problem(const ForwardRow& row, int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads,
                      int64_t heads_kv, uint64_t seed) {
  Problem p = problem_of(row, seed);
  p.batch = batch, p.seqlen_q = seqlen_q, p.seqlen_k = seqlen_k, p.heads = heads, p.heads_kv = heads_kv;
  return p;
}

}  // namespace fa3::test
