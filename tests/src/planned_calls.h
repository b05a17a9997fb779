// Calls with lengths, pages and caches. Pointers are far apart and lead nowhere: only for functions that never follow
// them.
#pragma once
#include "call.h"

namespace fa3::test {

inline void* far_away(uintptr_t n) { return reinterpret_cast<void*>(n << 42); }
inline fa3_tensor lengths_at(uintptr_t n, int64_t count) { return tensor(far_away(n), FA3_DTYPE_INT32, {count}); }

// Three sequences, of up to 7 queries (12 in all), 4 heads over 2, head_dim 16.
inline constexpr int64_t planned_batch = 3;

// Queries and keys packed: up to 9 keys, 17 in all.
inline fa3_forward_params imaginary_packed() {
  fa3_forward_params p = imaginary();
  p.q = tensor(p.q.data, FA3_DTYPE_BF16, {12, 4, 16}), p.o = tensor(p.o.data, FA3_DTYPE_BF16, {12, 4, 16});
  p.k = tensor(p.k.data, FA3_DTYPE_BF16, {17, 2, 16}), p.v = tensor(p.v.data, FA3_DTYPE_BF16, {17, 2, 16});
  p.lse = tensor(p.lse.data, FA3_DTYPE_FP32, {4, 12});
  p.cu_seqlens_q = lengths_at(6, planned_batch + 1), p.cu_seqlens_k = lengths_at(7, planned_batch + 1);
  p.max_seqlen_q = 7, p.max_seqlen_k = 9;
  return p;
}

// Packed queries, keys in 6 pages of 8, of which a sequence has up to 4.
inline fa3_forward_params imaginary_paged() {
  fa3_forward_params p = imaginary_packed();
  p.cu_seqlens_k = {}, p.max_seqlen_k = 0;
  p.k = tensor(p.k.data, FA3_DTYPE_BF16, {6, 8, 2, 16}), p.v = tensor(p.v.data, FA3_DTYPE_BF16, {6, 8, 2, 16});
  p.seqused_k = lengths_at(8, planned_batch);
  p.page_table = tensor(far_away(9), FA3_DTYPE_INT32, {planned_batch, 4});
  return p;
}

// Up to 2 queries of each sequence, batched, and a cache of 5 entries of up to 32 keys.
inline fa3_forward_params imaginary_cached() {
  fa3_forward_params p = imaginary({.batch = planned_batch, .seqlen_q = 2, .seqlen_k = 32});
  p.k.dim[0] = p.v.dim[0] = 5;
  p.seqused_q = lengths_at(10, planned_batch), p.seqused_k = lengths_at(8, planned_batch);
  p.leftpad_k = lengths_at(11, planned_batch), p.cache_batch_idx = lengths_at(12, planned_batch);
  p.sinks = tensor(far_away(13), FA3_DTYPE_FP32, {4});
  return p;
}

inline void window(fa3_forward_params& p, int32_t left, int32_t right) {
  p.mask = FA3_MASK_WINDOW, p.window_left = left, p.window_right = right;
}
inline void chunk(fa3_forward_params& p, int32_t size, int32_t right) {
  p.mask = FA3_MASK_CHUNK, p.window_left = size, p.window_right = right;
}

// The same of any shape.
struct PlannedShape {
  int64_t batch = 3, max_q = 300, total_q = 500, max_k = 700, total_k = 1100;
  int64_t heads = 6, heads_kv = 3, head_dim = 72, head_dim_v = 72;
};

// What a call of e4m3 has besides: a scale for each head of each sequence.
inline void add_scales(fa3_forward_params& p, const PlannedShape& s = {}) {
  p.o.dtype = FA3_DTYPE_BF16;
  p.q_scale = tensor(far_away(30), FA3_DTYPE_FP32, {s.batch, s.heads, 1});
  p.k_scale = tensor(far_away(31), FA3_DTYPE_FP32, {s.batch, s.heads_kv, 1});
  p.v_scale = tensor(far_away(32), FA3_DTYPE_FP32, {s.batch, s.heads_kv, 1});
}

// K and V of e4m3 under Q of 16 bits, with a scale for each head of each sequence.
inline void change_keys_to_e4m3(fa3_forward_params& p, const PlannedShape& s = {}) {
  p.k.dtype = p.v.dtype = FA3_DTYPE_E4M3;
  p.k_scale = tensor(far_away(31), FA3_DTYPE_FP32, {s.batch, s.heads_kv, 1});
  p.v_scale = tensor(far_away(32), FA3_DTYPE_FP32, {s.batch, s.heads_kv, 1});
}

// V alone, a latent cache: as FlashMLA has it, in tokens of 656 bytes, of which 512 are V, 16 its scales, and 128 K.
inline void change_to_latent_tokens(fa3_forward_params& p, void* cache) {
  const auto view = [&](fa3_tensor t, int32_t dtype, int64_t columns, int64_t at, int64_t token) {
    t.dtype = dtype, t.data = static_cast<char*>(cache) + at, t.dim[t.rank - 1] = token;
    if (fa3_tensor_pack(&t) != FA3_OK) std::abort();
    t.dim[t.rank - 1] = columns;
    return t;
  };
  p.k = view(p.v, FA3_DTYPE_BF16, 64, 528, 328), p.v_scale = view(p.v, FA3_DTYPE_FP32, 4, 512, 164);
  p.v = view(p.v, FA3_DTYPE_E4M3, 512, 0, 656);
}

// Queries one sequence behind the other.
inline void pack_queries(fa3_forward_params& p, const PlannedShape& s, int32_t dtype) {
  p.q = tensor(far_away(1), dtype, {s.total_q, s.heads, s.head_dim});
  p.o = tensor(far_away(4), dtype, {s.total_q, s.heads, s.head_dim_v});
  p.lse = tensor(far_away(5), FA3_DTYPE_FP32, {s.heads, s.total_q});
  p.cu_seqlens_q = lengths_at(20, s.batch + 1);
  p.max_seqlen_q = int32_t(s.max_q);
}

// Queries and keys, causal.
inline fa3_forward_params packed_call(const PlannedShape& s = {}, int32_t dtype = FA3_DTYPE_BF16) {
  fa3_forward_params p = FA3_FORWARD_PARAMS_INIT;
  pack_queries(p, s, dtype);
  p.k = tensor(far_away(2), dtype, {s.total_k, s.heads_kv, s.head_dim});
  p.v = tensor(far_away(3), dtype, {s.total_k, s.heads_kv, s.head_dim_v});
  p.cu_seqlens_k = lengths_at(21, s.batch + 1);
  p.max_seqlen_k = int32_t(s.max_k);
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  return p;
}

// The queries on a cache of so many pages, of which a sequence has enough for max_k keys.
inline fa3_forward_params paged_call(int64_t page_size, int64_t pages, const PlannedShape& s = {},
                                     int32_t dtype = FA3_DTYPE_BF16) {
  fa3_forward_params p = FA3_FORWARD_PARAMS_INIT;
  pack_queries(p, s, dtype);
  p.k = tensor(far_away(2), dtype, {pages, page_size, s.heads_kv, s.head_dim});
  p.v = tensor(far_away(3), dtype, {pages, page_size, s.heads_kv, s.head_dim_v});
  p.seqused_k = lengths_at(23, s.batch);
  p.page_table = tensor(far_away(25), FA3_DTYPE_INT32, {s.batch, (s.max_k + page_size - 1) / page_size});
  p.max_seqlen_k = int32_t(s.max_k);
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  return p;
}

}  // namespace fa3::test
