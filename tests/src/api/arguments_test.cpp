// Every rule of the header about arguments: a bad one yields its status and a message that names it, and nothing is
// written.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "../change.h"
#include "../row_call.h"

namespace fa3::test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr int64_t huge = std::numeric_limits<int64_t>::max(), lowest = std::numeric_limits<int64_t>::min();
// Packed again, after its dims were changed.
void pack(P& p) {
  for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse})
    if (fa3_tensor_pack(t) != FA3_OK) std::abort();
}

// Wrong in themselves: refused whatever the pointers are.
const Change bad_shapes[] = {
    {"q.rank is 3, must be 4", invalid, [](P& p) { p.q.rank = 3; }},
    {"q.rank is 5, must be 4", invalid, [](P& p) { p.q.rank = 5; }},
    {"k.rank is -1", invalid, [](P& p) { p.k.rank = -1; }},
    {"v.rank is 2147483647", invalid, [](P& p) { p.v.rank = std::numeric_limits<int32_t>::max(); }},
    {"o.rank is 0", invalid, [](P& p) { p.o.rank = 0; }},

    {"q.dtype is 0", invalid, [](P& p) { p.q.dtype = FA3_DTYPE_NONE; }},
    {"q.dtype is 99", invalid, [](P& p) { p.q.dtype = 99; }},
    {"v.dtype is int32, which only lengths, page numbers, slots and positions have", invalid,
     [](P& p) { p.v.dtype = FA3_DTYPE_INT32; }},
    {"k.dtype is -1", invalid, [](P& p) { p.k.dtype = -1; }},
    {"k.dtype is fp16, must be bf16 as q's", invalid, [](P& p) { p.k.dtype = FA3_DTYPE_FP16; }},
    {"v.dtype is fp16, must be bf16 as q's", invalid, [](P& p) { p.v.dtype = FA3_DTYPE_FP16; }},
    {"o.dtype is fp16, must be bf16 as q's", invalid, [](P& p) { p.o.dtype = FA3_DTYPE_FP16; }},
    {"q.dtype is fp32", unsupported, [](P& p) { p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = FA3_DTYPE_FP32; }},
    {"o.dtype is fp32, which cannot be had together with softcap", unsupported,
     [](P& p) { p.o.dtype = FA3_DTYPE_FP32, p.softcap = 20; }},
    {"o.dtype is fp32, which cannot be had together with k and v of e4m3", unsupported,
     [](P& p) {
       p = imaginary_e4m3({2, 3, 5, 4, 2, 64}), p.q.dtype = FA3_DTYPE_BF16, p.q_scale = {};
       p.o.dtype = FA3_DTYPE_FP32;
     }},
    {"o.dtype is fp32, which cannot be had together with head_dim above 256", unsupported,
     [](P& p) { p.o.dtype = FA3_DTYPE_FP32, p.q.dim[3] = 264; }},
    {"o.stride[1] is 62, must be a multiple of 4", invalid,
     [](P& p) { p.o.dtype = FA3_DTYPE_FP32, set_strides(p.o, {192, 62, 16, 1}); }},
    {"o.dtype is fp32, which cannot be had together with q of e4m3", unsupported,
     [](P& p) { p = imaginary_e4m3({2, 3, 5, 4, 2, 64}), p.o.dtype = FA3_DTYPE_FP32; }},
    {"q.dim[0] is -1", invalid, [](P& p) { p.q.dim[0] = -1; }},
    {"q.dim[1] is -9223372036854775808", invalid, [](P& p) { p.q.dim[1] = lowest; }},
    {"k.dim[1] is 2147483648, must be from 0 to 2147483647", invalid, [](P& p) { p.k.dim[1] = int64_t{1} << 31; }},
    {"o.dim[2] is 9223372036854775807", invalid, [](P& p) { p.o.dim[2] = huge; }},
    {"v.dim[3] is -8, must be from 0 to 2147483647", invalid, [](P& p) { p.v.dim[3] = -8; }},
    {"k.dim[0] is 3, must equal q.dim[0], which is 2", invalid, [](P& p) { p.k.dim[0] = 3; }},
    {"v.dim[0] is 3, must equal k.dim[0], which is 2", invalid, [](P& p) { p.v.dim[0] = 3; }},
    {"o.dim[0] is 0, must equal q.dim[0]", invalid, [](P& p) { p.o.dim[0] = 0; }},
    {"v.dim[1] is 6, must equal k.dim[1], which is 5", invalid, [](P& p) { p.v.dim[1] = 6; }},
    {"o.dim[1] is 4, must equal q.dim[1]", invalid, [](P& p) { p.o.dim[1] = 4; }},
    {"v.dim[2] is 4, must equal k.dim[2]", invalid, [](P& p) { p.v.dim[2] = 4; }},
    {"o.dim[2] is 2, must equal q.dim[2]", invalid, [](P& p) { p.o.dim[2] = 2; }},
    {"k.dim[3] is 8, must equal q.dim[3]", invalid, [](P& p) { p.k.dim[3] = 8; }},
    {"o.dim[3] is 16, must equal v.dim[3], which is 32", invalid, [](P& p) { p.v.dim[3] = 32; }},
    {"o.dim[3] is 24, must equal v.dim[3], which is 16", invalid, [](P& p) { p.o.dim[3] = 24; }},
    {"k.dim[2] is 3, must divide the query heads", invalid, [](P& p) { p.k.dim[2] = p.v.dim[2] = 3; }},
    {"k.dim[2] is 8, must divide", invalid, [](P& p) { p.k.dim[2] = p.v.dim[2] = 8; }},
    {"k.dim[2] is 0, must divide", invalid, [](P& p) { p.k.dim[2] = p.v.dim[2] = 0; }},

    {"q.dim[3] (head_dim) is 0", invalid, [](P& p) { p.q.dim[3] = p.k.dim[3] = p.v.dim[3] = p.o.dim[3] = 0; }},
    {"q.dim[3] (head_dim) is 12", invalid, [](P& p) { p.q.dim[3] = p.k.dim[3] = p.v.dim[3] = p.o.dim[3] = 12; }},
    {"q.dim[3] (head_dim) is 584; the largest supported is 576", unsupported,
     [](P& p) { p.q.dim[3] = p.k.dim[3] = p.v.dim[3] = p.o.dim[3] = 584; }},

    {"v.dim[3] (head_dim_v) is 0", invalid, [](P& p) { p.v.dim[3] = p.o.dim[3] = 0; }},
    {"v.dim[3] (head_dim_v) is 20, must be a multiple of 8", invalid, [](P& p) { p.v.dim[3] = p.o.dim[3] = 20; }},
    {"v.dim[3] (head_dim_v) is 520; the largest", unsupported, [](P& p) { p.v.dim[3] = p.o.dim[3] = 520; }},
    {"q.dim[3] (head_dim) is 584", unsupported, [](P& p) { p.q.dim[3] = 584; }},  // not that k's must be as large
    {"v.dim[3] (head_dim_v) is 520", unsupported, [](P& p) { p.v.dim[3] = 520; }},

    {"q.stride[3] is 2, must be 1", invalid, [](P& p) { set_strides(p.q, {384, 128, 32, 2}); }},
    {"k.stride[3] is 0, must be 1: rows are loaded whole, none repeats one element", invalid,
     [](P& p) { set_strides(p.k, {160, 32, 16, 0}); }},
    {"v.stride[3] is 0, must be 1", invalid, [](P& p) { set_strides(p.v, {0, 0, 0, 0}); }},
    {"v.stride[3] is -1, must be 1", invalid, [](P& p) { set_strides(p.v, {160, 32, 16, -1}); }},
    {"o.stride[3] is 0, must be 1", invalid, [](P& p) { set_strides(p.o, {192, 64, 16, 0}); }},
    {"o.stride[3] is 2, must be 1", invalid, [](P& p) { set_strides(p.o, {384, 128, 32, 2}); }},
    {"q.stride[2] is 20, must be a multiple of 8", invalid, [](P& p) { set_strides(p.q, {240, 80, 20, 1}); }},
    {"k.stride[1] is 36, must be a multiple of 8", invalid, [](P& p) { set_strides(p.k, {184, 36, 16, 1}); }},
    {"v.stride[0] is 161, must be a multiple of 8", invalid, [](P& p) { set_strides(p.v, {161, 32, 16, 1}); }},
    {"o.stride[0] is 196, must be a multiple of 8", invalid, [](P& p) { set_strides(p.o, {196, 64, 16, 1}); }},
    {"q.stride[1] is -64, must be >= 0", invalid, [](P& p) { set_strides(p.q, {192, -64, 16, 1}); }},
    {"o.stride[1] is -64, must be > 0", invalid, [](P& p) { set_strides(p.o, {192, -64, 16, 1}); }},
    {"o.stride[2] is 0, must be > 0", invalid, [](P& p) { set_strides(p.o, {192, 64, 0, 1}); }},
    {"o.stride[0] is 0, must be > 0", invalid, [](P& p) { set_strides(p.o, {0, 64, 16, 1}); }},
    {"o.stride[2] is 8: elements of an output may overlap", invalid, [](P& p) { set_strides(p.o, {192, 64, 8, 1}); }},
    {"o.stride[1] is 56: elements of an output may overlap", invalid, [](P& p) { set_strides(p.o, {192, 56, 16, 1}); }},
    {"o.stride[0] is 64: elements of an output may overlap", invalid, [](P& p) { set_strides(p.o, {64, 64, 16, 1}); }},
    {"q.dim[0] * q.stride[0]", invalid, [](P& p) { set_strides(p.q, {int64_t{1} << 38, 64, 16, 1}); }},
    {"k.dim[1] * k.stride[1]", invalid, [](P& p) { set_strides(p.k, {160, int64_t{1} << 37, 16, 1}); }},
    {"v.dim[0] * v.stride[0]", invalid, [](P& p) { set_strides(p.v, {huge - 7, 32, 16, 1}); }},
    {"o.dim[1] * o.stride[1]", invalid, [](P& p) { set_strides(p.o, {192, int64_t{1} << 62, 16, 1}); }},

    {"lse.rank is 4, must be 3", invalid, [](P& p) { p.lse.rank = 4; }},
    {"lse.dtype is bf16, must be fp32", invalid, [](P& p) { p.lse.dtype = FA3_DTYPE_BF16; }},
    {"lse.dtype is 99", invalid, [](P& p) { p.lse.dtype = 99; }},
    {"lse.dim[0] is 1, must equal q.dim[0]", invalid, [](P& p) { p.lse.dim[0] = 1; }},
    {"lse.dim[1] is 3, must equal q.dim[2]", invalid, [](P& p) { p.lse.dim[1] = 3; }},
    {"lse.dim[2] is 4, must equal q.dim[1]", invalid, [](P& p) { p.lse.dim[2] = 4; }},
    {"lse.stride[2] is 0, must be > 0", invalid, [](P& p) { set_strides(p.lse, {12, 3, 0}); }},
    {"lse.stride[1] is -3, must be > 0", invalid, [](P& p) { set_strides(p.lse, {12, -3, 1}); }},
    {"lse.stride[2] is -1, must be > 0", invalid, [](P& p) { set_strides(p.lse, {12, 3, -1}); }},
    {"lse.stride[1] is 2: elements of an output may overlap", invalid, [](P& p) { set_strides(p.lse, {12, 2, 1}); }},
    {"lse.dim[0] * lse.stride[0]", invalid, [](P& p) { set_strides(p.lse, {int64_t{1} << 37, 3, 1}); }},

    {"mask is 99", invalid, [](P& p) { p.mask = 99; }},
    {"mask is -1", invalid, [](P& p) { p.mask = -1; }},
    {"flags is 0x8", invalid, [](P& p) { p.flags = 8; }},
    {"flags is 0x8000000000000001", invalid, [](P& p) { p.flags = FA3_FLAG_DETERMINISTIC | uint64_t{1} << 63; }},
    {"softmax_scale is -1", invalid, [](P& p) { p.softmax_scale = -1; }},
    {"softmax_scale is nan", invalid, [](P& p) { p.softmax_scale = NAN; }},
    {"softmax_scale is inf", invalid, [](P& p) { p.softmax_scale = INFINITY; }},
    {"softmax_scale is 3e+38", invalid, [](P& p) { p.softmax_scale = 3e38f; }},
};

