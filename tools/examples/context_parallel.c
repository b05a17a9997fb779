/* Causal attention over one sequence whose tokens are spread over several GPUs (context parallelism), in plain C over
 * NCCL: each rank has two chunks of 2 * ranks, the first and the last one and so on, so that all have as much to do; K
 * and V of all are gathered, in order; then each chunk of queries is one call on the keys up to its end. This is the
 * forward pass of fa3.distributed's method "all_gather"; the backward pass needs sums of dk and dv besides, for which
 * there is fa3.distributed, or a program's own kernel.
 *
 *   cc -std=c11 context_parallel.c $(pkg-config --cflags --libs fa3) -lm -ldl
 *   context_parallel [--ranks N] [--seqlen N] [--heads N] [--heads-kv N] [--head-dim N] [--repeats N] [--cpu]
 *
 * One process has all GPUs, as many as there are unless --ranks says less. The CUDA driver and NCCL (libnccl.so.2, or
 * the file that NCCL_LIBRARY names; its package on PyPI is nvidia-nccl-cu13) are looked for when the program runs.
 * --cpu: by the library's reference, copies in the place of NCCL. Results are held against those of one rank. Exit
 * status: 0 if they agree, 1 if not or a call failed, 2 for wrong arguments, 77 without two Hopper GPUs or NCCL. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <fa3.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { most_ranks = 64, no_gpus = 77 };

typedef uint16_t bf16;

static struct { long ranks, seqlen, heads, heads_kv, head_dim, repeats, cpu; } asked = {0, 32768, 32, 8, 128, 5, 0};

static void fail(const char* call, const char* why) {
  fprintf(stderr, "context_parallel: %s: %s\n", call, why);
  exit(1);
}

static void give_up(const char* why) {
  fprintf(stderr, "context_parallel: %s; --cpu needs no GPU\n", why);
  exit(no_gpus);
}

static void check(const char* call, fa3_status status) {
  if (status != FA3_OK) fail(call, fa3_last_error_message());
}

/* ---- the CUDA driver and NCCL: what this program needs of them --------------------------------------------- */

typedef struct ncclComm* communicator;
enum { nccl_bfloat16 = 9 }; /* of ncclDataType_t */

static struct {
  int (*init)(unsigned);
  int (*device_count)(int* count);
  int (*device_get)(int* device, int ordinal);
  int (*primary_context)(void** context, int device);
  int (*set_current)(void* context);
  int (*alloc)(uint64_t* address, size_t bytes);
  int (*to_device)(uint64_t to, const void* from, size_t bytes);
  int (*to_host)(void* to, uint64_t from, size_t bytes);
  int (*stream_create)(fa3_stream* stream, unsigned flags);
  int (*stream_synchronize)(fa3_stream stream);
  int (*context_synchronize)(void);
  int (*attribute)(int* value, int which, int device);
} cuda;

static struct {
  int (*init_all)(communicator* communicators, int devices, const int* ordinals);
  const char* (*error)(int result);
  int (*group_start)(void);
  int (*group_end)(void);
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, communicator with, fa3_stream stream);
  int (*destroy)(communicator with);
} nccl;

/* The functions of a library, in the order of `names`. Ends the program if they are not there. */
static void load(void* functions, const char* file, const char* const* names, size_t count) {
  char why[512];
  void* library = dlopen(file, RTLD_NOW);
  if (!library) {
    snprintf(why, sizeof why, "no %s: %s", file, dlerror());
    give_up(why);
  }
  for (size_t i = 0; i < count; ++i) {
    void* found = dlsym(library, names[i]);
    snprintf(why, sizeof why, "%s has no %s", file, names[i]);
    if (!found) give_up(why);
    memcpy((char*)functions + i * sizeof found, &found, sizeof found);
  }
}

static void check_cuda(const char* call, int result) {
  char number[32];
  snprintf(number, sizeof number, "CUDA error %d", result);
  if (result) fail(call, number);
}

static void check_nccl(const char* call, int result) {
  if (result) fail(call, nccl.error(result));
}

static int is_hopper(int device) {
  int major = 0, minor = 0;
  check_cuda("cuDeviceGetAttribute", cuda.attribute(&major, 75, device));
  check_cuda("cuDeviceGetAttribute", cuda.attribute(&minor, 76, device));
  return major == 9 && minor == 0;
}

