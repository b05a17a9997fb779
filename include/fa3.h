/* libfa3: FlashAttention-3 for NVIDIA Hopper behind a C ABI.
 *
 * This header is the manual. It compiles alone as C11 (-pedantic) and as C++, and needs no CUDA header.
 *
 *   O = softmax(mask(softmax_scale * Q K^T)) V,    LSE = log(sum(exp(mask(softmax_scale * Q K^T))))
 *
 * exactly (not approximately), in one pass over K and V, as in "FlashAttention-3: Fast and Accurate Attention with
 * Asynchrony and Low-precision" (NeurIPS 2024), sections 3.1 and 3.2; and in FP8 with block quantization and incoherent
 * processing, section 3.3.
 *
 * ABI promise: a program built against a header of some FA3_ABI_VERSION runs with every later library of the same
 * FA3_ABI_VERSION, which is the number in the soname (libfa3.so.1), without being compiled again:
 *  - A function keeps its name, its parameters and what it does with them. New ones may come.
 *  - A struct keeps its fields and grows only at its end, by fields whose zero means what the library did before they
 *    came. fa3_tensor, which lies inside of others, does not grow.
 *  - An enumerator, a flag and FA3_MAX_RANK keep their numbers. New dtypes, masks, statuses, kinds and flags may come.
 *  - What is accepted stays accepted. What is refused may be accepted later, or be refused with another status.
 *
 * Not promised: the last bits of results, which kernels there are and which one runs, how large a workspace must be (a
 * question to be asked for each shape, and again of another library), texts of messages, speed. A newer header with an
 * older library works as far as fields that the library does not know are zero; what it lacks it refuses.
 *
 * Rules that hold for every function:
 *  - Nothing is printed, thrown or exited; no device memory is allocated; no stream or device is synchronised.
 *  - A call that is refused launches nothing and writes nothing. It returns a status other than FA3_OK, and
 *    fa3_last_error_message() names the argument and the reason, as in "k.stride[3] is 2, must be 1".
 *  - What goes wrong on the device (an address that is none, say) shows later, as with any kernel: as the error of
 *    whichever driver call notices it first, as a rule a synchronisation. No function waits for that. A later fa3 call
 *    may be the one that meets it, and then returns FA3_ERROR_CUDA for work that is not its own.
 *  - Functions are safe to call from several threads at once. Parameter structs, and texts that they point to, are
 *    read, never kept, and written only where this header says so.
 *  - The library loads on a machine without a GPU or driver. Only fa3_preload, fa3_forward, fa3_backward, fa3_quantize,
 *    fa3_append, fa3_combine and questions about "the current context's device" need one.
 *
 * Conventions:
 *  - Sizes and strides are int64_t; strides count elements, not bytes.
 *  - Every parameter struct starts with struct_size = sizeof(the struct), at most 4096. Structs grow only at their end
 *    and have no padding. A smaller struct_size (an older client) gives the missing fields their defaults; a larger one
 *    (a newer client) is accepted only if every byte beyond this library's struct is zero. Zero means "default" or
 *    "none" in every field but strides, which are what they say.
 *  - Flags are uint64_t. Their bits stay below bit 31, because the enumerators of C11 are ints.
 */
#ifndef FA3_H
#define FA3_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Before each function. Whoever reads this header in another way than by a compiler may define it first, as nothing for
 * example. */
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
/* Raised only by a change that breaks the promise above. It is the number in the soname. */
#define FA3_ABI_VERSION 1

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
  FA3_ERROR_CUDA = 8,                /* the driver returned an error; the message names call, error and its number */
  FA3_ERROR_OUT_OF_MEMORY = 9        /* host memory */
} fa3_status;

/* ---- types ------------------------------------------------------------------------------------------------- */

typedef enum fa3_dtype {
  FA3_DTYPE_NONE = 0,
  FA3_DTYPE_BF16 = 1,
  FA3_DTYPE_FP16 = 2,
  FA3_DTYPE_FP32 = 3,
  FA3_DTYPE_E4M3 = 4, /* FP8: 4 bits of exponent, 3 of fraction, largest number 448, NaN but no infinity */
  FA3_DTYPE_E5M2 = 5, /* FP8 of another kind: known by name, so that it can be refused; no function takes it */
  FA3_DTYPE_INT32 = 6, /* of lengths and page numbers; nothing else has it */
  FA3_DTYPE_INT64 = 7  /* the same, for slots and positions of fa3_append, which take either */
} fa3_dtype;

typedef enum fa3_mask {
  FA3_MASK_NONE = 0,
  /* Query i sees key j if j <= i: the diagonal starts in the top left corner. */
  FA3_MASK_CAUSAL_TOP_LEFT = 1,
  /* Query i sees key j if j <= i + seqlen_k - seqlen_q: the diagonal ends in the bottom right corner. With more
   * queries than keys the first rows see nothing. For equal lengths both masks are the same. */
  FA3_MASK_CAUSAL_BOTTOM_RIGHT = 2,
  /* With window_left and window_right (see below). Query i sees key j if
   * i + offset - window_left <= j <= i + offset + window_right with offset = seqlen_k - seqlen_q, so that the window
   * moves along the diagonal that ends in the bottom right corner. -1 is no bound on that side. */
  FA3_MASK_WINDOW = 3,
  /* Query i stands at position i + seqlen_k - seqlen_q, key j at j; positions are cut into chunks of window_left (0 to
   * window_left - 1 and so on). A query sees the keys of its own chunk: with window_right 0 those up to its own
   * position, with -1 all. */
  FA3_MASK_CHUNK = 4
} fa3_mask;

#define FA3_MAX_RANK 5

/* A strided view of memory: element (i, j, ...) is data[i * stride[0] + j * stride[1] + ...]. dim[] and stride[] have
 * `rank` valid entries; dims are from 0 to INT32_MAX. Strides count elements and are literal: 0 repeats what lies there
 * along the dimension, as a broadcast does, and a tensor whose strides are all 0 is one element in memory.
 * fa3_tensor_pack fills them in for a tensor without gaps. The stride of a dimension of size 1 is never used, so any
 * value is accepted there. */
typedef struct fa3_tensor {
  void* data;
  int32_t dtype; /* fa3_dtype */
  int32_t rank;
  int64_t dim[FA3_MAX_RANK];
  int64_t stride[FA3_MAX_RANK];
} fa3_tensor;

/* Fills in the strides of a packed row-major tensor from its rank (1 to FA3_MAX_RANK) and dims: the last dimension
 * contiguous, each other dimension's stride the product of the later dims (of those that are not 0). Nothing else is
 * read or written. Refused if the product of all dims overflows int64_t. */
FA3_API fa3_status fa3_tensor_pack(fa3_tensor* tensor);

/* Same type as CUstream and cudaStream_t, so either can be passed without a cast. NULL is the legacy default stream. */
typedef struct CUstream_st* fa3_stream;

/* ---- forward ----------------------------------------------------------------------------------------------- */

/* What the forward pass computes. Zero-initialise, set struct_size (FA3_FORWARD_PARAMS_INIT does both), fill in.
 *
 * | tensor | dims                                  | dtype        | strides                                         |
 * |--------|---------------------------------------|--------------|-------------------------------------------------|
 * | q      | batch, seqlen_q, heads,    head_dim   | bf16 or fp16 | last 1; others multiples of 8 (16 bytes), >= 0  |
 * | k      | batch, seqlen_k, heads_kv, head_dim   | as q or e4m3 | as q; e4m3: see below                           |
 * | v      | batch, seqlen_k, heads_kv, head_dim_v | as k or e4m3 | as k; e4m3: see below                           |
 * | o      | batch, seqlen_q, heads,    head_dim_v | as q or fp32 | as q (fp32: multiples of 4), > 0, nested (below)|
 * | lse    | batch, heads, seqlen_q                | fp32         | > 0 and nested                                  |
 *
 * - data of q, k, v and o is aligned to 16 bytes; of lse to 4 bytes. For fa3_forward they are device pointers of the
 *   current context's device, for fa3_reference_forward host pointers. A tensor without elements may have data NULL.
 * - (batch, heads, seqlen, head_dim) storage, padded rows, slices of a packed QKV, broadcasts over batch, rows or
 *   heads: all are just strides. Only head_dim must be contiguous, as TMA loads whole rows. So a broadcast over it
 *   is refused by fa3_forward (not by fa3_reference_forward).
 * - o of fp32 is what else would be rounded to q's dtype: for partial results that fa3_combine merges. Such a call is
 *   served as those below, by kernels whose names begin with fa3_fwdservedfp32, which do not share the reads of K and V
 *   among the heads of few queries; so decoding with grouped heads is slower.
 * - head_dim, of q and k, and head_dim_v, of v and o, are multiples of 8 from 8 to 256. They may differ. With more, up
 *   to 576 and 512, see "Latent attention" below.
 * - heads is a multiple of heads_kv. Query head h reads K/V head h / (heads / heads_kv): MQA has heads_kv = 1.
 * - seqlen_q and seqlen_k may differ. Each is at most INT32_MAX - 1024, and tiles (batch * heads * seqlen_q / block_q,
 *   the quotient rounded up; see fa3_kernel_info) are at most INT32_MAX - 65536; more is FA3_ERROR_UNSUPPORTED. Each
 *   dim times its stride stays below 2^40 bytes; the element count may exceed 2^31.
 * - The strides of o and lse nest: in order of size, each is larger than the span of the smaller ones, which is the sum
 *   of their (dim - 1) * stride. Every slice, transposition and padding of a packed tensor does. Other strides are
 *   refused, even where no two elements happen to share an address.
 * - o, lse and the workspace must not overlap each other or anything that the call reads. They are known to be apart if
 *   their ranges of addresses are, or if they interleave with a common stride, as slices of one buffer do. All else is
 *   refused.
 * - lse.data NULL (for example a zeroed lse) means: LSE is not wanted. Otherwise lse receives the natural logarithm of
 *   the row's sum of exponentials.
 * - A row that sees no key (seqlen_k = 0, or a causal mask with more queries than keys) has O = 0 and LSE = -inf.
 * - NaN in a row of q, or in a key that it sees, makes its O and LSE NaN. Elements of v that are not finite reach O of
 *   the rows that see their key; under a causal mask also (as NaN) up to block_q + block_kv rows before them, and with
 *   a bound on the left so many rows behind them, worked on with rows that see other keys of the same block. Nothing
 *   beyond the tensors' dims is ever used.
 * - Scores are float32 on the device: they are meant to stay below 1e30 in q k and below 2^26 in q k * softmax_scale,
 *   where a score's own rounding already exceeds 1.
 * - The same call gives the same bits, whatever runs beside it. But the same sequence may get other last bits in
 *   another batch or on another device: how work is split along the keys, and so the order of sums, depends on the
 *   shape of the whole call and on the device's multiprocessors and memory (FA3_FLAG_BATCH_INVARIANT is against that).
 * - batch, heads or seqlen_q of 0: nothing to compute, FA3_OK.
 * - kernel: NULL lets the library choose, among the kernels that hold the problem and that it chooses by itself
 *   (fa3_kernel_info.chosen), whichever it expects to be the fastest for this shape on this device (the one for
 *   large tiles, where causal tiles are many).
 *   Otherwise the name of the kernel to run, a zero-terminated text as in fa3_kernel_info.name; which kernels there
 *   are, fa3_kernel_info_at tells. Those that the library does not choose by itself are the paper's algorithms, for
 *   comparison. A name that this build does not have is FA3_ERROR_UNSUPPORTED. A kernel of another dtype than q's, of a
 *   smaller head_dim or head_dim_v, causal without a causal mask, or not causal with one, is
 *   FA3_ERROR_INVALID_ARGUMENT; larger head dimensions are fine. fa3_reference_forward does not look at this field. */
