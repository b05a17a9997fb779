// Which rows of the table can run a problem.
#include <algorithm>
#include <iterator>

#include "error.h"
#include "forward/forward.h"
#include "forward/tiles.h"
#include "integers.h"
#include "rules/attention.h"

namespace fa3 {
namespace {

const char* dtype_name(Dtype dtype) {
  return dtype == Dtype::bf16 ? "bf16" : dtype == Dtype::fp16 ? "fp16" : "e4m3";
}

bool holds(const Row& row, const AttentionShape& shape) {
  return row.d >= shape.head_dim && row.dv >= shape.head_dim_v;
}
// Has it fewer columns than the other, or as many in all, but fewer of Q and K?
constexpr bool is_narrower(const Row& row, const Row& other) {
  return row.d + row.dv != other.d + other.dv ? row.d + row.dv < other.d + other.dv : row.d < other.d;
}

// Can this row take the problem's V, scales and sums?
bool takes(const Row& row, const ForwardProblem& problem) {
  return !row.is_8bit() || (row.has(Trait::transposes_v) == !problem.v_tiles &&
                            row.has(Trait::two_level) == problem.two_level &&
                            (row.has(Trait::block_scales) || !problem.kv_blocks));
}
// Rows with scales for blocks take one scale for each head, too, but are slower.
bool has_needless_scales(const Row& row, const ForwardProblem& problem) {
  return row.has(Trait::block_scales) && !row.has(Trait::two_level) && !problem.kv_blocks;
}

constexpr bool is_choosable(const Row& row) { return row.kind == Kind::forward && row.has(Trait::chosen); }

// Rows that fit the same problems.
constexpr int rivals_of(const Row& row) {
  int rivals = 0;
  for (const Row& other : rows)
    rivals += is_choosable(other) && other.dtype == row.dtype && other.mask == row.mask && other.d == row.d &&
              other.dv == row.dv;
  return rivals;
}

static_assert(std::all_of(std::begin(rows), std::end(rows),
                          [](const Row& row) { return rivals_of(row) <= Fit::most; }));

// The choosable rows of a dtype and mask, found when this is compiled, as every call looks through them.
struct RowList {
  int count = 0;
  short rows[row_count] = {};
};
constexpr RowList choosable(Dtype dtype, bool causal) {
  RowList list;
  for (int n = 0; n < row_count; ++n)
    if (is_choosable(rows[n]) && rows[n].dtype == dtype && rows[n].causal() == causal)
      list.rows[list.count++] = static_cast<short>(n);
  return list;
}
// In the order of Dtype.
constexpr RowList full_rows[] = {choosable(Dtype::bf16, false), choosable(Dtype::fp16, false),
                                 choosable(Dtype::e4m3, false)};
constexpr RowList causal_rows[] = {choosable(Dtype::bf16, true), choosable(Dtype::fp16, true),
                                   choosable(Dtype::e4m3, true)};

// The rows among which the library chooses: of all that can run the problem, those of the smallest head dimensions that
// hold its own. Rows with packed heads (Trait::packs_heads) and other rows have smallest dimensions of their own; those
// with packed heads come last.
void find_rows(const ForwardProblem& problem, Fit& fit) {
  const int dtype = static_cast<int>(dtype_of(problem.q.dtype));
  const RowList& candidates = problem.causal ? causal_rows[dtype] : full_rows[dtype];
  const bool may_pack = problem.seqlen_q <= most_packed_queries;
  Fit packed;
  fit.count = packed.count = 0;
  for (int i = 0; i < candidates.count; ++i) {
    const int n = candidates.rows[i];
    const Row& row = rows[n];
    const bool packs = row.has(Trait::packs_heads);
    if (!holds(row, problem) || (packs && !may_pack) || !takes(row, problem) || has_needless_scales(row, problem))
      continue;
    Fit& of_kind = packs ? packed : fit;
    if (of_kind.count && is_narrower(rows[of_kind.rows[0]], row)) continue;
    if (of_kind.count && is_narrower(row, rows[of_kind.rows[0]])) of_kind.count = 0;
    of_kind.rows[of_kind.count++] = n;
  }
  for (int n = 0; n < packed.count; ++n) fit.rows[fit.count++] = packed.rows[n];
}

fa3_status choose_rows(const ForwardProblem& problem, Fit& fit) {
  const Dtype dtype = dtype_of(problem.q.dtype);
  find_rows(problem, fit);
  fit.v_tiles_row = -1;
  if (dtype == Dtype::e4m3 && !problem.v_tiles) {
    ForwardProblem tiled = problem;
    tiled.v_tiles = true;
    Fit others;
    find_rows(tiled, others);
    if (others.count) fit.v_tiles_row = others.rows[0];
  }
  if (fit.count) return FA3_OK;
  return fail(FA3_ERROR_UNSUPPORTED,
              "no kernel of this build has q.dim[3] (head_dim) %lld and v.dim[3] (head_dim_v) %lld, dtype %s%s, "
              "%s mask",
              ll(problem.head_dim), ll(problem.head_dim_v), dtype_name(dtype),
              dtype != Dtype::e4m3 ? "" : problem.v_tiles ? " with v as tiles" : " with v row by row",
              problem.causal ? "causal" : "no");
}

// The one that the caller named.
fa3_status take_named_row(const ForwardProblem& problem, Fit& fit) {
  const int n = row_named(problem.kernel);
  if (n < 0) return unknown_kernel(problem.kernel);
  const Row& row = rows[n];
  if (row.kind != Kind::forward)
    return fail(FA3_ERROR_INVALID_ARGUMENT, "params->kernel is %s, which is no forward kernel", row.name);
  if (row.dtype != dtype_of(problem.q.dtype))
    return fail(FA3_ERROR_INVALID_ARGUMENT, "params->kernel is %s, which is for %s; q.dtype is %s", row.name,
                dtype_name(row.dtype), dtype_name(dtype_of(problem.q.dtype)));
  if (row.causal() != problem.causal)
    return fail(FA3_ERROR_INVALID_ARGUMENT, "params->kernel is %s, which is for %s mask; mask is %s", row.name,
                row.causal() ? "a causal" : "no", problem.causal ? "causal" : "FA3_MASK_NONE");
  if (row.d < problem.head_dim)
    return fail(FA3_ERROR_INVALID_ARGUMENT,
                "params->kernel is %s, which is for head_dim up to %d; q.dim[3] (head_dim) is %lld", row.name, row.d,
                ll(problem.head_dim));
  if (row.dv < problem.head_dim_v)
    return fail(FA3_ERROR_INVALID_ARGUMENT,
                "params->kernel is %s, which is for head_dim_v up to %d; v.dim[3] (head_dim_v) is %lld", row.name,
                row.dv, ll(problem.head_dim_v));
  if (row.is_8bit() && row.has(Trait::transposes_v) == problem.v_tiles)
    return fail(FA3_ERROR_INVALID_ARGUMENT, "params->kernel is %s, which takes v %s; v.rank is %d", row.name,
                problem.v_tiles ? "row by row" : "as tiles", problem.v_tiles ? 5 : 4);
  if (row.is_8bit() && row.has(Trait::two_level) != problem.two_level)
    return fail(FA3_ERROR_INVALID_ARGUMENT, "params->kernel is %s, which is for calls %s FA3_FLAG_TWO_LEVEL", row.name,
                problem.two_level ? "without" : "with");
  if (!takes(row, problem))
    return fail(FA3_ERROR_INVALID_ARGUMENT,
                "params->kernel is %s, which takes one scale for each head of K and V; k_scale and v_scale have %lld "
                "and %lld blocks", row.name, ll(problem.k_scale.dim[2]),
                ll(problem.v_scale.dim[2]));
  if (row.has(Trait::packs_heads) && rows_of(problem, row) > max_seqlen)
    return fail(FA3_ERROR_UNSUPPORTED,
                "params->kernel is %s, which packs the heads that share k and v (here %lld, as %lld) into rows; with "
                "q.dim[1] (seqlen_q) %lld that makes more than %lld", row.name,
                ll(problem.heads_per_kv()),
                ll(packing_of(problem, row).rows(1)), ll(problem.seqlen_q),
                ll(max_seqlen));
  fit = {{n}, 1, -1};
  return FA3_OK;
}

}  // namespace

fa3_status fit(const ForwardProblem& problem, Fit& fit) {
  if (fa3_status status = problem.kernel ? take_named_row(problem, fit) : choose_rows(problem, fit)) return status;
  if (fa3_status status = check_lengths(problem)) return status;
  if (problem.empty()) return FA3_OK;
  const Row& first = rows[fit.rows[0]];
  const int all = fit.count;
  fit.count = 0;
  for (int i = 0; i < all; ++i)
    if (tiles_fit(problem, rows[fit.rows[i]])) fit.rows[fit.count++] = fit.rows[i];
  if (fit.count) return FA3_OK;
  return fail(FA3_ERROR_UNSUPPORTED,
              "q.dim[0] * q.dim[2] * (blocks of %d rows in q.dim[1]) is %lld * %lld * %lld; the kernels count up to "
              "%lld tiles",
              first.Br, ll(problem.batch), ll(problem.heads),
              ll(divide_up(problem.seqlen_q, first.Br)), ll(max_tiles));
}

}  // namespace fa3
