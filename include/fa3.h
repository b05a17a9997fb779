/* libfa3: FlashAttention-3 for NVIDIA Hopper behind a C ABI.
 *
 *   O = softmax(mask(softmax_scale * Q K^T)) V,    LSE = log(sum(exp(mask(softmax_scale * Q K^T))))
 *
 * computed exactly, in one pass over K and V, as in "FlashAttention-3: Fast and Accurate Attention with Asynchrony and
 * Low-precision" (NeurIPS 2024), sections 3.1 and 3.2, and in FP8 with block quantization and incoherent processing,
 * section 3.3.
 *
 * This header is the contract, together with the pages that it names, such as fp8.md (tools/docs/pages of the sources,
 * share/doc/fa3 of an installation). It compiles alone as C11 (-pedantic) and as C++, and needs no CUDA header.
 *
 * ABI promise: a program runs with every later library of the same FA3_ABI_VERSION without being compiled again. abi.md
 * says what that covers, and what is not promised.
 *
 * Every function
 * - prints and throws nothing, never exits, allocates no device memory, and synchronises no stream and no device.
 * - refuses a wrong call before any GPU work: it launches and writes nothing, and returns a status other than FA3_OK.
 *   fa3_last_error_message() names the argument and the reason, as in "k.stride[3] is 2, must be 1".
 * - may be called from several threads at once. Parameter structs, and the texts that they point to, are read, never
 *   kept, and written only where this header says so.
 * - works without a GPU and without a driver, except fa3_preload, fa3_forward, fa3_forward_schedule, fa3_backward,
 *   fa3_quantize, fa3_append, fa3_combine, and questions about the current context's device.
 *
 * What goes wrong on the device (a wrong address, say) shows later, as the error of the first driver call that notices
 * it. That may be a later call of this library, which then returns FA3_ERROR_CUDA for work that is not its own.
 *
 * Conventions. They hold unless a field says otherwise.
 * - Sizes and strides are int64_t. Strides count elements, not bytes. Flags are uint64_t, with bits below bit 31; bits
 *   that the library does not know are refused. A pointer is NULL only where this header allows it.
 * - A parameter struct begins with struct_size = sizeof(the struct), at most 4096. Zero means "default" or "none" in
 *   every field except strides. A tensor of rank 0 is absent. Structs have no padding and grow only at their end: a
 *   smaller struct_size (an older client) gives the missing fields their defaults; a larger one (a newer client) is
 *   accepted if every byte beyond this library's struct is zero.
 * - A field says a tensor's dims, as (outer ... inner), and its dtype. Dims of the same name are equal. Varlen tensors
 *   have one dim for batch and sequence: the sequences lie one behind the other.
 * - Tensors hold device pointers of the current context's device; those of fa3_reference_... functions hold host
 *   pointers. Each dim times its stride stays below 2^40 bytes, and tensors stay within the address space. A tensor may
 *   have more than 2^31 elements; one without elements may have data NULL.
 * - These tensors have rows: those of 8 and 16 bits, o, dq, dk and dv of fp32, and those whose fields say so. There the
 *   last stride is 1, as TMA loads whole rows; the others are multiples of 16 bytes and >= 0; data is aligned to 16
 *   bytes. So slices of a packed QKV, padded rows, any order of the outer dims and broadcasts (stride 0) need no copy.
 * - Other tensors: fp32 ones have any strides >= 0, int32 and int64 ones are contiguous; data is aligned to an element.
 * - Outputs: strides are > 0 and nest. That is, in order of size, each is larger than the span of the smaller ones, the
 *   sum of their (dim - 1) * stride. The strides of every slice, transposition and padding of a packed tensor nest.
 *   Other strides are refused, even where no two elements share an address.
 * - Outputs and the workspace overlap neither each other nor anything that the call reads. The library takes two of
 *   them to be apart if their ranges of addresses are apart, or if they interleave with a common stride, as slices of
 *   one buffer do. All else is refused. Tensors that a call only reads may share memory.
 */
#ifndef FA3_H
#define FA3_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Stands before each function. To read this header without a compiler, define FA3_API first, maybe as nothing. */
#ifndef FA3_API
#if defined(__GNUC__)
#define FA3_API __attribute__((visibility("default")))
#else
#define FA3_API
#endif
#endif

#define FA3_VERSION_MAJOR 0
#define FA3_VERSION_MINOR 2
#define FA3_VERSION_PATCH 0
/* The number in the soname, libfa3.so.1. Only a change that breaks the ABI promise raises it. */
#define FA3_ABI_VERSION 1

/* ---- status ------------------------------------------------------------------------------------------------ */

typedef enum fa3_status {
  FA3_OK = 0,
  FA3_ERROR_INVALID_ARGUMENT = 1,    /* an argument contradicts this header or another argument */
  FA3_ERROR_UNSUPPORTED = 2,         /* well-formed, but no kernel of this version does it */
  FA3_ERROR_WORKSPACE_TOO_SMALL = 3, /* fa3_forward_workspace_size and its like tell the size */
  FA3_ERROR_NO_DRIVER = 4,           /* libcuda.so.1 is missing or too old: no GPU can be used */
  FA3_ERROR_NO_CONTEXT = 5,          /* the calling thread has no current CUDA context */
  FA3_ERROR_WRONG_DEVICE = 6,        /* the current context's device is not of compute capability 9.0 */
  FA3_ERROR_NOT_LOADED = 7,          /* the kernel is not loaded and the stream is capturing: call fa3_preload first */
  FA3_ERROR_CUDA = 8,                /* the driver returned an error; the message names call, error and its number */
  FA3_ERROR_OUT_OF_MEMORY = 9        /* host memory */
} fa3_status;

/* ---- types ------------------------------------------------------------------------------------------------- */

typedef enum fa3_dtype {
  FA3_DTYPE_NONE = 0,
  FA3_DTYPE_BF16 = 1,
  FA3_DTYPE_FP16 = 2,
  FA3_DTYPE_FP32 = 3,
  FA3_DTYPE_E4M3 = 4,  /* FP8: 4 bits of exponent, 3 of fraction, largest number 448, NaN but no infinity */
  FA3_DTYPE_E5M2 = 5,  /* FP8 of another kind: known by name, so that it can be refused; no function takes it */
  FA3_DTYPE_INT32 = 6, /* lengths, page numbers, slots and positions */
  FA3_DTYPE_INT64 = 7  /* slots and positions of fa3_append, which takes either */
} fa3_dtype;