// Right, but beyond what the kernels count. Such tensors do not fit into a test's memory.
const Change too_large[] = {
    {"k.dim[1] (sequence length) is 2147483647; the kernels take up to 2147482623", unsupported,
     [](P& p) { p.k.dim[1] = p.v.dim[1] = 2147483647; }},
    {"q.dim[1] (sequence length) is 2147483647; the kernels take up to 2147482623", unsupported,
     [](P& p) { p.q.dim[1] = p.o.dim[1] = p.lse.dim[2] = 2147483647, pack(p); }},
    {"q.dim[0] * q.dim[2] * (blocks of 256 rows in q.dim[1]) is 65536 * 32768 * 1; the kernels count up to 2147418111 "
     "tiles",
     unsupported,
     [](P& p) {
       p.q.dim[0] = p.k.dim[0] = p.v.dim[0] = p.o.dim[0] = p.lse.dim[0] = 1 << 16;
       p.q.dim[2] = p.k.dim[2] = p.v.dim[2] = p.o.dim[2] = p.lse.dim[1] = 1 << 15;
       pack(p);
     }},
};

// Wrong in where the tensors lie.
const Change bad_pointers[] = {
    {"q.data is NULL", invalid, [](P& p) { p.q.data = nullptr; }},
    {"k.data is NULL", invalid, [](P& p) { p.k.data = nullptr; }},
    {"v.data is NULL", invalid, [](P& p) { p.v.data = nullptr; }},
    {"o.data is NULL", invalid, [](P& p) { p.o.data = nullptr; }},
    {"must be aligned to 16 bytes", invalid, [](P& p) { move(p.q, 8); }},
    {"k.data is 0x", invalid, [](P& p) { move(p.k, 2); }},
    {"v.data is 0x", invalid, [](P& p) { move(p.v, 15); }},
    {"o.data is 0x", invalid, [](P& p) { move(p.o, 8); }},
    {"must be aligned to 4 bytes", invalid, [](P& p) { move(p.lse, 2); }},
    {"lse.data is 0x", invalid, [](P& p) { move(p.lse, 1); }},
    {"v reaches beyond the address space", invalid, [](P& p) { p.v.data = reinterpret_cast<void*>(UINTPTR_MAX - 63); }},
    {"o may overlap q", invalid, [](P& p) { p.o.data = p.q.data; }},
    {"o may overlap q", invalid, [](P& p) { p.o.data = p.q.data, move(p.o, 2 * 3 * 4 * 16 * 2 - 16); }},
    {"o may overlap k", invalid, [](P& p) { p.k.data = p.o.data; }},
    {"o may overlap v", invalid, [](P& p) { p.v.data = p.o.data, move(p.v, 16); }},
    {"o may overlap lse", invalid, [](P& p) { p.lse.data = p.o.data, move(p.lse, 4); }},
    {"lse may overlap q", invalid, [](P& p) { p.lse.data = p.q.data; }},
    {"lse may overlap q", invalid, [](P& p) { p.lse.data = p.q.data, move(p.lse, -4 * (2 * 3 * 4 - 1)); }},
    {"lse may overlap v", invalid, [](P& p) { p.lse.data = p.v.data, move(p.lse, 316); }},
};

