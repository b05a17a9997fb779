// fa3_forward, in the order of a call: its rules, which kernels fit, what it launches; and the same on the CPU.
#pragma once
#include <cstddef>

#include "plan/work.h"
#include "problem.h"
#include "rules/call.h"
#include "table/row.h"

namespace fa3 {

struct Card;
struct Device;

// The caller's parameters after validation, with every default resolved.
struct ForwardProblem : PlannedShape, ProblemScales {
  View q, k, v, o, lse;  // (batch, seqlen, heads, head_dim or head_dim_v); lse (batch, heads, seqlen_q)
  bool wants_lse;
  const char* kernel;  // the caller's; null: any that fits
  bool two_level;      // FA3_FLAG_TWO_LEVEL

  // Of a planned problem, as what PlannedShape has.
  int64_t page_size;        // 0: no pages
  View page_table;          // (batch, pages of a sequence, 1, 1) of int32; dims 0 if there are no pages
  bool batch_invariant;     // FA3_FLAG_BATCH_INVARIANT
  const void* schedule;     // null: none
  size_t schedule_bytes;

  // A second query, of V's columns: scores are q . k + qv . v. Where V is the first columns of the caller's k (v_in_k),
  // it is those of his q, and q and k are what is left.
  View qv;  // dtype FA3_DTYPE_NONE: none
  bool v_in_k;

  bool has_qv() const { return qv.dtype != FA3_DTYPE_NONE; }
  // Of the caller's q and k.
  int64_t asked_head_dim() const { return v_in_k ? head_dim + head_dim_v : head_dim; }
  bool empty() const { return batch == 0 || heads == 0 || seqlen_q == 0; }
  // Is O float32 under Q of 16 bits?
  bool widens_o() const { return o.dtype == FA3_DTYPE_FP32 && q.dtype != FA3_DTYPE_E4M3; }
  // Are K and V of e4m3 under Q of another dtype?
  bool widens_keys() const { return q.dtype != FA3_DTYPE_E4M3 && k.dtype == FA3_DTYPE_E4M3; }
  // Is V alone, a latent cache?
  bool is_latent() const { return k.dtype != FA3_DTYPE_E4M3 && v.dtype == FA3_DTYPE_E4M3; }
};

// Every rule of fa3.h.
fa3_status validate(const fa3_forward_params* params, Rules rules, ForwardProblem& problem);
fa3_status validate_workspace(const ForwardProblem& problem, void* workspace, size_t bytes, size_t needed);
// Memory that is to become a schedule; and the schedule that the problem has.
fa3_status validate_schedule(const ForwardProblem& problem, void* schedule, size_t bytes, size_t needed);
fa3_status check_schedule(const ForwardProblem& problem, size_t needed);

// Rows of the table that may run the problem, of which the planner takes the fastest: one, if the caller named it.
// Of Q of 16 bits over K and V of e4m3, those that take K and V as they come are before those that take copies.
struct Fit {
  static constexpr int most = 16;
  int rows[most];
  int count;
  int v_tiles_row;  // that may run it instead, if a pass makes V tiles of V of 8 bits that comes row by row; -1: none
};

// The row that the caller named; or all that the library chooses itself, of the problem's dtype and mask and of the
// smallest head dimensions that hold it (larger ones are never faster). Problems that are planned run on rows with
// Trait::planned, others never do. Refuses a name that does not fit, and what the kernels' 32-bit counters cannot
// hold.
fa3_status fit(const ForwardProblem& problem, Fit& fit);

// What stands where in the workspace, in bytes from its start: the struct Workspace; of a planned problem, from
// FA3_FORWARD_WORKSPACE_BYTES on, the plan that the device makes (planned.h), which is not used if there is a schedule;
// then, if tiles are split, tickets and partial results.
struct WorkspaceLayout {
  size_t tickets, partials, bytes;
};

// The problem on a row. If it is planned, the list is the device's to make: of tiles only their heads say something,
// and tiles, pieces and slots are as many as there may be.
struct RowPlan {
  int row;
  Tiles tiles;
  Pieces pieces;
  Listed list[list_capacity];
  int32_t slots;              // for partial results
  double whole_us;            // predicted time with all tiles whole, rough where no row is compared,
  double predicted_us;        // and as planned
  WorkspaceLayout workspace;
};

enum class ForwardStep { forward, empty_rows, tile_v, plan_forward, copy_keys, add_parts };

struct ForwardLaunch {
  ForwardStep step;
  int row;
  int32_t grid;  // thread blocks. Those of a forward kernel are persistent: one for each multiprocessor, or for each
                 // piece where there are fewer; with Trait::one_tile there is one for each tile
};

// Where copies of K and V are in the workspace (copies.h), in bytes from its start.
struct Copies {
  size_t k, v, end;
};

// What a call launches: on which row its tiles run, in which pieces, in how much workspace. A function of the problem
// and the card; but how much workspace, of the problem and the number of multiprocessors only.
struct ForwardPlan {
  static constexpr int most_launches = 3;
  ForwardLaunch launches[most_launches];
  int launch_count;  // 0 for a problem without rows
  RowPlan forward;
  size_t v_tiles;  // where V as tiles is in the workspace, if there is a step that puts it there
  Copies copies;   // the same of copies of K and V
  size_t workspace_bytes;
  size_t schedule_bytes;  // of the plan that the device makes; 0: none
};

// The plan, until the calling thread plans some problems more: it remembers its last few.
const ForwardPlan& plan(const ForwardProblem& problem, const Fit& fit, const Card& card);

fa3_status launch(const ForwardProblem& problem, const ForwardPlan& plan, const Device& device, void* workspace,
                  fa3_stream stream);
// Only the step in which the device makes its plan; into `schedule`, for other calls.
fa3_status launch_schedule(const ForwardProblem& problem, const ForwardPlan& plan, const Device& device, void* schedule,
                           fa3_stream stream);

// threads: how many, the calling one among them; 0 for one per usable core (cpu/cores.h). At most 256, and no more than
// there are blocks of 128 rows (the queries of all heads that use one head of K and V). Each has 1.8 MB of memory
// during the call, whatever the problem's size; if that cannot be had, nothing is written. Where the system refuses
// more threads, fewer do the same. A planned problem has 8 bytes for each sequence besides.
// widest_vector: the largest number of doubles to compute together, 2, 4 or 8, as far as the machine can. All give the
// same bits; tests choose it to see that.
fa3_status reference_forward(const ForwardProblem& problem, int threads, int widest_vector = 8);

}  // namespace fa3
