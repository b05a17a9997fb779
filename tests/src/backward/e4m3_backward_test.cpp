// fa3_backward of e4m3: what it accepts, and what it asks of the driver.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "../launches.h"
#include "../refused.h"
#include "backward_calls.h"

namespace fa3::test {
namespace {

constexpr Shape shape{2, 130, 300, 4, 2, 64, 96};

void* far_away(uintptr_t n) { return reinterpret_cast<void*>(n << 42); }
fa3_tensor numbers(uintptr_t n, std::initializer_list<int64_t> dim) {
  return tensor(far_away(n), FA3_DTYPE_FP32, dim);
}
B e4m3_backward(const Shape& s = shape, int32_t dtype = FA3_DTYPE_BF16) {
  B p = imaginary_backward(s, dtype);
  for (fa3_tensor* t : {&p.q, &p.k, &p.v}) t->dtype = FA3_DTYPE_E4M3;
  p.q_scale = numbers(11, {1, 1, 1}), p.k_scale = numbers(12, {1, 1, 1}), p.v_scale = numbers(13, {1, 1, 1});
  return p;
}
// v as tiles.
fa3_tensor tiles(const Shape& s = shape) {
  return tensor(far_away(3), FA3_DTYPE_E4M3, {s.batch, s.heads_kv, (s.seqlen_k + 15) / 16, s.v_dim(), 16});
}
fa3_tensor sums(uintptr_t n) { return tensor(far_away(n), FA3_DTYPE_INT32, {4}); }
// Three sequences of up to 100 of 260 queries and of up to 200 of 600 keys.
B packed() {
  B p = e4m3_backward({.batch = 1, .seqlen_q = 260, .seqlen_k = 600, .heads = 4, .heads_kv = 2, .head_dim = 64});
  for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv, &p.lse}) {
    --t->rank;
    std::copy_n(t->dim + 1, t->rank, t->dim), std::copy_n(t->stride + 1, t->rank, t->stride);
  }
  p.cu_seqlens_q = sums(20), p.cu_seqlens_k = sums(21), p.max_seqlen_q = 100, p.max_seqlen_k = 200;
  return p;
}
uintptr_t offset(const void* p) { return reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(workspace_memory); }
size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