/* Which keys j query i sees. offset = seqlen_k - seqlen_q puts the last query at the last key. */
typedef enum fa3_mask {
  FA3_MASK_NONE = 0,                /* all */
  FA3_MASK_CAUSAL_TOP_LEFT = 1,     /* j <= i */
  FA3_MASK_CAUSAL_BOTTOM_RIGHT = 2, /* j <= i + offset: with more queries than keys the first rows see nothing */
  FA3_MASK_WINDOW = 3, /* i + offset - window_left <= j <= i + offset + window_right; -1: no bound on that side. With -1
                        * and -1 it is the same call as FA3_MASK_NONE, with -1 and 0 as FA3_MASK_CAUSAL_BOTTOM_RIGHT */
  FA3_MASK_CHUNK = 4   /* positions (i + offset, and j) are cut into chunks of window_left. A query sees keys of its own
                        * chunk: those up to its own position if window_right is 0, all if it is -1 */
} fa3_mask;

#define FA3_MAX_RANK 5

/* A strided view of memory: element (i, j, ...) is data[i * stride[0] + j * stride[1] + ...]. dim and stride have
 * `rank` valid entries. A stride of 0 repeats what lies there along the dimension, as a broadcast does. The stride of
 * a dimension of size 1 is never used and may be anything. */
typedef struct fa3_tensor {
  void* data;
  int32_t dtype;                /* fa3_dtype */
  int32_t rank;                 /* up to FA3_MAX_RANK; 0: absent */
  int64_t dim[FA3_MAX_RANK];    /* from 0 to INT32_MAX */
  int64_t stride[FA3_MAX_RANK]; /* in elements; literal */
} fa3_tensor;

/* Fills in the strides of a packed row-major tensor from its rank (1 to FA3_MAX_RANK) and dims: the last stride is 1,
 * each other stride the product of the later dims that are not 0. Reads and writes nothing else. Refused if the product
 * of all dims overflows int64_t. */
FA3_API fa3_status fa3_tensor_pack(fa3_tensor* tensor);

/* Same type as CUstream and cudaStream_t, so either can be passed without a cast. NULL is the legacy default stream. */
typedef struct CUstream_st* fa3_stream;

/* ---- forward ----------------------------------------------------------------------------------------------- */

/* Parameters of the forward pass. Zero-initialise and set struct_size (FA3_FORWARD_PARAMS_INIT does both), fill in. */
typedef struct fa3_forward_params {
  size_t struct_size;
  uint64_t flags;      /* fa3_forward_flags */
  fa3_tensor q;        /* (batch, seqlen_q, heads, head_dim), varlen (total_q, heads, head_dim): bf16, fp16 or e4m3 */
  fa3_tensor k;        /* (batch, seqlen_k, heads_kv, head_dim), varlen (total_k, heads_kv, head_dim), with page_table
                        * (pages, page_size, heads_kv, head_dim), with cache_batch_idx (entries, seqlen_k, heads_kv,
                        * head_dim): q's dtype or e4m3 */
  fa3_tensor v;        /* as k, with head_dim_v columns: k's dtype, or e4m3 beside qv (a latent cache: latent.md). With
                        * e4m3 q, v may also be tiles, of rank 5: fp8.md */
  fa3_tensor o;        /* as q, with head_dim_v columns: q's dtype or fp32; with e4m3 q: bf16, fp16 or e4m3 */
  fa3_tensor lse;      /* (batch, heads, seqlen_q), varlen (heads, total_q): fp32, natural logarithm; data NULL, as of
                        * an absent tensor: not wanted */
  int32_t mask;        /* fa3_mask */
  float softmax_scale; /* > 0, at most 2.3e38; 0: 1/sqrt(head_dim), with qv 1/sqrt(head_dim + head_dim_v) */
  const char* kernel;  /* NULL: the library chooses; else the name of the kernel to run, zero-terminated: c.md */
  /* For FP8, all fp32: see "FP8" below. */
  fa3_tensor q_scale;    /* (batch or 1, heads or 1, ceil(seqlen_q / 64) or 1) */
  fa3_tensor k_scale;    /* (batch or 1, heads_kv or 1, ceil(seqlen_k / 64) or 1) */
  fa3_tensor v_scale;    /* as k_scale; for a latent cache as v, with last dim ceil(head_dim_v / 128): latent.md */
  fa3_tensor o_scale;    /* (1): o in memory = O / o_scale */
  fa3_tensor v_mean;     /* (batch, heads_kv, head_dim_v), rows of fp32: added to each row of O that sees a key */
  fa3_tensor lse_offset; /* as lse: added to lse, where K is stored with a vector subtracted */
  /* Lengths, pages, windows, sinks: see "Lengths" below. In fa3_forward, only the device reads these tensors. */
  int32_t window_left;        /* with FA3_MASK_WINDOW at least -1, with FA3_MASK_CHUNK at least 1, otherwise 0 */
  int32_t window_right;       /* with FA3_MASK_WINDOW at least -1, with FA3_MASK_CHUNK 0 or -1, otherwise 0 */
  int32_t max_seqlen_q;       /* the most queries of a sequence: with cu_seqlens_q at least 1, else 0 or q.dim[1] */
  int32_t max_seqlen_k;       /* the most keys of a sequence: with cu_seqlens_k at least 1, else up to what k has for a
                               * sequence (k.dim[1], with pages page_table.dim[1] * k.dim[1]); 0 means all of these */
  fa3_tensor sinks;           /* (heads), fp32: exp(sinks[h]) is one more addend in head h's sums of exponentials */
  fa3_tensor cu_seqlens_q;    /* (batch + 1), int32: sequence b has rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 */
  fa3_tensor cu_seqlens_k;    /* (batch + 1), int32: the same of k and v; tensors with such prefix sums are varlen */
  fa3_tensor seqused_q;       /* (batch), int32: how many of a sequence's queries are in use, the first ones */
  fa3_tensor seqused_k;       /* (batch), int32: the same of keys, padding included; how full a KV cache is */
  fa3_tensor leftpad_k;       /* (batch), int32: how many of the keys in use, the first ones, are padding */
  fa3_tensor page_table;      /* (batch, pages of a sequence), int32, first stride >= 0 and below 2^31: key j is row
                               * j % page_size of page page_table[b][j / page_size] */
  fa3_tensor cache_batch_idx; /* (batch), int32: sequence b has the keys of entry cache_batch_idx[b] of k and v */
  const void* schedule;       /* NULL, or what fa3_forward_schedule wrote, aligned to 16 bytes */
  size_t schedule_bytes;      /* size of the memory that `schedule` points to; 0 without a schedule */
  float softcap;              /* finite and > 0: scores become softcap * tanh(score / softcap); 0: none */
  int32_t reserved;           /* 0 */
  fa3_tensor alibi_slopes;    /* (heads) or (batch, heads), fp32: query i's score for key j gets
                               * -slope * |i + seqlen_k - seqlen_q - j| added */
  fa3_tensor qv;              /* as q, with head_dim_v columns: a second query, for v; see latent.md */
} fa3_forward_params;