typedef struct fa3_forward_params {
  size_t struct_size;
  uint64_t flags; /* fa3_forward_flags */
  fa3_tensor q, k, v, o, lse;
  int32_t mask;        /* fa3_mask */
  float softmax_scale; /* > 0, at most 2.3e38; 0 means the default 1/sqrt(head_dim), with qv 1/sqrt(head_dim +
                        * head_dim_v) */
  const char* kernel;  /* name of the kernel to run (fa3_kernel_info.name); NULL: the library chooses */
  /* For e4m3, see below. A tensor of rank 0 (zeroed) is absent. */
  fa3_tensor q_scale, k_scale, v_scale, o_scale, v_mean, lse_offset;
  /* Packed lengths, pages, windows, sinks: see below. A tensor of rank 0 is absent. */
  int32_t window_left, window_right; /* of FA3_MASK_WINDOW and FA3_MASK_CHUNK, otherwise 0 */
  int32_t max_seqlen_q, max_seqlen_k;
  fa3_tensor sinks;
  fa3_tensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, page_table, cache_batch_idx;
  const void* schedule;  /* NULL, or what fa3_forward_schedule wrote */
  size_t schedule_bytes; /* of the memory that `schedule` points to */
  /* Scores that are changed before they are masked: see below. */
  float softcap;    /* 0: none */
  int32_t reserved; /* 0 */
  fa3_tensor alibi_slopes;
  fa3_tensor qv; /* a second query, for v: see "Latent attention" below */
} fa3_forward_params;

/* FP8 (the paper's section 3.3). q, k and v of FA3_DTYPE_E4M3 hold numbers that were divided by a scale; an element of
 * the problem is the element in memory times its scale. fa3_quantize makes all of this.
 *
 * | tensor     | dims                                                    | dtype              | strides             |
 * |------------|---------------------------------------------------------|--------------------|---------------------|
 * | q, k       | as above; head_dim and head_dim_v multiples of 16       | e4m3               | last 1; others      |
 * |            |                                                         |                    | multiples of 16     |
 * | v          | as above, or as tiles:                                  | e4m3               | as q                |
 * |            | batch, heads_kv, ceil(seqlen_k / 16), head_dim_v, 16    |                    | last two 16 and 1   |
 * | o          | as above                                                | bf16, fp16 or e4m3 | as above; for e4m3  |
 * |            |                                                         |                    | multiples of 16     |
 * | q_scale    | batch or 1, heads or 1,    ceil(seqlen_q / 64) or 1     | fp32               | any >= 0            |
 * | k_scale    | batch or 1, heads_kv or 1, ceil(seqlen_k / 64) or 1     | fp32               | any >= 0            |
 * | v_scale    | as k_scale                                              | fp32               | any >= 0            |
 * | o_scale    | 1                                                       | fp32               |                     |
 * | v_mean     | batch, heads_kv, head_dim_v                             | fp32               | last 1; others      |
 * |            |                                                         |                    | multiples of 4      |
 * | lse_offset | batch, heads, seqlen_q                                  | fp32               | any >= 0            |
 *
 * - Scales: one for the tensor (dims 1, 1, 1), for each head of each batch entry, or for each block of
 *   FA3_SCALE_ROWS = 64 rows of it, as the dims say. q_scale, k_scale and v_scale are required, o_scale if o is e4m3,
 *   and refused if it is not (o in memory = O / o_scale, rounded to nearest even; what exceeds 448 becomes 448). They
 *   lie on the device like the tensors, aligned to 4 bytes, v_mean to 16, and are read when the kernels run, so their
 *   values are not checked: they must be > 0 and finite. With a scale that is zero, negative, infinite or NaN, the
 *   elements of o and lse that depend on it mean nothing (they may be NaN); nothing else is touched. Scale blocks of K
 *   or V take other kernels, some percent slower; those of Q are free. Each tensor's strides stay below 2^31 elements.
 * - v as tiles is what the tensor cores read, so that the kernel need not transpose V. Tile (b, h, g) holds keys
 *   16 g .. 16 g + 15; its row 16 a + 8 c + r, of head_dim_v rows of 16 bytes, holds column 16 a + 2 r + c of V (r from
 *   0 to 7, c 0 or 1), and byte 4 q + 2 b + e of that row is key 16 g + 8 b + 2 q + e (q from 0 to 3, b and e 0 or 1).
 *   Bytes of keys beyond seqlen_k must be numbers, zeros for example.
 * - v_mean: added to every row of O that sees a key. Softmax rows sum to 1, so V may be stored with any vector
 *   subtracted; with V's own mean over the sequence, the FP8 tensor cores' sums, which keep 13 bits and are cut off,
 *   not rounded, stay exact to 1e-3. Otherwise O shrinks with the length where V has a mean: at 16k keys, measured,
 *   by up to 23% (the official kernels: 26%). FA3_FLAG_TWO_LEVEL is the cure for data that arrive that way.
 * - lse_offset: added to lse, for K that is stored with a vector subtracted, which changes all scores of a row by the
 *   same number: softmax_scale * q . vector. Not looked at without lse, unless there are sinks (see below).
 * - P, the softmax before its division by the row sum, is rounded to e4m3, too, times 32 relative to the row maximum.
 * - The tensors of this section must be absent if q is not e4m3, but for k_scale and v_scale of e4m3 k and v (below).
 *   (Where v alone is e4m3, v_scale is another one: see "A latent cache of e4m3".) fa3_reference_forward takes them as
 *   fa3_forward does, refuses scales that are not > 0 and finite, and rounds nothing but o.
 *
 * 16-bit q over e4m3 k and v, as caches of servers hold them: q and o are bf16 or fp16, both the same, k and v are e4m3
 * with k_scale and v_scale, each with one number for the tensor or for each head of each sequence; the other tensors of
 * this section must be absent. head_dim and head_dim_v are multiples of 16. Such a call is one of those below, whatever
 * else it has: all of that section goes with it but softcap and alibi_slopes.
 * - The kernels (fa3_fwdservedwidened...) make fp16 of K and V, which is exact, and round P to fp16: o is as exact as
 *   from fp16 k and v that hold the same numbers. In bf16, elements of q that are more than 2^31 times smaller than
 *   another one of 16 neighbouring rows of the same sequence are rounded.
 * - Those for a step of decoding (fa3_fwdservedwidenedfew...) take up to 16 rows of q for each head of k, above 128
 *   columns up to 8: queries times heads / heads_kv, rounded up to a power of two. Calls with FA3_FLAG_BATCH_INVARIANT
 *   never run on them.
 * - With many rows of q for each head of k, from some 1000 on (queries * heads / heads_kv), a pass makes copies of k
 *   and v in fp16 in the workspace first, without their scales, and other kernels (fa3_fwdservedcopied...) take these.
 *   That is faster, and as exact. It follows from shapes and maxima; it is never so with FA3_FLAG_BATCH_INVARIANT, nor
 *   where copies would take more than 1 GB, and more than q and o. `kernel` may name either. */

