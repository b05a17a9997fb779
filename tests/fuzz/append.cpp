// fa3_append: parameters that are right, and what the header says of any.
#include "judge.h"
#include "layouts.h"

namespace fa3::test {

std::vector<Member> members(fa3_append_params& p) {
  return {{"k", &p.k, false},
          {"v", &p.v, false},
          {"k_cache", &p.k_cache, true},
          {"v_cache", &p.v_cache, true},
          {"cache_seqlens", &p.cache_seqlens, false},
          {"cu_seqlens_new", &p.cu_seqlens_new, false},
          {"seqused_new", &p.seqused_new, false},
          {"page_table", &p.page_table, false},
          {"cache_batch_idx", &p.cache_batch_idx, false},
          {"slot_mapping", &p.slot_mapping, false},
          {"q", &p.q, false},
          {"q_out", &p.q_out, true},
          {"rotary_cos", &p.rotary_cos, false},
          {"rotary_sin", &p.rotary_sin, false},
          {"rotary_positions", &p.rotary_positions, false},
          {"k_scale", &p.k_scale, false},
          {"v_scale", &p.v_scale, false},
          {"q_scale", &p.q_scale, false}};
}

void make(fa3_append_params& p, Choices& c, bool) {
  p = FA3_APPEND_PARAMS_INIT;
  Layouts layouts(c, false);
  enum { caches, chosen_caches, pages, slots };
  const int where = c.below(4);
  const bool packed = where == slots || c.once_in(2), has_k = where == slots || !c.once_in(6);
  const bool has_v = has_k && !c.once_in(6), has_q = !has_k || c.once_in(2), rotary = c.once_in(2);
  const int64_t batch = small_count(c), rows = c.once_in(64) ? length(c) : c.below(6), heads_kv = small_count(c);
  const int64_t total = packed ? c.below(12) : 0, sequences = where == slots ? 1 : batch;
  const int32_t dtype = dtype_of_16_bits(c);
  const auto out = [&] { return c.once_in(3) ? int32_t{FA3_DTYPE_E4M3} : dtype; };
  const auto columns = [&](int32_t of) {
    const int unit = of == FA3_DTYPE_E4M3 ? 16 : 8;
    return int64_t{unit} * (c.once_in(8) ? 1 + c.below(1024 / unit) : 1 + c.below(3));
  };
  const auto elements = [&](int32_t of, int64_t heads, int64_t d, bool output) {
    return packed ? layouts.rows(of, {total, heads, d}, output) : layouts.rows(of, {batch, rows, heads, d}, output);
  };
  const auto numbers = [&](int64_t count, bool wide) {
    fa3_tensor t = layouts.plain(wide && c.once_in(2) ? FA3_DTYPE_INT64 : FA3_DTYPE_INT32, {count}, false);
    t.stride[0] = 1;
    return t;
  };
  const auto scale = [&](int64_t heads) {
    return layouts.plain(FA3_DTYPE_FP32, {c.once_in(2) ? 1 : sequences, c.once_in(2) ? 1 : heads, 1}, false);
  };
  const int32_t k_out = out(), v_out = out(), q_out = out();
  const int64_t d = columns(has_q && q_out == FA3_DTYPE_E4M3 ? q_out : k_out), cache_rows = c.below(10);
  const int64_t all_caches = where == caches ? batch : 1 + c.below(9);
  if (has_k) {
    p.k = elements(dtype, heads_kv, d, false);
    p.k_cache = layouts.rows(k_out, {all_caches, cache_rows, heads_kv, d}, true);
    if (k_out == FA3_DTYPE_E4M3) p.k_scale = scale(heads_kv);
  }
  if (has_v) {
    const int64_t dv = columns(v_out);
    p.v = elements(dtype, heads_kv, dv, false);
    p.v_cache = layouts.rows(v_out, {all_caches, cache_rows, heads_kv, dv}, true);
    if (v_out == FA3_DTYPE_E4M3) p.v_scale = scale(heads_kv);
  }
  if (has_q) {
    const int64_t heads = small_count(c);
    p.q = elements(dtype, heads, d, false), p.q_out = elements(q_out, heads, d, true);
    if (q_out == FA3_DTYPE_E4M3) p.q_scale = scale(heads);
    else if (c.once_in(4)) p.q = p.q_out;
  }
  if (where == slots) {
    p.slot_mapping = numbers(total, true);
  } else {
    if (has_k || c.once_in(2)) p.cache_seqlens = numbers(batch, false);
    if (packed) p.cu_seqlens_new = numbers(batch + 1, false);
    if (c.once_in(3)) p.seqused_new = numbers(batch, false);
    if (has_k && where == chosen_caches) p.cache_batch_idx = numbers(batch, false);
    if (has_k && where == pages) {
      p.page_table = layouts.plain(FA3_DTYPE_INT32, {batch, c.below(5)}, false);
      p.page_table.stride[0] = p.page_table.dim[1] + c.below(3), p.page_table.stride[1] = 1;
    }
  }
  if (rotary) {
    const int64_t half = 8 * c.below(static_cast<int>(d / 16) + 1), positions = c.below(12);
    p.rotary_cos = layouts.rows(FA3_DTYPE_FP32, {positions, half}, false);
    p.rotary_sin = layouts.rows(FA3_DTYPE_FP32, {positions, half}, false);
    if (p.cache_seqlens.rank == 0 || c.once_in(2)) p.rotary_positions = numbers(where == slots ? total : batch, true);
  }
  p.flags = static_cast<uint64_t>(c.below(2));
}

void change_scalars(fa3_append_params& p, Choices& c) { p.flags = static_cast<uint64_t>(c.below(4)); }

namespace {

bool is_given(const fa3_tensor& t) { return t.rank != 0; }

// A call's rules, of which each step needs that the one before has found nothing wrong.
class AppendJudge : public Judge {
 public:
  explicit AppendJudge(const fa3_append_params& params)
      : p(params), has_k(is_given(p.k)), has_v(is_given(p.v)), has_q(is_given(p.q)), first(has_k ? p.k : p.q),
        first_name(has_k ? "k" : "q"), packed(first.rank == 3), alone(packed && !is_given(p.cu_seqlens_new)),
        slots(is_given(p.slot_mapping)) {}

