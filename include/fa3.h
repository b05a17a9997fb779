/* libfa3: FlashAttention-3 for NVIDIA Hopper behind a C ABI.
 *
 * This header is the manual. It compiles alone as C11 (-pedantic) and as C++, and needs no CUDA header.
 *
 *   O = softmax(mask(softmax_scale * Q K^T)) V,    LSE = log(sum(exp(mask(softmax_scale * Q K^T))))
 *
 * exactly (not approximately), in one pass over K and V, as in "FlashAttention-3: Fast and Accurate Attention with
 * Asynchrony and Low-precision" (NeurIPS 2024), sections 3.1 and 3.2.
 *
 * Rules that hold for every function:
 *  - Nothing is printed, thrown or exited; no device memory is allocated; no stream or device is synchronised.
 *  - A call that is refused launches nothing and writes nothing. It returns a status other than FA3_OK, and
 *    fa3_last_error_message() names the argument and the reason, as in "k.stride[3] is 2, must be 1".
 *  - Functions are safe to call from several threads at once. Parameter structs, and texts that they point to, are
 *    read, never written or kept.
 *  - The library loads on a machine without a GPU or driver. Only fa3_preload and fa3_forward need one.
 *
 * Conventions:
 *  - Sizes and strides are int64_t; strides count elements, not bytes.
 *  - Every parameter struct starts with struct_size = sizeof(the struct). Structs grow only at their end. A smaller
 *    struct_size (an older client) gives the missing fields their defaults; a larger one (a newer client) is accepted
 *    only if every byte beyond this library's struct is zero. Zero always means "default".
 */
#ifndef FA3_H
#define FA3_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FA3_API __attribute__((visibility("default")))
#else
#define FA3_API
#endif

#define FA3_VERSION_MAJOR 0
#define FA3_VERSION_MINOR 1
#define FA3_VERSION_PATCH 0
/* Raised only by a change that breaks binaries built against an older header. It is the number in the soname. */
#define FA3_ABI_VERSION 0

/* ---- status ------------------------------------------------------------------------------------------------ */

typedef enum fa3_status {
  FA3_OK = 0,
  FA3_ERROR_INVALID_ARGUMENT = 1,    /* an argument contradicts this header or another argument */
  FA3_ERROR_UNSUPPORTED = 2,         /* well-formed, but no kernel of this version does it */
  FA3_ERROR_WORKSPACE_TOO_SMALL = 3, /* ask fa3_forward_workspace_size */
  FA3_ERROR_NO_DRIVER = 4,           /* libcuda.so.1 is missing or too old: no GPU can be used */
  FA3_ERROR_NO_CONTEXT = 5,          /* the calling thread has no current CUDA context */
  FA3_ERROR_WRONG_DEVICE = 6,        /* the current context's device is not of compute capability 9.0 */
  FA3_ERROR_NOT_LOADED = 7,          /* the kernel is not loaded and the stream is capturing: call fa3_preload first */
  FA3_ERROR_CUDA = 8,                /* the driver returned an error; the message names call and error */
  FA3_ERROR_OUT_OF_MEMORY = 9        /* host memory */
} fa3_status;

/* ---- types ------------------------------------------------------------------------------------------------- */

typedef enum fa3_dtype {
  FA3_DTYPE_NONE = 0,
  FA3_DTYPE_BF16 = 1,
  FA3_DTYPE_FP16 = 2,
  FA3_DTYPE_FP32 = 3
} fa3_dtype;

typedef enum fa3_mask {
  FA3_MASK_NONE = 0,
  /* Query i sees key j if j <= i: the diagonal starts in the top left corner. */
  FA3_MASK_CAUSAL_TOP_LEFT = 1,
  /* Query i sees key j if j <= i + seqlen_k - seqlen_q: the diagonal ends in the bottom right corner. With more
   * queries than keys the first rows see nothing. For equal lengths both masks are the same. */
  FA3_MASK_CAUSAL_BOTTOM_RIGHT = 2
} fa3_mask;

#define FA3_MAX_RANK 5

/* A strided view of memory. dim[] and stride[] have `rank` valid entries. Strides count elements. As a shorthand,
 * strides that are all zero mean packed row-major (the last dimension contiguous, each other dimension's stride the
 * product of the later dims). The stride of a dimension of size 1 is never used, so any value is accepted there. */
typedef struct fa3_tensor {
  void* data;
  int32_t dtype; /* fa3_dtype */
  int32_t rank;
  int64_t dim[FA3_MAX_RANK];
  int64_t stride[FA3_MAX_RANK];
} fa3_tensor;

/* Same type as CUstream and cudaStream_t, so either can be passed without a cast. NULL is the legacy default stream. */
typedef struct CUstream_st* fa3_stream;

/* ---- forward ----------------------------------------------------------------------------------------------- */

