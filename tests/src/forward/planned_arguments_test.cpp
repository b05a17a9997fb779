// The rules of the header about varlen sequences, pages, windows and sinks.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <initializer_list>
#include <string>

#include "../planned_calls.h"
#include "../validated.h"

namespace fa3::test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr int32_t least = INT32_MIN, most = INT32_MAX;

void rows_of_k(P& p, int64_t rows) { p.k.dim[0] = p.v.dim[0] = rows; }
void rows_of_q(P& p, int64_t rows) { p.q.dim[0] = p.o.dim[0] = p.lse.dim[1] = rows; }

// Refused whatever the pointers are: of a call with plain tensors,
const Change bad_batched[] = {
    {"mask is 99, must be a fa3_mask", invalid, [](P& p) { p.mask = 99; }},
    {"window_left is 1, must be 0: mask is neither FA3_MASK_WINDOW nor FA3_MASK_CHUNK", invalid,
     [](P& p) { p.window_left = 1; }},
    {"window_right is -1, must be 0: mask is neither", invalid,
     [](P& p) { p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.window_right = -1; }},
    {"window_left is -2, must be at least -1", invalid, [](P& p) { window(p, -2, 0); }},
    {"window_right is -2147483648, must be at least -1", invalid, [](P& p) { window(p, 0, least); }},
    {"window_left is 0, must be at least 1: a chunk has so many positions", invalid, [](P& p) { chunk(p, 0, 0); }},
    {"window_left is -1, must be at least 1", invalid, [](P& p) { chunk(p, -1, 0); }},
    {"window_right is 1, must be 0 or -1 with FA3_MASK_CHUNK", invalid, [](P& p) { chunk(p, 4, 1); }},
    {"window_right is -2, must be 0 or -1", invalid, [](P& p) { chunk(p, 4, -2); }},
    {"max_seqlen_q is 2, must be 0 or q.dim[1], which is 3, without cu_seqlens_q", invalid,
     [](P& p) { p.max_seqlen_q = 2; }},
    {"max_seqlen_q is -3, must be 0 or", invalid, [](P& p) { p.max_seqlen_q = -3; }},
    {"max_seqlen_k is 6, must be from 0 to k.dim[1], which is 5", invalid, [](P& p) { p.max_seqlen_k = 6; }},
    {"max_seqlen_k is -1, must be from 0", invalid, [](P& p) { p.max_seqlen_k = -1; }},
    {"sinks.dtype is bf16, must be fp32", invalid, [](P& p) { p.sinks = tensor(far_away(9), FA3_DTYPE_BF16, {4}); }},
    {"sinks.rank is 2, must be 1", invalid, [](P& p) { p.sinks = tensor(far_away(9), FA3_DTYPE_FP32, {4, 1}); }},
    {"sinks.dim[0] is 2, must be the query heads, 4", invalid,
     [](P& p) { p.sinks = tensor(far_away(9), FA3_DTYPE_FP32, {2}); }},
    {"sinks.stride[0] is -1, must be >= 0", invalid,
     [](P& p) { p.sinks = tensor(far_away(9), FA3_DTYPE_FP32, {4}), p.sinks.stride[0] = -1; }},
    {"seqused_q.dim[0] is 3, must be q.dim[0], 2", invalid, [](P& p) { p.seqused_q = lengths_at(9, 3); }},
    {"cu_seqlens_k.dim[0] is 2, must be q.dim[0] + 1, 3", invalid,
     [](P& p) {
       p.cu_seqlens_k = lengths_at(9, 2), p.max_seqlen_k = 4;
       p.k = p.v = tensor(far_away(2), FA3_DTYPE_BF16, {7, 2, 16});
     }},
    {"page_table.dim[0] is 1, must be q.dim[0], 2", invalid,
     [](P& p) { p.page_table = tensor(far_away(9), FA3_DTYPE_INT32, {1, 4}); }},
    {"k.dim[1] (sequence length) is 1073741823; with sinks it is at most 1073739776", unsupported,
     [](P& p) { p.sinks = tensor(far_away(9), FA3_DTYPE_FP32, {4}), p.k.dim[1] = p.v.dim[1] = (1 << 30) - 1; }},
    {"q.dim[1] (sequence length) is 1073739777; with FA3_FLAG_BATCH_INVARIANT it is at most 1073739776", unsupported,
     [](P& p) {
       p.flags = FA3_FLAG_BATCH_INVARIANT, p.q.dim[1] = p.o.dim[1] = p.lse.dim[2] = (1 << 30) - 2047;
     }},
};