/* The contract of a forward call
 *
 * Shapes
 * - heads is a multiple of heads_kv (GQA, MQA): query head h reads head h / (heads / heads_kv) of k and v.
 * - head_dim (of q and k) and head_dim_v (of v and o) are multiples of 8 from 8 to 256; with e4m3, multiples of 16. The
 *   two may differ. 16-bit calls take more, up to 576 and 512: latent.md.
 * - seqlen_q and seqlen_k may differ; each is at most INT32_MAX - 1024. batch * heads * ceil(seqlen_q / block_q)
 *   (fa3_kernel_info) is at most INT32_MAX - 65536. More is FA3_ERROR_UNSUPPORTED. batch, heads or seqlen_q of 0:
 *   nothing to compute, FA3_OK.
 *
 * Results
 * - A row that sees no key has O = 0 and LSE = -inf.
 * - The same call gives the same bits, whatever runs beside it, on the same kind of device. The same sequence may get
 *   other last bits in another batch, except with FA3_FLAG_BATCH_INVARIANT: c.md, "The same bits each time".
 * - NaN, infinities and the largest scores: accuracy.md. Nothing beyond the tensors' dims is ever used.
 * - o of fp32 has what would otherwise be rounded to q's dtype. It serves as a partial result for fa3_combine.
 *
 * Lengths
 * - seqlen_q and seqlen_k of a sequence are the queries and keys that cu_seqlens, seqused and leftpad_k leave it.
 *   Positions, masks and ALiBi count from its first query and from its first key behind the padding. batch is
 *   cu_seqlens_q.dim[0] - 1, else q.dim[0].
 * - The kernel, the workspace and the grid follow from the maxima, not from the lengths.
 * - Rows of o and lse that belong to no sequence, or are not in use, are left as they are.
 * - A call plans lengths if it has any of these: lengths, a max_seqlen_k below k.dim[1], page_table, cache_batch_idx, a
 *   window, a chunk, sinks, softcap, alibi_slopes, qv, head dimensions above 256, o of fp32, e4m3 k under 16-bit q,
 *   FA3_FLAG_BATCH_INVARIANT, FA3_FLAG_CENTERED_K. The device then makes the plan, and the call has kernels of its own.
 * - Whatever numbers lie in device memory, nothing outside of the tensors is read or written. If a sequence is longer
 *   than its maximum, only its first rows are taken; if it reaches out of its tensor, only the rows inside. A negative
 *   length is 0. A page or cache entry that does not exist is not read. Results of a sequence with such numbers mean
 *   nothing. Other sequences keep theirs, unless it claims their rows of o, or all together claim more rows than q has.
 * - Pages have any size and lie in any order. Sequences may share pages and cache entries. Table entries are not read
 *   if they stand behind a sequence's keys, or if their page ends 128 keys or more before the first key that a query of
 *   the sequence sees. Whatever lies in keys, rows of pages and table entries that a sequence does not use, even NaN,
 *   reaches none of its results.
 * - In a call that plans lengths, total_q, total_k and a sequence's queries and keys are at most 2^30 - 2048. Work
 *   items (fa3_kernel_info.pieces) on any number of multiprocessors are at most INT32_MAX - 65536. Rows of partial
 *   results with FA3_FLAG_BATCH_INVARIANT are at most INT32_MAX. More is FA3_ERROR_UNSUPPORTED.
 *
 * Scores
 * - softcap changes the scores, softmax_scale * q_i . k_j (with qv: latent.md), first; then ALiBi does, then the mask.
 *   Slopes are >= 0 and at most 1e25 * softmax_scale; with other slopes, results of their head mean nothing.
 * - A sink makes O smaller, and LSE includes the sink. With it, a row that sees no key has O = 0 and LSE = sinks[h].
 *   -inf means no sink; with NaN or +inf, results of the head mean nothing.
 *
 * FP8 (the paper's section 3.3; fa3_quantize makes all of it, and fp8.md explains it)
 * - An element of e4m3 q, k and v is the number in memory times its scale. There is one scale for the tensor (dims of
 *   1), for each head of each batch entry, or for each block of FA3_SCALE_ROWS rows. q_scale, k_scale and v_scale are
 *   required with e4m3 q, k and v, o_scale with e4m3 o, and refused otherwise. v_mean and lse_offset are refused
 *   without e4m3 q. Strides of all these tensors are below 2^31.
 * - Scales are read when the kernels run. They must be > 0 and finite; with other scales, what depends on them means
 *   nothing. fa3_reference_forward refuses those.
 * - In a call that plans lengths, scales are (batch or 1, heads or 1, 1); batch counts sequences, also in v_mean.
 * - A call with bf16 or fp16 q over e4m3 k and v (an e4m3 KV cache) computes in fp16, as exactly as over fp16 k and v
 *   that hold the same numbers. It has k_scale and v_scale; the other tensors of FP8 are absent.
 *
 * Not together (FA3_ERROR_UNSUPPORTED)
 * | this                                              | with                                                        |
 * |---------------------------------------------------|-------------------------------------------------------------|
 * | page_table                                        | cu_seqlens_k, leftpad_k, cache_batch_idx                    |
 * | cache_batch_idx                                   | cu_seqlens_k                                                |
 * | scales of blocks, v as tiles, FA3_FLAG_TWO_LEVEL  | whatever makes the call plan lengths                        |
 * | alibi_slopes                                      | e4m3, FA3_MASK_CHUNK, FA3_FLAG_BATCH_INVARIANT              |
 * | softcap                                           | e4m3 under 16-bit q (KV cache, latent cache), lse_offset    |
 * | qv, head dimensions above 256                     | e4m3 q or k, alibi_slopes                                   |
 * | qv                                                | head_dim above 64                                           |
 * | o of fp32 (only fa3_reference_forward takes it)   | e4m3, softcap, alibi_slopes, qv, head dimensions above 256  |
 * | head_dim above 512 (only the reference takes it)  | v that is not part of k, as latent.md says                  |
 * All else goes together. fa3_backward has a table of its own. */

