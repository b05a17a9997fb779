#include "problems.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "layouts.h"
#include "rules.h"

namespace fa3::test {
namespace {

int64_t head_dim(Choices& choices, int unit) {
  return choices.once_in(4) ? unit * (1 + choices.below(256 / unit)) : unit * (1 + choices.below(3));
}

float softmax_scale(Choices& choices) {
  return choices.one_of({0.0f, 0.0f, 1.0f, 0.125f, 1e-30f, 1e20f});
}

// One buffer (batch, seqlen, heads + 2 heads_kv + heads, head_dim), of which q, k, v and o are slices.
void slice(fa3_tensor& q, fa3_tensor& k, fa3_tensor& v, fa3_tensor& o) {
  const int64_t heads = 2 * (q.dim[2] + k.dim[2]), row = heads * q.dim[3];
  char* data = reinterpret_cast<char*>(uintptr_t{1} << 42);
  for (fa3_tensor* t : {&q, &k, &v, &o}) {
    t->data = data;
    t->stride[0] = row * q.dim[1], t->stride[1] = row, t->stride[2] = q.dim[3], t->stride[3] = 1;
    data += t->dim[2] * t->dim[3] * element_bytes(t->dtype);
  }
}

// head_dim, of q and v: their last dims.
int64_t last_dim(const fa3_tensor& t) { return t.dim[t.rank - 1]; }

// What the names of kernels for it have, or "".
template <class Params>
const char* transform_of(const Params& p) {
  if constexpr (requires { p.qv; })
    if (p.qv.rank != 0)
      return p.v.dtype == FA3_DTYPE_E4M3 ? "fp8mla" : p.softcap != 0 ? "mlasoftcap" : "mla";
  if (p.alibi_slopes.rank != 0) return p.softcap != 0 ? "softcapalibi" : "alibi";
  return p.softcap != 0 ? "softcap" : "";
}
const char* kernel_that_fits(Choices& choices, int kind, const fa3_tensor& q, int64_t head_dim_v, bool causal,
                             bool planned = false, std::string_view transform = "") {
  if (!choices.once_in(6)) return nullptr;
  static std::array<fa3_kernel_info, 512> infos;
  static const int count = [] {
    const int all = std::min<int>(fa3_kernel_count(), infos.size());
    for (int i = 0; i < all; ++i) infos[i].struct_size = sizeof infos[i], fa3_kernel_info_at(i, &infos[i]);
    return all;
  }();
  const int first = choices.below(count);
  for (int n = 0; n < count; ++n) {
    const fa3_kernel_info& info = infos[(first + n) % count];
    const std::string_view name = info.name;
    const bool is_planned_row = name.starts_with("fa3_fwdplanned") || name.starts_with("fa3_bwdplanned");
    const std::string_view its_transform = name.find("softcapalibi") != name.npos ? "softcapalibi"
                                           : name.find("mlasoftcap") != name.npos ? "mlasoftcap"
                                           : name.find("softcap") != name.npos ? "softcap"
                                           : name.find("alibi") != name.npos ? "alibi"
                                           : name.find("centered") != name.npos ? "centered"
                                           : name.find("fp8mla") != name.npos ? "fp8mla"
                                           : name.find("mla") != name.npos ? "mla"
                                           : name.find("fp8kv") != name.npos ? "fp8kv"
                                           : name.find("fp32") != name.npos ? "fp32"
                                                                                : "";
    if (its_transform != transform) continue;
    if (info.kind == kind && info.dtype == q.dtype && info.head_dim >= last_dim(q) && info.head_dim_v >= head_dim_v &&
        (info.causal != 0) == causal && is_planned_row == planned)
      return info.name;
  }
  return nullptr;
}

}  // namespace

int64_t odd_number(Choices& choices) {
  constexpr int64_t small[] = {0, 1, 2, 3, 7, 8, 16, 64, 128, 256, -1, -8, 1 << 20};
  constexpr int64_t large[] = {INT32_MAX, INT32_MIN, 1LL << 31, 1LL << 32, 1LL << 39, 1LL << 40, INT64_MAX, INT64_MIN};
  const int64_t near =
      choices.once_in(3) ? large[choices.below(std::size(large))] : small[choices.below(std::size(small))];
  return choices.once_in(4) ? plus(near, choices.below(17) - 8) : near;
}

const char* any_kernel(Choices& choices) {
  switch (choices.below(4)) {
    case 0: return "";
    case 1: return "no such kernel, and a text that is longer than any name of a kernel can be, or a message need show";
    case 2: return nullptr;
    default: break;
  }
  static fa3_kernel_info info;
  info.struct_size = sizeof info;
  return fa3_kernel_info_at(choices.below(fa3_kernel_count()), &info) == FA3_OK ? info.name : nullptr;
}

std::vector<Member> members(fa3_forward_params& p) {
  return {{"q", &p.q, false},
          {"k", &p.k, false},
          {"v", &p.v, false},
          {"o", &p.o, true},
          {"lse", &p.lse, true},
          {"q_scale", &p.q_scale, false},
          {"k_scale", &p.k_scale, false},
          {"v_scale", &p.v_scale, false},
          {"o_scale", &p.o_scale, false},
          {"v_mean", &p.v_mean, false},
          {"lse_offset", &p.lse_offset, false},
          {"sinks", &p.sinks, false},
          {"alibi_slopes", &p.alibi_slopes, false},
          {"qv", &p.qv, false},
          {"cu_seqlens_q", &p.cu_seqlens_q, false},
          {"cu_seqlens_k", &p.cu_seqlens_k, false},
          {"seqused_q", &p.seqused_q, false},
          {"seqused_k", &p.seqused_k, false},
          {"leftpad_k", &p.leftpad_k, false},
          {"page_table", &p.page_table, false},
          {"cache_batch_idx", &p.cache_batch_idx, false}};
}

std::vector<Member> members(fa3_backward_params& p) {
  return {{"q", &p.q, false},
          {"k", &p.k, false},
          {"v", &p.v, false},
          {"o", &p.o, false},
          {"lse", &p.lse, false},
          {"dout", &p.dout, false},
          {"dq", &p.dq, true},
          {"dk", &p.dk, true},
          {"dv", &p.dv, true},
          {"dlse", &p.dlse, false},
          {"sinks", &p.sinks, false},
          {"dsinks", &p.dsinks, true},
          {"cu_seqlens_q", &p.cu_seqlens_q, false},
          {"cu_seqlens_k", &p.cu_seqlens_k, false},
          {"seqused_q", &p.seqused_q, false},
          {"seqused_k", &p.seqused_k, false},
          {"alibi_slopes", &p.alibi_slopes, false}};
}

std::vector<Member> members(fa3_quantize_params& p) {
  return {{"x", &p.x, false},
          {"y", &p.y, true},
          {"scale", &p.scale, true},
          {"mean", &p.mean, true},
          {"rotary_cos", &p.rotary_cos, false},
          {"rotary_sin", &p.rotary_sin, false},
          {"k_mean", &p.k_mean, false},
          {"lse_offset", &p.lse_offset, true}};
}

std::vector<Member> members(fa3_combine_params& p) {
  return {{"o_parts", &p.o_parts, false}, {"lse_parts", &p.lse_parts, false}, {"o", &p.o, true}, {"lse", &p.lse, true}};
}

namespace {

template <class Params>
void make_window(Params& p, Choices& c) {
  if (c.once_in(3)) {
    p.mask = FA3_MASK_CHUNK, p.window_left = 1 + c.below(c.one_of({3, 64, 256})), p.window_right = -c.below(2);
  } else {
    p.mask = FA3_MASK_WINDOW, p.window_left = c.below(40) - 1, p.window_right = c.once_in(2) ? c.below(8) - 1 : 0;
  }
}

// Varlen sequences, pages, windows and sinks.
void make_planned(fa3_forward_params& p, Choices& c, bool host) {
  p = FA3_FORWARD_PARAMS_INIT;
  Layouts layouts(c, host);
  const bool e4m3 = c.once_in(3), fp32 = host && !e4m3 && c.once_in(3);
  const int32_t dtype = e4m3 ? FA3_DTYPE_E4M3 : fp32 ? FA3_DTYPE_FP32 : dtype_of_16_bits(c);
  int32_t o_dtype = host ? c.one_of<int32_t>({FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32}) : dtype;
  if (e4m3) o_dtype = c.one_of<int32_t>({FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_E4M3});
  const int unit = fp32 ? 1 : e4m3 ? 16 : 8;
  const int64_t batch = small_count(c), heads_kv = small_count(c), heads = heads_kv ? heads_kv * small_count(c) : 0;
  int64_t d = head_dim(c, unit), dv = c.once_in(3) ? head_dim(c, unit) : d;
  const int64_t rows_q = length(c);
  // Wide heads: a second query, V in K, or neither.
  const int wide = !e4m3 && c.once_in(5) ? 1 + c.below(3) : 0;
  if (wide) dv = unit * (1 + c.below(512 / unit));
  const bool latent = wide == 1 && c.once_in(2);  // V is of e4m3
  if (latent) dv = c.once_in(16) ? 8 * (1 + c.below(64)) : 16 * (1 + c.below(32));  // a few are no multiple of 16
  if (wide == 1) d = unit * (1 + c.below(64 / unit));
  if (wide == 2) d = dv + unit * (1 + c.below(64 / unit));
  if (wide == 3) d = unit * (1 + c.below(576 / unit));
  if (!host && !e4m3 && !wide && c.once_in(4)) o_dtype = FA3_DTYPE_FP32;
  const auto lengths = [&](int64_t count) {
    fa3_tensor t = layouts.plain(FA3_DTYPE_INT32, {count}, false);
    t.stride[0] = 1;
    return t;
  };
  if (c.once_in(3)) {
    p.q = layouts.rows(dtype, {batch, rows_q, heads, d}, false);
    p.o = layouts.rows(o_dtype, {batch, rows_q, heads, dv}, true);
    if (c.once_in(2)) p.lse = layouts.plain(FA3_DTYPE_FP32, {batch, heads, rows_q}, true);
    if (c.once_in(4)) p.max_seqlen_q = static_cast<int32_t>(rows_q);
  } else {
    p.q = layouts.rows(dtype, {rows_q, heads, d}, false);
    p.o = layouts.rows(o_dtype, {rows_q, heads, dv}, true);
    if (c.once_in(2)) p.lse = layouts.plain(FA3_DTYPE_FP32, {heads, rows_q}, true);
    p.cu_seqlens_q = lengths(batch + 1);
    p.max_seqlen_q = static_cast<int32_t>(c.once_in(3) ? 1 + c.below(300) : std::max<int64_t>(rows_q, 1));
  }
  const int32_t v_dtype = latent ? FA3_DTYPE_E4M3 : dtype;
  const int64_t groups = (dv + FA3_LATENT_SCALE_COLUMNS - 1) / FA3_LATENT_SCALE_COLUMNS;
  const auto keys = [&](std::initializer_list<int64_t> dims) {
    p.k = layouts.rows(dtype, {dims.begin()[0], dims.begin()[1], heads_kv, d}, false);
    p.v = layouts.rows(v_dtype, {dims.begin()[0], dims.begin()[1], heads_kv, dv}, false);
    if (latent) p.v_scale = layouts.rows(FA3_DTYPE_FP32, {dims.begin()[0], dims.begin()[1], heads_kv, groups}, false);
  };
  int64_t most_keys = length(c);
  switch (c.below(4)) {
    case 0:
      p.k = layouts.rows(dtype, {most_keys, heads_kv, d}, false);
      p.v = layouts.rows(v_dtype, {most_keys, heads_kv, dv}, false);
      if (latent) p.v_scale = layouts.rows(FA3_DTYPE_FP32, {most_keys, heads_kv, groups}, false);
      p.cu_seqlens_k = lengths(batch + 1);
      p.max_seqlen_k = static_cast<int32_t>(c.once_in(3) ? 1 + c.below(300) : std::max<int64_t>(most_keys, 1));
      break;
    case 1: {
      const int64_t page_size = c.once_in(3) ? 1 + c.below(40) : int64_t{1} << c.below(6), pages = c.below(5);
      keys({c.below(8), page_size});
      p.page_table = layouts.plain(FA3_DTYPE_INT32, {batch, pages}, false);
      p.page_table.stride[1] = 1, p.page_table.stride[0] = c.once_in(8) ? 0 : pages + c.below(4);
      most_keys = page_size * pages;
      break;
    }
    case 2:
      keys({small_count(c), most_keys});
      p.cache_batch_idx = lengths(batch);
      break;
    default: keys({batch, most_keys});
  }
  if (wide == 1)
    p.qv = p.q.rank == 3 ? layouts.rows(dtype, {rows_q, heads, dv}, false)
                         : layouts.rows(dtype, {batch, rows_q, heads, dv}, false);
  if (wide == 2) p.v = p.k, p.v.dim[p.v.rank - 1] = dv;
  if (p.cu_seqlens_k.rank == 0 && c.once_in(4))
    p.max_seqlen_k = static_cast<int32_t>(std::min<int64_t>(c.below(300), most_keys));
  if (c.once_in(3)) p.seqused_q = lengths(batch);
  if (c.once_in(2)) p.seqused_k = lengths(batch);
  if (p.page_table.rank == 0 && c.once_in(3)) p.leftpad_k = lengths(batch);
  if (c.once_in(3)) p.sinks = layouts.plain(FA3_DTYPE_FP32, {heads}, false);
  if (e4m3) {
    const auto scale = [&](int64_t all) {
      return layouts.plain(FA3_DTYPE_FP32, {c.once_in(2) ? 1 : batch, c.once_in(2) ? 1 : all, c.once_in(16) ? 2 : 1},
                           false);
    };
    p.q_scale = scale(heads), p.k_scale = scale(heads_kv), p.v_scale = scale(heads_kv);
    if (o_dtype == FA3_DTYPE_E4M3) p.o_scale = layouts.plain(FA3_DTYPE_FP32, {1}, false);
    if (c.once_in(2)) p.v_mean = layouts.rows(FA3_DTYPE_FP32, {batch, heads_kv, dv}, false);
    const bool packed_q = p.cu_seqlens_q.rank != 0;
    if (c.once_in(2))
      p.lse_offset = packed_q ? layouts.plain(FA3_DTYPE_FP32, {heads, rows_q}, false)
                              : layouts.plain(FA3_DTYPE_FP32, {batch, heads, rows_q}, false);
  }
  p.mask = c.below(3);
  if (c.once_in(2)) make_window(p, c);
  p.softmax_scale = softmax_scale(c);
  p.flags = c.once_in(4) ? FA3_FLAG_DETERMINISTIC : 0;
  if (c.once_in(4)) p.flags |= FA3_FLAG_BATCH_INVARIANT;
  if (c.once_in(4)) {
    p.schedule = reinterpret_cast<void*>((uintptr_t{1} << 47) + 16 * static_cast<uintptr_t>(c.below(256)));
    p.schedule_bytes = static_cast<size_t>(c.below(4096));
  }
  const bool may_transform = host || o_dtype != FA3_DTYPE_FP32;
  if (may_transform && !latent && c.once_in(4)) {
    p.softcap = c.one_of({30.0f, 0.5f, 1e-30f, 1e30f});
    p.lse_offset = {};
  }
  if (!e4m3 && !wide && may_transform && p.mask != FA3_MASK_CHUNK && !(p.flags & FA3_FLAG_BATCH_INVARIANT) &&
      c.once_in(3)) {
    p.alibi_slopes = c.once_in(2) ? layouts.plain(FA3_DTYPE_FP32, {heads}, false)
                                  : layouts.plain(FA3_DTYPE_FP32, {batch, heads}, false);
  }
  const bool widens_o = o_dtype == FA3_DTYPE_FP32 && !e4m3 && !fp32;
  p.kernel = kernel_that_fits(c, FA3_KERNEL_FORWARD, p.q, dv, false, true, widens_o ? "fp32" : transform_of(p));
}

}  // namespace

void make(fa3_forward_params& p, Choices& c, bool host) {
  if (c.once_in(2)) return make_planned(p, c, host);
  p = FA3_FORWARD_PARAMS_INIT;
  Layouts layouts(c, host);
  const bool e4m3 = c.once_in(3), fp32 = host && !e4m3 && c.once_in(3);
  const int32_t dtype = e4m3 ? FA3_DTYPE_E4M3 : fp32 ? FA3_DTYPE_FP32 : dtype_of_16_bits(c);
  const int unit = fp32 ? 1 : e4m3 ? 16 : 8;
  const int64_t batch = small_count(c), heads_kv = small_count(c), heads = heads_kv ? heads_kv * small_count(c) : 0;
  const int64_t seqlen_q = length(c), seqlen_k = c.once_in(2) ? seqlen_q : length(c);
  const int64_t d = head_dim(c, unit), dv = c.once_in(3) ? head_dim(c, unit) : d;
  int32_t o_dtype = dtype;
  if (e4m3) o_dtype = c.one_of<int32_t>({FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_E4M3});
  if (host && !e4m3) o_dtype = c.one_of<int32_t>({FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32});
  if (!host && !e4m3 && c.once_in(4)) o_dtype = FA3_DTYPE_FP32;
  p.q = layouts.rows(dtype, {batch, seqlen_q, heads, d}, false);
  p.k = layouts.rows(dtype, {batch, seqlen_k, heads_kv, d}, false);
  p.v = e4m3 && c.once_in(2) ? layouts.tiles({batch, heads_kv, (seqlen_k + 15) / 16, dv, 16}, false)
                             : layouts.rows(dtype, {batch, seqlen_k, heads_kv, dv}, false);
  p.o = layouts.rows(o_dtype, {batch, seqlen_q, heads, dv}, true);
  if (p.v.rank == 5) p.v.stride[3] = 16, p.v.stride[4] = 1;
  if (!host && d == dv && seqlen_q == seqlen_k && o_dtype == dtype && p.v.rank == 4 && c.once_in(8))
    slice(p.q, p.k, p.v, p.o);
  if (c.once_in(2)) p.lse = layouts.plain(FA3_DTYPE_FP32, {batch, heads, seqlen_q}, true);
  p.mask = c.below(3);
  p.softmax_scale = softmax_scale(c);
  p.flags = c.once_in(4) ? FA3_FLAG_DETERMINISTIC : 0;
  if (e4m3) {
    const auto scale = [&](int64_t all, int64_t rows) {
      return layouts.plain(FA3_DTYPE_FP32,
                           {c.once_in(2) ? 1 : batch, c.once_in(2) ? 1 : all, c.once_in(2) ? 1 : (rows + 63) / 64},
                           false);
    };
    p.q_scale = scale(heads, seqlen_q), p.k_scale = scale(heads_kv, seqlen_k), p.v_scale = scale(heads_kv, seqlen_k);
    if (o_dtype == FA3_DTYPE_E4M3) p.o_scale = layouts.plain(FA3_DTYPE_FP32, {1}, false);
    if (c.once_in(2)) p.v_mean = layouts.rows(FA3_DTYPE_FP32, {batch, heads_kv, dv}, false);
    if (c.once_in(2)) p.lse_offset = layouts.plain(FA3_DTYPE_FP32, {batch, heads, seqlen_q}, false);
    if (c.once_in(4)) p.flags |= FA3_FLAG_TWO_LEVEL;
  }
  const bool widens_o = o_dtype == FA3_DTYPE_FP32 && !e4m3 && !fp32;
  p.kernel = kernel_that_fits(c, FA3_KERNEL_FORWARD, p.q, dv, p.mask != FA3_MASK_NONE && !widens_o, widens_o,
                              widens_o ? "fp32" : "");
}

void make(fa3_backward_params& p, Choices& c, bool host) {
  p = FA3_BACKWARD_PARAMS_INIT;
  Layouts layouts(c, host);
  const bool fp32 = host && c.once_in(3), planned = c.once_in(2);
  const bool packed_q = planned && !c.once_in(3), packed_k = planned && !c.once_in(3);
  const int32_t dtype = fp32 ? FA3_DTYPE_FP32 : dtype_of_16_bits(c);
  const int unit = fp32 ? 1 : 8;
  const auto other = [&] {
    return host ? c.one_of<int32_t>({FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32}) : dtype;
  };
  const int64_t batch = small_count(c), heads_kv = small_count(c), heads = heads_kv ? heads_kv * small_count(c) : 0;
  const int64_t rows_q = length(c), rows_k = c.once_in(2) ? rows_q : length(c);
  const int64_t d = head_dim(c, unit), dv = c.once_in(3) ? head_dim(c, unit) : d;
  const auto rows = [&](int32_t dtype, bool is_k, int64_t columns, bool output) {
    const int64_t count = is_k ? rows_k : rows_q, its_heads = is_k ? heads_kv : heads;
    return (is_k ? packed_k : packed_q) ? layouts.rows(dtype, {count, its_heads, columns}, output)
                                        : layouts.rows(dtype, {batch, count, its_heads, columns}, output);
  };
  const auto row_numbers = [&] {
    return packed_q ? layouts.plain(FA3_DTYPE_FP32, {heads, rows_q}, false)
                    : layouts.plain(FA3_DTYPE_FP32, {batch, heads, rows_q}, false);
  };
  p.q = rows(dtype, false, d, false), p.k = rows(dtype, true, d, false), p.v = rows(dtype, true, dv, false);
  p.o = rows(other(), false, dv, false), p.dout = rows(other(), false, dv, false);
  const bool fp32_gradients = c.once_in(4);
  const auto gradient = [&] { return fp32_gradients ? int32_t{FA3_DTYPE_FP32} : other(); };
  p.dq = rows(gradient(), false, d, true), p.dk = rows(gradient(), true, d, true);
  p.dv = rows(gradient(), true, dv, true);
  p.lse = row_numbers();
  if (c.once_in(2)) p.dlse = row_numbers();
  p.mask = c.below(3);
  if (planned) {
    const auto lengths = [&](int64_t count) {
      fa3_tensor t = layouts.plain(FA3_DTYPE_INT32, {count}, false);
      t.stride[0] = 1;
      return t;
    };
    const auto bound = [&](int64_t all) {
      return static_cast<int32_t>(c.once_in(3) ? 1 + c.below(300) : std::max<int64_t>(all, 1));
    };
    if (packed_q) p.cu_seqlens_q = lengths(batch + 1), p.max_seqlen_q = bound(rows_q);
    if (packed_k) p.cu_seqlens_k = lengths(batch + 1), p.max_seqlen_k = bound(rows_k);
    else if (c.once_in(4)) p.max_seqlen_k = static_cast<int32_t>(std::min<int64_t>(c.below(300), rows_k));
    if (c.once_in(3)) p.seqused_q = lengths(batch);
    if (c.once_in(3)) p.seqused_k = lengths(batch);
    if (c.once_in(2)) p.sinks = layouts.plain(FA3_DTYPE_FP32, {heads}, false);
    if (p.sinks.rank != 0 && !c.once_in(4)) p.dsinks = layouts.plain(FA3_DTYPE_FP32, {heads}, true);
    if (c.once_in(2)) make_window(p, c);
    if (c.once_in(4)) p.softcap = c.one_of({30.0f, 0.5f, 1e-30f, 1e30f});
    if (p.mask != FA3_MASK_CHUNK && c.once_in(3)) p.alibi_slopes = layouts.plain(FA3_DTYPE_FP32, {heads}, false);
  }
  p.softmax_scale = softmax_scale(c);
  p.flags = c.once_in(4) ? FA3_FLAG_DETERMINISTIC : 0;
  if (fp32_gradients && c.once_in(2)) p.flags |= FA3_FLAG_ACCUMULATE;
  const bool centers = c.once_in(4);
  if (centers) p.flags |= FA3_FLAG_CENTERED_K, p.softcap = 0, p.dlse = p.sinks = p.dsinks = p.alibi_slopes = {};
  const bool own_kernels = planned || centers;
  p.kernel = kernel_that_fits(c, FA3_KERNEL_BACKWARD, p.q, dv, !own_kernels && p.mask != FA3_MASK_NONE, own_kernels,
                              centers ? "centered" : transform_of(p));
}

void make(fa3_quantize_params& p, Choices& c, bool) {
  p = FA3_QUANTIZE_PARAMS_INIT;
  Layouts layouts(c, false);
  const int64_t batch = small_count(c), heads_kv = small_count(c), heads = heads_kv ? heads_kv * small_count(c) : 0;
  const int64_t seqlen = length(c), d = head_dim(c, 16), blocks = (seqlen + 63) / 64;
  p.x = layouts.rows(dtype_of_16_bits(c), {batch, seqlen, heads, d}, false);
  p.y = c.once_in(2) ? layouts.tiles({batch, heads, (seqlen + 15) / 16, d, 16}, true)
                     : layouts.rows(FA3_DTYPE_E4M3, {batch, seqlen, heads, d}, true);
  switch (c.below(3)) {
    case 0: p.scale = layouts.plain(FA3_DTYPE_FP32, {1, 1, 1}, true); break;
    case 1: p.scale = layouts.plain(FA3_DTYPE_FP32, {batch, heads, 1}, true); break;
    default: p.scale = layouts.plain(FA3_DTYPE_FP32, {batch, heads, blocks}, true);
  }
  if (c.once_in(3)) p.mean = layouts.rows(FA3_DTYPE_FP32, {batch, heads, d}, true);
  if (c.once_in(3)) {
    const int64_t half = 8 * c.below(static_cast<int>(d / 16) + 1);
    p.rotary_cos = layouts.rows(FA3_DTYPE_FP32, {seqlen, half}, false);
    p.rotary_sin = layouts.rows(FA3_DTYPE_FP32, {seqlen, half}, false);
  }
  if (c.once_in(3)) {
    p.k_mean = layouts.rows(FA3_DTYPE_FP32, {batch, heads_kv, d}, false);
    p.lse_offset = layouts.plain(FA3_DTYPE_FP32, {batch, heads, seqlen}, true);
  }
  p.flags = static_cast<uint64_t>(c.below(4));
  p.seed = c.bits();
  p.softmax_scale = softmax_scale(c);
}

void make(fa3_combine_params& p, Choices& c, bool) {
  p = FA3_COMBINE_PARAMS_INIT;
  Layouts layouts(c, false);
  const auto dtype = [&] { return c.one_of<int32_t>({FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32}); };
  const int64_t parts = c.once_in(8) ? c.one_of({0, 1, 65536}) : 1 + c.below(4);
  const int64_t batch = small_count(c), heads = small_count(c), seqlen = length(c);
  const int64_t d = c.once_in(4) ? 8 * (1 + c.below(64)) : 8 * (1 + c.below(3));
  p.o_parts = layouts.rows(dtype(), {parts, batch, seqlen, heads, d}, false);
  p.lse_parts = layouts.plain(FA3_DTYPE_FP32, {parts, batch, heads, seqlen}, false);
  p.o = layouts.rows(dtype(), {batch, seqlen, heads, d}, true);
  if (c.once_in(2)) p.lse = layouts.plain(FA3_DTYPE_FP32, {batch, heads, seqlen}, true);
}

void change(fa3_tensor& t, Choices& c) {
  switch (c.below(6)) {
    case 0: t.dim[c.below(FA3_MAX_RANK)] = odd_number(c); break;
    case 1: t.stride[c.below(FA3_MAX_RANK)] = odd_number(c); break;
    case 2: {
      int64_t& stride = t.stride[c.below(FA3_MAX_RANK)];
      stride = plus(stride, c.one_of({-16, -8, -4, -1, 1, 4, 8, 16}));
      break;
    }
    case 3:
      t.data = c.once_in(4)   ? nullptr
               : c.once_in(3) ? reinterpret_cast<void*>(c.bits())
                              : reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(t.data) + c.below(32));
      break;
    case 4: t.dtype = static_cast<int32_t>(c.once_in(3) ? odd_number(c) : c.below(8)); break;
    default: t.rank = static_cast<int32_t>(c.once_in(3) ? odd_number(c) : c.below(7));
  }
}

