// What backward calls of varlen sequences, windows and sinks launch, with a driver that only listens.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "backward_calls.h"
#include "backward_turns.h"
#include "plan/plan_backward.h"

namespace fa3::test {
namespace {

void* at(uintptr_t n) { return reinterpret_cast<void*>(n << 42); }

struct Packed {
  int64_t batch = 8, total_q = 4096, total_k = 4096, heads = 8, heads_kv = 8, head_dim = 128;
  int32_t max_q = 1000, max_k = 1000;
};
B packed(const Packed& s) {
  B p = FA3_BACKWARD_PARAMS_INIT;
  const auto rows = [&](uintptr_t n, int64_t total, int64_t heads) {
    return tensor(at(n), FA3_DTYPE_BF16, {total, heads, s.head_dim});
  };
  p.q = rows(1, s.total_q, s.heads), p.o = rows(4, s.total_q, s.heads), p.dout = rows(6, s.total_q, s.heads);
  p.dq = rows(7, s.total_q, s.heads);
  p.k = rows(2, s.total_k, s.heads_kv), p.v = rows(3, s.total_k, s.heads_kv);
  p.dk = rows(8, s.total_k, s.heads_kv), p.dv = rows(9, s.total_k, s.heads_kv);
  p.lse = tensor(at(5), FA3_DTYPE_FP32, {s.heads, s.total_q});
  p.cu_seqlens_q = tensor(at(10), FA3_DTYPE_INT32, {s.batch + 1});
  p.cu_seqlens_k = tensor(at(11), FA3_DTYPE_INT32, {s.batch + 1});
  p.max_seqlen_q = s.max_q, p.max_seqlen_k = s.max_k;
  return p;
}
void add_sinks(B& p) {
  p.sinks = tensor(at(12), FA3_DTYPE_FP32, {p.q.dim[1]}), p.dsinks = tensor(at(13), FA3_DTYPE_FP32, {p.q.dim[1]});
}

std::vector<std::string> launched(const B& p) {
  FakeCuda& fake = fake_cuda();
  fake.launches.clear(), fake.maps.clear();
  REQUIRE(backward(p) == FA3_OK);
  std::vector<std::string> kernels;
  for (const Launch& launch : fake.launches) {
    kernels.push_back(launch.kernel);
    CHECK(launch.early == (kernels.size() > 1));
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_backward_kernel_info(&p, 0, int(kernels.size()) - 1, &info) == FA3_OK);
    CHECK((info.name == launch.kernel && info.grid == int(launch.grid[0])));
    CHECK(info.launches == int(fake.launches.size()));
  }
  return kernels;
}

// A causal call of sequences of these lengths, in bf16, d 128.
B causal_of(const std::vector<int32_t>& lengths, int64_t heads, int64_t heads_kv, uint64_t flags = 0) {
  int64_t total = 0;
  for (const int32_t length : lengths) total += length;
  const int32_t max = *std::max_element(lengths.begin(), lengths.end());
  B p = packed({.batch = int64_t(lengths.size()), .total_q = total, .total_k = total, .heads = heads,
                .heads_kv = heads_kv, .max_q = max, .max_k = max});
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.flags = flags;
  return p;
}

// The turns that 132 thread blocks take for that call, as it was launched, with dQ that they wait for to round it, or
// without.
int64_t turns_of(const std::vector<int32_t>& lengths, bool round) {
  constexpr int Br = 64, Bc = 128;
  FakeCuda& fake = fake_cuda();
  PlanBackwardPassParams pass = fake.launches.at(0).carried.backward_list;
  PlannedBackwardParams p = fake.launches.at(2).carried.planned_backward;
  REQUIRE((p.call.Br == Br && p.call.Bc == Bc));
  std::vector<int32_t> cu = {0};
  for (const int32_t length : lengths) cu.push_back(cu.back() + length);
  pass.call.lengths.cu_q = pass.call.lengths.cu_k = cu.data();
  std::vector<unsigned char> memory(static_cast<size_t>(list_bytes(pass.call)));
  pass.list = list_at(memory.data(), pass.call);
  plan_backward(InTurn(), pass.call, pass.spread_shift, pass.list, *std::make_unique<BackwardPlanScratch>());
  p.counts = pass.list.counts, p.blocks = pass.list.blocks;
  const size_t tiles = size_t(p.call.most_tiles * p.rows.heads);
  std::vector<int> visits(2 * tiles);
  const auto may_round = [&](int n, const std::vector<int>& added) {
    return !round || n < p.order.behind || is_summed_up<Bc>(p, n - p.order.behind, added);
  };
  const auto take = [&](int n) { return KeyBlockWork<Br, Bc>(p, n); };
  const auto seen_of = [&](const auto& block) {
    return visible_of(p.blocks[block.batch].sequence, true, true, {0});
  };
  return count_turns(p, 132, int64_t{p.counts->blocks} * p.order.heads, tiles, take, seen_of, visits, may_round);
}

const std::vector<int32_t> documents = {1743, 1175, 957, 1675, 572, 762, 196,  1318, 322, 512, 368,
                                        849,  740,  342, 1373, 1175, 590, 540, 186,  795, 194};

}  // namespace

