// FlashAttention-3, backward pass: the paper's Algorithm 3, cited as A3.n. A thread block takes one block of Bc keys
// after another and visits the query tiles that see them: one thread loads, two consumer warpgroups compute S, dP, dV
// and dK of 64 keys each, another warpgroup dQ, one thread adds it to sums in global memory, and another one stores dV
// and dK. ptx/README.md has a drawing of who does what when. Where this differs from the paper, and why:
//  - Everything is transposed: rows are keys. P^T and dS^T are then the A operands of dV and dK as they come out of the
//    exponentials, in registers.
//  - A warpgroup of its own computes dQ, from the dS of both consumers: dQ = dS K takes its sum over all keys of the
//    thread block, and the consumers need no barrier between them.
//  - dQ is added by TMA, which needs no semaphore; the first one to come stores instead, so that nothing is cleared.
//  - dQ is rounded between key blocks by the consumers, whose K is on its way then. A kernel behind rounds the last
//    ones.
//  - With Trait::centered_k what rounding has made of dS's row sums is taken off dQ (backward/key_mean.cuh).
//  - With Trait::one_key_block dQ of a tile is complete at once. It is staged rounded then, and stored.
//  - LSE and D of later query tiles are prepared by a warp of the producer's, beside the products. A kernel before
//    prepares the first ones.
//  - Thread blocks stay: Q, dO and V of the next key block come while dV and dK of this one leave.
#include "../isa/grid.cuh"
#include "../isa/setmaxnreg.cuh"
#include "../isa/tma.cuh"
#include "../tile/shared.cuh"
#include "ahead.cuh"
#include "earlier_dq.cuh"
#include "smem.cuh"
#include "tile/gemm.cuh"
#include "tile/producer.cuh"
#include "tile/scores.cuh"
#include "tile/store.cuh"
#include "tile/unrounded_keys.cuh"
#include "tile/work.cuh"
#include "writers.cuh"

