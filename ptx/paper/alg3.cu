// The paper's Algorithm 3: the backward pass with a producer, two consumer warpgroups and a warp that adds dQ. A thread
// block has one block of keys. The row alg3asis (as ptxas orders it) is of this file, too. For comparison; the kernel
// for use is bwd.cu. Comments cite the paper's lines as A3.n. How this differs from them:
//  - Everything is transposed, as in bwd.cu: rows are keys, so that P^T and dS^T are the A operands of dV and dK as
//    they come out of the exponentials, in registers.
//  - Each consumer warpgroup computes half of the columns of dQ, for which it needs dS of both: a barrier between them.
//  - The first one to hold a tile's semaphore stores dQ, so that nothing is cleared before.
#include "../backward/tile/gemm.cuh"
#include "../backward/tile/producer.cuh"
#include "../backward/tile/scores.cuh"
#include "../backward/tile/store.cuh"
#include "../backward/tile/work.cuh"
#include "../isa/barrier.cuh"
#include "../isa/setmaxnreg.cuh"
#include "../isa/tma.cuh"
#include "../tile/shared.cuh"
#include "as_written_smem.cuh"

namespace fa3 {
using namespace ptx;

// The barrier of both consumers, and those of each.
inline constexpr int consumers_barrier = 1, own_barrier = 2;

// As in tile/scores/softmax.cuh: never taken, as no exponential is negative.
FA3_DEVICE void end_basic_block(const uint32_t (&P)[Br / 4]) {
  uint32_t signs = 0;
  for (uint32_t pair : P) signs |= pair;
  if constexpr (has(Trait::hold_exps))
    if (signs & 0x80000000u) __nanosleep(1);
}

// A consumer warpgroup: 64 of the keys. `warp` of its four.
FA3_DEVICE void consumer(const BackwardParams& p, AsWrittenSmem& smem, const KeyWork& work, int warpgroup, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();                                                          // A3.15
  const int lane = threadIdx.x % 32;
  const bool one_lane = lane == 0;
  const int first_key = work.key + 64 * warpgroup, key = first_key + 16 * warp + lane / 4;

  const uint64_t keys = descriptor_units(64 * slab_row_bytes) * warpgroup;
  const uint64_t k = (descriptor_start(&smem.k) | rows_descriptor) + keys;
  const uint64_t v = (descriptor_start(&smem.v) | rows_descriptor) + keys;
  const uint64_t q = descriptor_start(&smem.q), dout = descriptor_start(&smem.dout);
  const uint64_t ds = descriptor_start(&smem.ds) | columns_descriptor(Bc);
  const uint64_t k_columns = (descriptor_start(&smem.k) | columns_descriptor(Bc)) +
                             descriptor_units(Bc * slab_row_bytes) * warpgroup;
  // dS^T: this lane's place for stmatrix.
  const int row = lane % 16;
  const uint32_t to_ds = shared_address(&smem.ds) + (64 * warpgroup + 16 * warp + row) * slab_row_bytes +
                         ((lane / 16 ^ row % 8) << 4);

  float dV[d / 2], dK[d / 2], S[Br / 2], dP[Br / 2], dQ[dq_columns / 2];
  uint32_t P[Br / 4], dS[Br / 4];
#pragma unroll
  for (int i = 0; i < d / 2; i++) dV[i] = dK[i] = 0.f;                                                    // A3.16
  wgmma_owned(dV);
  wgmma_owned(dK);
  const float c = p.softmax_scale_log2;
  wait(smem.full_k, 0);                                                                                   // A3.17
  wait(smem.full_v, 0);

  Use use, ds_use;
  uint32_t dq_parity = 1;
  int query = work.start_in_any_order(p.order, visible(p)) * Br;
  for (int j = 0; j < work.all; j++) {                                                                    // A3.18
    const int s = use.index;
    const uint64_t stage = uint64_t(s) * descriptor_units(sizeof smem.q[0]);
    wait(smem.full_q[s], use.parity);                                                                     // A3.19
    wait(smem.full_dout[s], use.parity);                         // A3.22, before the fence, so that one is enough
    wgmma_fence();
    issue_scores<Bc>(S, k, (q | rows_descriptor) + stage);                                                // A3.21
    wgmma_commit_group();
    issue_scores<Bc>(dP, v, (dout | rows_descriptor) + stage);                                            // A3.23
    wgmma_commit_group();
    wgmma_wait_group<1>();
    wgmma_owned(S);
    if (needs_mask(visible(p), first_key, query)) mask_scores(S, visible(p), key, query, lane);
#pragma unroll
    for (int g = 0; g < Br / 8; g++) {                                                                    // A3.24
      const float2 lse = numbers_at(smem.lse[s], g, lane);                                                // A3.20
      const float* const x = &S[4 * g];
      P[2 * g] = pack(ex2_approx_ftz(fmaf(x[0], c, -lse.x)), ex2_approx_ftz(fmaf(x[1], c, -lse.y)));
      P[2 * g + 1] = pack(ex2_approx_ftz(fmaf(x[2], c, -lse.x)), ex2_approx_ftz(fmaf(x[3], c, -lse.y)));
    }
    wgmma_owned(P);
    end_basic_block(P);
    wgmma_wait_group<0>();
    wgmma_owned(dP);
#pragma unroll
    for (int g = 0; g < Br / 8; g++) {                                                                    // A3.25
      const float2 delta = numbers_at(smem.delta[s], g, lane);
      const float* const x = &dP[4 * g];
      dS[2 * g] = scaled(P[2 * g], x[0] - delta.x, x[1] - delta.y);
      dS[2 * g + 1] = scaled(P[2 * g + 1], x[2] - delta.x, x[3] - delta.y);
    }
    wgmma_owned(dS);
    wgmma_fence();
    issue_gradient(dV, P, (dout | columns_descriptor(Br)) + stage);                                       // A3.26
    wgmma_commit_group();
    issue_gradient(dK, dS, (q | columns_descriptor(Br)) + stage);                                         // A3.27
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_owned(dV);
    wgmma_owned(dK);
    wgmma_owned(dS);
    if (one_lane) arrive(smem.empty_q[s]);
    if (one_lane) arrive(smem.empty_dout[s]);
#pragma unroll
    for (int i = 0; i < Br / 16; i++)
      stmatrix_x4((to_ds ^ i % 4 * 32) + ds_use.index * sizeof smem.ds[0], dS[4 * i], dS[4 * i + 1], dS[4 * i + 2],
                  dS[4 * i + 3]);
    fence_proxy_async_shared();
    bar_sync(consumers_barrier, 128 * warpgroups);
    wgmma_fence();
    issue_dq(dQ, ds + uint64_t(ds_use.index) * descriptor_units(sizeof smem.ds[0]), k_columns);           // A3.28
    wgmma_commit_group();
    wait(smem.empty_dq, dq_parity);
    wgmma_wait_group<0>();
    wgmma_owned(dQ);
#pragma unroll
    for (int g = 0; g < dq_columns / 8; g++) {
      const float* const x = &dQ[4 * g];
      reinterpret_cast<float4*>(smem.dq[warpgroup][warp])[g * 32 + lane] = make_float4(x[0], x[1], x[2], x[3]);
    }
    fence_proxy_async_shared();
    __syncwarp();
    if (one_lane) arrive(smem.full_dq);
    use.next<config.stages>();
    ds_use.next<ds_buffers>();
    dq_parity ^= 1;
    query += Br;
    if (query >= work.end * Br) query = work.first * Br;
  }
  griddepcontrol_launch_dependents();

  // Only this warpgroup has read its rows of V; those of K are read for dQ by both.
  const Place to = {first_key, work.head_kv, work.batch};
  bar_sync(consumers_barrier, 128 * warpgroups);
  store_gradient<Bc>(dV, 1.f, smem.v + warpgroup * 64 * slab_columns, p.dv, to, own_barrier + warpgroup, warp);
  store_gradient<Bc>(dK, p.softmax_scale, smem.k + warpgroup * 64 * slab_columns, p.dk, to, own_barrier + warpgroup,
                     warp);
  if (warp == 0 && one_lane) cp_async_bulk_wait_group<0>();
}

// A tile's semaphore: each one that comes draws a number from its lower half, and the upper half says whose turn it is.
inline constexpr uint32_t next_turn = 1 << 16;

// The thread that adds dQ.
FA3_DEVICE void dq_writer(const BackwardParams& p, AsWrittenSmem& smem, const KeyWork& work) {
  griddepcontrol_wait();  // the pass before sets all visits to 0
  QueryTile tile(work);
  for (int j = 0; j < work.all; j++, tile.next(p, work)) {                                                // A3.31
    wait(smem.full_dq, j & 1);                                                                            // A3.32
    uint32_t& semaphore = p.visits[tile.number(work)];                                                    // A3.33
    const uint32_t drawn = atom_add_acquire_gpu_u32(&semaphore, 1), turn = drawn % next_turn;
    uint32_t now = drawn;
    while (now / next_turn != turn) now = ld_acquire_gpu_u32(&semaphore);
    delay(turn);
    if (turn > 0) fence_proxy_async_global();
    float* const to = p.rows.dq_sums + int64_t(tile.number(work)) * (Br * d);
    if (turn == 0) cp_async_bulk_store(to, shared_address(&smem.dq), sizeof smem.dq);
    else cp_reduce_async_bulk_add_f32(to, shared_address(&smem.dq), sizeof smem.dq);
    cp_async_bulk_commit_group();
    cp_async_bulk_wait_group_read<0>();
    arrive(smem.empty_dq);
    cp_async_bulk_wait_group<0>();
    red_add_release_gpu_u32(&semaphore, next_turn);
  }
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::BackwardParams p) {
  using namespace fa3;
  const int warp = warp_of_block();
  AsWrittenSmem& smem = *reinterpret_cast<AsWrittenSmem*>(shared_memory());
  if (threadIdx.x == 0) init_barriers(smem);                                                              // A3.4
  if (threadIdx.x == 32)
    for (const TensorMap* map : {&p.q, &p.k, &p.v, &p.dout, &p.dk, &p.dv}) ptx::prefetch_tensormap(map);
  ptx::bar_sync(barrier_all, config.threads());
  const KeyWork work(p, blockIdx.x);
  if (warp / 4 < warpgroups) return consumer(p, smem, work, warp / 4, warp % 4);
  ptx::setmaxnreg_dec<config.producer_registers()>();                                                     // A3.6
  constexpr int first = config.threads() - 128;
  if (threadIdx.x == first) producer(p, smem, work);                                                      // A3.5
  if (threadIdx.x == first + 32) dq_writer(p, smem, work);                                                // A3.30
}
