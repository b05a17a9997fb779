/* A client that was built against the first header of this ABI (first/fa3.h), run with today's library: it calls every
 * function that needs no GPU. Its structs end where memory ends, so that a library that looks beyond struct_size
 * crashes, and hold canaries around what a call may write. */
#define _GNU_SOURCE
#include "fa3.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int wrong;
#define EXPECT(condition) \
  ((condition) ? (void)0 : (void)(++wrong, printf("line %d: %s: %s\n", __LINE__, #condition, fa3_last_error_message())))

/* A copy of so many bytes at the end of a page that no other follows. */
static void* at_the_end(const void* data, size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char* pages = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || mprotect(pages + 2 * page, page, PROT_NONE) != 0) return NULL;
  memset(pages, 0xa5, 2 * page - bytes);
  return memcpy(pages + 2 * page - bytes, data, bytes);
}

/* Nothing before a struct is written either. */
static int is_untouched(const void* end, size_t bytes) {
  const unsigned char* at = (const unsigned char*)end - bytes;
  for (; bytes > 0; --bytes)
    if (*at++ != 0xa5) return 0;
  return 1;
}

static fa3_tensor tensor(void* data, int32_t dtype, int32_t rank, int64_t last) {
  fa3_tensor t = FA3_TENSOR_INIT;
  int i;
  t.data = data, t.dtype = dtype, t.rank = rank;
  for (i = 0; i < rank; ++i) t.dim[i] = i == rank - 1 ? last : 1;
  EXPECT(fa3_tensor_pack(&t) == FA3_OK);
  return t;
}

static void expect_info(const fa3_kernel_info* info, fa3_kernel_kind kind) {
  EXPECT(info->struct_size == sizeof *info && info->kind == (int32_t)kind && info->dtype == FA3_DTYPE_BF16);
  EXPECT(strlen(info->name) > 4 && memcmp(info->name, "fa3_", 4) == 0);
  EXPECT(info->head_dim >= 8 && info->head_dim_v >= 8 && info->causal == 1 && info->block_q > 0 && info->block_kv > 0);
  EXPECT(info->threads > 0 && info->shared_memory_bytes > 0 && info->chosen == 1 && info->multiprocessors == 132);
  EXPECT(info->grid > 0 && info->launches > 0 && info->tiles == info->pieces);
  EXPECT(is_untouched(info, 64));
}

static void forward_and_backward(void) {
  static _Alignas(16) float q[8] = {1, 2, 3}, k[8] = {4, 5, 6}, v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[8], lse[1];
  static _Alignas(16) float dout[8] = {8, 7, 6, 5, 4, 3, 2, 1}, dq[8], dk[8], dv[8];
  fa3_forward_params f = FA3_FORWARD_PARAMS_INIT;
  fa3_backward_params b = FA3_BACKWARD_PARAMS_INIT;
  fa3_kernel_info empty = FA3_KERNEL_INFO_INIT;
  fa3_forward_params* forward;
  fa3_backward_params* backward;
  fa3_kernel_info* info;
  size_t bytes = 0;
  int i;

  f.q = tensor(q, FA3_DTYPE_FP32, 4, 8), f.k = tensor(k, FA3_DTYPE_FP32, 4, 8), f.v = tensor(v, FA3_DTYPE_FP32, 4, 8);
  f.o = tensor(o, FA3_DTYPE_FP32, 4, 8), f.lse = tensor(lse, FA3_DTYPE_FP32, 3, 1);
  f.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, f.softmax_scale = 0.5f;
  forward = at_the_end(&f, sizeof f);
  EXPECT(fa3_reference_forward(forward, 2) == FA3_OK);
  EXPECT(memcmp(o, v, sizeof o) == 0 && lse[0] == 16); /* one key: O is V, LSE the score, 32 / 2 */
  EXPECT(memcmp(forward, &f, sizeof f) == 0 && is_untouched(forward, 64));

  b.q = f.q, b.k = f.k, b.v = f.v, b.o = f.o, b.lse = f.lse, b.mask = f.mask, b.softmax_scale = f.softmax_scale;
  b.dout = tensor(dout, FA3_DTYPE_FP32, 4, 8), b.dq = tensor(dq, FA3_DTYPE_FP32, 4, 8);
  b.dk = tensor(dk, FA3_DTYPE_FP32, 4, 8), b.dv = tensor(dv, FA3_DTYPE_FP32, 4, 8);
  dq[1] = dk[2] = 1;
  backward = at_the_end(&b, sizeof b);
  EXPECT(fa3_reference_backward(backward, 2) == FA3_OK);
  for (i = 0; i < 8; ++i) EXPECT(dv[i] == dout[i] && dq[i] == 0 && dk[i] == 0); /* one key: P is 1, whatever q and k */
  EXPECT(memcmp(backward, &b, sizeof b) == 0 && is_untouched(backward, 64));

  /* As the device takes them. The numbers are not looked at. */
  forward->q.dtype = forward->k.dtype = forward->v.dtype = forward->o.dtype = FA3_DTYPE_BF16;
  EXPECT(fa3_forward_check(forward) == FA3_OK);
  EXPECT(fa3_forward_workspace_size(forward, 132, &bytes) == FA3_OK && bytes >= FA3_FORWARD_WORKSPACE_BYTES);
  info = at_the_end(&empty, sizeof empty);
  EXPECT(fa3_forward_kernel_info(forward, 132, 0, info) == FA3_OK);
  expect_info(info, FA3_KERNEL_FORWARD);
  forward->kernel = info->name; /* by its name, and refused by another */
  EXPECT(fa3_forward_check(forward) == FA3_OK);
  forward->kernel = "none";
  EXPECT(fa3_forward_check(forward) == FA3_ERROR_UNSUPPORTED);
  forward->kernel = NULL, forward->flags = 1u << 30;
  EXPECT(fa3_forward_check(forward) == FA3_ERROR_INVALID_ARGUMENT);
  EXPECT(strstr(fa3_last_error_message(), "flags") != NULL);
  forward->flags = 0;
  EXPECT(fa3_forward(forward, NULL, 0, NULL) == FA3_ERROR_INVALID_ARGUMENT);

  for (i = 0; i < 5; ++i) (&backward->q)[i].dtype = i == 4 ? FA3_DTYPE_FP32 : FA3_DTYPE_BF16;
  backward->dout.dtype = backward->dq.dtype = backward->dk.dtype = backward->dv.dtype = FA3_DTYPE_BF16;
  EXPECT(fa3_backward_check(backward) == FA3_OK);
  EXPECT(fa3_backward_workspace_size(backward, &bytes) == FA3_OK && bytes > 0);
  info = at_the_end(&empty, sizeof empty);
  EXPECT(fa3_backward_kernel_info(backward, 132, 1, info) == FA3_OK);
  expect_info(info, FA3_KERNEL_BACKWARD);
  EXPECT(fa3_backward(backward, NULL, 0, NULL) == FA3_ERROR_INVALID_ARGUMENT);
}

static void quantize(void) {
  static _Alignas(16) unsigned short x[16] = {0x3f80, 0x4000}; /* 1 and 2, as bf16 */
  static _Alignas(16) unsigned char y[16];
  static float scale[1], mean[16];
  fa3_quantize_params q = FA3_QUANTIZE_PARAMS_INIT;
  fa3_quantize_params* params;
  size_t bytes = 0;
  int i;

  q.x = tensor(x, FA3_DTYPE_BF16, 4, 16), q.y = tensor(y, FA3_DTYPE_E4M3, 4, 16);
  q.scale = tensor(scale, FA3_DTYPE_FP32, 3, 1);
  params = at_the_end(&q, sizeof q);
  EXPECT(fa3_quantize_check(params) == FA3_OK);
  EXPECT(fa3_quantize_workspace_size(params, &bytes) == FA3_OK && bytes > 0);
  EXPECT(fa3_reference_quantize(params) == FA3_OK);
  EXPECT(scale[0] == 2.0f / 448 && y[0] == 0x76 && y[1] == 0x7e && y[2] == 0);
  params->mean = tensor(mean, FA3_DTYPE_FP32, 3, 16);
  EXPECT(fa3_reference_quantize(params) == FA3_OK);
  EXPECT(mean[0] == 1 && mean[1] == 2 && scale[0] == 1); /* one row: it is the mean, and nothing is left */
  for (i = 0; i < 16; ++i) EXPECT(y[i] == 0);
  params->reserved = 1;
  EXPECT(fa3_quantize(params, NULL, 0, NULL) == FA3_ERROR_INVALID_ARGUMENT);
  params->reserved = 0, params->mean = q.mean;
  EXPECT(memcmp(params, &q, sizeof q) == 0 && is_untouched(params, 64));
}

static void combine(void) {
  static _Alignas(16) float parts[16] = {1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3}, both[2] = {1, 1}, o[8];
  static float lse[1];
  fa3_combine_params c = FA3_COMBINE_PARAMS_INIT;
  fa3_combine_params* params;

  c.o_parts = tensor(parts, FA3_DTYPE_FP32, 5, 8), c.lse_parts = tensor(both, FA3_DTYPE_FP32, 4, 1);
  c.o_parts.dim[0] = c.lse_parts.dim[0] = 2;
  c.o = tensor(o, FA3_DTYPE_FP32, 4, 8), c.lse = tensor(lse, FA3_DTYPE_FP32, 3, 1);
  params = at_the_end(&c, sizeof c);
  EXPECT(fa3_combine_check(params) == FA3_OK);
  EXPECT(fa3_reference_combine(params) == FA3_OK);
  EXPECT(o[0] == 2 && o[7] == 2 && lse[0] > 1.69f && lse[0] < 1.70f); /* 1 + log 2 */
  params->flags = 1;
  EXPECT(fa3_combine(params, NULL) == FA3_ERROR_INVALID_ARGUMENT);
  params->flags = 0;
  EXPECT(memcmp(params, &c, sizeof c) == 0 && is_untouched(params, 64));
}

static void kernels_and_versions(void) {
  fa3_kernel_info empty = FA3_KERNEL_INFO_INIT;
  int i;
  EXPECT(fa3_abi_version() == FA3_ABI_VERSION);
  EXPECT(fa3_version() >= FA3_VERSION_MAJOR * 10000 + FA3_VERSION_MINOR * 100 + FA3_VERSION_PATCH);
  EXPECT(fa3_kernel_count() > 0);
  for (i = 0; i < fa3_kernel_count(); ++i) {
    fa3_kernel_info* info = at_the_end(&empty, sizeof empty);
    EXPECT(fa3_kernel_info_at(i, info) == FA3_OK && info->struct_size == sizeof *info && info->grid == 0);
    EXPECT(is_untouched(info, 64));
    munmap((char*)info + sizeof *info - 2 * sysconf(_SC_PAGESIZE), 3 * (size_t)sysconf(_SC_PAGESIZE));
  }
  for (i = FA3_OK; i <= FA3_ERROR_OUT_OF_MEMORY; ++i) EXPECT(fa3_status_string((fa3_status)i)[0] != '\0');
  EXPECT(strcmp(fa3_status_string(FA3_ERROR_NO_CONTEXT), "no current CUDA context") == 0);
  /* What was not made current has no context, and where there is no driver there is none either. */
  i = fa3_preload();
  EXPECT(i == FA3_ERROR_NO_DRIVER || i == FA3_ERROR_NO_CONTEXT);
}

int main(void) {
  forward_and_backward();
  quantize();
  combine();
  kernels_and_versions();
  printf("ABI %d: library %d, header %d, %d wrong\n", fa3_abi_version(), fa3_version(),
         FA3_VERSION_MAJOR * 10000 + FA3_VERSION_MINOR * 100 + FA3_VERSION_PATCH, wrong);
  return wrong != 0;
}