// of one with packed queries and keys,
const Change bad_packed[] = {
    {"q.rank is 4, must be 3", invalid, [](P& p) { p.q.rank = 4; }},
    {"k.rank is 4, must be 3", invalid, [](P& p) { p.k.rank = 4; }},
    {"v.rank is 2, must be 3", invalid, [](P& p) { p.v.rank = 2; }},
    {"o.rank is 4, must be 3", invalid, [](P& p) { p.o.rank = 4; }},
    {"lse.rank is 3, must be 2", invalid, [](P& p) { p.lse.rank = 3; }},
    {"q.rank is 3, must be 4", invalid, [](P& p) { p.cu_seqlens_q = {}; }},
    {"k.rank is 3, must be 4", invalid, [](P& p) { p.cu_seqlens_k = {}; }},
    {"q.dim[0] is -1, must be from 0", invalid, [](P& p) { p.q.dim[0] = -1; }},
    {"q.dim[2] (head_dim) is 12, must be a multiple of 8", invalid, [](P& p) { p.q.dim[2] = 12; }},
    {"v.dim[2] (head_dim_v) is 520; the largest", unsupported, [](P& p) { p.v.dim[2] = 520; }},
    {"o.dim[0] is 11, must equal q.dim[0], which is 12", invalid, [](P& p) { p.o.dim[0] = 11; }},
    {"o.dim[1] is 2, must equal q.dim[1], which is 4", invalid, [](P& p) { p.o.dim[1] = 2; }},
    {"o.dim[2] is 8, must equal v.dim[2], which is 16", invalid, [](P& p) { p.o.dim[2] = 8; }},
    {"v.dim[0] is 16, must equal k.dim[0], which is 17", invalid, [](P& p) { p.v.dim[0] = 16; }},
    {"v.dim[1] is 1, must equal k.dim[1], which is 2", invalid, [](P& p) { p.v.dim[1] = 1; }},
    {"k.dim[2] is 24, must equal q.dim[2], which is 16", invalid, [](P& p) { p.k.dim[2] = 24; }},
    {"k.dim[1] is 3, must divide the query heads, q.dim[1], which is 4", invalid,
     [](P& p) { p.k.dim[1] = p.v.dim[1] = 3; }},
    {"lse.dim[0] is 12, must equal q.dim[1], which is 4", invalid, [](P& p) { p.lse.dim[0] = 12; }},
    {"lse.dim[1] is 4, must equal q.dim[0], which is 12", invalid, [](P& p) { p.lse.dim[1] = 4; }},
    {"q.stride[0] is 4, must be a multiple of 8", invalid, [](P& p) { p.q.stride[0] = 4; }},
    {"k.stride[2] is 2, must be 1", invalid, [](P& p) { p.k.stride[2] = 2; }},
    {"v.stride[1] is -16, must be >= 0", invalid, [](P& p) { p.v.stride[1] = -16; }},
    {"o.stride[0] is 0, must be > 0", invalid, [](P& p) { p.o.stride[0] = 0; }},
    {"o.stride[0] is 48: elements of an output may overlap", invalid, [](P& p) { p.o.stride[0] = 48; }},
    {"k.dim[0] * k.stride[0] is 17 * 68719476736 elements", invalid, [](P& p) { p.k.stride[0] = int64_t{1} << 36; }},

    {"cu_seqlens_q.dtype is fp32, must be int32", invalid, [](P& p) { p.cu_seqlens_q.dtype = FA3_DTYPE_FP32; }},
    {"cu_seqlens_k.dtype is 99, must be a fa3_dtype", invalid, [](P& p) { p.cu_seqlens_k.dtype = 99; }},
    {"cu_seqlens_q.rank is 2, must be 1", invalid, [](P& p) { p.cu_seqlens_q.rank = 2; }},
    {"cu_seqlens_k.rank is -1, must be 1", invalid, [](P& p) { p.cu_seqlens_k.rank = -1; }},
    {"cu_seqlens_q.dim[0] is 0, must be the number of sequences and 1", invalid,
     [](P& p) { p.cu_seqlens_q.dim[0] = 0; }},
    {"cu_seqlens_q.dim[0] is -4, must be from 0", invalid, [](P& p) { p.cu_seqlens_q.dim[0] = -4; }},
    {"cu_seqlens_k.dim[0] is 3, must be cu_seqlens_q.dim[0], 4", invalid, [](P& p) { p.cu_seqlens_k.dim[0] = 3; }},
    {"cu_seqlens_q.stride[0] is 2, must be 1", invalid, [](P& p) { p.cu_seqlens_q.stride[0] = 2; }},
    {"cu_seqlens_k.stride[0] is 0, must be 1", invalid, [](P& p) { p.cu_seqlens_k.stride[0] = 0; }},
    {"leftpad_k.dim[0] is 4, must be cu_seqlens_q.dim[0] - 1, 3", invalid,
     [](P& p) { p.leftpad_k = lengths_at(9, 4); }},
    {"max_seqlen_q is 0, must be at least 1 with cu_seqlens_q", invalid, [](P& p) { p.max_seqlen_q = 0; }},
    {"max_seqlen_q is -2147483648, must be at least 1", invalid, [](P& p) { p.max_seqlen_q = least; }},
    {"max_seqlen_k is 0, must be at least 1 with cu_seqlens_k", invalid, [](P& p) { p.max_seqlen_k = 0; }},
    {"max_seqlen_k is -9, must be at least 1", invalid, [](P& p) { p.max_seqlen_k = -9; }},
    {"q.dim[0] (rows) is 1073739777; with cu_seqlens_q it is at most 1073739776", unsupported,
     [](P& p) { rows_of_q(p, (1 << 30) - 2047), p.lse.stride[0] = int64_t{1} << 30; }},
    {"k.dim[0] (rows) is 2147483647; with cu_seqlens_q it is", unsupported, [](P& p) { rows_of_k(p, most); }},
    {"cache_batch_idx and cu_seqlens_k cannot be had together", unsupported,
     [](P& p) { p.cache_batch_idx = lengths_at(9, 3); }},
    {"page_table and cu_seqlens_k cannot be had together", unsupported,
     [](P& p) { p.page_table = tensor(far_away(9), FA3_DTYPE_INT32, {3, 4}); }},
};

