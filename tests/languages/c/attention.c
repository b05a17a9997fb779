/* Attention from C: forward and backward on the CPU, checked against plain double precision, then on a Hopper GPU.
 *
 *   cc -std=c11 attention.c $(pkg-config --cflags --libs fa3) -lm -ldl
 *
 * The CUDA driver is looked for when the program runs, so it also starts on machines without one. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <fa3.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { batch = 2, seqlen_q = 40, seqlen_k = 48, heads = 4, heads_kv = 2, head_dim = 64 };
enum { q_size = batch * seqlen_q * heads * head_dim, kv_size = batch * seqlen_k * heads_kv * head_dim };
enum { lse_size = batch * heads * seqlen_q };

typedef uint16_t bf16;

static void fail(const char* what, const char* why) {
  printf("failed: %s: %s\n", what, why);
  exit(1);
}

/* Every function of the library returns a status, and the reason in words stays for this thread's next call. */
static void check(const char* call, fa3_status status) {
  if (status == FA3_OK) return;
  fprintf(stderr, "%s: %s\n", fa3_status_string(status), fa3_last_error_message());
  fail(call, fa3_last_error_message());
}

static void* allocate(size_t bytes) {
  void* memory = malloc(bytes);
  if (!memory) fail("malloc", "out of memory");
  return memory;
}

/* ---- numbers ----------------------------------------------------------------------------------------------- */

