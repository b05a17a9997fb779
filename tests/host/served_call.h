// Served calls whose pointers lead nowhere: packed lengths, and pages.
#pragma once
#include "call.h"

namespace fa3::test {

inline void* place(uintptr_t n) { return reinterpret_cast<void*>(n << 42); }
inline fa3_tensor int32_at(uintptr_t n, std::initializer_list<int64_t> dim) {
  return tensor(place(n), FA3_DTYPE_INT32, dim);
}

struct ServedShape {
  int64_t batch = 3, max_q = 300, total_q = 500, max_k = 700, total_k = 1100;
  int64_t heads = 6, heads_kv = 3, head_dim = 72, head_dim_v = 72;
};

// Queries one sequence behind the other.
inline void pack_queries(fa3_forward_params& p, const ServedShape& s, int32_t dtype) {
  p.q = tensor(place(1), dtype, {s.total_q, s.heads, s.head_dim});
  p.o = tensor(place(4), dtype, {s.total_q, s.heads, s.head_dim_v});
  p.lse = tensor(place(5), FA3_DTYPE_FP32, {s.heads, s.total_q});
  p.cu_seqlens_q = int32_at(20, {s.batch + 1});
  p.max_seqlen_q = int32_t(s.max_q);
}

// Queries and keys, causal.
inline fa3_forward_params packed_call(const ServedShape& s = {}, int32_t dtype = FA3_DTYPE_BF16) {
  fa3_forward_params p = FA3_FORWARD_PARAMS_INIT;
  pack_queries(p, s, dtype);
  p.k = tensor(place(2), dtype, {s.total_k, s.heads_kv, s.head_dim});
  p.v = tensor(place(3), dtype, {s.total_k, s.heads_kv, s.head_dim_v});
  p.cu_seqlens_k = int32_at(21, {s.batch + 1});
  p.max_seqlen_k = int32_t(s.max_k);
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  return p;
}

// The queries on a cache of so many pages, of which a sequence has enough for max_k keys.
inline fa3_forward_params paged_call(int64_t page_size, int64_t pages, const ServedShape& s = {},
                                     int32_t dtype = FA3_DTYPE_BF16) {
  fa3_forward_params p = FA3_FORWARD_PARAMS_INIT;
  pack_queries(p, s, dtype);
  p.k = tensor(place(2), dtype, {pages, page_size, s.heads_kv, s.head_dim});
  p.v = tensor(place(3), dtype, {pages, page_size, s.heads_kv, s.head_dim_v});
  p.seqused_k = int32_at(23, {s.batch});
  p.page_table = int32_at(25, {s.batch, (s.max_k + page_size - 1) / page_size});
  p.max_seqlen_k = int32_t(s.max_k);
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  return p;
}

}  // namespace fa3::test