/* Rows of q, k or v that share a block scale. */
#define FA3_SCALE_ROWS 64
/* Columns of a row of v that share a scale, in a latent cache of e4m3. */
#define FA3_LATENT_SCALE_COLUMNS 128

/* An absent tensor; the macros for parameters set struct_size and nothing else. All are spelled out in full, so that
 * they compile without warnings in C and in C++. */
#define FA3_TENSOR_INIT {NULL, 0, 0, {0}, {0}}
#define FA3_FORWARD_PARAMS_INIT                                                                      \
  {sizeof(fa3_forward_params), 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, \
   FA3_TENSOR_INIT, 0, 0, NULL, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,     \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, 0, 0, 0, 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,     \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, NULL, 0, 0, 0,  \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT}

enum fa3_forward_flags {
  /* The same call (input, shapes, kernel) has the same bits, on the same device model and library version. It is an
   * error if the kernel cannot promise this. Every forward kernel of this version can. */
  FA3_FLAG_DETERMINISTIC = 1,
  /* e4m3 only: sums of P V leave the tensor cores' accumulators for float32 ones every few blocks of keys, so that O
   * does not shrink where V has a mean (accuracy.md). Slower. */
  FA3_FLAG_TWO_LEVEL = 2,
  /* A sequence's bits depend only on its own queries, keys and mask and on the call's heads, head dimensions and dtype.
   * They do not depend on the sequences beside it, on the maxima, or on how many of its queries come in one call (with
   * the keys up to the last of these queries). Slower. */
  FA3_FLAG_BATCH_INVARIANT = 4,
  /* fa3_backward only: a more exact dq where keys have a mean. */
  FA3_FLAG_CENTERED_K = 8,
  /* fa3_backward only: dq, dk and dv, all fp32, are added to what is there. */
  FA3_FLAG_ACCUMULATE = 16
};

/* Would fa3_forward accept these parameters, and if not, why? Host only: no GPU, driver or context is needed. Checks
 * data pointers for alignment, NULL and overlaps, never follows them. */
FA3_API fa3_status fa3_forward_check(const fa3_forward_params* params);

/* Bytes of workspace that fa3_forward needs on a device of so many multiprocessors, from 1 to 1024 (H100 SXM and H200
 * have 132). 0 means the current context's device; if there is none or it is of the wrong kind, the status is that of
 * fa3_forward. The size follows from shapes, maxima and multiprocessors only. Data pointers are not looked at, except
 * that lse is wanted if its data is not NULL. A call that does not split keys, plan lengths or convert k and v needs
 * FA3_FORWARD_WORKSPACE_BYTES: c.md, "Workspace and memory". */
FA3_API fa3_status fa3_forward_workspace_size(const fa3_forward_params* params, int32_t multiprocessors, size_t* bytes);
#define FA3_FORWARD_WORKSPACE_BYTES 64

/* Enqueues the forward pass on `stream` and returns.
 * - Context: the calling thread's current one. Its device has compute capability 9.0, and `stream` belongs to it.
 *   Kernels are loaded into a context on first use, or by fa3_preload.
 * - workspace: device memory of at least the size above for this device's multiprocessors, aligned to 16 bytes. Its
 *   contents need no initialisation and mean nothing between calls: calls of different parameters may use the same
 *   workspace, as large as the largest call needs. Calls that may run at the same time need one each.
 * - Lifetimes: params may go when the call returns. Tensors, schedule and workspace must stay, and what the call reads
 *   must not change, until the enqueued work has run; if captured, until the graph's last run has ended.
 * - Capture: allowed after fa3_preload in this context; a kernel that the library does not choose by itself must have
 *   run in the context before. A graph reads lengths, page tables and sinks when it runs, so it may be replayed with
 *   other numbers within the maxima. It holds its workspace, so it must not run twice at the same time. */
FA3_API fa3_status fa3_forward(const fa3_forward_params* params, void* workspace, size_t workspace_bytes,
                               fa3_stream stream);

/* Bytes of a schedule for these parameters: as fa3_forward_workspace_size, but 0 if the call plans no lengths. */
FA3_API fa3_status fa3_forward_schedule_size(const fa3_forward_params* params, int32_t multiprocessors, size_t* bytes);
/* Enqueues on `stream` the pass that plans these parameters' lengths, and returns. Without a schedule, each fa3_forward
 * plans. `schedule` is device memory of at least the size above, aligned to 16 bytes, not initialised; where the size
 * is 0 it may be NULL, and nothing is enqueued. Only the lengths and cache_batch_idx are read. params->schedule may be
 * this one or not set yet; its size is not checked. Context, lifetimes and capture: as for fa3_forward.
 *
 * Any number of fa3_forward calls that come after it in the order of streams may have the schedule in params->schedule
 * and params->schedule_bytes, also at the same time. They may have other data in their tensors. Their parameters, the
 * numbers in all lengths and in cache_batch_idx, and the device's number of multiprocessors must be the same. The
 * library cannot see that they are not: then results mean nothing, and memory outside of the tensors may be touched. A
 * call that plans no lengths does not look at its schedule. */
FA3_API fa3_status fa3_forward_schedule(const fa3_forward_params* params, void* schedule, size_t schedule_bytes,
                                        fa3_stream stream);

/* The same computation on the CPU: float64 arithmetic on the given inputs, rounded once to o's dtype (and lse's). All
 * pointers are host pointers. `kernel` and `schedule` are not looked at.
 * threads: how many host threads, the calling one among them (at most 256 are used); 0 for one per core that this
 * process may use (affinity mask and CPU quotas). Each needs 1.8 MB of memory during the call; a call that plans
 * lengths also needs 8 bytes for each sequence. Without that memory, the call is FA3_ERROR_OUT_OF_MEMORY and writes
 * nothing. O has the same bits whatever the number of threads and the machine.
 * It takes more than the device: q, k and v of fp32 (with any head dimensions from 1 to 576 and 512), o of another
 * dtype than q, any stride of head_dim, negative strides, data that is aligned only to its elements. More rows of all
 * heads than int64_t counts are FA3_ERROR_UNSUPPORTED, here and in fa3_reference_backward. */
FA3_API fa3_status fa3_reference_forward(const fa3_forward_params* params, int threads);