// What is unusual, and right.
const Change good[] = {
    {"packed", FA3_OK, [](P&) {}},
    {"fp16", FA3_OK, [](P& p) { p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = FA3_DTYPE_FP16; }},
    {"no lse", FA3_OK, [](P& p) { p.lse = {}; }},
    {"lse with garbage but no data", FA3_OK, [](P& p) { p.lse.data = nullptr, p.lse.rank = 77; }},
    {"heads before rows", FA3_OK, [](P& p) { set_strides(p.q, {192, 16, 48, 1}), set_strides(p.o, {192, 16, 48, 1}); }},
    {"batch innermost but one", FA3_OK, [](P& p) { set_strides(p.o, {16, 128, 32, 1}); }},
    {"padding", FA3_OK, [](P& p) { set_strides(p.o, {1 << 20, 1 << 10, 24, 1}); }},
    {"broadcast inputs", FA3_OK,
     [](P& p) { set_strides(p.q, {0, 0, 16, 1}), set_strides(p.k, {0, 32, 0, 1}), set_strides(p.v, {0, 0, 0, 1}); }},
    {"overlapping inputs", FA3_OK, [](P& p) { p.k.data = p.q.data, p.v.data = p.q.data; }},
    {"more than 2^31 elements apart", FA3_OK, [](P& p) { set_strides(p.o, {int64_t{1} << 37, 64, 16, 1}); }},
    {"lse row-major in rows", FA3_OK, [](P& p) { set_strides(p.lse, {12, 1, 4}); }},
    {"one head, any stride", FA3_OK,
     [](P& p) {
       p.q.dim[2] = p.k.dim[2] = p.v.dim[2] = p.o.dim[2] = p.lse.dim[1] = 1;
       set_strides(p.q, {48, 16, huge, 1}), set_strides(p.k, {80, 16, -3, 1}), set_strides(p.o, {48, 16, lowest, 1});
       set_strides(p.lse, {3, -17, 1});
     }},
    {"slices of one packed buffer", FA3_OK,
     [](P& p) {  // (batch, seqlen, q heads 4 + k heads 2 + v heads 2 + o heads 4, head_dim), as long as k and v
       p.q.dim[1] = p.o.dim[1] = p.lse.dim[2] = 5, pack(p);
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o}) set_strides(*t, {960, 192, 16, 1}), t->data = p.q.data;
       move(p.k, 4 * 32), move(p.v, 6 * 32), move(p.o, 8 * 32);
     }},
    {"an output's only row between two of k", FA3_OK,
     [](P& p) {
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse}) t->dim[0] = 1;
       p.q.dim[1] = p.o.dim[1] = p.lse.dim[2] = p.q.dim[2] = p.k.dim[2] = p.v.dim[2] = p.o.dim[2] = p.lse.dim[1] = 1,
       pack(p);
       set_strides(p.k, {320, 64, 16, 1}), p.o.data = p.k.data, move(p.o, 2 * (64 + 24));
     }},
    {"an input's only row between two of the output", FA3_OK,
     [](P& p) {
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse}) t->dim[0] = 1;
       p.k.dim[1] = p.v.dim[1] = p.q.dim[2] = p.k.dim[2] = p.v.dim[2] = p.o.dim[2] = p.lse.dim[1] = 1, pack(p);
       set_strides(p.o, {192, 64, 16, 1}), p.k.data = p.o.data, move(p.k, 2 * (64 + 24));
     }},
    {"no keys, no data", FA3_OK, [](P& p) { p.k.dim[1] = p.v.dim[1] = 0, p.k.data = p.v.data = nullptr; }},
    {"no batch, no data", FA3_OK,
     [](P& p) {
       for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse}) t->dim[0] = 0, t->data = nullptr;
     }},
    {"no heads", FA3_OK, [](P& p) { p.q.dim[2] = p.k.dim[2] = p.v.dim[2] = p.o.dim[2] = p.lse.dim[1] = 0; }},
    {"no query heads", FA3_OK, [](P& p) { p.q.dim[2] = p.o.dim[2] = p.lse.dim[1] = 0; }},
    {"no queries", FA3_OK, [](P& p) { p.q.dim[1] = p.o.dim[1] = p.lse.dim[2] = 0; }},
    {"deterministic", FA3_OK, [](P& p) { p.flags = FA3_FLAG_DETERMINISTIC; }},
    {"masks", FA3_OK, [](P& p) { p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT; }},
    {"negative zero scale", FA3_OK, [](P& p) { p.softmax_scale = -0.0f; }},
    {"tiny scale", FA3_OK, [](P& p) { p.softmax_scale = 1e-45f; }},
    {"head_dim 256", FA3_OK, [](P& p) { p.q.dim[3] = p.k.dim[3] = p.v.dim[3] = p.o.dim[3] = 256, pack(p); }},
    {"garbage beyond the rank", FA3_OK,
     [](P& p) { p.q.dim[4] = -5, p.q.stride[4] = 3, p.lse.dim[3] = 99, p.lse.dim[4] = -1; }},
};