static bf16 to_bf16(float x) { /* the nearest; of two, the even one */
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float to_float(bf16 x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static int64_t state = 1; /* of Lehmer's generator */

static bf16* random_numbers(size_t n) { /* between -2 and 2 */
  bf16* x = allocate(n * sizeof *x);
  for (size_t i = 0; i < n; ++i) {
    state = state * 16807 % 2147483647;
    x[i] = to_bf16((float)(state / 2147483647.0 * 4 - 2));
  }
  return x;
}

static int64_t checksum(int64_t sum, const bf16* x, size_t n) {
  for (size_t i = 0; i < n; ++i) sum = (sum * 31 + x[i]) % 2147483647;
  return sum;
}

/* A few roundings to bf16, which has 8 bits, may lie between them. */
static int close_to(const bf16* x, const bf16* expected, size_t n) {
  double largest = 0;
  for (size_t i = 0; i < n; ++i) largest = fmax(largest, fabs(to_float(expected[i])));
  for (size_t i = 0; i < n; ++i)
    if (!(fabs(to_float(x[i]) - to_float(expected[i])) <= ldexp(largest, -6))) return 0; /* also if it is NaN */
  return 1;
}

/* ---- attention, plainly ------------------------------------------------------------------------------------ */

/* O and LSE in double precision. A causal mask that ends in the bottom right corner: query i sees key j if
 * j <= i + seqlen_k - seqlen_q. */
static void attention(const bf16* q, const bf16* k, const bf16* v, double* o, double* lse) {
  for (int b = 0; b < batch; ++b)
    for (int h = 0; h < heads; ++h)
      for (int i = 0; i < seqlen_q; ++i) {
        const bf16* q_row = q + ((b * seqlen_q + i) * heads + h) * head_dim;
        const int64_t kv = ((int64_t)b * seqlen_k * heads_kv + h / (heads / heads_kv)) * head_dim;
        const int keys = i + seqlen_k - seqlen_q + 1;
        double p[seqlen_k], sum = 0;
        for (int j = 0; j < keys; ++j) {
          p[j] = 0;
          for (int c = 0; c < head_dim; ++c)
            p[j] += (double)to_float(q_row[c]) * to_float(k[kv + j * heads_kv * head_dim + c]);
          p[j] = exp(p[j] / sqrt(head_dim));
          sum += p[j];
        }
        for (int c = 0; c < head_dim; ++c) {
          double value = 0;
          for (int j = 0; j < keys; ++j) value += p[j] / sum * to_float(v[kv + j * heads_kv * head_dim + c]);
          o[((b * seqlen_q + i) * heads + h) * head_dim + c] = value;
        }
        lse[(b * heads + h) * seqlen_q + i] = log(sum);
      }
}

/* ---- tensors ----------------------------------------------------------------------------------------------- */

static fa3_tensor rows(void* data, int64_t seqlen, int64_t n) { /* batch, seqlen, n heads, head_dim, without gaps */
  fa3_tensor tensor = {data, FA3_DTYPE_BF16, 4, {batch, seqlen, n, head_dim}, {0}};
  check("fa3_tensor_pack", fa3_tensor_pack(&tensor));
  return tensor;
}

static fa3_tensor sums(void* data) {
  fa3_tensor tensor = {data, FA3_DTYPE_FP32, 3, {batch, heads, seqlen_q}, {0}};
  check("fa3_tensor_pack", fa3_tensor_pack(&tensor));
  return tensor;
}

typedef struct problem { /* all of it on the host, or all on the device */
  bf16 *q, *k, *v, *o, *dout, *dq, *dk, *dv;
  float* lse;
} problem;

static fa3_forward_params forward(const problem* at) {
  fa3_forward_params params = FA3_FORWARD_PARAMS_INIT;
  params.q = rows(at->q, seqlen_q, heads), params.o = rows(at->o, seqlen_q, heads), params.lse = sums(at->lse);
  params.k = rows(at->k, seqlen_k, heads_kv), params.v = rows(at->v, seqlen_k, heads_kv);
  params.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT; /* softmax_scale 0: 1/sqrt(head_dim) */
  return params;
}

static fa3_backward_params backward(const problem* at) {
  fa3_backward_params params = FA3_BACKWARD_PARAMS_INIT;
  params.q = rows(at->q, seqlen_q, heads), params.o = rows(at->o, seqlen_q, heads), params.lse = sums(at->lse);
  params.k = rows(at->k, seqlen_k, heads_kv), params.v = rows(at->v, seqlen_k, heads_kv);
  params.dq = rows(at->dq, seqlen_q, heads), params.dout = rows(at->dout, seqlen_q, heads);
  params.dk = rows(at->dk, seqlen_k, heads_kv), params.dv = rows(at->dv, seqlen_k, heads_kv);
  params.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  return params;
}

/* ---- on the CPU -------------------------------------------------------------------------------------------- */

static void on_cpu(const problem* host) {
  printf("inputs: checksum %lld\n", (long long)checksum(checksum(checksum(0, host->q, q_size), host->k, kv_size),
                                                        host->v, kv_size));
  fa3_forward_params params = forward(host);
  check("fa3_reference_forward", fa3_reference_forward(&params, 0));
  double *o = allocate(q_size * sizeof *o), *lse = allocate(lse_size * sizeof *lse);
  attention(host->q, host->k, host->v, o, lse);
  for (int i = 0; i < q_size; ++i) /* half a unit in the last of bf16's 8 bits is at most 2^-8 of the number */
    if (!(fabs(to_float(host->o[i]) - o[i]) <= ldexp(fabs(o[i]), -8) + 1e-6)) fail("O", "not as in double precision");
  for (int i = 0; i < lse_size; ++i)
    if (!(fabs(host->lse[i] - lse[i]) <= 1e-6 * fmax(1, fabs(lse[i])))) fail("LSE", "not as in double precision");
  free(o), free(lse);
  puts("cpu: O and LSE as in double precision");

  fa3_backward_params gradients = backward(host);
  check("fa3_reference_backward", fa3_reference_backward(&gradients, 0));

  params.k.stride[1] += 1;
  const fa3_status status = fa3_forward_check(&params);
  if (status == FA3_OK) fail("k.stride[1]", "a wrong stride was accepted");
  printf("refused: %s: %s\n", fa3_status_string(status), fa3_last_error_message());
  params.k.stride[1] -= 1;

  size_t bytes;
  check("fa3_forward_check", fa3_forward_check(&params));
  check("fa3_forward_workspace_size", fa3_forward_workspace_size(&params, 132, &bytes));
  printf("workspace: %zu bytes on 132 multiprocessors\n", bytes);
}

/* ---- on the GPU -------------------------------------------------------------------------------------------- */

/* What this program needs of the CUDA driver. */
static struct {
  int (*init)(unsigned);
  int (*device_get)(int* device, int ordinal);
  int (*primary_context)(void** context, int device);
  int (*set_current)(void* context);
  int (*alloc)(uint64_t* address, size_t bytes);
  int (*free)(uint64_t address);
  int (*to_device)(uint64_t to, const void* from, size_t bytes);
  int (*to_host)(void* to, uint64_t from, size_t bytes);
} cuda;

static const char* load_cuda(void) { /* NULL, or why there is none */
  static const char* const names[] = {"cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
                                      "cuMemAlloc_v2", "cuMemFree_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"};
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return dlerror();
  void* found[sizeof names / sizeof *names];
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (!(found[i] = dlsym(library, names[i]))) return names[i];
  memcpy(&cuda, found, sizeof cuda);
  int device;
  void* context;
  if (cuda.init(0) || cuda.device_get(&device, 0)) return "the driver finds no device";
  return cuda.primary_context(&context, device) || cuda.set_current(context) ? "the device has no context" : NULL;
}

static void check_cuda(const char* call, int result) {
  char number[32];
  snprintf(number, sizeof number, "CUDA error %d", result);
  if (result) fail(call, number);
}

static void* device_memory(size_t bytes) {
  uint64_t address;
  check_cuda("cuMemAlloc", cuda.alloc(&address, bytes));
  return (void*)(uintptr_t)address;
}

static void* device_copy(const void* from, size_t bytes) {
  void* copy = device_memory(bytes);
  check_cuda("cuMemcpyHtoD", cuda.to_device((uintptr_t)copy, from, bytes));
  return copy;
}

static void to_host(void* to, const void* from, size_t bytes) {
  check_cuda("cuMemcpyDtoH", cuda.to_host(to, (uintptr_t)from, bytes));
}

static void compare(const char* name, const bf16* from, const bf16* expected, size_t n) {
  bf16* x = allocate(n * sizeof *x);
  to_host(x, from, n * sizeof *x);
  if (!close_to(x, expected, n)) fail(name, "not as on the CPU");
  free(x);
}

static void on_gpu(const problem* host) {
  const char* why = load_cuda();
  const problem none = {0};
  fa3_forward_params params = forward(&none);
  size_t bytes, backward_bytes;
  if (!why && fa3_forward_workspace_size(&params, 0, &bytes) != FA3_OK) why = fa3_last_error_message();
  if (why) {
    printf("no Hopper GPU: %s\n", why);
    return;
  }
  const size_t q_bytes = q_size * sizeof(bf16), kv_bytes = kv_size * sizeof(bf16), lse_bytes = lse_size * sizeof(float);
  const problem device = {
      .q = device_copy(host->q, q_bytes), .k = device_copy(host->k, kv_bytes), .v = device_copy(host->v, kv_bytes),
      .o = device_memory(q_bytes), .lse = device_memory(lse_bytes), .dout = device_copy(host->dout, q_bytes),
      .dq = device_memory(q_bytes), .dk = device_memory(kv_bytes), .dv = device_memory(kv_bytes)};
  params = forward(&device);
  fa3_backward_params gradients = backward(&device);
  check("fa3_backward_workspace_size", fa3_backward_workspace_size(&gradients, &backward_bytes));
  if (backward_bytes > bytes) bytes = backward_bytes;
  void* workspace = device_memory(bytes); /* one call after the other: both may use it */
  check("fa3_forward", fa3_forward(&params, workspace, bytes, NULL));
  check("fa3_backward", fa3_backward(&gradients, workspace, bytes, NULL));

  float lse[lse_size];
  to_host(lse, device.lse, lse_bytes);
  for (int i = 0; i < lse_size; ++i)
    if (!(fabsf(lse[i] - host->lse[i]) <= 1e-4f)) fail("LSE", "not as on the CPU");
  compare("O", device.o, host->o, q_size);
  puts("gpu: O and LSE as on the CPU");
  compare("dq", device.dq, host->dq, q_size);
  compare("dk", device.dk, host->dk, kv_size);
  compare("dv", device.dv, host->dv, kv_size);
  puts("gpu: gradients as on the CPU");

  void* const memory[] = {device.q,  device.k,  device.v,  device.o,  device.lse,
                          device.dout, device.dq, device.dk, device.dv, workspace};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; ++i) check_cuda("cuMemFree", cuda.free((uintptr_t)memory[i]));
}

int main(void) {
  problem host; /* initialised in this order: the numbers are a sequence */
  host.q = random_numbers(q_size), host.k = random_numbers(kv_size), host.v = random_numbers(kv_size);
  host.dout = random_numbers(q_size);
  host.o = allocate(q_size * sizeof(bf16)), host.lse = allocate(lse_size * sizeof(float));
  host.dq = allocate(q_size * sizeof(bf16));
  host.dk = allocate(kv_size * sizeof(bf16)), host.dv = allocate(kv_size * sizeof(bf16));
  on_cpu(&host);
  on_gpu(&host);
  free(host.q), free(host.k), free(host.v), free(host.o), free(host.lse);
  free(host.dout), free(host.dq), free(host.dk), free(host.dv);
  return 0;
}
