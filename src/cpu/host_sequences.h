// The sequences of a problem in host memory, as the CPU references read them. Whatever the caller's lengths are,
// nothing outside of the tensors is read or written.
#pragma once
#include <algorithm>
#include <cstdlib>

#include "cpu/host_view.h"
#include "error.h"
#include "integers.h"
#include "problem.h"

namespace fa3 {

// Sequence b; of a problem that is not planned, the batch entry.
inline Sequence sequence_of(const PlannedShape& shape, int64_t b) {
  if (!shape.planned)
    return {0, narrow(b), 0, narrow(b), narrow(shape.seqlen_q), narrow(shape.seqlen_k), no_bound, no_bound};
  const int32_t total_q = narrow(shape.total_q), total_k = narrow(shape.total_k);
  return sequence_at(shape.lengths, total_q, total_k, shape.window, narrow(b));
}

// The keys of the query's chunk, from 0 on also for a position before it. int64, as chunks may be of any size.
inline Keys keys_of_chunk(const PlannedShape& shape, const Sequence& s, int64_t query) {
  const int64_t position = query + s.seqlen_k - s.seqlen_q, size = shape.chunk;
  if (position < 0) return {0, 0};
  const int64_t begin = position / size * size;
  return {narrow(std::min<int64_t>(begin, s.seqlen_k)), narrow(std::min<int64_t>(begin + size, s.seqlen_k))};
}

// The keys that a query sees: begin and end never fall from one query to the next, and lie within the sequence.
inline Keys seen_keys(const PlannedShape& shape, const Sequence& s, int64_t query) {
  if (!shape.planned) return {0, narrow(visible_keys(shape, query))};
  Keys keys = visible_of(s, true, true, {0}).of(narrow(query));
  if (shape.chunk > 0) {
    const Keys chunk = keys_of_chunk(shape, s, query);
    keys = {std::max(keys.begin, chunk.begin), std::min(keys.end, chunk.end)};
  }
  const int32_t begin = clamped(keys.begin, 0, s.seqlen_k);
  return {begin, clamped(keys.end, begin, s.seqlen_k)};
}

// The tasks of all sequences, numbered one sequence after the other.
class SequenceTasks {
 public:
  SequenceTasks() = default;
  SequenceTasks(const SequenceTasks&) = delete;
  ~SequenceTasks() { std::free(first_); }

  // tasks_of(b): how many sequence b has; where the problem is not planned all have as many as the first one.
  template <class TasksOf>
  fa3_status count(const PlannedShape& shape, const TasksOf& tasks_of) {
    batch_ = shape.batch;
    if (!shape.planned) {
      each_ = tasks_of(0);
      if (!__builtin_mul_overflow(each_, batch_, &all_)) return FA3_OK;
      return fail(FA3_ERROR_UNSUPPORTED, "q.dim[0] * q.dim[1] * q.dim[2] overflows int64");
    }
    const size_t bytes = static_cast<size_t>(batch_ + 1) * sizeof(int64_t);
    first_ = static_cast<int64_t*>(std::malloc(bytes));
    if (first_ == nullptr) return fail(FA3_ERROR_OUT_OF_MEMORY, "no host memory for %zu bytes of lengths", bytes);
    first_[0] = 0;
    for (int64_t b = 0; b < batch_; ++b)
      if (__builtin_add_overflow(first_[b], tasks_of(b), &first_[b + 1]))
        return fail(FA3_ERROR_UNSUPPORTED, "the rows of all sequences and heads overflow int64");
    all_ = first_[batch_];
    return FA3_OK;
  }
  int64_t all() const { return all_; }

  // Of task n: its sequence, which one of that it is, and how many that has.
  struct Place {
    int64_t sequence, number, count;
  };
  Place of(int64_t n) const {
    if (first_ == nullptr) return {n / each_, n % each_, each_};
    const int64_t* const next = std::upper_bound(first_, first_ + batch_, n);
    return {next - 1 - first_, n - next[-1], next[0] - next[-1]};
  }

 private:
  int64_t batch_ = 0, all_ = 0;
  int64_t each_ = 0;          // if all have as many,
  int64_t* first_ = nullptr;  // otherwise the number of each sequence's first one, and behind them that of all tasks
};

}  // namespace fa3
