// fa3_append on the CPU, a row at a time, by the words of fa3.h. It is the oracle of the kernel and shares nothing with
// it.
#include <algorithm>
#include <cstring>

#include "append/append.h"
#include "cpu/host_view.h"
#include "cpu/rotate.h"

namespace fa3 {
namespace {

constexpr int max_d = 1024;

// A number of 32 or 64 bits.
int64_t integer(const View& view, int64_t i) {
  return view.dtype == FA3_DTYPE_INT64 ? static_cast<const int64_t*>(view.data)[i]
                                       : static_cast<const int32_t*>(view.data)[i];
}

bool is_within(int64_t number, int64_t count) { return number >= 0 && number < count; }

// A new row: x(batch, row), the number-th of its sequence.
struct NewRow {
  int64_t batch, row, sequence, number;
};
struct Place {
  int64_t cache, row;
};

class Append {
 public:
  explicit Append(const AppendProblem& problem) : p_(problem) {}

  void all() const {
    if (p_.rows_alone)
      for (int64_t row = 0; row < p_.rows; ++row) append({0, row, 0, row});
    else
      for (int64_t sequence = 0; sequence < p_.batch; ++sequence) append_sequence(sequence);
  }

 private:
  void append_sequence(int64_t sequence) const {
    int64_t first = 0, count = p_.sequence_rows;
    if (p_.packed) {
      first = integer(p_.cu_seqlens, sequence);
      count = std::min(integer(p_.cu_seqlens, sequence + 1), p_.rows) - first;
    }
    if (p_.seqused.dim[0] != 0) count = std::min(count, integer(p_.seqused, sequence));
    for (int64_t n = std::max<int64_t>(-first, 0); n < count; ++n)
      append({p_.packed ? 0 : sequence, first + n, sequence, n});
  }

  void append(const NewRow& row) const {
    int64_t position = 0;
    if (p_.rotary.dim > 0 && !(angle_of(row, position) && is_within(position, angles()))) return;
    put(p_.q, row, {row.batch, row.row}, &p_.rotary, position);
    Place place;
    if (p_.caches == 0 || !place_of(row, place)) return;
    put(p_.k, row, place, &p_.rotary, position);
    put(p_.v, row, place, nullptr, position);
  }

  int64_t angles() const { return std::min(p_.rotary.cos.dim[0], p_.rotary.sin.dim[0]); }

  bool angle_of(const NewRow& row, int64_t& position) const {
    if (p_.rows_alone) return position = integer(p_.positions, row.row), true;
    const View& first = p_.positions.dim[0] == 0 ? p_.cache_seqlens : p_.positions;
    return !__builtin_add_overflow(integer(first, row.sequence), row.number, &position);
  }

  bool place_of(const NewRow& row, Place& place) const {
    if (p_.slots.dim[0] != 0) {
      const int64_t slot = integer(p_.slots, row.row);
      if (slot < 0) return false;
      place = {slot / p_.cache_rows, slot % p_.cache_rows};
      return place.cache < p_.caches;
    }
    const int64_t position = integer(p_.cache_seqlens, row.sequence) + row.number;
    if (!is_within(position, p_.capacity)) return false;
    if (p_.has_pages) {
      const int64_t page = row.sequence * p_.page_table.stride[0] + position / p_.cache_rows;
      place = {integer(p_.page_table, page), position % p_.cache_rows};
    } else {
      place = {p_.cache_batch_idx.dim[0] == 0 ? row.sequence : integer(p_.cache_batch_idx, row.sequence), position};
    }
    return is_within(place.cache, p_.caches);
  }

  // All heads of the row.
  static void put(const Appended& tensor, const NewRow& from, const Place& to, const Rotary* rotary,
                  int64_t position) {
    const View &x = tensor.x, &y = tensor.y;
    const int64_t rotated = rotary ? rotary->dim : 0, width = bytes_per_element(x.dtype);
    const int d = static_cast<int>(x.dim[3]);
    double values[max_d];
    for (int64_t head = 0; head < x.dim[2] && !x.empty(); ++head) {
      read_row(x, from.batch, from.row, head, values);
      if (rotated > 0) rotate(*rotary, position, values);
      if (tensor.has_scale) {
        const double scale = number(tensor.scale, from.sequence, head, 0);
        for (int c = 0; c < d; ++c) values[c] = to_float(values[c] / scale);
        write_row(y, to.cache, to.row, head, values);
        continue;
      }
      char* const out = element(y, to.cache, to.row, head);
      std::memmove(out, element(x, from.batch, from.row, head), static_cast<size_t>(d * width));
      write_elements(values, static_cast<int>(rotated), y.dtype, out, 1);
    }
  }

  const AppendProblem& p_;
};

}  // namespace

fa3_status reference_append(const AppendProblem& problem) {
  if (!problem.empty()) Append(problem).all();
  return FA3_OK;
}

}  // namespace fa3
