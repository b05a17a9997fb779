// The gradients in float64, by the formulas of fa3.h: the oracle of the kernels. dK and dV are computed for 64 keys at
// a time, over all rows that see them, and dQ for 64 rows at a time, over all keys that they see; so P and dS are
// computed twice, but no thread waits for another. Masked pairs are left out instead of multiplied by zero. dsinks is
// summed up head by head.
//
// For the same reasons as the forward pass (forward/reference.cpp) the result has the same bits whatever the threads
// and the width of the machine's vectors.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backward/backward.h"
#include "cpu/host_sequences.h"
#include "cpu/vectors.h"
#include "cpu/workers.h"
#include "error.h"
#include "integers.h"
#include "params/v_tile.h"

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
  double lse[Br], delta[Br];   // D of the formulas
  double slope[Br];            // of ALiBi; 0: none
  double position[Br];         // of the row's query, among the keys
  int64_t begin[Br], end[Br];  // of the keys that a row sees; neither falls from one row to the next
};

// Of one (sequence, head of K and V): rows [first, first + count), or keys, of which those in use are the first ones.
struct KeysOrRows {
  int64_t number;  // of the sequence
  Sequence sequence;
  int64_t head_kv, first;
  int count, used;
};

double number_or_0(const View& view, int64_t batch, int64_t head, int64_t row) {
  return view.data ? number(view, batch, head, row) : 0;
}

// Elements of e4m3 become those of the problem; without scales they are already.
void apply_scale(const View& scale, int64_t sequence, int64_t row, int64_t head, double* elements, int64_t count) {
  if (!scale.data) return;
  const double factor = number(scale, sequence, head, row / FA3_SCALE_ROWS);
  for (int64_t x = 0; x < count; ++x) elements[x] *= factor;
}

// A row of V, with its mean.
void read_value(const BackwardProblem& problem, const KeysOrRows& block, int64_t key, double* v) {
  const Sequence& s = block.sequence;
  const int64_t place = s.k_row + key, head = block.head_kv;
  if (problem.v_tiles) {
    const char* const tile = element(problem.v, s.k_batch, place / v_tile_keys, head);
    const int byte = v_tile_byte(static_cast<int>(place % v_tile_keys));
    for (int x = 0; x < problem.head_dim_v; ++x)
      v[x] = decode(static_cast<uint8_t>(tile[v_tile_keys * v_tile_row(x) + byte]), e4m3);
  } else {
    read_row(problem.v, s.k_batch, place, head, v);
  }
  apply_scale(problem.v_scale, block.number, key, head, v, problem.head_dim_v);
  if (!problem.v_mean.data) return;
  for (int x = 0; x < problem.head_dim_v; ++x) v[x] += number(problem.v_mean, block.number, head, x);
}

// Behind the last row of the block it is repeated up to a whole panel; what comes of that is not used.
void read_rows(const BackwardProblem& problem, const KeysOrRows& block, GradientScratch& t) {
  const int d = static_cast<int>(problem.head_dim), d_v = static_cast<int>(problem.head_dim_v);
  const Sequence& s = block.sequence;
  double o[max_d];
  for (int r = 0; r < round_up(block.used, lanes); ++r) {
    const QueryRow row = row_of(problem, block.head_kv, block.first + std::min(r, block.used - 1));
    const int64_t batch = s.q_batch, place = s.q_row + row.query;
    read_row(problem.q, batch, place, row.head, t.q[r]);
    apply_scale(problem.q_scale, block.number, row.query, row.head, t.q[r], d);
    read_row(problem.dout, batch, place, row.head, t.dout[r]);
    read_row(problem.o, batch, place, row.head, o);
    // K as it is stored lacks what lse_offset has added.
    t.lse[r] = number(problem.lse, batch, row.head, place) - number_or_0(problem.lse_offset, batch, row.head, place);
    t.delta[r] = -number_or_0(problem.dlse, batch, row.head, place);
    const Keys keys = seen_keys(problem, s, row.query);
    t.begin[r] = keys.begin, t.end[r] = keys.end;
    t.slope[r] = number_or_0(problem.alibi_slopes, block.number, row.head, 0);
    t.position[r] = static_cast<double>(row.query + s.seqlen_k - s.seqlen_q);
    for (int x = 0; x < d; ++x) t.q_panel[r / lanes][x][r % lanes] = t.q[r][x];
    for (int x = 0; x < d_v; ++x) {
      t.delta[r] += t.dout[r][x] * o[x];
      t.dout_panel[r / lanes][x][r % lanes] = t.dout[r][x];
    }
    std::fill(t.q[r] + d, t.q[r] + round_up(d, lanes), 0.0);
    std::fill(t.dout[r] + d_v, t.dout[r] + round_up(d_v, lanes), 0.0);
  }
}