/* ---- ranks ------------------------------------------------------------------------------------------------- */

typedef struct rank {
  void* context;
  fa3_stream stream;
  communicator with;
  bf16 *q, *k, *v, *o; /* of its own rows: chunk i, then chunk 2 * ranks - 1 - i */
  float* lse[2]; /* of each chunk */
  bf16 *all_k, *all_v; /* of all rows, in order */
  void* workspace[2];
  size_t workspace_bytes[2];
} rank;

static rank ranks[most_ranks];

static long chunk_rows(void) { return asked.seqlen / (2 * asked.ranks); }
static long chunk_of(long r, int half) { return half ? 2 * asked.ranks - 1 - r : r; }
static long owner_of(long chunk) { return chunk < asked.ranks ? chunk : 2 * asked.ranks - 1 - chunk; }
static size_t row(long heads) { return (size_t)heads * asked.head_dim; } /* elements */

static void* allocate(size_t bytes) { /* on the current device, or on the host */
  if (!asked.cpu) {
    uint64_t address = 0;
    if (bytes) check_cuda("cuMemAlloc", cuda.alloc(&address, bytes));
    return (void*)(uintptr_t)address;
  }
  void* memory = calloc(bytes ? bytes : 1, 1);
  if (!memory) fail("calloc", "out of memory");
  return memory;
}

static void make_current(const rank* r) {
  if (!asked.cpu) check_cuda("cuCtxSetCurrent", cuda.set_current(r->context));
}

static void copy_in(void* to, const void* from, size_t bytes) {
  if (asked.cpu) {
    memcpy(to, from, bytes);
    return;
  }
  check_cuda("cuMemcpyHtoD", cuda.to_device((uintptr_t)to, from, bytes));
  check_cuda("cuCtxSynchronize", cuda.context_synchronize()); /* the ranks' streams do not wait for
                                             copies */
}

static void copy_out(void* to, const void* from, size_t bytes) {
  if (asked.cpu)
    memcpy(to, from, bytes);
  else
    check_cuda("cuMemcpyDtoH", cuda.to_host(to, (uintptr_t)from, bytes));
}

static void find_gpus(void) {
  static const char* const cuda_functions[] = {
      "cuInit",          "cuDeviceGetCount",    "cuDeviceGet",      "cuDevicePrimaryCtxRetain",
      "cuCtxSetCurrent", "cuMemAlloc_v2",       "cuMemcpyHtoD_v2",  "cuMemcpyDtoH_v2",
      "cuStreamCreate",  "cuStreamSynchronize", "cuCtxSynchronize", "cuDeviceGetAttribute"};
  static const char* const nccl_functions[] = {"ncclCommInitAll", "ncclGetErrorString", "ncclGroupStart",
                                        "ncclGroupEnd",    "ncclBroadcast",      "ncclCommDestroy"};
  load(&cuda, "libcuda.so.1", cuda_functions, sizeof cuda_functions / sizeof *cuda_functions);
  int count = 0, ordinals[most_ranks];
  if (cuda.init(0) || cuda.device_count(&count)) give_up("the CUDA driver finds no GPU");
  long wanted = asked.ranks ? asked.ranks : count < most_ranks ? count : most_ranks, found = 0;
  for (int i = 0; i < count && found < wanted; ++i) {
    int device;
    check_cuda("cuDeviceGet", cuda.device_get(&device, i));
    if (is_hopper(device)) ordinals[found++] = i;
  }
  char why[128];
  snprintf(why, sizeof why, "%ld Hopper GPUs, needed are %ld", found, asked.ranks ? asked.ranks : 2);
  if (found < (asked.ranks ? asked.ranks : 2)) give_up(why);
  asked.ranks = found;
  const char* file = getenv("NCCL_LIBRARY");
  load(&nccl, file ? file : "libnccl.so.2", nccl_functions, sizeof nccl_functions / sizeof *nccl_functions);
  communicator with[most_ranks];
  check_nccl("ncclCommInitAll", nccl.init_all(with, (int)asked.ranks, ordinals));
  for (long r = 0; r < asked.ranks; ++r) {
    int device;
    ranks[r].with = with[r];
    check_cuda("cuDeviceGet", cuda.device_get(&device, ordinals[r]));
    check_cuda("cuDevicePrimaryCtxRetain", cuda.primary_context(&ranks[r].context, device));
    make_current(&ranks[r]);
    check_cuda("cuStreamCreate", cuda.stream_create(&ranks[r].stream, 1)); /* CU_STREAM_NON_BLOCKING */
  }
}