/* Rows of q, k or v that share a block scale. */
#define FA3_SCALE_ROWS 64
/* Columns of a row of v that share a scale, in a latent cache of e4m3. */
#define FA3_LATENT_SCALE_COLUMNS 128

/* Packed lengths, pages, windows, sinks, latent attention: what inference servers and packed training batches need.
 * Each sequence of the batch may have lengths of its own. They lie in device memory, like the tensors, and the host
 * never reads them.
 *
 * | tensor               | dims                                       | dtype | strides                             |
 * |----------------------|--------------------------------------------|-------|-------------------------------------|
 * | with cu_seqlens_q:   |                                            |       |                                     |
 * | q, o                 | total_q, heads, head_dim or head_dim_v     |       | as above                            |
 * | lse                  | heads, total_q                             |       | as above                            |
 * | with cu_seqlens_k:   |                                            |       |                                     |
 * | k, v                 | total_k, heads_kv, head_dim or head_dim_v  |       | as above                            |
 * | with page_table:     |                                            |       |                                     |
 * | k, v                 | pages, page_size, heads_kv, head_dim (_v)  |       | as above                            |
 * | with cache_batch_idx:|                                            |       |                                     |
 * | k, v                 | entries, seqlen_k, heads_kv, head_dim (_v) |       | as above                            |
 * | with e4m3 k and v:   |                                            |       |                                     |
 * | q_scale (e4m3 q)     | batch or 1, heads or 1,    1               |       | as above                            |
 * | k_scale, v_scale     | batch or 1, heads_kv or 1, 1               |       | as above                            |
 * | v_mean               | batch, heads_kv, head_dim_v                |       | as above                            |
 * | lse_offset           | as lse: with cu_seqlens_q heads, total_q   |       | as above                            |
 * | with e4m3 v alone:   |                                            |       |                                     |
 * | v_scale              | as v, the last one ceil(head_dim_v / 128)  | fp32  | last 1; others multiples of 4, >= 0 |
 * |----------------------|--------------------------------------------|-------|-------------------------------------|
 * | cu_seqlens_q, _k     | batch + 1                                  | int32 | 1                                   |
 * | seqused_q, _k        | batch                                      | int32 | 1                                   |
 * | leftpad_k            | batch                                      | int32 | 1                                   |
 * | cache_batch_idx      | batch                                      | int32 | 1                                   |
 * | page_table           | batch, pages of a sequence                 | int32 | last 1; first >= 0, below 2^31      |
 * | sinks                | heads                                      | fp32  | any >= 0                            |
 *
 * Where nothing is said of a tensor it is what it is above. All may be combined, but for what "Not together" names. A
 * call with any of this, or with a window, a chunk, o of fp32 or FA3_FLAG_BATCH_INVARIANT, is served by kernels of its
 * own, whose names begin with fa3_fwdserved: no other kernel can be named for it, nor one of these for another call.
 *
 * Lengths
 * - cu_seqlens_q, cu_seqlens_k: the sequences lie one behind the other, without padding. Sequence b has rows cu[b] to
 *   cu[b + 1] - 1 of the tensor. batch is cu_seqlens_q.dim[0] - 1; without cu_seqlens_q it is q.dim[0], and sequence b
 *   has q[b], k and v likewise.
 * - seqused_q, seqused_k: only so many rows of the sequence are in use, the first ones. A cache that has room for more
 *   keys than there are says so by seqused_k. It counts padding, too.
 * - leftpad_k: so many of the keys in use are padding, the first ones.
 * - cache_batch_idx: sequence b has the keys of entry cache_batch_idx[b] of k and v. Several may have the same one.
 * - A sequence's seqlen_q and seqlen_k are what is left. Positions and masks, of any kind, count from its first query
 *   and its first key in use: each sequence has its own diagonal.
 * - max_seqlen_q, max_seqlen_k: the most that a sequence has. Kernel, workspace and grid follow from them. Required,
 *   and at least 1, with cu_seqlens_q or cu_seqlens_k. Without cu_seqlens_q, max_seqlen_q is 0 or q.dim[1]. Without
 *   cu_seqlens_k, max_seqlen_k is up to what k has for a sequence (k.dim[1], with pages page_table.dim[1] * k.dim[1]);
 *   0 means all of it.
 * - Rows of o and lse that belong to no sequence, or are not in use, are left as they are.
 * - Whatever numbers lie in device memory, nothing outside of the tensors is read or written: of a sequence that is
 *   longer than its maximum the first rows are taken, of one that reaches out of its tensor the rows inside, a negative
 *   length is 0, and a page or cache entry that does not exist is not read. Results of a sequence with such numbers
 *   mean nothing; those of others are right, unless it claims their rows of o, or all together claim more rows than q
 *   has. (fa3_backward: unless it claims their rows of q or k.)
 * - total_q, total_k, max_seqlen_q and max_seqlen_k are at most 2^30 - 2048, and pieces (fa3_kernel_info), of as many
 *   multiprocessors as there may be, at most INT32_MAX - 65536; more is FA3_ERROR_UNSUPPORTED. With
 *   FA3_FLAG_BATCH_INVARIANT so are rows of partial results beyond INT32_MAX.
 *
 * Pages
 * - page_table: key j of sequence b is row j % page_size of page page_table[b][j / page_size] of k and v. Pages may be
 *   in any order and shared by sequences. Entries behind those that hold a sequence's keys may be anything, as they are
 *   not read. Nor are those of pages that end 128 keys or more before the first key that a query of the sequence sees.
 *
 * Windows
 * - window_left and window_right are those of FA3_MASK_WINDOW (each at least -1) or FA3_MASK_CHUNK (window_left at
 *   least 1, window_right 0 or -1). With another mask they are 0. A window of -1, -1 is FA3_MASK_NONE, and one of -1, 0
 *   FA3_MASK_CAUSAL_BOTTOM_RIGHT: the same call in all respects. Keys that no row of a block of queries sees cost
 *   nothing.
 *
 * Sinks
 * - sinks: each row of head h has exp(sinks[h]) as one more addend in its sum of exponentials, without a value: O is
 *   smaller, and LSE includes it. A row that sees no key has O = 0 and LSE = sinks[h]. A sink of -inf is none; those
 *   that are NaN or +inf make results of their head mean nothing.
 *
 * Score transforms
 * - softcap: a score, softmax_scale * q_i . k_j, becomes softcap * tanh(score / softcap) before it is masked. It is
 *   finite and > 0, or 0 for none.
 * - alibi_slopes (heads, or batch, heads; fp32; strides any >= 0): query i's score for key j of head h gets
 *   -slope * |i + seqlen_k - seqlen_q - j| added, whatever the mask is. Slopes are >= 0, at most 1e25 * softmax_scale;
 *   with others results of their head mean nothing.
 * - With both a score is capped first. A call with one of them is served, too: so it may have all of the above, and its
 *   kernels are those of fa3_fwdservedsoftcap..., fa3_fwdservedalibi... and fa3_fwdservedsoftcapalibi..., or those that
 *   "Latent attention" names.
 *
 * Latent attention
 * - Head dimensions above 256, up to 576 (head_dim) and 512 (head_dim_v), in bf16 and fp16. A call with one of them, or
 *   with qv, is served, so it may have all of the above but alibi_slopes. Its kernels are those of fa3_fwdservedmla...
 *   and fa3_fwdservedwide..., with softcap fa3_fwdservedmlasoftcap... and fa3_fwdservedwidesoftcap....
 * - qv (batch, seqlen_q, heads, head_dim_v, with cu_seqlens_q total_q, heads, head_dim_v; dtype as q; strides and
 *   alignment as q): scores are softmax_scale * (q_i . k_j + qv_i . v_j), so that V is loaded once for both products;
 *   softcap caps that sum. head_dim is at most 64 then. This is multi-head latent attention with absorbed projections:
 *   k is the part of the cache with positions, v the latent part, and heads_kv is 1.
 * - The same call with one cache: q and k of head_dim_v + 8 to head_dim_v + 64 columns (512 and 64, say), and v the
 *   first head_dim_v columns of k: v.data is k.data, and v's strides are k's. Above 256 such a call is the one with qv,
 *   and as fast. k and v are both read, and may share their memory in any other way, too.
 * - Other calls above 256 (v apart from k) take head_dim up to 512, and longer: K is loaded besides V, and smaller head
 *   dimensions take the time of 512.
 * - A question that does not look at data (fa3_forward_workspace_size, fa3_forward_schedule_size,
 *   fa3_forward_kernel_info) looks at whether v.data is k.data here, as it is if both are NULL. Calls that share a
 *   schedule are of one kind.
 * - fa3_backward has head dimensions up to 256 and no qv.
 *
 * A latent cache of e4m3
 * - With qv, v alone may be e4m3, beside q, qv and k of 16 bits (fa3_reference_forward: or of fp32). Then head_dim_v,
 *   and v's strides but for the last one, are multiples of 16; v_scale is required, k_scale and the other tensors of
 *   "FP8" above must be absent; and o is of q's dtype.
 * - v_scale has a number for each FA3_LATENT_SCALE_COLUMNS = 128 columns of each row of v (the last ones of a row may
 *   be fewer), and lies as v does: packed with cu_seqlens_k, in the same pages with page_table, in the same entries
 *   with cache_batch_idx. Its data is aligned to 16 bytes. An element of v, in both products, is the e4m3 number times
 *   its scale. The kernels round that to q's dtype, in which a product beyond fp16's range is infinite, but for those
 *   for up to 32 rows, which do not round it, and make fp16 of P times the scale. fa3_reference_forward rounds nothing
 *   but o. Scales are read when the kernels run, so their values are not checked: 0 and negative ones are numbers like
 *   others, and one that is not finite counts as if it were an element of v.
 * - k, v and v_scale may be parts of one buffer. Such are FlashMLA's tokens of 656 bytes, 512 of e4m3, 4 scales and 64
 *   columns of 16 bits: v.data is where the first token begins, v_scale.data 512 and k.data 528 bytes behind it, and
 *   rows are 656 elements of v, 164 of v_scale and 328 of k apart.
 * - All of this section goes with it but softcap and alibi_slopes. Its kernels are those of fa3_fwdservedmlae4m3few...
 *   and fa3_fwdservedmlae4m3half..., for up to 16 and 32 rows of q for each head of k (queries times heads / heads_kv,
 *   rounded up to a power of two), and fa3_fwdservedmlae4m3_..., for any number, which alone run with
 *   FA3_FLAG_BATCH_INVARIANT.
 * - fa3_quantize and fa3_append have no such scales.
 *
 * FP8
 * - The scales, and v_mean, of sequence b are those of batch entry b, wherever its queries and keys lie: also with
 *   packed rows, pages, and a cache_batch_idx. So batch counts sequences in their dims. (Not so of a latent cache's.)
 * - Beside a sink the keys' weights do not sum to 1, and v_mean has their sum for a factor, as if it were in V. What
 *   lse_offset adds to the scores of a row counts when they meet its sink, too, as if it were in K.
 *
 * NaN
 * - What lies beyond a sequence's keys in use, in its padding, in other sequences, in pages or rows of pages that it
 *   does not use, or in entries of the table behind its last one reaches none of its results, NaN and infinities
 *   included.
 *
 * Bits
 * - FA3_FLAG_BATCH_INVARIANT: a sequence's bits depend on its own queries, keys and mask and on the call's heads, head
 *   dimensions and dtype: not on the sequences beside it, nor on the maxima, nor on how many of its queries come in one
 *   call (with the keys up to the last of them). It takes other splits along the keys than are the fastest.
 *
 * Schedule
 * - Which multiprocessor does what follows from the lengths, so a pass on the device plans it before each call.
 *   fa3_forward_schedule does that once for several calls, those of all layers of a model.
 *
 * Graphs
 * - A captured call, and a captured fa3_forward_schedule, read lengths, page table and sinks when they run: a graph may
 *   be replayed with other numbers in the same memory, as long as the maxima hold. Sequences of 0 rows, at the end or
 *   between others, cost next to nothing, so the batch may be captured at its largest.
 *
 * Not together (FA3_ERROR_UNSUPPORTED): page_table with cu_seqlens_k, leftpad_k or cache_batch_idx; cache_batch_idx
 * with cu_seqlens_k; anything of this section with scales of blocks, with v as tiles or with FA3_FLAG_TWO_LEVEL;
 * softcap or alibi_slopes with 16-bit q over e4m3; alibi_slopes with e4m3, FA3_MASK_CHUNK or FA3_FLAG_BATCH_INVARIANT;
 * softcap with lse_offset; qv or head dimensions above 256 with alibi_slopes, or with e4m3, but for a latent cache of
 * e4m3, which goes without softcap; head_dim above 64 with qv. Two more that only fa3_reference_forward takes: o of
 * fp32 with e4m3, softcap, alibi_slopes, qv or head dimensions above 256; head_dim above 512 where v is not part of k
 * as "Latent attention" says.
 * fa3_backward has lengths, windows, chunks, sinks, softcap and alibi_slopes.
 *
 * fa3_reference_forward takes all of it, its lengths on the host; it does not look at `schedule`. */

