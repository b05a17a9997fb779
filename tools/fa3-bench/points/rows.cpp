#include "points/rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "random.h"

namespace fa3::bench {

namespace {

constexpr uint64_t seed_of_pages = 5;

// What is beyond what the library counts stays so, for it to refuse.
std::vector<int32_t> in_int32(const std::vector<int64_t>& numbers) {
  std::vector<int32_t> narrow;
  for (const int64_t n : numbers) narrow.push_back(int32_t(std::min<int64_t>(n, INT32_MAX)));
  return narrow;
}

std::vector<int32_t> any_order(int64_t count) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  tools::Random random(seed_of_pages);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.bits() % i]);
  return order;
}

}  // namespace

std::vector<int64_t> queries_of(const Point& p) {
  return p.packed_q() ? p.planned.lengths : std::vector(size_t(p.batch), p.seqlen);
}
std::vector<int64_t> keys_of(const Point& p) {
  return p.packed_q() ? p.planned.lengths_k : std::vector(size_t(p.batch), p.seqlen_k);
}

Rows::Rows(const Point& p)
    : page_(p.planned.page), columns_(p.pages_each()), heads_(p.heads),
      lse_rows_(p.packed_q() ? p.query_rows() : p.seqlen), packed_(p.packed_q()) {
  first_query_ = first_key_ = {0};
  for (int64_t b = 0; b < p.batch; ++b) {
    first_query_.push_back(first_query_.back() + p.queries(b));
    first_key_.push_back(first_key_.back() + p.keys(b));
  }
  if (packed_) cu_q = in_int32(first_query_);
  if (p.packed_k()) cu_k = in_int32(first_key_);
  if (page_ == 0) return;
  const std::vector<int32_t> order = any_order(p.pages());
  page_table.assign(size_t(p.batch * columns_), 0);
  size_t next = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    used_k.push_back(int32_t(p.keys(b)));
    for (int64_t n = 0; n * page_ < p.keys(b); ++n) page_table[size_t(b * columns_ + n)] = order[next++];
  }
}

int64_t Rows::key(int64_t sequence, int64_t j) const {
  if (page_ == 0) return first_key_[size_t(sequence)] + j;
  return page_table[size_t(sequence * columns_ + j / page_)] * page_ + j % page_;
}

int64_t Rows::lse(int64_t sequence, int64_t i, int64_t head) const {
  return packed_ ? head * lse_rows_ + query(sequence, i) : (sequence * heads_ + head) * lse_rows_ + i;
}

}  // namespace fa3::bench
