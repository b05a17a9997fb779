// Putting the parts of a split tile together (work.h). Each part has a warp for the same 16 rows, and each of these
// warps takes a ticket when it has finished them. All but the last write their result, with O as it stands in the
// accumulators, into the slot of their part. The last waits until the others have, and goes on with the sum. The sum
// has the same bits whoever comes last: of two parts, one is added to the other in the last one's registers, in a way
// that commutes; of more, the last writes its own result, too, and reads all in the order of the keys.
#pragma once
#include "../row_sums.cuh"
#include "../scores/softmax.cuh"

namespace fa3 {

// The result of a part for a warp's 16 rows, lane by lane.
struct Partial {
  // Four accumulators each, not divided by l; not written if the rows see no key of the part.
  float4 o[o_columns / 8][32];
  float4 sums[32];  // m and l of the lane's two rows
};
static_assert(sizeof(Partial) == config.partial_bytes());

// Takes a ticket for the warp's rows, and tells how many parts have taken one before.
FA3_DEVICE uint32_t take_ticket(const Params& p, const RowBlock& block, int warp) {
  uint32_t taken = 0;
  if (threadIdx.x % 32 == 0) taken = ptx::atom_add_gpu_u32(&p.tickets[block.ticket].taken, 1u << 8 * warp);
  return __shfl_sync(0xffffffffu, taken, 0) >> 8 * warp & 255;
}

// If the warp is the last, O, m and l of its part become those of the whole tile. Returns false if it is not, or if its
// rows are outside of the problem: then there is nothing to store. l: row sums, of the whole quad; where they are 0, O
// is, too. fit: what makes O fit them, which it then does.
FA3_DEVICE bool combine(float (&O)[o_columns / 2], RowState& state, float (&l)[2], float (&fit)[2], const Params& p,
                        const RowBlock& block, int warp) {
  constexpr unsigned all = 0xffffffffu;
  if (block.row < 0 || block.row + 16 * warp >= visible(p, block).seqlen_q) return false;
  fit_rows(O, fit);
  const int lane = threadIdx.x % 32, parts = block.parts;
  // Where the result of part 0 is. In 32 bits: the extension of `warp` would stay in registers all the time.
  const int first_partial = 4 * block.partial + warp;
  auto partial = [&](int part) -> Partial& {
    return static_cast<Partial*>(p.partials)[first_partial + part * (4 * warpgroups)];
  };
  uint32_t* written = &p.tickets[block.ticket].written;
  const uint32_t ticket = take_ticket(p, block, warp);
  const bool last = ticket == parts - 1u;

  if (!last || parts > 2) {
    Partial& mine = partial(block.part);
    if (__any_sync(all, (l[0] != 0.f) | (l[1] != 0.f))) {
#pragma unroll
      for (int i = 0; i < o_columns / 8; i++)
        __stcg(&mine.o[i][lane], make_float4(O[4 * i], O[4 * i + 1], O[4 * i + 2], O[4 * i + 3]));
    }
    __stcg(&mine.sums[lane], make_float4(state.m[0], state.m[1], l[0], l[1]));
  }
  if (!last) {
    __syncwarp();
    if (lane == 0) ptx::red_add_release_gpu_u32(written, 1u << 8 * warp);
    return false;
  }
  while ((ptx::ld_acquire_gpu_u32(written) >> 8 * warp & 255) != parts - 1u) {
  }

  if (parts == 2) {
    // A part in which a row sees no key adds -0, which changes no number: so here, too, the same bits come out in
    // either order.
    const auto weight_of = [](float m, float l, float all_m) {
      return l == 0.f ? -0.f : part_weight(m, all_m);
    };
    const Partial& other = partial(1 - block.part);
    const float4 sums = __ldcg(&other.sums[lane]);
    const float m[2] = {fmaxf(state.m[0], sums.x), fmaxf(state.m[1], sums.y)};
    const float own_weight[2] = {weight_of(state.m[0], l[0], m[0]), weight_of(state.m[1], l[1], m[1])};
    const float weight[2] = {weight_of(sums.x, sums.z, m[0]), weight_of(sums.y, sums.w, m[1])};
    state.m[0] = m[0];
    state.m[1] = m[1];
    l[0] = add_in_any_order(own_weight[0] * l[0], weight[0], sums.z);
    l[1] = add_in_any_order(own_weight[1] * l[1], weight[1], sums.w);
    scale_rows(O, own_weight);
    auto add_quarter = [&](int k) {  // behind a branch each, or ptxas loads all of it so early that it spills
      if (!__any_sync(all, (sums.z != 0.f) | (sums.w != 0.f))) return;
#pragma unroll
      for (int i = k * o_columns / 32; i < (k + 1) * o_columns / 32; i++)
        add_four<add_in_any_order>(O, i, weight, __ldcg(&other.o[i][lane]));
    };
    add_quarter(0); add_quarter(1); add_quarter(2); add_quarter(3);
    return true;
  }

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
    const float weight[2] = {part_weight(sums.x, m[0]), part_weight(sums.y, m[1])};
    l[0] = add_in_order(l[0], weight[0], sums.z);
    l[1] = add_in_order(l[1], weight[1], sums.w);
    auto add_quarter = [&](int k) {  // as above
      if (!__any_sync(all, (sums.z != 0.f) | (sums.w != 0.f))) return;
#pragma unroll
      for (int i = k * o_columns / 32; i < (k + 1) * o_columns / 32; i++)
        add_four<add_in_order>(O, i, weight, __ldcg(&partial(part).o[i][lane]));
    };
    add_quarter(0); add_quarter(1); add_quarter(2); add_quarter(3);
  }
  state.m[0] = m[0];
  state.m[1] = m[1];
  return true;
}

}  // namespace fa3
