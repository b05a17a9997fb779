// What becomes of scores before they are masked, and what that makes of dS: with Trait::softcap and Trait::alibi. Rows
// are keys. Other rows of the table call nothing here.
#pragma once
#include "../softcap.cuh"
#include "sequence.cuh"

namespace fa3 {

FA3_DEVICE const ScoreTransforms& transforms_of(const TransformedBackwardParams& p) { return p.transforms; }
FA3_DEVICE ScoreTransforms transforms_of(const BackwardParams&) { return {}; }

// What a query tile's bias follows from: its sequence, its head, and the position of its first row among the keys.
struct TileBias {
  int sequence, head, position;
};

// What the producer needs for that, which has no registers for it.
struct BiasLoads {
  int sequence, offset;  // of positions from rows

  FA3_DEVICE void keep(const BackwardParams&, int) {}
  FA3_DEVICE void keep(const TransformedBackwardParams& p, int number) {
    const Alibi& by = p.transforms.alibi;
    const PlannedBlock& block = p.blocks[listed_block(*p.counts, p.order.section, number).entry];
    const int of_call = max(p.tiles[block.first_tile].sequence, 0);
    sequence = of_call;
    offset = block.sequence.q_row - by.q.end_of(of_call) + by.k.end_of(of_call) - block.sequence.k_row;
  }
};

// `key`: of the thread's first row.
FA3_DEVICE void subtract_bias(float (&S)[Br / 2], const Alibi& by, const TileBias& bias, int key, int lane) {
  const float slope =
      __ldg(by.slopes + bias.sequence * by.stride_batch + bias.head * by.stride_head) * by.inverse_scale;
  const int distance = bias.position + 2 * (lane % 4) - key;  // of S[0]
  const float first[2] = {slope * float(distance), slope * float(distance - 8)};
#pragma unroll
  for (int i = 0; i < Br / 2; i++) {
    const int column = 8 * (i / 4) + i % 2;
    S[i] -= fabsf(fmaf(float(column), slope, first[i / 2 % 2]));
  }
}

// The derivative of cap tanh(S / cap) where that is `capped`; of a score that is not seen, and -inf, 0.
FA3_DEVICE float softcap_slope(float capped, const Softcap& by) {
  const float tanh = capped * by.inverse_cap;
  return __saturatef(fmaf(-tanh, tanh, 1.f));
}

}  // namespace fa3