// of one with pages,
const Change bad_paged[] = {
    {"k.rank is 3, must be 4", invalid, [](P& p) { p.k.rank = 3; }},
    {"v.dim[0] is 5, must equal k.dim[0], which is 6", invalid, [](P& p) { p.v.dim[0] = 5; }},
    {"v.dim[1] is 7, must equal k.dim[1], which is 8", invalid, [](P& p) { p.v.dim[1] = 7; }},
    {"o.dim[2] is 8, must equal v.dim[3], which is 16", invalid, [](P& p) { p.o.dim[2] = 8; }},
    {"k.dim[3] is 24, must equal q.dim[2], which is 16", invalid, [](P& p) { p.k.dim[3] = 24; }},
    {"k.dim[2] is 3, must divide the query heads, q.dim[1], which is 4", invalid,
     [](P& p) { p.k.dim[2] = p.v.dim[2] = 3; }},
    {"page_table.dtype is fp32, must be int32", invalid, [](P& p) { p.page_table.dtype = FA3_DTYPE_FP32; }},
    {"page_table.dtype is e5m2", unsupported, [](P& p) { p.page_table.dtype = FA3_DTYPE_E5M2; }},
    {"page_table.rank is 1, must be 2", invalid, [](P& p) { p.page_table.rank = 1; }},
    {"page_table.dim[0] is 4, must be cu_seqlens_q.dim[0] - 1, 3", invalid, [](P& p) { p.page_table.dim[0] = 4; }},
    {"page_table.dim[1] is -1, must be from 0", invalid, [](P& p) { p.page_table.dim[1] = -1; }},
    {"page_table.stride[1] is 2, must be 1", invalid, [](P& p) { p.page_table.stride[1] = 2; }},
    {"page_table.stride[1] is 0, must be 1", invalid, [](P& p) { p.page_table.stride[1] = 0; }},
    {"page_table.stride[0] is -4, must be >= 0", invalid, [](P& p) { p.page_table.stride[0] = -4; }},
    {"page_table.stride[0] is 2147483648, must be at most 2147483647", invalid,
     [](P& p) { p.page_table.stride[0] = int64_t{1} << 31; }},
    {"page_table.dim[0] * page_table.stride[0]", invalid, [](P& p) { p.page_table.stride[0] = int64_t{1} << 38; }},
    {"seqused_k.dtype is bf16, must be int32", invalid, [](P& p) { p.seqused_k.dtype = FA3_DTYPE_BF16; }},
    {"seqused_k.dim[0] is 4, must be cu_seqlens_q.dim[0] - 1, 3", invalid, [](P& p) { p.seqused_k.dim[0] = 4; }},
    {"max_seqlen_k is 33, must be from 0 to page_table.dim[1] * k.dim[1], which is 32", invalid,
     [](P& p) { p.max_seqlen_k = 33; }},
    {"max_seqlen_k is -1, must be from 0", invalid, [](P& p) { p.max_seqlen_k = -1; }},
    {"page_table.dim[1] * k.dim[1] (sequence length) is 4294967296; with cu_seqlens_q it is at most", unsupported,
     [](P& p) { p.k.dim[1] = p.v.dim[1] = 1 << 30; }},
    {"page_table and leftpad_k cannot be had together", unsupported, [](P& p) { p.leftpad_k = lengths_at(10, 3); }},
    {"page_table and cache_batch_idx cannot be had together", unsupported,
     [](P& p) { p.cache_batch_idx = lengths_at(10, 3); }},
};