TEST_CASE("planned backward: a list, rows prepared, gradients, and what is left", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const B p = packed({});
  REQUIRE(launched(p) == std::vector<std::string>{
                             "fa3_pass_plan_backward", "fa3_pass_bwd_prepare_planned_d128",
                             "fa3_bwdplanned_bf16_d128_window_64x128", "fa3_pass_bwd_finish_planned_d128"});
  const PlanBackwardPassParams& pass = fake.launches[0].carried.backward_list;
  const PlannedBackwardParams& g = fake.launches[2].carried.planned_backward;
  for (const int other : {1, 3})
    CHECK(std::memcmp(static_cast<const void*>(&fake.launches[size_t(other)].carried.planned_backward), &g,
                      sizeof g) == 0);
  CHECK((pass.list.blocks == g.blocks && pass.list.counts == g.counts && pass.list.tiles == g.tiles));
  CHECK((g.call.lengths.batch == 8 && g.call.total_q == 4096 && g.call.lengths.max_k == 1000));
  CHECK((g.call.most_tiles == 4095 / 64 + 8 + 1 && g.call.most_blocks == (4096 - 8) / 128 + 8));
  CHECK((fake.launches[0].grid[0] == 1 && fake.launches[2].grid[0] == 132));
  CHECK(fake.launches[1].grid[0] == unsigned(g.zero_blocks + g.call.most_tiles * 8));
  CHECK((g.zero_blocks == 8 * g.zero_slices && g.zero_blocks >= 132));
  CHECK(fake.launches[3].grid[0] == unsigned(g.finish_blocks));
  CHECK((g.order.dq == DqOrder::any && g.order.adders == 2 && g.order.done_behind == 1));
  CHECK(g.order.behind >= g.order.section_heads * 8);  // all blocks of a sequence are taken by then
  // All that is counted lies between the sums and the list.
  const auto* const counters = reinterpret_cast<const char*>(g.order.added);
  CHECK(g.visits - g.order.added == g.call.most_blocks * 8 + 1);
  CHECK((g.counters == g.visits - g.order.added + g.call.most_tiles * 8 && g.order.claimed == g.visits - 1));
  CHECK(reinterpret_cast<const char*>(g.counts) >= counters + 4 * g.counters);
  CHECK(reinterpret_cast<const char*>(g.rows.dq_sums + int64_t{g.call.most_tiles} * 64 * 8 * 128) <= counters);
  CHECK(reinterpret_cast<const char*>(pass.list.tiles + g.call.most_tiles) <=
        static_cast<const char*>(workspace_memory) + workspace_of(p));
}

TEST_CASE("planned backward: softcap and ALiBi have kernels and numbers of their own", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const auto transforms = [&] { return fake.launches[2].carried.transformed_backward.transforms; };
  for (const int32_t max_k : {128, 1000}) {  // none for keys of one block
    B p = packed({.max_k = max_k});
    p.softcap = 20, p.softmax_scale = 0.25f;
    REQUIRE(launched(p).at(2) == "fa3_bwdplannedsoftcap_bf16_d128_window_64x128");
    CHECK((transforms().softcap.cap == 80 && transforms().softcap.inverse_cap == 1.f / 80));
    CHECK((transforms().alibi.slopes == nullptr && fake.launches.size() == 4));
    p.softcap = 0, p.alibi_slopes = tensor(at(14), FA3_DTYPE_FP32, {8, 8}), p.alibi_slopes.stride[0] = 20;
    REQUIRE(launched(p).at(2) == "fa3_bwdplannedalibi_bf16_d128_window_64x128");
    const Alibi alibi = transforms().alibi;
    CHECK((alibi.slopes == at(14) && alibi.stride_batch == 20 && alibi.stride_head == 1 && alibi.inverse_scale == 4));
    CHECK((alibi.q.cu == at(10) && alibi.q.total == 4096 && alibi.k.cu == at(11) && alibi.k.used == nullptr));
  }
  // Above 128 columns two, which take the same numbers.
  B p = packed({.head_dim = 136});
  p.softcap = 20;
  const auto both = [&](const std::string& transform) {
    const std::vector<std::string> names = launched(p);
    const TransformedBackwardParams& keys = fake.launches.at(2).carried.transformed_backward;
    const TransformedBackwardParams& queries = fake.launches.at(3).carried.transformed_backward;
    CHECK(std::memcmp(static_cast<const void*>(&keys), &queries, sizeof keys) == 0);
    CHECK(names == std::vector<std::string>{"fa3_pass_plan_backward", "fa3_pass_bwd_prepare_planned_d256",
                                            "fa3_bwdplanned" + transform + "_keys_bf16_d256_window_64x64",
                                            "fa3_bwdplanned" + transform + "_queries_bf16_d256_window_128x64"});
  };
  both("softcap");
  p.alibi_slopes = tensor(at(14), FA3_DTYPE_FP32, {8});
  both("softcapalibi");
  CHECK(transforms().alibi.inverse_scale == 1.f / 20);  // a bias is in units of tanh then
  p.softcap = 0;
  both("alibi");
  p.kernel = "fa3_bwdplannedsoftcap_keys_bf16_d256_window_64x64";
  CHECK(backward(p) == FA3_ERROR_INVALID_ARGUMENT);
}