/* ---- attention --------------------------------------------------------------------------------------------- */

static fa3_tensor rows_of(void* data, long n, long heads) { /* a batch of one */
  fa3_tensor tensor = {data, FA3_DTYPE_BF16, 4, {1, n, heads, asked.head_dim}, {0}};
  check("fa3_tensor_pack", fa3_tensor_pack(&tensor));
  return tensor;
}

/* n rows, the last one of which sees the last of so many keys. */
static fa3_forward_params call(bf16* q, bf16* k, bf16* v, bf16* o, float* lse, long n, long keys) {
  fa3_forward_params params = FA3_FORWARD_PARAMS_INIT;
  params.q = rows_of(q, n, asked.heads), params.o = rows_of(o, n, asked.heads);
  params.k = rows_of(k, keys, asked.heads_kv), params.v = rows_of(v, keys, asked.heads_kv);
  params.lse = (fa3_tensor){lse, FA3_DTYPE_FP32, 3, {1, asked.heads, n}, {0}};
  check("fa3_tensor_pack", fa3_tensor_pack(&params.lse));
  params.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  return params;
}

static fa3_forward_params call_of_chunk(const rank* r, int half) {
  const long n = chunk_rows(), own = half * n;
  return call(r->q + own * row(asked.heads), r->all_k, r->all_v, r->o + own * row(asked.heads), r->lse[half], n,
              (chunk_of(r - ranks, half) + 1) * n);
}

static void enqueue(const fa3_forward_params* params, void* workspace, size_t bytes, fa3_stream stream) {
  if (asked.cpu)
    check("fa3_reference_forward", fa3_reference_forward(params, 0));
  else
    check("fa3_forward", fa3_forward(params, workspace, bytes, stream));
}

/* K and V of all rows in order on all ranks: each chunk is broadcast by the rank that has it, all in one group. */
static void gather(void) {
  const size_t chunk = chunk_rows() * row(asked.heads_kv);
  if (!asked.cpu) check_nccl("ncclGroupStart", nccl.group_start());
  for (long c = 0; c < 2 * asked.ranks; ++c)
    for (long r = 0; r < asked.ranks; ++r) {
      const rank *to = &ranks[r], *from = asked.cpu ? &ranks[owner_of(c)] : to; /* NCCL looks at the root's alone */
      const size_t own = (c >= asked.ranks) * chunk;
      const bf16* sent[2] = {from->k + own, from->v + own};
      bf16* came[2] = {to->all_k + c * chunk, to->all_v + c * chunk};
      for (int i = 0; i < 2; ++i)
        if (asked.cpu)
          memcpy(came[i], sent[i], chunk * sizeof(bf16));
        else
          check_nccl("ncclBroadcast",
                     nccl.broadcast(sent[i], came[i], chunk, nccl_bfloat16, (int)owner_of(c), to->with, to->stream));
    }
  if (!asked.cpu) check_nccl("ncclGroupEnd", nccl.group_end());
}

static void on_all_ranks(void) {
  gather();
  for (long r = 0; r < asked.ranks; ++r) {
    make_current(&ranks[r]);
    for (int half = 0; half < 2; ++half) {
      const fa3_forward_params params = call_of_chunk(&ranks[r], half);
      enqueue(&params, ranks[r].workspace[half], ranks[r].workspace_bytes[half], ranks[r].stream);
    }
  }
}

static void wait_for_all(void) {
  for (long r = 0; r < asked.ranks && !asked.cpu; ++r) {
    make_current(&ranks[r]);
    check_cuda("cuStreamSynchronize", cuda.stream_synchronize(ranks[r].stream));
  }
}

/* ---- times and numbers ------------------------------------------------------------------------------------- */