// and of one with a cache.
const Change bad_cached[] = {
    {"k.dim[0] is 5, must equal q.dim[0], which is 3", invalid, [](P& p) { p.cache_batch_idx = {}; }},
    {"v.dim[0] is 4, must equal k.dim[0], which is 5", invalid, [](P& p) { p.v.dim[0] = 4; }},
    {"k.dim[0] is 5, must be cu_seqlens_q.dim[0] - 1, 3", invalid,
     [](P& p) {
       const P packed = imaginary_packed();
       p.q = packed.q, p.o = packed.o, p.lse = packed.lse, p.cu_seqlens_q = packed.cu_seqlens_q, p.max_seqlen_q = 7;
       p.cache_batch_idx = {};
     }},
    {"seqused_q.rank is 3, must be 1", invalid, [](P& p) { p.seqused_q.rank = 3; }},
    {"seqused_q.stride[0] is -1, must be >= 0", invalid, [](P& p) { p.seqused_q.stride[0] = -1; }},
    {"leftpad_k.stride[0] is 2, must be 1", invalid, [](P& p) { p.leftpad_k.stride[0] = 2; }},
    {"cache_batch_idx.dtype is e4m3, must be int32", invalid, [](P& p) { p.cache_batch_idx.dtype = FA3_DTYPE_E4M3; }},
    {"cache_batch_idx.dim[0] is 5, must be q.dim[0], 3", invalid, [](P& p) { p.cache_batch_idx.dim[0] = 5; }},
};