/* An absent tensor, and below parameters with nothing but struct_size. Spelled out in full, so that they compile
 * without warnings in both languages. */
#define FA3_TENSOR_INIT {NULL, 0, 0, {0}, {0}}
#define FA3_FORWARD_PARAMS_INIT                                                                      \
  {sizeof(fa3_forward_params), 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, \
   FA3_TENSOR_INIT, 0, 0, NULL, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,     \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, 0, 0, 0, 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,     \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, NULL, 0, 0, 0,  \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT}

enum fa3_forward_flags {
  /* Same call (input, shapes, kernel), same output bits, on the same device model and library version. An error where a
   * kernel cannot promise it. Every forward kernel of this version can. */
  FA3_FLAG_DETERMINISTIC = 1,
  /* e4m3 only: sums of P V leave the tensor cores' accumulators for float32 ones every few blocks of keys, so that they
   * do not shrink where V has a mean (see v_mean). Slower. */
  FA3_FLAG_TWO_LEVEL = 2,
  /* A sequence has the same bits alone and in any batch. See "Bits" above. */
  FA3_FLAG_BATCH_INVARIANT = 4,
  /* fa3_backward only: a more exact dq where keys have a mean. See "Centered keys" there. */
  FA3_FLAG_CENTERED_K = 8,
  /* fa3_backward only: dq, dk and dv, all fp32, are added to what is there. */
  FA3_FLAG_ACCUMULATE = 16
};

/* Would fa3_forward accept these parameters, and if not, why? Host only: no GPU, driver or context is needed.
 * Data pointers are checked for alignment, NULL and overlaps, never followed (but kernel's name is read). */
FA3_API fa3_status fa3_forward_check(const fa3_forward_params* params);

/* Bytes of workspace that fa3_forward needs for these parameters on a device of so many multiprocessors, from 1 to 1024
 * (H100 SXM and H200 have 132). 0 means the current context's device, and then the status is fa3_forward's if there is
 * none or it is of the wrong kind. A function of the parameters and the number of multiprocessors only. Data pointers
 * are not looked at (but lse is checked only if its data is not NULL).
 *
 * It is FA3_FORWARD_WORKSPACE_BYTES, never less, unless work is split along the keys: where blocks of queries (at all,
 * or those left when all multiprocessors have had as many as the others) are too few to occupy every multiprocessor, or
 * differ so much under a causal mask that some would keep theirs long after the rest, and keys are many, several
 * multiprocessors share one, and their partial results in float32 meet in the workspace.
 * That takes at most 3 * multiprocessors * block_q rows of 4 * (head_dim_v + 8) bytes (fa3_kernel_info), 54 MB on 132
 * multiprocessors, and a few KB. With up to 64 queries in 16 bits it is what may be needed on any device, whatever its
 * memory, by any kernel that holds the problem. Where e4m3 v does not come as tiles, head_dim or head_dim_v is above
 * 128, and work is enough (from some 2048 keys on, without a mask), v is made into tiles there first: as many bytes
 * again as v has.
 *
 * A call with lengths, pages, windows or sinks plans in its workspace; one with a schedule needs no more, but may need
 * less. The size follows from shapes and maxima, not from lengths: partial results as above, 64 bytes for each of the
 * blocks of queries of one head that all sequences together may have, and 40 for each sequence (with FA3_MASK_CHUNK for
 * each chunk of one). With FA3_FLAG_BATCH_INVARIANT every block of queries of a head has partial results for each 2048
 * keys that it may see: few for decoding, but many GB for long prompts. Copies of e4m3 k and v in fp16 (above) take
 * 2 * heads_kv * (head_dim + head_dim_v) bytes for each row of packed k, else for each of max_seqlen_k keys of each
 * sequence, pages or not. */
FA3_API fa3_status fa3_forward_workspace_size(const fa3_forward_params* params, int32_t multiprocessors, size_t* bytes);
#define FA3_FORWARD_WORKSPACE_BYTES 64

/* Enqueues the forward pass on `stream` and returns.
 *
 * Context: the calling thread's current context is used; its device must be of compute capability 9.0 and `stream`
 * must belong to it. Kernels are loaded into a context on first use (or by fa3_preload).
 * workspace: device memory of at least the size above, for this device's multiprocessors, aligned to 16 bytes. Its
 *   contents need no initialisation and mean nothing between calls: calls of different parameters may use the same one,
 *   as large as the largest needs. Calls that may run at the same time (two streams) need a workspace each.
 * Lifetimes: params may go when the call returns. The memory of tensors, schedule and workspace must stay, and what is
 *   read of it (all but o, lse and workspace) unchanged, until what was enqueued has run; the memory of a captured call
 *   must stay until the graph has run for the last time.
 * Capture: allowed after fa3_preload in this context. The graph may be replayed any number of times, but as it holds
 *   the captured workspace, not twice at the same time. A kernel that the library does not choose by itself must have
 *   run in this context before (see fa3_preload). */
FA3_API fa3_status fa3_forward(const fa3_forward_params* params, void* workspace, size_t workspace_bytes,
                               fa3_stream stream);

/* Bytes of a schedule for these parameters; multiprocessors and data pointers: as for fa3_forward_workspace_size. 0 if
 * the call needs no plan, as it is not served. */