// Those from `first` on.
void read_keys(const BackwardProblem& problem, const KeysOrRows& block, int64_t first, int keys, GradientScratch& t) {
  const int d = static_cast<int>(problem.head_dim);
  const Sequence& s = block.sequence;
  for (int j = 0; j < keys; ++j) {
    read_row(problem.k, s.k_batch, s.k_row + first + j, block.head_kv, t.k[j]);
    apply_scale(problem.k_scale, block.number, first + j, block.head_kv, t.k[j], d);
    read_value(problem, block, first + j, t.v[j]);
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
[[gnu::always_inline]] inline void pair(int rows, int64_t first_key, int keys, const BackwardProblem& problem,
                                        GradientScratch& t) {
  using Vector = typename Vectors<width>::Doubles;
  const int d = static_cast<int>(problem.head_dim), d_v = static_cast<int>(problem.head_dim_v);
  const double scale = problem.softmax_scale, cap = problem.softcap;
  for (int panel = 0; panel * lanes < rows; ++panel) {
    multiply_keys<width>(keys, d, t.k, t.q_panel[panel], &t.p[0][panel * lanes]);
    multiply_keys<width>(keys, d_v, t.v, t.dout_panel[panel], &t.ds[0][panel * lanes]);
    for (int row = panel * lanes; row < (panel + 1) * lanes; row += width) {
      const Vector lse = reinterpret_cast<const Vector&>(t.lse[row]);
      const Vector delta = reinterpret_cast<const Vector&>(t.delta[row]);
      const Vector slope = reinterpret_cast<const Vector&>(t.slope[row]);
      const Vector position = reinterpret_cast<const Vector&>(t.position[row]);
      for (int j = 0; j < keys; ++j) {
        Vector& p = reinterpret_cast<Vector&>(t.p[j][row]);
        Vector& ds = reinterpret_cast<Vector&>(t.ds[j][row]);
        p *= scale;
        ds -= delta;
        if (cap > 0) {
          p /= cap;
          to_tanh(p);
          ds *= 1 - p * p;
          p *= cap;
        }
        const Vector distance = position - static_cast<double>(first_key + j);
        if (problem.alibi_slopes.data) p -= slope * (distance < 0 ? -distance : distance);
        p -= lse;
        exponentiate(p);
        ds *= p;
      }
    }
  }
}

// to[j] += sum of weights[j][r] of[r] over the rows that see key j, which lie one after the other. Those that see all
// of `width` keys are taken for them together, the others key by key, before and behind.
template <int width>
[[gnu::always_inline]] inline void add_to_keys(const double (&weights)[Bc][pair_stride], const double (&of)[Br][stride],
                                               int rows, int64_t first_key, int keys, int columns,
                                               const GradientScratch& t, double (&to)[Bc][max_d]) {
  const auto first_behind = [rows](const int64_t (&bounds)[Br], int64_t key) {
    return static_cast<int>(std::upper_bound(bounds, bounds + rows, key) - bounds);
  };
  const auto add_one = [&](int j, int from, int to_row) {
    if (from < to_row)
      for (int x = 0; x < columns; x += lanes)
        multiply<width, 1>(to_row - from, &weights[j][from], pair_stride, 1, &of[from][x], stride, &to[j][x], max_d);
  };
  for (int j = 0; j < keys; j += width) {
    const bool whole = j + width <= keys;
    const int from = whole ? first_behind(t.end, first_key + j + width - 1) : rows;
    const int behind = whole ? first_behind(t.begin, first_key + j) : rows;
    const bool together = from < behind;
    for (int i = j; i < std::min(j + width, keys); ++i) {
      const int last = first_behind(t.begin, first_key + i);
      add_one(i, first_behind(t.end, first_key + i), together ? from : last);
    }
    if (!together) continue;
    for (int x = 0; x < columns; x += lanes)
      multiply<width, width>(behind - from, &weights[j][from], pair_stride, 1, &of[from][x], stride, &to[j][x], max_d);
    for (int i = j; i < j + width; ++i) add_one(i, behind, first_behind(t.begin, first_key + i));
  }
}

// dq[r] += sum of dS[j][r] k[j] over the keys that row r sees.
template <int width>
[[gnu::always_inline]] inline void add_to_rows(int rows, int64_t first_key, int keys, int columns, GradientScratch& t) {
  const auto within = [&](int64_t key) { return static_cast<int>(std::clamp<int64_t>(key - first_key, 0, keys)); };
  const auto add_one = [&](int r, int from, int to) {
    if (from < to)
      for (int x = 0; x < columns; x += lanes)
        multiply<width, 1>(to - from, &t.ds[from][r], 1, pair_stride, &t.k[from][x], stride, &t.dq[r][x], max_d);
  };
  for (int r = 0; r < rows; r += width) {
    const bool whole = r + width <= rows;
    const int from = whole ? within(t.begin[r + width - 1]) : 0, behind = whole ? within(t.end[r]) : 0;
    const bool together = from < behind;
    for (int i = r; i < std::min(r + width, rows); ++i)
      add_one(i, within(t.begin[i]), together ? from : within(t.end[i]));
    if (!together) continue;
    for (int x = 0; x < columns; x += lanes)
      multiply<width, width>(behind - from, &t.ds[from][r], 1, pair_stride, &t.k[from][x], stride, &t.dq[r][x], max_d);
    for (int i = r; i < r + width; ++i) add_one(i, behind, within(t.end[i]));
  }
}

// The queries of the sequence that see any of the keys [begin, end).
struct Queries {
  int64_t begin, end;
};
Queries queries_of_keys(const BackwardProblem& problem, const Sequence& s, int64_t begin, int64_t end) {
  const auto first = [&](auto holds) {  // which from some query on it does
    int64_t low = 0, high = s.seqlen_q;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (holds(seen_keys(problem, s, middle))) high = middle;
      else low = middle + 1;
    }
    return low;
  };
  return {first([begin](Keys keys) { return keys.end > begin; }),
          first([end](Keys keys) { return keys.begin >= end; })};
}

// A row of a gradient, of which so many numbers are in `values`; what is there is added to them if that is asked for.
void write_gradient(const BackwardProblem& problem, const View& view, int64_t batch, int64_t row, int64_t head,
                    double* values) {
  if (problem.store == GradientStore::added_fp32) {
    double before[max_d];
    read_row(view, batch, row, head, before);
    for (int64_t x = 0; x < view.dim[3]; ++x) values[x] += before[x];
  }
  write_row(view, batch, row, head, values);
}

// dK and dV of a block of keys.
struct RunKeys {
  template <int width>
  [[gnu::always_inline]] static void run(const BackwardProblem& problem, const KeysOrRows& keys, GradientScratch& t) {
    const int d = static_cast<int>(problem.head_dim), columns = round_up(d, lanes);
    const int columns_v = round_up(static_cast<int>(problem.head_dim_v), lanes);
    const Sequence& s = keys.sequence;
    std::memset(t.dk, 0, sizeof t.dk);
    std::memset(t.dv, 0, sizeof t.dv);
    read_keys(problem, keys, keys.first, keys.used, t);
    const Queries queries = queries_of_keys(problem, s, keys.first, keys.first + keys.used);
    const int64_t all_rows = queries.end * problem.heads_per_kv();
    for (int64_t first = queries.begin * problem.heads_per_kv(); first < all_rows; first += Br) {
      const int rows = static_cast<int>(std::min<int64_t>(Br, all_rows - first));
      read_rows(problem, {keys.number, s, keys.head_kv, first, rows, rows}, t);
      pair<width>(rows, keys.first, keys.used, problem, t);
      add_to_keys<width>(t.p, t.dout, rows, keys.first, keys.used, columns_v, t, t.dv);
      add_to_keys<width>(t.ds, t.q, rows, keys.first, keys.used, columns, t, t.dk);
    }
    for (int j = 0; j < keys.count; ++j) {
      for (int x = 0; x < d; ++x) t.dk[j][x] *= problem.softmax_scale;
      write_gradient(problem, problem.dk, s.k_batch, s.k_row + keys.first + j, keys.head_kv, t.dk[j]);
      write_gradient(problem, problem.dv, s.k_batch, s.k_row + keys.first + j, keys.head_kv, t.dv[j]);
    }
  }
};

// dQ of a block of rows.
struct RunRows {
  template <int width>
  [[gnu::always_inline]] static void run(const BackwardProblem& problem, const KeysOrRows& rows, GradientScratch& t) {
    const int d = static_cast<int>(problem.head_dim), columns = round_up(d, lanes);
    const Sequence& s = rows.sequence;
    std::memset(t.dq, 0, sizeof t.dq);
    read_rows(problem, rows, t);
    const int64_t most = rows.used > 0 ? t.end[rows.used - 1] : 0;
    for (int64_t first = rows.used > 0 ? t.begin[0] : 0; first < most; first += Bc) {
      const int keys = static_cast<int>(std::min<int64_t>(Bc, most - first));
      read_keys(problem, rows, first, keys, t);
      pair<width>(rows.used, first, keys, problem, t);
      add_to_rows<width>(rows.used, first, keys, columns, t);
    }
    for (int r = 0; r < rows.count; ++r) {
      for (int x = 0; x < d; ++x) t.dq[r][x] *= problem.softmax_scale;
      const QueryRow row = row_of(problem, rows.head_kv, rows.first + r);
      write_gradient(problem, problem.dq, s.q_batch, s.q_row + row.query, row.head, t.dq[r]);
    }
  }
};

// What the row's exponential of the sink adds to dsinks. Where a row sees no key, its LSE is the sink.
double gradient_of_sink(const BackwardProblem& problem, const Sequence& s, double sink, QueryRow row,
                        GradientScratch& t) {
  const int64_t batch = s.q_batch, place = s.q_row + row.query;
  const double dlse = number_or_0(problem.dlse, batch, row.head, place);
  const Keys keys = seen_keys(problem, s, row.query);
  if (keys.none()) return sink == -INFINITY ? 0 : dlse;
  read_row(problem.dout, batch, place, row.head, t.dout[0]);
  read_row(problem.o, batch, place, row.head, t.q[0]);
  double delta = -dlse;
  for (int x = 0; x < problem.head_dim_v; ++x) delta += t.dout[0][x] * t.q[0][x];
  Vectors<2>::Doubles weight = {sink - number(problem.lse, batch, row.head, place), 0};
  exponentiate(weight);
  return -weight[0] * delta;
}

void run_sink(const BackwardProblem& problem, int64_t head, GradientScratch& t) {
  const double sink = number(problem.sinks, head, 0, 0);
  double sum = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Sequence s = sequence_of(problem, b);
    for (int64_t i = 0; i < s.seqlen_q; ++i) sum += gradient_of_sink(problem, s, sink, {i, head}, t);
  }
  static_cast<float*>(problem.dsinks.data)[head * problem.dsinks.stride[0]] = to_float(sum);
}

