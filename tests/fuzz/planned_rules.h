// What fa3.h says of varlen sequences, pages, windows and sinks, of a forward call or of the one whose gradients are
// wanted.
#pragma once
#include <algorithm>
#include <cmath>
#include <iterator>

#include "judge.h"

namespace fa3::test {

constexpr int64_t max_planned = (1 << 30) - 2048;  // rows of a tensor or a sequence

// A window that is another mask becomes it.
inline void judge_window(Judge& j, fa3_forward_params& p) {
  const int32_t left = p.window_left, right = p.window_right;
  j.wrong_if(p.mask < FA3_MASK_NONE || p.mask > FA3_MASK_CHUNK, "mask");
  if (p.mask == FA3_MASK_WINDOW) {
    j.wrong_if(left < -1, "window_left"), j.wrong_if(right < -1, "window_right");
    if (left != -1 || (right != 0 && right != -1)) return;
    p.mask = right == 0 ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE;
  } else if (p.mask == FA3_MASK_CHUNK) {
    j.wrong_if(left < 1, "window_left"), j.wrong_if(right != 0 && right != -1, "window_right");
  } else {
    j.wrong_if(left != 0, "window_left"), j.wrong_if(right != 0, "window_right");
  }
}

// The tensors of varlen sequences, pages and sinks.
struct PlannedCall {
  const fa3_forward_params& p;
  const bool packed_q = p.cu_seqlens_q.rank != 0, packed_k = p.cu_seqlens_k.rank != 0,
             pages = p.page_table.rank != 0, cache = p.cache_batch_idx.rank != 0, caps = p.softcap != 0,
             slopes = p.alibi_slopes.rank != 0, qv = p.qv.rank != 0;
  const Named lengths[6] = {{"cu_seqlens_q", &p.cu_seqlens_q}, {"cu_seqlens_k", &p.cu_seqlens_k},
                            {"seqused_q", &p.seqused_q},       {"seqused_k", &p.seqused_k},
                            {"leftpad_k", &p.leftpad_k},       {"cache_batch_idx", &p.cache_batch_idx}};

  // Dims of q, k and v are known to be right.
  Wide batch() const { return packed_q ? Wide{p.cu_seqlens_q.dim[0]} - 1 : Wide{p.q.dim[0]}; }
  int64_t rows_q() const { return p.q.dim[packed_q ? 0 : 1]; }
  int64_t heads() const { return p.q.dim[packed_q ? 1 : 2]; }
  int64_t head_dim() const { return p.q.dim[packed_q ? 2 : 3]; }
  int64_t rows_k() const { return p.k.dim[packed_k ? 0 : 1]; }
  int64_t heads_kv() const { return p.k.dim[packed_k ? 1 : 2]; }
  int64_t head_dim_v() const { return p.v.dim[packed_k ? 2 : 3]; }
  Wide most_keys() const { return pages ? Wide{p.page_table.dim[1]} * p.k.dim[1] : Wide{rows_k()}; }
  Wide seqlen_q() const { return packed_q ? std::min<Wide>(p.max_seqlen_q, rows_q()) : Wide{rows_q()}; }
  Wide seqlen_k() const { return p.max_seqlen_k ? std::min<Wide>(p.max_seqlen_k, most_keys()) : most_keys(); }

  bool bounds_keys() const { return !packed_k && p.max_seqlen_k != 0 && p.max_seqlen_k != p.k.dim[1]; }
  static int64_t columns(const fa3_tensor& t) { return t.rank == 3 || t.rank == 4 ? t.dim[t.rank - 1] : 0; }
  bool wide() const { return qv || columns(p.q) > 256 || columns(p.v) > 256; }
  // Is V the first columns of K, with up to 64 behind them?
  bool v_in_k() const {
    const int64_t beside = head_dim() - head_dim_v();
    if (qv || head_dim() <= 256 || beside <= 0 || beside > 64) return false;
    if (!has_elements(p.v)) return true;
    for (int i = 0; i < p.v.rank - 1; ++i)
      if (p.v.dim[i] > 1 && p.v.stride[i] != p.k.stride[i]) return false;
    return p.v.data == p.k.data;
  }
  // Is v alone of e4m3, a latent cache with scales of its own?
  bool latent() const {
    return qv && p.q.dtype != FA3_DTYPE_E4M3 && p.k.dtype != FA3_DTYPE_E4M3 && p.v.dtype == FA3_DTYPE_E4M3;
  }
  // Is o fp32 under q of 16 bits?
  bool widens_o() const {
    return p.o.dtype == FA3_DTYPE_FP32 && (p.q.dtype == FA3_DTYPE_BF16 || p.q.dtype == FA3_DTYPE_FP16);
  }
  // Is there anything of it, so that the call takes kernels of its own?
  bool any() const {
    return p.mask > FA3_MASK_CAUSAL_BOTTOM_RIGHT ||
           (p.flags & (FA3_FLAG_BATCH_INVARIANT | FA3_FLAG_CENTERED_K)) || pages || p.sinks.rank != 0 ||
           bounds_keys() || caps || slopes || wide() || widens_o() ||
           std::any_of(std::begin(lengths), std::end(lengths), [](const Named& t) { return t.tensor->rank != 0; });
  }