// Wrong in where the tensors lie: of a call that has all that can be had together with a cache, and with pages.
const Change bad_pointers_cached[] = {
    {"seqused_q.data is NULL", invalid, [](P& p) { p.seqused_q.data = nullptr; }},
    {"seqused_k.data is NULL", invalid, [](P& p) { p.seqused_k.data = nullptr; }},
    {"leftpad_k.data is NULL", invalid, [](P& p) { p.leftpad_k.data = nullptr; }},
    {"cache_batch_idx.data is NULL", invalid, [](P& p) { p.cache_batch_idx.data = nullptr; }},
    {"sinks.data is NULL", invalid, [](P& p) { p.sinks.data = nullptr; }},
    {"must be aligned to 4 bytes", invalid, [](P& p) { move(p.leftpad_k, 2); }},
    {"sinks.data is 0x", invalid, [](P& p) { move(p.sinks, 1); }},
    {"seqused_k reaches beyond the address space", invalid,
     [](P& p) { p.seqused_k.data = reinterpret_cast<void*>(UINTPTR_MAX - 7); }},
    {"o may overlap seqused_q", invalid, [](P& p) { p.seqused_q.data = p.o.data; }},
    {"o may overlap seqused_k", invalid, [](P& p) { p.seqused_k.data = p.o.data, move(p.seqused_k, -8); }},
    {"lse may overlap leftpad_k", invalid, [](P& p) { p.leftpad_k.data = p.lse.data; }},
    {"o may overlap cache_batch_idx", invalid,
     [](P& p) { p.cache_batch_idx.data = p.o.data, move(p.cache_batch_idx, 3 * 2 * 4 * 16 * 2 - 4); }},
    {"lse may overlap sinks", invalid, [](P& p) { p.sinks.data = p.lse.data; }},
};
const Change bad_pointers_packed[] = {
    {"q.data is NULL", invalid, [](P& p) { p.q.data = nullptr; }},
    {"cu_seqlens_q.data is NULL", invalid, [](P& p) { p.cu_seqlens_q.data = nullptr; }},
    {"cu_seqlens_k.data is NULL", invalid, [](P& p) { p.cu_seqlens_k.data = nullptr; }},
    {"o may overlap q", invalid, [](P& p) { p.o.data = p.q.data, move(p.o, 12 * 4 * 16 * 2 - 16); }},
    {"o may overlap cu_seqlens_q", invalid, [](P& p) { p.cu_seqlens_q.data = p.o.data, move(p.cu_seqlens_q, -12); }},
    {"lse may overlap cu_seqlens_k", invalid,
     [](P& p) { p.cu_seqlens_k.data = p.lse.data, move(p.cu_seqlens_k, -12); }},
    {"lse may overlap cu_seqlens_k", invalid,
     [](P& p) { p.cu_seqlens_k.data = p.lse.data, move(p.cu_seqlens_k, 4 * 12 * 4 - 4); }},
};
const Change bad_pointers_paged[] = {
    {"page_table.data is NULL", invalid, [](P& p) { p.page_table.data = nullptr; }},
    {"page_table.data is 0x", invalid, [](P& p) { move(p.page_table, 2); }},
    {"o may overlap page_table", invalid, [](P& p) { p.page_table.data = p.o.data, move(p.page_table, -44); }},
    {"lse may overlap page_table", invalid, [](P& p) { p.page_table.data = p.lse.data; }},
};
// The reference has no schedule.
const Change bad_schedules[] = {
    {"schedule is NULL, and schedule_bytes is 64", invalid, [](P& p) { p.schedule_bytes = 64; }},
    {"schedule is 0x", invalid, [](P& p) { p.schedule = static_cast<char*>(far_away(20)) + 8, p.schedule_bytes = 64; }},
    {"schedule reaches beyond the address space", invalid,
     [](P& p) { p.schedule = reinterpret_cast<void*>(UINTPTR_MAX - 15), p.schedule_bytes = 64; }},
    {"schedule reaches beyond the address space", invalid,
     [](P& p) { p.schedule = far_away(20), p.schedule_bytes = SIZE_MAX / 2 + 1; }},
    {"o may overlap schedule", invalid,
     [](P& p) { p.schedule = static_cast<char*>(p.o.data) - 64, p.schedule_bytes = 65; }},
    {"lse may overlap schedule", invalid, [](P& p) { p.schedule = p.lse.data, p.schedule_bytes = 1; }},
};

