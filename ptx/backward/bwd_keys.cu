// The backward pass where all sums do not fit the registers of one thread block, first half: dK and dV (bwd_queries.cu
// has dQ). The paper's Algorithm 3, cited as A3.n, without its lines about dQ. A thread block owns 64 keys and visits
// the query tiles that see them, as bwd.cu does, with rows that are keys. Where it differs from bwd.cu, and why:
//  - A sum of 64 keys and 256 columns takes 128 registers of each thread of a warpgroup, so each consumer warpgroup
//    has one: one computes S, P and dV, the other dP, dS and dK. P goes from one to the other through shared memory.
//  - There is no sum in global memory: the same call gives the same bits.
//  - In each warpgroup, the sum of a tile is issued together with the scores of the next one, and first: it needs
//    nothing that is still on its way, and gives its buffer back early. While one warpgroup computes exponentials, or
//    dS, the tensor cores have the other's products.
//  - Each has half of K, or of V, in registers for as long as it has the key block. A turn needs shared memory's rate
//    more than the tensor cores', and reads 240 instead of 272 KB so (measured: 2 to 3%).
#include "../isa/barrier.cuh"
#include "../isa/setmaxnreg.cuh"
#include "../isa/tma.cuh"
#include "../tile/shared.cuh"
#include "keys_smem.cuh"
#include "tile/gemm.cuh"
#include "tile/producer.cuh"
#include "tile/scores.cuh"
#include "tile/store.cuh"
#include "tile/unrounded_keys.cuh"
#include "tile/work.cuh"