// tanh(S / cap) as S times a polynomial, and the exponent of what is capped, for scores of all sizes.
TEST_CASE("planned backward: softcap's polynomials", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const auto transforms = [&] { return fake.launches[2].carried.transformed_backward.transforms; };
  for (const float cap : {0.5f, 30.0f, 1e4f, 3e38f})
    for (const float scale : {0.02f, 1.0f, 30.0f}) {
      B p = packed({});
      p.softcap = cap, p.softmax_scale = scale;
      REQUIRE(launched(p).size() == 4);
      const SoftcapTanh tanh = fake.launches[2].carried.transformed_backward.tanh;
      const bool has_wide = transforms().softcap.highest[1] > 0;
      const auto error = [&](const auto& coefficients, double x) {
        const double S = x * std::min(double(cap), 1e6) / double(scale);
        const double right = std::tanh(double(scale) * S / double(cap));
        double sum = 0;
        for (size_t i = std::size(coefficients); i-- > 0;) sum = sum * S * S + double(coefficients[i]);
        const double exponent = double(tanh.cap_log2) * S * sum, capped = double(cap) * right * 1.4426950408889634;
        return std::abs(exponent / capped - 1);
      };
      INFO(cap << ", scale " << scale);
      for (int i = 1; i <= 20; ++i) {
        CHECK(error(tanh.narrow, narrow_limit * i / 20) < 8e-7);  // score_transforms.h, and float32's own
        if (has_wide) CHECK(error(tanh.wide, wide_limit * i / 20) < 8e-7);
      }
      CHECK(has_wide == (cap / scale < 2e4f));
    }
}

TEST_CASE("planned backward: FA3_FLAG_CENTERED_K has a pass, kernels and memory of its own", "[launch][backward]") {
  FakeCuda& fake = fresh();
  for (const int32_t max_k : {128, 1000}) {  // none for keys of one block
    B p = packed({.max_k = max_k});
    const size_t without = workspace_of(p);
    p.flags = FA3_FLAG_CENTERED_K;
    REQUIRE(launched(p) == std::vector<std::string>{"fa3_pass_plan_backward", "fa3_pass_bwd_key_means_d128",
                                                    "fa3_pass_bwd_prepare_planned_d128",
                                                    "fa3_bwdplannedcentered_bf16_d128_window_64x128",
                                                    "fa3_pass_bwd_finish_planned_d128"});
    const CenteredBackwardParams& g = fake.launches[3].carried.centered_backward;
    const CenteredBackwardParams& pass_params = fake.launches[1].carried.centered_backward;
    CHECK(std::memcmp(static_cast<const void*>(&pass_params), &g, sizeof g) == 0);
    CHECK((g.k_rows == p.k.data && g.k_stride.row == 8 * 128 && g.k_stride.head == 128));
    CHECK(fake.launches[1].grid[0] == 8 * 8);  // of each sequence and head
    const auto* const means = reinterpret_cast<const char*>(g.key_means);
    CHECK(means >= reinterpret_cast<const char*>(g.tiles + g.call.most_tiles));
    CHECK(means + 8 * 8 * 128 * 4 <= static_cast<const char*>(workspace_memory) + workspace_of(p));
    if (max_k > 128) CHECK(workspace_of(p) == without + 8 * 8 * 128 * 4);
  }
  B p = packed({.heads = 12, .heads_kv = 4, .head_dim = 200, .max_k = 2000});
  p.flags = FA3_FLAG_CENTERED_K | FA3_FLAG_DETERMINISTIC;
  REQUIRE(launched(p) == std::vector<std::string>{"fa3_pass_plan_backward", "fa3_pass_bwd_key_means_d256",
                                                  "fa3_pass_bwd_prepare_planned_d256",
                                                  "fa3_bwdplanned_keys_bf16_d256_window_64x64",
                                                  "fa3_bwdplannedcentered_queries_bf16_d256_window_128x64"});
  add_sinks(p);
  CHECK(backward(p) == FA3_ERROR_UNSUPPORTED);
  expect_message("FA3_FLAG_CENTERED_K and sinks cannot be had together");
  // A batched call is planned, too.
  B batched = imaginary_backward({.batch = 3, .seqlen_q = 200, .seqlen_k = 300, .heads = 2, .heads_kv = 2,
                                  .head_dim = 64});
  batched.flags = FA3_FLAG_CENTERED_K;
  REQUIRE(launched(batched).at(3) == "fa3_bwdplannedcentered_bf16_d64_window_128x128");
  CHECK(fake.launches[1].grid[0] == 3 * 2);
  // Kernels go with the flag.
  batched.kernel = "fa3_bwdplanned_bf16_d64_window_128x128";
  CHECK(backward(batched) == FA3_ERROR_INVALID_ARGUMENT);
  expect_message("alibi_slopes and FA3_FLAG_CENTERED_K");
  batched.kernel = "fa3_bwdplannedcentered_bf16_d64_window_128x128";
  CHECK(backward(batched) == FA3_OK);
  batched.flags = 0;
  CHECK(backward(batched) == FA3_ERROR_INVALID_ARGUMENT);
  // More means than can be counted.
  B many = packed({.batch = 1 << 24, .total_k = 1 << 20, .heads = 64, .heads_kv = 64});
  CHECK(fa3_backward_check(&many) == FA3_OK);
  many.flags = FA3_FLAG_CENTERED_K;
  CHECK(fa3_backward_check(&many) == FA3_ERROR_UNSUPPORTED);
}