static double now(void) { /* microseconds */
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int by_size(const void* x, const void* y) {
  const double a = *(const double*)x, b = *(const double*)y;
  return (a > b) - (a < b);
}

typedef struct whole { /* the one rank's problem */
  fa3_forward_params params;
  void* workspace;
  size_t bytes;
} whole;

static void on_one_rank(const whole* one) {
  make_current(&ranks[0]);
  enqueue(&one->params, one->workspace, one->bytes, ranks[0].stream);
}

/* Median of --repeats, each of them from idle GPUs until all are done. */
static double timed(const whole* one) {
  double times[1000];
  for (long i = -1; i < asked.repeats; ++i) { /* the first time kernels are loaded */
    wait_for_all();
    const double start = now();
    if (one)
      on_one_rank(one);
    else
      on_all_ranks();
    wait_for_all();
    if (i >= 0) times[i] = now() - start;
  }
  qsort(times, asked.repeats, sizeof *times, by_size);
  return times[asked.repeats / 2];
}

static bf16* random_numbers(size_t n, uint64_t seed) { /* between -1 and 1 */
  bf16* x = malloc(n * sizeof *x);
  if (!x) fail("malloc", "out of memory");
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const float value = (float)((int64_t)(seed >> 40) - (1 << 23)) / (1 << 23);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    x[i] = (bf16)(bits >> 16);
  }
  return x;
}