// Real memory for every tensor, so that a call that should have been refused would be caught writing.
struct Buffers {
  Buffer q{4096}, k{4096}, v{4096}, o{4096}, lse{4096}, workspace{256};

  P params() { return describe({}, FA3_DTYPE_BF16, q.as(), k.as(), v.as(), o.as(), lse.as()); }
  bool untouched() const { return o.untouched() && lse.untouched() && workspace.untouched(); }
};

}  // namespace

TEST_CASE("bad shapes are refused by every function that takes them", "[arguments]") {
  for (const Change& change : bad_shapes) {
    Buffers buffers;
    P p = buffers.params();
    change.apply(p);
    const P before = p;
    expect(fa3_forward_check(&p), change);
    expect(fa3_forward(&p, buffers.workspace.as(), FA3_FORWARD_WORKSPACE_BYTES, nullptr), change);
    size_t bytes = 12345;
    expect(fa3_forward_workspace_size(&p, 132, &bytes), change);
    CHECK(bytes == 12345);
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    expect(fa3_forward_kernel_info(&p, 132, 0, &info), change);
    CHECK(info.name[0] == '\0');
    CHECK(buffers.untouched());
    CHECK(std::memcmp(&p, &before, sizeof p) == 0);
  }
}

TEST_CASE("what the kernels cannot count is unsupported", "[arguments]") {
  for (const Change& change : too_large) {
    P p = imaginary();
    change.apply(p);
    expect(fa3_forward_check(&p), change);
    expect(fa3_forward(&p, reinterpret_cast<void*>(64), FA3_FORWARD_WORKSPACE_BYTES, nullptr), change);
  }
}