using Change = ChangeOf<B>;
const Change bad_changes[] = {
    {"k.dtype is bf16, must be e4m3 as q's", invalid, [](B& p) { p.k.dtype = FA3_DTYPE_BF16; }},
    {"v.dtype is fp16, must be e4m3 as q's", invalid, [](B& p) { p.v.dtype = FA3_DTYPE_FP16; }},
    {"k.dtype is e4m3, must be bf16 as q's", invalid,
     [](B& p) { p.q.dtype = FA3_DTYPE_BF16, p.q_scale = p.k_scale = p.v_scale = {}; }},
    {"dout.dtype is e4m3, which only q, k and v have", unsupported, [](B& p) { p.dout.dtype = FA3_DTYPE_E4M3; }},
    {"o.dtype is e4m3, which only q, k and v have", unsupported, [](B& p) { p.o.dtype = FA3_DTYPE_E4M3; }},
    {"o.dtype is fp16, must be bf16 as dout's", invalid, [](B& p) { p.o.dtype = FA3_DTYPE_FP16; }},
    {"dv.dtype is fp16, must be bf16 as dout's", invalid, [](B& p) { p.dv.dtype = FA3_DTYPE_FP16; }},
    {"dq.dtype is e4m3, which only q, k and v have", unsupported, [](B& p) { p.dq.dtype = FA3_DTYPE_E4M3; }},
    {"dout.dtype is fp32; the kernels take bf16 and fp16", unsupported, [](B& p) { p.dout.dtype = FA3_DTYPE_FP32; }},
    {"q.dtype is e5m2", unsupported, [](B& p) { p.q.dtype = FA3_DTYPE_E5M2; }},
    {"q_scale is absent (its rank is 0), and q.dtype is e4m3", invalid, [](B& p) { p.q_scale = {}; }},
    {"v_scale is absent", invalid, [](B& p) { p.v_scale = {}; }},
    {"k_scale.dtype is bf16, must be fp32", invalid, [](B& p) { p.k_scale.dtype = FA3_DTYPE_BF16; }},
    {"k_scale.dim[1] is 3, must be 1 or k.dim[2], which is 2", invalid, [](B& p) { p.k_scale.dim[1] = 3; }},
    {"q_scale.dim[2] is 4, must be 1 or the blocks of 64 rows in q.dim[1], 3", invalid,
     [](B& p) { p.q_scale.dim[2] = 4; }},
    {"v_mean.dim[2] is 64, must equal v.dim[3], which is 96", invalid, [](B& p) { p.v_mean = numbers(14, {2, 2, 64}); }},
    {"v_mean.dim[0] is 1, must equal q.dim[0], which is 2", invalid, [](B& p) { p.v_mean = numbers(14, {1, 2, 96}); }},
    {"lse_offset.dim[2] is 131, must equal q.dim[1], which is 130", invalid,
     [](B& p) { p.lse_offset = numbers(15, {2, 4, 131}); }},
    {"lse_offset.stride[2] is -1, must be >= 0", invalid,
     [](B& p) { p.lse_offset = numbers(15, {2, 4, 130}), p.lse_offset.stride[2] = -1; }},
    {"v_mean.data is NULL", invalid, [](B& p) { p.v_mean = numbers(0, {2, 2, 96}); }},
    {"k.stride[1] is 136, must be a multiple of 16", invalid, [](B& p) { p.k.stride[1] = 136; }},
    {"q.dim[3] (head_dim) is 72, must be a multiple of 16", invalid,
     [](B& p) {
       for (fa3_tensor* t : {&p.q, &p.k, &p.dq, &p.dk}) t->dim[3] = 72;
     }},
    {"v.rank is 3, must be 4, or 5 for tiles", invalid, [](B& p) { p.v.rank = 3; }},
    {"v.dim[2] is 18, must be the groups of 16 keys in k.dim[1], 19", invalid,
     [](B& p) { p.v = tiles(), p.v.dim[2] = 18; }},
    {"v.stride[3] is 32, must be 16", invalid, [](B& p) { p.v = tiles(), p.v.stride[3] = 32; }},
    {"dv.dim[1] is 299, must equal k.dim[1], which is 300", invalid, [](B& p) { p.v = tiles(), p.dv.dim[1] = 299; }},
    {"dv.dim[3] is 64, must equal v.dim[3], which is 96", invalid, [](B& p) { p.v = tiles(), p.dv.dim[3] = 64; }},
    {"v.rank is 5 (v as tiles), which cannot be had together with mask FA3_MASK_WINDOW", unsupported,
     [](B& p) { p.v = tiles(), p.mask = FA3_MASK_WINDOW, p.window_left = 5; }},
    {"k_scale.dim[2] is 5, must be 1: scales of blocks cannot be had together with mask FA3_MASK_WINDOW", unsupported,
     [](B& p) { p.k_scale = numbers(12, {2, 2, 5}), p.mask = FA3_MASK_WINDOW, p.window_left = 5; }},
    {"softcap and lse_offset cannot be had together", unsupported,
     [](B& p) { p.softcap = 30, p.lse_offset = numbers(15, {2, 4, 130}); }},
    {"q.dtype is e4m3, which cannot be had together with alibi_slopes", unsupported,
     [](B& p) { p.alibi_slopes = numbers(16, {4}); }},
    {"dsinks and v_mean cannot be had together", unsupported,
     [](B& p) {
       p.sinks = numbers(17, {4}), p.dsinks = numbers(18, {4}), p.v_mean = numbers(14, {2, 2, 96});
     }},
    {"dsinks and lse_offset cannot be had together", unsupported,
     [](B& p) {
       p.sinks = numbers(17, {4}), p.dsinks = numbers(18, {4}), p.lse_offset = numbers(15, {2, 4, 130});
     }},
    {"dq may overlap q_scale", invalid, [](B& p) { p.q_scale.data = p.dq.data; }},
    {"dk may overlap v_mean", invalid, [](B& p) { p.v_mean = numbers(14, {2, 2, 96}), p.v_mean.data = p.dk.data; }},
    {"dv may overlap lse_offset", invalid,
     [](B& p) { p.lse_offset = numbers(15, {2, 4, 130}), p.lse_offset.data = p.dv.data; }},
    {"params->kernel is fa3_bwd_fp16_d128_full_64x128, which is not a backward kernel for this dtype", invalid,
     [](B& p) { p.kernel = "fa3_bwd_fp16_d128_full_64x128"; }},
    {"k has 2 * 536870912 * 2 rows of all heads; the pass that widens e4m3 takes up to 2147418111", unsupported,
     [](B& p) {
       for (fa3_tensor* t : {&p.k, &p.v, &p.dk, &p.dv}) {
         t->dim[1] = int64_t{1} << 29;
         t->stride[0] = t->dim[1] * t->stride[1];
       }
     }},
};

}  // namespace