namespace fa3 {
using namespace ptx;

// From the start of one stage of Q or dO to that of another.
FA3_DEVICE uint64_t stage(const Use& use) {
  return uint64_t(use.index) * descriptor_units(sizeof(Element) * Br * d);
}

// The gradient of the thread block's keys, by its warpgroup: through the buffer whose contents only this one has read;
// or, where sums go to the workspace, for the pass that adds them up; or in float32.
FA3_DEVICE void store_keys(const Params& p, const float (&D)[d / 2], KeyGradient gradient, Element* buffer,
                           const KeyWork& work, int warp) {
  if (!rounds_keys(p)) return store_unrounded(p, D, gradient, work, 0, warp);
  const bool is_dk = gradient == KeyGradient::dk;
  const int warpgroup = is_dk;
  bar_sync(barrier_warpgroup + warpgroup, 128);  // all four warps have read it for the last time
  const Place to = place_in(p, is_dk ? BackwardMap::dk : BackwardMap::dv, sequence_of(p, work), work.key, work.head_kv);
  store_gradient<Bc>(D, is_dk ? p.softmax_scale : 1.f, buffer, is_dk ? p.dk : p.dv, to,
                     barrier_warpgroup + warpgroup, warp);
  if (warp == 0 && threadIdx.x % 32 == 0) cp_async_bulk_wait_group<0>();
}

// The consumer warpgroup of V: S, P and dV. `warp` of its four.
FA3_DEVICE void values(const Params& p, KeysSmem& smem, const KeyWork& work, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();                                                          // A3.15
  const int lane = threadIdx.x % 32, thread = threadIdx.x % 128, key = work.key + 16 * warp + lane / 4;
  const bool one_lane = all_lanes_arrive || lane == 0;
  const uint64_t k = descriptor_start(&smem.k) | rows_descriptor;
  const uint64_t q = descriptor_start(&smem.q) | rows_descriptor;
  const uint64_t dout = descriptor_start(&smem.dout) | columns_descriptor(Br);

  float dV[d / 2], S[Br / 2];
  uint32_t P[Br / 4];
#pragma unroll
  for (int i = 0; i < d / 2; i++) dV[i] = 0.f;                                                            // A3.16
  wgmma_owned(dV);
  const float c = exponent_of_score(p);
  wait(smem.full_k, 0);                                                                                   // A3.17
  HalfOfA K;
  load_half(K, smem.k, warp);

  Use use, before, p_use;  // of the stage of S, of the one of dV, and of P's buffer
  int counted_query = planned ? 0 : work.start_in_any_order(p.order, visible(p)) * Br;
  // P of the tile from its S, and to the other warpgroup, with softcap behind the derivative.
  const auto exponentials = [&] {
    if constexpr (has(Trait::softcap)) {
      const TanhWay way = tanh_way(smem.lse[use.index], transforms_of(p).softcap, lane);
      tanh_scores(S, way, transforms_of(p).softcap, tanh_of(p));
      wait(smem.empty_p[p_use.index], p_use.parity ^ 1);
      keep_slopes(S, way, [&](int g, const uint2& four) { smem.slopes[p_use.index][g][thread] = four; });
    }
    if constexpr (has(Trait::alibi)) subtract_bias(S, transforms_of(p).alibi, smem.bias[use.index], key, lane);
    const int query = planned ? smem.first_query[use.index] : counted_query;
    if (needs_mask(p, smem, work.key, query)) mask_scores(S, visible(p, smem), key, query, lane);
#pragma unroll
    for (int g = 0; g < Br / 8; g++) {                                                                    // A3.24
      const float2 lse = numbers_at(smem.lse[use.index], g, lane);                                        // A3.20
      const float* const x = &S[4 * g];
      P[2 * g] = pack(ex2_approx_ftz(fmaf(x[0], c, -lse.x)), ex2_approx_ftz(fmaf(x[1], c, -lse.y)));
      P[2 * g + 1] = pack(ex2_approx_ftz(fmaf(x[2], c, -lse.x)), ex2_approx_ftz(fmaf(x[3], c, -lse.y)));
    }
    wgmma_owned(P);
    if constexpr (!has(Trait::softcap)) wait(smem.empty_p[p_use.index], p_use.parity ^ 1);
#pragma unroll
    for (int i = 0; i < Br / 16; i++)
      smem.p[p_use.index][i][thread] = make_uint4(P[4 * i], P[4 * i + 1], P[4 * i + 2], P[4 * i + 3]);
    __syncwarp();
    if (one_lane) arrive(smem.full_p[p_use.index]);
    p_use.next<p_buffers>();
    use.next<config.stages>();
    if (planned) return;
    counted_query += Br;
    if (counted_query >= work.end * Br) counted_query = work.first * Br;
  };

  if (work.all > 0) {
    wait(smem.full_q[use.index], use.parity);                                                             // A3.19
    wgmma_fence();
    issue_scores(S, K, k, q + stage(use));                                                                // A3.21
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_owned(S);
    exponentials();
    for (int j = 1; j < work.all; j++) {                                                                  // A3.18
      wait(smem.full_dout[before.index], before.parity);                                                  // A3.22
      wgmma_fence();
      issue_gradient(dV, P, dout + stage(before));                                                        // A3.26
      wgmma_commit_group();
      wait(smem.full_q[use.index], use.parity);                                                           // A3.19
      wgmma_fence();  // again behind the branch of the wait (C7519)
      issue_scores(S, K, k, q + stage(use));                                                              // A3.21
      wgmma_commit_group();
      wgmma_wait_group<1>();
      wgmma_owned(dV);
      if (one_lane) arrive(smem.empty_dout[before.index]);
      before.next<config.stages>();
      wgmma_wait_group<0>();
      wgmma_owned(S);
      exponentials();
    }
    wait(smem.full_dout[before.index], before.parity);
    wgmma_fence();
    issue_gradient(dV, P, dout + stage(before));
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_owned(dV);
  }
  griddepcontrol_launch_dependents();
  store_keys(p, dV, KeyGradient::dv, smem.k, work, warp);
}

// The consumer warpgroup of K: dP, dS and dK. `warp` of its four.
FA3_DEVICE void keys(const Params& p, KeysSmem& smem, const KeyWork& work, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();                                                          // A3.15
  const int lane = threadIdx.x % 32, thread = threadIdx.x % 128;
  const bool one_lane = all_lanes_arrive || lane == 0;
  const uint64_t v = descriptor_start(&smem.v) | rows_descriptor;
  const uint64_t dout = descriptor_start(&smem.dout) | rows_descriptor;
  const uint64_t q = descriptor_start(&smem.q) | columns_descriptor(Br);

  float dK[d / 2], dP[Br / 2];
  uint32_t dS[Br / 4];
#pragma unroll
  for (int i = 0; i < d / 2; i++) dK[i] = 0.f;                                                            // A3.16
  wgmma_owned(dK);
  wait(smem.full_v, 0);                                                                                   // A3.17
  HalfOfA V;
  load_half(V, smem.v, warp);

  Use use, before, p_use;  // of the stage of dP, of the one of dK, and of P's buffer
  // dS of the tile from its dP and P.
  const auto scale_by_p = [&] {
    wait(smem.full_p[p_use.index], p_use.parity);
    uint32_t P[Br / 4];
#pragma unroll
    for (int i = 0; i < Br / 16; i++) {
      const uint4 four = smem.p[p_use.index][i][thread];
      P[4 * i] = four.x, P[4 * i + 1] = four.y, P[4 * i + 2] = four.z, P[4 * i + 3] = four.w;
    }
    __syncwarp();
    if (!has(Trait::softcap) && one_lane) arrive(smem.empty_p[p_use.index]);
#pragma unroll
    for (int g = 0; g < Br / 8; g++) {                                                                    // A3.25
      const float2 delta = numbers_at(smem.delta[use.index], g, lane);
      const float* const x = &dP[4 * g];
      float y[4] = {x[0] - delta.x, x[1] - delta.y, x[2] - delta.x, x[3] - delta.y};
      if constexpr (has(Trait::softcap)) multiply_by_slopes(y, smem.slopes[p_use.index][g][thread]);
      dS[2 * g] = scaled(P[2 * g], y[0], y[1]);
      dS[2 * g + 1] = scaled(P[2 * g + 1], y[2], y[3]);
    }
    wgmma_owned(dS);
    __syncwarp();
    if (has(Trait::softcap) && one_lane) arrive(smem.empty_p[p_use.index]);
    if (one_lane) arrive(smem.empty_dout[use.index]);
    p_use.next<p_buffers>();
    use.next<config.stages>();
  };

  if (work.all > 0) {
    wait(smem.full_dout[use.index], use.parity);                                                          // A3.22
    wgmma_fence();
    issue_scores(dP, V, v, dout + stage(use));                                                            // A3.23
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_owned(dP);
    scale_by_p();
    for (int j = 1; j < work.all; j++) {                                                                  // A3.18
      wait(smem.full_q[before.index], before.parity);                                                     // A3.19
      wgmma_fence();
      issue_gradient(dK, dS, q + stage(before));                                                          // A3.27
      wgmma_commit_group();
      wait(smem.full_dout[use.index], use.parity);                                                        // A3.22
      wgmma_fence();  // again behind the branch of the wait (C7519)
      issue_scores(dP, V, v, dout + stage(use));                                                          // A3.23
      wgmma_commit_group();
      wgmma_wait_group<1>();
      wgmma_owned(dK);
      if (one_lane) arrive(smem.empty_q[before.index]);  // S of this tile is done: its P has come
      before.next<config.stages>();
      wgmma_wait_group<0>();
      wgmma_owned(dP);
      scale_by_p();
    }
    wait(smem.full_q[before.index], before.parity);
    wgmma_fence();
    issue_gradient(dK, dS, q + stage(before));
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_owned(dK);
  }
  griddepcontrol_launch_dependents();
  store_keys(p, dK, KeyGradient::dk, smem.v, work, warp);
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  const int warp = warp_of_block();
  KeysSmem& smem = *reinterpret_cast<KeysSmem*>(shared_memory());
  if (threadIdx.x == 0) init_barriers(smem);
  if (threadIdx.x == 32)
    for (const TensorMap* map : {&p.q, &p.k, &p.v, &p.dout, &p.dk, &p.dv}) ptx::prefetch_tensormap(map);
  if (planned) ptx::griddepcontrol_wait();  // the passes before make the list of key blocks
  if (!is_listed(p, blockIdx.x)) return;
  if (planned && threadIdx.x == 64) keep_work(p, smem, blockIdx.x);
  ptx::bar_sync(barrier_all, config.threads());
  const KeyWork work(p, blockIdx.x);
  if (warp < 4) return values(p, smem, work, warp);
  if (warp < 8) return keys(p, smem, work, warp - 4);
  ptx::setmaxnreg_dec<config.producer_registers()>();
  if (threadIdx.x == 256) producer(p, smem, work);
}
