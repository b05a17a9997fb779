// The backward pass: its rules, what it launches, and the same on the CPU.
#pragma once
#include <algorithm>

#include "integers.h"
#include "params/backward_params.h"
#include "params/widen_params.h"
#include "problem.h"
#include "rules/call.h"

namespace fa3 {

struct Card;
struct Device;

// The caller's parameters after validation, with every default resolved.
struct BackwardProblem : PlannedShape, ProblemScales {
  View q, k, v, o, dout;  // (batch, seqlen, heads, head_dim or head_dim_v), but for v as tiles (ProblemScales), as
  View dq, dk, dv;        // the gradients are
  View lse, dlse;         // (batch, heads, seqlen_q, 1); dlse.data is null where it is absent
  View dsinks;            // as sinks
  const char* kernel;     // the caller's; null: any that fits
  bool deterministic;     // FA3_FLAG_DETERMINISTIC
  bool centered_k;        // FA3_FLAG_CENTERED_K
  GradientStore store;    // of dq, dk and dv; on the device all have one dtype

  bool has_queries() const { return batch > 0 && heads > 0 && seqlen_q > 0; }
  bool has_keys() const { return batch > 0 && heads_kv > 0 && seqlen_k > 0; }
  bool is_e4m3() const { return q.dtype == FA3_DTYPE_E4M3; }
};

// What its rows see.
inline Visible visible_of(const BackwardProblem& problem) {
  return {static_cast<int32_t>(problem.seqlen_q), static_cast<int32_t>(problem.seqlen_k), 0,
          static_cast<int32_t>(problem.causal_offset), false, problem.causal, {0}};
}

// Every rule of fa3.h.
fa3_status validate(const fa3_backward_params* params, Rules rules, BackwardProblem& problem);
fa3_status validate_workspace(const BackwardProblem& problem, void* workspace, size_t bytes, size_t needed);

// The problem without the rows that see no key (a causal mask leaves the first ones none where queries are more than
// keys): their dq is 0, and nothing else of them matters.
struct SeeingRows {
  BackwardProblem problem;
  int64_t empty_rows;  // so many before them
};
SeeingRows seeing_rows(const BackwardProblem& problem);
// In tiles of backward_tile_rows.
inline int64_t empty_tiles(int64_t empty_rows) { return divide_up(empty_rows, backward_tile_rows); }
// Of some batch entries.
BackwardProblem entries_of(const BackwardProblem& problem, int64_t first, int64_t count);

// Where copies of 16 bits lie of what comes in e4m3, in bytes from the workspace's start, and behind them the rest of
// the workspace. All is 0 of other problems.
struct Widening {
  size_t q, k, v;
  size_t lse, dlse;  // where there is lse_offset, v_mean
  size_t bytes;
};

// What a run launches: a function of the problem.
enum class BackwardStep {
  widen,      // before all runs
  prepare,    // and zeros
  gradients,  // all of them, or dK and dV
  queries,    // then dQ
  finish,     // dQ, and dK and dV of several parts
  plan_backward,  // first of all, of planned problems: the list of key blocks
  key_means       // then, with FA3_FLAG_CENTERED_K
};
struct BackwardLaunch {
  BackwardStep step;
  int row;
  int32_t work;  // tiles of queries, or blocks of keys or queries
};
// What a planned problem has beside that (planned.h). Of `order` it has what PlannedBackwardParams takes.
struct PlannedRun {
  PlanBackwardParams call;
  size_t list, sink_sums;  // in the workspace
  int32_t sink_sums_each;  // of a head
  size_t key_means;        // with FA3_FLAG_CENTERED_K
  int32_t zero_slices, zero_blocks, finish_sharers, finish_blocks;
};
struct BackwardRun {
  static constexpr int most_launches = 6;
  BackwardLaunch launches[most_launches];
  int launch_count;    // 0 for a problem without gradients
  int row;             // of the kernel that computes gradients, or the first one
  int32_t q_tiles;     // of a head
  int32_t key_blocks;  // of a head
  KeyOrder order;      // its counters are in the workspace
  BlockOrder query_order;  // of the kernel that computes dQ only
  // What stands where in the workspace, in bytes from its start; dq_sums and visits if that kernel sums dQ up, counters
  // if it computes all gradients, key_sums if order.key_sums > 1, of a planned problem if there are several parts. The
  // last counters are the visits.
  bool sums_dq;
  size_t lse, delta, key_sums, dq_sums, counters, visits, counters_end, workspace_bytes;
  PlannedRun planned;  // of a planned problem
};

// A call: so many runs, one after the other, in the same workspace, of `entries` batch entries each, but for the last
// one, which has what is left. So the workspace is bounded, whatever the batch.
struct BackwardPlan {
  Widening widening;
  BackwardLaunch widen;  // before all runs; work 0: there is nothing to widen
  BackwardRun run, last;
  int32_t runs;
  int64_t entries;
  bool by_card;  // of other cards it may be another one, in the same workspace

  const BackwardRun& of(int64_t n) const { return n < runs - 1 ? run : last; }
  int64_t run_launches() const { return int64_t{runs - 1} * run.launch_count + last.launch_count; }
  bool widens() const { return widen.work > 0 && run_launches() > 0; }
  int64_t launch_count() const { return run_launches() + widens(); }
  // The n-th of all launches.
  const BackwardLaunch& launch(int64_t n) const {
    if (widens() && n-- == 0) return widen;
    const int64_t before_last = int64_t{runs - 1} * run.launch_count;
    return n < before_last ? run.launches[n % run.launch_count] : last.launches[n - before_last];
  }
  size_t workspace_bytes() const {
    return widening.bytes + std::max(run.workspace_bytes, last.workspace_bytes);
  }
};
fa3_status plan(const BackwardProblem& problem, const Card& card, BackwardPlan& plan);

// Of e4m3, the copies, and the launch that makes them.
fa3_status plan_widening(const BackwardProblem& problem, BackwardPlan& plan);
// The problem with these copies, which has no scales; any other problem is what it was. workspace null: to plan it.
BackwardProblem widened(const BackwardProblem& problem, const Widening& widening, char* workspace);
// What that launch is passed.
WidenParams widen_params(const BackwardProblem& problem, const Widening& widening, char* workspace);

// Its thread blocks: one for each of its tiles or blocks (`work`), or for each multiprocessor where one takes several.
int32_t grid_of(const BackwardLaunch& launch, int multiprocessors);

fa3_status launch(const BackwardProblem& problem, const BackwardPlan& plan, const Device& device, void* workspace,
                  fa3_stream stream);

// threads, widest_vector: as for reference_forward.
fa3_status reference_backward(const BackwardProblem& problem, int threads, int widest_vector = 8);

}  // namespace fa3