/* What the forward pass computes. Zero-initialise, set struct_size (FA3_FORWARD_PARAMS_INIT does both), fill in.
 *
 * | tensor | dims                                | dtype          | strides                                         |
 * |--------|-------------------------------------|----------------|-------------------------------------------------|
 * | q      | batch, seqlen_q, heads,    head_dim | bf16 or fp16   | last 1; others multiples of 8 (16 bytes), >= 0  |
 * | k      | batch, seqlen_k, heads_kv, head_dim | as q           | as q                                            |
 * | v      | batch, seqlen_k, heads_kv, head_dim | as q           | as q                                            |
 * | o      | batch, seqlen_q, heads,    head_dim | as q           | as q, but > 0: elements must not overlap        |
 * | lse    | batch, heads, seqlen_q              | fp32           | any > 0                                         |
 *
 * - data of q, k, v and o is aligned to 16 bytes; of lse to 4 bytes. For fa3_forward they are device pointers of the
 *   current context's device, for fa3_reference_forward host pointers. A tensor without elements may have data NULL.
 * - (batch, heads, seqlen, head_dim) storage, padded rows, slices of a packed QKV: all are just strides.
 * - head_dim is a multiple of 8 from 8 to 256, the same for q, k, v and o in this version.
 * - heads is a multiple of heads_kv. Query head h reads K/V head h / (heads / heads_kv): MQA has heads_kv = 1.
 * - seqlen_q and seqlen_k may differ. Each dim, and each dim times its stride in bytes, stays below 2^31 rows and
 *   2^40 bytes; the element count may exceed 2^31.
 * - lse.data NULL (for example a zeroed lse) means: LSE is not wanted. Otherwise lse receives the natural logarithm of
 *   the row's sum of exponentials.
 * - A row that sees no key (seqlen_k = 0, or a causal mask with more queries than keys) has O = 0 and LSE = -inf.
 * - NaN in a row of q, or in a key that it sees, makes its O and LSE NaN. Elements of v that are not finite reach O of
 *   the rows that see their key; under a causal mask also (as NaN) rows up to 191 before them (in kernels that the
 *   library does not choose itself: block_q + block_kv), worked on with rows that see other keys of the same block.
 *   Nothing beyond the tensors' dims is ever used.
 * - Scores are float32 on the device: they are meant to stay below 1e30 in q k and below 2^26 in q k * softmax_scale,
 *   where a score's own rounding already exceeds 1.
 * - batch, heads or seqlen_q of 0: nothing to compute, FA3_OK.
 * - o, lse and the workspace must not overlap each other, q, k or v (checked for the tensors).
 * - kernel: NULL lets the library choose: of the kernels named fa3_fwd_*, the one of the smallest head_dim that holds
 *   the problem's, or its counterpart fa3_fwdsmall_*, if smaller tiles share the work among the device's
 *   multiprocessors better. Otherwise the name of the kernel to run, a zero-terminated text as in fa3_kernel_info.name;
 *   which kernels there are, fa3_kernel_info_at tells. The others are the paper's algorithms, for comparison; the
 *   library never chooses them itself. A name that this build does not have is FA3_ERROR_UNSUPPORTED. A kernel of
 *   another dtype than q's, of a smaller head_dim, causal without a causal mask, or not causal with one, is
 *   FA3_ERROR_INVALID_ARGUMENT; a larger head_dim is fine. fa3_reference_forward does not look at this field. */
typedef struct fa3_forward_params {
  size_t struct_size;
  uint64_t flags; /* fa3_forward_flags */
  fa3_tensor q, k, v, o, lse;
  int32_t mask;        /* fa3_mask */
  float softmax_scale; /* > 0 and finite; 0 means the default 1/sqrt(head_dim) */
  const char* kernel;  /* name of the kernel to run (fa3_kernel_info.name); NULL: the library chooses */
} fa3_forward_params;

/* Spelled out in full, so that it compiles without warnings in both languages. */
#define FA3_TENSOR_INIT {NULL, 0, 0, {0}, {0}}
#define FA3_FORWARD_PARAMS_INIT                                                                      \
  {sizeof(fa3_forward_params), 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, \
   FA3_TENSOR_INIT, 0, 0, NULL}

enum fa3_forward_flags {
  /* Same input, same output bits, on the same device model and library version. An error where a kernel cannot
   * promise it. Every forward kernel of this version can. */
  FA3_FLAG_DETERMINISTIC = 1
};

/* Would fa3_forward accept these parameters, and if not, why? Host only: no GPU, driver or context is needed.
 * Data pointers are checked for alignment and NULL, never followed (but kernel's name is read). */
FA3_API fa3_status fa3_forward_check(const fa3_forward_params* params);

/* Bytes of workspace that fa3_forward needs for these parameters on the current context's device; without a current
 * context (or a GPU, or a driver) on one of 132 multiprocessors, as H100 SXM and H200 have. Host only; a function of the
 * parameters and the number of multiprocessors only. Data pointers are not looked at (but lse is checked only if its
 * data is not NULL).
 *
 * It is FA3_FORWARD_WORKSPACE_BYTES, never less, unless work is split along the keys: where blocks of queries (at all,
 * or those left when all multiprocessors have had as many as the others) are too few to occupy every multiprocessor, or
 * differ so much under a causal mask that some would keep theirs long after the rest, and keys are many, several
 * multiprocessors share one, and their partial results in float32 meet in the workspace.
 * That takes at most 3 * multiprocessors * block_q rows of 4 * (head_dim + 8) bytes (fa3_kernel_info), 54 MB on 132
 * multiprocessors, and a few KB. */