TEST_CASE("planned backward: keys of one block need no sums", "[launch][backward]") {
  FakeCuda& fake = fresh();
  B p = packed({.max_q = 500, .max_k = 128});
  const std::vector<std::string> three = {"fa3_pass_plan_backward", "fa3_pass_bwd_prepare_planned_d128",
                                          "fa3_bwdplannedshort_bf16_d128_window_64x128"};
  CHECK(launched(p) == three);
  CHECK(fake.launches[2].carried.planned_backward.rows.dq_sums == nullptr);
  p.max_seqlen_k = 4000, p.mask = FA3_MASK_CHUNK, p.window_left = 128;  // nor do chunks
  CHECK(launched(p) == three);
  add_sinks(p);
  REQUIRE(launched(p).size() == 4);
  CHECK(fake.launches[3].grid[0] == 8);  // a sink of each head
  p.mask = FA3_MASK_NONE, p.window_left = 0, p.max_seqlen_k = 129;
  CHECK(launched(p)[2] == "fa3_bwdplanned_bf16_d128_window_64x128");
}

TEST_CASE("planned backward: two kernels above 128 columns, of tiles of two sizes", "[launch][backward]") {
  FakeCuda& fake = fresh();
  B p = packed({.heads = 12, .heads_kv = 4, .head_dim = 200, .max_k = 2000});
  const std::vector<std::string> four = {"fa3_pass_plan_backward", "fa3_pass_bwd_prepare_planned_d256",
                                         "fa3_bwdplanned_keys_bf16_d256_window_64x64",
                                         "fa3_bwdplanned_queries_bf16_d256_window_128x64"};
  REQUIRE(launched(p) == four);
  const PlannedBackwardParams& g = fake.launches[2].carried.planned_backward;
  CHECK(std::memcmp(static_cast<const void*>(&fake.launches[3].carried.planned_backward), &g, sizeof g) == 0);
  CHECK((g.call.Br == 128 && g.call.Bc == 64 && g.rows.tiles_per_visit == 2));
  CHECK((g.call.most_tiles == 4095 / 128 + 8 + 1 && g.rows.tiles == 2 * g.call.most_tiles));
  // A thread block for each key block and each tile that there may be.
  CHECK(fake.launches[2].grid[0] == unsigned(g.call.most_blocks * 4));
  CHECK(fake.launches[3].grid[0] == unsigned(g.call.most_tiles * 12));
  CHECK((g.query_order.batch_heads == 12 && g.query_order.blocks == g.call.most_tiles));
  CHECK(g.query_order.section_heads == 3 * g.order.section_heads);
  CHECK((g.rows.dq_sums == nullptr && g.order.done_behind == 0 && g.finish_blocks == 0));
  CHECK(workspace_of(p) < size_t(g.rows.tiles) * 64 * 12 * 8 + 64 * size_t(g.call.most_blocks) + 8192);
  add_sinks(p);
  REQUIRE(launched(p).size() == 5);
  CHECK(fake.launches[4].kernel == std::string("fa3_pass_bwd_finish_planned_d256"));
  CHECK(fake.launches[4].grid[0] == 12);
}

