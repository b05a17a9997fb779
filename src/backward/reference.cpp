// The gradients in float64, by the formulas of fa3.h: the oracle of the kernels. dK and dV are computed for 64 keys at
// a time, over all rows that see them, and dQ for 64 rows at a time, over all keys that they see; so P and dS are
// computed twice, but no thread waits for another. Masked pairs are left out instead of multiplied by zero.
//
// For the same reasons as the forward pass (forward/reference.cpp) the result has the same bits whatever the threads
// and the width of the machine's vectors.
#include <algorithm>
#include <cstring>

#include "backward/backward.h"
#include "cpu/host_view.h"
#include "cpu/vectors.h"
#include "cpu/workers.h"
#include "error.h"
#include "integers.h"

namespace fa3 {
namespace {

constexpr int Br = 64, Bc = 64;  // rows and keys that meet at a time
constexpr int max_d = 256;
constexpr int stride = max_d + lanes, pair_stride = Br + lanes;  // powers of two would meet in few sets of the cache

// One thread's working set.
struct alignas(64) GradientScratch {
  double q[Br][stride], dout[Br][stride];
  double q_panel[Br / lanes][max_d][lanes], dout_panel[Br / lanes][max_d][lanes];  // the same, columns first
  double k[Bc][stride], v[Bc][stride];
  double p[Bc][pair_stride], ds[Bc][pair_stride];  // P and dS, keys first
  double dq[Br][max_d], dk[Bc][max_d], dv[Bc][max_d];
  double lse[Br], delta[Br];  // D of the formulas
  int64_t visible[Br];        // how many keys a row sees: the first so many
};

// Of one (batch, head of K and V): rows [first, first + count), or keys.
struct KeysOrRows {
  int64_t batch, head_kv, first;
  int count;
};

double number_or_0(const View& view, int64_t batch, const QueryRow& row) {
  return view.data ? number(view, batch, row.head, row.query) : 0;
}

// Behind the last row of the block it is repeated up to a whole panel; what comes of that is not used.
void read_rows(const BackwardProblem& problem, const KeysOrRows& block, GradientScratch& t) {
  const int d = static_cast<int>(problem.head_dim), d_v = static_cast<int>(problem.head_dim_v);
  double o[max_d];
  for (int r = 0; r < round_up(block.count, lanes); ++r) {
    const QueryRow row = row_of(problem, block.head_kv, block.first + std::min(r, block.count - 1));
    read_row(problem.q, block.batch, row.query, row.head, t.q[r]);
    read_row(problem.dout, block.batch, row.query, row.head, t.dout[r]);
    read_row(problem.o, block.batch, row.query, row.head, o);
    t.lse[r] = number(problem.lse, block.batch, row.head, row.query);
    t.delta[r] = -number_or_0(problem.dlse, block.batch, row);
    t.visible[r] = visible_keys(problem, row.query);
    for (int x = 0; x < d; ++x) t.q_panel[r / lanes][x][r % lanes] = t.q[r][x];
    for (int x = 0; x < d_v; ++x) {
      t.delta[r] += t.dout[r][x] * o[x];
      t.dout_panel[r / lanes][x][r % lanes] = t.dout[r][x];
    }
    std::fill(t.q[r] + d, t.q[r] + round_up(d, lanes), 0.0);
    std::fill(t.dout[r] + d_v, t.dout[r] + round_up(d_v, lanes), 0.0);
  }
}

void read_keys(const BackwardProblem& problem, const KeysOrRows& block, GradientScratch& t) {
  const int d = static_cast<int>(problem.head_dim);
  for (int j = 0; j < block.count; ++j) {
    read_row(problem.k, block.batch, block.first + j, block.head_kv, t.k[j]);
    read_row(problem.v, block.batch, block.first + j, block.head_kv, t.v[j]);
    std::fill(t.k[j] + d, t.k[j] + round_up(d, lanes), 0.0);
  }
}

// products[j][r] = keys[j] . panel's row r, for the panel's rows.
template <int width>
[[gnu::always_inline]] inline void multiply_keys(int count, int d, const double (&keys)[Bc][stride],
                                                 const double (&panel)[max_d][lanes], double* products) {
  for (int j = 0; j < count; ++j) std::memset(products + j * pair_stride, 0, lanes * sizeof(double));
  int j = 0;
  for (; j + width <= count; j += width)
    multiply<width, width>(d, keys[j], stride, 1, panel[0], lanes, products + j * pair_stride, pair_stride);
  for (; j < count; ++j)
    multiply<width, 1>(d, keys[j], stride, 1, panel[0], lanes, products + j * pair_stride, pair_stride);
}

// P and dS of the rows and keys that were read. Where a row does not see a key they mean nothing.
template <int width>
[[gnu::always_inline]] inline void pair(int rows, int keys, const BackwardProblem& problem, GradientScratch& t) {
  using Vector = typename Vectors<width>::Doubles;
  const int d = static_cast<int>(problem.head_dim), d_v = static_cast<int>(problem.head_dim_v);
  const double scale = problem.softmax_scale;
  for (int panel = 0; panel * lanes < rows; ++panel) {
    multiply_keys<width>(keys, d, t.k, t.q_panel[panel], &t.p[0][panel * lanes]);
    multiply_keys<width>(keys, d_v, t.v, t.dout_panel[panel], &t.ds[0][panel * lanes]);
    for (int row = panel * lanes; row < (panel + 1) * lanes; row += width) {
      const Vector lse = reinterpret_cast<const Vector&>(t.lse[row]);
      const Vector delta = reinterpret_cast<const Vector&>(t.delta[row]);
      for (int j = 0; j < keys; ++j) {
        Vector& p = reinterpret_cast<Vector&>(t.p[j][row]);
        Vector& ds = reinterpret_cast<Vector&>(t.ds[j][row]);
        p = p * scale - lse;
        exponentiate(p);
        ds = p * (ds - delta);
      }
    }
  }
}

// to[j] += sum of weights[j][r] of[r] over the rows that see key j. A row sees as many keys as the one before, or more:
// so these are the last rows. Rows that see all of `width` keys are taken for them together, the others key by key.
template <int width>
[[gnu::always_inline]] inline void add_to_keys(const double (&weights)[Bc][pair_stride], const double (&of)[Br][stride],
                                               int rows, int64_t first_key, int keys, int columns,
                                               const GradientScratch& t, double (&to)[Bc][max_d]) {
  const auto first_row = [&](int j) {
    int r = 0;
    while (r < rows && t.visible[r] <= first_key + j) ++r;
    return r;
  };
  for (int j = 0; j < keys; j += width) {
    const bool whole = j + width <= keys;
    const int together = whole ? first_row(j + width - 1) : rows;
    for (int i = j; i < std::min(j + width, keys); ++i)
      if (const int from = first_row(i); from < together)
        for (int x = 0; x < columns; x += lanes)
          multiply<width, 1>(together - from, &weights[i][from], pair_stride, 1, &of[from][x], stride, &to[i][x],
                             max_d);
    if (whole && together < rows)
      for (int x = 0; x < columns; x += lanes)
        multiply<width, width>(rows - together, &weights[j][together], pair_stride, 1, &of[together][x], stride,
                               &to[j][x], max_d);
  }
}

// dq[r] += sum of dS[j][r] k[j] over the keys that row r sees.
template <int width>
[[gnu::always_inline]] inline void add_to_rows(int rows, int64_t first_key, int keys, int columns, GradientScratch& t) {
  const auto seen = [&](int r) { return static_cast<int>(std::clamp<int64_t>(t.visible[r] - first_key, 0, keys)); };
  for (int r = 0; r < rows; r += width) {
    const int together = r + width <= rows ? seen(r) : 0;
    if (together > 0)
      for (int x = 0; x < columns; x += lanes)
        multiply<width, width>(together, &t.ds[0][r], 1, pair_stride, &t.k[0][x], stride, &t.dq[r][x], max_d);
    for (int i = r; i < std::min(r + width, rows); ++i)
      if (const int more = seen(i) - together; more > 0)
        for (int x = 0; x < columns; x += lanes)
          multiply<width, 1>(more, &t.ds[together][i], 1, pair_stride, &t.k[together][x], stride, &t.dq[i][x], max_d);
  }
}

// dK and dV of a block of keys.
struct RunKeys {
  template <int width>
  [[gnu::always_inline]] static void run(const BackwardProblem& problem, const KeysOrRows& keys, GradientScratch& t) {
    const int d = static_cast<int>(problem.head_dim), columns = round_up(d, lanes);
    const int columns_v = round_up(static_cast<int>(problem.head_dim_v), lanes);
    const int64_t all_rows = problem.seqlen_q * problem.heads_per_kv();
    std::memset(t.dk, 0, sizeof t.dk);
    std::memset(t.dv, 0, sizeof t.dv);
    read_keys(problem, keys, t);
    // Query i sees the first key if it is at most i + causal_offset.
    const int64_t first_query = problem.causal ? std::max<int64_t>(0, keys.first - problem.causal_offset) : 0;
    for (int64_t first = std::min(first_query, problem.seqlen_q) * problem.heads_per_kv(); first < all_rows;
         first += Br) {
      const int rows = static_cast<int>(std::min<int64_t>(Br, all_rows - first));
      read_rows(problem, {keys.batch, keys.head_kv, first, rows}, t);
      pair<width>(rows, keys.count, problem, t);
      add_to_keys<width>(t.p, t.dout, rows, keys.first, keys.count, columns_v, t, t.dv);
      add_to_keys<width>(t.ds, t.q, rows, keys.first, keys.count, columns, t, t.dk);
    }
    for (int j = 0; j < keys.count; ++j) {
      for (int x = 0; x < d; ++x) t.dk[j][x] *= problem.softmax_scale;
      write_row(problem.dk, keys.batch, keys.first + j, keys.head_kv, t.dk[j]);
      write_row(problem.dv, keys.batch, keys.first + j, keys.head_kv, t.dv[j]);
    }
  }
};

// dQ of a block of rows.
struct RunRows {
  template <int width>
  [[gnu::always_inline]] static void run(const BackwardProblem& problem, const KeysOrRows& rows, GradientScratch& t) {
    const int d = static_cast<int>(problem.head_dim), columns = round_up(d, lanes);
    std::memset(t.dq, 0, sizeof t.dq);
    read_rows(problem, rows, t);
    const int64_t most = t.visible[rows.count - 1];
    for (int64_t first = 0; first < most; first += Bc) {
      const int keys = static_cast<int>(std::min<int64_t>(Bc, most - first));
      read_keys(problem, {rows.batch, rows.head_kv, first, keys}, t);
      pair<width>(rows.count, keys, problem, t);
      add_to_rows<width>(rows.count, first, keys, columns, t);
    }
    for (int r = 0; r < rows.count; ++r) {
      for (int x = 0; x < d; ++x) t.dq[r][x] *= problem.softmax_scale;
      const QueryRow row = row_of(problem, rows.head_kv, rows.first + r);
      write_row(problem.dq, rows.batch, row.query, row.head, t.dq[r]);
    }
  }
};

using Run = void (*)(const BackwardProblem&, const KeysOrRows&, GradientScratch&);

// The blocks of all heads, each a task: `per_head` of a head, which has `count` rows or keys.
struct TaskKind {
  Run run;
  int64_t count, per_head, all;