/* ---- backward ---------------------------------------------------------------------------------------------- */

/* Gradients of the forward pass (the paper's appendix B.1, Algorithm 3): the gradients of a number that depends on O,
 * and maybe on LSE. dout ("dO"; `do` is a word of C) and dlse are the number's gradients with respect to O and LSE.
 * With i for queries, j for keys:
 *
 *   P_ij = exp(softmax_scale * q_i . k_j - LSE_i) for the keys that query i sees, otherwise 0
 *   D_i  = dout_i . o_i - dlse_i
 *   dv_j = sum_i P_ij dout_i
 *   dS_ij = P_ij * (dout_i . v_j - D_i)
 *   dq_i = softmax_scale * sum_j dS_ij k_j,    dk_j = softmax_scale * sum_i dS_ij q_i
 *
 * q, k, v, mask, lengths, sinks, scales and whatever else the forward call had are given again, with the same names,
 * dims, rules and values; o and lse are what the forward call wrote. With anything else, gradients mean nothing. */
typedef struct fa3_backward_params {
  size_t struct_size;
  uint64_t flags;          /* FA3_FLAG_DETERMINISTIC, FA3_FLAG_CENTERED_K, FA3_FLAG_ACCUMULATE */
  fa3_tensor q;            /* (batch, seqlen_q, heads, head_dim), varlen (total_q, heads, head_dim): bf16, fp16, e4m3 */
  fa3_tensor k;            /* (batch, seqlen_k, heads_kv, head_dim), varlen (total_k, heads_kv, head_dim): as q */
  fa3_tensor v;            /* as k, with head_dim_v columns; e4m3 also as tiles: as q */
  fa3_tensor o;            /* as q, with head_dim_v columns: as q; with e4m3 q: bf16 or fp16 */
  fa3_tensor lse;          /* (batch, heads, seqlen_q), varlen (heads, total_q): fp32 */
  fa3_tensor dout;         /* as o */
  fa3_tensor dq;           /* as q: o's dtype, or dq, dk and dv all fp32 */
  fa3_tensor dk;           /* as k, the sum over the query heads that read a head of k: as dq */
  fa3_tensor dv;           /* as k, also where v comes as tiles, with head_dim_v columns: as dq */
  int32_t mask;            /* fa3_mask */
  float softmax_scale;     /* > 0, at most 2.3e38; 0: 1/sqrt(head_dim) */
  const char* kernel;      /* NULL: the library chooses; else the kernel that computes dk and dv (c.md) */
  fa3_tensor dlse;         /* as lse; absent: 0 */
  int32_t window_left;     /* this and what follows: as in fa3_forward_params */
  int32_t window_right;
  fa3_tensor sinks;        /* (heads), fp32; read only for dsinks, as lse includes sinks */
  fa3_tensor dsinks;       /* (heads), fp32, only with sinks; absent: not wanted. Receives the sum over all rows:
                            * dsinks_h = -sum_i exp(sinks_h - LSE_i) * D_i; 0 for a sink of -inf */
  fa3_tensor cu_seqlens_q; /* (batch + 1), int32 */
  fa3_tensor cu_seqlens_k; /* (batch + 1), int32 */
  fa3_tensor seqused_q;    /* (batch), int32 */
  fa3_tensor seqused_k;    /* (batch), int32 */
  int32_t max_seqlen_q;
  int32_t max_seqlen_k;
  float softcap;           /* dS has one more factor, 1 - (capped score / softcap)^2 */
  int32_t reserved;        /* 0 */
  fa3_tensor alibi_slopes; /* (heads) or (batch, heads), fp32; slopes have no gradient */
  fa3_tensor q_scale;      /* required with e4m3 q, k and v: as in fa3_forward_params */
  fa3_tensor k_scale;
  fa3_tensor v_scale;
  fa3_tensor v_mean;
  fa3_tensor lse_offset;
} fa3_backward_params;

/* The contract of a backward call
 *
 * - Shapes, lengths, empty tensors: as for a forward call, with head dimensions up to 256.
 * - A row that sees no key has dq = 0, and its q, dout, o and lse are not read. Its dlse is read only for dsinks, where
 *   the row has LSE_i = sinks_h and D_i = -dlse_i. A key that no query sees has dk = dv = 0.
 * - Rows behind seqused_q or seqused_k, or behind max_seqlen_k where k is not varlen, have gradients of 0 and are not
 *   read. Rows of no sequence, and rows behind a sequence's maximum, are left as they are. Wrong lengths: as for a
 *   forward call; other sequences keep their gradients unless a wrong one claims their rows of q or k.
 * - NaN and infinities are in accuracy.md, gradients of e4m3 in fp8.md.
 * - dk, dv and dsinks have the same bits whenever the call is repeated on the same kind of device. dq has them, too, if
 *   head_dim or head_dim_v is above 128, or with FA3_FLAG_DETERMINISTIC. Otherwise dq is a sum in no fixed order.
 * - FA3_FLAG_CENTERED_K takes the keys' mean out of the rounding errors of dq (training.md). lse must be of exactly the
 *   call's keys: where keys are split between calls (context parallelism), dq means nothing.
 * - Gradients of fp32 are the sums that would otherwise be rounded. FA3_FLAG_ACCUMULATE adds them to what is there,
 *   each sum rounded once. Where a gradient would be 0, what is there stays. dsinks is never added.
 * - More than these numbers is FA3_ERROR_UNSUPPORTED, except in fa3_reference_backward:
 *   - INT32_MAX for batch * heads * seqlen_q, with seqlen_q rounded up to block_q
 *   - INT32_MAX / 2, with gradients of fp32 INT32_MAX / 8, for batch * heads_kv * ceil(seqlen_k / block_kv)
 *   - INT32_MAX - 65536 for rows of all heads of e4m3 q, and for those of k
 *   - in a call that plans lengths: INT32_MAX for rows of all sequences and heads, each sequence's rounded up;
 *     2^30 - 2048 for batch, and for rows of one head; 2^31 - 2 for the steps that a batched tensor spans, a step being
 *     the greatest common divisor of the distances of its rows and of its batch entries (32 GB are always accepted)
 *
 * Not together (FA3_ERROR_UNSUPPORTED)
 * | this                          | with                                                                     |
 * |-------------------------------|--------------------------------------------------------------------------|
 * | scales of blocks, v as tiles  | whatever makes the call plan lengths                                     |
 * | alibi_slopes                  | e4m3, FA3_MASK_CHUNK                                                     |
 * | softcap                       | lse_offset                                                               |
 * | FA3_FLAG_CENTERED_K           | sinks, dlse, softcap, alibi_slopes                                       |
 * | dsinks                        | v_mean, lse_offset (fa3_reference_backward has that)                     |
 * There is no backward pass with pages, left padding, cache entries, qv or FA3_FLAG_BATCH_INVARIANT. */

