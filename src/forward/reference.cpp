// Blocked attention with an online softmax, in float64 throughout. It is the oracle of the kernels, so it takes the
// other way wherever there is a choice: natural exponentials relative to exact row maxima, masked keys are left out
// instead of multiplied by zero.
//
// reference_forward shares out blocks to threads; RunBlock computes one:
//   read_queries    its rows: the queries of all heads that use one head of K and V, as doubles
//   for 64 keys at a time, from the first one that its first row sees to the last one that its last row sees:
//     read_keys     K and V as doubles, once for all these rows
//     score         S = Q K^T
//     transform     softcap, ALiBi
//     softmax       S becomes weights; running maximum m and sum l; O rescaled where m has grown
//     weigh         O += P V
//   write_outputs   O / l, m + log(l), with the sink among the exponentials
// Elements of e4m3 are multiplied by their scales when they are read; v_mean and lse_offset are added when rows are
// written.
//
// A row's operations and their order follow from the problem alone, and nothing is fused (-ffp-contract=off), so O has
// the same bits whatever the threads, the blocks and the width of the machine's vectors. Exponentials are our own for
// the same reason: libm's round differently on machines with FMA. Only the logarithm in LSE is libm's.
#include "forward/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/host_sequences.h"
#include "cpu/vectors.h"
#include "cpu/workers.h"
#include "error.h"
#include "params/v_tile.h"