// How many rows of its tensors the sequence has, in use or not.
struct AllRows {
  int64_t q, k;
};
AllRows all_rows_of(const BackwardProblem& problem, int64_t b) {
  PlannedShape all = problem;
  all.lengths.used_q = all.lengths.used_k = nullptr;
  const Sequence s = sequence_of(all, b);
  return {problem.total_q < 0 ? problem.q.dim[1] : s.seqlen_q, problem.total_k < 0 ? problem.k.dim[1] : s.seqlen_k};
}

using Run = void (*)(const BackwardProblem&, const KeysOrRows&, GradientScratch&);

// Tasks are the heads of sinks, then the blocks of keys of all sequences and heads of K and V, then those of rows.
struct GradientTasks {
  const BackwardProblem& problem;
  Run run_keys, run_rows;
  int64_t sinks;
  SequenceTasks keys, rows;
};

// Block n of a sequence and its heads, each of which has `count` rows or keys.
KeysOrRows block_of(const BackwardProblem& problem, const Sequence& s, const SequenceTasks::Place& place, int64_t count,
                    int64_t used, int size) {
  const int64_t blocks = place.count / problem.heads_kv, first = place.number % blocks * size;
  return {place.sequence, s, place.number / blocks, first, static_cast<int>(std::min<int64_t>(size, count - first)),
          static_cast<int>(std::clamp<int64_t>(used - first, 0, size))};
}