#define FA3_BACKWARD_PARAMS_INIT                                                                         \
  {sizeof(fa3_backward_params), 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,   \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, 0, 0, NULL,      \
   FA3_TENSOR_INIT, 0, 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,            \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, 0, 0, 0, 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,      \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT}

/* Would fa3_backward accept these parameters, and if not, why? As fa3_forward_check. */
FA3_API fa3_status fa3_backward_check(const fa3_backward_params* params);

/* Bytes of workspace that fa3_backward needs. They follow from shapes, maxima and flags only: c.md, "Workspace and
 * memory", has the parts. Data pointers are not looked at. */
FA3_API fa3_status fa3_backward_workspace_size(const fa3_backward_params* params, size_t* bytes);

/* Enqueues the backward pass on `stream` and returns. Context, workspace, lifetimes and capture: as for fa3_forward. */
FA3_API fa3_status fa3_backward(const fa3_backward_params* params, void* workspace, size_t workspace_bytes,
                                fa3_stream stream);

/* The gradients on the CPU: float64 arithmetic on the given inputs, each gradient rounded once. All pointers are host
 * pointers. threads: as for fa3_reference_forward; each needs 1.3 MB during the call, and a call that plans lengths 16
 * more bytes for each sequence. Gradients have the same bits whatever the number of threads and the machine.
 * It takes more than the device: q, k and v of fp32 (with any head dimensions from 1 to 256), o, dout, dq, dk and dv
 * each of any of the three dtypes (also beside e4m3), any stride of head_dim, negative strides, data that is aligned
 * only to its elements. FA3_FLAG_CENTERED_K changes nothing here. */
FA3_API fa3_status fa3_reference_backward(const fa3_backward_params* params, int threads);

/* ---- quantization ------------------------------------------------------------------------------------------ */

/* Makes e4m3 tensors with their scales for the forward pass, from bf16 or fp16:
 *
 *   y = round((transform(rotary(x)) - mean) / scale),   scale = amax / 448 */
typedef struct fa3_quantize_params {
  size_t struct_size;
  uint64_t flags;        /* fa3_quantize_flags */
  uint64_t seed;         /* for FA3_QUANTIZE_INCOHERENT */
  fa3_tensor x;          /* (batch, seqlen, heads, head_dim): bf16 or fp16; head_dim a multiple of 16 from 16 to 256 */
  fa3_tensor y;          /* as x, or the tiles of v (batch, heads, ceil(seqlen / 16), head_dim, 16): e4m3 */
  fa3_tensor scale;      /* (1, 1, 1), (batch, heads, 1) or, for blocks of FA3_SCALE_ROWS rows, (batch, heads,
                          * ceil(seqlen / 64)): fp32. 1 where amax is 0, else at least 2^-126 */
  fa3_tensor mean;       /* (batch, heads, head_dim), fp32, last stride 1: receives the mean over the sequence of what y
                          * would hold; y then holds the difference. Absent: no mean is taken */
  fa3_tensor rotary_cos; /* (seqlen, rotary_dim / 2), rows of fp32, with rotary_sin: rotary embedding of the first
                          * rotary_dim columns, a multiple of 16, before anything else */
  fa3_tensor rotary_sin; /* as rotary_cos */
  fa3_tensor k_mean;     /* (batch, heads_kv, head_dim), fp32, last stride 1, with lse_offset, if x is Q: K's `mean`.
                          * heads is a multiple of heads_kv */
  fa3_tensor lse_offset; /* (batch, heads, seqlen), fp32, with k_mean: receives softmax_scale * x' . k_mean, where x' is
                          * the transformed row before rounding. The forward pass adds this to its LSE */
  float softmax_scale;   /* for lse_offset: as in fa3_forward_params */
  int32_t reserved;      /* 0 */
} fa3_quantize_params;

#define FA3_QUANTIZE_PARAMS_INIT                                                                                   \
  {sizeof(fa3_quantize_params), 0, 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,          \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, 0, 0}

/* The contract of a quantization
 * - Where a NaN or an infinity is to be rounded, the scale is computed from the other elements; NaN stays NaN,
 *   infinities become +-448. Sums over a row or the sequence are meant to stay below 2^127.
 * - seqlen is at most INT32_MAX - 1024, batch * heads * ceil(seqlen / 64) at most INT32_MAX - 65536; more is
 *   FA3_ERROR_UNSUPPORTED. Empty tensors: nothing to compute, FA3_OK; not all of their strides are looked at. */

enum fa3_quantize_flags {
  /* The paper's incoherent processing, for q and k with the same seed: random signs of the columns, then an orthogonal
   * Hadamard matrix. Q K^T, O and LSE stay what they were. fp8.md, "Incoherent processing", defines both. */
  FA3_QUANTIZE_INCOHERENT = 1,
  /* Rotary embedding pairs columns 2 i and 2 i + 1; without this flag, columns i and i + rotary_dim / 2. A pair (a, b)
   * becomes (a cos - b sin, a sin + b cos). */
  FA3_QUANTIZE_ROTARY_INTERLEAVED = 2
};

/* Would fa3_quantize accept these parameters, and if not, why? As fa3_forward_check. */
FA3_API fa3_status fa3_quantize_check(const fa3_quantize_params* params);

/* Bytes of workspace that fa3_quantize needs. They follow from the parameters only; data pointers are not looked at. */
FA3_API fa3_status fa3_quantize_workspace_size(const fa3_quantize_params* params, size_t* bytes);

/* Enqueues the quantization on `stream` and returns. Context, workspace, lifetimes and capture: as for fa3_forward. The
 * same call gives the same bits. */
FA3_API fa3_status fa3_quantize(const fa3_quantize_params* params, void* workspace, size_t workspace_bytes,
                                fa3_stream stream);

/* The same on the CPU, in float64 up to the one rounding of each output. All pointers are host pointers. */
FA3_API fa3_status fa3_reference_quantize(const fa3_quantize_params* params);

/* ---- append ------------------------------------------------------------------------------------------------ */