namespace fa3 {
namespace {

constexpr int Br = 128;   // rows of a block
constexpr int Bc = 64;    // keys read together
constexpr int panels = Br / lanes;
constexpr int max_d = 576, max_dv = 512;
// Powers of two would put a column's elements into few sets of the cache.
constexpr int k_stride = max_d + lanes, v_stride = max_dv + lanes;

// One thread's working set.
struct alignas(64) QueryScratch {
  double q[panels][max_d][lanes];  // with qv behind q,
  double k[Bc][k_stride];          // and V behind K
  double v[Bc][v_stride];
  double s[panels][Bc][lanes];  // scores, then weights
  double o[Br][v_stride];
  double m[Br], l[Br], correction[Br];
  double slope[Br];      // of ALiBi; 0: none
  double position[Br];   // of the row's query, among the keys
  int64_t begin[Br], end[Br];  // of the keys that a row sees; neither falls from one row to the next
};

// Rows [first, first + rows) of one (sequence, head of K and V).
struct QueryBlock {
  Sequence sequence;
  int64_t number;  // of the sequence, by which scales and v_mean are found
  int64_t head_kv, first;
  int rows;
};

QueryRow row_of(const ForwardProblem& problem, const QueryBlock& block, int r) {
  return fa3::row_of(problem, block.head_kv, block.first + r);
}

// That a score is the sum of.
int score_columns(const ForwardProblem& problem) {
  return static_cast<int>(problem.head_dim + (problem.has_qv() ? problem.head_dim_v : 0));
}

// Where a query is in its batch entry of q and o.
int64_t place_of(const QueryBlock& block, const QueryRow& row) { return block.sequence.q_row + row.query; }

// A row's elements become those of the problem; without scales they are already.
void apply_scale(const View& scale, int64_t batch, int64_t row, int64_t head, double* elements, int count) {
  if (scale.data == nullptr) return;
  const double factor = number(scale, batch, head, row / FA3_SCALE_ROWS);
  for (int x = 0; x < count; ++x) elements[x] *= factor;
}

// A row of k or v. Of a page that there is none of it is zero, as on the device.
void read_key_row(const ForwardProblem& problem, const View& view, const Sequence& s, int64_t key,
                         int64_t head_kv, double* out) {
  if (problem.page_size == 0) return read_row(view, s.k_batch, s.k_row + key, head_kv, out);
  const View& table = problem.page_table;
  const int64_t page = static_cast<const int32_t*>(
      table.data)[s.k_batch * table.stride[0] + key / problem.page_size * table.stride[1]];
  if (page >= 0 && page < view.dim[0]) read_row(view, page, key % problem.page_size, head_kv, out);
  else std::fill(out, out + view.dim[3], 0.0);
}

// A row of v, a latent cache of e4m3.
void apply_latent_scale(const ForwardProblem& problem, const Sequence& s, int64_t key, int64_t head_kv,
                        double* elements) {
  double scale[max_dv / latent_scale_columns];
  read_key_row(problem, problem.latent_scale, s, key, head_kv, scale);
  for (int x = 0; x < problem.head_dim_v; ++x) elements[x] *= scale[x / latent_scale_columns];
}

void read_key_of_tile(const ForwardProblem& problem, int64_t batch, int64_t key, int64_t head, double* out) {
  const int byte = v_tile_byte(static_cast<int>(key % v_tile_keys));
  const char* tile = element(problem.v, batch, key / v_tile_keys, head) + byte;
  for (int x = 0; x < problem.head_dim_v; ++x)
    out[x] = decode(static_cast<uint8_t>(tile[v_tile_keys * v_tile_row(x)]), e4m3);
}

// Lanes beyond the block's rows repeat the last one; their results are never used.
void read_queries(const ForwardProblem& problem, const QueryBlock& block, QueryScratch& t) {
  const int d = static_cast<int>(problem.head_dim);
  const Sequence& s = block.sequence;
  double elements[max_d];
  for (int r = 0; r < round_up(block.rows, lanes); ++r) {
    const QueryRow row = row_of(problem, block, std::min(r, block.rows - 1));
    read_row(problem.q, s.q_batch, place_of(block, row), row.head, elements);
    apply_scale(problem.q_scale, block.number, row.query, row.head, elements, d);
    if (problem.has_qv()) read_row(problem.qv, s.q_batch, place_of(block, row), row.head, elements + d);
    for (int x = 0; x < score_columns(problem); ++x) t.q[r / lanes][x][r % lanes] = elements[x];
    const Keys keys = seen_keys(problem, s, row.query);
    t.begin[r] = keys.begin, t.end[r] = keys.end;
    t.slope[r] = problem.alibi_slopes.data ? number(problem.alibi_slopes, block.number, row.head, 0) : 0;
    t.position[r] = static_cast<double>(row.query + s.seqlen_k - s.seqlen_q);
  }
}

// V is zero-filled to whole vectors.
void read_keys(const ForwardProblem& problem, const QueryBlock& block, int64_t first, int keys, QueryScratch& t) {
  const int d = static_cast<int>(problem.head_dim), dv = static_cast<int>(problem.head_dim_v);
  const Sequence& s = block.sequence;
  for (int j = 0; j < keys; ++j) {
    read_key_row(problem, problem.k, s, first + j, block.head_kv, t.k[j]);
    if (problem.v_tiles) read_key_of_tile(problem, s.k_batch, first + j, block.head_kv, t.v[j]);
    else read_key_row(problem, problem.v, s, first + j, block.head_kv, t.v[j]);
    apply_scale(problem.k_scale, block.number, first + j, block.head_kv, t.k[j], d);
    apply_scale(problem.v_scale, block.number, first + j, block.head_kv, t.v[j], dv);
    if (problem.is_latent()) apply_latent_scale(problem, s, first + j, block.head_kv, t.v[j]);
    if (problem.has_qv()) std::copy(t.v[j], t.v[j] + dv, t.k[j] + d);
    std::fill(t.v[j] + dv, t.v[j] + round_up(dv, lanes), 0.0);
  }
}

// How many of the keys from `first` on end with the last one that a row of the panel sees; 0 if it sees none of them.
int panel_keys(const QueryScratch& t, int panel, int64_t first, int keys) {
  const int64_t end = t.end[panel * lanes + lanes - 1], begin = t.begin[panel * lanes];
  return begin >= first + keys ? 0 : static_cast<int>(std::clamp<int64_t>(end - first, 0, keys));
}

template <int width>
[[gnu::always_inline]] inline void score(int panel, int keys, int d, QueryScratch& t) {
  std::memset(t.s[panel], 0, sizeof t.s[panel]);
  int j = 0;
  for (; j + width <= keys; j += width)
    multiply<width, width>(d, t.k[j], k_stride, 1, t.q[panel][0], lanes, t.s[panel][j], lanes);
  for (; j < keys; ++j) multiply<width, 1>(d, t.k[j], k_stride, 1, t.q[panel][0], lanes, t.s[panel][j], lanes);
}

// Scores with softcap or ALiBi, times softmax_scale.
template <int width>
[[gnu::always_inline]] inline void transform(const ForwardProblem& problem, int panel, int64_t first, int keys,
                                             QueryScratch& t) {
  using Vector = typename Vectors<width>::Doubles;
  const double cap = problem.softcap;
  for (int lane = 0; lane < lanes; lane += width) {
    const int row = panel * lanes + lane;
    const Vector slope = reinterpret_cast<const Vector&>(t.slope[row]);
    const Vector position = reinterpret_cast<const Vector&>(t.position[row]);
    for (int j = 0; j < keys; ++j) {
      Vector& s = reinterpret_cast<Vector&>(t.s[panel][j][lane]);
      s *= problem.softmax_scale;
      if (cap > 0) {
        s /= cap;
        to_tanh(s);
        s *= cap;
      }
      const Vector distance = position - static_cast<double>(first + j);
      if (problem.alibi_slopes.data) s -= slope * (distance < 0 ? -distance : distance);
    }
  }
}

// A score of NaN is no maximum, but makes the sum NaN. While m is -inf, so are all scores, and weights are relative to
// 0, not to m.
template <int width>
[[gnu::always_inline]] inline void softmax(int panel, int64_t first, int keys, double scale, int columns,
                                           QueryScratch& t) {
  using Vector = typename Vectors<width>::Doubles;
  using Integers = typename Vectors<width>::Integers;
  for (int lane = 0; lane < lanes; lane += width) {
    const int row = panel * lanes + lane;
    const Integers begin = reinterpret_cast<const Integers&>(t.begin[row]);
    const Integers end = reinterpret_cast<const Integers&>(t.end[row]);
    for (int j = 0; j < std::min<int64_t>(t.begin[row + width - 1] - first, keys); ++j) {
      Vector& s = reinterpret_cast<Vector&>(t.s[panel][j][lane]);
      s = begin > first + j ? Vector{} - INFINITY : s;
    }
    const Vector before = reinterpret_cast<const Vector&>(t.m[row]);
    Vector m = before;
    for (int j = 0; j < keys; ++j) {
      Vector& s = reinterpret_cast<Vector&>(t.s[panel][j][lane]);
      s = end > first + j ? s * scale : Vector{} - INFINITY;
      m = s > m ? s : m;
    }
    const Vector reference = m == -INFINITY ? Vector{} : m;
    Vector correction = before - reference, sum{};
    exponentiate(correction);
    for (int j = 0; j < keys; ++j) {
      Vector& s = reinterpret_cast<Vector&>(t.s[panel][j][lane]);
      s -= reference;
      exponentiate(s);
      sum += s;
    }
    Vector& l = reinterpret_cast<Vector&>(t.l[row]);
    l = l * correction + sum;
    reinterpret_cast<Vector&>(t.m[row]) = m;
    reinterpret_cast<Vector&>(t.correction[row]) = correction;
  }
  for (int row = panel * lanes; row < (panel + 1) * lanes; ++row)
    if (t.correction[row] != 1)
      for (int x = 0; x < columns; ++x) t.o[row][x] *= t.correction[row];
}

// Keys [begin, end) for one row; weights and v are those of the first row and key.
template <int width>
[[gnu::always_inline]] inline void weigh_row(const double* weights, const double* v, int row, int begin, int end,
                                             double* o) {
  if (begin < end)
    multiply<width, 1>(end - begin, weights + begin * lanes + row, 1, lanes, v + begin * v_stride, v_stride, o,
                       v_stride);
}

// The keys that all of `width` rows see are weighed together, those before and behind them row by row.
template <int width>
[[gnu::always_inline]] inline void weigh(int rows, int64_t first, int keys, int columns, QueryScratch& t) {
  const auto within = [&](int64_t key) { return static_cast<int>(std::clamp<int64_t>(key - first, 0, keys)); };
  for (int n = 0; n < columns; n += lanes)
    for (int r = 0; r < rows; r += width) {
      const double* weights = &t.s[r / lanes][0][r % lanes];
      const double* v = &t.v[0][n];
      const bool whole = r + width <= rows;
      const int begin = whole ? within(t.begin[r + width - 1]) : 0, end = whole ? within(t.end[r]) : 0;
      const bool together = begin < end;
      for (int i = r; i < std::min(r + width, rows); ++i)
        weigh_row<width>(weights, v, i - r, within(t.begin[i]), together ? begin : within(t.end[i]), &t.o[i][n]);
      if (!together) continue;
      multiply<width, width>(end - begin, weights + begin * lanes, 1, lanes, v + begin * v_stride, v_stride,
                             &t.o[r][n], v_stride);
      for (int i = r; i < std::min(r + width, rows); ++i)
        weigh_row<width>(weights, v, i - r, end, within(t.end[i]), &t.o[i][n]);
    }
}

// What becomes of a row's m, l and O by one more exponential without a value. Returns the share of the sum that keys
// have.
double add_sink(double sink, int columns, int r, QueryScratch& t) {
  const double m = sink > t.m[r] ? sink : t.m[r];
  if (m == -INFINITY) return 1;
  Vectors<2>::Doubles relative = {t.m[r] - m, sink - m};
  exponentiate(relative);
  const double key_sum = t.l[r] * relative[0];
  t.m[r] = m, t.l[r] = key_sum + relative[1];
  for (int x = 0; x < columns; ++x) t.o[r][x] *= relative[0];
  return key_sum / t.l[r];
}

void write_outputs(const ForwardProblem& problem, const QueryBlock& block, int r, QueryScratch& t) {
  const QueryRow row = row_of(problem, block, r);
  const int64_t batch = block.sequence.q_batch, place = place_of(block, row);
  const int dv = static_cast<int>(problem.head_dim_v);
  const bool sees_nothing = t.begin[r] >= t.end[r];
  // All scores lack it, and so must the sink; LSE gets it back.
  const View& offsets = problem.lse_offset;
  const double offset = offsets.data && !sees_nothing ? number(offsets, batch, row.head, place) : 0;
  const double share = problem.sinks.data ? add_sink(number(problem.sinks, row.head, 0, 0) - offset, dv, r, t) : 1;
  for (int x = 0; x < dv; ++x) t.o[r][x] = sees_nothing ? 0 : t.o[r][x] / t.l[r];
  if (problem.v_mean.data && !sees_nothing)
    for (int x = 0; x < dv; ++x) t.o[r][x] += share * number(problem.v_mean, block.number, block.head_kv, x);
  if (problem.o_scale.data)
    for (int x = 0; x < dv; ++x) t.o[r][x] /= number(problem.o_scale, 0, 0, 0);
  write_row(problem.o, batch, place, row.head, t.o[r]);
  if (problem.wants_lse) {
    const View& lse = problem.lse;
    const int64_t index = batch * lse.stride[0] + row.head * lse.stride[1] + place * lse.stride[2];
    static_cast<float*>(lse.data)[index] = to_float(t.m[r] + std::log(t.l[r]) + offset);
  }
}

struct RunBlock {
  template <int width>
  [[gnu::always_inline]] static void run(const ForwardProblem& problem, const QueryBlock& block, QueryScratch& t) {
    const int d = score_columns(problem), columns = round_up(static_cast<int>(problem.head_dim_v), lanes);
    const bool transforms = problem.softcap > 0 || problem.alibi_slopes.data;
    read_queries(problem, block, t);
    for (double(&row)[v_stride] : t.o) std::fill_n(row, columns, 0.0);
    std::memset(t.l, 0, sizeof t.l);
    std::fill(t.m, t.m + Br, -INFINITY);
    // Blocks begin at the same keys for all rows, so that a row's bits are its own.
    const int64_t most = t.end[block.rows - 1];
    for (int64_t first = t.begin[0] / Bc * Bc; first < most; first += Bc) {
      const int keys = static_cast<int>(std::min<int64_t>(Bc, most - first));
      read_keys(problem, block, first, keys, t);
      for (int panel = 0; panel * lanes < block.rows; ++panel) {
        const int seen = panel_keys(t, panel, first, keys);
        if (seen == 0) continue;
        score<width>(panel, seen, d, t);
        if (transforms) transform<width>(problem, panel, first, seen, t);
        softmax<width>(panel, first, seen, transforms ? 1 : problem.softmax_scale, columns, t);
      }
      weigh<width>(block.rows, first, keys, columns, t);
    }
    for (int r = 0; r < block.rows; ++r) write_outputs(problem, block, r, t);
  }
};

// Tasks are the blocks of all sequences and heads of K and V.
struct QueryTasks {
  const ForwardProblem& problem;
  void (*run)(const ForwardProblem&, const QueryBlock&, QueryScratch&);
  SequenceTasks tasks;
};

// A head's last rows come first: they may see the most keys, and threads shall end together.
void run_task(const void* context, int64_t n, void* scratch) {
  const QueryTasks& work = *static_cast<const QueryTasks*>(context);
  const ForwardProblem& problem = work.problem;
  const auto [sequence, number, count] = work.tasks.of(n);
  const int64_t blocks = count / problem.heads_kv, head_kv = number / blocks;
  const int64_t first = (blocks - 1 - number % blocks) * Br;
  const Sequence s = sequence_of(problem, sequence);
  const int rows = static_cast<int>(std::min<int64_t>(Br, s.seqlen_q * problem.heads_per_kv() - first));
  work.run(problem, {s, sequence, head_kv, first, rows}, *static_cast<QueryScratch*>(scratch));
}

bool is_scale(double value) { return value > 0 && std::isfinite(value); }

fa3_status check_values(const char* name, const View& scale) {
  for (int64_t a = 0; a < scale.dim[0]; ++a)
    for (int64_t b = 0; b < scale.dim[1]; ++b)
      for (int64_t c = 0; c < scale.dim[2]; ++c)
        if (const double value = number(scale, a, b, c); !is_scale(value))
          return fail(FA3_ERROR_INVALID_ARGUMENT, "%s[%lld][%lld][%lld] is %g, must be > 0 and finite", name,
                      ll(a), ll(b), ll(c), value);
  return FA3_OK;
}

fa3_status check_scale_values(const ForwardProblem& problem) {
  if (fa3_status status = check_values("q_scale", problem.q_scale)) return status;
  if (fa3_status status = check_values("k_scale", problem.k_scale)) return status;
  if (fa3_status status = check_values("v_scale", problem.v_scale)) return status;
  if (const View& o_scale = problem.o_scale; o_scale.data && !is_scale(number(o_scale, 0, 0, 0)))
    return fail(FA3_ERROR_INVALID_ARGUMENT, "o_scale[0] is %g, must be > 0 and finite", number(o_scale, 0, 0, 0));
  return FA3_OK;
}

}  // namespace

fa3_status reference_forward(const ForwardProblem& problem, int threads, int widest_vector) {
  if (problem.empty()) return FA3_OK;
  if (fa3_status status = check_scale_values(problem)) return status;
  constexpr auto run = choose_width<RunBlock, const ForwardProblem&, const QueryBlock&, QueryScratch&>;
  QueryTasks work{problem, run(widest_vector), {}};
  const auto tasks_of = [&](int64_t b) {
    return divide_up(sequence_of(problem, b).seqlen_q * problem.heads_per_kv(), Br) * problem.heads_kv;
  };
  if (fa3_status status = work.tasks.count(problem, tasks_of)) return status;
  return work.tasks.all() == 0 ? FA3_OK
                               : run_tasks(run_task, &work, work.tasks.all(), threads, sizeof(QueryScratch));
}

}  // namespace fa3