// What is unusual, and right.
const Change good_packed[] = {
    {"packed", FA3_OK, [](P&) {}},
    {"no lse", FA3_OK, [](P& p) { p.lse = {}; }},
    {"rows with gaps, heads before rows", FA3_OK,
     [](P& p) { set_strides(p.o, {24, 1024, 1}), set_strides(p.k, {64, 24, 1}), set_strides(p.lse, {1, 4}); }},
    {"slices of one packed buffer", FA3_OK,
     [](P& p) {
       rows_of_k(p, 12);
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o}) set_strides(*t, {192, 16, 1}), t->data = p.q.data;
       move(p.k, 4 * 32), move(p.v, 6 * 32), move(p.o, 8 * 32);
     }},
    {"lengths of all kinds", FA3_OK,
     [](P& p) { p.seqused_q = lengths_at(8, 3), p.seqused_k = lengths_at(9, 3), p.leftpad_k = lengths_at(10, 3); }},
    {"lengths that share their numbers", FA3_OK, [](P& p) { p.cu_seqlens_k.data = p.cu_seqlens_q.data; }},
    {"no sequence", FA3_OK,
     [](P& p) {
       p.cu_seqlens_q.dim[0] = p.cu_seqlens_k.dim[0] = 1, p.cu_seqlens_q.stride[0] = -7;
       p.seqused_q = tensor(nullptr, FA3_DTYPE_INT32, {0});
     }},
    {"no rows", FA3_OK,
     [](P& p) {
       rows_of_q(p, 0), rows_of_k(p, 0);
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o}) t->data = nullptr;
     }},
    {"no heads", FA3_OK,
     [](P& p) {
       p.q.dim[1] = p.k.dim[1] = p.v.dim[1] = p.o.dim[1] = p.lse.dim[0] = 0;
       p.sinks = tensor(nullptr, FA3_DTYPE_FP32, {0});
     }},
    {"maxima beyond the rows", FA3_OK, [](P& p) { p.max_seqlen_q = p.max_seqlen_k = most; }},
    {"batched keys of packed queries", FA3_OK,
     [](P& p) {
       p.k = p.v = tensor(far_away(2), FA3_DTYPE_BF16, {3, 5, 2, 16}), p.cu_seqlens_k = {}, p.max_seqlen_k = 4;
     }},
    {"packed keys of batched queries", FA3_OK,
     [](P& p) {
       const P batched = imaginary({.batch = 3});
       p.q = batched.q, p.o = batched.o, p.lse = batched.lse, p.cu_seqlens_q = {}, p.max_seqlen_q = 3;
     }},
    {"a sink that repeats", FA3_OK,
     [](P& p) { p.sinks = tensor(far_away(9), FA3_DTYPE_FP32, {4}), p.sinks.stride[0] = 0; }},
    {"sinks far apart", FA3_OK,
     [](P& p) { p.sinks = tensor(far_away(9), FA3_DTYPE_FP32, {4}), p.sinks.stride[0] = int64_t{1} << 33; }},
    {"a schedule", FA3_OK, [](P& p) { p.schedule = far_away(20), p.schedule_bytes = 4096; }},
};
const Change good_paged[] = {
    {"pages", FA3_OK, [](P&) {}},
    {"a table with gaps", FA3_OK, [](P& p) { p.page_table.stride[0] = most; }},
    {"a table that repeats", FA3_OK, [](P& p) { p.page_table.stride[0] = 0; }},
    {"a bound", FA3_OK, [](P& p) { p.max_seqlen_k = 1; }},
    {"no lengths", FA3_OK, [](P& p) { p.seqused_k = {}; }},
    {"no pages", FA3_OK, [](P& p) { rows_of_k(p, 0), p.k.data = p.v.data = nullptr; }},
    {"pages without rows", FA3_OK, [](P& p) { p.k.dim[1] = p.v.dim[1] = 0, p.k.data = p.v.data = nullptr; }},
    {"a table without pages", FA3_OK, [](P& p) { p.page_table = tensor(nullptr, FA3_DTYPE_INT32, {3, 0}); }},
    {"pages of one row", FA3_OK, [](P& p) { p.k.dim[1] = p.v.dim[1] = 1, p.k.stride[1] = 5; }},
    {"a table too large for its bound", FA3_OK, [](P& p) { p.k.dim[1] = p.v.dim[1] = 1 << 30, p.max_seqlen_k = 9; }},
};
const Change good_cached[] = {
    {"a cache", FA3_OK, [](P&) {}},
    {"the largest that q can be", FA3_OK, [](P& p) { p.max_seqlen_q = 2; }},
    {"a smaller cache", FA3_OK, [](P& p) { p.k.dim[0] = p.v.dim[0] = 1; }},
    {"no cache", FA3_OK, [](P& p) { p.k.dim[0] = p.v.dim[0] = 0, p.k.data = p.v.data = nullptr; }},
};