/* Writes new rows of K and V into a KV cache, with rotary embedding of K and Q and rounding to e4m3 where these are
 * wanted, in one launch that reads and writes each element once: what servers do before attention over a cache.
 *
 *   k_cache = round(rotary(k) / k_scale),   v_cache = round(v / v_scale),   q_out = round(rotary(q) / q_scale)
 *
 * A call has k with k_cache, and maybe v with v_cache (no v where V is part of K's rows), or q with q_out, or all of
 * these. */
typedef struct fa3_append_params {
  size_t struct_size;
  uint64_t flags;              /* fa3_append_flags */
  fa3_tensor k;                /* (batch, rows, heads_kv, head_dim), varlen (rows, heads_kv, head_dim): bf16 or fp16 */
  fa3_tensor v;                /* as k, with head_dim_v columns: as k */
  fa3_tensor k_cache;          /* (caches, cache_rows, heads_kv, head_dim); with page_table the caches are pages. k's
                                * dtype or e4m3 */
  fa3_tensor v_cache;          /* as k_cache, with head_dim_v columns: k's dtype or e4m3 */
  fa3_tensor cache_seqlens;    /* (batch), int32: the keys that are there before the call, left padding included: row i
                                * of sequence b becomes key cache_seqlens[b] + i. The numbers are not changed */
  fa3_tensor cu_seqlens_new;   /* (batch + 1), int32: sequence b has rows cu_seqlens_new[b] to cu_seqlens_new[b + 1] - 1
                                * of varlen tensors; others cannot have it. Without it, each row stands for itself */
  fa3_tensor seqused_new;      /* (batch), int32: only the first seqused_new[b] rows of sequence b are new */
  fa3_tensor page_table;       /* (batch, pages of a sequence), int32, first stride >= 0: position p is key
                                * p % cache_rows of page page_table[b][p / cache_rows] */
  fa3_tensor cache_batch_idx;  /* (batch), int32: sequence b has k_cache[cache_batch_idx[b]]; absent: k_cache[b], and
                                * caches is batch */
  fa3_tensor slot_mapping;     /* (rows), int32 or int64, in place of cache_seqlens, page_table and cache_batch_idx: row
                                * i, whose slot is s = slot_mapping[i], becomes key s % cache_rows of
                                * k_cache[s / cache_rows]; s < 0: left out */
  fa3_tensor q;                /* (batch, rows, heads, head_dim), varlen (rows, heads, head_dim): as k */
  fa3_tensor q_out;            /* as q: its dtype or e4m3; may be q itself, with the same strides */
  fa3_tensor rotary_cos;       /* (positions, rotary_dim / 2), rows of fp32, with rotary_sin: embedding of the first
                                * rotary_dim columns of k and q, a multiple of 16 */
  fa3_tensor rotary_sin;       /* as rotary_cos */
  fa3_tensor rotary_positions; /* (batch), or (rows) where rows stand for themselves, int32 or int64, with rotary_cos:
                                * row i is rotated by position rotary_positions[b] + i, or rotary_positions[i]; absent:
                                * by its place, cache_seqlens[b] + i */
  fa3_tensor k_scale;          /* (batch or 1, heads_kv or 1, 1), fp32: required with an e4m3 k_cache, else refused */
  fa3_tensor v_scale;          /* (batch or 1, heads_kv or 1, 1), fp32: the same of v_cache */
  fa3_tensor q_scale;          /* (batch or 1, heads or 1, 1), fp32: the same of q_out */
} fa3_append_params;

#define FA3_APPEND_PARAMS_INIT                                                                                       \
  {sizeof(fa3_append_params), 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,              \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,              \
   FA3_TENSOR_INIT}

/* The contract of an append call
 * - head_dim and head_dim_v are multiples of 8 up to 1024, of 16 where the output is e4m3.
 * - k needs cache_seqlens or slot_mapping. page_table, cache_batch_idx and slot_mapping need k; the first two do not go
 *   together (FA3_ERROR_UNSUPPORTED). Rotation without cache_seqlens needs rotary_positions.
 * - slot_mapping is for varlen rows that stand for themselves; caches * cache_rows is below 2^31 then, more is
 *   FA3_ERROR_UNSUPPORTED. Such rows have no sequences, so the call has none of the tensors of (batch).
 * - Rounding: a quotient is rounded to float32, then to e4m3 (to nearest even; infinities and what exceeds 448 become
 *   +-448, NaN stays NaN). All else is float32, rounded once; columns of 16 bits that are not rotated are copied bit by
 *   bit. Scales are normal numbers > 0; with other scales, what is written means nothing.
 * - Only the device reads lengths, positions, page numbers and slots, when the kernel runs. Whatever they are, nothing
 *   outside of the tensors is read or written. A row is left out if its page, cache or position does not exist, or if
 *   it belongs to no sequence. Row i of Q is written even if row i of K and V has no place in the cache; it is left out
 *   if it has no position in the rotary tables. Where prefix sums decrease, rows may be left out or go where they
 *   should not. If two rows have the same place, it may hold either row, or some of both.
 * - rows (of all sequences together) are at most INT32_MAX - 65536. The warps of a call, about one for each 2 KB of a
 *   row, have the same limit. More is FA3_ERROR_UNSUPPORTED. Nothing to write: FA3_OK. */

enum fa3_append_flags {
  FA3_APPEND_ROTARY_INTERLEAVED = 1 /* pairs of columns: as FA3_QUANTIZE_ROTARY_INTERLEAVED */
};

/* Would fa3_append accept these parameters, and if not, why? As fa3_forward_check. */
FA3_API fa3_status fa3_append_check(const fa3_append_params* params);

/* Enqueues the call on `stream` and returns. It needs no workspace. Context, lifetimes and capture: as for fa3_forward.
 * The same call gives the same bits. */
FA3_API fa3_status fa3_append(const fa3_append_params* params, fa3_stream stream);

/* The same on the CPU, in float64 up to the roundings named above. All pointers are host pointers. */
FA3_API fa3_status fa3_reference_append(const fa3_append_params* params);

/* ---- combination ------------------------------------------------------------------------------------------- */

/* Merges partial results of attention, each over some of the keys, into the result over all keys. This serves keys that
 * are worked on one after another or in different places (a prefix that several sequences share, context parallelism).
 * With i for the parts, for each row of queries and each head:
 *
 *   LSE = log(sum_i exp(LSE_i)),   O = sum_i exp(LSE_i - LSE) O_i */
