// fa3_append: arguments.
#include <catch2/catch_test_macros.hpp>

#include <utility>

#include "../imaginary.h"
#include "../refused.h"

namespace fa3::test {
namespace {

using P = fa3_append_params;

void* at(uintptr_t place) { return reinterpret_cast<void*>(place << 42); }
fa3_tensor int32s(uintptr_t place, int64_t count) { return tensor(at(place), FA3_DTYPE_INT32, {count}); }

// Two sequences of 10 rows, into pages, with rotary embedding of q and k.
P pages() { return imaginary_params<P>(); }
// The same in a cache for each.
P caches() {
  P p = pages();
  p.page_table = {};
  return p;
}
// 20 packed rows of three sequences.
P packed() {
  P p = pages();
  p.k = tensor(at(1), FA3_DTYPE_BF16, {20, 4, 64}), p.v = tensor(at(2), FA3_DTYPE_BF16, {20, 4, 40});
  p.q = tensor(at(8), FA3_DTYPE_BF16, {20, 8, 64}), p.q_out = tensor(at(9), FA3_DTYPE_BF16, {20, 8, 64});
  p.cu_seqlens_new = int32s(13, 4);
  p.cache_seqlens = int32s(5, 3), p.seqused_new = int32s(6, 3);
  p.page_table = tensor(at(7), FA3_DTYPE_INT32, {3, 5});
  p.rotary_positions = tensor(at(12), FA3_DTYPE_INT64, {3});
  return p;
}
// 20 packed rows, each with a slot.
P slots() {
  P p = packed();
  p.cu_seqlens_new = p.cache_seqlens = p.seqused_new = p.page_table = {};
  p.slot_mapping = tensor(at(14), FA3_DTYPE_INT64, {20});
  p.rotary_positions = int32s(12, 20);
  return p;
}
// Pages and queries of e4m3.
P e4m3() {
  P p = pages();
  for (fa3_tensor* t : {&p.k_cache, &p.v_cache, &p.q_out}) t->dtype = FA3_DTYPE_E4M3;
  p.v = tensor(at(2), FA3_DTYPE_BF16, {2, 10, 4, 48});
  p.v_cache = tensor(at(4), FA3_DTYPE_E4M3, {2, 100, 4, 48});
  p.k_scale = tensor(at(15), FA3_DTYPE_FP32, {2, 4, 1}), p.v_scale = tensor(at(16), FA3_DTYPE_FP32, {1, 4, 1});
  p.q_scale = tensor(at(17), FA3_DTYPE_FP32, {1, 1, 1});
  return p;
}
// Rows of e4m3, each with a slot: to the scales they are one sequence.
P e4m3_slots() {
  P p = slots();
  for (fa3_tensor* t : {&p.k_cache, &p.v_cache, &p.q_out}) t->dtype = FA3_DTYPE_E4M3;
  p.v = tensor(at(2), FA3_DTYPE_BF16, {20, 4, 48});
  p.v_cache = tensor(at(4), FA3_DTYPE_E4M3, {2, 100, 4, 48});
  p.k_scale = tensor(at(15), FA3_DTYPE_FP32, {1, 4, 1}), p.v_scale = tensor(at(16), FA3_DTYPE_FP32, {1, 4, 1});
  p.q_scale = tensor(at(17), FA3_DTYPE_FP32, {1, 1, 1});
  return p;
}
// Rotary embedding of q alone.
P queries() {
  P p = pages();
  p.k = p.v = p.k_cache = p.v_cache = p.page_table = p.cache_seqlens = {};
  return p;
}

struct Change {
  const char* name;  // what the message must contain
  fa3_status status;
  P (*right)();
  void (*apply)(P&);
};

const Change bad[] = {
    {"flags is 0x2, has bits", invalid, pages, [](P& p) { p.flags = 2; }},
    // What must be given, and what must not.
    {"k and q are absent, one of them must be given", invalid, pages, [](P& p) { p = P(FA3_APPEND_PARAMS_INIT); }},
    {"k is absent, must be given where k_cache is", invalid, pages, [](P& p) { p.k = {}; }},
    {"k_cache is absent, must be given where k is", invalid, pages, [](P& p) { p.k_cache = {}; }},
    {"v is absent, must be given where v_cache is", invalid, pages, [](P& p) { p.v = {}; }},
    {"v_cache is absent, must be given where v is", invalid, pages, [](P& p) { p.v_cache = {}; }},
    {"q is absent, must be given where q_out is", invalid, pages, [](P& p) { p.q = {}; }},
    {"q_out is absent, must be given where q is", invalid, pages, [](P& p) { p.q_out = {}; }},
    {"k is absent, must be given where v is", invalid, pages, [](P& p) { p.k = p.k_cache = {}; }},
    {"cache_seqlens is absent, must be given with k", invalid, pages, [](P& p) { p.cache_seqlens = {}; }},
    {"slot_mapping is absent, must be given for packed rows", invalid, packed,
     [](P& p) { p.cu_seqlens_new = p.seqused_new = {}; }},
    {"cu_seqlens_new is given, must be absent where rows are not packed", invalid, pages,
     [](P& p) { p.cu_seqlens_new = int32s(13, 3); }},
    {"page_table and cache_batch_idx cannot be had together", unsupported, pages,
     [](P& p) { p.cache_batch_idx = int32s(13, 2); }},
    {"slot_mapping is given, k.rank must be 3 then, is 4", invalid, pages,
     [](P& p) { p.slot_mapping = int32s(13, 20); }},
    {"cu_seqlens_new is given, must be absent where slot_mapping is", invalid, packed,
     [](P& p) { p.slot_mapping = int32s(14, 20); }},
    {"cache_seqlens is given, must be absent where slot_mapping is", invalid, slots,
     [](P& p) { p.cache_seqlens = int32s(13, 3); }},
    {"page_table is given, must be absent where slot_mapping is", invalid, slots,
     [](P& p) { p.page_table = pages().page_table; }},
    {"cache_batch_idx is given, must be absent where slot_mapping is", invalid, slots,
     [](P& p) { p.cache_batch_idx = int32s(13, 3); }},
    {"seqused_new is given, must be absent where packed rows have no cu_seqlens_new", invalid, slots,
     [](P& p) { p.seqused_new = int32s(13, 20); }},
    {"page_table is given, must be absent where k is", invalid, queries,
     [](P& p) { p.page_table = pages().page_table; }},
    {"cache_batch_idx is given, must be absent where k is", invalid, queries,
     [](P& p) { p.cache_batch_idx = int32s(13, 2); }},
    {"slot_mapping is given, must be absent where k is", invalid, queries,
     [](P& p) { p.slot_mapping = int32s(13, 20); }},
    {"rotary_sin is absent, must be given where rotary_cos is", invalid, pages, [](P& p) { p.rotary_sin = {}; }},
    {"rotary_cos is absent, must be given where rotary_sin is", invalid, pages, [](P& p) { p.rotary_cos = {}; }},
    {"rotary_positions is given, must be absent where rotary_cos is", invalid, pages,
     [](P& p) { p.rotary_cos = p.rotary_sin = {}; }},
    {"rotary_positions is absent, must be given where rotary_cos is and cache_seqlens is not", invalid, slots,
     [](P& p) { p.rotary_positions = {}; }},
    {"rotary_positions is absent, must be given where rotary_cos is and cache_seqlens is not", invalid, queries,
     [](P& p) { p.rotary_positions = {}; }},
    {"k_scale is absent, must be given where k_cache is e4m3", invalid, e4m3, [](P& p) { p.k_scale = {}; }},
    {"v_scale is absent, must be given where v_cache is e4m3", invalid, e4m3, [](P& p) { p.v_scale = {}; }},
    {"q_scale is absent, must be given where q_out is e4m3", invalid, e4m3, [](P& p) { p.q_scale = {}; }},
    {"k_scale is given, must be absent where k_cache is not e4m3", invalid, pages,
     [](P& p) { p.k_scale = e4m3().k_scale; }},
    {"v_scale is given, must be absent where v_cache is not e4m3", invalid, pages,
     [](P& p) { p.v_scale = e4m3().v_scale; }},
    {"q_scale is given, must be absent where q_out is not e4m3", invalid, queries,
     [](P& p) { p.q_scale = e4m3().q_scale; }},
    {"k_scale is given, must be absent where k_cache is not e4m3", invalid, queries,
     [](P& p) { p.k_scale = e4m3().k_scale; }},
    // Dtypes.
    {"k.dtype is fp32; rows are appended in bf16 and fp16", unsupported, pages,
     [](P& p) { p.k.dtype = FA3_DTYPE_FP32; }},
    {"k.dtype is int32, which only", invalid, pages, [](P& p) { p.k.dtype = FA3_DTYPE_INT32; }},
    {"k.dtype is int64, which only", invalid, pages, [](P& p) { p.k.dtype = FA3_DTYPE_INT64; }},
    {"v.dtype is fp16, must be that of k, bf16", invalid, pages, [](P& p) { p.v.dtype = FA3_DTYPE_FP16; }},
    {"q.dtype is fp16, must be that of k, bf16", invalid, pages, [](P& p) { p.q.dtype = FA3_DTYPE_FP16; }},
    {"k_cache.dtype is fp16, must be that of k, bf16, or e4m3", invalid, pages,
     [](P& p) { p.k_cache.dtype = FA3_DTYPE_FP16; }},
    {"v_cache.dtype is fp32, must be that of v, bf16, or e4m3", invalid, pages,
     [](P& p) { p.v_cache.dtype = FA3_DTYPE_FP32; }},
    {"q_out.dtype is fp32, must be that of q, bf16, or e4m3", invalid, queries,
     [](P& p) { p.q_out.dtype = FA3_DTYPE_FP32; }},
    {"cache_seqlens.dtype is int64, must be int32", invalid, pages,
     [](P& p) { p.cache_seqlens.dtype = FA3_DTYPE_INT64; }},
    {"cu_seqlens_new.dtype is fp32, must be int32", invalid, packed,
     [](P& p) { p.cu_seqlens_new.dtype = FA3_DTYPE_FP32; }},
    {"seqused_new.dtype is int64, must be int32", invalid, pages, [](P& p) { p.seqused_new.dtype = FA3_DTYPE_INT64; }},
    {"page_table.dtype is int64, must be int32", invalid, pages, [](P& p) { p.page_table.dtype = FA3_DTYPE_INT64; }},
    {"slot_mapping.dtype is bf16, must be int32 or int64", invalid, slots,
     [](P& p) { p.slot_mapping.dtype = FA3_DTYPE_BF16; }},
    {"rotary_positions.dtype is fp32, must be int32 or int64", invalid, slots,
     [](P& p) { p.rotary_positions.dtype = FA3_DTYPE_FP32; }},
    {"rotary_positions.dtype is e5m2", unsupported, pages, [](P& p) { p.rotary_positions.dtype = FA3_DTYPE_E5M2; }},
    {"rotary_cos.dtype is bf16, must be fp32", invalid, pages, [](P& p) { p.rotary_cos.dtype = FA3_DTYPE_BF16; }},
    {"k_scale.dtype is int32, which only", invalid, e4m3, [](P& p) { p.k_scale.dtype = FA3_DTYPE_INT32; }},
    // Ranks and dims.
    {"k.rank is 5, must be 4, or 3 for packed rows", invalid, pages, [](P& p) { p.k.rank = 5; }},
    {"q.rank is 2, must be 4, or 3 for packed rows", invalid, queries, [](P& p) { p.q.rank = 2; }},
    {"v.rank is 3, must be 4", invalid, pages, [](P& p) { p.v.rank = 3; }},
    {"v.rank is 4, must be 3", invalid, packed, [](P& p) { p.v.rank = 4; }},
    {"k_cache.rank is 3, must be 4", invalid, packed, [](P& p) { p.k_cache.rank = 3; }},
    {"q_out.rank is 4, must be 3", invalid, packed, [](P& p) { p.q_out.rank = 4; }},
    {"page_table.rank is 1, must be 2", invalid, pages, [](P& p) { p.page_table.rank = 1; }},
    {"cache_seqlens.rank is 2, must be 1", invalid, pages, [](P& p) { p.cache_seqlens.rank = 2; }},
    {"k_scale.rank is 2, must be 3", invalid, e4m3, [](P& p) { p.k_scale.rank = 2; }},
    {"k.dim[1] is -1", invalid, pages, [](P& p) { p.k.dim[1] = -1; }},
    {"k.dim[3] (head_dim) is 60, must be a multiple of 8 from 8 to 1024", invalid, pages,
     [](P& p) { p.k.dim[3] = 60; }},
    {"k.dim[2] (head_dim) is 60, must be a multiple of 8 from 8 to 1024", invalid, packed,
     [](P& p) { p.k.dim[2] = 60; }},
    {"v.dim[3] (head_dim_v) is 40, must be a multiple of 16 from 16 to 1024", invalid, e4m3,
     [](P& p) { p.v.dim[3] = p.v_cache.dim[3] = 40; }},
    {"q.dim[3] (head_dim) is 1032; the largest supported is 1024", unsupported, queries,
     [](P& p) { p.q.dim[3] = 1032; }},
    {"k_cache.dim[2] is 5, must equal k.dim[2], which is 4", invalid, pages, [](P& p) { p.k_cache.dim[2] = 5; }},
    {"k_cache.dim[2] is 5, must equal k.dim[1], which is 4", invalid, packed, [](P& p) { p.k_cache.dim[2] = 5; }},
    {"k_cache.dim[3] is 72, must equal k.dim[3], which is 64", invalid, pages, [](P& p) { p.k_cache.dim[3] = 72; }},
    {"v.dim[0] is 3, must equal k.dim[0], which is 2", invalid, pages, [](P& p) { p.v.dim[0] = 3; }},
    {"v.dim[1] is 9, must equal k.dim[1], which is 10", invalid, pages, [](P& p) { p.v.dim[1] = 9; }},
    {"v.dim[0] is 19, must equal k.dim[0], which is 20", invalid, packed, [](P& p) { p.v.dim[0] = 19; }},
    {"v.dim[2] is 3, must equal k.dim[2], which is 4", invalid, pages, [](P& p) { p.v.dim[2] = 3; }},
    {"v_cache.dim[0] is 3, must equal k_cache.dim[0], which is 2", invalid, pages, [](P& p) { p.v_cache.dim[0] = 3; }},
    {"v_cache.dim[1] is 99, must equal k_cache.dim[1], which is 100", invalid, pages,
     [](P& p) { p.v_cache.dim[1] = 99; }},
    {"v_cache.dim[2] is 3, must equal k_cache.dim[2], which is 4", invalid, pages, [](P& p) { p.v_cache.dim[2] = 3; }},
    {"v_cache.dim[3] is 48, must equal v.dim[3], which is 40", invalid, pages, [](P& p) { p.v_cache.dim[3] = 48; }},
    {"q.dim[0] is 3, must equal k.dim[0], which is 2", invalid, pages, [](P& p) { p.q.dim[0] = 3; }},
    {"q.dim[1] is 1, must equal k.dim[1], which is 10", invalid, pages, [](P& p) { p.q.dim[1] = 1; }},
    {"q.dim[3] is 72, must equal k.dim[3], which is 64", invalid, pages, [](P& p) { p.q.dim[3] = 72; }},
    {"q_out.dim[0] is 3, must equal q.dim[0], which is 2", invalid, queries, [](P& p) { p.q_out.dim[0] = 3; }},
    {"q_out.dim[2] is 7, must equal q.dim[2], which is 8", invalid, pages, [](P& p) { p.q_out.dim[2] = 7; }},
    {"q_out.dim[3] is 72, must equal q.dim[3], which is 64", invalid, pages, [](P& p) { p.q_out.dim[3] = 72; }},
    {"cu_seqlens_new.dim[0] is 0, must be the number of sequences and 1", invalid, packed,
     [](P& p) { p.cu_seqlens_new.dim[0] = 0; }},
    {"cache_seqlens.dim[0] is 3, must be the number of sequences, which is 2", invalid, pages,
     [](P& p) { p.cache_seqlens.dim[0] = 3; }},
    {"seqused_new.dim[0] is 4, must be the number of sequences, which is 3", invalid, packed,
     [](P& p) { p.seqused_new.dim[0] = 4; }},
    {"page_table.dim[0] is 1, must be the number of sequences, which is 2", invalid, pages,
     [](P& p) { p.page_table.dim[0] = 1; }},
    {"cache_batch_idx.dim[0] is 5, must be the number of sequences, which is 2", invalid, caches,
     [](P& p) { p.cache_batch_idx = int32s(13, 5); }},
    {"k_cache.dim[0] is 7, must be the number of sequences, which is 2", invalid, caches,
     [](P& p) { p.k_cache.dim[0] = p.v_cache.dim[0] = 7; }},
    {"slot_mapping.dim[0] is 19, must equal k.dim[0], which is 20", invalid, slots,
     [](P& p) { p.slot_mapping.dim[0] = 19; }},
    {"rotary_positions.dim[0] is 20, must be the number of sequences, which is 3", invalid, packed,
     [](P& p) { p.rotary_positions.dim[0] = 20; }},
    {"rotary_positions.dim[0] is 3, must equal k.dim[0], which is 20", invalid, slots,
     [](P& p) { p.rotary_positions.dim[0] = 3; }},
    {"rotary_sin.dim[0] is 299, must equal rotary_cos.dim[0], which is 300", invalid, pages,
     [](P& p) { p.rotary_sin.dim[0] = 299; }},
    {"rotary_sin.dim[1] is 8, must equal rotary_cos.dim[1], which is 16", invalid, pages,
     [](P& p) { p.rotary_sin.dim[1] = 8; }},
    {"rotary_cos.dim[1] (rotary_dim / 2) is 12, must be a multiple of 8 up to head_dim / 2, which is 32", invalid,
     pages, [](P& p) { p.rotary_cos.dim[1] = 12; }},
    {"rotary_cos.dim[1] (rotary_dim / 2) is 40, must be a multiple of 8", invalid, pages,
     [](P& p) { p.rotary_cos.dim[1] = 40; }},
    {"k_scale.dim[0] is 3, must be 1 or the number of sequences, which is 2", invalid, e4m3,
     [](P& p) { p.k_scale.dim[0] = 3; }},
    {"k_scale.dim[0] is 20, must be 1 or the number of sequences, which is 1", invalid, e4m3_slots,
     [](P& p) { p.k_scale.dim[0] = 20; }},
    {"v_scale.dim[1] is 8, must be 1 or the heads of v, which are 4", invalid, e4m3,
     [](P& p) { p.v_scale.dim[1] = 8; }},
    {"q_scale.dim[1] is 4, must be 1 or the heads of q, which are 8", invalid, e4m3,
     [](P& p) { p.q_scale.dim[1] = 4; }},
    {"k_scale.dim[2] is 2, must be 1", invalid, e4m3, [](P& p) { p.k_scale.dim[2] = 2; }},
    // Sizes.
    {"k has 2147418112 rows; the largest number supported is 2147418111", unsupported, caches,
     [](P& p) {
       p.v = p.v_cache = p.q = p.q_out = {};
       p.k.dim[1] = INT32_MAX - 65535, p.k.dim[0] = p.k_cache.dim[0] = p.cache_seqlens.dim[0] = 1;
       p.seqused_new.dim[0] = p.rotary_positions.dim[0] = 1;
       p.k.stride[1] = 0;
     }},
    {"k has 2147418111 rows of 40 heads, more work than the kernel counts", unsupported, caches,
     [](P& p) {
       p.v = p.v_cache = p.q = p.q_out = {};
       p.k.dim[1] = INT32_MAX - 65536, p.k.dim[0] = p.k_cache.dim[0] = p.cache_seqlens.dim[0] = 1;
       p.seqused_new.dim[0] = p.rotary_positions.dim[0] = 1;
       p.k.stride[1] = 0, p.k.dim[2] = p.k_cache.dim[2] = 40, p.k_cache.stride[1] = 40 * 64;
     }},
    {"k_cache.dim[0] * k_cache.dim[1] is 2147483648; with slot_mapping the largest supported is 2147483647",
     unsupported, slots,
     [](P& p) {
       for (fa3_tensor* t : {&p.k_cache, &p.v_cache}) *t = tensor(t->data, t->dtype, {1 << 16, 1 << 15, 1, t->dim[3]});
       for (fa3_tensor* t : {&p.k, &p.v}) *t = tensor(t->data, t->dtype, {20, 1, t->dim[2]});
     }},
    // Strides and addresses.
    {"k.stride[3] is 2, must be 1", invalid, pages, [](P& p) { p.k.stride[3] = 2; }},
    {"k.stride[2] is 2, must be 1", invalid, packed, [](P& p) { p.k.stride[2] = 2; }},
    {"k.stride[0] is 260, must be a multiple of 8", invalid, packed, [](P& p) { p.k.stride[0] += 4; }},
    {"v.stride[1] is -160, must be >= 0", invalid, pages, [](P& p) { p.v.stride[1] = -160; }},
    {"k_cache.stride[0] is 0, must be > 0", invalid, pages, [](P& p) { p.k_cache.stride[0] = 0; }},
    {"k_cache.stride[1] is 248: elements of an output may overlap", invalid, pages,
     [](P& p) { p.k_cache.stride[1] = 248; }},
    {"q_out.stride[0] is 504: elements of an output may overlap", invalid, packed,
     [](P& p) { p.q_out.stride[0] = 504; }},
    {"k_cache.stride[2] is 72, must be a multiple of 16", invalid, e4m3, [](P& p) { p.k_cache.stride[2] = 72; }},
    {"cache_seqlens.stride[0] is 2, must be 1", invalid, pages, [](P& p) { p.cache_seqlens.stride[0] = 2; }},
    {"cache_seqlens.stride[0] is 0, must be 1", invalid, pages, [](P& p) { p.cache_seqlens.stride[0] = 0; }},
    {"slot_mapping.stride[0] is 2, must be 1", invalid, slots, [](P& p) { p.slot_mapping.stride[0] = 2; }},
    {"page_table.stride[1] is 2, must be 1", invalid, pages, [](P& p) { p.page_table.stride[1] = 2; }},
    {"page_table.stride[0] is -3, must be >= 0", invalid, pages, [](P& p) { p.page_table.stride[0] = -3; }},
    {"rotary_cos.stride[0] is 18, must be a multiple of 4", invalid, pages, [](P& p) { p.rotary_cos.stride[0] = 18; }},
    {"rotary_sin.stride[1] is 2, must be 1", invalid, pages, [](P& p) { p.rotary_sin.stride[1] = 2; }},
    {"k_scale.stride[0] is -1, must be >= 0", invalid, e4m3, [](P& p) { p.k_scale.stride[0] = -1; }},
    {"k.data is NULL", invalid, pages, [](P& p) { p.k.data = nullptr; }},
    {"v.data is 0x80000000008, must be aligned to 16 bytes", invalid, pages, [](P& p) { move(p.v, 8); }},
    {"v_cache.data is NULL", invalid, pages, [](P& p) { p.v_cache.data = nullptr; }},
    {"q_out.data is 0x240000000008, must be aligned to 16 bytes", invalid, packed, [](P& p) { move(p.q_out, 8); }},
    {"page_table.data is NULL", invalid, pages, [](P& p) { p.page_table.data = nullptr; }},
    {"cache_seqlens.data is 0x140000000002, must be aligned to 4 bytes", invalid, pages,
     [](P& p) { move(p.cache_seqlens, 2); }},
    {"slot_mapping.data is 0x380000000004, must be aligned to 8 bytes", invalid, slots,
     [](P& p) { move(p.slot_mapping, 4); }},
    {"rotary_cos.data is 0x280000000008, must be aligned to 16 bytes", invalid, pages,
     [](P& p) { move(p.rotary_cos, 8); }},
    {"k_scale.data is NULL", invalid, e4m3, [](P& p) { p.k_scale.data = nullptr; }},
    // Overlaps.
    {"k_cache may overlap v_cache", invalid, pages, [](P& p) { p.v_cache.data = p.k_cache.data; }},
    {"k_cache may overlap q_out", invalid, pages, [](P& p) { p.q_out.data = p.k_cache.data; }},
    {"k_cache may overlap k:", invalid, pages, [](P& p) { p.k.data = p.k_cache.data; }},
    {"v_cache may overlap v:", invalid, pages, [](P& p) { p.v.data = p.v_cache.data; }},
    {"q_out may overlap k:", invalid, pages, [](P& p) { p.q_out.data = p.k.data; }},
    {"q_out may overlap q:", invalid, pages, [](P& p) { p.q_out.data = p.q.data, move(p.q_out, 16); }},
    {"q_out may overlap q:", invalid, queries,  // the same place, other strides
     [](P& p) { p.q_out.data = p.q.data, set_strides(p.q_out, {5120, 64, 640, 1}); }},
    {"q_out may overlap q:", invalid, e4m3, [](P& p) { p.q_out.data = p.q.data; }},
    {"k_cache may overlap q:", invalid, pages, [](P& p) { p.q.data = p.k_cache.data; }},
    {"k_cache may overlap cache_seqlens", invalid, pages, [](P& p) { p.cache_seqlens.data = p.k_cache.data; }},
    {"v_cache may overlap cu_seqlens_new", invalid, packed, [](P& p) { p.cu_seqlens_new.data = p.v_cache.data; }},
    {"q_out may overlap seqused_new", invalid, pages, [](P& p) { p.seqused_new.data = p.q_out.data; }},
    {"k_cache may overlap page_table", invalid, pages, [](P& p) { p.page_table.data = p.k_cache.data; }},
    {"k_cache may overlap cache_batch_idx", invalid, caches,
     [](P& p) { p.cache_batch_idx = int32s(3, 2); }},
    {"k_cache may overlap slot_mapping", invalid, slots, [](P& p) { p.slot_mapping.data = p.k_cache.data; }},
    {"k_cache may overlap rotary_cos", invalid, pages, [](P& p) { p.rotary_cos.data = p.k_cache.data; }},
    {"q_out may overlap rotary_sin", invalid, pages, [](P& p) { p.rotary_sin.data = p.q_out.data; }},
    {"k_cache may overlap rotary_positions", invalid, pages, [](P& p) { p.rotary_positions.data = p.k_cache.data; }},
    {"k_cache may overlap k_scale", invalid, e4m3, [](P& p) { p.k_scale.data = p.k_cache.data; }},
    {"v_cache may overlap v_scale", invalid, e4m3, [](P& p) { p.v_scale.data = p.v_cache.data; }},
    {"q_out may overlap q_scale", invalid, e4m3, [](P& p) { p.q_scale.data = p.q_out.data; }},
};

void good(const P& p) {
  const bool accepted = fa3_append_check(&p) == FA3_OK;
  INFO(fa3_last_error_message());
  CHECK(accepted);
}

}  // namespace

TEST_CASE("append: good arguments are accepted", "[append]") {
  for (const auto& right : {pages, caches, packed, slots, e4m3, queries}) good(right());
  for (const auto& right : {pages, caches, packed, slots, queries}) {
    P p = right();
    p.flags = FA3_APPEND_ROTARY_INTERLEAVED;
    good(p);
    for (fa3_tensor* t : {&p.k, &p.v, &p.k_cache, &p.v_cache, &p.q, &p.q_out}) t->dtype = FA3_DTYPE_FP16;
    if (p.k.rank == 0) p.k.dtype = p.v.dtype = FA3_DTYPE_NONE;
    good(p);
    p.q_out = p.q;  // in place
    good(p);
    p.rotary_cos = p.rotary_sin = p.rotary_positions = {};
    good(p);
    if (p.k.rank == 0) continue;
    p.q = p.q_out = {};
    good(p);
    p.v = p.v_cache = {};
    good(p);
  }
  // Caches that lie in each other as slices of one buffer; one of them in 8 bits, the other in 16.
  P p = pages();
  p.v = tensor(at(2), FA3_DTYPE_BF16, {2, 10, 4, 64});
  p.k_cache = p.v_cache = tensor(at(3), FA3_DTYPE_BF16, {2, 100, 4, 64});
  p.k_cache.stride[0] = p.v_cache.stride[0] = 2 * p.k_cache.stride[0];
  move(p.v_cache, p.k_cache.stride[0]);
  good(p);
  p = e4m3();
  p.v_cache.dtype = FA3_DTYPE_BF16, p.v_scale = {};
  good(p);
  // Heads before rows, rows that repeat, a page table whose rows are slices of a wider one, more pages than sequences.
  p = pages();
  set_strides(p.k_cache, {25600, 64, 6400, 1}), set_strides(p.k, {0, 0, 64, 1});
  p.page_table.stride[0] = 1000;
  good(p);
  p.k_cache.dim[0] = p.v_cache.dim[0] = 100000;
  good(p);
  // Positions of cache_seqlens, also of q alone.
  p = pages();
  p.rotary_positions = {};
  good(p);
  p = queries();
  p.rotary_positions = {}, p.cache_seqlens = int32s(5, 2);
  good(p);
  // Whichever sequence has which cache.
  p = caches();
  p.cache_batch_idx = int32s(13, 2), p.k_cache.dim[0] = p.v_cache.dim[0] = 9;
  good(p);
  // Scales of all kinds.
  for (const int64_t batch : {1, 2})
    for (const int64_t heads : {1, 4}) {
      p = e4m3();
      p.k_scale = tensor(at(15), FA3_DTYPE_FP32, {batch, heads, 1});
      p.k_scale.stride[0] = 0;
      good(p);
    }
  // The largest head dimension; the most slots.
  p = pages();
  p.v = tensor(at(2), FA3_DTYPE_BF16, {2, 10, 4, 1024}), p.v_cache = tensor(at(4), FA3_DTYPE_BF16, {2, 100, 4, 1024});
  good(p);
  p = slots();
  for (fa3_tensor* t : {&p.k_cache, &p.v_cache}) *t = tensor(t->data, t->dtype, {INT32_MAX, 1, 1, t->dim[3]});
  for (fa3_tensor* t : {&p.k, &p.v}) *t = tensor(t->data, t->dtype, {20, 1, t->dim[2]});
  good(p);
}

TEST_CASE("append: a bad argument is named", "[append]") {
  for (const Change& change : bad) {
    P p = change.right();
    change.apply(p);
    INFO(change.name);
    expect(fa3_append_check(&p), change.status, change.name);
    CHECK(fa3_reference_append(&p) == change.status);  // follows no pointer either
    CHECK(fa3_append(&p, nullptr) == change.status);   // asks for no GPU
  }
  expect(fa3_append_check(nullptr), invalid, "params is NULL");
}

TEST_CASE("append: nothing to write needs no GPU", "[append]") {
  const auto nothing = [](const P& p) {
    good(p);
    CHECK(fa3_append(&p, nullptr) == FA3_OK);
    CHECK(fa3_reference_append(&p) == FA3_OK);
  };
  P p = pages();
  for (fa3_tensor* t : {&p.k, &p.v, &p.q, &p.q_out}) t->dim[1] = 0;  // no rows
  nothing(p);
  p = pages();
  for (fa3_tensor* t : {&p.k, &p.v, &p.q, &p.q_out, &p.cache_seqlens, &p.seqused_new, &p.page_table,
                        &p.rotary_positions})
    t->dim[0] = 0, t->data = nullptr;  // no sequences
  nothing(p);
  p = packed();
  p.cu_seqlens_new.dim[0] = 1;
  for (fa3_tensor* t : {&p.cache_seqlens, &p.seqused_new, &p.page_table, &p.rotary_positions}) t->dim[0] = 0;
  nothing(p);
  p = slots();
  for (fa3_tensor* t : {&p.k, &p.v, &p.q, &p.q_out, &p.slot_mapping, &p.rotary_positions}) t->dim[0] = 0;
  nothing(p);
  p = pages();
  for (fa3_tensor* t : {&p.k, &p.v, &p.k_cache, &p.v_cache, &p.q, &p.q_out}) t->dim[2] = 0;  // no heads
  nothing(p);
  p = pages();
  p.rotary_cos.dim[0] = p.rotary_sin.dim[0] = 0;  // no row has a position
  nothing(p);
}

}  // namespace fa3::test