FA3_API fa3_status fa3_forward_schedule_size(const fa3_forward_params* params, int32_t multiprocessors, size_t* bytes);
/* Enqueues on `stream` the pass that plans these parameters' lengths, and returns. `schedule` is device memory of at
 * least the size above, aligned to 16 bytes; its contents need no initialisation. Of the tensors only the lengths and
 * cache_batch_idx are read. params->schedule need not be set yet. If it is, it is checked as for fa3_forward, but for
 * its size, and not used: it may be this one. Context, lifetimes and capture: as for fa3_forward. Where the size is 0
 * nothing is enqueued, and `schedule` may be NULL.
 *
 * Then fa3_forward may be called with params->schedule and params->schedule_bytes, behind it in the order of streams,
 * any number of times, also at the same time: with the same parameters but for the tensors' data, on a device of as
 * many multiprocessors, and with the same numbers in all lengths and in cache_batch_idx. That a schedule is for other
 * parameters or lengths cannot be seen: then results mean nothing, and memory outside of the tensors may be touched. A
 * call that needs no plan does not look at its schedule. */
FA3_API fa3_status fa3_forward_schedule(const fa3_forward_params* params, void* schedule, size_t schedule_bytes,
                                        fa3_stream stream);

/* The same computation on the CPU: float64 arithmetic on the given inputs, rounded once to o's dtype (and lse's).
 * All pointers are host pointers. The oracle of the library's tests, and a way to try the API without a GPU.
 * threads: how many host threads, the calling one among them (at most 256 are used); 0 for one per core that this
 * process may use (affinity mask and CPU quotas). Each needs 1.8 MB of memory during the call, whatever the lengths,
 * and a call with lengths, pages, windows or sinks 8 bytes for each sequence besides; FA3_ERROR_OUT_OF_MEMORY if it
 * cannot be had, and then nothing is written. O has the same bits whatever the number of threads and the machine. Two
 * cores take about 60 ms for 1024 tokens with 8 heads of 128.
 * More is allowed here than on the device: q, k and v of FA3_DTYPE_FP32 (with any head dimensions, from 1 on), o of
 * another dtype than q, any stride of head_dim, negative strides, any alignment of the elements' size. lse is
 * FA3_DTYPE_FP32. */
FA3_API fa3_status fa3_reference_forward(const fa3_forward_params* params, int threads);

/* ---- backward ---------------------------------------------------------------------------------------------- */

/* Gradients of the forward pass: of a number that depends on O, and maybe on LSE, whose gradients are dout and dlse.
 * (The paper's appendix B.1, Algorithm 3; "dO" is dout here, as `do` is a word of C.) With i for queries, j for keys:
 *
 *   P_ij = exp(softmax_scale * q_i . k_j - LSE_i) for the keys that query i sees, otherwise 0
 *   D_i  = dout_i . o_i - dlse_i
 *   dv_j = sum_i P_ij dout_i
 *   dS_ij = P_ij * (dout_i . v_j - D_i)
 *   dq_i = softmax_scale * sum_j dS_ij k_j,    dk_j = softmax_scale * sum_i dS_ij q_i
 *
 * | tensor     | dims                                  | dtype        | strides                                       |
 * |------------|---------------------------------------|--------------|-----------------------------------------------|
 * | q          | batch, seqlen_q, heads,    head_dim   | bf16 or fp16 | as in fa3_forward_params, as of k and v       |
 * | k          | batch, seqlen_k, heads_kv, head_dim   | as q         |                                               |
 * | v          | batch, seqlen_k, heads_kv, head_dim_v | as q         |                                               |
 * | o, dout    | batch, seqlen_q, heads,    head_dim_v | as q         | as q                                          |
 * | lse        | batch, heads, seqlen_q                | fp32         | >= 0                                          |
 * | dq         | as q                                  | as q         | as o in fa3_forward_params: > 0 and nested    |
 * | dk, dv     | as k and v                            | as q         | as dq                                         |
 * | dlse       | as lse                                | fp32         | >= 0                                          |
 *
 * (With q, k and v of e4m3, see "FP8" below; dq, dk and dv may also be all fp32, see "Float32".)
 *
 * - q, k, v, mask and softmax_scale are those of the forward call, and o and lse what it wrote: gradients mean nothing
 *   for others. dlse is optional: of rank 0 (zeroed) it is absent, and 0.
 * - dk and dv are sums over the query heads that read the head of K and V.
 * - A row that sees no key has dq = 0, and nothing else of it matters: its q, dout, o, lse and dlse are not read, and
 *   may hold anything, NaN too (but dlse counts for dsinks, see below). A key that no query sees has dk = dv = 0.
 * - NaN and infinities: a query's (in q, o, dout, lse or dlse) reach its dq, and dk and dv of the keys that it sees; a
 *   key's reach its dk and dv, and all of the queries that see it. Under a mask also (as NaN) those up to
 *   block_q + block_kv beyond, worked on together with some that do, but for rows that see no key, for other sequences,
 *   and for fa3_reference_backward.
 * - dk and dv, and where head_dim or head_dim_v is above 128 dq, have the same bits whenever the call is repeated on
 *   the same kind of device. Elsewhere dq is a sum in no fixed order, and its last bits may differ; with
 *   FA3_FLAG_DETERMINISTIC it is summed up in a fixed one, which takes up to 10% longer, with few heads up to 30%.
 *   (fa3_reference_backward: always the same bits.)
 * - Centered keys: FA3_FLAG_CENTERED_K makes dq more exact where channels of k have means, as those of trained models
 *   do. A row of dS sums up to 0, but not when it is rounded to 16 bits, and what is left is in dq times the keys'
 *   mean. With the flag it is taken off, for a mean of up to 64 of the keys that rows of the sequence see. Relative
 *   errors of dq in bf16 for means of 0, 1, 2 and 4 standard deviations: 3.0, 3.0, 3.0 and 3.0e-3 with it, 3.0, 4.3,
 *   6.8 and 12e-3 without. It takes up to 15% longer. lse must be of exactly the call's keys: where keys are split
 *   between calls (context parallelism) dq means nothing. For rows of dS with other sums than 0 it is not:
 *   FA3_ERROR_UNSUPPORTED with sinks or dlse, and also with softcap or alibi_slopes. Calls with it, batched ones too,
 *   are served (see "Packed lengths, windows, chunks, sinks" below), by kernels of fa3_bwdservedcentered...; above 128
 *   columns dk and dv are from those without the flag. fa3_reference_backward takes it, and nothing is other there.
 * - Float32: dq, dk and dv may all be fp32, with strides that are multiples of 4. They are the sums that else would be
 *   rounded to q's dtype. With FA3_FLAG_ACCUMULATE they are added to what is there, each sum rounded once: for keys (or
 *   queries) that are worked on part by part, as in context parallelism, where o and lse are those over all keys.
 *   Where a gradient would be 0 as a row or key sees nothing, what is there stays. dsinks is never added.
 * - Outputs must not overlap each other or any input. Head dimensions, lengths, alignment, empty tensors: as for
 *   fa3_forward. Beyond batch * heads * seqlen_q = INT32_MAX, seqlen_q rounded up to block_q (see fa3_kernel_info), or
 *   batch * heads_kv * ceil(seqlen_k / block_kv) = INT32_MAX / 2 (of fp32 gradients / 8), FA3_ERROR_UNSUPPORTED (not of
 *   fa3_reference_backward). With lengths, windows or sinks also where rows of all sequences and heads, each sequence's
 *   rounded up, are beyond INT32_MAX, or those of one head of all sequences beyond 2^30 - 2048. */
typedef struct fa3_backward_params {
  size_t struct_size;
  uint64_t flags; /* FA3_FLAG_DETERMINISTIC, FA3_FLAG_CENTERED_K, FA3_FLAG_ACCUMULATE */
  fa3_tensor q, k, v, o, lse, dout;
  fa3_tensor dq, dk, dv;
  int32_t mask;        /* fa3_mask */
  float softmax_scale; /* > 0, at most 2.3e38; 0 means the default 1/sqrt(head_dim) */
  const char* kernel;  /* as in fa3_forward_params: NULL, or the name of the backward kernel to run; where
                        * one computes dk and dv and another dq, that of the first. Those of fa3_bwdshort... and
                        * fa3_bwdservedshort... take sequences, or chunks, of at most block_kv keys */
  fa3_tensor dlse;
  /* Packed lengths, windows, sinks: see below. A tensor of rank 0 is absent. */
  int32_t window_left, window_right; /* of FA3_MASK_WINDOW and FA3_MASK_CHUNK, otherwise 0 */
  fa3_tensor sinks, dsinks;
  fa3_tensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  int32_t max_seqlen_q, max_seqlen_k;
  float softcap;    /* 0: none */
  int32_t reserved; /* 0 */
  fa3_tensor alibi_slopes;
  /* Of e4m3: see below. A tensor of rank 0 is absent. */
  fa3_tensor q_scale, k_scale, v_scale, v_mean, lse_offset;
} fa3_backward_params;

#define FA3_BACKWARD_PARAMS_INIT                                                                         \
  {sizeof(fa3_backward_params), 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,   \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, 0, 0, NULL,      \
   FA3_TENSOR_INIT, 0, 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,            \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, 0, 0, 0, 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,      \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT}

