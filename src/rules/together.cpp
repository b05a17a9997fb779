#include "rules/together.h"

#include <iterator>
#include <utility>

#include "error.h"
#include "rules/scales.h"
#include "rules/planned.h"
#include "rules/tensor.h"

namespace fa3 {
namespace {

enum Feature {
  none,
  page_table,
  cu_seqlens_k,
  leftpad_k,
  cache_batch_idx,
  v_tiles,
  two_level,
  planned_lengths,
  alibi_slopes,
  e4m3_q,
  e4m3_cache,    // k and v under another q
  latent_cache,  // v alone
  chunk_mask,
  batch_invariant,
  wide,  // qv, head dimensions above 256
  softcap,
  lse_offset,
  qv,
  fp32_o,
  centered_k,
  sinks,
  dlse,
  dsinks,
  v_mean,
  feature_count
};

constexpr const char *absent = " (of an absent tensor the rank is 0)",
                     *uneven = ": what is taken off k does not change all capped scores of a row by the same number";

// In the order of fa3.h; the test `together` compares.
constexpr struct Rule {
  Feature feature, partners[7];
  const char* why = "";
  bool device_only = false;
} rules_of_pairs[] = {
    {page_table, {cu_seqlens_k, leftpad_k, cache_batch_idx}, absent},
    {cache_batch_idx, {cu_seqlens_k}, absent},
    {v_tiles, {planned_lengths}},
    {two_level, {planned_lengths}},
    {alibi_slopes, {e4m3_q, e4m3_cache, latent_cache, chunk_mask, batch_invariant, wide}},
    {softcap, {e4m3_cache, latent_cache}},
    {softcap, {lse_offset}, uneven},
    {qv, {e4m3_q, e4m3_cache}},
    {fp32_o, {e4m3_q, e4m3_cache, softcap, alibi_slopes, wide, latent_cache}, "", true},
    {centered_k, {sinks, dlse, softcap, alibi_slopes}},
    {dsinks, {v_mean, lse_offset}, "", true},
};

}  // namespace

fa3_status check_together(const fa3_forward_params& p, Rules rules, GradientTensors gradients) {
  const char *const planned_by = why_planned(p), *const wide_of = wide_by(p);
  const struct {
    const char* name;
    bool given;
    const char* value = nullptr;  // of what is an argument's value, a sentence about it
  } features[] = {
      {"", false},
      {"page_table", is_there(p.page_table)},
      {"cu_seqlens_k", is_there(p.cu_seqlens_k)},
      {"leftpad_k", is_there(p.leftpad_k)},
      {"cache_batch_idx", is_there(p.cache_batch_idx)},
      {"v as tiles", has_v_tiles(p), "v.rank is 5 (v as tiles)"},
      {"FA3_FLAG_TWO_LEVEL", (p.flags & FA3_FLAG_TWO_LEVEL) != 0, "flags has FA3_FLAG_TWO_LEVEL"},
      {planned_by, planned_by != nullptr},
      {"alibi_slopes", is_there(p.alibi_slopes)},
      {"q of e4m3", p.q.dtype == FA3_DTYPE_E4M3, "q.dtype is e4m3"},
      {"k and v of e4m3", widens_keys(p), "k.dtype is e4m3, and q.dtype is not"},
      {"v of e4m3", is_latent(p), "v.dtype is e4m3, and k.dtype is not"},
      {"mask FA3_MASK_CHUNK", p.mask == FA3_MASK_CHUNK},
      {"FA3_FLAG_BATCH_INVARIANT", (p.flags & FA3_FLAG_BATCH_INVARIANT) != 0},
      {wide_of, wide_of != nullptr},
      {"softcap", p.softcap != 0},
      {"lse_offset", is_there(p.lse_offset)},
      {"qv", is_there(p.qv)},
      {"o of fp32", p.o.dtype == FA3_DTYPE_FP32, "o.dtype is fp32"},
      {"FA3_FLAG_CENTERED_K", (p.flags & FA3_FLAG_CENTERED_K) != 0},
      {"sinks", is_there(p.sinks)},
      {"dlse", gradients.dlse},
      {"dsinks", gradients.dsinks},
      {"v_mean", is_there(p.v_mean)}};
  static_assert(std::size(features) == feature_count);
  for (const Rule& rule : rules_of_pairs) {
    if (rule.device_only && rules == Rules::reference) continue;
    for (const Feature partner : rule.partners) {
      const auto *a = &features[rule.feature], *b = &features[partner];
      if (!a->given || !b->given) continue;
      if (!a->value && !b->value)
        return fail(FA3_ERROR_UNSUPPORTED, "%s and %s cannot be had together%s", a->name, b->name, rule.why);
      if (!a->value) std::swap(a, b);
      return fail(FA3_ERROR_UNSUPPORTED, "%s, which cannot be had together with %s", a->value, b->name);
    }
  }
  return FA3_OK;
}

}  // namespace fa3