TEST_CASE("planned backward: dq in a fixed order", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const auto order_of = [&](const B& p) {
    REQUIRE(launched(p).size() == 4);
    const PlannedBackwardParams& g = fake.launches[2].carried.planned_backward;
    CHECK(g.call.dq == g.order.dq);
    return g.order.dq;
  };
  B p = packed({.heads_kv = 2});
  CHECK(order_of(p) == DqOrder::any);
  p.flags = FA3_FLAG_DETERMINISTIC;
  CHECK(order_of(p) == DqOrder::downwards);
  p.flags = 0, p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  CHECK(order_of(p) == DqOrder::any_downwards);
  p.mask = FA3_MASK_WINDOW, p.window_left = 500;
  CHECK(order_of(p) == DqOrder::any);
  p.flags = FA3_FLAG_DETERMINISTIC;
  CHECK(order_of(p) == DqOrder::downwards);
  p.window_left = 128;  // a fourth of a sequence, on average
  CHECK(order_of(p) == DqOrder::downwards_by_head);
  // Long sequences only where one head reads one.
  for (const int64_t heads_kv : {2, 8}) {
    B one = packed({.total_q = 60000, .total_k = 60000, .heads_kv = heads_kv, .max_q = 8193, .max_k = 8193});
    one.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
    CHECK(order_of(one) == (heads_kv == 2 ? DqOrder::any : DqOrder::any_downwards));
    one.max_seqlen_q = 8192;
    CHECK(order_of(one) == DqOrder::any_downwards);
  }
  // In sections of up to 16 heads.
  const auto causal = [&](int64_t heads, int64_t head_dim, int32_t max) {
    B one = packed({.total_q = 60000, .total_k = 60000, .heads = heads, .heads_kv = heads, .head_dim = head_dim,
                    .max_q = max, .max_k = max});
    one.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, one.flags = FA3_FLAG_DETERMINISTIC;
    const DqOrder dq = order_of(one);
    const KeyOrder& order = fake.launches[2].carried.planned_backward.order;
    if (dq == DqOrder::downwards) CHECK(order.section_heads == (heads > 16 ? heads / 2 : heads));
    else CHECK((order.section_heads == 132 / ((max + 127) / 128) && order.spread.second == 0));
    return dq;
  };
  CHECK(causal(8, 64, 4097) == DqOrder::downwards);
  CHECK(causal(24, 64, 4097) == DqOrder::downwards);
  CHECK(causal(8, 128, 1024) == DqOrder::downwards);
  // From the diagonal up to 64 columns, if no sequence is long and blocks are many.
  CHECK(causal(8, 64, 4096) == DqOrder::from_diagonal);
  CHECK(causal(32, 40, 1024) == DqOrder::from_diagonal);
  CHECK(causal(2, 64, 4096) == DqOrder::downwards);  // blocks are too few
  CHECK(causal(8, 64, 384) == DqOrder::downwards);   // of each sequence
  B grouped = packed({.total_q = 60000, .total_k = 60000, .heads = 8, .heads_kv = 4, .max_q = 1024, .max_k = 1024});
  grouped.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, grouped.flags = FA3_FLAG_DETERMINISTIC;
  CHECK(order_of(grouped) == DqOrder::downwards);
}

TEST_CASE("planned backward: how many heads of K and V a section has under a causal mask", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const auto heads = [&](const std::vector<int32_t>& lengths, int64_t heads, int64_t heads_kv, uint64_t flags = 0) {
    REQUIRE(launched(causal_of(lengths, heads, heads_kv, flags)).size() == 4);
    return fake.launches[2].carried.planned_backward.order.section_heads;
  };
  const auto some = [](size_t batch, int32_t length) { return std::vector<int32_t>(batch, length); };
  CHECK((heads(some(64, 256), 32, 8) == 4 && heads(some(8, 2048), 32, 8) == 4 && heads(documents, 32, 8) == 4));
  CHECK((heads(some(4, 4096), 32, 8) == 2 && heads(some(10, 4096), 32, 4) == 1));  // as the L2 cache holds,
  CHECK((heads(some(1, 4096), 32, 8) == 4 && heads(some(3, 4096), 32, 8) == 4));  // but not too few blocks
  CHECK((heads(some(4, 4097), 32, 8) == 4 && heads(some(2, 8192), 32, 8) == 4));
  CHECK((heads(some(4, 4096), 16, 16) == 4 && heads(some(1, 32768), 16, 16) == 4));
  CHECK((heads(some(8, 512), 24, 6) == 3 && heads(some(8, 512), 5, 5) == 1));
  constexpr uint64_t fixed = FA3_FLAG_DETERMINISTIC;
  CHECK((heads(some(16, 1024), 16, 16, fixed) == 16 && heads(some(16, 1024), 32, 8, fixed) == 4));
}

