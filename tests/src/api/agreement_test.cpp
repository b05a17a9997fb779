// Questions and calls agree: what fa3_..._check takes is launched, and what it refuses is refused by the call, with the
// same status, whatever counts are 0 and wherever tensors lie.
#include <functional>

#include "../imaginary.h"
#include "../launches.h"
#include "../planned_calls.h"

namespace fa3::test {
namespace {

// Counts of 0 among small ones.
void for_each_shape(const std::function<void(const Shape&)>& f) {
  for (const int64_t batch : {0, 1, 3})
    for (const int64_t seqlen_q : {0, 1, 130})
      for (const int64_t seqlen_k : {0, 1, 300})
        for (const int64_t heads : {0, 1, 4})
          for (const int64_t heads_kv : {0, 1, 2})
            for (const int64_t head_dim : {16, 64, 192}) f({batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim});
}
std::string text_of(const Shape& s) {
  std::string text;
  for (const int64_t n : {s.batch, s.seqlen_q, s.seqlen_k, s.heads, s.heads_kv, s.head_dim})
    text += (text.empty() ? "" : " ") + std::to_string(n);
  return text;
}

int taken = 0;  // calls that were launched

fa3_kernel_info described = FA3_KERNEL_INFO_INIT;

void agree(const fa3_forward_params& p) {
  const fa3_status status = fa3_forward_check(&p);
  INFO("check: " << fa3_last_error_message());
  size_t bytes = 0, schedule_bytes = 0;
  REQUIRE(fa3_forward_workspace_size(&p, 132, &bytes) == status);
  REQUIRE(fa3_forward_schedule_size(&p, 132, &schedule_bytes) == status);
  (void)fa3_forward_kernel_info(&p, 132, 0, &described);
  const fa3_status called = fa3_forward(&p, workspace_memory, bytes, stream);
  INFO("call: " << fa3_last_error_message());
  REQUIRE(called == status);
  if (status == FA3_OK) REQUIRE(fa3_forward_schedule(&p, far_away(40), schedule_bytes, stream) == FA3_OK);
  taken += status == FA3_OK;
}
void agree(const fa3_backward_params& p) {
  const fa3_status status = fa3_backward_check(&p);
  INFO("check: " << fa3_last_error_message());
  size_t bytes = 0;
  REQUIRE(fa3_backward_workspace_size(&p, &bytes) == status);
  (void)fa3_backward_kernel_info(&p, 132, 0, &described);
  const fa3_status called = fa3_backward(&p, workspace_memory, bytes, stream);
  INFO("call: " << fa3_last_error_message());
  REQUIRE(called == status);
  taken += status == FA3_OK;
}

fa3_tensor scale_at(uintptr_t n, int64_t batch, int64_t heads) {
  return tensor(far_away(n), FA3_DTYPE_FP32, {batch, heads, 1});
}
// The gradients of a call.
fa3_backward_params backward_of(const fa3_forward_params& f) {
  const auto at = [](fa3_tensor t, uintptr_t place) {
    t.data = far_away(place);
    return t;
  };
  fa3_backward_params p = FA3_BACKWARD_PARAMS_INIT;
  p.q = f.q, p.k = f.k, p.v = f.v, p.o = f.o, p.lse = f.lse, p.mask = f.mask;
  p.dout = at(f.o, 26), p.dq = at(f.q, 27), p.dk = at(f.k, 28), p.dv = at(f.v, 29);
  for (fa3_tensor* gradient : {&p.dq, &p.dk, &p.dv}) gradient->dtype = f.o.dtype;
  p.window_left = f.window_left, p.window_right = f.window_right, p.sinks = f.sinks;
  p.cu_seqlens_q = f.cu_seqlens_q, p.cu_seqlens_k = f.cu_seqlens_k;
  p.seqused_q = f.seqused_q, p.seqused_k = f.seqused_k;
  p.max_seqlen_q = f.max_seqlen_q, p.max_seqlen_k = f.max_seqlen_k, p.softcap = f.softcap;
  p.q_scale = f.q_scale, p.k_scale = f.k_scale, p.v_scale = f.v_scale, p.v_mean = f.v_mean;
  p.lse_offset = f.lse_offset;
  return p;
}

// A batched call as a packed one of so many sequences.
void pack_rows(fa3_forward_params& p, const Shape& s) {
  const auto rows = [](fa3_tensor& t) {
    t = tensor(t.data, t.dtype, {t.dim[0] * t.dim[1], t.dim[2], t.dim[3]});
  };
  rows(p.q), rows(p.k), rows(p.v), rows(p.o);
  p.lse = tensor(p.lse.data, FA3_DTYPE_FP32, {s.heads, s.batch * s.seqlen_q});
  p.cu_seqlens_q = lengths_at(6, s.batch + 1), p.cu_seqlens_k = lengths_at(7, s.batch + 1);
  p.max_seqlen_q = int32_t(std::max<int64_t>(s.seqlen_q, 1)), p.max_seqlen_k = int32_t(std::max<int64_t>(s.seqlen_k, 1));
}

}  // namespace

TEST_CASE("counts of 0 are answered alike by questions and calls, forward and backward", "[agreement]") {
  FakeCuda& fake = fresh();
  fake.record = false;
  taken = 0;
  for_each_shape([](const Shape& s) {
    for (const bool e4m3 : {false, true})
      for (const bool packed : {false, true})
        for (int extra = 0; extra < 7; ++extra) {
          fa3_forward_params p = imaginary(s, e4m3 ? FA3_DTYPE_E4M3 : FA3_DTYPE_BF16);
          if (e4m3) {
            p.o.dtype = FA3_DTYPE_BF16;
            p.q_scale = scale_at(16, 1, 1), p.k_scale = scale_at(17, 1, 1), p.v_scale = scale_at(18, 1, 1);
            if (extra == 1) p.v_mean = tensor(far_away(19), FA3_DTYPE_FP32, {s.batch, s.heads_kv, s.head_dim});
          }
          if (packed) pack_rows(p, s);
          if (e4m3 && extra == 2) p.lse_offset = p.lse, p.lse_offset.data = far_away(20);
          if (extra == 3) p.sinks = tensor(far_away(21), FA3_DTYPE_FP32, {s.heads});
          if (extra == 4) chunk(p, 7, 0);
          if (extra == 5) window(p, 3, 3);
          if (extra == 6) p.softcap = 3;
          INFO(text_of(s) << (e4m3 ? " e4m3" : "") << (packed ? " packed" : "") << " " << extra);
          agree(p);
          fa3_backward_params b = backward_of(p);
          if (extra == 3) b.dsinks = tensor(far_away(30), FA3_DTYPE_FP32, {s.heads});
          agree(b);
          if (!e4m3) b.flags = FA3_FLAG_DETERMINISTIC | (extra < 3 ? FA3_FLAG_CENTERED_K : 0), agree(b);
        }
  });
  CHECK(taken > 5000);
}

TEST_CASE("pages, caches and latents of 0 are answered alike by questions and calls", "[agreement]") {
  FakeCuda& fake = fresh();
  fake.record = false;
  taken = 0;
  for_each_shape([](const Shape& s) {
    for (const int64_t pages : {0, 1, 4})
      for (int kind = 0; kind < 4; ++kind) {
        fa3_forward_params p = imaginary(s);
        const int64_t rows = kind == 0 ? s.seqlen_k : 16;
        if (kind < 3) {
          for (fa3_tensor* t : {&p.k, &p.v}) *t = tensor(t->data, t->dtype, {pages, rows, s.heads_kv, s.head_dim});
          if (kind < 2) p.page_table = tensor(far_away(9), FA3_DTYPE_INT32, {s.batch, pages});
          else p.cache_batch_idx = lengths_at(9, s.batch);
          if (kind == 1) p.k.dtype = p.v.dtype = FA3_DTYPE_E4M3, p.k_scale = p.v_scale = scale_at(17, 1, 1),
                         p.v_scale.data = far_away(18);
        } else {
          p.v = tensor(p.v.data, FA3_DTYPE_BF16, {s.batch, s.seqlen_k, s.heads_kv, 512});
          p.o = tensor(p.o.data, FA3_DTYPE_BF16, {s.batch, s.seqlen_q, s.heads, 512});
          p.qv = p.o, p.qv.data = far_away(10);
          if (pages == 1) p.v.dtype = FA3_DTYPE_E4M3, p.v_scale = latent_scale(p.v, far_away(11));
        }
        INFO(text_of(s) << " kind " << kind << " pages " << pages);
        agree(p);
        p.flags = FA3_FLAG_BATCH_INVARIANT;
        agree(p);
      }
  });
  CHECK(taken > 500);
}

TEST_CASE("counts of 0 are answered alike by questions and calls, for what is beside attention", "[agreement]") {
  FakeCuda& fake = fresh();
  fake.record = false;
  for (const int64_t batch : {0, 1, 2})
    for (const int64_t rows : {0, 1, 100})
      for (const int64_t heads : {0, 1, 4})
        for (const int64_t heads_kv : {0, 1, 2}) {
          INFO(batch << " " << rows << " " << heads << " " << heads_kv);
          fa3_quantize_params q = FA3_QUANTIZE_PARAMS_INIT;
          q.x = tensor(far_away(1), FA3_DTYPE_BF16, {batch, rows, heads, 64});
          q.y = tensor(far_away(2), FA3_DTYPE_E4M3, {batch, rows, heads, 64});
          q.scale = tensor(far_away(3), FA3_DTYPE_FP32, {batch, heads, 1});
          for (const bool offset : {false, true}) {
            if (offset) {
              q.k_mean = tensor(far_away(7), FA3_DTYPE_FP32, {batch, heads_kv, 64});
              q.lse_offset = tensor(far_away(8), FA3_DTYPE_FP32, {batch, heads, rows}), q.softmax_scale = 0.5f;
            }
            const fa3_status status = fa3_quantize_check(&q);
            size_t bytes = 0;
            REQUIRE(fa3_quantize_workspace_size(&q, &bytes) == status);
            REQUIRE(fa3_quantize(&q, workspace_memory, bytes, stream) == status);
          }
          fa3_append_params a = FA3_APPEND_PARAMS_INIT;
          for (const int64_t cache_rows : {0, 200}) {
            a.k = tensor(far_away(1), FA3_DTYPE_BF16, {batch, rows, heads_kv, 64}), a.v = a.k, a.v.data = far_away(2);
            a.k_cache = tensor(far_away(3), FA3_DTYPE_BF16, {batch, cache_rows, heads_kv, 64});
            a.v_cache = a.k_cache, a.v_cache.data = far_away(4);
            a.cache_seqlens = lengths_at(5, batch);
            REQUIRE(fa3_append(&a, stream) == fa3_append_check(&a));
          }
          fa3_combine_params c = FA3_COMBINE_PARAMS_INIT;
          for (const int64_t parts : {0, 1, 3}) {
            c.o_parts = tensor(far_away(1), FA3_DTYPE_BF16, {parts, batch, rows, heads, 64});
            c.lse_parts = tensor(far_away(2), FA3_DTYPE_FP32, {parts, batch, heads, rows});
            c.o = tensor(far_away(3), FA3_DTYPE_FP16, {batch, rows, heads, 64});
            c.lse = tensor(far_away(4), FA3_DTYPE_FP32, {batch, heads, rows});
            REQUIRE(fa3_combine(&c, stream) == fa3_combine_check(&c));
          }
        }
}

TEST_CASE("prefix sums are looked at before a tensor is taken for a packed one", "[agreement]") {
  fresh().record = false;
  for (fa3_tensor fa3_forward_params::*sums : {&fa3_forward_params::cu_seqlens_q, &fa3_forward_params::cu_seqlens_k}) {
    fa3_forward_params p = imaginary();
    p.*sums = tensor(far_away(6), FA3_DTYPE_INT32, {1, 3});
    const std::string text = sums == &fa3_forward_params::cu_seqlens_q ? "cu_seqlens_q" : "cu_seqlens_k";
    agree(p);
    expect_message((text + ".rank is 2, must be 1").c_str());
    agree(backward_of(p));
    expect_message((text + ".rank is 2, must be 1").c_str());
  }
}

TEST_CASE("of a schedule that a call drops nothing is looked at", "[agreement]") {
  fresh().record = false;
  fa3_forward_params p = imaginary_packed();
  p.schedule = far_away(30), p.schedule_bytes = size_t{1} << 40;
  size_t bytes = 0;
  REQUIRE(fa3_forward_schedule_size(&p, 132, &bytes) == FA3_OK);
  CHECK(fa3_forward_schedule(&p, reinterpret_cast<void*>(0x10000), bytes, stream) == FA3_OK);  // below 2^40
  CHECK(std::string(fa3_last_error_message()) == "");
}

// Low addresses, as pools of the driver have them, and rows far apart, as (seqlen, batch, heads, head_dim) has them.
TEST_CASE("planned gradients are taken wherever tensors lie and however far rows are apart", "[agreement]") {
  FakeCuda& fake = fresh();
  fake.record = false;
  for (const int64_t row_bytes : {int64_t{512}, int64_t{1} << 21, int64_t{1} << 33, (int64_t{1} << 34) + 4096}) {
    fa3_backward_params p = imaginary_params<fa3_backward_params>();
    p.mask = FA3_MASK_WINDOW, p.window_left = 2, p.window_right = 0;
    uintptr_t place = 0x302000000;
    for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv}) {
      t->data = reinterpret_cast<void*>(place);
      set_strides(*t, {128, row_bytes / 2, 16, 1});
      place += uintptr_t(row_bytes) * 8;
    }
    INFO("rows " << row_bytes << " bytes apart");
    taken = 0;
    agree(p);
    CHECK(taken == 1);
  }
}

TEST_CASE("a span that the kernels cannot count is refused by the question, too", "[agreement]") {
  FakeCuda& fake = fresh();
  fake.record = false;
  fa3_backward_params p = imaginary_params<fa3_backward_params>();
  p.mask = FA3_MASK_WINDOW, p.window_left = 2, p.window_right = 0;
  for (const bool odd : {false, true}) {
    // Two entries, 48 GB apart or 16 bytes more, of rows of 128 bytes.
    const int64_t entry = (int64_t{48} << 30) / 2 + (odd ? 8 : 0);
    for (fa3_tensor* t : {&p.dk, &p.k}) set_strides(*t, {entry, 64, 16, 1});
    INFO(odd);
    agree(p);
    CHECK(fa3_backward_check(&p) == (odd ? FA3_ERROR_UNSUPPORTED : FA3_OK));
    if (odd) expect_message("k has batch entries 25769803784 and rows 64 elements apart");
  }
}

}  // namespace fa3::test
