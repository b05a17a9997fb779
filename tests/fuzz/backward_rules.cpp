#include <numeric>

#include "planned_rules.h"

namespace fa3::test {
namespace {

// The call whose gradients are wanted.
fa3_forward_params forward_of(const fa3_backward_params& p) {
  fa3_forward_params f = FA3_FORWARD_PARAMS_INIT;
  f.q = p.q, f.k = p.k, f.v = p.v, f.o = p.o, f.lse = p.lse, f.mask = p.mask;
  f.window_left = p.window_left, f.window_right = p.window_right;
  f.max_seqlen_q = p.max_seqlen_q, f.max_seqlen_k = p.max_seqlen_k;
  f.sinks = p.sinks, f.cu_seqlens_q = p.cu_seqlens_q, f.cu_seqlens_k = p.cu_seqlens_k;
  f.seqused_q = p.seqused_q, f.seqused_k = p.seqused_k;
  f.softcap = p.softcap, f.reserved = p.reserved, f.alibi_slopes = p.alibi_slopes;
  f.q_scale = p.q_scale, f.k_scale = p.k_scale, f.v_scale = p.v_scale;
  f.v_mean = p.v_mean, f.lse_offset = p.lse_offset;
  f.flags = p.flags & FA3_FLAG_CENTERED_K;
  return f;
}

// A tensor and its dims behind those of the batch.
struct Shaped {
  Named named;
  bool packed;
  int64_t batch, dims[3];
};

// Does a batched tensor span 2^31 - 1 steps or more?
bool spans_too_much(const fa3_tensor& t) {
  if (!has_elements(t)) return false;  // strides may be any
  const Wide batch = t.dim[0], rows = t.dim[1], entry_stride = batch > 1 ? t.stride[0] : 0;
  const Wide row_stride = rows > 1 ? Wide{t.stride[1]} : entry_stride;
  const Wide step = std::gcd(static_cast<int64_t>(row_stride), static_cast<int64_t>(entry_stride));
  return step > 0 && (batch - 1) * entry_stride + rows * row_stride >= step * INT32_MAX;
}

void judge_kernel_of(Judge& j, const fa3_backward_params& p, const PlannedCall& planned) {
  const bool any = planned.any();
  const KernelWanted wanted{FA3_KERNEL_BACKWARD, p.q.dtype, planned.head_dim(), planned.head_dim_v(),
                            !any && planned.p.mask != FA3_MASK_NONE};
  const fa3_kernel_info* info = judge_kernel(j, p.kernel, wanted);
  if (info == nullptr) return;
  const auto is = [&](const char* prefix) { return std::strstr(p.kernel, prefix) == p.kernel; };
  j.wrong_if(is("fa3_bwdplanned") != any, "params->kernel");
  j.wrong_if((std::strstr(p.kernel, "softcap") != nullptr) != planned.caps, "params->kernel");
  j.wrong_if((std::strstr(p.kernel, "alibi") != nullptr) != planned.slopes, "params->kernel");
  const bool centers = p.flags & FA3_FLAG_CENTERED_K, is_keys_kernel = std::strstr(p.kernel, "_keys_") != nullptr;
  j.wrong_if(!is_keys_kernel && (std::strstr(p.kernel, "centered") != nullptr) != centers, "params->kernel");
  const Wide chunk = planned.p.mask == FA3_MASK_CHUNK ? Wide{p.window_left} : planned.seqlen_k();
  const Wide keys = std::min(planned.seqlen_k(), chunk);
  j.wrong_if((is("fa3_bwdshort") || is("fa3_bwdplannedshort")) && keys > info->block_kv, "params->kernel");
  // The second kernel of two is not named, and the paper's own order of sums is any.
  const bool any_order = (p.flags & FA3_FLAG_DETERMINISTIC) && !info->chosen;
  j.open_if(std::strstr(p.kernel, "queries") || any_order, "params->kernel");
  j.open_if(any_order, "params->flags");
  judge_packed_heads(j, p.kernel, planned.rows_q(), planned.heads(), planned.heads_kv());
}

}  // namespace

Verdict judge(const fa3_backward_params* params, Mode mode) {
  Judge j;
  const fa3_backward_params p = complete(params);
  fa3_forward_params f = forward_of(p);
  j.wrong_if(!is_sensible(params, offsetof(fa3_backward_params, mask)), "params->struct_size");
  const bool host = mode == Mode::reference, pointers = mode != Mode::shapes;
  const bool fp32 = p.q.dtype == FA3_DTYPE_FP32, has_dlse = p.dlse.rank != 0, has_dsinks = p.dsinks.rank != 0;
  const bool centers = p.flags & FA3_FLAG_CENTERED_K;
  j.wrong_if(p.flags & ~uint64_t{FA3_FLAG_DETERMINISTIC | FA3_FLAG_CENTERED_K | FA3_FLAG_ACCUMULATE}, "flags");
  j.wrong_if(centers && (has_dlse || p.sinks.rank != 0 || p.softcap != 0 || p.alibi_slopes.rank != 0), "flags");
  judge_window(j, f);
  j.softmax_scale(p.softmax_scale);
  const PlannedCall planned{f};
  planned.kinds(j);
  j.wrong_if(has_dsinks && p.sinks.rank == 0, "dsinks");
  if (has_dsinks) j.rank("dsinks", p.dsinks, 1), j.wrong_if(p.dsinks.dtype != FA3_DTYPE_FP32, "dsinks");

  const bool packed_q = planned.packed_q, packed_k = planned.packed_k;
  const Named inputs[] = {{"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"o", &p.o}, {"dout", &p.dout}};
  const Named outputs[] = {{"dq", &p.dq}, {"dk", &p.dk}, {"dv", &p.dv}};
  const auto is_of_k = [&](const fa3_tensor* t) { return t == &p.k || t == &p.v || t == &p.dk || t == &p.dv; };
  const bool e4m3 = p.q.dtype == FA3_DTYPE_E4M3;
  j.wrong_if(!is_one_of(p.q.dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_E4M3}) && !(host && fp32), "q");
  j.wrong_if((p.q_scale.rank != 0) != e4m3, "q_scale");
  j.wrong_if((p.k_scale.rank != 0) != e4m3, "k_scale");
  j.wrong_if((p.v_scale.rank != 0) != e4m3, "v_scale");
  j.wrong_if(p.v_mean.rank != 0 && !e4m3, "v_mean");
  j.wrong_if(p.lse_offset.rank != 0 && !e4m3, "lse_offset");
  // What is made by chance has no scales, so that no more is to be said of e4m3.
  if (e4m3) return j.verdict;
  // Gradients may be float32, on the device all or none.
  const bool adds = p.flags & FA3_FLAG_ACCUMULATE;
  const bool some_fp32 = std::any_of(std::begin(outputs), std::end(outputs),
                                     [](const Named& t) { return t.tensor->dtype == FA3_DTYPE_FP32; });
  const bool fp32_gradients = adds || (!host && some_fp32);
  const auto check_kind = [&](const Named& t, bool as_q) {
    if (as_q) j.wrong_if(t.tensor->dtype != p.q.dtype, t.name);
    else j.wrong_if(!is_one_of(t.tensor->dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32}), t.name);
    j.rank(t.name, *t.tensor, 4 - (is_of_k(t.tensor) ? packed_k : packed_q));
  };
  for (const Named& t : inputs) check_kind(t, !host || t.tensor == &p.k || t.tensor == &p.v || t.tensor == &p.q);
  for (const Named& t : outputs) {
    check_kind(t, !host && t.tensor->dtype != FA3_DTYPE_FP32);
    j.wrong_if(fp32_gradients && t.tensor->dtype != FA3_DTYPE_FP32, t.name);
  }
  j.rank("lse", p.lse, 3 - packed_q), j.wrong_if(p.lse.dtype != FA3_DTYPE_FP32, "lse");
  if (has_dlse) j.rank("dlse", p.dlse, 3 - packed_q), j.wrong_if(p.dlse.dtype != FA3_DTYPE_FP32, "dlse");
  if (!j.good()) return j.verdict;

  const int64_t rows_q = planned.rows_q(), heads = planned.heads(), rows_k = planned.rows_k(),
                heads_kv = planned.heads_kv(), head_dim = planned.head_dim(), head_dim_v = planned.head_dim_v();
  for (const Named& t : inputs) j.dims(t.name, *t.tensor);
  for (const Named& t : outputs) j.dims(t.name, *t.tensor);
  planned.dims(j), planned.maxima(j);
  if (has_dsinks) j.dims("dsinks", p.dsinks), j.dims_are("dsinks", p.dsinks, {heads});
  j.wrong_if((!packed_k && p.k.dim[0] != planned.batch()) || p.k.dim[3 - packed_k] != head_dim, "k");
  const Shaped shaped[] = {{{"v", &p.v}, packed_k, p.k.dim[0], {rows_k, heads_kv, head_dim_v}},
                           {{"o", &p.o}, packed_q, p.q.dim[0], {rows_q, heads, head_dim_v}},
                           {{"dout", &p.dout}, packed_q, p.q.dim[0], {rows_q, heads, head_dim_v}},
                           {{"dq", &p.dq}, packed_q, p.q.dim[0], {rows_q, heads, head_dim}},
                           {{"dk", &p.dk}, packed_k, p.k.dim[0], {rows_k, heads_kv, head_dim}},
                           {{"dv", &p.dv}, packed_k, p.k.dim[0], {rows_k, heads_kv, head_dim_v}}};
  for (const auto& [t, packed, batch, dims] : shaped) {
    if (packed) j.dims_are(t.name, *t.tensor, {dims[0], dims[1], dims[2]});
    else j.dims_are(t.name, *t.tensor, {batch, dims[0], dims[1], dims[2]});
  }
  for (const Named& t : {Named{"lse", &p.lse}, Named{"dlse", &p.dlse}}) {
    if (t.tensor == &p.dlse && !has_dlse) continue;
    j.dims(t.name, *t.tensor);
    if (packed_q) j.dims_are(t.name, *t.tensor, {heads, rows_q});
    else j.dims_are(t.name, *t.tensor, {p.q.dim[0], heads, rows_q});
  }
  j.heads("k", heads, heads_kv);
  j.head_dim("q", head_dim, fp32 ? 1 : 8), j.head_dim("v", head_dim_v, fp32 ? 1 : 8);
  if (!j.good()) return j.verdict;

  for (const Named& t : inputs) j.layout(t.name, *t.tensor, {.rows = true, .host = host, .pointers = pointers});
  for (const Named& t : outputs)
    j.layout(t.name, *t.tensor, {.output = true, .rows = true, .host = host, .pointers = pointers});
  j.layout("lse", p.lse, {.host = host, .pointers = pointers});
  if (has_dlse) j.layout("dlse", p.dlse, {.host = host, .pointers = pointers});
  planned.layouts(j, pointers);
  if (has_dsinks) j.layout("dsinks", p.dsinks, {.output = true, .pointers = pointers});
  if (!host && j.good()) {
    j.open_if(planned.any(), "no kernel of this build");
    if (planned.any()) planned.sizes(j);
    else judge_sizes(j, p.q, p.k);
    // Rows are counted here, and blocks of keys; of planned calls also rows of all batch entries.
    if (planned.any()) {
      j.open_if(Wide{packed_q ? 1 : p.q.dim[0]} * rows_q * std::max<Wide>(heads, 2) > max_tiles / 2, "q");
      j.open_if(Wide{packed_k ? 1 : p.k.dim[0]} * rows_k * std::max<Wide>(heads_kv, 2) > max_tiles / 2, "k");
      for (const auto& [t, packed, batch, dims] : shaped) j.open_if(!packed && spans_too_much(*t.tensor), t.name);
      j.open_if(!packed_q && spans_too_much(p.q), "q"), j.open_if(!packed_k && spans_too_much(p.k), "k");
    }
    const Wide sequences = planned.batch() + 1;
    j.open_if(sequences * heads * planned.seqlen_q() > max_tiles / 2, "q");
    j.open_if(sequences * heads_kv * (planned.seqlen_k() / 32 + 1) > max_tiles / 4, "k");
    judge_kernel_of(j, p, planned);
    if (fp32_gradients) {
      const fa3_kernel_info* const info = p.kernel ? kernel_named(p.kernel) : nullptr;
      // Those that store dq at once, and the paper's own.
      const bool other_kernel =
          info && (std::strstr(p.kernel, "fa3_bwdshort") || std::strstr(p.kernel, "fa3_bwdplannedshort"));
      j.wrong_if(other_kernel || (info && !info->chosen), "params->kernel");
    }
  }
  if (pointers) {
    std::vector<Named> tensors(std::begin(outputs), std::end(outputs));
    tensors.push_back({"dsinks", &p.dsinks});
    tensors.insert(tensors.end(), std::begin(inputs), std::end(inputs));
    tensors.insert(tensors.end(), {{"lse", &p.lse}, {"dlse", &p.dlse}, {"sinks", &p.sinks}});
    if (planned.batch() > 0) tensors.push_back({"alibi_slopes", &p.alibi_slopes});  // else none is read
    tensors.insert(tensors.end(), std::begin(planned.lengths), std::end(planned.lengths));
    j.apart(tensors, std::size(outputs) + 1);
  }
  j.verdict.whole = true;
  return j.verdict;
}

}  // namespace fa3::test
