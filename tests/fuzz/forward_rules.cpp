#include <algorithm>

#include "judge.h"
#include "planned_rules.h"

namespace fa3::test {
namespace {

// rows: of which each FA3_SCALE_ROWS may have a scale of their own.
void judge_scale(Judge& j, const char* name, const fa3_tensor& t, Wide batch, int64_t heads, int64_t rows,
                 const Layout& layout) {
  j.wrong_if(t.dtype != FA3_DTYPE_FP32, name);
  j.rank(name, t, 3);
  if (t.rank != 3) return;
  j.dims(name, t);
  j.wrong_if(t.dim[0] != 1 && t.dim[0] != batch, name);
  j.wrong_if(t.dim[1] != 1 && t.dim[1] != heads, name);
  j.wrong_if(t.dim[2] != 1 && t.dim[2] != divided_up(rows, FA3_SCALE_ROWS), name);
  j.layout(name, t, layout);
}

}  // namespace

Verdict judge(const fa3_forward_params* params, Mode mode) {
  Judge j;
  fa3_forward_params p = complete(params);
  j.wrong_if(!is_sensible(params, offsetof(fa3_forward_params, lse)), "params->struct_size");
  const bool host = mode == Mode::reference, pointers = mode != Mode::shapes;
  const bool e4m3 = p.q.dtype == FA3_DTYPE_E4M3, fp32 = p.q.dtype == FA3_DTYPE_FP32;
  const bool tiles = e4m3 && p.v.rank == 5, wants_lse = p.lse.data != nullptr, latent = PlannedCall{p}.latent();
  const uint64_t known = FA3_FLAG_DETERMINISTIC | FA3_FLAG_TWO_LEVEL | FA3_FLAG_BATCH_INVARIANT;
  j.wrong_if(p.flags & ~known, "flags");
  j.wrong_if((p.flags & FA3_FLAG_TWO_LEVEL) && !e4m3, "flags");
  judge_window(j, p);
  j.softmax_scale(p.softmax_scale);

  j.wrong_if(!is_one_of(p.q.dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_E4M3}) && !(host && fp32), "q");
  j.wrong_if(p.k.dtype != p.q.dtype, "k");
  j.wrong_if(p.v.dtype != p.q.dtype && !latent, "v");
  const bool o_has_16_bits = is_one_of(p.o.dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16});
  if (e4m3) j.wrong_if(!o_has_16_bits && p.o.dtype != FA3_DTYPE_E4M3 && !(host && p.o.dtype == FA3_DTYPE_FP32), "o");
  else if (host) j.wrong_if(!o_has_16_bits && p.o.dtype != FA3_DTYPE_FP32, "o");
  else j.wrong_if(p.o.dtype != p.q.dtype && !PlannedCall{p}.widens_o(), "o");

  const bool needs_o_scale = e4m3 && p.o.dtype == FA3_DTYPE_E4M3;
  j.wrong_if((p.q_scale.rank != 0) != e4m3, "q_scale");
  j.wrong_if((p.k_scale.rank != 0) != e4m3, "k_scale");
  j.wrong_if((p.v_scale.rank != 0) != (e4m3 || latent), "v_scale");
  j.wrong_if((p.o_scale.rank != 0) != needs_o_scale, "o_scale");
  j.wrong_if(p.v_mean.rank != 0 && !e4m3, "v_mean");
  j.wrong_if(p.lse_offset.rank != 0 && !e4m3, "lse_offset");

  const PlannedCall planned{p};
  const bool packed_q = planned.packed_q, packed_k = planned.packed_k;
  const bool takes_offset = wants_lse || p.sinks.rank != 0;
  planned.kinds(j);
  j.wrong_if(!host && planned.widens_o() && (planned.caps || planned.slopes || planned.wide()), "o");
  j.rank("q", p.q, 4 - packed_q), j.rank("k", p.k, 4 - packed_k), j.rank("o", p.o, 4 - packed_q);
  j.rank("v", p.v, tiles ? 5 : 4 - packed_k);
  if (wants_lse) j.rank("lse", p.lse, 3 - packed_q), j.wrong_if(p.lse.dtype != FA3_DTYPE_FP32, "lse");
  if (!j.good()) return j.verdict;

  j.dims("q", p.q), j.dims("k", p.k), j.dims("v", p.v), j.dims("o", p.o);
  const int64_t rows_q = planned.rows_q(), heads = planned.heads(), rows_k = planned.rows_k(),
                heads_kv = planned.heads_kv(), head_dim = planned.head_dim(), head_dim_v = planned.head_dim_v();
  planned.dims(j), planned.maxima(j);
  j.wrong_if(!packed_k && !planned.pages && !planned.cache && p.k.dim[0] != planned.batch(), "k");
  j.wrong_if(p.k.dim[3 - packed_k] != head_dim, "k");
  if (tiles) j.dims_are("v", p.v, {p.q.dim[0], heads_kv, rows_k / 16 + (rows_k % 16 != 0), head_dim_v, 16});
  else if (packed_k) j.dims_are("v", p.v, {rows_k, heads_kv});
  else j.dims_are("v", p.v, {p.k.dim[0], rows_k, heads_kv});
  if (packed_q) j.dims_are("o", p.o, {rows_q, heads, head_dim_v});
  else j.dims_are("o", p.o, {p.q.dim[0], rows_q, heads, head_dim_v});
  j.heads("k", heads, heads_kv);
  const int unit = fp32 ? 1 : e4m3 ? 16 : 8;
  j.head_dim("q", head_dim, unit, e4m3 ? 256 : 576);
  j.head_dim("v", head_dim_v, latent ? 16 : unit, e4m3 ? 256 : 512);
  j.wrong_if(planned.qv && head_dim > 64, "q");
  if (wants_lse) {
    j.dims("lse", p.lse);
    if (packed_q) j.dims_are("lse", p.lse, {heads, rows_q});
    else j.dims_are("lse", p.lse, {p.q.dim[0], heads, rows_q});
  }
  if (!j.good()) return j.verdict;

  const Layout rows{.rows = true, .host = host, .pointers = pointers};
  const Layout plain{.host = host, .max_stride = host ? INT64_MAX : INT32_MAX, .pointers = pointers};
  Layout written = rows;
  written.output = true;
  j.layout("q", p.q, rows), j.layout("k", p.k, rows), j.layout("o", p.o, written);
  if (planned.qv) j.layout("qv", p.qv, rows);
  j.layout("v", p.v, tiles ? Layout{.host = host, .pointers = pointers} : rows);
  if (tiles) {
    const bool empty = !has_elements(p.v);
    for (int i = 0; i < 3; ++i)
      if (p.v.dim[i] > 1) {
        j.wrong_if(!empty && !host && p.v.stride[i] % 16 != 0, "v");
        j.open_if(host || empty, "v");
      }
    j.wrong_if(!empty && (p.v.stride[3] != 16 || p.v.stride[4] != 1), "v");
    j.open_if(empty, "v");
    j.wrong_if(!empty && pointers && !host && reinterpret_cast<uintptr_t>(p.v.data) % 16 != 0, "v");
  }
  if (wants_lse) j.layout("lse", p.lse, {.output = true, .host = host, .pointers = pointers});
  planned.layouts(j, pointers);
  if (mode == Mode::device) planned.schedule(j);
  if (latent) {
    const int64_t groups = divided_up(head_dim_v, FA3_LATENT_SCALE_COLUMNS);
    if (packed_k) judge_fp32(j, "v_scale", p.v_scale, {rows_k, heads_kv, groups}, rows);
    else judge_fp32(j, "v_scale", p.v_scale, {p.k.dim[0], rows_k, heads_kv, groups}, rows);
  }
  if (e4m3) {
    // Without scales of blocks for what is planned.
    const bool any = planned.any();
    const int64_t batch = int64_t(any ? planned.batch() : Wide{p.q.dim[0]}), batch_k = any ? batch : p.k.dim[0];
    judge_scale(j, "q_scale", p.q_scale, batch, heads, any ? 1 : rows_q, plain);
    judge_scale(j, "k_scale", p.k_scale, batch_k, heads_kv, any ? 1 : rows_k, plain);
    judge_scale(j, "v_scale", p.v_scale, batch_k, heads_kv, any ? 1 : rows_k, plain);
    if (needs_o_scale) judge_fp32(j, "o_scale", p.o_scale, {1}, plain);
    Layout mean = rows;
    mean.max_stride = plain.max_stride;
    if (p.v_mean.rank != 0) judge_fp32(j, "v_mean", p.v_mean, {batch, heads_kv, head_dim_v}, mean);
    if (p.lse_offset.rank != 0 && takes_offset) {
      if (packed_q) judge_fp32(j, "lse_offset", p.lse_offset, {heads, rows_q}, plain);
      else judge_fp32(j, "lse_offset", p.lse_offset, {p.q.dim[0], heads, rows_q}, plain);
    }
  }
  if (!host) j.open_if(e4m3 || planned.any(), "no kernel of this build");
  if (!host && j.good()) {
    const bool any = planned.any();
    // A named kernel without a second query gets K and V as they are.
    const fa3_kernel_info* const asked = p.kernel ? kernel_named(p.kernel) : nullptr;
    const bool apart = asked && asked->kind == FA3_KERNEL_FORWARD && !std::strstr(asked->name, "mla");
    const bool v_in_k = !apart && planned.v_in_k();
    j.wrong_if(head_dim > 512 && !planned.qv && !v_in_k && !apart, "q");
    const KernelWanted wanted{FA3_KERNEL_FORWARD, p.q.dtype, v_in_k ? head_dim - head_dim_v : head_dim, head_dim_v,
                              !any && p.mask != FA3_MASK_NONE};
    if (any) planned.sizes(j);
    else judge_sizes(j, p.q, p.k);
    if (judge_kernel(j, p.kernel, wanted)) {
      j.wrong_if((std::strstr(p.kernel, "fa3_fwdplanned") == p.kernel) != any, "params->kernel");
      j.wrong_if((std::strstr(p.kernel, "fp32") != nullptr) != planned.widens_o(), "params->kernel");
      j.wrong_if((std::strstr(p.kernel, "softcap") != nullptr) != planned.caps, "params->kernel");
      j.wrong_if((std::strstr(p.kernel, "alibi") != nullptr) != planned.slopes, "params->kernel");
      j.wrong_if((std::strstr(p.kernel, "mla") != nullptr) != (planned.qv || v_in_k), "params->kernel");
      const bool widens = p.k.dtype == FA3_DTYPE_E4M3 && !e4m3;
      const bool copied = std::strstr(p.kernel, "copied");
      j.wrong_if((std::strstr(p.kernel, "fp8mla") != nullptr) != latent, "params->kernel");
      const bool few = std::strstr(p.kernel, "few") || std::strstr(p.kernel, "rows_");
      const bool pair = std::strstr(p.kernel, "mlacluster");
      j.wrong_if((copied || std::strstr(p.kernel, "fp8kv")) != widens, "params->kernel");
      // Copies can have too many rows. Kernels for few rows take no others, nor do they, or clusters, take calls with
      // FA3_FLAG_BATCH_INVARIANT.
      j.open_if(copied || few || pair, "params->kernel");
      judge_packed_heads(j, p.kernel, rows_q, heads, heads_kv);
    }
    // Which scales and which V a kernel of e4m3 takes, its name tells, the header does not.
    j.open_if(p.kernel && e4m3, "params->kernel");
  }
  if (pointers) {
    std::vector<Named> tensors{{"o", &p.o}};
    if (wants_lse) tensors.push_back({"lse", &p.lse});
    tensors.insert(tensors.end(), {{"q", &p.q}, {"k", &p.k}, {"v", &p.v}});
    if (planned.qv) tensors.push_back({"qv", &p.qv});
    if (e4m3) tensors.insert(tensors.end(), {{"q_scale", &p.q_scale}, {"k_scale", &p.k_scale}, {"v_scale", &p.v_scale},
                                             {"o_scale", &p.o_scale}, {"v_mean", &p.v_mean}});
    if (latent) tensors.push_back({"v_scale", &p.v_scale});
    if (e4m3 && takes_offset) tensors.push_back({"lse_offset", &p.lse_offset});
    tensors.insert(tensors.end(), std::begin(planned.lengths), std::end(planned.lengths));
    tensors.insert(tensors.end(), {{"page_table", &p.page_table}, {"sinks", &p.sinks}});
    if (planned.batch() > 0) tensors.push_back({"alibi_slopes", &p.alibi_slopes});  // else none is read
    fa3_tensor schedule{const_cast<void*>(p.schedule), FA3_DTYPE_E4M3, 1, {}, {1}};
    schedule.dim[0] = static_cast<int64_t>(std::min<size_t>(p.schedule_bytes, INT32_MAX));
    const bool has_schedule = planned.any() && mode == Mode::device;
    if (has_schedule) tensors.push_back({"schedule", &schedule});
    if (has_schedule && p.schedule_bytes > INT32_MAX) j.open_if(true, "o"), j.open_if(true, "lse");
    j.apart(tensors, wants_lse ? 2 : 1);
  }
  j.verdict.whole = true;
  return j.verdict;
}

}  // namespace fa3::test