/* Packed lengths, windows, chunks, sinks: as in "Packed lengths, pages, windows, sinks" above, of which the backward
 * pass has all but pages, left padding, cache entries, schedules and FA3_FLAG_BATCH_INVARIANT. The fields have the
 * forward call's names, rules and values. A call with any of it, or with FA3_FLAG_CENTERED_K, is served by kernels of
 * its own, whose names begin with fa3_bwdserved: no other kernel can be named for it, nor one of these for another
 * call. A batched tensor spans fewer than 2^31 - 1 steps from its first row to the end of its last one, a step being
 * the greatest common divisor of the distances of its rows and of its batch entries. So whatever the strides are it may
 * span 32 GB; more is FA3_ERROR_UNSUPPORTED (not of fa3_reference_backward).
 *
 * | tensor             | dims                                      | dtype    | strides    |
 * |--------------------|-------------------------------------------|----------|------------|
 * | with cu_seqlens_q: |                                           |          |            |
 * | q, dq              | total_q, heads,    head_dim               | as above | as above   |
 * | o, dout            | total_q, heads,    head_dim_v             | as above | as above   |
 * | lse, dlse          | heads, total_q                            | fp32     | as above   |
 * | with cu_seqlens_k: |                                           |          |            |
 * | k, dk              | total_k, heads_kv, head_dim               | as above | as above   |
 * | v, dv              | total_k, heads_kv, head_dim_v             | as above | as above   |
 * |--------------------|-------------------------------------------|----------|------------|
 * | sinks              | heads                                     | fp32     | >= 0       |
 * | dsinks             | heads                                     | fp32     | > 0        |
 *
 * - dsinks (optional, only with sinks) receives the gradient of sinks, a sum over the rows of all sequences:
 *
 *     dsinks_h = -sum_i exp(sinks_h - LSE_i) * D_i
 *
 *   A row that sees no key has LSE_i = sinks_h and D_i = -dlse_i: of it dlse is read, and nothing else. A sink of -inf
 *   has dsinks = 0, and so have all where there are no rows. dsinks has the same bits whenever the call is repeated on
 *   the same kind of device. NaN and infinities in o, dout, lse or dlse of a row that counts reach dsinks of its head.
 *   Without dsinks nothing of sinks is read, as lse includes them.
 * - softcap, alibi_slopes: those of the forward call, whose lse is given. With softcap dS has the factor
 *   1 - (capped score / softcap)^2 besides, which kernels may round to fp16 as they round P and dS. Slopes have no
 *   gradient. The kernels are those of fa3_bwdservedsoftcap..., fa3_bwdservedalibi... and, with both,
 *   fa3_bwdservedsoftcapalibi....
 * - Zeros: a sequence's rows that are not in use have dq = 0, or dk = dv = 0: those behind seqused_q or seqused_k, and
 *   where k is not packed also those behind max_seqlen_k. Nothing of them is read. With cu_seqlens_q or cu_seqlens_k
 *   rows of no sequence, before cu[0] and from cu[batch] on, are left as they are, and so are those of a sequence that
 *   is longer than its maximum, behind that. */

/* FP8: q, k and v of e4m3, as the forward call had them, with its q_scale, k_scale, v_scale, v_mean and lse_offset:
 * dims and strides as there, required and refused as there. v may be tiles. o, dout, dq, dk and dv are all bf16, or all
 * fp16, with the strides that they have with 16 bits; or dq, dk and dv are fp32. head_dim and head_dim_v are multiples
 * of 16.
 *
 * - Gradients are those of the numbers that the forward pass computed with: an element of q, k and v is the element in
 *   memory times its scale, one of v plus v_mean, and
 *
 *     P_ij = exp(softmax_scale * q_i . k_j - (LSE_i - lse_offset_i))
 *
 *   with D, dv, dS, dq and dk as above. So they may be taken for gradients of what fa3_quantize made e4m3 of
 *   ("straight through": rounding counts as the identity).
 * - v_mean and lse_offset are constants to them. If V was stored without its mean, dv is the gradient of V all the
 *   same. If K was stored without a vector, dk is the gradient of K, and dq lacks what LSE has of that vector:
 *   softmax_scale * dlse_i * vector, nothing without dlse.
 * - dq and dk of q and k with FA3_QUANTIZE_INCOHERENT are those of the transformed rows. The transform is orthogonal,
 *   so its transpose makes those of the rows of them: the same Hadamard matrix first, then the signs.
 * - dv has the rows of k, also where v comes as tiles.
 * - A pass makes copies of 16 bits of q, k and v, and the rest is done as with 16 bits. An element times its scale is
 *   rounded to dout's dtype, which costs as much as all else that is rounded: relative errors of dq, dk and dv in bf16
 *   (N(0,1), d 128) are 4.8e-3, 4.5e-3 and 3.5e-3 instead of 2.4e-3, 2.3e-3 and 2.3e-3. A scale of up to 4 significant
 *   bits, a power of two for example, costs nothing, as products are exact then. Products beyond 65504 do not fit fp16.
 * - Not together (FA3_ERROR_UNSUPPORTED): e4m3 with alibi_slopes; softcap with lse_offset; scales of blocks, or v as
 *   tiles, with what makes a call served (FA3_FLAG_CENTERED_K, too); dsinks with v_mean or lse_offset (but
 *   fa3_reference_backward has that). Where scales of sequences, or v_mean, come with packed rows, and prefix sums
 *   decrease, no result means anything.
 * - Rows of all heads of q, and of k, are at most INT32_MAX - 65536; more is FA3_ERROR_UNSUPPORTED (not of
 *   fa3_reference_backward). */

/* Would fa3_backward accept these parameters, and if not, why? As fa3_forward_check. */
FA3_API fa3_status fa3_backward_check(const fa3_backward_params* params);

/* Bytes of workspace that fa3_backward needs: 8 for each query of each head, seqlen_q rounded up to 128; with kernels
 * of head_dim up to 128, and more than 128 keys, for each also 4 * head_dim (the kernel's) for sums of dq, and a few
 * for each head of k and for each 64 queries. Where that would be more than 1 GiB (2^30), the batch is worked on in
 * several runs, one after the other in the same workspace, so that it is not, or is what one batch entry needs. Beside
 * it, where heads of k and v are few, up to 277 MB for sums of dk and dv, and with FA3_FLAG_DETERMINISTIC up to 35 MB
 * for second sums of dq. With gradients of fp32 there are sums of dk and dv of each key of each head of k, 8 * head_dim
 * bytes (the kernel's), seqlen_k rounded up to 128; they count for the 1 GiB, too. (Not so of a call with lengths and
 * the like.) A function of the parameters only;
 * data pointers are not looked at.
 *
 * Of a call with lengths, windows, chunks or sinks it follows from shapes and maxima, as the lengths are never read: as
 * much as above for all rows of q together and up to 128 more for each sequence, in one run; besides 64 bytes for
 * each block of keys that all sequences together may have, some 100 for each sequence (with FA3_MASK_CHUNK for each
 * chunk of one), where dsinks is wanted 4 for each 64 queries of each head, and with FA3_FLAG_CENTERED_K 4 * head_dim
 * (the kernel's) for each head of k of each sequence.
 *
 * Of e4m3 it is as much as with 16 bits, and beside it 2 bytes for each element of q, k and v, all batch entries
 * together, and with v_mean, and with lse_offset, 4 for each query of each head; each of these rounded up to 256. */
FA3_API fa3_status fa3_backward_workspace_size(const fa3_backward_params* params, size_t* bytes);

/* Enqueues the backward pass on `stream` and returns. Context, workspace, lifetimes and capture: as for fa3_forward. */
FA3_API fa3_status fa3_backward(const fa3_backward_params* params, void* workspace, size_t workspace_bytes,
                                fa3_stream stream);

/* The gradients on the CPU: float64 arithmetic on the given inputs, each gradient rounded once. All pointers are host
 * pointers. threads: as for fa3_reference_forward; each needs 1.3 MB of memory during the call, and a call with
 * lengths, windows, chunks or sinks 16 bytes for each sequence besides. Gradients have the same bits whatever the
 * number of threads and the machine. Two cores take about half a second for 1024 tokens with 8 heads of 128.
 * More is allowed here than above: q, k and v of FA3_DTYPE_FP32 (with any head dimensions from 1 to 256), o, dout, dq,
 * dk and dv each of any of the three dtypes (beside e4m3, too), any stride of head_dim, negative strides, any alignment
 * of the elements' size. */
FA3_API fa3_status fa3_reference_backward(const fa3_backward_params* params, int threads);

/* ---- quantization ------------------------------------------------------------------------------------------ */