static float to_float(bf16 x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void make_ranks(const bf16* q, const bf16* k, const bf16* v) {
  const size_t rows = chunk_rows();
  for (long r = 0; r < asked.ranks; ++r) {
    rank* to = &ranks[r];
    make_current(to);
    const bf16* from[3] = {q, k, v};
    bf16** own[3] = {&to->q, &to->k, &to->v};
    for (int i = 0; i < 3; ++i) {
      const size_t chunk = rows * row(i ? asked.heads_kv : asked.heads);
      *own[i] = allocate(2 * chunk * sizeof(bf16));
      for (int half = 0; half < 2; ++half)
        copy_in(*own[i] + half * chunk, from[i] + chunk_of(r, half) * chunk, chunk * sizeof(bf16));
    }
    to->o = allocate(2 * rows * row(asked.heads) * sizeof(bf16));
    to->all_k = allocate(asked.seqlen * row(asked.heads_kv) * sizeof(bf16));
    to->all_v = allocate(asked.seqlen * row(asked.heads_kv) * sizeof(bf16));
    for (int half = 0; half < 2; ++half) {
      to->lse[half] = allocate(asked.heads * rows * sizeof(float));
      const fa3_forward_params params = call_of_chunk(to, half);
      if (asked.cpu) continue;
      check("fa3_forward_workspace_size", fa3_forward_workspace_size(&params, 0, &to->workspace_bytes[half]));
      to->workspace[half] = allocate(to->workspace_bytes[half]);
    }
  }
}

static whole make_whole(const bf16* q, const bf16* k, const bf16* v) {
  const size_t q_bytes = asked.seqlen * row(asked.heads) * sizeof(bf16),
               k_bytes = asked.seqlen * row(asked.heads_kv) * sizeof(bf16);
  make_current(&ranks[0]);
  bf16 *all_q = allocate(q_bytes), *all_k = allocate(k_bytes), *all_v = allocate(k_bytes), *o = allocate(q_bytes);
  copy_in(all_q, q, q_bytes), copy_in(all_k, k, k_bytes), copy_in(all_v, v, k_bytes);
  float* lse = allocate(asked.heads * asked.seqlen * sizeof(float));
  whole one = {call(all_q, all_k, all_v, o, lse, asked.seqlen, asked.seqlen), NULL, 0};
  if (!asked.cpu) check("fa3_forward_workspace_size", fa3_forward_workspace_size(&one.params, 0, &one.bytes));
  one.workspace = allocate(one.bytes);
  return one;
}

/* The largest difference of the ranks' O and LSE from those of one; half a unit in the last of bf16's bits apart. */
static double largest_difference(const whole* one) {
  const size_t rows = chunk_rows(), chunk = rows * row(asked.heads);
  bf16 *expected = malloc(chunk * sizeof(bf16)), *found = malloc(chunk * sizeof(bf16));
  float *all = malloc(asked.heads * asked.seqlen * sizeof(float)), *sums = malloc(asked.heads * rows * sizeof(float));
  if (!expected || !found || !all || !sums) fail("malloc", "out of memory");
  double largest = 0;
  make_current(&ranks[0]);
  copy_out(all, one->params.lse.data, asked.heads * asked.seqlen * sizeof(float));
  for (long r = 0; r < asked.ranks; ++r)
    for (int half = 0; half < 2; ++half) {
      const long c = chunk_of(r, half);
      make_current(&ranks[0]);
      copy_out(expected, (bf16*)one->params.o.data + c * chunk, chunk * sizeof(bf16));
      make_current(&ranks[r]);
      copy_out(found, ranks[r].o + half * chunk, chunk * sizeof(bf16));
      copy_out(sums, ranks[r].lse[half], asked.heads * rows * sizeof(float));
      for (size_t i = 0; i < chunk; ++i) { /* fmax would pass over a NaN */
        const double difference = fabs(to_float(found[i]) - to_float(expected[i]));
        if (!(difference <= largest)) largest = difference;
      }
      for (long h = 0; h < asked.heads; ++h)
        for (size_t i = 0; i < rows; ++i) {
          const double difference = fabs(sums[h * rows + i] - all[h * asked.seqlen + c * rows + i]);
          if (!(difference <= largest)) largest = difference;
        }
    }
  free(expected), free(found), free(all), free(sums);
  return largest;
}

/* ---- arguments --------------------------------------------------------------------------------------------- */

static void refuse(const char* argument, const char* why) {
  fprintf(stderr, "context_parallel: %s %s\n", argument, why);
  exit(2);
}

static void read_arguments(int count, char** words) {
  static const char* const names[] = {"--ranks", "--seqlen", "--heads", "--heads-kv", "--head-dim", "--repeats"};
  long* const numbers[] = {&asked.ranks, &asked.seqlen, &asked.heads, &asked.heads_kv, &asked.head_dim, &asked.repeats};
  for (int i = 1; i < count; ++i) {
    if (!strcmp(words[i], "--cpu")) {
      asked.cpu = 1;
      continue;
    }
    size_t which = 0;
    while (which < sizeof names / sizeof *names && strcmp(words[i], names[which])) ++which;
    if (which == sizeof names / sizeof *names) refuse(words[i], "is no argument of it");
    if (i + 1 == count) refuse(words[i], "needs a number");
    char* end;
    *numbers[which] = strtol(words[++i], &end, 10);
    if (*end || *numbers[which] < 1 || *numbers[which] > 1 << 24) refuse(names[which], "must be from 1 to 16777216");
  }
  if (asked.ranks > most_ranks) refuse("--ranks", "must be at most 64");
  if (asked.repeats > 1000) refuse("--repeats", "must be at most 1000");
}

int main(int count, char** words) {
  read_arguments(count, words);
  if (!asked.cpu)
    find_gpus();
  else if (!asked.ranks)
    asked.ranks = 2;
  if (asked.seqlen % (2 * asked.ranks)) refuse("--seqlen", "must be a multiple of two times the ranks");

  bf16* q = random_numbers(asked.seqlen * row(asked.heads), 1);
  bf16 *k = random_numbers(asked.seqlen * row(asked.heads_kv), 2),
       *v = random_numbers(asked.seqlen * row(asked.heads_kv), 3);
  make_ranks(q, k, v);
  const whole one = make_whole(q, k, v);
  free(q), free(k), free(v);
  const double alone = timed(&one), together = timed(NULL), difference = largest_difference(&one);
  printf("%ld tokens, %ld heads over %ld, head_dim %ld, causal\n", asked.seqlen, asked.heads, asked.heads_kv,
         asked.head_dim);
  printf("one rank: %.1f us\n%ld ranks: %.1f us (%.2f)\n", alone, asked.ranks, together, alone / together);
  printf("largest difference: %.1e\n", difference);
  for (long r = 0; r < asked.ranks && !asked.cpu; ++r) check_nccl("ncclCommDestroy", nccl.destroy(ranks[r].with));
  if (!(difference <= 1.0 / 64)) fail("results", "not those of one rank");
  return 0;
}