TEST_CASE("bad pointers are refused before anything is touched", "[arguments]") {
  for (const Change& change : bad_pointers) {
    Buffers buffers;
    P p = buffers.params();
    change.apply(p);
    expect(fa3_forward_check(&p), change);
    expect(fa3_forward(&p, buffers.workspace.as(), FA3_FORWARD_WORKSPACE_BYTES, nullptr), change);
    CHECK(buffers.untouched());
    size_t bytes = 0;
    CHECK(fa3_forward_workspace_size(&p, 132, &bytes) == FA3_OK);
    CHECK(bytes == FA3_FORWARD_WORKSPACE_BYTES);
  }
}

TEST_CASE("unusual arguments that are right", "[arguments]") {
  for (const Change& change : good) {
    INFO(change.name);
    P p = imaginary();
    change.apply(p);
    CHECK(fa3_forward_check(&p) == FA3_OK);
    CHECK(std::string(fa3_last_error_message()) == "");
    size_t bytes = 0;
    CHECK(fa3_forward_workspace_size(&p, 132, &bytes) == FA3_OK);
    CHECK(bytes == FA3_FORWARD_WORKSPACE_BYTES);
  }
}

TEST_CASE("null pointers", "[arguments]") {
  P p = imaginary();
  size_t bytes = 0;
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  const auto names = [](const char* text) { return ContainsSubstring(text); };
  CHECK(fa3_forward_check(nullptr) == invalid);
  CHECK_THAT(fa3_last_error_message(), names("params is NULL"));
  CHECK(fa3_forward_workspace_size(nullptr, 132, &bytes) == invalid);
  CHECK_THAT(fa3_last_error_message(), names("params is NULL"));
  CHECK(fa3_forward_workspace_size(&p, 132, nullptr) == invalid);
  CHECK_THAT(fa3_last_error_message(), names("bytes is NULL"));
  CHECK(fa3_forward(nullptr, &p, 64, nullptr) == invalid);
  CHECK_THAT(fa3_last_error_message(), names("params is NULL"));
  CHECK(fa3_reference_forward(nullptr, 1) == invalid);
  CHECK_THAT(fa3_last_error_message(), names("params is NULL"));
  CHECK(fa3_forward_kernel_info(nullptr, 132, 0, &info) == invalid);
  CHECK_THAT(fa3_last_error_message(), names("params is NULL"));
  CHECK(fa3_forward_kernel_info(&p, 132, 0, nullptr) == invalid);
  CHECK_THAT(fa3_last_error_message(), names("info is NULL"));
  CHECK(fa3_kernel_info_at(0, nullptr) == invalid);
  CHECK_THAT(fa3_last_error_message(), names("info is NULL"));
}

