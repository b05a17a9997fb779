// Where a row of a tile belongs, and the sink of its head: with Trait::planned a row's sum of exponentials may have
// one more addend, exp(sink), which has no value. It is added once, when the sums of all keys are there.
#pragma once
#include "../row_sums.cuh"
#include "../smem.cuh"

namespace fa3 {

// Where a row of a tile belongs: with packed heads several have the same query.
struct RowPlace {
  int query, head;
  bool exists;  // is it a row of the problem?
};
FA3_DEVICE RowPlace place_of(const Params& p, const RowBlock& block, int row) {
  if constexpr (config.packs_heads()) {
    const int query = packing(p).query(row), head = packing(p).head(row);
    return {query, block.head * p.heads_per_kv + head,
            row >= 0 && query < visible(p, block).seqlen_q && head < p.heads_per_kv};
  } else {
    return {row, block.head, row >= 0 && row < visible(p, block).seqlen_q};
  }
}

// What is added to the LSE of a row that exists, where there is such a number: all its scores lack it.
FA3_DEVICE float lse_offset_at(const Scales& scales, const RowBlock& block, int row) {
  return scales.lse_offset[block.batch * scales.lse_offset_stride_batch +
                           block.head * scales.lse_offset_stride_head +
                           (block.q_row() + row) * scales.lse_offset_stride_row];
}

// The sink of a tile's row; -inf: none. It lacks what the row's scores lack.
template <class P>
FA3_DEVICE float sink_of(const P& p, const RowBlock& block, int row) {
  if constexpr (planned)
    if (p.sinks) {
      const RowPlace place = place_of(p, block, row);
      if (!config.packs_heads() || place.exists) {
        const float sink = __ldca(p.sinks + place.head * p.sinks_stride);
        if constexpr (config.has_scales())
          if (p.scales.lse_offset && place.exists) return sink - lse_offset_at(p.scales, block, row);
        return sink;
      }
    }
  return -INFINITY;
}

FA3_DEVICE FinishedRow finish_with(float sink, float m, float l) {
  if constexpr (planned) return finish_row(m, l, sink);
  else return finish_row(m, l);
}

// Those of a lane's two rows, which are the same unless heads are packed or scores lack something. They are sent for
// before the row sums are there, as they may come from far away: so by a load that the compiler leaves where it is.
class Sinks {
 public:
  FA3_DEVICE Sinks(const Params& p, const RowBlock& block, int warp) {
    const int row = block.row + 16 * warp + threadIdx.x % 32 / 4;
    row_sinks_[0] = sink_of(p, block, row);
    row_sinks_[1] = config.packs_heads() || config.has_scales() ? sink_of(p, block, row + 8) : row_sinks_[0];
  }
  // m and l of row i of the two.
  FA3_DEVICE FinishedRow finish(int i, float m, float l) const {
    return finish_with(i ? row_sinks_[1] : row_sinks_[0], m, l);
  }

 private:
  float row_sinks_[2];
};

}  // namespace fa3