  void presence() {
    const Named pairs[][2] = {{{"k", &p.k}, {"k_cache", &p.k_cache}},
                              {{"v", &p.v}, {"v_cache", &p.v_cache}},
                              {{"q", &p.q}, {"q_out", &p.q_out}},
                              {{"rotary_cos", &p.rotary_cos}, {"rotary_sin", &p.rotary_sin}}};
    for (const auto& [a, b] : pairs)
      for (const Named& t : {a, b}) wrong_if(is_given(*a.tensor) != is_given(*b.tensor), t.name);
    wrong_if((has_v && !has_k) || (!has_k && !has_q), "k");
    wrong_if(first.rank != 3 && first.rank != 4, first_name);
    const Named all[] = {{"k", &p.k}, {"v", &p.v}, {"q", &p.q}, {"q_out", &p.q_out}};
    for (const Named& t : all)
      if (is_given(*t.tensor)) rank(t.name, *t.tensor, packed ? 3 : 4);
    if (has_k) rank("k_cache", p.k_cache, 4);
    if (has_v) rank("v_cache", p.v_cache, 4);
    absent_if(!packed, {{"cu_seqlens_new", &p.cu_seqlens_new}});
    absent_if(!has_k || !alone, {{"slot_mapping", &p.slot_mapping}});
    absent_if(alone, {{"seqused_new", &p.seqused_new}, {"cache_seqlens", &p.cache_seqlens}});
    absent_if(alone || !has_k, {{"page_table", &p.page_table}, {"cache_batch_idx", &p.cache_batch_idx}});
    wrong_if(is_given(p.page_table) && is_given(p.cache_batch_idx), "page_table");
    wrong_if(has_k && alone && !slots, "slot_mapping");
    wrong_if(has_k && !alone && !is_given(p.cache_seqlens), "cache_seqlens");
    // Whichever of those that exclude each other a refusal names.
    if (slots)
      for (const char* name : {"slot_mapping", "k"}) open_if(!good(), name);
    if (alone) open_if(!good(), "slot_mapping"), open_if(!good(), "cu_seqlens_new");
    const bool rotary = is_given(p.rotary_cos);
    absent_if(!rotary, {{"rotary_positions", &p.rotary_positions}});
    wrong_if(rotary && !is_given(p.rotary_positions) && !is_given(p.cache_seqlens), "rotary_positions");
    scale_presence("k_scale", p.k_scale, has_k && p.k_cache.dtype == FA3_DTYPE_E4M3);
    scale_presence("v_scale", p.v_scale, has_v && p.v_cache.dtype == FA3_DTYPE_E4M3);
    scale_presence("q_scale", p.q_scale, has_q && p.q_out.dtype == FA3_DTYPE_E4M3);
  }