// What the fake driver says, of an H100, becomes what an H200's says.
void make_h200(FakeCuda& fake) {
  fake.memory_kilohertz = 3201000, fake.memory_bits = 6016, fake.cache_bytes = 60 << 20;
}

TEST_CASE("planned backward: sections by the card that the driver describes", "[launch][backward]") {
  const B p = causal_of(std::vector<int32_t>(4, 4096), 32, 8);
  for (const bool h200 : {false, true}) {
    FakeCuda& fake = fresh();
    if (h200) make_h200(fake);
    REQUIRE(launched(p).size() == 4);
    const PlannedBackwardParams& g = fake.launches[2].carried.planned_backward;
    CHECK((g.order.section_heads == (h200 ? 4 : 2) && g.call.section_heads == g.order.section_heads));
    CHECK((g.order.dq == (h200 ? DqOrder::any : DqOrder::any_downwards) && g.call.dq == g.order.dq));
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT, assumed = FA3_KERNEL_INFO_INIT;  // of the last pass
    REQUIRE(fa3_backward_kernel_info(&p, 0, 3, &info) == FA3_OK);
    REQUIRE(fa3_backward_kernel_info(&p, 132, 3, &assumed) == FA3_OK);
    CHECK((info.grid == assumed.grid) == h200);
  }
}

TEST_CASE("planned backward: thread blocks wait little for dq that they round", "[launch][backward]") {
  const auto check = [](const std::vector<int32_t>& lengths, int64_t heads, int64_t heads_kv) {
    for (const int n : {0, 1, 2}) {
      FakeCuda& fake = fresh();
      if (n == 2) make_h200(fake);
      const uint64_t flags = n == 1 ? FA3_FLAG_DETERMINISTIC : 0;
      INFO(lengths.size() << " to " << lengths.front() << ", heads " << heads << " / " << heads_kv << ", " << flags);
      REQUIRE(launched(causal_of(lengths, heads, heads_kv, flags)).size() == 4);
      const auto turns = double(turns_of(lengths, true));
      CHECK((turns > 0 && turns <= 1.01 * double(turns_of(lengths, false))));
    }
  };
  check(documents, 32, 8);
  check(documents, 32, 4);
  check(documents, 16, 16);
  for (const int32_t length : {256, 1024, 2048, 4096})
    for (const int64_t heads_kv : {4, 8, 16}) check(std::vector<int32_t>(size_t(16384 / length), length), 32, heads_kv);
}

TEST_CASE("planned backward: second sums where heads are few", "[launch][backward]") {
  FakeCuda& fake = fresh();
  B p = packed({.batch = 1, .total_q = 8192, .total_k = 8192, .heads = 4, .heads_kv = 4, .max_q = 8192,
                .max_k = 8192});
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  const size_t without = workspace_of(p);
  for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}}) {
    p.flags = flags;
    REQUIRE(launched(p).size() == 4);
    const PlannedBackwardParams& g = fake.launches[2].carried.planned_backward;
    const bool second = flags != 0;
    CHECK(g.order.spread.shift == (second ? 2 : 31));
    CHECK(fake.launches[0].carried.backward_list.spread_shift == g.order.spread.shift);
    CHECK(g.order.spread.second == (second ? g.call.most_tiles * 4 : 0));
    CHECK(g.order.done_behind == !second);
    if (second) CHECK(fake.launches[3].grid[0] == unsigned(g.call.most_blocks * 4 * int32_t{g.finish_sharers}));
    CHECK(g.counters == g.call.most_blocks * 4 + 1 + (second ? 2 : 1) * g.call.most_tiles * 4);
    CHECK(workspace_of(p) >= without + (second ? size_t{4} * 8192 * 128 * 4 : 0));
  }
}

TEST_CASE("planned backward: dq is rounded early under bounds on both sides", "[launch][backward]") {
  FakeCuda& fake = fresh();
  B p = packed({.total_q = 40000, .total_k = 40000, .max_q = 8192, .max_k = 8192});
  p.mask = FA3_MASK_WINDOW, p.window_left = 500;
  for (const int32_t right : {-1, 0}) {
    p.window_right = right;
    REQUIRE(launched(p).size() == 4);
    const PlannedBackwardParams& g = fake.launches[2].carried.planned_backward;
    CHECK(counts_blocks(g.call.window) == (right == 0));
    CHECK(g.order.behind == (right == 0 ? 198 : 132 + 64 * g.order.section_heads));
  }
}

