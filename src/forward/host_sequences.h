// The sequences of a problem in host memory, as the CPU reference reads them. Whatever the caller's lengths and page
// numbers are, nothing outside of the tensors is read or written.
#pragma once
#include <algorithm>

#include "cpu/host_view.h"
#include "forward/forward.h"
#include "integers.h"

namespace fa3 {

// Sequence b; of a problem that is not served, the batch entry.
inline Sequence sequence_of(const ForwardProblem& problem, int64_t b) {
  if (!problem.served)
    return {0, narrow(b), 0, narrow(b), narrow(problem.seqlen_q), narrow(problem.seqlen_k), no_bound, no_bound};
  const int32_t total_q = narrow(problem.total_q), total_k = narrow(problem.total_k);
  return sequence_at(problem.lengths, total_q, total_k, problem.window, narrow(b));
}

// The keys of the query's chunk, from 0 on also for a position before it. int64, as chunks may be of any size.
inline Keys keys_of_chunk(const ForwardProblem& problem, const Sequence& s, int64_t query) {
  const int64_t position = query + s.seqlen_k - s.seqlen_q, size = problem.chunk;
  if (position < 0) return {0, 0};
  const int64_t begin = position / size * size;
  return {narrow(std::min<int64_t>(begin, s.seqlen_k)), narrow(std::min<int64_t>(begin + size, s.seqlen_k))};
}

// The keys that a query sees: begin and end never fall from one query to the next, and lie within the sequence.
inline Keys seen_keys(const ForwardProblem& problem, const Sequence& s, int64_t query) {
  if (!problem.served) return {0, narrow(visible_keys(problem, query))};
  Keys keys = visible_of(s, true, true, {0}).of(narrow(query));
  if (problem.chunk > 0) {
    const Keys chunk = keys_of_chunk(problem, s, query);
    keys = {std::max(keys.begin, chunk.begin), std::min(keys.end, chunk.end)};
  }
  const int32_t begin = clamped(keys.begin, 0, s.seqlen_k);
  return {begin, clamped(keys.end, begin, s.seqlen_k)};
}

// A row of k or v. Of a page that there is none of it is zero, as on the device.
inline void read_key_row(const ForwardProblem& problem, const View& view, const Sequence& s, int64_t key,
                         int64_t head_kv, double* out) {
  if (problem.page_size == 0) return read_row(view, s.k_batch, s.k_row + key, head_kv, out);
  const View& table = problem.page_table;
  const int64_t page = static_cast<const int32_t*>(
      table.data)[s.k_batch * table.stride[0] + key / problem.page_size * table.stride[1]];
  if (page >= 0 && page < view.dim[0]) read_row(view, page, key % problem.page_size, head_kv, out);
  else std::fill(out, out + view.dim[3], 0.0);
}

}  // namespace fa3
