// What the backward pass launches: a pass that prepares numbers of the first query rows; the kernel that computes all
// gradients, whose thread blocks take one block of keys after another, and also prepare rows for later ones and round
// dQ of earlier ones; and a pass for the last dQ. Where K/V heads have several parts, a pass adds these up.
// At head dimensions for which there is no such kernel: the first pass, for all rows, then a kernel for dK and dV, then
// one for dQ.
// Each may start while the one before it ends.
#include <algorithm>
#include <iterator>

#include "backward.h"
#include "enqueue.h"
#include "error.h"
#include "fit.h"
#include "modules.h"
#include "tensor_map.h"

namespace fa3 {
namespace {

constexpr int64_t max_rows = INT32_MAX;         // query rows of all heads, tiles rounded up, are counted in int32,
constexpr int64_t max_blocks = INT32_MAX / 2;   // and thread blocks

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

bool fits(const Row& row, const BackwardProblem& problem) {
  return row.kind == Kind::backward && !row.has(Trait::queries_only) && row.dtype == dtype_of(problem.q.dtype) &&
         row.causal() == problem.causal && row.d >= problem.head_dim && row.dv >= problem.head_dim_v;
}

// The caller's kernel, or the one of the smallest head dimension that holds both of the problem's.
fa3_status find_row(const BackwardProblem& problem, int& found) {
  if (problem.kernel) {
    found = row_named(problem.kernel);
    if (found < 0) return unknown_kernel(problem.kernel);
    const Row& row = rows[found];
    if (!fits(row, problem))
      return fail(FA3_ERROR_INVALID_ARGUMENT,
                  "params->kernel is %s, which is not a backward kernel for this dtype, mask, head_dim and head_dim_v",
                  row.name);
    if (problem.deterministic && row.has(Trait::as_written))
      return fail(FA3_ERROR_INVALID_ARGUMENT,
                  "params->flags has FA3_FLAG_DETERMINISTIC, and params->kernel is %s, which adds dq in any order",
                  row.name);
    return FA3_OK;
  }
  found = -1;
  for (int n = 0; n < row_count; ++n)
    if (fits(rows[n], problem) && rows[n].has(Trait::chosen) && (found < 0 || rows[n].d < rows[found].d)) found = n;
  if (found >= 0) return FA3_OK;
  return fail(FA3_ERROR_UNSUPPORTED,
              "no kernel of this build has q.dim[3] (head_dim) %lld and v.dim[3] (head_dim_v) %lld, %s mask, for the "
              "backward pass", static_cast<long long>(problem.head_dim), static_cast<long long>(problem.head_dim_v),
              problem.causal ? "causal" : "no");
}

// The kernel for dQ that goes with one for dK and dV.
int queries_row_of(const Row& keys) {
  int n = 0;
  while (!rows[n].has(Trait::queries_only) || rows[n].dtype != keys.dtype || rows[n].d != keys.d ||
         rows[n].mask != keys.mask)
    ++n;
  return n;
}

// The pass of this kernel for the head dimension of a row of the table.
int pass_of(const char* kernel, int head_dim) {
  int n = 0;
  while (!same_text(rows[n].kernel, kernel) || rows[n].d != head_dim) ++n;
  return n;
}

RowStrides strides_of(const View& view) { return {view.stride[0], view.stride[2], view.stride[1]}; }
RowStrides strides_of_rows(const View& view) { return {view.stride[0], view.stride[1], view.stride[2]}; }

// Of a head: 64 keys each, for sums over its parts.
int32_t key_tiles_of(const BackwardPlan& plan) { return plan.key_blocks * (rows[plan.row].Bc / 64); }

BackwardRows rows_of(const BackwardProblem& problem, const BackwardPlan& plan, char* workspace) {
  const View &o = problem.o, &dout = problem.dout, &lse = problem.lse, &dlse = problem.dlse, &dq = problem.dq;
  return {static_cast<const uint16_t*>(o.data),
          static_cast<const uint16_t*>(dout.data),
          strides_of(o),
          strides_of(dout),
          static_cast<const float*>(lse.data),
          static_cast<const float*>(dlse.data),
          strides_of_rows(lse),
          strides_of_rows(dlse),
          static_cast<uint16_t*>(dq.data),
          strides_of(dq),
          reinterpret_cast<float*>(workspace + plan.lse),
          reinterpret_cast<float*>(workspace + plan.delta),
          rows[plan.row].all_gradients() ? reinterpret_cast<float*>(workspace + plan.dq_sums) : nullptr,
          narrow(problem.seqlen_q), narrow(problem.head_dim), narrow(problem.head_dim_v), dq.dtype == FA3_DTYPE_BF16,
          Divisor::of(std::max(1, plan.q_tiles)), Divisor::of(std::max(1, narrow(problem.heads))),
          rows[plan.row].Br / backward_tile_rows};
}

BackwardKeys keys_of(const BackwardProblem& problem, const BackwardPlan& plan, char* workspace) {
  const View &dk = problem.dk, &dv = problem.dv;
  return {plan.order.parts > 1 ? reinterpret_cast<float*>(workspace + plan.key_sums) : nullptr,
          static_cast<uint16_t*>(dk.data),
          static_cast<uint16_t*>(dv.data),
          strides_of(dk),
          strides_of(dv),
          narrow(problem.head_dim), narrow(problem.head_dim_v),
          Divisor::of(std::max(1, key_tiles_of(plan))), Divisor::of(std::max(1, narrow(problem.heads_kv)))};
}

// Heads whose blocks come together: a section. Without a mask, a head at a time makes the most of the L2 cache. But
// where dQ is added in a fixed order, thread blocks that take the blocks of a head at the same time wait for one
// another; of a section they do so once, as those that end first take the blocks that others wait for.
constexpr int32_t section_blocks = 132;
// Under a causal mask the blocks of first keys, or of last queries, have the most to do and come first, of all heads of
// a section. Where heads are many times as many as the machine runs at once, sections of about these suit the L2 cache,
// and come out even if their number is: long blocks begin where short ones end. Otherwise the last section would end on
// its longest blocks, so that all are of the same size, and larger: of so many heads, or blocks. Their tiles stay in
// the L2 cache, as about eight blocks of a head, one behind the other, visit them together, or as all heads fit.
// (Modelled, with a turn for each tile and 2.4 for each block: of an even split 9 heads of 8192 keys take 0.97, and
// with two heads a section 0.76; measured, in all, 1.24 times as fast.)
constexpr int32_t causal_heads = 16, causal_blocks = 256, many_times = 4;
// Thread blocks between those that add to sums and those that finish them: about what the machine runs at once. Between
// those that prepare rows and those that visit them: twice that, as the first are still at it when the next ones come.
constexpr int32_t distance = 132, distance_ahead = 2 * 132;
// A warp takes as long to prepare a tile as a thread block to visit 13 of them. So rows are prepared by key blocks that
// visit at least 16 tiles for each tile of their share.
constexpr int32_t blocks_ahead = 16, causal_blocks_ahead = 32;

int32_t heads_at_once(int32_t blocks) { return std::max(1, section_blocks / blocks); }

// The heads of such a section, or 0 if heads are too few or do not come out even.
int32_t even_section(int32_t heads, int32_t blocks) {
  const int32_t at_once = heads_at_once(blocks), few = std::min(at_once, causal_heads);
  return heads >= many_times * at_once && heads % (2 * few) == 0 ? few : 0;
}

int32_t section_heads_of(int32_t heads, int32_t blocks, bool causal, DqOrder dq) {
  if (!causal) return std::min(dq == DqOrder::from_last ? heads_at_once(blocks) : 1, heads);
  const int32_t even = dq == DqOrder::from_last ? 0 : even_section(heads, blocks);
  if (even > 0) return even;
  const int32_t sections = narrow(divide_up(heads, std::max(causal_heads, causal_blocks / blocks)));
  return narrow(divide_up(heads, sections));
}

BlockOrder block_order_of(int64_t batch_heads, int32_t blocks, bool causal, DqOrder dq) {
  BlockOrder order{};
  order.batch_heads = narrow(batch_heads);
  order.blocks = std::max(1, blocks);
  order.section_heads = section_heads_of(std::max(1, order.batch_heads), order.blocks, causal, dq);
  order.sections = narrow(divide_up(order.batch_heads, order.section_heads));
  order.section = Divisor::of(order.section_heads * order.blocks);
  return order;
}

// Into how many parts what reads a K/V head is divided: so many that the expected time is the shortest. With few K/V
// heads their blocks are too few for all multiprocessors, or the longest of them too long. Times are in turns, one for
// each tile of Br rows; a block takes two turns more, and if there are several parts five, as their sums go to memory
// and come back, and the pass that adds them up three (measured, at 8 heads over 1 of 8192: each block of a part takes
// 4.6 more, all told). More parts must save 10%, as their sums take memory: with these limits at most 277 MB.
constexpr int64_t blocks_enough = 8 * section_blocks, most_blocks = 2 * blocks_enough, most_parts = 64;
constexpr int64_t block_turns = 2, part_turns = 5, pass_turns = 3;

struct Parts {
  int64_t parts = 1, ranges = 1;  // of a K/V head, of a query head
  int64_t range_tiles;            // of Br rows
};

Parts parts_of(const BackwardProblem& problem, int64_t key_blocks, int64_t tiles, const Row& row) {
  const int64_t heads = problem.batch * problem.heads_kv, readers = problem.heads_per_kv();
  Parts best{.range_tiles = tiles};
  if (row.has(Trait::as_written) || readers == 0 || key_blocks == 0 || heads * key_blocks >= blocks_enough) return best;
  int64_t all_tiles = 0, longest = 0;  // that visit the blocks of a query head, or one block
  for (int64_t block = 0; block < key_blocks; ++block) {
    const int64_t first_query = problem.causal ? std::max<int64_t>(0, block * row.Bc - problem.causal_offset) : 0;
    const int64_t visits = std::max<int64_t>(0, tiles - first_query / row.Br);
    all_tiles += visits, longest = std::max(longest, visits);
  }
  const auto turns = [&](const Parts& p) {
    const int64_t each = p.parts > 1 ? part_turns : block_turns, pass = p.parts > 1 ? pass_turns : 0;
    const int64_t blocks = heads * p.parts * key_blocks;
    const int64_t longest_block = std::min(longest, p.range_tiles) * readers * p.ranges / p.parts + each;
    if (!problem.causal) return divide_up(blocks, section_blocks) * longest_block + pass;
    return std::max(longest_block, divide_up(heads * all_tiles * readers + blocks * each, section_blocks)) + pass;
  };
  for (int64_t parts = 2; parts <= most_parts && heads * parts * key_blocks <= most_blocks; ++parts) {
    Parts p{.parts = parts, .range_tiles = tiles};
    if (parts > readers) p.ranges = parts / readers, p.range_tiles = divide_up(tiles, p.ranges);
    if (parts <= readers ? readers % parts != 0 : parts % readers != 0) continue;
    if ((p.ranges - 1) * p.range_tiles >= tiles) continue;  // one would be empty
    if (problem.batch * problem.heads * p.ranges * p.range_tiles > max_rows / row.Br) continue;
    if (turns(p) * 10 < turns(best) * 9) best = p;
  }
  return best;
}

// At head dimensions where one thread block sums dQ up, nothing is to be ordered. From the diagonal against from the
// last tile, measured on the paper's grid: d 64 4 to 11% faster, d 128 4% at 512 and 1024 and the same beyond; but with
// 8 heads of 131072, where the blocks of a head are not taken together, 5% slower.
DqOrder dq_order_of(const BackwardProblem& problem, const Row& row, const Parts& parts, int32_t heads, int32_t blocks) {
  if (!problem.deterministic || !row.all_gradients()) return DqOrder::any;
  const bool is_alone = problem.causal && problem.heads_per_kv() == 1 && parts.parts == 1;
  return is_alone && heads_at_once(blocks) > 1 && even_section(heads, blocks) ? DqOrder::from_diagonal
                                                                              : DqOrder::from_last;
}

KeyOrder key_order_of(const BackwardProblem& problem, const Parts& parts, int32_t key_blocks, int32_t q_tiles,
                      const Row& row) {
  KeyOrder order{};
  const int64_t heads = problem.batch * problem.heads_kv * parts.parts;
  const DqOrder dq = dq_order_of(problem, row, parts, narrow(heads), std::max(1, key_blocks));
  static_cast<BlockOrder&>(order) = block_order_of(heads, key_blocks, problem.causal, dq);
  order.dq = dq;
  order.heads = Divisor::of(std::max(1, narrow(problem.heads_kv * parts.parts)));
  order.parts = Divisor::of(narrow(parts.parts)), order.ranges = Divisor::of(narrow(parts.ranges));
  order.head_tiles = narrow(q_tiles * problem.heads_per_kv() / parts.parts);
  order.share = Divisor::of(std::max(1, narrow(divide_up(order.head_tiles, order.blocks))));
  order.ahead = order.sections;
  if (!row.takes_several_blocks()) return order;
  if (row.has(Trait::prepares_ahead) && !order.is_fixed() &&
      order.blocks >= (problem.causal ? causal_blocks_ahead : blocks_ahead))
    order.ahead = std::min(order.ahead, narrow(divide_up(distance_ahead, int32_t{order.section})));
  order.behind = std::min(1 + narrow(divide_up(distance, int32_t{order.section})), order.sections);
  // Sections whose number of blocks is that of the ones that finish them.
  const int32_t whole = order.batch_heads / order.section_heads;
  order.done_behind = key_blocks > 0 && q_tiles > 0 ? std::max(0, whole - order.behind) : 0;
  return order;
}

fa3_status encode_maps(const Driver& driver, const BackwardProblem& problem, const Row& row, BackwardParams& params) {
  // Without queries nothing of Q and dO is loaded, without keys nothing of K and V; but a map must be one.
  const View& q = problem.has_queries() ? problem.q : problem.k;
  const View& dout = problem.has_queries() ? problem.dout : problem.k;
  const View& k = problem.has_keys() ? problem.k : problem.q;
  const View& v = problem.has_keys() ? problem.v : problem.q;
  if (fa3_status status = encode(driver, "q", q, row, row.Br, params.q)) return status;
  if (fa3_status status = encode(driver, "k", k, row, row.Bc, params.k)) return status;
  if (fa3_status status = encode(driver, "v", v, row, row.Bc, params.v)) return status;
  if (fa3_status status = encode(driver, "dout", dout, row, row.Br, params.dout)) return status;
  if (problem.has_queries() && !row.all_gradients())
    if (fa3_status status = encode(driver, "dq", problem.dq, row, 64, params.dq)) return status;
  if (!problem.has_keys()) return FA3_OK;
  if (fa3_status status = encode(driver, "dk", problem.dk, row, 64, params.dk)) return status;
  return encode(driver, "dv", problem.dv, row, 64, params.dv);
}

fa3_status fill(const Driver& driver, const BackwardProblem& problem, const BackwardPlan& plan, char* workspace,
                BackwardParams& params) {
  const Row& row = rows[plan.row];
  if (problem.has_keys() || !row.all_gradients())
    if (fa3_status status = encode_maps(driver, problem, row, params)) return status;
  params.visible = {narrow(problem.seqlen_q), narrow(problem.seqlen_k), 0, narrow(problem.causal_offset), false,
                    problem.causal, {0}};
  params.rows = rows_of(problem, plan, workspace);
  params.keys = keys_of(problem, plan, workspace);
  params.order = plan.order;
  if (row.all_gradients()) {
    params.order.added = reinterpret_cast<uint32_t*>(workspace + plan.counters);
    params.order.prepared = params.order.added + plan.order.batch_heads;
    params.order.claimed = params.order.prepared + plan.order.batch_heads;
    params.visits = reinterpret_cast<uint32_t*>(workspace + plan.visits);
    params.counters = narrow(static_cast<int64_t>((plan.counters_end - plan.counters) / sizeof(uint32_t)));
  }
  params.query_order = plan.query_order;
  params.heads_per_kv = narrow(problem.heads_per_kv());
  params.readers = params.heads_per_kv * plan.order.ranges / plan.order.parts;
  params.softmax_scale = static_cast<float>(problem.softmax_scale);
  params.softmax_scale_log2 = static_cast<float>(problem.softmax_scale * 1.4426950408889634);
  return FA3_OK;
}

}  // namespace

fa3_status plan(const BackwardProblem& problem, BackwardPlan& plan) {
  plan = {};
  plan.workspace_bytes = FA3_FORWARD_WORKSPACE_BYTES;
  if (fa3_status status = find_row(problem, plan.row)) return status;
  const Row& row = rows[plan.row];
  int64_t q_tiles = divide_up(problem.seqlen_q, row.Br) * (row.Br / backward_tile_rows);
  const int64_t key_blocks = divide_up(problem.seqlen_k, row.Bc);
  int64_t tiles, blocks;  // batch and heads are below 2^31
  if (__builtin_mul_overflow(problem.batch * problem.heads, q_tiles, &tiles) || tiles > max_rows / backward_tile_rows ||
      __builtin_mul_overflow(problem.batch * problem.heads_kv, key_blocks, &blocks) || blocks > max_blocks)
    return fail(FA3_ERROR_UNSUPPORTED,
                "q has %lld * %lld heads of %lld tiles of %d rows, k %lld blocks of keys for each of its heads; the "
                "kernels count up to %lld rows and %lld blocks in all", static_cast<long long>(problem.batch),
                static_cast<long long>(problem.heads), static_cast<long long>(q_tiles), backward_tile_rows,
                static_cast<long long>(key_blocks), static_cast<long long>(max_rows),
                static_cast<long long>(max_blocks));
  const Parts parts = parts_of(problem, key_blocks, divide_up(problem.seqlen_q, row.Br), row);
  q_tiles = parts.ranges * parts.range_tiles * (row.Br / backward_tile_rows);
  tiles = problem.batch * problem.heads * q_tiles;
  plan.q_tiles = narrow(q_tiles), plan.key_blocks = narrow(key_blocks);
  const auto add = [&](BackwardStep step, int n, int64_t work) {
    plan.launches[plan.launch_count++] = {step, n, narrow(work)};
  };
  plan.order = key_order_of(problem, parts, plan.key_blocks, plan.q_tiles, row);
  const KeyOrder& order = plan.order;
  blocks *= order.parts;
  const int64_t all = std::max(blocks, int64_t{order.batch_heads}), section = order.section;  // at least one for a head
  if (problem.has_queries()) {
    const size_t numbers = static_cast<size_t>(tiles) * backward_tile_rows * sizeof(float);
    plan.lse = 0, plan.delta = numbers;
    size_t bytes = 2 * numbers;
    if (order.parts > 1) {
      plan.key_sums = bytes;
      bytes += 2 * static_cast<size_t>(blocks) * row.Bc * row.d * sizeof(float);
    }
    if (row.all_gradients()) {
      plan.dq_sums = bytes, plan.counters = bytes + numbers * row.d;
      plan.visits = plan.counters + sizeof(uint32_t) * (2 * static_cast<size_t>(order.batch_heads) + 1);
      bytes = plan.counters_end =
          plan.visits + sizeof(uint32_t) * static_cast<size_t>(tiles) / (row.Br / backward_tile_rows);
    }
    plan.workspace_bytes = std::max(plan.workspace_bytes, bytes);
    add(BackwardStep::prepare, pass_of("bwd_prepare", row.d), int64_t{heads_of_pass(order)} * order.head_tiles);
  }
  if (problem.has_keys()) add(BackwardStep::gradients, plan.row, blocks);
  if (!problem.has_queries()) return FA3_OK;
  const auto add_sums = [&] {
    if (order.parts > 1)
      add(BackwardStep::sum_keys, pass_of("bwd_sum", row.d), 2 * blocks / int32_t{order.parts} * (row.Bc / 64));
  };
  if (row.all_gradients()) {
    add(BackwardStep::finish, pass_of("bwd_finish", row.d), (all - order.done_behind * section) * order.share);
    add_sums();
    return FA3_OK;
  }
  const int queries = queries_row_of(row);
  const int64_t heads = problem.batch * problem.heads, query_blocks = divide_up(problem.seqlen_q, rows[queries].Br);
  plan.query_order = block_order_of(heads, narrow(query_blocks), problem.causal, DqOrder::any);
  add(BackwardStep::queries, queries, heads * query_blocks);
  add_sums();
  return FA3_OK;
}

int32_t grid_of(const BackwardLaunch& launch, int multiprocessors) {
  const bool takes_several = launch.step == BackwardStep::gradients && rows[launch.row].takes_several_blocks();
  return takes_several ? std::min(launch.work, multiprocessors) : launch.work;
}

fa3_status launch(const BackwardProblem& problem, const BackwardPlan& plan, void* workspace, CUstream stream) {
  const Driver* driver;
  Context* context;
  if (fa3_status status = get_driver(driver)) return status;
  if (fa3_status status = current_context(*driver, context)) return status;
  CUfunction functions[BackwardPlan::most_launches];
  for (int i = 0; i < plan.launch_count; ++i)
    if (fa3_status status = get_function(*driver, *context, plan.launches[i].row, stream, functions[i])) return status;
  BackwardParams params{};
  if (fa3_status status = fill(*driver, problem, plan, static_cast<char*>(workspace), params)) return status;
  for (int i = 0; i < plan.launch_count; ++i) {
    const BackwardLaunch& launch = plan.launches[i];
    const int32_t grid = grid_of(launch, context->multiprocessors);
    if (fa3_status status = enqueue(*driver, rows[launch.row], functions[i], grid, &params, i > 0, stream))
      return status;
  }
  return FA3_OK;
}

}  // namespace fa3