namespace fa3 {
using namespace ptx;

// The main loop of a consumer warpgroup: dV and dK of 64 keys of the n-th key block. `warp` of its four.
FA3_DEVICE void compute_gradients(const Params& p, BackwardSmem& smem, const KeyWork& work, int n, Use& use,
                                  Use& ds_use, int warpgroup, int warp, float (&dV)[d / 2], float (&dK)[d / 2]) {
  const int lane = kept(threadIdx.x % 32);  // otherwise the main loop reads the thread's number, which takes its time
  const bool one_lane = all_lanes_arrive || lane == 0;
  const int first_key = work.key + 64 * warpgroup, key = first_key + 16 * warp + lane / 4;

  const uint64_t keys = descriptor_units(64 * slab_row_bytes) * warpgroup;
  const uint64_t k = (descriptor_start(&smem.k) | rows_descriptor) + keys;
  const uint64_t v = (descriptor_start(&smem.v) | rows_descriptor) + keys;
  const uint64_t q = descriptor_start(&smem.q), dout = descriptor_start(&smem.dout);
  // dS^T: this lane's place for stmatrix.
  const int row = lane % 16;
  const uint32_t to_ds = shared_address(&smem.ds) + (64 * warpgroup + 16 * warp + row) * slab_row_bytes +
                         ((lane / 16 ^ row % 8) << 4);

  float S[Br / 2];  // and then dP
  uint32_t P[Br / 4], dS[Br / 4];
#pragma unroll
  for (int i = 0; i < d / 2; i++) dV[i] = dK[i] = 0.f;                                                    // A3.16
  wgmma_owned(dV);
  wgmma_owned(dK);
  const float c = exponent_of_score(p);
  wait(smem.full_k, n & 1);                                                                               // A3.17
  // Also where no tile reads this K, and then says so. The wait is for a parity: a warp that left it out could come to
  // the next one two phases behind, and pass at once, before that K is there.
  __syncwarp();
  if (one_lane) arrive(smem.empty_k);
  wait(smem.full_v, n & 1);

  for (int j = 0; j < work.all; j++) {                                                                    // A3.18
    const int s = use.index;
    const uint64_t stage = uint64_t(s) * descriptor_units(sizeof smem.q[0]);
    wait(smem.full_q[s], use.parity);                                                                     // A3.19
    const int query = smem.first_query[s];
    wgmma_fence();
    issue_scores<Bc>(S, k, (q | rows_descriptor) + stage);                                                // A3.21
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_owned(S);
    if (one_lane && j > 0) arrive(smem.s_done[ds_use.index ^ 1]);
    const KeptSlopes slopes(smem, ds_use.index, warpgroup, warp, lane);
    if constexpr (has(Trait::softcap)) {
      const TanhWay way = tanh_way(smem.lse[s], transforms_of(p).softcap, lane);
      tanh_scores(S, way, transforms_of(p).softcap, tanh_of(p));
      wait(smem.empty_ds[ds_use.index], ds_use.parity ^ 1);
      keep_slopes(S, way, [&](int g, const uint2& four) { slopes[g] = four; });
    }
    if constexpr (has(Trait::alibi)) subtract_bias(S, transforms_of(p).alibi, smem.bias[s], key, lane);
    if (needs_mask(p, smem, warpgroup, first_key, query)) mask_scores(S, visible(p, smem), key, query, lane);
    // With this wait behind them, ptxas puts none of these exponentials behind the issue of dP.
    if constexpr (has(Trait::softcap)) wait(smem.full_dout[s], use.parity);
#pragma unroll
    for (int g = 0; g < Br / 8; g++) {                                                                    // A3.24
      const float2 lse = numbers_at(smem.lse[s], g, lane);                                                // A3.20
      const float* const x = &S[4 * g];
      const float e[4] = {ex2_approx_ftz(fmaf(x[0], c, -lse.x)), ex2_approx_ftz(fmaf(x[1], c, -lse.y)),
                          ex2_approx_ftz(fmaf(x[2], c, -lse.x)), ex2_approx_ftz(fmaf(x[3], c, -lse.y))};
      P[2 * g] = pack(e[0], e[1]);
      P[2 * g + 1] = pack(e[2], e[3]);
    }
    wgmma_owned(P);
    if constexpr (!has(Trait::softcap)) wait(smem.full_dout[s], use.parity);                              // A3.22
    wgmma_fence();
    issue_scores<Bc>(S, v, (dout | rows_descriptor) + stage);                                             // A3.23
    wgmma_commit_group();
    wgmma_fence();
    issue_gradient(dV, P, (dout | columns_descriptor(Br)) + stage);                                       // A3.26
    wgmma_commit_group();
    wgmma_wait_group<1>();
    wgmma_owned(S);
#pragma unroll
    for (int g = 0; g < Br / 8; g++) {                                                                    // A3.25
      const float2 delta = numbers_at(smem.delta[s], g, lane);
      const float* const x = &S[4 * g];
      // In two ways, as ptxas orders the loop of rows without softcap otherwise when it comes by way of y.
      if constexpr (has(Trait::softcap)) {
        float y[4] = {x[0] - delta.x, x[1] - delta.y, x[2] - delta.x, x[3] - delta.y};
        multiply_by_slopes(y, slopes[g]);
        dS[2 * g] = scaled(P[2 * g], y[0], y[1]);
        dS[2 * g + 1] = scaled(P[2 * g + 1], y[2], y[3]);
      } else {
        dS[2 * g] = scaled(P[2 * g], x[0] - delta.x, x[1] - delta.y);
        dS[2 * g + 1] = scaled(P[2 * g + 1], x[2] - delta.x, x[3] - delta.y);
      }
    }
    wgmma_owned(dS);
    if constexpr (!has(Trait::softcap)) wait(smem.empty_ds[ds_use.index], ds_use.parity ^ 1);
#pragma unroll
    for (int i = 0; i < Br / 16; i++)
      stmatrix_x4((to_ds ^ i % 4 * 32) + i / 4 * Bc * slab_row_bytes + ds_use.index * sizeof smem.ds[0], dS[4 * i],
                  dS[4 * i + 1], dS[4 * i + 2], dS[4 * i + 3]);
    wgmma_fence();
    issue_gradient(dK, dS, (q | columns_descriptor(Br)) + stage);                                         // A3.27
    wgmma_commit_group();
    // Only now, as dK need not wait for what takes 100 clocks (measured: d 64 1.4 to 3%, d 128 1%).
    fence_proxy_async_shared();
    __syncwarp();
    if (one_lane) arrive(smem.full_ds[ds_use.index]);
    wgmma_wait_group<1>();
    if (one_lane) arrive(smem.empty_dout[s]);
    wgmma_wait_group<0>();
    wgmma_owned(dV);
    wgmma_owned(dK);
    if (one_lane) arrive(smem.empty_q[s]);
    use.next<query_stages>();
    ds_use.next<ds_buffers>();
  }
  if (work.all > 0 && one_lane) arrive(smem.s_done[ds_use.index ^ 1]);
}

// A consumer warpgroup: 64 keys of each key block. `warp` of its four. Complete sums are left to gradient_writer.
FA3_DEVICE void consumer(const Params& p, BackwardSmem& smem, int warpgroup, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();                                                          // A3.15
  constexpr int warps = 4 * warpgroups, in_flight = 8;
  const bool one_lane = all_lanes_arrive || threadIdx.x % 32 == 0;
  Use use, ds_use;
  for (int n = 0;; n++) {
    const int number = smem.claims.read_by_warp(n);
    if (!is_block(p, number)) return;
    float dV[d / 2], dK[d / 2];
    compute_gradients(p, smem, KeyWork(p, number), n, use, ds_use, warpgroup, warp, dV, dK);
    if (dv_in_stage && one_lane) arrive(smem.empty_v);

    const auto store = [&](int number) {
      const KeyWork work(p, number);
      store_unrounded(p, dV, KeyGradient::dv, work, warpgroup, warp);
      store_unrounded(p, dK, KeyGradient::dk, work, warpgroup, warp);
    };
    const auto wait_for_stage = [&] {
      wait(smem.full_q[use.index], use.parity);
      wait(smem.full_dout[use.index], use.parity);
    };
    const auto hand_over = [&] {
      __syncwarp();
      if (one_lane) arrive(smem.staged);
      if (one_lane) arrive(smem.empty_q[use.index]);
      if (one_lane) arrive(smem.empty_dout[use.index]);
      use.next<query_stages>();
    };
    // Float32 of varlen sequences leaves before dQ of earlier heads takes its registers. With softcap it has the rest
    // of the way for itself, as these rows spill otherwise, and no dQ of earlier heads is to be rounded then. Rows
    // without softcap have one way for all, as with two the main loop has another order at d 64 (measured: 1.7%).
    constexpr bool apart = planned && has(Trait::softcap);
    const bool rounded = rounds_keys(p);
    if (planned && !rounded) store(smem.claims.read_by_warp(n));
    if (apart && !rounded) {
      wait(smem.sums_ready, n & 1);
      __syncwarp();
      if (one_lane) smem.claims.release(n);
      wait_for_stage();
      hand_over();
      continue;
    }

    // dQ of earlier heads: the first loads are under way while dV and dK are staged. With an object that walks through
    // all strips, ptxas put 25 to 40% of the main loop's exponentials behind the issue of dP, with these numbers 97%:
    // that is worth 2% at d 128.
    wait(smem.sums_ready, n & 1);
    const int same_number = smem.claims.read_by_warp(n);  // read again, not kept in a register
    const EarlierDq earlier(p, same_number);
    __syncwarp();
    if (one_lane) smem.claims.release(n);
    int i = earlier.first + 4 * warpgroup + warp;
    const bool rounds = i < earlier.end;
    const Strip strip = earlier.strip(p, i);
    float4 x[in_flight] = {};
    if (rounds) strip.load(x, 0);

    const bool stages = apart || rounded;
    if (!dv_in_stage && stages) stage_gradient<dv_buffer_rows>(dV, 1.f, dv_buffer(smem, 0, warpgroup), warp);
    wait_for_stage();
    if (stages) {
      if (dv_in_stage) stage_gradient<dv_buffer_rows>(dV, 1.f, dv_buffer(smem, use.index, warpgroup), warp);
      stage_gradient<64>(dK, p.softmax_scale, dk_buffer(smem, use.index, warpgroup), warp);
    } else if (!planned) {
      store(same_number);
    }
    hand_over();

    if (!rounds) continue;
    strip.store(p, x, 0, is_bf16);
    strip.finish<in_flight>(p, in_flight, is_bf16);
    for (i += warps; i < earlier.end; i += warps) earlier.strip(p, i).finish<in_flight>(p, 0, is_bf16);
  }
}

// The warpgroup that computes dQ = dS K of each query tile and stages it for dq_writer: in float32 for the sums, or as
// dq has it, if it is complete. Its products run while the consumers compute exponentials: so it waits until both have
// S of the next tile (measured: 5% at d 128). `warp` of its four.
FA3_DEVICE void dq_consumer(const Params& p, BackwardSmem& smem, int warp) {
  setmaxnreg_dec<config.dq_registers()>();
  const int lane = threadIdx.x % 32;
  const bool one_lane = all_lanes_arrive || lane == 0;
  const uint64_t ds = descriptor_start(&smem.ds) | columns_descriptor(Bc);
  const uint64_t k = descriptor_start(&smem.k) | columns_descriptor(Bc);
  Use use;              // of smem.ds
  uint32_t parity = 0;  // of the uses of smem.dq
  float D[dq_columns / 2];
  float row_sums[sum_columns / 2];  // with Trait::centered_k
  for (int n = 0;; n++) {
    const int number = smem.claims.read_by_warp(n);
    if (!is_block(p, number)) return;
    const KeyWork work(p, number);
    const int all = work.all;
    __syncwarp();
    if (one_lane) smem.claims.release(n);
    if constexpr (has(Trait::centered_k)) smem.key_mean[0].load(p, work, barrier_warpgroup);
    wait(smem.full_k, n & 1);
    if (all == 0 && one_lane) arrive(smem.empty_k);
    for (int j = 0; j < all; j++, use.next<ds_buffers>(), parity ^= 1) {
      wait(smem.full_ds[use.index], use.parity);
      wait(smem.s_done[use.index], use.parity);
#pragma unroll
      for (int square = 0; square < dq_squares; square++) {
        wgmma_fence();
        const int slab = square / dq_column_squares, columns = square % dq_column_squares;
        issue_dq(D,
                 ds + uint64_t(use.index) * descriptor_units(sizeof smem.ds[0]) +
                     descriptor_units(slab * Bc * slab_row_bytes),
                 k + descriptor_units(columns * Bc * slab_row_bytes));                                    // A3.28
        if constexpr (has(Trait::centered_k))
          if (columns == 0)
            issue_row_sums(row_sums,
                           ds + uint64_t(use.index) * descriptor_units(sizeof smem.ds[0]) +
                               descriptor_units(slab * Bc * slab_row_bytes),
                           smem.key_mean[0]);
        wgmma_commit_group();
        MeanOfColumns<dq_columns> mean;
        if constexpr (has(Trait::centered_k)) mean.load(smem.key_mean[0].mean + columns * dq_columns, lane);
        wait(smem.empty_dq[square], parity ^ 1);
        wgmma_wait_group<0>();
        wgmma_owned(D);
        if (square == dq_squares - 1 && one_lane) arrive(smem.empty_ds[use.index]);
        if constexpr (has(Trait::centered_k)) {
          if (columns == 0) wgmma_owned(row_sums);
          mean.take_off(D, row_sums[0], row_sums[2]);
        }
        if (square == dq_squares - 1 && j == all - 1 && one_lane) arrive(smem.empty_k);
        if constexpr (has(Trait::one_key_block)) {
          stage_gradient<64>(D, p.softmax_scale, dq_buffer(smem, square), warp);
        } else {
          float* const staged = smem.dq[square][warp];
#pragma unroll
          for (int g = 0; g < dq_columns / 8; g++) {
            const float* const x = &D[4 * g];
            reinterpret_cast<float4*>(staged)[g * 32 + lane] = make_float4(x[0], x[1], x[2], x[3]);
          }
          fence_proxy_async_shared();
        }
        __syncwarp();
        if (one_lane) arrive(smem.full_dq[use.index][square]);                                            // A3.29
      }
    }
  }
}

// The warp that prepares query rows for later key blocks.
FA3_DEVICE void preparer(const Params& p, BackwardSmem& smem) {
  griddepcontrol_wait();  // the pass before sets all counts to 0
  for (int n = 0;; n++) {
    const int number = smem.claims.read_by_warp(n);
    __syncwarp();
    if (all_lanes_arrive || threadIdx.x % 32 == 0) smem.claims.release(n);
    if (!is_block(p, number)) return;
    prepare_ahead(p, number);
  }
}

// The thread that loads. Behind the last tile of a key block it hands over an empty stage: dK leaves through that.
FA3_DEVICE void producer(const Params& p, BackwardSmem& smem) {
  // Where all key blocks take equally long, thread blocks that start together would ask for K and V, and store
  // dV and dK, at the same time again and again. Measured: 1.5% at 512.
  if (!planned && !visible(p).later_rows_see_more() && is_block(p, 4 * gridDim.x))
    __nanosleep(blockIdx.x * 6000 / gridDim.x);
  Use use;
  for (int n = 0;; n++) {
    const int number = claim(p, n);
    smem.claims.publish(n, number);
    if (!is_block(p, number)) return;
    if constexpr (has(Trait::alibi)) smem.bias_loads[0].keep(p, number);
    const KeyWork work(p, number);
    keep_sequence(p, smem, work);
    QueryTile tile(work);
    const auto load_next = [&] {
      load_tile(p, smem, work, tile, use, &smem.first_query[use.index]);
      use.next<query_stages>();
      tile.next(p, work);
    };
    if (has(Trait::prepares_ahead) && n > 0) wait_for_rows(p, work);
    // Stages come free before K does.
    const int before_keys = n == 0 ? 0 : min(query_stages - 1, work.all);
    int j = 0;
    for (; j < before_keys; j++) load_next();
    wait(smem.empty_k, n & 1 ^ 1);
    load_keys(p, smem, work);
    wait(smem.empty_v, n & 1 ^ 1);
    load_values(p, smem, work);
    wait(smem.stored, n & 1 ^ 1);
    if (n == 0) {
      griddepcontrol_wait();
      if (has(Trait::prepares_ahead)) wait_for_rows(p, work);
    }
    for (; j < work.all; j++) load_next();
    wait(smem.empty_q[use.index], use.parity ^ 1);
    arrive(smem.full_q[use.index]);
    wait(smem.empty_dout[use.index], use.parity ^ 1);
    arrive(smem.full_dout[use.index]);
    use.next<query_stages>();
  }
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  const int warp = warp_of_block();
  BackwardSmem& smem = *reinterpret_cast<BackwardSmem*>(shared_memory());
  if (threadIdx.x == 0) init_barriers(smem, p.order.adders == 2);
  if constexpr (has(Trait::centered_k)) smem.key_mean[0].fill_ones();
  if (threadIdx.x == 32)
    for (const TensorMap* map : {&p.q, &p.k, &p.v, &p.dout, &p.dk, &p.dv}) ptx::prefetch_tensormap(map);
  ptx::bar_sync(barrier_all, config.threads());
  if (planned) ptx::griddepcontrol_wait();  // the passes before make the list of key blocks
  ptx::griddepcontrol_launch_dependents();  // only now, as the pass behind reads that list, and counters, at once
  if (warp / 4 < warpgroups) return consumer(p, smem, warp / 4, warp % 4);
  if (warp / 4 == warpgroups) return dq_consumer(p, smem, warp % 4);
  ptx::setmaxnreg_dec<config.producer_registers()>();
  constexpr int first = config.threads() - 128;
  if (threadIdx.x == first) producer(p, smem);
  if (threadIdx.x == first + 32) dq_writer(p, smem, 0);
  if (threadIdx.x == first + 64) gradient_writer(p, smem);
  if (warp % 4 < 3) return;
  if (p.order.adders == 2) {
    if (threadIdx.x == first + 96) dq_writer(p, smem, 1);
  } else if (has(Trait::prepares_ahead)) {
    preparer(p, smem);
  }
}