  void kinds(Judge& j) const {
    j.wrong_if(pages && (packed_k || cache || p.leftpad_k.rank != 0), "page_table");
    j.wrong_if(cache && packed_k, "cache_batch_idx");
    j.wrong_if((p.flags & FA3_FLAG_TWO_LEVEL) && any(), "flags");
    j.wrong_if(p.q.dtype == FA3_DTYPE_E4M3 && p.v.rank == 5 && any(), "v");
    j.wrong_if(!(p.softcap >= 0 && p.softcap < INFINITY), "softcap"), j.wrong_if(p.reserved != 0, "reserved");
    j.wrong_if(p.q.dtype == FA3_DTYPE_E4M3 && (slopes || qv), "q");
    j.wrong_if(caps && p.lse_offset.rank != 0, "softcap");
    j.wrong_if(wide() && slopes, "alibi_slopes");
    j.wrong_if(latent() && (caps || slopes), "v");
    if (qv) j.rank("qv", p.qv, 4 - packed_q), j.wrong_if(p.qv.dtype != p.q.dtype, "qv");
    j.wrong_if(slopes && (p.mask == FA3_MASK_CHUNK || (p.flags & FA3_FLAG_BATCH_INVARIANT)), "alibi_slopes");
    if (slopes) {
      j.wrong_if(p.alibi_slopes.rank != 1 && p.alibi_slopes.rank != 2, "alibi_slopes");
      j.wrong_if(p.alibi_slopes.dtype != FA3_DTYPE_FP32, "alibi_slopes");
    }
    for (const auto& [name, t] : lengths)
      if (t->rank != 0) j.rank(name, *t, 1), j.wrong_if(t->dtype != FA3_DTYPE_INT32, name);
    if (pages) j.rank("page_table", p.page_table, 2), j.wrong_if(p.page_table.dtype != FA3_DTYPE_INT32, "page_table");
    if (p.sinks.rank != 0) j.rank("sinks", p.sinks, 1), j.wrong_if(p.sinks.dtype != FA3_DTYPE_FP32, "sinks");
  }
  void dims(Judge& j) const {
    if (qv) {
      j.dims("qv", p.qv);
      if (packed_q) j.dims_are("qv", p.qv, {rows_q(), heads(), head_dim_v()});
      else j.dims_are("qv", p.qv, {p.q.dim[0], rows_q(), heads(), head_dim_v()});
    }
    for (const auto& [name, t] : lengths) {
      if (t->rank == 0) continue;
      const bool sums = t == &p.cu_seqlens_q || t == &p.cu_seqlens_k;
      j.dims(name, *t);
      j.wrong_if(t->dim[0] != batch() + sums || (sums && t->dim[0] < 1), name);
    }
    if (pages) j.dims("page_table", p.page_table), j.wrong_if(p.page_table.dim[0] != batch(), "page_table");
    if (p.sinks.rank != 0) j.dims_are("sinks", p.sinks, {heads()});
    if (p.alibi_slopes.rank == 1) j.dims_are("alibi_slopes", p.alibi_slopes, {heads()});
    if (p.alibi_slopes.rank == 2) j.dims_are("alibi_slopes", p.alibi_slopes, {int64_t(batch()), heads()});
  }
  void maxima(Judge& j) const {
    if (packed_q) j.wrong_if(p.max_seqlen_q < 1, "max_seqlen_q");
    else j.wrong_if(p.max_seqlen_q != 0 && p.max_seqlen_q != rows_q(), "max_seqlen_q");
    if (packed_k) j.wrong_if(p.max_seqlen_k < 1, "max_seqlen_k");
    else j.wrong_if(p.max_seqlen_k < 0 || p.max_seqlen_k > most_keys(), "max_seqlen_k");
    if (!any()) return;
    j.wrong_if(seqlen_q() > max_planned || (packed_q && rows_q() > max_planned), "q");
    j.wrong_if(seqlen_k() > max_planned || (packed_k && rows_k() > max_planned), pages ? "page_table" : "k");
  }
  void layouts(Judge& j, bool pointers) const {
    const Layout numbers{.last_1 = true, .pointers = pointers};
    for (const auto& [name, t] : lengths)
      if (t->rank != 0) j.layout(name, *t, numbers);
    if (pages) j.layout("page_table", p.page_table, {.last_1 = true, .max_stride = INT32_MAX, .pointers = pointers});
    if (p.sinks.rank != 0) j.layout("sinks", p.sinks, {.pointers = pointers});
    if (slopes) j.layout("alibi_slopes", p.alibi_slopes, {.pointers = pointers});
  }
  void schedule(Judge& j) const {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(p.schedule);
    j.wrong_if((begin == 0 && p.schedule_bytes != 0) || begin % 16 != 0, "schedule");
    j.wrong_if(Wide{begin} + p.schedule_bytes >= Wide{1} << 64, "schedule");
    j.open_if(p.schedule_bytes >= uint64_t{1} << 63, "schedule");
  }
  // What the library counts of them in 32 bits: far more than there are.
  void sizes(Judge& j) const {
    const Wide chunks = p.mask == FA3_MASK_CHUNK ? seqlen_q() / p.window_left + 2 : Wide{1};
    const Wide blocks = seqlen_q() / 32 + seqlen_k() / 256 + 4096;
    j.open_if(heads() * batch() * chunks * blocks > max_tiles / 4, "q");
    // Rows of partial results: those of queries, for each 2048 keys that they may see.
    const Wide parts = p.flags & FA3_FLAG_BATCH_INVARIANT ? std::min<Wide>(seqlen_k() / 2048 + 1, 128) : 0;
    j.open_if(heads() * batch() * chunks * (seqlen_q() + 4096) * parts > INT32_MAX / 2, "q");
    // Rows of packed heads, up to a power of two for each query.
    j.open_if(heads_kv() && Wide{2} * rows_q() * (heads() / heads_kv()) > max_planned, "q");
  }
};

}  // namespace fa3::test