P batched() { return imaginary(); }

template <int count>
void accept_all(P (*right)(), const Change (&changes)[count]) {
  for (const Change& change : changes) {
    INFO(change.name);
    P p = right();
    change.apply(p);
    for (const Rules rules : {Rules::device, Rules::shapes, Rules::reference}) accept(p, rules);
    // Where no pointer is looked at, none need be there.
    for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.sinks, &p.cu_seqlens_q, &p.cu_seqlens_k, &p.seqused_q,
                          &p.seqused_k, &p.leftpad_k, &p.page_table, &p.cache_batch_idx})
      t->data = nullptr;
    p.schedule = nullptr;
    accept(p, Rules::shapes);
  }
}

}  // namespace

TEST_CASE("bad lengths, pages, windows and sinks are refused", "[planned]") {
  constexpr Rules device = Rules::device, shapes = Rules::shapes, reference = Rules::reference;
  refuse_all(batched, bad_batched, {device, shapes, reference});
  // Strides and head dimensions that the kernels do not take, the reference may.
  refuse_all(imaginary_packed, bad_packed, {device, shapes});
  refuse_all(imaginary_paged, bad_paged, {device, shapes, reference});
  refuse_all(imaginary_cached, bad_cached, {device, shapes, reference});
  refuse_all(imaginary_cached, bad_pointers_cached, {device, reference});
  refuse_all(imaginary_packed, bad_pointers_packed, {device, reference});
  refuse_all(imaginary_paged, bad_pointers_paged, {device, reference});
  refuse_all(imaginary_packed, bad_schedules, {device});
}

TEST_CASE("unusual lengths, pages and sinks that are right", "[planned]") {
  accept_all(imaginary_packed, good_packed);
  accept_all(imaginary_paged, good_paged);
  accept_all(imaginary_cached, good_cached);
}

TEST_CASE("the reference looks at no schedule", "[planned]") {
  for (const Change& change : bad_schedules) {
    P p = imaginary_packed();
    change.apply(p);
    const ForwardProblem problem = accept(p, Rules::reference);
    CHECK((problem.schedule == nullptr && problem.schedule_bytes == 0));
  }
}

}  // namespace fa3::test
