// The memory of a planned problem, what is right, and the verdict.
#pragma once
#include <string>
#include <vector>

#include "problems/images.h"
#include "problems/planned_problem.h"
#include "references/oracle.h"

namespace fa3::test {

// A planned problem with its inputs made and its outputs poisoned. Inputs are N(0,1), the same for every problem of the
// same seed and layout, where a sequence has a row that counts, and NaN everywhere else: between sequences, behind the
// rows in use, in padding, in pages and cache entries that nobody uses, and in sequences that are poisoned; so are the
// scales of a latent cache of e4m3.
struct PlannedCase {
  PlannedProblem problem;
  std::vector<Image> images;
  View q, k, v, o, lse, sinks, slopes;
  View qv;                                                                  // without an image where absent
  View cu_q, cu_k, used_q, used_k, leftpad_k, page_table, cache_batch_idx;  // without an image where absent
  View q_scale, k_scale, v_scale, o_scale, v_mean, lse_offset;              // of e4m3, likewise
  View latent_scale;                                                        // lies as v does, likewise

  explicit PlannedCase(const PlannedProblem& problem);

  // The first element of a row: of q, o and lse of a query, of k and v of a key.
  int64_t query_position(const View& view, const PlannedSequence& s, int64_t query, int64_t head) const;
  int64_t key_position(const View& view, const PlannedSequence& s, int64_t key, int64_t head_kv) const;

  // An element of v, by the position of its row's first one in v and in latent_scale.
  float value_at(int64_t v_position, int64_t scale_position, int64_t column) const;
  // A scale of a sequence's head, or 1; a number of v_mean, or of lse_offset, or 0; o_scale, or 1.
  float scale_of(const View& scale, int64_t sequence, int64_t head) const;
  float mean_of(int64_t sequence, int64_t head_kv, int64_t column) const;
  float offset_of(const PlannedSequence& s, int64_t query, int64_t head) const;
  float output_scale() const;

  // The call's parameters, given where each image lies.
  fa3_forward_params params(const std::vector<void*>& bases) const;
  fa3_forward_params host_params();
  std::vector<int> outputs() const;  // images of o and lse
  void poison_outputs();

  // Writes the problem's numbers again, after they were changed.
  void write_numbers();
  // Sequence `own` gets the inputs of another case's sequence b from this query on; its keys are the first ones there.
  // With e4m3 also all that is a sequence's beside them.
  void copy_inputs(const PlannedCase& from, int64_t b, int64_t first_query, int64_t own);
};

// Queries of one sequence in each head, and then the next one's, as rows: those of no poisoned sequence.
struct PlannedRow {
  PlannedSequence sequence;
  int64_t query, head;
};

// Made once, compared with any number of runs. Elements of o and lse are those of the rows, one after the other.
struct PlannedExpected {
  std::vector<PlannedRow> rows;
  std::vector<int64_t> keys;  // that each row sees
  Expected numbers;           // in float64, rounded once; and of plain float32 code (plain.h)
};
PlannedExpected expect(const PlannedCase& made);

// The outputs of the rows, gathered from the images.
Output gather(const PlannedCase& made, const std::vector<PlannedRow>& rows);

// Empty if the outputs in the images are right: every row of a sequence written, every other byte untouched, O of rows
// without keys exactly 0 and their LSE the sink or exactly -inf; and the errors, of all sequences together and of each
// alone, as small as oracle.h says.
std::string verify(const PlannedCase& made, const PlannedExpected& expected);

// Empty if nothing was written outside of the outputs' elements, whatever stands in these.
std::string check_outside(const PlannedCase& made);

}  // namespace fa3::test
