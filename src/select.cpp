#include "select.h"

#include <algorithm>
#include <cstring>

#include "error.h"

namespace fa3 {
namespace {

// Kernels round lengths up to whole blocks, and claim up to one tile too many for each thread block, all in int32.
constexpr int64_t max_seqlen = INT32_MAX - 1024;
constexpr int64_t max_tiles = INT32_MAX - 65536;

Dtype dtype_of(const Problem& problem) { return problem.q.dtype == FA3_DTYPE_BF16 ? Dtype::bf16 : Dtype::fp16; }
const char* dtype_name(Dtype dtype) { return dtype == Dtype::bf16 ? "bf16" : "fp16"; }

// The row of the same dtype and mask with the smallest head dimension that holds the problem's.
fa3_status choose_row(const Problem& problem, int& best) {
  const Dtype dtype = dtype_of(problem);
  best = -1;
  for (int row = 0; row < variant_count; ++row) {
    const Variant& v = variants[row];
    if (v.kernel == Kernel::fwd && v.dtype == dtype && v.causal() == problem.causal && v.d >= problem.head_dim)
      if (best < 0 || v.d < variants[best].d) best = row;
  }
  if (best >= 0) return FA3_OK;
  return fail(FA3_ERROR_UNSUPPORTED, "no kernel of this build has q.dim[3] (head_dim) %lld, dtype %s, %s mask",
              static_cast<long long>(problem.head_dim), dtype_name(dtype), problem.causal ? "causal" : "no");
}

// The caller's text may be anything: the message shows its beginning, on one line, and reads no more than it shows.
fa3_status unknown_kernel(const char* name) {
  char shown[64];  // names are shorter: they fit fa3_kernel_info.name
  size_t length = 0;
  for (; length < sizeof shown - 1 && name[length] != '\0'; ++length)
    shown[length] = name[length] >= ' ' && name[length] <= '~' ? name[length] : '?';
  shown[length] = '\0';
  return fail(FA3_ERROR_UNSUPPORTED,
              "params->kernel is \"%s%s\", no kernel of this build (fa3_kernel_info_at names those)", shown,
              length < sizeof shown - 1 ? "" : "...");
}

fa3_status find_row(const Problem& problem, int& row) {
  for (row = 0; row < variant_count && std::strcmp(problem.kernel, variants[row].name) != 0; ++row) {
  }
  if (row == variant_count) return unknown_kernel(problem.kernel);
  const Variant& v = variants[row];
  if (v.dtype != dtype_of(problem))
    return fail(FA3_ERROR_INVALID_ARGUMENT, "params->kernel is %s, which is for %s; q.dtype is %s", v.name,
                dtype_name(v.dtype), dtype_name(dtype_of(problem)));
  if (v.causal() != problem.causal)
    return fail(FA3_ERROR_INVALID_ARGUMENT, "params->kernel is %s, which is for %s mask; mask is %s", v.name,
                v.causal() ? "a causal" : "no", problem.causal ? "causal" : "FA3_MASK_NONE");
  if (v.d < problem.head_dim)
    return fail(FA3_ERROR_INVALID_ARGUMENT,
                "params->kernel is %s, which is for head_dim up to %d; q.dim[3] (head_dim) is %lld", v.name, v.d,
                static_cast<long long>(problem.head_dim));
  return FA3_OK;
}

// The tiles of the selected row; false if they are too many.
bool count_tiles(const Problem& problem, Selection& selection) {
  const Variant& variant = selection.variant();
  const int64_t Br = variant.Br, rows = (problem.seqlen_q + 63) / 64 * 64;
  int64_t q_blocks = (rows + Br - 1) / Br;
  const int64_t batch_heads = problem.batch * problem.heads;  // both below 2^31
  int64_t tiles;
  if (__builtin_mul_overflow(q_blocks, batch_heads, &tiles) || tiles > max_tiles) return false;
  if (problem.causal) {
    // Rows that see no key are in no tile, as far as whole blocks go; but one tile there is.
    const int64_t blind = std::clamp<int64_t>(-problem.causal_offset, 0, rows - 1) / 64 * 64;
    if (variant.has_producer()) q_blocks = (rows - blind + Br - 1) / Br;
    // The block with fewer rows is put first, where rows see the fewest keys.
    selection.q_origin = static_cast<int32_t>(rows - q_blocks * Br);
  }
  selection.q_blocks = static_cast<int32_t>(q_blocks);
  selection.batch_heads = static_cast<int32_t>(batch_heads);
  selection.section_heads = static_cast<int32_t>(section_heads(problem));
  selection.tiles = static_cast<int32_t>(q_blocks * batch_heads);
  return true;
}

}  // namespace

// A section is a run of consecutive (batch, head) pairs, whose tiles are handed out before those of the next.
//
// Without a mask all tiles are equally long, so one pair at a time keeps its K and V in the L2 cache and costs nothing.
// With a causal mask tiles differ in length, and a section as large as possible balances them better (its short tiles
// fill the gaps at its end); but its K and V should stay in L2, so they should take about 32 MB of it. heads_per_kv
// consecutive heads read the same K and V, so whole groups are taken; one group is the least. Lengths up to 1024 thereby
// get 32 groups or more at any head dimension, enough to fill the machine. All sections are of about the same size, rather
// up to half as large again than with a small one at the end, whose few long tiles would leave the machine idle: at d 128,
// 9 heads of 8192 take 210 us in one section and 278 in two, of 8 and 1.
int64_t section_heads(const Problem& problem) {
  constexpr int64_t budget = 32 << 20;
  const int64_t batch_heads = problem.batch * problem.heads;
  if (!problem.causal) return 1;
  const int64_t kv_bytes = problem.seqlen_k * problem.head_dim * 2 * 2;
  if (kv_bytes == 0) return batch_heads;
  const int64_t groups = std::max<int64_t>(1, budget / kv_bytes);
  const int64_t all = batch_heads / problem.heads_per_kv(), sections = std::max<int64_t>(1, (all + groups / 2) / groups);
  return std::min(batch_heads, (all + sections - 1) / sections * problem.heads_per_kv());
}

fa3_status select(const Problem& problem, Selection& selection) {
  selection = {};
  if (fa3_status status = problem.kernel ? find_row(problem, selection.row) : choose_row(problem, selection.row))
    return status;
  if (problem.seqlen_q > max_seqlen || problem.seqlen_k > max_seqlen)
    return fail(FA3_ERROR_UNSUPPORTED, "%s.dim[1] (sequence length) is %lld; the kernels take up to %lld",
                problem.seqlen_q > max_seqlen ? "q" : "k",
                static_cast<long long>(std::max(problem.seqlen_q, problem.seqlen_k)),
                static_cast<long long>(max_seqlen));
  if (problem.empty() || count_tiles(problem, selection)) return FA3_OK;
  const int64_t Br = selection.variant().Br;
  return fail(FA3_ERROR_UNSUPPORTED,
              "q.dim[0] * q.dim[2] * (blocks of %lld rows in q.dim[1]) is %lld * %lld * %lld; the kernels count up "
              "to %lld tiles",
              static_cast<long long>(Br), static_cast<long long>(problem.batch), static_cast<long long>(problem.heads),
              static_cast<long long>((problem.seqlen_q + Br - 1) / Br), static_cast<long long>(max_tiles));
}

bool select_small(const Problem& problem, const Selection& selection, Selection& small) {
  if (problem.kernel) return false;
  const Variant& large = selection.variant();
  for (int row = 0; row < variant_count; ++row) {
    const Variant& v = variants[row];
    if (v.kernel != Kernel::fwdsmall || v.dtype != large.dtype || v.mask != large.mask || v.d != large.d) continue;
    small = {};
    small.row = row;
    return count_tiles(problem, small);
  }
  return false;
}

}  // namespace fa3