/* Makes e4m3 tensors with their scales for the forward pass, from bf16 or fp16. x is read once, or twice for a mean or
 * for scales of more than 64 rows:
 *
 *   y = round((transform(rotary(x)) - mean) / scale),   scale = amax / 448
 *
 * | tensor                 | dims                                        | dtype        | strides                    |
 * |------------------------|---------------------------------------------|--------------|----------------------------|
 * | x                      | batch, seqlen, heads, head_dim              | bf16 or fp16 | last 1; others mult. of 8  |
 * | y                      | as x, or the tiles of V (see above):        | e4m3         | last 1; others mult. of 16;|
 * |                        | batch, heads, ceil(seqlen/16), head_dim, 16 |              | > 0 and nested             |
 * | scale                  | batch or 1, heads or 1, ceil(seqlen/64) or 1| fp32         | > 0 and nested             |
 * | mean                   | batch, heads, head_dim                      | fp32         | last 1; > 0 and nested     |
 * | rotary_cos, rotary_sin | seqlen, rotary_dim / 2                      | fp32         | last 1; first >= 0, mult. 4|
 * | k_mean                 | batch, heads_kv, head_dim                   | fp32         | last 1; others >= 0        |
 * | lse_offset             | batch, heads, seqlen                        | fp32         | > 0 and nested             |
 *
 * - head_dim is a multiple of 16 from 16 to 256; x, y, rotary_cos and rotary_sin are aligned to 16 bytes.
 * - scale's dims say how many there are: one (1, 1, 1), one for each head of each batch entry (batch, heads, 1), or one
 *   for each block of FA3_SCALE_ROWS rows (batch, heads, blocks). Where amax is 0 the scale is 1; otherwise it is at
 *   least 2^-126. Where a NaN or an infinity is to be rounded, the scale is computed from the other elements; NaN stays
 *   NaN, infinities become +-448. Sums over a row or the sequence are meant to stay below 2^127.
 * - mean (optional): receives the mean over the sequence of what y would hold, and y holds the difference. For V it is
 *   fa3_forward_params.v_mean; for K it is `k_mean` below.
 * - rotary_cos, rotary_sin (optional, both): rotary embedding of the first rotary_dim columns, a multiple of 16, before
 *   anything else. Column i is paired with i + rotary_dim / 2, or, with FA3_QUANTIZE_ROTARY_INTERLEAVED, 2 i with
 *   2 i + 1: (a, b) becomes (a cos - b sin, a sin + b cos).
 * - FA3_QUANTIZE_INCOHERENT: the paper's incoherent processing, for Q and K with the same seed: columns get random
 *   signs and are multiplied by an orthogonal Hadamard matrix (H / sqrt(n)); n is the largest power of two that divides
 *   head_dim, and head_dim / n blocks are transformed each for itself. Q K^T stays what it was, and so do O and LSE.
 *   Column i's sign is that of bit 63 of splitmix64 of seed + i (the generator's output for the state seed + i:
 *   z = seed + i + 0x9e3779b97f4a7c15, z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9, z = (z ^ z >> 27) * 0x94d049bb133111eb,
 *   z ^ z >> 31); 1 is negative.
 * - k_mean and lse_offset (optional, both; for Q): lse_offset = softmax_scale * x' . k_mean, with x' the transformed
 *   row of Q before rounding, and k_mean the `mean` of K's quantization: what the forward pass adds to its LSE. heads
 *   is a multiple of heads_kv. softmax_scale as in fa3_forward_params.
 * - Outputs and workspace must not overlap each other or any input. Empty tensors: nothing to compute, FA3_OK; of
 *   their strides not all are looked at.
 * - seqlen is at most INT32_MAX - 1024, blocks of 64 rows (batch * heads * ceil(seqlen/64)) at most INT32_MAX - 65536;
 *   more is FA3_ERROR_UNSUPPORTED. */
typedef struct fa3_quantize_params {
  size_t struct_size;
  uint64_t flags; /* fa3_quantize_flags */
  uint64_t seed;  /* of FA3_QUANTIZE_INCOHERENT */
  fa3_tensor x, y, scale, mean, rotary_cos, rotary_sin, k_mean, lse_offset;
  float softmax_scale; /* for lse_offset */
  int32_t reserved;    /* 0 */
} fa3_quantize_params;

#define FA3_QUANTIZE_PARAMS_INIT                                                                                   \
  {sizeof(fa3_quantize_params), 0, 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,          \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, 0, 0}

enum fa3_quantize_flags {
  FA3_QUANTIZE_INCOHERENT = 1,
  FA3_QUANTIZE_ROTARY_INTERLEAVED = 2
};

/* Would fa3_quantize accept these parameters, and if not, why? As fa3_forward_check. */
FA3_API fa3_status fa3_quantize_check(const fa3_quantize_params* params);

/* Bytes of workspace that fa3_quantize needs. A function of the parameters only; data pointers are not looked at. */
FA3_API fa3_status fa3_quantize_workspace_size(const fa3_quantize_params* params, size_t* bytes);

/* Enqueues the quantization on `stream` and returns. Context, workspace, lifetimes and capture: as for fa3_forward. The
 * same call gives the same bits. */
FA3_API fa3_status fa3_quantize(const fa3_quantize_params* params, void* workspace, size_t workspace_bytes,
                                fa3_stream stream);

/* The same on the CPU, in float64 up to the one rounding of each output. All pointers are host pointers. */
FA3_API fa3_status fa3_reference_quantize(const fa3_quantize_params* params);

/* ---- append ------------------------------------------------------------------------------------------------ */

/* Writes new rows of K and V into a cache, with rotary embedding of K and Q and rounding to e4m3 where these are
 * wanted, in one launch that reads and writes each element once: what servers do before attention over a cache.
 *
 *   k_cache = round(rotary(k) / k_scale),   v_cache = round(v / v_scale),   q_out = round(rotary(q) / q_scale)
 *
 * | tensor                 | dims                                        | dtype          | strides                  |
 * |------------------------|---------------------------------------------|----------------|--------------------------|
 * | k                      | batch, rows, heads_kv, head_dim             | bf16 or fp16   | last 1; others mult. of 8|
 * | v                      | batch, rows, heads_kv, head_dim_v           | as k           | as k                     |
 * | k_cache                | caches, cache_rows, heads_kv, head_dim      | as k, or e4m3  | last 1; others mult. of  |
 * |                        |                                             |                | 16 bytes; > 0 and nested |
 * | v_cache                | caches, cache_rows, heads_kv, head_dim_v    | as k, or e4m3  | as k_cache               |
 * | cache_seqlens          | batch                                       | int32          | 1                        |
 * | cu_seqlens_new         | batch + 1                                   | int32          | 1                        |
 * | seqused_new            | batch                                       | int32          | 1                        |
 * | page_table             | batch, pages of a sequence                  | int32          | last 1; first >= 0       |
 * | cache_batch_idx        | batch                                       | int32          | 1                        |
 * | slot_mapping           | rows                                        | int32 or int64 | 1                        |
 * | q                      | batch, rows, heads, head_dim                | as k           | as k                     |
 * | q_out                  | as q                                        | as k, or e4m3  | as k_cache               |
 * | rotary_cos, rotary_sin | positions, rotary_dim / 2                   | fp32           | last 1; first >= 0,      |
 * |                        |                                             |                | mult. of 4               |
 * | rotary_positions       | batch, or rows                              | int32 or int64 | 1                        |
 * | k_scale, v_scale       | batch or 1, heads_kv or 1, 1                | fp32           | any >= 0                 |
 * | q_scale                | batch or 1, heads or 1, 1                   | fp32           | any >= 0                 |
 *
 * - What is given: k with k_cache, and beside it v with v_cache; or q with q_out; or all of these. k may come without
 *   v, where V is a part of K's rows; v does not come without k. Of an absent tensor the rank is 0.
 * - head_dim and head_dim_v are multiples of 8 up to 1024, of 16 where the output is e4m3. q, q_out, k, v, k_cache,
 *   v_cache, rotary_cos and rotary_sin are aligned to 16 bytes, other tensors to their elements.
 * - Sequences: with rank 4 each of batch sequences has `rows` new rows. Packed, k, v, q and q_out are (rows, heads,
 *   head_dim) of rank 3, and sequence b has rows cu_seqlens_new[b] .. cu_seqlens_new[b + 1] - 1; rows of no sequence
 *   are left out, so a tensor may be longer than its sequences. seqused_new (optional): of sequence b only the first
 *   seqused_new[b] rows are new, the others are left out. Packed rows without cu_seqlens_new each stand for themselves:
 *   then slot_mapping and rotary_positions have a number for each row.
 * - Where rows go: row i of sequence b becomes the key at position cache_seqlens[b] + i of its cache. cache_seqlens
 *   says how many keys there are before the call, left padding among them; it is not changed. The cache is k_cache[b],
 *   and caches is batch; or it is k_cache[cache_batch_idx[b]]; or, with page_table, k_cache is pages of cache_rows keys
 *   (any number), and position p is key p % cache_rows of page page_table[b][p / cache_rows]. page_table and
 *   cache_batch_idx are not given together.
 * - slot_mapping takes the place of cache_seqlens, page_table and cache_batch_idx: row i becomes key
 *   slot_mapping[i] % cache_rows of k_cache[slot_mapping[i] / cache_rows]. A row whose slot is negative is left out.
 *   caches * cache_rows is below 2^31 then.
 * - rotary_cos, rotary_sin (optional, both): rotary embedding of the first rotary_dim columns of K and Q, a multiple of
 *   16. Column i is paired with i + rotary_dim / 2, or, with FA3_APPEND_ROTARY_INTERLEAVED, 2 i with 2 i + 1: (a, b)
 *   becomes (a cos - b sin, a sin + b cos), with the angles of the row's position in their table. That position is
 *   cache_seqlens[b] + i; or, if rotary_positions is given, rotary_positions[b] + i; of packed rows that stand for
 *   themselves it is rotary_positions[i]. Row i of q has the position of row i of k.
 * - k_scale, v_scale, q_scale: required where the output is e4m3, and refused where it is not. As in
 *   fa3_forward_params there is one for the tensor or for each head of each sequence. They are normal numbers > 0; with
 *   others what is written means nothing. A quotient is rounded to float32, and then to e4m3 as by fa3_quantize: to
 *   nearest even, infinities and what exceeds 448 become +-448, NaN stays NaN. All else is float32, rounded once;
 *   columns of 16 bits that are not rotated are copied bit by bit.
 * - q_out may be q itself: the same data and strides. Otherwise outputs must not overlap each other or any input.
 * - Lengths, positions, page numbers and slots are read by the device alone, when the kernel runs: a captured call is
 *   replayed with whatever stands there then. Whatever that is, nothing outside of the tensors is read or written. A
 *   row is left out if its page, its cache or its position is one that there is not (below 0, for example). A row of K
 *   and V without a place in the cache does not keep the same row of Q from being written, one without a position in
 *   the tables does. Where prefix sums decrease, rows may be left out or go where they should not. If two rows have the
 *   same place, either may stand there, or some of both.
 * - rows (of all sequences together) are at most INT32_MAX - 65536, and so are the warps that a call takes, about one
 *   for each 2 KB of a row; more is FA3_ERROR_UNSUPPORTED. Nothing to write: FA3_OK. */