  void dtypes() {
    const auto pair = [&](const Named& x, const Named& y) {
      if (!is_given(*x.tensor)) return;
      wrong_if(!is_one_of(x.tensor->dtype, {FA3_DTYPE_BF16, FA3_DTYPE_FP16}) || x.tensor->dtype != first.dtype, x.name);
      wrong_if(y.tensor->dtype != x.tensor->dtype && y.tensor->dtype != FA3_DTYPE_E4M3, y.name);
    };
    pair({"k", &p.k}, {"k_cache", &p.k_cache}), pair({"v", &p.v}, {"v_cache", &p.v_cache});
    pair({"q", &p.q}, {"q_out", &p.q_out});
  }

  void shapes() {
    for (const Named& t : {Named{"k", &p.k}, {"v", &p.v}, {"q", &p.q}, {"q_out", &p.q_out}, {"k_cache", &p.k_cache},
                           {"v_cache", &p.v_cache}})
      if (is_given(*t.tensor)) dims(t.name, *t.tensor);
    if (!good()) return;
    const auto unit = [](const fa3_tensor& y) { return y.dtype == FA3_DTYPE_E4M3 ? 16 : 8; };
    const int64_t* const n = first.dim;
    const auto rows_are = [&](const char* name, const fa3_tensor& t, int64_t heads, int64_t d) {
      if (packed) dims_are(name, t, {n[0], heads, d});
      else dims_are(name, t, {n[0], n[1], heads, d});
    };
    const int64_t d = column(first);
    if (has_k) {
      head_dim("k", d, unit(p.k_cache), 1024);
      dims_are("k_cache", p.k_cache, {p.k_cache.dim[0], p.k_cache.dim[1], heads_of(p.k), d});
    }
    if (has_v) {
      head_dim("v", column(p.v), unit(p.v_cache), 1024);
      rows_are("v", p.v, heads_of(p.k), column(p.v));
      dims_are("v_cache", p.v_cache, {p.k_cache.dim[0], p.k_cache.dim[1], heads_of(p.k), column(p.v)});
    }
    if (has_q) {
      head_dim("q", column(p.q), unit(p.q_out), 1024);
      rows_are("q", p.q, heads_of(p.q), d);
      rows_are("q_out", p.q_out, heads_of(p.q), d);
    }
  }

  void numbers() {
    const auto check = [&](const char* name, const fa3_tensor& t, int64_t count, bool wide) {
      if (!is_given(t)) return;
      wrong_if(t.dtype != FA3_DTYPE_INT32 && !(wide && t.dtype == FA3_DTYPE_INT64), name);
      rank(name, t, 1);
      if (t.rank != 1) return;
      dims(name, t);
      wrong_if(count >= 0 ? t.dim[0] != count : t.dim[0] < 1, name);
      if (good()) layout(name, t, {.last_1 = true});
    };
    check("cu_seqlens_new", p.cu_seqlens_new, -1, false);
    if (!good()) return;
    batch = alone ? 1 : packed ? p.cu_seqlens_new.dim[0] - 1 : first.dim[0];
    const int64_t rows = alone ? first.dim[0] : batch;
    check("seqused_new", p.seqused_new, batch, false), check("cache_seqlens", p.cache_seqlens, batch, false);
    check("cache_batch_idx", p.cache_batch_idx, batch, false), check("slot_mapping", p.slot_mapping, rows, true);
    check("rotary_positions", p.rotary_positions, rows, true);
    if (is_given(p.page_table)) {
      wrong_if(p.page_table.dtype != FA3_DTYPE_INT32, "page_table");
      rank("page_table", p.page_table, 2);
      if (!good()) return;
      dims("page_table", p.page_table), wrong_if(p.page_table.dim[0] != batch, "page_table");
      if (good()) layout("page_table", p.page_table, {.last_1 = true});
    }
    const bool own_caches = has_k && !alone && !is_given(p.page_table) && !is_given(p.cache_batch_idx);
    wrong_if(own_caches && p.k_cache.dim[0] != batch, "k_cache");
    wrong_if(slots && Wide{p.k_cache.dim[0]} * p.k_cache.dim[1] > INT32_MAX, "k_cache");
  }

