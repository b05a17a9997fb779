// The sequence that a key block is of, and where its rows lie in the tensors. Where lengths belong to the call, each
// batch entry is a sequence, and all are alike. With Trait::planned each has a Sequence in device memory.
#pragma once
#include <type_traits>

#include "../../params/backward_params.h"
#include "../../tile/loads/load.cuh"

namespace fa3 {

// What the kernel takes.
inline constexpr bool transforms_scores = config.transforms_scores();
using Params =
    std::conditional_t<has(Trait::centered_k), CenteredBackwardParams,
                       std::conditional_t<transforms_scores, TransformedBackwardParams,
                                          std::conditional_t<planned, PlannedBackwardParams, BackwardParams>>>;
static_assert(sizeof(Params) == parameter_bytes(config));

// Which keys rows see. Which sides are bounded is a constant here: the table's row has the mask.
FA3_DEVICE Visible visible(const BackwardParams& p) {
  return {p.visible.seqlen_q, p.visible.seqlen_k, p.visible.left, p.visible.right, bounded_left, bounded_right, {0}};
}
FA3_DEVICE Visible visible(const Sequence& sequence) {
  return visible_of(sequence, bounded_left, bounded_right, {0});
}

// What the producer needs to know of the sequence, which has no registers for it: row 0 and the end as clipped maps
// count, of each map for loads; and the sequence.
struct SequenceLoads {
  int32_t first_q, first_k;
  int32_t end[backward_load_maps];
  Sequence sequence;

  FA3_DEVICE void keep(const PlannedBackwardParams& p, const Sequence& of) {
    sequence = of;
    first_q = clipped_rows - of.seqlen_q, first_k = clipped_rows - of.seqlen_k;
#pragma unroll
    for (int i = 0; i < backward_load_maps; i++)
      end[i] = p.end_of(BackwardMap(i), of);
  }
  FA3_DEVICE Place place(BackwardMap map, int row, int head) const {
    return {(maps_queries(map) ? first_q : first_k) + row, head, end[int(map)]};
  }
};

// Where a gradient's rows go.
FA3_DEVICE Place place_in(const BackwardParams&, BackwardMap, int batch, int row, int head) {
  return {row, head, batch};
}
FA3_DEVICE Place place_in(const PlannedBackwardParams& p, BackwardMap map, const Sequence& sequence, int row,
                          int head) {
  const int n = maps_queries(map) ? sequence.seqlen_q : sequence.seqlen_k;
  return clipped(p.end_of(map, sequence), n, row, head);
}

// Of tiles whose first row is in [first, last] each row sees each of 64 keys, those from first_key on.
struct PlainRows {
  int32_t first, last;

  FA3_DEVICE void find(const Sequence& s, int first_key) {
    first = s.right == no_bound ? 0 : first_key + 63 - s.right;
    last = first_key + 64 > s.seqlen_k ? -1 : s.left == no_bound ? no_bound : first_key + s.left - (Br - 1);
  }
  FA3_DEVICE bool hold(int row) const { return row >= first && row <= last; }
};

// Loads `rows` rows.
FA3_DEVICE void load_rows(const Element* to, int rows, const TensorMap& map, uint64_t& full, const Place& from) {
  if constexpr (planned) {
#pragma unroll
    for (int slab = 0; slab < slabs; slab++)
      ptx::cp_async_bulk_tensor_5d_load(ptx::shared_address(to) + slab * rows * slab_row_bytes, &map,
                                        ptx::shared_address(&full), slab * slab_columns, from.row, from.head,
                                        from.batch, clipped_rows);
  } else {
    load_rows(to, rows, slabs, map, full, from.row, from.head, from.batch);
  }
}
// Stores the columns from `column` on that a box has.
FA3_DEVICE void store_rows(uint32_t from, const TensorMap& map, int column, const Place& to) {
  if constexpr (planned)
    ptx::cp_async_bulk_tensor_5d_store(&map, from, column, to.row, to.head, to.batch, clipped_rows);
  else
    ptx::cp_async_bulk_tensor_4d_store(&map, from, column, to.row, to.head, to.batch);
}

}  // namespace fa3
