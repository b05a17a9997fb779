// Blocked attention with an online softmax, in float64 throughout. It is the oracle of the kernels, so it takes the
// other way wherever there is a choice: natural exponentials relative to exact row maxima, masked keys are left out
// instead of multiplied by zero.
//
// reference_forward shares out blocks to threads; RunBlock computes one:
//   read_queries    its rows: the queries of all heads that use one head of K and V, as doubles
//   for 64 keys at a time, as many as its last row sees:
//     read_keys     K and V as doubles, once for all these rows
//     score         S = Q K^T
//     softmax       S becomes weights; running maximum m and sum l; O rescaled where m has grown
//     weigh         O += P V
//   write_outputs   O / l, m + log(l)
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

#include "cpu/host_view.h"
#include "cpu/vectors.h"
#include "cpu/workers.h"
#include "error.h"
#include "integers.h"
#include "v_tile.h"

namespace fa3 {
namespace {

constexpr int Br = 128;   // rows of a block
constexpr int Bc = 64;    // keys read together
constexpr int panels = Br / lanes;
constexpr int max_d = 256;
constexpr int kv_stride = max_d + lanes;  // a power of two would put a column's elements into few sets of the cache

// One thread's working set.
struct alignas(64) QueryScratch {
  double q[panels][max_d][lanes];
  double k[Bc][kv_stride], v[Bc][kv_stride];
  double s[panels][Bc][lanes];  // scores, then weights
  double o[Br][max_d];
  double m[Br], l[Br], correction[Br];
  int64_t visible[Br];  // how many keys a row sees: the first so many
};

// Rows [first, first + rows) of one (batch, head of K and V).
struct QueryBlock {
  int64_t batch, head_kv, first;
  int rows;
};

QueryRow row_of(const ForwardProblem& problem, const QueryBlock& block, int r) {
  return fa3::row_of(problem, block.head_kv, block.first + r);
}

// A row's elements become those of the problem; without scales they are already.
void apply_scale(const View& scale, int64_t batch, int64_t row, int64_t head, double* elements, int count) {
  if (scale.data == nullptr) return;
  const double factor = number(scale, batch, head, row / FA3_SCALE_ROWS);
  for (int x = 0; x < count; ++x) elements[x] *= factor;
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
  double elements[max_d];
  for (int r = 0; r < round_up(block.rows, lanes); ++r) {
    const QueryRow row = row_of(problem, block, std::min(r, block.rows - 1));
    read_row(problem.q, block.batch, row.query, row.head, elements);
    apply_scale(problem.q_scale, block.batch, row.query, row.head, elements, d);
    for (int x = 0; x < d; ++x) t.q[r / lanes][x][r % lanes] = elements[x];
    t.visible[r] = visible_keys(problem, row.query);
  }
}

// V is zero-filled to whole vectors.
void read_keys(const ForwardProblem& problem, const QueryBlock& block, int64_t first, int keys, QueryScratch& t) {
  const int d = static_cast<int>(problem.head_dim), dv = static_cast<int>(problem.head_dim_v);
  for (int j = 0; j < keys; ++j) {
    read_row(problem.k, block.batch, first + j, block.head_kv, t.k[j]);
    if (problem.v_tiles) read_key_of_tile(problem, block.batch, first + j, block.head_kv, t.v[j]);
    else read_row(problem.v, block.batch, first + j, block.head_kv, t.v[j]);
    apply_scale(problem.k_scale, block.batch, first + j, block.head_kv, t.k[j], d);
    apply_scale(problem.v_scale, block.batch, first + j, block.head_kv, t.v[j], dv);
    std::fill(t.v[j] + dv, t.v[j] + round_up(dv, lanes), 0.0);
  }
}

// The largest number of keys that a row of the panel sees of those from `first` on.
int panel_keys(const QueryScratch& t, int panel, int64_t first, int keys) {
  return static_cast<int>(std::clamp<int64_t>(t.visible[panel * lanes + lanes - 1] - first, 0, keys));
}

template <int width>
[[gnu::always_inline]] inline void score(int panel, int keys, int d, QueryScratch& t) {
  std::memset(t.s[panel], 0, sizeof t.s[panel]);
  int j = 0;
  for (; j + width <= keys; j += width)
    multiply<width, width>(d, t.k[j], kv_stride, 1, t.q[panel][0], lanes, t.s[panel][j], lanes);
  for (; j < keys; ++j) multiply<width, 1>(d, t.k[j], kv_stride, 1, t.q[panel][0], lanes, t.s[panel][j], lanes);
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
    const Integers visible = reinterpret_cast<const Integers&>(t.visible[row]);
    const Vector before = reinterpret_cast<const Vector&>(t.m[row]);
    Vector m = before;
    for (int j = 0; j < keys; ++j) {
      Vector& s = reinterpret_cast<Vector&>(t.s[panel][j][lane]);
      s = visible > first + j ? s * scale : Vector{} - INFINITY;
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

// The keys that all of `width` rows see are weighed together, the others row by row.
template <int width>
[[gnu::always_inline]] inline void weigh(int rows, int64_t first, int keys, int columns, QueryScratch& t) {
  const auto seen = [&](int r) { return static_cast<int>(std::clamp<int64_t>(t.visible[r] - first, 0, keys)); };
  for (int n = 0; n < columns; n += lanes)
    for (int r = 0; r < rows; r += width) {
      const double* weights = &t.s[r / lanes][0][r % lanes];
      const double* v = &t.v[0][n];
      const int together = r + width <= rows ? seen(r) : 0;
      multiply<width, width>(together, weights, 1, lanes, v, kv_stride, &t.o[r][n], max_d);
      for (int i = r; i < std::min(r + width, rows); ++i)
        multiply<width, 1>(seen(i) - together, weights + together * lanes + i - r, 1, lanes, v + together * kv_stride,
                           kv_stride, &t.o[i][n], max_d);
    }
}

void write_outputs(const ForwardProblem& problem, const QueryBlock& block, int r, QueryScratch& t) {
  const QueryRow row = row_of(problem, block, r);
  const int dv = static_cast<int>(problem.head_dim_v);
  const bool sees_nothing = t.visible[r] == 0;
  for (int x = 0; x < dv; ++x) t.o[r][x] = sees_nothing ? 0 : t.o[r][x] / t.l[r];
  if (problem.v_mean.data && !sees_nothing)
    for (int x = 0; x < dv; ++x) t.o[r][x] += number(problem.v_mean, block.batch, block.head_kv, x);
  if (problem.o_scale.data)
    for (int x = 0; x < dv; ++x) t.o[r][x] /= number(problem.o_scale, 0, 0, 0);
  write_row(problem.o, block.batch, row.query, row.head, t.o[r]);
  if (problem.wants_lse) {
    const View& lse = problem.lse;
    const int64_t index = block.batch * lse.stride[0] + row.head * lse.stride[1] + row.query * lse.stride[2];
    const View& offset = problem.lse_offset;
    const double added = offset.data ? number(offset, block.batch, row.head, row.query) : 0;
    static_cast<float*>(lse.data)[index] = to_float(sees_nothing ? -INFINITY : t.m[r] + std::log(t.l[r]) + added);
  }
}

struct RunBlock {
  template <int width>
  [[gnu::always_inline]] static void run(const ForwardProblem& problem, const QueryBlock& block, QueryScratch& t) {
    const int d = static_cast<int>(problem.head_dim), columns = round_up(static_cast<int>(problem.head_dim_v), lanes);
    read_queries(problem, block, t);
    std::memset(t.o, 0, sizeof t.o);
    std::memset(t.l, 0, sizeof t.l);
    std::fill(t.m, t.m + Br, -INFINITY);
    const int64_t most = t.visible[block.rows - 1];
    for (int64_t first = 0; first < most; first += Bc) {
      const int keys = static_cast<int>(std::min<int64_t>(Bc, most - first));
      read_keys(problem, block, first, keys, t);
      for (int panel = 0; panel * lanes < block.rows; ++panel) {
        const int seen = panel_keys(t, panel, first, keys);
        if (seen == 0) continue;
        score<width>(panel, seen, d, t);
        softmax<width>(panel, first, seen, problem.softmax_scale, columns, t);
      }
      weigh<width>(block.rows, first, keys, columns, t);
    }
    for (int r = 0; r < block.rows; ++r) write_outputs(problem, block, r, t);
  }
};

struct QueryTasks {
  const ForwardProblem& problem;
  void (*run)(const ForwardProblem&, const QueryBlock&, QueryScratch&);
  int64_t rows, blocks_per_head;  // of one head of K and V
};

// A head's last rows come first: they may see the most keys, and threads shall end together.
void run_task(const void* context, int64_t n, void* scratch) {
  const QueryTasks& work = *static_cast<const QueryTasks*>(context);
  const int64_t batch_head = n / work.blocks_per_head, heads_kv = work.problem.heads_kv;
  const int64_t first = (work.blocks_per_head - 1 - n % work.blocks_per_head) * Br;
  const int rows = static_cast<int>(std::min<int64_t>(Br, work.rows - first));
  work.run(work.problem, {batch_head / heads_kv, batch_head % heads_kv, first, rows},
           *static_cast<QueryScratch*>(scratch));
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
  const int64_t rows = problem.seqlen_q * problem.heads_per_kv();
  const QueryTasks work{problem, run(widest_vector), rows, divide_up(rows, Br)};
  int64_t blocks;
  if (__builtin_mul_overflow(work.blocks_per_head, problem.batch * problem.heads_kv, &blocks))
    return fail(FA3_ERROR_UNSUPPORTED, "q.dim[0] * q.dim[1] * q.dim[2] overflows int64");
  return run_tasks(run_task, &work, blocks, threads, sizeof(QueryScratch));
}

}  // namespace fa3
