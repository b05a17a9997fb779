// Where the sequences of a point lie in its tensors, and the numbers that tell the device so.
#pragma once
#include <cstdint>
#include <vector>

#include "points/point.h"

namespace fa3::bench {

// How many rows each sequence has.
std::vector<int64_t> queries_of(const Point& point);
std::vector<int64_t> keys_of(const Point& point);

// Row r of q or o, or of k or v, is the r-th of all entries of the batch, all packed sequences or all pages.
class Rows {
 public:
  explicit Rows(const Point& point);

  int64_t query(int64_t sequence, int64_t i) const { return first_query_[size_t(sequence)] + i; }
  int64_t key(int64_t sequence, int64_t j) const;
  // Of a query's element of lse.
  int64_t lse(int64_t sequence, int64_t i, int64_t head) const;

  // As fa3.h has them; empty where the point has none.
  std::vector<int32_t> cu_q, cu_k, used_k, page_table;

 private:
  int64_t page_, columns_, heads_, lse_rows_;  // columns of the page table; rows of a head of lse
  bool packed_;                                // are queries?
  std::vector<int64_t> first_query_, first_key_;
};

}  // namespace fa3::bench
