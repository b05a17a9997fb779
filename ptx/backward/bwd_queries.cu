// The backward pass where all sums do not fit the registers of one thread block, second half: dQ (bwd_keys.cu has dK
// and dV). A thread block owns 128 query rows, 64 for each consumer warpgroup, and visits the blocks of keys that they
// see, from the first to the last:
//
//   S = Q K^T,  P = exp2(S c - LSE),  dP = dO V^T,  dS = P (dP - D),  dQ += dS K
//
//  - Rows are queries, so dS is the A operand of dQ as it comes out of the multiplication, in registers, and a thread
//    has LSE and D of its two rows in registers, too.
//  - dQ of a block is issued together with S of the next one, and first: it needs nothing that is still on its way, and
//    gives K's buffer back early. dP follows when dQ is done, which measured 1% faster than all three together. The
//    exponentials run under dP, and under the other warpgroup's products.
//  - V is read by one product only, K by two: K has two buffers, V one.
#include "../isa/barrier.cuh"
#include "../isa/grid.cuh"
#include "../isa/setmaxnreg.cuh"
#include "../isa/tma.cuh"
#include "../tile/loads/load.cuh"
#include "../tile/shared.cuh"
#include "key_mean.cuh"
#include "queries_smem.cuh"
#include "query_work.cuh"
#include "tile/fp32_rows.cuh"
#include "tile/gemm.cuh"
#include "tile/scores.cuh"
#include "tile/store.cuh"