void run_task(const void* context, int64_t n, void* scratch) {
  const GradientTasks& work = *static_cast<const GradientTasks*>(context);
  const BackwardProblem& problem = work.problem;
  GradientScratch& t = *static_cast<GradientScratch*>(scratch);
  if (n < work.sinks) return run_sink(problem, n, t);
  n -= work.sinks;
  const bool is_keys = n < work.keys.all();
  const SequenceTasks::Place place = is_keys ? work.keys.of(n) : work.rows.of(n - work.keys.all());
  const Sequence s = sequence_of(problem, place.sequence);
  const AllRows all = all_rows_of(problem, place.sequence);
  const int64_t heads = problem.heads_per_kv();
  if (is_keys) work.run_keys(problem, block_of(problem, s, place, all.k, s.seqlen_k, Bc), t);
  else work.run_rows(problem, block_of(problem, s, place, all.q * heads, s.seqlen_q * heads, Br), t);
}

}  // namespace

fa3_status reference_backward(const BackwardProblem& problem, int threads, int widest_vector) {
  constexpr auto run_keys = choose_width<RunKeys, const BackwardProblem&, const KeysOrRows&, GradientScratch&>;
  constexpr auto run_rows = choose_width<RunRows, const BackwardProblem&, const KeysOrRows&, GradientScratch&>;
  GradientTasks work{problem, run_keys(widest_vector), run_rows(widest_vector), problem.dsinks.dim[0], {}, {}};
  const auto blocks_of_keys = [&](int64_t b) { return divide_up(all_rows_of(problem, b).k, Bc) * problem.heads_kv; };
  const auto blocks_of_rows = [&](int64_t b) {
    return divide_up(all_rows_of(problem, b).q * problem.heads_per_kv(), Br) * problem.heads_kv;
  };
  if (fa3_status status = work.keys.count(problem, blocks_of_keys)) return status;
  if (fa3_status status = work.rows.count(problem, blocks_of_rows)) return status;
  int64_t tasks;
  if (__builtin_add_overflow(work.keys.all(), work.rows.all(), &tasks) ||
      __builtin_add_overflow(tasks, work.sinks, &tasks))
    return fail(FA3_ERROR_UNSUPPORTED, "q.dim[0] * q.dim[1] * q.dim[2] overflows int64");
  return tasks == 0 ? FA3_OK : run_tasks(run_task, &work, tasks, threads, sizeof(GradientScratch));
}

}  // namespace fa3