namespace {
template <class Params>
void change_attention(Params& p, Choices& c) {
  switch (c.below(4)) {
    case 0: p.flags = c.once_in(3) ? c.bits() : static_cast<uint64_t>(c.below(16)); break;
    case 1: p.mask = c.below(8) - 1; break;
    case 2: p.softmax_scale = c.one_of({-1.0f, INFINITY, NAN, 3e38f, -0.0f, 1e-45f}); break;
    default: p.kernel = any_kernel(c);
  }
}
}  // namespace

namespace {
template <class Params>
void change_planned(Params& p, Choices& c) {
  const auto number = [&] { return static_cast<int32_t>(odd_number(c)); };
  switch (c.below(5)) {
    case 0: p.window_left = number(); break;
    case 1: p.window_right = number(); break;
    case 2: p.max_seqlen_q = number(); break;
    case 3: p.max_seqlen_k = number(); break;
    default: make_window(p, c);
  }
}
}  // namespace

template <class Params>
void change_transforms(Params& p, Choices& c) {
  if (c.once_in(2)) p.softcap = c.one_of({-1.0f, INFINITY, NAN, 3e38f, -0.0f, 1e-45f, 20.0f});
  else p.reserved = c.below(3);
}
void change_scalars(fa3_forward_params& p, Choices& c) {
  if (c.once_in(2)) return change_attention(p, c);
  switch (c.below(9)) {
    case 7:
    case 8: change_transforms(p, c); break;
    case 0: p.schedule_bytes = static_cast<size_t>(odd_number(c)); break;
    case 1: p.schedule = c.once_in(2) ? nullptr : reinterpret_cast<void*>(c.bits()); break;
    default: change_planned(p, c);
  }
}
void change_scalars(fa3_backward_params& p, Choices& c) {
  switch (c.below(5)) {
    case 0: change_transforms(p, c); break;
    case 1:
    case 2: change_attention(p, c); break;
    default: change_planned(p, c);
  }
}
void change_scalars(fa3_quantize_params& p, Choices& c) {
  switch (c.below(3)) {
    case 0: p.flags = c.once_in(3) ? c.bits() : static_cast<uint64_t>(c.below(8)); break;
    case 1: p.softmax_scale = c.one_of({-1.0f, INFINITY, NAN, 3e38f, -0.0f, 1e-45f}); break;
    default: p.reserved = c.below(3);
  }
}
void change_scalars(fa3_combine_params& p, Choices& c) { p.flags = static_cast<uint64_t>(c.below(3)); }

}  // namespace fa3::test