TEST_CASE("bad arguments of fa3_backward of e4m3 are refused", "[launch][backward][e4m3]") {
  FakeCuda& fake = fresh();
  for (const Change& change : bad_changes) {
    B p = e4m3_backward();
    change.apply(p);
    expect(backward(p), change);
  }
  // What is for e4m3 alone.
  B p = imaginary_backward();
  p.lse_offset = numbers(15, {2, 4, 3});
  CHECK(backward(p) == invalid);
  expect_message("lse_offset.rank is 3, must be 0 (absent): lse_offset is for e4m3, and q.dtype is bf16");
  p = packed();
  p.q_scale = numbers(11, {2, 4, 1});
  CHECK(backward(p) == invalid);
  expect_message("q_scale.dim[0] is 2, must be 1 or cu_seqlens_q.dim[0] - 1, which is 3");
  CHECK((fake.launches.empty() && fake.calls == 0));
}

TEST_CASE("gradients of e4m3, in full", "[launch][backward][e4m3]") {
  FakeCuda& fake = fresh();
  B p = e4m3_backward(shape, FA3_DTYPE_FP16);
  p.v = tiles();
  p.q_scale = numbers(11, {2, 4, 3}), p.k_scale = numbers(12, {2, 2, 1});
  p.v_mean = numbers(14, {2, 2, 96}), p.lse_offset = numbers(15, {2, 4, 130}), p.dlse = numbers(16, {2, 4, 130});
  p.lse_offset.stride[2] = 2;
  B plain = imaginary_backward(shape, FA3_DTYPE_FP16);
  plain.dlse = p.dlse;
  const size_t q = round_up(2 * 130 * 4 * 64 * 2), k = round_up(2 * 300 * 2 * 64 * 2);
  const size_t v = round_up(2 * 300 * 2 * 96 * 2), rows = round_up(2 * 4 * 130 * 4);
  const size_t copies = q + k + v + 2 * rows;
  CHECK(workspace_of(p) == copies + workspace_of(plain));
  REQUIRE(backward(p) == FA3_OK);
  REQUIRE(fake.launches.size() == 4);
  const Launch &first = fake.launches[0], &second = fake.launches[1], &main = fake.launches[2];
  CHECK((first.kernel == "fa3_pass_widen" && main.kernel == "fa3_bwd_fp16_d128_full_64x128"));
  // The kernel reads K and V before it waits, so all of the copies must be there when it starts.
  CHECK((!first.early && !second.early && main.early));
  for (int launch = 0; launch < 4; ++launch) {
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_backward_kernel_info(&p, 0, launch, &info) == FA3_OK);
    CHECK((info.name == fake.launches[size_t(launch)].kernel && info.launches == 4));
    CHECK(info.grid == int(fake.launches[size_t(launch)].grid[0]));
  }
  const WidenParams& w = first.carried.widen;
  const WidenedTensor &wq = w.tensors[0], &wk = w.tensors[1], &wv = w.tensors[2];
  CHECK((wq.from == p.q.data && wk.from == p.k.data && wv.from == p.v.data));
  CHECK((offset(wq.to) == 0 && offset(wk.to) == q && offset(wv.to) == q + k));
  CHECK((!wq.tiles && !wk.tiles && wv.tiles && wq.rows == 130 && wk.rows == 300 && wv.rows == 300));
  CHECK((wq.head_dim == 64 && wk.head_dim == 64 && wv.head_dim == 96));
  CHECK((wq.blocks.heads == 4 && wk.blocks.heads == 2 && wv.blocks.heads == 2));
  CHECK((wq.lines == 130 && wk.lines == 300 && wv.lines == 19 && wq.pieces == 8 && wv.pieces == 12));
  CHECK((wq.blocks.lines == 128 && wk.blocks.lines == 128 && wv.blocks.lines == 21));
  CHECK((wq.blocks.per_head == 2 && wk.blocks.per_head == 3 && wv.blocks.per_head == 1));
  CHECK((wq.blocks.count == 16 && wk.blocks.count == 12 && wv.blocks.count == 4));
  CHECK((wq.stride_batch == 130 * 256 && wq.stride_row == 256 && wq.stride_head == 64));
  CHECK((wv.stride_batch == 2 * 19 * 96 * 16 && wv.stride_row == 96 * 16 && wv.stride_head == 19 * 96 * 16));
  CHECK((wq.scale == p.q_scale.data && wq.scale_stride_batch == 12 && wq.scale_stride_head == 3));
  CHECK((wq.scale_stride_block == 1 && wk.scale_stride_batch == 2 && wk.scale_stride_head == 1));
  CHECK((wk.scale_stride_block == 0 && wv.scale_stride_batch == 0 && wv.scale_stride_head == 0));
  CHECK((!wq.cu_seqlens && !wk.cu_seqlens && !wv.cu_seqlens && !w.cu_seqlens && w.batch == 2 && !w.bf16));
  CHECK((offset(w.lse_to) == q + k + v && offset(w.dlse_to) == q + k + v + rows));
  CHECK((w.lse == p.lse.data && w.lse_offset == p.lse_offset.data && w.offset_stride_row == 2));
  CHECK((w.dlse == p.dlse.data && w.v_mean == p.v_mean.data && static_cast<const void*>(w.dout) == p.dout.data));
  CHECK((w.rows == 130 && w.blocks.heads == 4 && w.heads_per_kv == 2 && w.head_dim_v == 96 && w.lanes_shift == 4));
  CHECK((w.blocks.lines == 64 && w.blocks.per_head == 3 && w.blocks.count == 24));
  CHECK(first.grid[0] == 16 + 12 + 4 + 24);

  // Behind it all is as with 16 bits, of the copies.
  const BackwardParams& g = main.carried.backward;
  CHECK((g.rows.lse == w.lse_to && g.rows.dlse == w.dlse_to && g.rows.lse_stride.head == 130));
  CHECK((g.rows.dq == p.dq.data && static_cast<const void*>(g.rows.o) == p.o.data && !g.rows.bf16));
  CHECK(offset(g.rows.lse_log2) == copies);
  const struct {
    const TensorMap& map;
    const void* data;
    uint64_t head_dim, rows, heads;
  } maps[] = {{g.q, wq.to, 64, 130, 4}, {g.k, wk.to, 64, 300, 2}, {g.v, wv.to, 96, 300, 2}};
  for (const auto& m : maps) {
    const EncodedMap& map = fake.maps.at(m.map.opaque[0]);
    CHECK(map.data == m.data);
    CHECK(map.dim == std::vector<uint64_t>{m.head_dim, m.rows, m.heads, 2});
  }
}