FA3_API fa3_status fa3_forward_workspace_size(const fa3_forward_params* params, size_t* bytes);
#define FA3_FORWARD_WORKSPACE_BYTES 64

/* Enqueues the forward pass on `stream` and returns.
 *
 * Context: the calling thread's current context is used; its device must be of compute capability 9.0 and `stream`
 * must belong to it. Kernels are loaded into a context on first use (or by fa3_preload).
 * workspace: device memory of at least the size above (asked for while this context is current), aligned to 16 bytes.
 *   Its contents need no initialisation and mean nothing between calls: calls of different parameters may use the same
 *   one, as large as the largest needs. Calls that may run at the same time (two streams) need a workspace each.
 * Capture: allowed after fa3_preload in this context; a graph may be replayed any number of times. A kernel that the
 *   library does not choose itself must have run in this context before (see fa3_preload). */
FA3_API fa3_status fa3_forward(const fa3_forward_params* params, void* workspace, size_t workspace_bytes,
                               fa3_stream stream);

/* The same computation on the CPU: float64 arithmetic on the given inputs, rounded once to o's dtype (and lse's).
 * All pointers are host pointers. The oracle of the library's tests, and a way to try the API without a GPU.
 * threads: number of host threads, 0 for one per core. More is allowed here than on the device: q, k and v of
 * FA3_DTYPE_FP32 (with any head_dim from 1 to 256), o of another dtype than q, negative strides, any alignment of the
 * elements' size. lse is FA3_DTYPE_FP32. */
FA3_API fa3_status fa3_reference_forward(const fa3_forward_params* params, int threads);

/* ---- kernels ----------------------------------------------------------------------------------------------- */

typedef struct fa3_kernel_info {
  size_t struct_size;           /* in: sizeof(fa3_kernel_info); at most that many bytes are written */
  char name[64];                /* kernel symbol, for example "fa3_fwd_bf16_d128_causal" */
  int32_t dtype;                /* fa3_dtype of q, k, v */
  int32_t head_dim;             /* the kernel's own head_dim; smaller ones are zero-filled up to it */
  int32_t causal;               /* 1 if the kernel masks causally */
  int32_t block_q;              /* Br: query rows of one tile */
  int32_t block_kv;             /* Bc: keys of one iteration */
  int32_t stages;               /* depth of the K/V ring */
  int32_t threads;              /* per thread block */
  int32_t producer_registers;   /* per thread, after setmaxnreg; 0 for a kernel that has no producer */
  int32_t consumer_registers;   /* the same of the consumers; 0 for a kernel that leaves this to the compiler */
  int32_t shared_memory_bytes;  /* dynamic, per thread block */
  int64_t tiles;                /* of this problem: batch * heads * blocks of queries, without some that see no key */
  int32_t grid;                 /* thread blocks that would be launched on the current device; 0 if there is none */
} fa3_kernel_info;

#define FA3_KERNEL_INFO_INIT {sizeof(fa3_kernel_info), {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Which kernel would run these parameters (the chosen or the named one), and how, on the current context's device. Host
 * only: without a current context it is the choice for 132 multiprocessors, and grid is 0. Data pointers are not looked
 * at, so that one may ask before allocating. */
FA3_API fa3_status fa3_forward_kernel_info(const fa3_forward_params* params, fa3_kernel_info* info);

/* The kernels of this build, 0 <= index < fa3_kernel_count(); tiles and grid are 0. */
FA3_API int fa3_kernel_count(void);
FA3_API fa3_status fa3_kernel_info_at(int index, fa3_kernel_info* info);

/* Loads every kernel that the library chooses itself into the current context, so that later calls load nothing (for
 * CUDA-graph capture and for an even first call). Other kernels, which fa3_forward_params.kernel can name, are loaded
 * when they first run. Enqueues nothing, so it may run while streams capture. Idempotent. */
FA3_API fa3_status fa3_preload(void);

/* ---- version and errors ------------------------------------------------------------------------------------ */

/* major * 10000 + minor * 100 + patch of the library, as FA3_VERSION_* are of the header. */
FA3_API int fa3_version(void);
FA3_API int fa3_abi_version(void);

/* A short constant text, "invalid argument" for FA3_ERROR_INVALID_ARGUMENT; never NULL. */
FA3_API const char* fa3_status_string(fa3_status status);

/* Why the calling thread's last call of this library was refused: one line, "" after FA3_OK. Never NULL; valid until
 * the thread's next call. */
FA3_API const char* fa3_last_error_message(void);

#ifdef __cplusplus
}
#endif
#endif /* FA3_H */