TEST_CASE("packed strides", "[arguments]") {
  const auto strides = [](std::initializer_list<int64_t> dim) {
    fa3_tensor t = tensor(nullptr, 77, dim);
    return std::vector<int64_t>(t.stride, t.stride + t.rank);
  };
  using Strides = std::vector<int64_t>;
  CHECK(strides({7}) == Strides{1});
  CHECK(strides({2, 3, 4, 16}) == Strides{192, 64, 16, 1});
  CHECK(strides({5, 1, 2, 1, 3}) == Strides{6, 6, 3, 3, 1});
  CHECK(strides({2, 0, 4}) == Strides{4, 4, 1});
  CHECK(strides({huge, 1, 1}) == Strides{1, 1, 1});
  CHECK(strides({2, huge / 2}) == Strides{huge / 2, 1});
  fa3_tensor flat{nullptr, FA3_DTYPE_BF16, 2, {3, 4, 5}, {0, 0, 77}};
  CHECK(fa3_tensor_pack(&flat) == FA3_OK);
  CHECK((flat.stride[0] == 4 && flat.stride[1] == 1 && flat.stride[2] == 77));  // beyond the rank nothing is written
  CHECK(std::string(fa3_last_error_message()) == "");

  const auto refused = [](int32_t rank, std::initializer_list<int64_t> dim, const char* why) {
    fa3_tensor t{};
    t.rank = rank;
    std::copy(dim.begin(), dim.end(), t.dim);
    set_strides(t, {9, 8, 7, 6, 5});
    const fa3_tensor before = t;
    expect(fa3_tensor_pack(&t), invalid, why);
    CHECK(std::memcmp(&t, &before, sizeof t) == 0);
  };
  for (int32_t rank : {0, -1, 6, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()})
    refused(rank, {1, 1, 1, 1, 1}, ("tensor->rank is " + std::to_string(rank) + ", must be from 1 to 5").c_str());
  refused(3, {2, -1, 4}, "tensor->dim[1] is -1, must be >= 0");
  refused(1, {lowest}, "tensor->dim[0] is -9223372036854775808, must be >= 0");
  refused(5, {0, 1, 1, 1, -3}, "tensor->dim[4] is -3, must be >= 0");
  refused(4, {1, int64_t{1} << 31, int64_t{1} << 31, 2},
          "tensor->dim[1] is 2147483648: the number of elements overflows");
  refused(2, {2, huge}, "tensor->dim[0] is 2: the number of elements overflows");
  expect(fa3_tensor_pack(nullptr), invalid, "tensor is NULL");
}