  void of(const BackwardProblem& problem, int64_t n, int size, GradientScratch& t) const {
    const int64_t batch_head = n / per_head, first = n % per_head * size;
    run(problem, {batch_head / problem.heads_kv, batch_head % problem.heads_kv, first,
                  static_cast<int>(std::min<int64_t>(size, count - first))}, t);
  }
};

struct GradientTasks {
  const BackwardProblem& problem;
  TaskKind keys, rows;
};

void run_task(const void* context, int64_t n, void* scratch) {
  const GradientTasks& work = *static_cast<const GradientTasks*>(context);
  GradientScratch& t = *static_cast<GradientScratch*>(scratch);
  if (n < work.keys.all) work.keys.of(work.problem, n, Bc, t);
  else work.rows.of(work.problem, n - work.keys.all, Br, t);
}

}  // namespace

fa3_status reference_backward(const BackwardProblem& problem, int threads, int widest_vector) {
  constexpr auto run_keys = choose_width<RunKeys, const BackwardProblem&, const KeysOrRows&, GradientScratch&>;
  constexpr auto run_rows = choose_width<RunRows, const BackwardProblem&, const KeysOrRows&, GradientScratch&>;
  const int64_t heads = problem.batch * problem.heads_kv;  // both below 2^31
  const int64_t rows = problem.seqlen_q * problem.heads_per_kv();
  GradientTasks work{problem,
                     {run_keys(widest_vector), problem.seqlen_k, divide_up(problem.seqlen_k, Bc), 0},
                     {run_rows(widest_vector), rows, divide_up(rows, Br), 0}};
  int64_t tasks;
  if (__builtin_mul_overflow(heads, work.keys.per_head, &work.keys.all) ||
      __builtin_mul_overflow(heads, work.rows.per_head, &work.rows.all) ||
      __builtin_add_overflow(work.keys.all, work.rows.all, &tasks))
    return fail(FA3_ERROR_UNSUPPORTED, "q.dim[0] * q.dim[1] * q.dim[2] overflows int64");
  return tasks == 0 ? FA3_OK : run_tasks(run_task, &work, tasks, threads, sizeof(GradientScratch));
}

}  // namespace fa3
