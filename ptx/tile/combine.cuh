// Putting the parts of a split tile together (split.h). Each warp leaves what it has of its 16 rows, O as it stands in the
// accumulators, in the workspace, and takes a ticket; the one with the last ticket reads all parts and goes on with their sum.
// It reads them in the order of the keys, its own too, so that the result has the same bits whoever comes last.
#pragma once
#include "softmax.cuh"

namespace fa3 {

// A warp's 16 rows, lane by lane.
struct Partial {
  float4 o[d / 8][32];  // not normalised; four accumulator registers each. Not written if the warp's rows see no key
  float4 sums[32];      // m and l of the lane's two rows
};
static_assert(sizeof(Partial) == row.partial_bytes());

// O, m and l of the part become those of the tile, if this warp is the last; false if not, or if it has no rows. l: complete
// row sums; O is 0 where they are.
FA3_DEVICE bool combine(float (&O)[d / 2], RowState& state, float (&l)[2], const ForwardParams& p, const RowBlock& block,
                        int warp) {
  constexpr unsigned all = 0xffffffffu;
  if (block.row < 0 || block.row + 16 * warp >= p.seqlen_q) return false;
  const int lane = threadIdx.x % 32, parts = block.parts;
  const int first = 4 * block.partial + warp;  // in 32 bits: the extension of `warp` would stay in registers all the time
  auto partial = [&](int part) -> Partial& { return static_cast<Partial*>(p.partials)[first + part * (4 * warpgroups)]; };

  Partial& mine = partial(block.part);
  if (__any_sync(all, (l[0] != 0.f) | (l[1] != 0.f))) {
#pragma unroll
    for (int i = 0; i < d / 8; i++)
      __stcg(&mine.o[i][lane], make_float4(O[4 * i], O[4 * i + 1], O[4 * i + 2], O[4 * i + 3]));
  }
  __stcg(&mine.sums[lane], make_float4(state.m[0], state.m[1], l[0], l[1]));
  __threadfence();
  __syncwarp();
  uint32_t ticket = 0;
  if (lane == 0) ticket = atomicAdd(p.tickets + block.ticket, 1u << 8 * warp);
  ticket = __shfl_sync(all, ticket, 0);
  if ((ticket >> 8 * warp & 255) != parts - 1u) return false;
  __threadfence();

  float m[2] = {lowest_m, lowest_m};
#pragma unroll 4
  for (int part = 0; part < parts; part++) {
    const float4 sums = __ldcg(&partial(part).sums[lane]);
    m[0] = fmaxf(m[0], sums.x);
    m[1] = fmaxf(m[1], sums.y);
  }
  clear(O);
  l[0] = l[1] = 0.f;
  float4 next = __ldcg(&partial(0).sums[lane]);
#pragma unroll 1
  for (int part = 0; part < parts; part++) {
    const float4 sums = next;
    if (part + 1 < parts) next = __ldcg(&partial(part + 1).sums[lane]);
    if (!__any_sync(all, (sums.z != 0.f) | (sums.w != 0.f))) continue;
    const float weight[2] = {ptx::ex2_approx_ftz(sums.x - m[0]), ptx::ex2_approx_ftz(sums.y - m[1])};
    l[0] = fmaf(weight[0], sums.z, l[0]);
    l[1] = fmaf(weight[1], sums.w, l[1]);
#pragma unroll
    for (int i = 0; i < d / 8; i++) {
      const float4 o = __ldcg(&partial(part).o[i][lane]);
      O[4 * i] = fmaf(weight[0], o.x, O[4 * i]);
      O[4 * i + 1] = fmaf(weight[0], o.y, O[4 * i + 1]);
      O[4 * i + 2] = fmaf(weight[1], o.z, O[4 * i + 2]);
      O[4 * i + 3] = fmaf(weight[1], o.w, O[4 * i + 3]);
    }
  }
  state.m[0] = m[0];
  state.m[1] = m[1];
  return true;
}

}  // namespace fa3