TEST_CASE("questions about numbers of multiprocessors and launches that there are not", "[arguments]") {
  const P p = imaginary({.seqlen_q = 70, .seqlen_k = 100, .head_dim = 256}), empty = imaginary({.batch = 0});
  size_t bytes = 12345;
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  for (int32_t wrong : {-1, 1025, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()})
    for (const P* params : {&p, &empty}) {
      const auto message =
          ContainsSubstring("multiprocessors is " + std::to_string(wrong) + ", must be from 1 to 1024");
      CHECK(fa3_forward_workspace_size(params, wrong, &bytes) == invalid);
      CHECK_THAT(fa3_last_error_message(), message);
      CHECK(fa3_forward_kernel_info(params, wrong, 0, &info) == invalid);
      CHECK_THAT(fa3_last_error_message(), message);
    }
  for (int32_t wrong : {-1, 1, std::numeric_limits<int32_t>::max()}) {
    expect(fa3_forward_kernel_info(&p, 132, wrong, &info), invalid,
           "launch is " + std::to_string(wrong) + ", must be 0");
  }
  CHECK((bytes == 12345 && info.name[0] == '\0'));
  for (int32_t right : {1, 132, 1024}) {
    CHECK(fa3_forward_workspace_size(&p, right, &bytes) == FA3_OK);
    CHECK(fa3_forward_kernel_info(&p, right, 0, &info) == FA3_OK);
    CHECK((info.multiprocessors == right && info.launches == 1));
    CHECK((info.tiles == 8 && info.pieces == 8 && info.grid == std::min(8, right)));
  }
  // Nothing to compute: there is an answer, but no launch.
  CHECK(fa3_forward_kernel_info(&empty, 132, 0, &info) == FA3_OK);
  CHECK((info.launches == 0 && info.grid == 0 && info.tiles == 0 && info.pieces == 0 && info.multiprocessors == 132));
}

TEST_CASE("few queries are packed also where rows that pack no heads fit the head dimension better", "[arguments]") {
  const auto chosen = [](int64_t seqlen_q) {
    const P p = imaginary({.batch = 1, .seqlen_q = seqlen_q, .seqlen_k = 8192, .heads = 32, .heads_kv = 8,
                           .head_dim = 96});
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_forward_kernel_info(&p, 132, 0, &info) == FA3_OK);
    return std::string(info.name);
  };
  CHECK_THAT(chosen(1), ContainsSubstring("fa3_fwdpacked_") && ContainsSubstring("_d128_"));
  CHECK_THAT(chosen(4096), ContainsSubstring("fa3_fwd_") && ContainsSubstring("_d96_"));
}

TEST_CASE("the library chooses no kernel but those of which the info says so", "[arguments]") {
  int chosen = 0;
  for (int i = 0; i < fa3_kernel_count(); ++i) {
    fa3_kernel_info kernel = FA3_KERNEL_INFO_INIT, info = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_kernel_info_at(i, &kernel) == FA3_OK);
    INFO(kernel.name);
    if (kernel.kind != FA3_KERNEL_FORWARD) continue;
    P p = imaginary_for(forward_row(i), {.seqlen_k = 77, .head_dim = kernel.head_dim, .head_dim_v = kernel.head_dim_v});
    p.kernel = kernel.name;
    const auto last_launch = [&] {  // behind passes that plan for it, or make copies
      REQUIRE(fa3_forward_kernel_info(&p, 132, 0, &info) == FA3_OK);
      REQUIRE(fa3_forward_kernel_info(&p, 132, info.launches - 1, &info) == FA3_OK);
    };
    last_launch();
    CHECK((std::string(info.name) == kernel.name && info.chosen == kernel.chosen));
    p.kernel = nullptr;
    last_launch();
    CHECK(info.chosen == 1);
    CHECK((info.head_dim_v >= kernel.head_dim_v && forward_row(i).dv == kernel.head_dim_v));
    chosen += kernel.chosen;
  }
  CHECK((chosen > 0 && chosen < fa3_kernel_count()));
}