TEST_CASE("packed e4m3 has the scales of sequences", "[launch][backward][e4m3]") {
  FakeCuda& fake = fresh();
  B p = packed();
  p.q_scale = numbers(11, {3, 4, 1}), p.v_mean = numbers(14, {3, 2, 64});
  REQUIRE(backward(p) == FA3_OK);
  REQUIRE(!fake.launches.empty());
  const WidenParams& w = fake.launches[0].carried.widen;
  CHECK((w.tensors[0].cu_seqlens == p.cu_seqlens_q.data && w.tensors[0].scale_stride_batch == 4 && w.batch == 3));
  CHECK((!w.tensors[1].cu_seqlens && !w.tensors[2].cu_seqlens && w.tensors[2].scale_stride_batch == 0));
  CHECK((w.cu_seqlens == p.cu_seqlens_q.data && w.rows == 260 && !w.lse_to && w.dlse_to && !w.dlse));
  CHECK((fake.launches[1].kernel == "fa3_pass_plan_backward" && !fake.launches[1].early && fake.launches[2].early));
  p.k_scale = numbers(12, {3, 1, 1});
  fake.launches.clear();
  REQUIRE(backward(p) == FA3_OK);
  CHECK(fake.launches[0].carried.widen.tensors[1].cu_seqlens == p.cu_seqlens_k.data);
}

TEST_CASE("what of e4m3 is not widened", "[launch][backward][e4m3]") {
  FakeCuda& fake = fresh();
  // Nothing is launched where there is nothing to compute,
  REQUIRE(backward(e4m3_backward({.batch = 0, .head_dim = 64})) == FA3_OK);
  CHECK(fake.launches.empty());
  // and nothing before a failure: here of the last kernel to be loaded.
  const B p = e4m3_backward();
  fake.failing = "cuLaunchKernelEx";
  CHECK(backward(p) == FA3_ERROR_CUDA);
  CHECK(fake.launches.empty());
  fake.failing.clear();
  // Without v_mean and lse_offset LSE and dLSE are the caller's.
  REQUIRE(backward(p) == FA3_OK);
  REQUIRE(fake.launches.size() == 4);
  CHECK((fake.launches[0].carried.widen.blocks.count == 0 && fake.launches[2].carried.backward.rows.lse == p.lse.data));
  CHECK(!fake.launches[2].carried.backward.rows.dlse);
}

}  // namespace fa3::test