typedef struct fa3_combine_params {
  size_t struct_size;
  uint64_t flags;       /* 0 */
  fa3_tensor o_parts;   /* (parts, batch, seqlen, heads, head_dim), rows of bf16, fp16 or fp32; parts at most 65536 */
  fa3_tensor lse_parts; /* (parts, batch, heads, seqlen): fp32 */
  fa3_tensor o;         /* (batch, seqlen, heads, head_dim), rows of bf16, fp16 or fp32, whatever o_parts has. head_dim
                         * is a multiple of 8 from 8 to 512 */
  fa3_tensor lse;       /* (batch, heads, seqlen), fp32; absent: not wanted */
} fa3_combine_params;

#define FA3_COMBINE_PARAMS_INIT \
  {sizeof(fa3_combine_params), 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT}

/* Would fa3_combine accept these parameters, and if not, why? As fa3_forward_check. */
FA3_API fa3_status fa3_combine_check(const fa3_combine_params* params);

/* Enqueues the combination on `stream` and returns. It needs no workspace. Context, lifetimes and capture: as for
 * fa3_forward. The same call gives the same bits, on any device.
 * - Weights and sums are float32, and each element is rounded once. If only one part has seen a key of a row, the row
 *   gets that part's O, rounded to o's dtype, and that part's LSE.
 * - A part whose LSE is -inf has seen no key of the row: its O is not used, whatever it holds, even NaN. Where all
 *   parts are such, or parts is 0, O = 0 and LSE = -inf.
 * - An LSE that is NaN or +inf makes its row's O and LSE NaN. Where a part's LSE is a number, NaN and infinities in its
 *   O reach the same elements of the merged O (an infinity maybe as NaN, if its weight is below 2^-126).
 * - Not in place: o and lse overlap neither o_parts nor lse_parts.
 * - batch, heads or seqlen of 0: nothing to compute, FA3_OK. batch * heads and seqlen are each at most
 *   INT32_MAX - 65536; more is FA3_ERROR_UNSUPPORTED. */
FA3_API fa3_status fa3_combine(const fa3_combine_params* params, fa3_stream stream);

/* The same on the CPU, in float64 up to the one rounding of each output. All pointers are host pointers. */
FA3_API fa3_status fa3_reference_combine(const fa3_combine_params* params);

/* ---- kernels ----------------------------------------------------------------------------------------------- */

typedef enum fa3_kernel_kind {
  FA3_KERNEL_FORWARD = 1,
  FA3_KERNEL_BACKWARD = 2,
  FA3_KERNEL_PASS = 3 /* a small kernel before, after or instead of the kernel of another kind, or one of fa3_quantize,
                       * fa3_append and fa3_combine: it has a name, but no call can ask for it */
} fa3_kernel_kind;

typedef struct fa3_kernel_info {
  size_t struct_size;          /* in: sizeof(fa3_kernel_info); at most that many bytes are written */
  char name[64];               /* what `kernel` of the parameters takes; tells kernel, dtype, head_dim, mask and tile */
  int32_t kind;                /* fa3_kernel_kind */
  int32_t dtype;               /* fa3_dtype of q, k, v; a pass has FA3_DTYPE_NONE, and 0 where nothing applies */
  int32_t head_dim;            /* the kernel's own, of q and k; smaller ones are filled up with zeros */
  int32_t head_dim_v;          /* the same of v and o */
  int32_t causal;              /* 1 if the kernel masks causally; 0 where it takes any window */
  int32_t block_q;             /* Br: query rows of a tile; those of several heads if the kernel packs heads */
  int32_t block_kv;            /* Bc: keys of one iteration */
  int32_t stages;              /* depth of the K/V ring */
  int32_t threads;             /* per CTA */
  int32_t producer_registers;  /* per thread, after setmaxnreg; 0 for a kernel without a producer or setmaxnreg */
  int32_t consumer_registers;  /* the same of the consumers; 0 for a kernel that leaves this to the compiler */
  int32_t shared_memory_bytes; /* dynamic, per CTA */
  int32_t chosen;              /* 1 if the library chooses this kernel by itself, 0 if it only runs by name */
  /* The rest describes the call that was asked about; fa3_kernel_info_at sets it to 0. */
  int32_t launches;            /* kernel launches of the call; 0 if there is nothing to compute */
  int32_t grid;                /* CTAs of this launch */
  int32_t multiprocessors;     /* that the call is planned for */
  int64_t tiles;               /* blocks of queries (or of keys, in some backward kernels) of all heads, without some
                                * that see no key; if the call plans lengths, the most that there may be */
  int64_t pieces;              /* work items, which CTAs take one by one: tiles, or parts of tiles that are split along
                                * the keys. If the call plans lengths, the most that there may be */
} fa3_kernel_info;

#define FA3_KERNEL_INFO_INIT {sizeof(fa3_kernel_info), {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Which kernel would run these parameters (the chosen or the named one), and how. multiprocessors: as for
 * fa3_forward_workspace_size. A call may take several launches: passes that prepare something before the kernel, a pass
 * that adds parts up behind it. `launch` says which launch is meant, from 0 to info->launches - 1; 0 is always
 * answered, and tells how many launches there are. Plans may also follow from the device's memory: a number of
 * multiprocessors means a device with the memory, L2 cache and clock of an H200. Data pointers are not looked at, so
 * that one may ask before allocating. */
FA3_API fa3_status fa3_forward_kernel_info(const fa3_forward_params* params, int32_t multiprocessors, int32_t launch,
                                           fa3_kernel_info* info);

/* The same of fa3_backward. */
FA3_API fa3_status fa3_backward_kernel_info(const fa3_backward_params* params, int32_t multiprocessors, int32_t launch,
                                            fa3_kernel_info* info);

/* The kernels of this build, 0 <= index < fa3_kernel_count(). Kernels' names are not part of the ABI promise. */
FA3_API int fa3_kernel_count(void);
FA3_API fa3_status fa3_kernel_info_at(int index, fa3_kernel_info* info);

/* Loads every kernel that the library chooses itself into the current context, so that later calls load nothing (for
 * CUDA-graph capture and for an even first call). Other kernels are loaded when they first run. Enqueues nothing, so it
 * may run while streams capture. Idempotent. */
FA3_API fa3_status fa3_preload(void);

/* ---- version and errors ------------------------------------------------------------------------------------ */

/* major * 10000 + minor * 100 + patch of the library; FA3_VERSION_* are those of the header. */
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