TEST_CASE("workspace", "[arguments]") {
  Buffers buffers;
  const P p = buffers.params();
  char* workspace = buffers.workspace.as<char>();
  expect(fa3_forward(&p, nullptr, 64, nullptr), invalid, "workspace is NULL");
  expect(fa3_forward(&p, workspace + 8, 64, nullptr), invalid, "must be aligned to 16 bytes");
  expect(fa3_forward(&p, workspace, 63, nullptr), FA3_ERROR_WORKSPACE_TOO_SMALL,
         "workspace_bytes is 63, must be at least 64");
  CHECK(fa3_forward(&p, workspace, 0, nullptr) == FA3_ERROR_WORKSPACE_TOO_SMALL);
  expect(fa3_forward(&p, reinterpret_cast<void*>(UINTPTR_MAX - 15), 64, nullptr), invalid,
         "workspace reaches beyond the address space");
  CHECK(buffers.untouched());

  // Beside a tensor it may lie, not in it.
  const P far = imaginary();
  const struct {
    const char* name;
    const fa3_tensor& tensor;
    int bytes;
  } tensors[] = {{"q", far.q, 2 * 3 * 4 * 16 * 2}, {"k", far.k, 2 * 5 * 2 * 16 * 2}, {"v", far.v, 2 * 5 * 2 * 16 * 2},
                 {"o", far.o, 2 * 3 * 4 * 16 * 2}, {"lse", far.lse, 2 * 3 * 4 * 4}};
  for (const auto& t : tensors)
    for (const int at : {-64, -48, 0, 16, t.bytes - 16, t.bytes}) {
      INFO(t.name << " and " << at);
      const bool apart = at == -64 || at == t.bytes;
      const fa3_status status = fa3_forward(&far, static_cast<char*>(t.tensor.data) + at, 1 << 20, nullptr);
      CHECK((status == invalid) == !apart);
      if (apart) continue;
      const std::string name = t.name, message = fa3_last_error_message();
      CHECK_THAT(message, ContainsSubstring("workspace may overlap " + name + ": workspace is 0x") &&
                              ContainsSubstring(" needs 64 bytes, " + name + ".data is 0x"));
    }
}

TEST_CASE("the reference refuses what makes no sense on the host", "[arguments]") {
  const Change bad[] = {
      {"q.rank is 3", invalid, [](P& p) { p.q.rank = 3; }},
      {"k.dtype is fp16, must be bf16 as q's", invalid, [](P& p) { p.k.dtype = FA3_DTYPE_FP16; }},
      {"o.dtype is 77", invalid, [](P& p) { p.o.dtype = 77; }},
      {"o.dtype is e4m3, must be bf16 as q's", invalid, [](P& p) { p.o.dtype = FA3_DTYPE_E4M3; }},
      {"(head_dim) is 12", invalid, [](P& p) { p.q.dim[3] = p.k.dim[3] = p.v.dim[3] = p.o.dim[3] = 12; }},
      {"(head_dim) is 584", unsupported, [](P& p) { p.q.dim[3] = p.k.dim[3] = p.v.dim[3] = p.o.dim[3] = 584; }},
      {"o.stride[3] is 0, must be > 0", invalid, [](P& p) { set_strides(p.o, {192, 64, 16, 0}); }},
      {"o.stride[1] is 48: elements of an output may overlap", invalid,
       [](P& p) { set_strides(p.o, {192, 48, 16, 1}); }},
      {"o.stride[1] is -48: elements of an output may overlap", invalid,
       [](P& p) { set_strides(p.o, {192, -48, 16, 1}); }},
      {"v.dim[3] * v.stride[3]", invalid, [](P& p) { set_strides(p.v, {192, 48, 16, lowest}); }},
      {"v.dim[1] * v.stride[1] is 5 * -274877906944 elements", invalid,
       [](P& p) { set_strides(p.v, {0, -(int64_t{1} << 38), 16, 1}); }},
      {"v.dim[0] * v.stride[0] is 2 * -274877906944 elements, must be below 2^40 bytes", invalid,
       [](P& p) { set_strides(p.v, {-(int64_t{1} << 38), 32, 16, 1}); }},
      {"o.dim[0] * o.stride[0] is 2 * -4611686018427387904 elements", invalid,
       [](P& p) { set_strides(p.o, {-(int64_t{1} << 62), 64, 16, 1}); }},
      {"must be aligned to 2 bytes", invalid, [](P& p) { move(p.q, 1); }},
      {"o may overlap v", invalid, [](P& p) { p.v.data = p.o.data; }},
      {"reaches beyond the address space", invalid,
       [](P& p) { p.v.data = reinterpret_cast<void*>(uintptr_t{16}), set_strides(p.v, {160, 32, 16, -1}); }},
      {"softmax_scale", invalid, [](P& p) { p.softmax_scale = -2; }},
      {"mask", invalid, [](P& p) { p.mask = 8; }},
  };
  for (const Change& change : bad) {
    Buffers buffers;
    P p = buffers.params();
    change.apply(p);
    expect(fa3_reference_forward(&p, 1), change);
    CHECK(buffers.untouched());
  }
  Buffers buffers;
  const P p = buffers.params();
  expect(fa3_reference_forward(&p, -1), invalid, "threads is -1");
  CHECK(buffers.untouched());
}

}  // namespace fa3::test