namespace fa3 {
using namespace ptx;

// S = -inf where a row does not see the key. S: of block j; row: the thread's first one.
FA3_DEVICE void mask_keys(float (&S)[Bc / 2], const Visible& seen, int j, int row) {
  const int key = j * Bc + 2 * (threadIdx.x % 4);  // of S[0]
  const Keys keys[2] = {seen.of(row), seen.of(row + 8)};
#pragma unroll
  for (int i = 0; i < Bc / 2; i++) {
    const int column = i / 4 * 8 + i % 2;  // of S[i], from S[0] on
    const Keys& row_keys = keys[i / 2 % 2];
    if (column >= row_keys.end - key || (seen.bounded_left && column < row_keys.begin - key)) S[i] = -INFINITY;
  }
}

// A consumer warpgroup: 64 rows. `warp` of its four.
FA3_DEVICE void consumer(const Params& p, QueriesSmem& smem, const QueryWork& work, int warpgroup, int warp) {
  setmaxnreg_inc<config.consumer_registers()>();
  if (!planned) griddepcontrol_wait();
  if (warpgroup >= work.warpgroups_with_rows) return;
  const int lane = threadIdx.x % 32;
  const bool one_lane = all_lanes_arrive || lane == 0;
  const int first_row = work.first_row(warpgroup), row = first_row + 16 * warp + lane / 4;
  const Visible seen = visible(p, smem);
  const Blocks blocks = work.blocks(seen, warpgroup), plain = work.plain_blocks(seen, warpgroup);

  // The starts of the warpgroup's Q, and of K.
  uint32_t q[] = {uint32_t(descriptor_start(&smem.q[warpgroup]))}, kv[] = {uint32_t(descriptor_start(&smem.k))};
  const auto q_descriptor = [&] { return rows_descriptor | q[0]; };
  static_assert(offsetof(QueriesSmem, dout) == sizeof smem.q);
  const auto dout_descriptor = [&] { return q_descriptor() + descriptor_units(sizeof smem.q); };
  static_assert(offsetof(QueriesSmem, v) == offsetof(QueriesSmem, k) + sizeof smem.k && v_stages == 1);
  const auto k_descriptor = [&](uint64_t descriptor, const Use& use) {
    return (kv[0] | descriptor) + uint64_t(use.index) * descriptor_units(sizeof smem.k[0]);
  };
  const auto v_descriptor = [&] { return (kv[0] | rows_descriptor) + descriptor_units(sizeof smem.k); };

  float dQ[d / 2], S[Bc / 2], dP[Bc / 2];  // S, and then P, with softcap times the derivative
  uint32_t dS[Bc / 4];
  float row_sums[2] = {};  // with Trait::centered_k: of the thread's columns of rounded dS
#pragma unroll
  for (int i = 0; i < d / 2; i++) dQ[i] = 0.f;
  wgmma_owned(dQ);
  const float c = exponent_of_score(p);
  const float lse[2] = {p.rows.lse_log2[work.numbers + row], p.rows.lse_log2[work.numbers + row + 8]};
  const float delta[2] = {p.rows.delta[work.numbers + row], p.rows.delta[work.numbers + row + 8]};

  constexpr bool caps_and_biases = has(Trait::softcap) && has(Trait::alibi);
  const TanhWay way = has(Trait::softcap) ? tanh_way(lse, transforms_of(p).softcap) : TanhWay::any;
  const auto exponentials = [&](int j) {
    [[maybe_unused]] uint2 slopes[Bc / 8];  // with a bias besides, after which S does not tell the derivative
    if constexpr (has(Trait::softcap)) tanh_scores(S, way, transforms_of(p).softcap, tanh_of(p));
    if constexpr (caps_and_biases) keep_slopes(S, way, [&](int g, const uint2& four) { slopes[g] = four; });
    if constexpr (has(Trait::alibi)) smem.bias[0].subtract(S, j, row);
    if (j >= plain.end || (seen.bounded_left && j < plain.begin))
      mask_keys(S, transforms_scores ? visible(p, smem) : seen, j, row);
#pragma unroll
    for (int i = 0; i < Bc / 2; i++) {
      const float P = ex2_approx_ftz(fmaf(S[i], c, -lse[i / 2 % 2]));
      S[i] = has(Trait::softcap) && !caps_and_biases ? P * slope_of_tanh(S[i]) : P;
    }
    if constexpr (caps_and_biases)
#pragma unroll
      for (int g = 0; g < Bc / 8; g++) multiply_by_slopes(&S[4 * g], slopes[g]);
  };
  // Where scores are changed P is not rounded before: with bf16 dQ's error is 2.4e-3 then, and 2.9e-3 otherwise.
  const auto multiply = [&] {
#pragma unroll
    for (int i = 0; i < Bc / 4; i++) {
      const float D = delta[i % 2];
      const float low = dP[2 * i] - D, high = dP[2 * i + 1] - D;
      dS[i] = transforms_scores ? pack(S[2 * i] * low, S[2 * i + 1] * high)
                                : scaled(pack(S[2 * i], S[2 * i + 1]), low, high);
      if constexpr (has(Trait::centered_k)) {
        const float2 rounded = unpack(dS[i], is_bf16);
        row_sums[i % 2] += rounded.x + rounded.y;
      }
    }
    wgmma_owned(dS);
  };

  if (!blocks.none()) {
    Use next, use, v_use;  // of K for S, of K for dQ, and of V
    wait(smem.full_q[warpgroup], 0);
    wait(smem.full_k[next.index], next.parity);
    wgmma_fence();
    issue_scores<64>(S, q_descriptor(), k_descriptor(rows_descriptor, next));
    wgmma_commit_group();
    wait(smem.full_dout[warpgroup], 0);
    wait(smem.full_v[v_use.index], v_use.parity);
    wgmma_fence();
    issue_scores<64>(dP, dout_descriptor(), v_descriptor());
    wgmma_commit_group();
    wgmma_wait_group<1>();
    wgmma_owned(S);
    exponentials(blocks.begin);
    for (int j = blocks.begin + 1; j < blocks.end; j++) {
      // S holds P of block j - 1, whose dP is under way.
      // So that no descriptor is computed before the loop: the registers do not suffice for all.
      wgmma_owned(q);
      if constexpr (has(Trait::softcap)) wgmma_owned(kv);
      wgmma_wait_group<0>();
      wgmma_owned(dP);
      if (one_lane) arrive(smem.empty_v[v_use.index]);
      v_use.next<v_stages>();
      multiply();
      wgmma_fence();
      issue_gradient(dQ, dS, k_descriptor(columns_descriptor(Bc), use));
      wgmma_commit_group();
      next.next<k_stages>();
      wait(smem.full_k[next.index], next.parity);
      wgmma_fence();  // again behind the branch of the wait (C7519)
      issue_scores<64>(S, q_descriptor(), k_descriptor(rows_descriptor, next));
      wgmma_commit_group();
      wgmma_wait_group<1>();
      wgmma_owned(dQ);
      if (one_lane) arrive(smem.empty_k[use.index]);
      use.next<k_stages>();
      wait(smem.full_v[v_use.index], v_use.parity);
      wgmma_fence();  // again behind the branch of the wait (C7519)
      issue_scores<64>(dP, dout_descriptor(), v_descriptor());
      wgmma_commit_group();
      wgmma_wait_group<1>();
      wgmma_owned(S);
      exponentials(j);
    }
    wgmma_wait_group<0>();
    wgmma_owned(dP);
    if (one_lane) arrive(smem.empty_v[v_use.index]);  // the other warpgroup may have one block more
    multiply();
    wgmma_fence();
    issue_gradient(dQ, dS, k_descriptor(columns_descriptor(Bc), use));
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_owned(dQ);
  }
  if constexpr (has(Trait::centered_k)) {
    const auto row_sum = [](float sum) {
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
    };
    MeanOfColumns<d> mean;
    mean.load(key_mean_of(p, work.batch, work.head_kv), lane);
    mean.take_off(dQ, row_sum(row_sums[0]), row_sum(row_sums[1]));
  }
  // What changes scores leaves no registers for these numbers meanwhile.
  const QueryWork& query_work = transforms_scores ? smem.work[0] : work;
  if constexpr (transforms_scores) warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
  if (p.rows.store != GradientStore::rounded)
    return store_dq_fp32(p, dQ, row_tile(p, query_work, query_work.first_row(warpgroup)), warp);
  bar_sync(barrier_warpgroup + warpgroup, 128);  // all four warps have read Q for the last time
  const int dq_row = query_work.first_row(warpgroup);
  store_gradient<64>(dQ, p.softmax_scale, smem.q[warpgroup], p.dq,
                     place_in(p, BackwardMap::dq, sequence_of(p, query_work), dq_row, query_work.head),
                     barrier_warpgroup + warpgroup, warp);
  if (warp == 0 && one_lane) cp_async_bulk_wait_group<0>();
}

// One thread loads: Q and dO of each warpgroup once, then K and V block by block.
FA3_DEVICE void producer(const Params& p, QueriesSmem& smem, const QueryWork& work) {
  const Visible seen = visible(p, smem);
  const Blocks blocks = work.blocks(seen, work.warpgroups_with_rows - 1);
  const auto load_block = [&](const Element* to, BackwardMap which, const TensorMap& map, uint64_t& full, int j) {
    load_rows(to, Bc, map, full, place_of(p, smem, work, which, j * Bc, work.head_kv));
  };
  const auto load_rows_of = [&](auto& to, BackwardMap which, const TensorMap& map, uint64_t (&full)[warpgroups]) {
    for (int i = 0; i < work.warpgroups_with_rows; i++) {
      if (work.blocks(seen, i).none()) continue;
      expect(full[i], config.q_buffer_bytes());
      load_rows(to[i], 64, map, full[i], place_of(p, smem, work, which, work.first_row(i), work.head));
    }
  };
  Use k_use, v_use;
  for (int j = blocks.begin; j < blocks.end; j++, k_use.next<k_stages>(), v_use.next<v_stages>()) {
    wait(smem.empty_k[k_use.index], k_use.parity ^ 1);
    expect(smem.full_k[k_use.index], config.k_block_bytes());
    load_block(smem.k[k_use.index], BackwardMap::k, p.k, smem.full_k[k_use.index], j);
    if (j == blocks.begin) {
      load_rows_of(smem.q, BackwardMap::q, p.q, smem.full_q);
      load_rows_of(smem.dout, BackwardMap::dout, p.dout, smem.full_dout);
    }
    wait(smem.empty_v[v_use.index], v_use.parity ^ 1);
    expect(smem.full_v[v_use.index], config.v_block_bytes());
    load_block(smem.v[v_use.index], BackwardMap::v, p.v, smem.full_v[v_use.index], j);
  }
}

}  // namespace fa3

FA3_GLOBAL(const __grid_constant__ fa3::Params p) {
  using namespace fa3;
  const int warp = warp_of_block();
  QueriesSmem& smem = *reinterpret_cast<QueriesSmem*>(shared_memory());
  if (planned) ptx::griddepcontrol_wait();  // the passes before make the list of tiles
  const QueryWork work(p);
  if (!work.exists()) return;
  if (threadIdx.x == 64) keep_work(p, smem, work);
  if (threadIdx.x == 0) init_barriers(smem, work.warpgroups_with_rows);
  if (threadIdx.x == 32)
    for (const TensorMap* map : {&p.q, &p.k, &p.v, &p.dout, &p.dq}) ptx::prefetch_tensormap(map);
  ptx::bar_sync(barrier_all, config.threads());
  if (warp / 4 < warpgroups) return consumer(p, smem, work, warp / 4, warp % 4);
  ptx::setmaxnreg_dec<config.producer_registers()>();
  if (threadIdx.x == 128 * warpgroups) producer(p, smem, work);
}