  void tables_and_scales() {
    if (is_given(p.rotary_cos)) {
      const fa3_tensor& cos = p.rotary_cos;
      const int64_t positions = cos.rank == 2 ? cos.dim[0] : 0, half = cos.rank == 2 ? cos.dim[1] : 0;
      judge_fp32(*this, "rotary_cos", cos, {positions, half}, {.rows = true});
      judge_fp32(*this, "rotary_sin", p.rotary_sin, {positions, half}, {.rows = true});
      wrong_if(half % 8 != 0 || half > column(first) / 2, "rotary_cos");
    }
    const auto scale = [&](const char* name, const fa3_tensor& t, const fa3_tensor& of) {
      if (!is_given(t)) return;
      wrong_if(t.dtype != FA3_DTYPE_FP32, name);
      rank(name, t, 3);
      if (t.rank != 3) return;
      dims(name, t);
      wrong_if((t.dim[0] != 1 && t.dim[0] != batch) || (t.dim[1] != 1 && t.dim[1] != heads_of(of)) || t.dim[2] != 1,
               name);
      if (good()) layout(name, t, {});
    };
    scale("k_scale", p.k_scale, p.k), scale("v_scale", p.v_scale, p.v), scale("q_scale", p.q_scale, p.q);
  }

  void memory() {
    for (const Named& t : {Named{"k", &p.k}, {"v", &p.v}, {"q", &p.q}})
      if (is_given(*t.tensor)) layout(t.name, *t.tensor, {.rows = true});
    for (const Named& t : {Named{"k_cache", &p.k_cache}, {"v_cache", &p.v_cache}, {"q_out", &p.q_out}})
      if (is_given(*t.tensor)) layout(t.name, *t.tensor, {.output = true, .rows = true});
    const Wide rows = packed ? first.dim[0] : Wide{first.dim[0]} * first.dim[1];
    Wide work = 0;
    for (const fa3_tensor* t : {&p.k, &p.v, &p.q})
      if (is_given(*t)) work += rows * heads_of(*t) * column(*t);
    wrong_if(rows > INT32_MAX - 65536, first_name);
    open_if(rows > INT32_MAX / 2 || work > INT32_MAX, first_name);  // of units it is only said how many there may be
    fa3_append_params all = p;
    bool in_place = p.q.data == p.q_out.data && p.q.dtype == p.q_out.dtype;
    for (int i = 0; has_q && i < p.q.rank; ++i)
      in_place = in_place && (p.q.dim[i] == 1 || p.q.stride[i] == p.q_out.stride[i]);
    std::vector<Named> tensors, inputs;
    for (const Member& member : members(all)) {
      if (!is_given(*member.tensor) || (in_place && member.tensor == &all.q)) continue;
      (member.output ? tensors : inputs).push_back({member.name, member.tensor});
    }
    const size_t outputs = tensors.size();
    tensors.insert(tensors.end(), inputs.begin(), inputs.end());
    apart(tensors, outputs);
  }

 private:
  void absent_if(bool condition, std::initializer_list<Named> tensors) {
    for (const Named& t : tensors) wrong_if(condition && is_given(*t.tensor), t.name);
  }
  void scale_presence(const char* name, const fa3_tensor& t, bool needed) { wrong_if(is_given(t) != needed, name); }
  int64_t heads_of(const fa3_tensor& t) const { return t.dim[2 - packed]; }
  int64_t column(const fa3_tensor& t) const { return t.dim[3 - packed]; }

  const fa3_append_params& p;
  const bool has_k, has_v, has_q;
  const fa3_tensor& first;  // k or, without it, q
  const char* const first_name;
  const bool packed, alone, slots;
  int64_t batch = 0;
};

}  // namespace

Verdict judge(const fa3_append_params* params, Mode) {
  const fa3_append_params p = complete(params);
  AppendJudge j(p);
  j.wrong_if(!is_sensible(params, offsetof(fa3_append_params, cu_seqlens_new)), "params->struct_size");
  j.wrong_if(p.flags & ~uint64_t{FA3_APPEND_ROTARY_INTERLEAVED}, "flags");
  for (void (AppendJudge::*step)() : {&AppendJudge::presence, &AppendJudge::dtypes, &AppendJudge::shapes,
                                      &AppendJudge::numbers, &AppendJudge::tables_and_scales, &AppendJudge::memory}) {
    (j.*step)();
    if (!j.good()) return j.verdict;
  }
  j.verdict.whole = true;
  return j.verdict;
}

}  // namespace fa3::test