TEST_CASE("planned backward: the workspace follows the tokens", "[launch][backward]") {
  fresh();
  const size_t few = workspace_of(packed({.batch = 4, .total_q = 16384, .total_k = 16384, .max_q = 16384,
                                          .max_k = 16384}));
  CHECK(few < size_t(16384 + 5 * 64) * 8 * (8 + 4 * 128) * 101 / 100);
  const size_t many = workspace_of(packed({.batch = 1000, .total_q = 16384, .total_k = 16384, .max_q = 16384,
                                           .max_k = 16384}));
  CHECK(many < few + 1000 * (64 * 8 * (8 + 4 * 128) + 300));  // a tile more for each sequence
  B chunks = packed({.batch = 4, .total_q = 16384, .total_k = 16384, .max_q = 16384, .max_k = 16384});
  chunks.mask = FA3_MASK_CHUNK, chunks.window_left = 1024;
  CHECK(workspace_of(chunks) < few + 24 * (64 * 8 * (8 + 4 * 128) + 300) + 64 * 300);
}

TEST_CASE("planned backward: K/V heads have parts where they are few", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const auto params = [&](const B& p) {
    const std::vector<std::string> kernels = launched(p);
    return fake.launches.at(2).carried.planned_backward;
  };
  const B one = causal_of({8192}, 8, 1);
  const PlannedBackwardParams g = params(one);
  REQUIRE(fake.launches.size() == 4);
  const int parts = g.order.parts;
  CHECK((parts == 4 && g.order.heads == 4 && g.order.batch_heads == 4 && g.order.key_sums == 4));
  CHECK((g.heads_per_kv == 8 && g.readers == 2 && g.keys.heads == 1 && g.order.heads % g.order.section_heads == 0));
  CHECK((g.call.most_blocks == 64 && g.keys.tiles == 128));
  CHECK((g.call.section_heads == g.order.section_heads && g.order.section == g.order.section_heads));
  CHECK(g.visits - g.order.added == g.call.most_blocks * 4 + 1);
  // The last pass adds up dK and dV of each 64 keys.
  CHECK((g.finish_sharers == 4 && g.finish_blocks == 4 * std::min(g.order.behind, 64 * 4)));
  CHECK(fake.launches[3].grid[0] == unsigned(g.finish_blocks + 2 * 128));
  // All sums lie in the workspace, behind all else: of each part as many rows as k has.
  const auto* const sums = reinterpret_cast<const char*>(g.unrounded.dk);
  CHECK(sums >= reinterpret_cast<const char*>(g.tiles + g.call.most_tiles));
  CHECK((g.unrounded.dv == g.unrounded.dk + 4 * 8192 * 128 && g.unrounded.dv_stride.head == 8192 * 128));
  CHECK(sums + size_t{2} * 4 * 8192 * 128 * 4 == static_cast<const char*>(workspace_memory) + workspace_of(one));
  CHECK((g.unrounded.dk_scale == 1 && g.unrounded.adds == 0));
  // With sinks a thread block for each of them before these.
  B sinks = one;
  add_sinks(sinks);
  CHECK(params(sinks).order.parts == 4);
  CHECK(fake.launches[3].grid[0] == unsigned(g.finish_blocks + 8 + 2 * 128));
  // No parts where blocks are enough, where query heads have a K/V head each, or where keys are one block.
  CHECK(params(causal_of(std::vector<int32_t>(8, 2048), 32, 8)).order.key_sums == 1);
  CHECK(params(causal_of({8192}, 4, 4)).order.key_sums == 1);
  CHECK(params(causal_of({128}, 8, 1)).order.key_sums == 1);
  // A part is of whole heads, however few these are, and divides a group of any size.
  CHECK((params(causal_of({8192}, 2, 1)).order.parts == 2 && params(causal_of({4096}, 28, 4)).order.parts == 7));
  // Many short sequences would take sums of many blocks.
  B many = packed({.batch = 3000, .total_q = 4096, .total_k = 4096, .heads = 8, .heads_kv = 1, .max_q = 4096,
                   .max_k = 4096});
  many.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  CHECK(params(many).order.parts == 1);
  many.cu_seqlens_q = many.cu_seqlens_k = tensor(at(10), FA3_DTYPE_INT32, {21});
  CHECK(params(many).order.parts > 1);
  // Windows: blocks are alike, and as many as are needed.
  B window = one;
  window.mask = FA3_MASK_WINDOW, window.window_left = 1023;
  CHECK(params(window).order.parts > 1);
  // Chunks are sequences of their own.
  B chunks = one;
  chunks.mask = FA3_MASK_CHUNK, chunks.window_left = 1024;
  CHECK(params(chunks).order.parts > 1);
  // Of a sequence that may be as long as all rows, whatever its maximum says.
  B longest = one;
  longest.max_seqlen_q = longest.max_seqlen_k = INT32_MAX;
  CHECK(params(longest).order.parts == 4);
}

