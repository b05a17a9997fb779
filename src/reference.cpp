// Blocked attention with an online softmax, in float64 throughout. It is the oracle of the kernels, so it takes the
// other way wherever there is a choice: no exponent tricks, masked keys are left out instead of multiplied by zero.
#include "reference.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "error.h"
#include "number.h"

namespace fa3 {
namespace {

constexpr int Br = 64;
constexpr int Bc = 64;
constexpr int max_d = 256;
constexpr int lanes = 8;  // columns of a matrix product computed together

// One thread's working set. Rows of q, v and o are padded to a multiple of `lanes`.
struct alignas(64) Scratch {
  double q[Br][max_d], k_transposed[max_d][Bc], v[Bc][max_d], s[Br][Bc], o[Br][max_d];
  double m[Br], l[Br];  // running maximum and sum
};

// C (rows x columns) += A (rows x depth) B (depth x columns); columns is a multiple of `lanes`. Four rows at a time
// keep their sums in registers. The clones differ in vector width only: nothing is fused, so all machines round alike.
typedef double Vector __attribute__((vector_size(lanes * sizeof(double))));

template <int rows>
[[gnu::always_inline]] inline void multiply_rows(int columns, int depth, const double* a, int stride_a, const double* b,
                                                 int stride_b, double* c, int stride_c) {
  for (int n = 0; n < columns; n += lanes) {
    Vector sum[rows];
    for (int r = 0; r < rows; ++r) std::memcpy(&sum[r], c + r * stride_c + n, sizeof(Vector));
    for (int x = 0; x < depth; ++x) {
      Vector right;
      std::memcpy(&right, b + x * stride_b + n, sizeof(Vector));
      for (int r = 0; r < rows; ++r) sum[r] += a[r * stride_a + x] * right;
    }
    for (int r = 0; r < rows; ++r) std::memcpy(c + r * stride_c + n, &sum[r], sizeof(Vector));
  }
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)  // its runtime is not there yet when the clone is chosen
[[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#endif
void multiply(int rows, int columns, int depth, const double* a, int stride_a, const double* b, int stride_b, double* c,
              int stride_c) {
  int r = 0;
  for (; r + 4 <= rows; r += 4)
    multiply_rows<4>(columns, depth, a + r * stride_a, stride_a, b, stride_b, c + r * stride_c, stride_c);
  for (; r < rows; ++r)
    multiply_rows<1>(columns, depth, a + r * stride_a, stride_a, b, stride_b, c + r * stride_c, stride_c);
}

char* element(const View& view, int64_t batch, int64_t row, int64_t head) {
  const int64_t index = batch * view.stride[0] + row * view.stride[1] + head * view.stride[2];
  return static_cast<char*>(view.data) + index * bytes_per_element(view.dtype);
}

// Reads `rows` rows of head_dim elements into out[row * row_step + x * element_step].
void read_rows(const View& view, int64_t batch, int64_t row, int64_t head, int rows, double* out, int row_step,
               int element_step) {
  const int64_t step = view.stride[3] * bytes_per_element(view.dtype);
  for (int r = 0; r < rows; ++r) {
    read_elements(element(view, batch, row + r, head), step, static_cast<int>(view.dim[3]), view.dtype,
                  out + r * row_step, element_step);
  }
}

int round_up(int64_t n, int multiple) { return static_cast<int>((n + multiple - 1) / multiple * multiple); }

// Query rows [first, first + rows) of one (batch, head).
struct Block {
  int64_t batch, head, first;
  int rows;
};

// How many keys row i sees: the first so many.
int64_t visible_keys(const Problem& problem, int64_t i) {
  if (!problem.causal) return problem.seqlen_k;
  return std::clamp<int64_t>(i + problem.causal_offset + 1, 0, problem.seqlen_k);
}

// One row against the `keys` keys it sees of the current block: softmax weights into s, o and l rescaled.
void softmax_row(Scratch& t, int r, int keys, double scale, int columns) {
  double* s = t.s[r];
  double m = t.m[r];
  for (int j = 0; j < keys; ++j) {
    s[j] *= scale;
    if (s[j] > m) m = s[j];
  }
  const double reference = m == -INFINITY ? 0 : m;
  const double correction = t.m[r] == -INFINITY ? 0 : std::exp(t.m[r] - reference);
  double sum = 0;
  for (int j = 0; j < keys; ++j) sum += s[j] = std::exp(s[j] - reference);
  if (t.m[r] != m)
    for (int x = 0; x < columns; ++x) t.o[r][x] *= correction;
  t.l[r] = t.l[r] * correction + sum;
  t.m[r] = m;
}

void write_row(const Problem& problem, const Block& block, int r, const Scratch& t) {
  const int64_t i = block.first + r;
  const bool sees_nothing = visible_keys(problem, i) == 0;
  char* out = element(problem.o, block.batch, i, block.head);
  const int64_t step = problem.o.stride[3] * bytes_per_element(problem.o.dtype);
  for (int x = 0; x < problem.head_dim; ++x)
    from_double(sees_nothing ? 0 : t.o[r][x] / t.l[r], out + x * step, problem.o.dtype);
  if (problem.wants_lse) {
    const View& lse = problem.lse;
    float* to =
        static_cast<float*>(lse.data) + block.batch * lse.stride[0] + block.head * lse.stride[1] + i * lse.stride[2];
    from_double(sees_nothing ? -INFINITY : t.m[r] + std::log(t.l[r]), to, FA3_DTYPE_FP32);
  }
}

void run_block(const Problem& problem, const Block& block, Scratch& t) {
  const int d = static_cast<int>(problem.head_dim), columns = round_up(d, lanes);
  const int64_t head_kv = block.head / problem.heads_per_kv();
  std::memset(t.o, 0, sizeof t.o);
  std::memset(t.l, 0, sizeof t.l);
  std::fill(t.m, t.m + Br, -INFINITY);
  read_rows(problem.q, block.batch, block.first, block.head, block.rows, t.q[0], max_d, 1);
  const int64_t most = visible_keys(problem, block.first + block.rows - 1);
  const int64_t least = visible_keys(problem, block.first);
  for (int64_t j = 0; j < most; j += Bc) {
    const int keys = static_cast<int>(std::min<int64_t>(Bc, most - j));
    read_rows(problem.k, block.batch, j, head_kv, keys, t.k_transposed[0], 1, Bc);
    read_rows(problem.v, block.batch, j, head_kv, keys, t.v[0], max_d, 1);
    std::memset(t.s, 0, sizeof t.s);
    multiply(block.rows, round_up(keys, lanes), d, t.q[0], max_d, t.k_transposed[0], Bc, t.s[0], Bc);
    const bool all_visible = least >= j + keys;
    for (int r = 0; r < block.rows; ++r) {
      const int seen = static_cast<int>(std::clamp<int64_t>(visible_keys(problem, block.first + r) - j, 0, keys));
      if (seen == 0) continue;
      softmax_row(t, r, seen, problem.softmax_scale, columns);
      if (!all_visible) multiply(1, columns, seen, t.s[r], Bc, t.v[0], max_d, t.o[r], max_d);
    }
    if (all_visible) multiply(block.rows, columns, keys, t.s[0], Bc, t.v[0], max_d, t.o[0], max_d);
  }
  for (int r = 0; r < block.rows; ++r) write_row(problem, block, r, t);
}

struct Work {
  const Problem& problem;
  int64_t q_blocks, blocks, next;  // next is claimed atomically
};

struct Worker {
  Work* work;
  Scratch* scratch;
  pthread_t thread;
};

void* run_worker(void* argument) {
  const Worker& worker = *static_cast<Worker*>(argument);
  Work& work = *worker.work;
  const Problem& problem = work.problem;
  for (;;) {
    const int64_t n = __atomic_fetch_add(&work.next, 1, __ATOMIC_RELAXED);
    if (n >= work.blocks) return nullptr;
    const int64_t batch_head = n / work.q_blocks, first = n % work.q_blocks * Br;
    const int rows = static_cast<int>(std::min<int64_t>(Br, problem.seqlen_q - first));
    run_block(problem, {batch_head / problem.heads, batch_head % problem.heads, first, rows}, *worker.scratch);
  }
}

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return std::max<int>(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

fa3_status reference_forward(const Problem& problem, int threads) {
  if (problem.empty()) return FA3_OK;
  Work work{problem, (problem.seqlen_q + Br - 1) / Br, 0, 0};
  if (__builtin_mul_overflow(work.q_blocks, problem.batch * problem.heads, &work.blocks))
    return fail(FA3_ERROR_UNSUPPORTED, "q.dim[0] * q.dim[1] * q.dim[2] overflows int64");

  constexpr int max_threads = 256;
  Worker workers[max_threads];
  const int wanted =
      static_cast<int>(std::min<int64_t>({threads ? threads : available_cores(), max_threads, work.blocks}));
  auto* scratch = static_cast<Scratch*>(std::aligned_alloc(alignof(Scratch), sizeof(Scratch) * wanted));
  if (scratch == nullptr)
    return fail(FA3_ERROR_OUT_OF_MEMORY, "no host memory for %zu bytes of scratch", sizeof(Scratch) * wanted);
  // The calling thread is the first worker; where the system refuses more threads, fewer do the same work.
  int started = 1;
  workers[0] = {&work, scratch, pthread_self()};
  for (; started < wanted; ++started) {
    workers[started] = {&work, scratch + started, {}};
    if (pthread_create(&workers[started].thread, nullptr, run_worker, &workers[started]) != 0) break;
  }
  run_worker(&workers[0]);
  for (int i = 1; i < started; ++i) pthread_join(workers[i].thread, nullptr);
  std::free(scratch);
  return FA3_OK;
}

}  // namespace fa3