typedef struct fa3_append_params {
  size_t struct_size;
  uint64_t flags; /* fa3_append_flags */
  fa3_tensor k, v, k_cache, v_cache;
  fa3_tensor cache_seqlens, cu_seqlens_new, seqused_new;
  fa3_tensor page_table, cache_batch_idx, slot_mapping;
  fa3_tensor q, q_out;
  fa3_tensor rotary_cos, rotary_sin, rotary_positions;
  fa3_tensor k_scale, v_scale, q_scale;
} fa3_append_params;

#define FA3_APPEND_PARAMS_INIT                                                                                       \
  {sizeof(fa3_append_params), 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,              \
   FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT,              \
   FA3_TENSOR_INIT}

enum fa3_append_flags {
  FA3_APPEND_ROTARY_INTERLEAVED = 1
};

/* Would fa3_append accept these parameters, and if not, why? As fa3_forward_check. */
FA3_API fa3_status fa3_append_check(const fa3_append_params* params);

/* Enqueues the call on `stream` and returns. It needs no workspace. Context, lifetimes and capture: as for fa3_forward.
 * The same call gives the same bits. */
FA3_API fa3_status fa3_append(const fa3_append_params* params, fa3_stream stream);

/* The same on the CPU, in float64 up to the roundings named above. All pointers are host pointers. */
FA3_API fa3_status fa3_reference_append(const fa3_append_params* params);

/* ---- combination ------------------------------------------------------------------------------------------- */

/* Merges partial results of attention, each over some of the keys, into the result over all of them: for keys that are
 * worked on one after another or in different places (a prefix that several sequences share, a cache in pages, context
 * parallelism). With i for the parts, for each row of queries and each head:
 *
 *   LSE = log(sum_i exp(LSE_i)),   O = sum_i exp(LSE_i - LSE) O_i
 *
 * | tensor    | dims                                    | dtype              | strides                               |
 * |-----------|-----------------------------------------|--------------------|---------------------------------------|
 * | o_parts   | parts, batch, seqlen, heads, head_dim   | bf16, fp16 or fp32 | last 1; others multiples of 16 bytes  |
 * |           |                                         |                    | (8 elements, of fp32 4), >= 0         |
 * | lse_parts | parts, batch, heads, seqlen             | fp32               | >= 0                                  |
 * | o         | batch, seqlen, heads, head_dim          | bf16, fp16 or fp32 | as o_parts, but > 0 and nested        |
 * | lse       | batch, heads, seqlen                    | fp32               | > 0 and nested                        |
 *
 * - o_parts and o need not have the same dtype. data of both is aligned to 16 bytes, of lse_parts and lse to 4.
 * - head_dim is a multiple of 8 from 8 to 512. parts is at most 65536.
 * - lse is optional: of rank 0 (zeroed) it is not wanted.
 * - A part whose LSE is -inf has seen no key of the row: its O is not used, whatever it holds, NaN too. Where all are
 *   such, or parts is 0, O = 0 and LSE = -inf.
 * - A LSE that is NaN or +inf makes its row's O and LSE NaN. NaN and infinities in O of a part whose LSE is a number
 *   reach the elements of O in their place (an infinity also as NaN, where its weight is below 2^-126).
 * - Weights and sums are float32, and each element is rounded once. A row with one part that has seen a key gets that
 *   part's O, rounded to o's dtype, and its LSE.
 * - o and lse must not overlap each other, o_parts or lse_parts (as in fa3_forward_params): not in place.
 * - batch, heads or seqlen of 0: nothing to compute, FA3_OK. batch * heads and seqlen are each at most
 *   INT32_MAX - 65536; more is FA3_ERROR_UNSUPPORTED. */
typedef struct fa3_combine_params {
  size_t struct_size;
  uint64_t flags; /* 0 */
  fa3_tensor o_parts, lse_parts;
  fa3_tensor o, lse;
} fa3_combine_params;

#define FA3_COMBINE_PARAMS_INIT \
  {sizeof(fa3_combine_params), 0, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT, FA3_TENSOR_INIT}

/* Would fa3_combine accept these parameters, and if not, why? As fa3_forward_check. */
FA3_API fa3_status fa3_combine_check(const fa3_combine_params* params);

/* Enqueues the combination on `stream` and returns. It needs no workspace. Context, lifetimes and capture: as for
 * fa3_forward. The same call gives the same bits, on any device. */
FA3_API fa3_status fa3_combine(const fa3_combine_params* params, fa3_stream stream);

/* The same on the CPU, in float64 up to the one rounding of each output. All pointers are host pointers. */
FA3_API fa3_status fa3_reference_combine(const fa3_combine_params* params);

/* ---- kernels ----------------------------------------------------------------------------------------------- */

typedef enum fa3_kernel_kind {
  FA3_KERNEL_FORWARD = 1,
  FA3_KERNEL_BACKWARD = 2,
  FA3_KERNEL_PASS = 3 /* a small kernel before, after or instead of one of those; it has a name, but no call can ask
                       * for it: here the one that answers problems without keys, whatever kernel is named, the one
                       * that makes v into tiles, which comes only where the library chooses, the one that plans
                       * lengths, the one that makes 16 bits of e4m3 for fa3_backward, or of k and v for fa3_forward,
                       * and those of fa3_quantize, fa3_append and fa3_combine */
} fa3_kernel_kind;

typedef struct fa3_kernel_info {
  size_t struct_size;          /* in: sizeof(fa3_kernel_info); at most that many bytes are written */
  char name[64];               /* what fa3_forward_params.kernel takes; tells kernel, dtype, head_dim, mask and tile */
  int32_t kind;                /* fa3_kernel_kind */
  int32_t dtype;               /* fa3_dtype of q, k, v; of a pass FA3_DTYPE_NONE, and what does not apply to it is 0 */
  int32_t head_dim;            /* the kernel's own, of q and k; a smaller one is zero-filled up to it */
  int32_t head_dim_v;          /* the same of v and o */
  int32_t causal;              /* 1 if the kernel masks causally; 0 where it takes any window */
  int32_t block_q;             /* Br: query rows of a tile; in fa3_fwd*packed... and fa3_fwdturns... of several heads */
  int32_t block_kv;            /* Bc: keys of one iteration */
  int32_t stages;              /* depth of the K/V ring */
  int32_t threads;             /* per thread block */
  int32_t producer_registers;  /* per thread, after setmaxnreg; 0 for a kernel without a producer or setmaxnreg */
  int32_t consumer_registers;  /* the same of the consumers; 0 for a kernel that leaves this to the compiler */
  int32_t shared_memory_bytes; /* dynamic, per thread block */
  int32_t chosen;              /* 1 if the library chooses this kernel by itself, 0 if it only runs by name */
  /* The rest is about the call that was asked about, and 0 from fa3_kernel_info_at. */
  int32_t launches;            /* kernel launches of the call; 0 if there is nothing to compute */
  int32_t grid;                /* thread blocks of this launch */
  int32_t multiprocessors;     /* that the call is planned for */
  int64_t tiles;               /* batch * heads * blocks of queries, without some that see no key; with packed heads
                                * batch * heads_kv * blocks of heads / heads_kv, rounded up to a power of two, rows for
                                * each query. With lengths, pages, windows or sinks the most that there may be */
  int64_t pieces;              /* what thread blocks take one by one: tiles, or parts of tiles split along the keys. As
                                * of tiles, the most that there may be */
} fa3_kernel_info;

#define FA3_KERNEL_INFO_INIT {sizeof(fa3_kernel_info), {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Which kernel would run these parameters (the chosen or the named one), and how, on a device of so many
 * multiprocessors, or 0: as for fa3_forward_workspace_size. A call may take several launches: a pass that prepares
 * something for the forward kernel comes before it, one that adds parts up (head dimensions above 256) behind. `launch`
 * says which is meant, from 0 to info->launches - 1. 0 is always answered, and so tells how many there are.
 * With up to 64 queries, or short causal sequences, the plan follows from the device's memory, too: a number of
 * multiprocessors is taken for that of a device with the memory, L2 cache and clock of an H200.
 * Data pointers are not looked at, so that one may ask before allocating. */
FA3_API fa3_status fa3_forward_kernel_info(const fa3_forward_params* params, int32_t multiprocessors, int32_t launch,
                                           fa3_kernel_info* info);

/* The same of fa3_backward; tiles and pieces are blocks of keys there, or of queries where a kernel computes dq only.
 * The order of blocks may follow from the device's memory, too, and with it the last launch's grid. */
FA3_API fa3_status fa3_backward_kernel_info(const fa3_backward_params* params, int32_t multiprocessors, int32_t launch,
                                            fa3_kernel_info* info);

/* The kernels of this build, 0 <= index < fa3_kernel_count(). */
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