TEST_CASE("planned backward: with softcap, parts leave no dq to thread blocks", "[launch][backward]") {
  FakeCuda& fake = fresh();
  B p = causal_of({8192}, 8, 1);
  for (const float softcap : {0.f, 20.f}) {
    p.softcap = softcap;
    REQUIRE(launched(p).size() == 4);
    const PlannedBackwardParams& g = fake.launches[2].carried.planned_backward;
    CHECK((g.order.parts == 4 && g.order.done_behind == (softcap == 0)));
    if (softcap > 0) CHECK(g.finish_blocks == 64 * 4 * int32_t{g.finish_sharers});
  }
}

TEST_CASE("planned backward: parts of two kernels, and of float32", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const B p = packed({.batch = 1, .heads = 8, .heads_kv = 1, .head_dim = 200, .max_q = 4096, .max_k = 4096});
  REQUIRE(launched(p).size() == 5);
  const PlannedBackwardParams g = fake.launches[2].carried.planned_backward;
  const int parts = g.order.parts;
  CHECK((parts > 1 && g.readers == 8 / parts && g.keys.tiles == 64 && g.unrounded.dk_stride.row == 256));
  CHECK(fake.launches[2].grid[0] == unsigned(g.call.most_blocks * parts));
  CHECK(fake.launches[4].grid[0] == unsigned(2 * 64));
  CHECK((g.query_order.batch_heads == 8 && g.query_order.section_heads == g.order.section_heads * g.readers));
  B fp32 = causal_of({8192}, 8, 1);
  fp32.dq.dtype = fp32.dk.dtype = fp32.dv.dtype = FA3_DTYPE_FP32;
  REQUIRE(launched(fp32).size() == 4);
  const PlannedBackwardParams& f = fake.launches[2].carried.planned_backward;
  CHECK((f.order.parts == 4 && f.order.done_behind == 0 && f.rows.store == GradientStore::fp32));
  // One part has no sums, and is stored as it is, or added.
  B whole = causal_of({8192}, 4, 4);
  whole.dq.dtype = whole.dk.dtype = whole.dv.dtype = FA3_DTYPE_FP32;
  REQUIRE(launched(whole).size() == 4);
  const PlannedBackwardParams& w = fake.launches[2].carried.planned_backward;
  CHECK((w.order.parts == 1 && w.order.key_sums > 1 && w.unrounded.dk == whole.dk.data && w.unrounded.adds == 0));
  CHECK((w.unrounded.dv == whole.dv.data && w.unrounded.dk_scale == w.softmax_scale));
  whole.flags = FA3_FLAG_ACCUMULATE;
  REQUIRE(launched(whole).size() == 4);
  CHECK(fake.launches[2].carried.planned_backward.unrounded.adds == 1);
}

TEST_CASE("planned backward: nothing to compute leaves zeros to be written", "[launch][backward]") {
  FakeCuda& fake = fresh();
  const std::vector<std::string> zeros = {"fa3_pass_bwd_prepare_planned_d128"};
  CHECK(launched(packed({.total_k = 0})) == zeros);
  CHECK(fake.maps.empty());  // of tensors without elements there are none
  CHECK(launched(packed({.total_q = 0})) == zeros);
  CHECK(launched(packed({.batch = 0})).empty());
  B p = packed({.total_q = 0});
  add_sinks(p);
  CHECK(launched(p) == std::vector<std::string>{zeros[0], "fa3_pass_bwd_finish_planned_d128"});
}

TEST_CASE("planned backward: batched tensors of any strides", "[launch][backward]") {
  FakeCuda& fake = fresh();
  B p = imaginary_backward({.batch = 3, .seqlen_q = 200, .seqlen_k = 300, .heads = 2, .heads_kv = 2, .head_dim = 64});
  p.seqused_k = tensor(at(10), FA3_DTYPE_INT32, {3});
  set_strides(p.q, {2 * 64, 3 * 2 * 64, 64, 1});           // sequences first
  set_strides(p.dout, {250 * 2 * 64 + 8, 2 * 64, 64, 1});  // gaps
  REQUIRE(launched(p).size() == 4);
  const PlannedBackwardParams& g = fake.launches[2].carried.planned_backward;
  const auto steps = [&](BackwardMap map) { return g.steps[int(map)]; };
  CHECK((steps(BackwardMap::q).row == 3 && steps(BackwardMap::q).batch == 1));
  CHECK((steps(BackwardMap::dout).row == 16 && steps(BackwardMap::dout).batch == 250 * 16 + 1));
  CHECK((steps(BackwardMap::k).row == 1 && steps(BackwardMap::k).batch == 300));
  set_strides(p.dout, {(int64_t{1} << 35) + 8, 2 * 64, 64, 1});
  fake.launches.clear();
  CHECK(backward(p) == FA3_ERROR_UNSUPPORTED);
  CHECK(std::strstr(fa3_last_error_message(), "dout has batch entries"));
  CHECK(fake.launches.empty());
}

}  // namespace fa3::test
