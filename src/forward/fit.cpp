// Which rows of the table can run a problem.
#include <algorithm>
#include <array>
#include <iterator>

#include "device/widen.h"
#include "error.h"
#include "forward/candidate.h"
#include "forward/plan/copies.h"
#include "forward/plan/cost.h"
#include "forward/plan/planned.h"
#include "forward/plan/tiles.h"
#include "integers.h"
#include "rules/attention.h"
#include "rules/planned.h"
#include "rules/transforms.h"

namespace fa3 {
namespace {

constexpr fa3_status invalid = FA3_ERROR_INVALID_ARGUMENT, unsupported = FA3_ERROR_UNSUPPORTED;

const char* dtype_name(Dtype dtype) {
  return dtype == Dtype::bf16 ? "bf16" : dtype == Dtype::fp16 ? "fp16" : "e4m3";
}

const char* mask_name(Mask mask) {
  return mask == Mask::full ? "no mask" : mask == Mask::causal ? "a causal mask" : "a window's mask";
}

bool holds(const Candidate& candidate) {
  const auto& [problem, row] = candidate;
  return row.d >= problem.head_dim && row.dv >= problem.head_dim_v;
}
// Has it fewer columns than the other, or as many in all, but fewer of Q and K?
constexpr bool is_narrower(const ForwardRow& row, const ForwardRow& other) {
  return row.d + row.dv != other.d + other.dv ? row.d + row.dv < other.d + other.dv : row.d < other.d;
}

// What makes a problem planned.
constexpr const char* planned_kinds =
    "lengths of their own, pages, windows, sinks, softcap, alibi_slopes, qv, o of fp32, head dimensions above 256 or "
    "FA3_FLAG_BATCH_INVARIANT";

// The dim that is the head dimension, of the caller's q or of v.
int inner_dim(const ForwardProblem& problem, int64_t total) { return problem.planned && total >= 0 ? 2 : 3; }

// Whatever a planned problem's mask is, its rows take it as a window.
Mask mask_of(const ForwardProblem& problem) { return problem.planned ? Mask::window : problem.mask(); }

// Does it take one query and many alike?
bool takes_any_queries_alike(const ForwardRow& row) {
  return !row.has(Trait::few_rows) && !row.has(Trait::multicast);
}

// Can this row take the problem's V, scales and sums, and what becomes of its scores and of O?
bool takes(const Candidate& candidate) {
  const auto& [problem, row] = candidate;
  if (row.has(Trait::softcap) != has_softcap(problem) || row.has(Trait::alibi) != has_slopes(problem)) return false;
  if (row.stores_fp32() != problem.widens_o()) return false;
  if (row.has_wide_q() != problem.widens_keys() || row.has(Trait::qv) != problem.has_qv()) return false;
  if (row.is_latent() != problem.is_latent()) return false;
  if (problem.batch_invariant && !takes_any_queries_alike(row)) return false;
  if (row.has(Trait::few_rows) && candidate.rows() > row.most_rows()) return false;
  return !row.is_8bit() || (row.transposes_v() == !problem.v_tiles &&
                            row.has(Trait::two_level) == problem.two_level &&
                            (row.block_scales() || !problem.kv_blocks));
}
// Rows with scales for blocks take one scale for each head, too, but are slower.
bool has_needless_scales(const Candidate& candidate) {
  const auto& [problem, row] = candidate;
  return row.block_scales() && !row.has(Trait::two_level) && !problem.kv_blocks;
}

constexpr bool is_choosable(const ForwardRow& row) { return row.has(Trait::chosen); }

// The rows for planned problems, and no others, are for windows, so that a list of the rows of a mask need not ask.
static_assert(std::all_of(forward_rows.begin(), forward_rows.end(), [](const ForwardRow& row) {
  return !is_choosable(row) || row.has(Trait::planned) == (row.mask == Mask::window);
}));

// Rows that fit the same problems.
constexpr int rivals_of(const ForwardRow& row) {
  int rivals = 0;
  for (const ForwardRow& other : forward_rows)
    rivals += is_choosable(other) && other.dtype == row.dtype && other.mask == row.mask && other.d == row.d &&
              other.has_wide_q() == row.has_wide_q() && other.is_latent() == row.is_latent() &&
              other.stores_fp32() == row.stores_fp32() &&
              other.dv == row.dv && other.has(Trait::softcap) == row.has(Trait::softcap) &&
              other.has(Trait::alibi) == row.has(Trait::alibi) && other.has(Trait::qv) == row.has(Trait::qv);
  return rivals;
}

static_assert(std::all_of(forward_rows.begin(), forward_rows.end(),
                          [](const ForwardRow& row) { return rivals_of(row) <= Fit::most / 2; }));

// The choosable rows of a mask and dtype, found when this is compiled, as every call looks through them.
struct RowList {
  int count = 0;
  short rows[row_count] = {};
};
constexpr RowList choosable(Mask mask, Dtype dtype) {
  RowList list;
  for (short n = 0; n < static_cast<short>(forward_rows.size()); ++n) {
    const ForwardRow& row = forward_row(n);
    if (is_choosable(row) && row.dtype == dtype && row.mask == mask) list.rows[list.count++] = n;
  }
  return list;
}
constexpr std::array<RowList, 3> choosable_of(Mask mask) {
  return {choosable(mask, Dtype::bf16), choosable(mask, Dtype::fp16), choosable(mask, Dtype::e4m3)};
}
// In the order of Mask and of Dtype.
constexpr std::array<RowList, 3> choosable_rows[] = {choosable_of(Mask::full), choosable_of(Mask::causal),
                                                     choosable_of(Mask::window)};
static_assert(std::all_of(forward_rows.begin(), forward_rows.end(), [](const ForwardRow& row) {
  return static_cast<size_t>(row.mask) < std::size(choosable_rows) &&
         static_cast<size_t>(row.dtype) < choosable_rows[0].size();
}));

// Few enough for packed heads? In varlen sequences that may be so although one sequence has many: prompts among others
// that get one token after the other. These would read K and V once for each head.
bool has_few_queries(const ForwardProblem& problem) {
  if (problem.seqlen_q <= most_packed_queries) return true;
  return problem.planned && problem.total_q >= 0 && problem.total_q <= most_packed_queries * problem.batch;
}

// Does it take rows with packed heads, of which O is in two halves?
bool is_wide(const ForwardProblem& problem) {
  return problem.has_qv() || problem.head_dim > most_narrow || problem.head_dim_v > most_narrow;
}

// The rows among which the library chooses: of all that can run the problem, those of the smallest head dimensions that
// hold its own. Rows with packed heads (Heads::packed), rows for short sequences (Trait::one_tile) and other rows have
// smallest dimensions of their own; those for short sequences come behind the others, those with packed heads last.
//
// Where only rows with packed heads hold the problem, they take any number of queries.
//
// With FA3_FLAG_BATCH_INVARIANT it is one row, whatever the lengths are, which must do for one query and for many: that
// with the most rows of those with packed heads, if there are heads to be packed, or else the one with the fewest.
//
// copies: of K and V, that a pass makes, or K and V as they come.
void find_rows(const ForwardProblem& problem, bool copies, Fit& fit) {
  const auto dtype = static_cast<size_t>(dtype_of(problem.q.dtype));
  const RowList& candidates = choosable_rows[static_cast<size_t>(mask_of(problem))][dtype];
  const bool invariant = problem.planned && problem.batch_invariant;
  const bool may_pack =
      is_wide(problem) || (invariant ? problem.heads_per_kv() > 1 : has_few_queries(problem));
  // Where K and V are widened, no other rows hold large head dimensions.
  const bool packs_if_alone = may_pack || problem.widens_keys();
  Fit packed, brief;
  fit.count = packed.count = brief.count = 0;
  for (int i = 0; i < candidates.count; ++i) {
    const int n = candidates.rows[i];
    const ForwardRow& row = forward_row(n);
    const Candidate candidate{problem, row};
    const bool packs = row.packs_heads();
    if (!holds(candidate) || (packs && !packs_if_alone) || !takes(candidate) || row.takes_copies() != copies ||
        has_needless_scales(candidate))
      continue;
    Fit& kept = packs ? packed : row.has(Trait::one_tile) ? brief : fit;
    if (kept.count && is_narrower(forward_row(kept.rows[0]), row)) continue;
    if (kept.count && is_narrower(row, forward_row(kept.rows[0]))) kept.count = 0;
    kept.rows[kept.count++] = n;
  }
  for (int n = 0; n < brief.count; ++n) fit.rows[fit.count++] = brief.rows[n];
  if (!may_pack && fit.count) packed.count = 0;
  for (int n = 0; n < packed.count; ++n) fit.rows[fit.count++] = packed.rows[n];
  if (!invariant || fit.count == 0) return;
  const auto fewer_rows = [](int a, int b) { return forward_row(a).Br < forward_row(b).Br; };
  fit.rows[0] = packed.count ? *std::max_element(packed.rows, packed.rows + packed.count, fewer_rows)
                             : *std::min_element(fit.rows, fit.rows + fit.count, fewer_rows);
  fit.count = 1;
}

fa3_status choose_rows(const ForwardProblem& problem, Fit& fit) {
  const Dtype dtype = dtype_of(problem.q.dtype);
  find_rows(problem, false, fit);
  fit.v_tiles_row = -1;
  if (may_be_copied(problem)) {
    Fit more{};
    find_rows(problem, true, more);
    for (int i = 0; i < more.count; ++i) fit.rows[fit.count++] = more.rows[i];
  }
  if (dtype == Dtype::e4m3 && !problem.v_tiles) {
    ForwardProblem tiled = problem;
    tiled.v_tiles = true;
    Fit more{};
    find_rows(tiled, false, more);
    if (more.count) fit.v_tiles_row = more.rows[0];
  }
  if (fit.count) return FA3_OK;
  return fail(unsupported,
              "no kernel of this build has q.dim[%d] (head_dim) %lld and v.dim[%d] (head_dim_v) %lld, dtype %s%s, %s",
              inner_dim(problem, problem.total_q), ll(problem.asked_head_dim()), inner_dim(problem, problem.total_k),
              ll(problem.head_dim_v), dtype_name(dtype),
              problem.widens_keys()    ? " over k and v of e4m3"
              : problem.is_latent() ? " over v of e4m3"
              : dtype != Dtype::e4m3   ? ""
              : problem.v_tiles        ? " with v as tiles"
                                       : " with v row by row",
              problem.planned ? planned_kinds : problem.causal ? "causal mask" : "no mask");
}

// The one that the caller named.
fa3_status take_named_row(const ForwardProblem& problem, Fit& fit) {
  const int n = row_named(problem.kernel);
  if (n < 0) return unknown_kernel(problem.kernel);
  if (rows[n].kind != Kind::forward)
    return fail(invalid, "params->kernel is %s, which is no forward kernel", rows[n].name);
  const ForwardRow& row = forward_row(n);
  const Candidate candidate{problem, row};
  const auto is_for = [&](const char* kind, const char* name, const char* value) {
    return fail(invalid, "params->kernel is %s, which is for %s; %s is %s", row.name, kind, name, value);
  };
  const auto named = [](fa3_dtype dtype) { return dtype_name(dtype_of(dtype)); };
  if (row.dtype != dtype_of(problem.q.dtype))
    return is_for(dtype_name(row.dtype), "q.dtype", named(problem.q.dtype));
  const struct {
    const char* name;
    bool row, problem;
  } features[] = {{planned_kinds, row.has(Trait::planned), problem.planned},
                  {"softcap", row.has(Trait::softcap), has_softcap(problem)},
                  {"alibi_slopes", row.has(Trait::alibi), has_slopes(problem)},
                  {"o of fp32", row.stores_fp32(), problem.widens_o()},
                  {"qv (or v in the first columns of k, above 256)", row.has(Trait::qv), problem.has_qv()},
                  {"FA3_FLAG_TWO_LEVEL", row.has(Trait::two_level), problem.two_level},
                  {"FA3_FLAG_BATCH_INVARIANT", false, problem.batch_invariant && !takes_any_queries_alike(row)}};
  for (const auto& feature : features)
    if (feature.row != feature.problem)
      return fail(invalid, "params->kernel is %s, which is for calls with%s %s", row.name, feature.row ? "" : "out",
                  feature.name);
  if (row.mask != mask_of(problem))
    return is_for(mask_name(row.mask), "mask", problem.causal ? "causal" : "FA3_MASK_NONE");
  if (row.has_wide_q() != problem.widens_keys())
    return is_for(row.has_wide_q() ? "k and v of e4m3" : "k and v of q's dtype", "k.dtype", named(problem.k.dtype));
  if (row.is_latent() != problem.is_latent())
    return is_for(row.is_latent() ? "v of e4m3" : "v of q's dtype", "v.dtype", named(problem.v.dtype));
  if (row.d < problem.head_dim)
    return fail(invalid, "params->kernel is %s, which is for head_dim up to %d; q.dim[%d] (head_dim) is %lld", row.name,
                row.d, inner_dim(problem, problem.total_q), ll(problem.head_dim));
  if (row.dv < problem.head_dim_v)
    return fail(invalid, "params->kernel is %s, which is for head_dim_v up to %d; v.dim[%d] (head_dim_v) is %lld",
                row.name, row.dv, inner_dim(problem, problem.total_k), ll(problem.head_dim_v));
  if (row.is_8bit() && row.transposes_v() == problem.v_tiles)
    return is_for(problem.v_tiles ? "v row by row" : "v as tiles", "v.rank", problem.v_tiles ? "5" : "4");
  if (row.has(Trait::few_rows) && candidate.rows() > row.most_rows())
    return fail(invalid,
                "params->kernel is %s, which is for up to %d rows: queries (%s, %lld) times the heads that share k and "
                "v (%lld, as %lld)", row.name, row.most_rows(),
                problem.total_q >= 0 ? "max_seqlen_q" : "q.dim[1]", ll(problem.seqlen_q), ll(problem.heads_per_kv()),
                ll(candidate.packing().rows(1)));
  if (row.is_8bit() && !row.block_scales() && problem.kv_blocks)
    return fail(invalid,
                "params->kernel is %s, which takes one scale for each head of K and V; k_scale and v_scale have %lld "
                "and %lld blocks", row.name, ll(problem.k_scale.dim[2]), ll(problem.v_scale.dim[2]));
  if (row.takes_copies() && !can_be_copied(problem))
    return fail(unsupported,
                "params->kernel is %s, which takes copies of k and v in fp16; the pass that makes them counts up to "
                "%lld rows of all heads", row.name, ll(most_widened_rows));
  if (row.packs_heads() && candidate.rows() > max_seqlen)
    return fail(unsupported,
                "params->kernel is %s, which packs the heads that share k and v (here %lld, as %lld) into rows; with "
                "%s %lld that makes more than %lld", row.name, ll(problem.heads_per_kv()),
                ll(candidate.packing().rows(1)),
                problem.planned && problem.total_q >= 0 ? "max_seqlen_q" : "q.dim[1] (seqlen_q)", ll(problem.seqlen_q),
                ll(max_seqlen));
  fit = {{n}, 1, -1};
  return FA3_OK;
}

// On a device with as many multiprocessors as there may be, which makes the most pieces.
bool pieces_fit(const Candidate& candidate) {
  PlanForwardParams params;
  return plan_forward_params(candidate, Simulation::most_multiprocessors, params);
}

}  // namespace

fa3_status fit(const ForwardProblem& problem, Fit& fit) {
  if (fa3_status status = problem.kernel ? take_named_row(problem, fit) : choose_rows(problem, fit)) return status;
  if (fa3_status status = check_lengths(problem)) return status;
  if (problem.empty()) return FA3_OK;
  const ForwardRow& first = forward_row(fit.rows[0]);
  const int all = fit.count;
  fit.count = 0;
  for (int i = 0; i < all; ++i) {
    const Candidate candidate{problem, forward_row(fit.rows[i])};
    if (problem.planned ? pieces_fit(candidate) : tiles_fit(candidate)) fit.rows[fit.count++] = fit.rows[i];
  }
  if (fit.count) return FA3_OK;
  if (problem.planned)
    return fail(unsupported,
                "%lld sequences of up to %lld queries (max_seqlen_q, or q.dim[1]) in blocks of %d rows, with %lld "
                "heads each, may be more pieces than the kernels count, which is up to %lld",
                ll(problem.batch), ll(problem.seqlen_q), first.Br, ll(problem.heads), ll(max_tiles));
  return fail(unsupported,
              "q.dim[0] * q.dim[2] * (blocks of %d rows in q.dim[1]) is %lld * %lld * %lld; the kernels count up to "
              "%lld tiles",
              first.Br, ll(problem.batch), ll(problem.heads),
              ll(divide_up(problem.seqlen_q, first.Br)), ll(max_tiles));
}

}  // namespace fa3
