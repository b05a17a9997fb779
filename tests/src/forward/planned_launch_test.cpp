// What a planned call launches (varlen sequences, pages, windows, sinks), seen by a driver that only listens.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <numeric>
#include <string>

#include "planned_launches.h"

namespace fa3::test {
namespace {

using U64 = std::vector<uint64_t>;
using U32 = std::vector<uint32_t>;

}  // namespace

TEST_CASE("a launch of varlen sequences, in full", "[launch][planned]") {
  fresh();
  for (const int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16}) {
    fa3_forward_params p = packed_call({}, dtype);
    p.seqused_q = lengths_at(22, 3), p.seqused_k = lengths_at(23, 3), p.leftpad_k = lengths_at(24, 3);
    p.softmax_scale = 0.375f;
    const Pair made = run(p);
    const Launch &planning = made.planning, &forward = made.forward;

    CHECK((planning.grid[0] == 1 && planning.grid[1] == 1 && planning.grid[2] == 1));
    CHECK((planning.block[0] == unsigned(row_of(planning).threads) && planning.stream == stream));
    CHECK(planning.shared == unsigned(row_of(planning).smem_bytes));
    CHECK((!planning.early && forward.early));  // the kernel waits for the plan itself
    const PlanForwardParams& call = made.call();
    const Lengths& lengths = call.lengths;
    CHECK((lengths.cu_q == far_away(20) && lengths.cu_k == far_away(21) && lengths.used_q == far_away(22)));
    CHECK((lengths.used_k == far_away(23) && lengths.leftpad_k == far_away(24) && lengths.batch_k == nullptr));
    CHECK((lengths.batch == 3 && lengths.max_q == 300 && lengths.max_k == 700));
    CHECK((call.total_q == 500 && call.total_k == 1100));
    CHECK((call.window.left == -1 && call.window.right == 0 && call.window.bottom_right));
    const ForwardRow& row = made.row();
    CHECK((row.has(Trait::planned) && !row.packs_heads() && row.d >= 72 && fa3::test::dtype_of(row) == dtype));
    CHECK((call.Br == row.Br && call.Bc == row.Bc && call.heads == 6 && call.multiprocessors == 132));
    const int32_t parts = (700 + 4 * row.Bc - 1) / (4 * row.Bc);  // of four blocks each
    CHECK((call.unit == 0 && call.most_tiles >= 3));
    CHECK(call.most_slots == std::min(3 * 132 / 6, call.most_tiles * parts));

    const int64_t most_pieces = int64_t{6} * (call.most_tiles + call.most_slots);
    CHECK(forward.grid[0] == std::min<int64_t>(132, most_pieces));
    CHECK((forward.block[0] == unsigned(row.threads()) && forward.shared == unsigned(row.smem_bytes())));
    const PlannedForwardParams& f = made.params();
    CHECK((f.entries == made.plan().entries && f.counts == made.plan().counts));
    CHECK((f.visible.seqlen_q == 300 && f.visible.bounded_left && f.visible.bounded_right));
    CHECK((f.visible.packing.shift == 0 && f.heads_per_kv == 2 && f.tiles.heads == 6 && f.tiles.first_row == 0));
    CHECK((f.softmax_scale == 0.375f && f.softmax_scale_log2 == static_cast<float>(0.375 * 1.4426950408889634)));
    const Output& out = f.output;
    CHECK((out.o == p.o.data && out.head_dim == 72 && out.o_stride_row == 6 * 72 && out.o_stride_head == 72));
    CHECK((out.lse == p.lse.data && out.lse_stride_head == 500 && out.lse_stride_row == 1));
    CHECK((f.page_table == nullptr && f.box_rows == row.stage_keys() && f.sinks == nullptr));
    check_workspace(made, workspace_memory, workspace_of(p));

    const struct {
      const TensorMap& map;
      const fa3_tensor& tensor;
      int rows;
    } maps[] = {{f.q, p.q, 64}, {f.k, p.k, row.stage_keys()}, {f.v, p.v, row.stage_keys()}, {f.o, p.o, 16}};
    const auto check = [&](const TensorMap& map, const fa3_tensor& t, int rows) {
      const EncodedMap& m = map_of(map);
      const auto heads = uint64_t(t.dim[1]), length = uint64_t(t.dim[0]);
      CHECK(m.data == t.data);
      CHECK(m.type == (dtype == FA3_DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16));
      CHECK(m.dim == U64{72, length, heads, 1});
      CHECK((m.stride[0] == 144 * heads && m.stride[1] == 144));
      CHECK(m.box == box_of(row, rows));
    };
    for (const auto& m : maps) check(m.map, m.tensor, m.rows);
    // Boxes of fewer rows, as many as the last ones of a block of V and of 16 rows of O may want.
    int boxes = 0;
    for (int rows = 1; rows < row.stage_keys(); rows *= 2) check(f.v_rows[boxes++], p.v, rows);
    CHECK(boxes <= PlannedForwardParams::v_boxes);
    for (int i = 0; i < PlannedForwardParams::o_boxes; ++i) check(f.o_rows[i], p.o, 1 << i);
    CHECK(fake_cuda().maps.size() == size_t(8 + boxes));
  }
}

TEST_CASE("O in float32 has rows of its own, for dense calls, too, and no map", "[launch][planned]") {
  for (const int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16})
    for (const int64_t seqlen_q : {1, 300}) {
      fresh();
      fa3_forward_params p = imaginary({.batch = 2, .seqlen_q = seqlen_q, .seqlen_k = 700, .heads = 6, .heads_kv = 3,
                                        .head_dim = 72}, dtype);
      p.o.dtype = FA3_DTYPE_FP32, p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
      const Pair made = run(p);
      const ForwardRow& row = made.row();
      CHECK((row.stores_fp32() && row.has(Trait::planned) && row.d == 128 && dtype_of(row) == dtype));
      const Output& out = made.params().output;
      CHECK((out.o == p.o.data && out.head_dim == 72));
      CHECK(out.o_stride_row == (seqlen_q > 1 ? p.o.stride[1] : 0));
      CHECK((made.call().window.right == 0 && !made.call().window.bottom_right && made.call().lengths.max_k == 700));
      for (const auto& map : fake_cuda().maps) CHECK(map.data != p.o.data);
      check_workspace(made, workspace_memory, workspace_of(p));
    }
}

TEST_CASE("a launch of varlen sequences in FP8 has scales by sequence", "[launch][planned]") {
  fresh();
  for (const int32_t o_dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_E4M3}) {
    fa3_forward_params p = packed_call({.head_dim = 80, .head_dim_v = 80}, FA3_DTYPE_E4M3);
    add_scales(p);
    p.o.dtype = o_dtype;
    if (o_dtype == FA3_DTYPE_E4M3) p.o_scale = tensor(far_away(33), FA3_DTYPE_FP32, {1});
    p.k_scale.stride[0] = 40, p.v_scale = tensor(far_away(32), FA3_DTYPE_FP32, {1, 1, 1});
    p.v_mean = tensor(far_away(34), FA3_DTYPE_FP32, {3, 3, 80});
    p.lse_offset = tensor(far_away(35), FA3_DTYPE_FP32, {6, 500});
    const Pair made = run(p);
    const ForwardRow& row = made.row();
    CHECK((row.is_8bit() && row.has(Trait::planned) && row.d == 128));
    const Scales& s = made.scales();
    CHECK((s.q.data == far_away(30) && s.q.stride_batch == 6 && s.q.stride_head == 1 && s.q.stride_block == 0));
    CHECK((s.k.data == far_away(31) && s.k.stride_batch == 40 && s.k.stride_head == 1 && s.k.stride_block == 0));
    CHECK((s.v.data == far_away(32) && s.v.stride_batch == 0 && s.v.stride_head == 0));
    CHECK((s.o == (o_dtype == FA3_DTYPE_E4M3 ? far_away(33) : nullptr) && s.v_mean == far_away(34)));
    CHECK((s.v_mean_stride_batch == 240 && s.v_mean_stride_head == 80));
    CHECK((s.lse_offset == far_away(35) && s.lse_offset_stride_head == 500 && s.lse_offset_stride_row == 1));
    const PlannedForwardParams& f = made.params();
    CHECK((f.output.o == p.o.data && int(f.output.dtype) == (o_dtype == FA3_DTYPE_E4M3 ? int(Dtype::e4m3)
                                                             : o_dtype == FA3_DTYPE_FP16 ? int(Dtype::fp16)
                                                                                         : int(Dtype::bf16))));
    CHECK((map_of(f.v).type == CU_TENSOR_MAP_DATA_TYPE_UINT8 && map_of(f.v).box == box_of(row, row.stage_keys())));
    check_workspace(made, workspace_memory, workspace_of(p));
  }
}

TEST_CASE("a launch on pages, in full", "[launch][planned]") {
  fresh();
  for (const int64_t page_size : {1, 2, 16, 24, 48, 64, 100, 256, 1024}) {
    INFO("pages of " << page_size);
    fa3_forward_params p = paged_call(page_size, 5000);
    p.page_table.stride[0] = 1000;
    p.sinks = tensor(far_away(26), FA3_DTYPE_FP32, {6}), p.sinks.stride[0] = 3;
    // Chunks of positions begin where a box does.
    fa3_forward_params chunked = p;
    chunk(chunked, 36, 0);
    const int32_t rows_with_chunks = run(chunked).params().box_rows;
    const Pair made = run(p);
    const PlannedForwardParams& f = made.params();
    const ForwardRow& row = made.row();
    CHECK(rows_with_chunks == std::gcd(f.box_rows, 36));
    CHECK((f.page_table == far_away(25) && f.page_size == page_size));
    CHECK(f.table_stride == 1000);
    CHECK((row.stage_keys() % f.box_rows == 0 && page_size % f.box_rows == 0));
    const int keys = row.stage_keys();
    for (int64_t rows = f.box_rows + 1; rows <= keys; ++rows) CHECK((keys % rows != 0 || page_size % rows != 0));
    CHECK((f.sinks == far_away(26) && f.sinks_stride == 3));
    for (const auto& [map, tensor] : {std::pair{&f.k, &p.k}, {&f.v, &p.v}}) {
      CHECK(map_of(*map).data == tensor->data);
      CHECK(map_of(*map).dim == U64{72, uint64_t(page_size), 3, 5000});
      CHECK(map_of(*map).box == box_of(row, f.box_rows));
    }
    // The last box of a sequence may want fewer rows.
    int boxes = 0;
    for (; 1 << boxes < f.box_rows; ++boxes) {
      CHECK(map_of(f.v_rows[boxes]).data == p.v.data);
      CHECK(map_of(f.v_rows[boxes]).box == box_of(row, 1 << boxes));
    }
    CHECK(fake_cuda().maps.size() == size_t(4 + boxes + PlannedForwardParams::o_boxes));
    const Lengths& lengths = made.call().lengths;
    CHECK((lengths.cu_q == far_away(20) && lengths.cu_k == nullptr && lengths.used_k == far_away(23)));
    CHECK((lengths.max_k == 700 && made.call().total_q == 500 && made.call().total_k == 0));
    check_workspace(made, workspace_memory, workspace_of(p));
  }
}

TEST_CASE("there are no more thread blocks than there may be pieces", "[launch][planned]") {
  fresh();
  for (const int64_t heads : {1, 2}) {
    const fa3_forward_params p = packed_call({.batch = 1, .max_q = 100, .total_q = 100, .max_k = 500, .total_k = 500,
                                              .heads = heads, .heads_kv = heads});
    const Pair made = run(p);
    const int64_t most = heads * (made.call().most_tiles + made.call().most_slots);
    CHECK((most < 132 && made.forward.grid[0] == most && info_of(p, 1).grid == most));
  }
}

TEST_CASE("few queries run with packed heads, and need no map of O", "[launch][planned]") {
  fresh();
  const PlannedShape decode{.batch = 8, .max_q = 2, .total_q = 16, .max_k = 9000, .total_k = 60000, .heads = 32,
                            .heads_kv = 4, .head_dim = 128, .head_dim_v = 128};
  const fa3_forward_params p = paged_call(16, 5000, decode);
  const Pair made = run(p);
  const PlannedForwardParams& f = made.params();
  REQUIRE(made.row().packs_heads());
  CHECK((f.visible.packing.shift == 3 && f.visible.seqlen_q == 2 && f.tiles.heads == 4 && f.heads_per_kv == 8));
  CHECK((made.call().heads == 4 && made.call().packing.shift == 3 && made.call().packed_rows == 16));
  CHECK(map_of(f.q).dim == U64{128, 8, 16, 4, 1});
  CHECK(map_of(f.q).box == U32{64, 8, 8, 1, 1});
  CHECK(fake_cuda().maps.size() == 3 + 4);  // of V also for 1, 2, 4 and 8 rows of a page
  for (const EncodedMap& map : fake_cuda().maps) CHECK(map.data != p.o.data);
  check_workspace(made, workspace_memory, workspace_of(p));
}

TEST_CASE("so many blocks are on their way as memory serves best", "[launch][planned]") {
  struct Card {
    int kilohertz, bits;
    int32_t small, large;  // where a block's K and V are 32 KB, and 40 KB
  };
  for (const Card& card : {Card{2619000, 5120, 276, 220}, Card{3201000, 6144, 405, 324},  // H100 SXM, H200
                           Card{1593000, 5120, 168, 134}, Card{0, 0, INT32_MAX, INT32_MAX}}) {  // H100 PCIe
    FakeCuda& fake = fresh();
    fake.memory_kilohertz = card.kilohertz, fake.memory_bits = card.bits;
    PlannedShape decode{.batch = 8, .max_q = 1, .total_q = 8, .max_k = 9000, .total_k = 60000, .heads = 32,
                        .heads_kv = 4, .head_dim = 128, .head_dim_v = 128};
    for (const int64_t page_size : {4, 8, 64}) {
      const Pair made = run(paged_call(page_size, 5000, decode));
      REQUIRE(made.row().stage_bytes() == 32 << 10);
      CHECK(made.params().blocks_in_flight == (page_size < 8 ? INT32_MAX : card.small));
    }
    decode.head_dim = 192;
    const Pair made = run(paged_call(64, 5000, decode));
    REQUIRE(made.row().stage_bytes() == 40 << 10);
    CHECK(made.params().blocks_in_flight == card.large);
    // Also where all sequences have one length.
    fake.launches.clear();
    const Shape one_length{.batch = 8, .seqlen_q = 1, .seqlen_k = 9000, .heads = 32, .heads_kv = 4, .head_dim = 128};
    REQUIRE(forward(imaginary(one_length, FA3_DTYPE_BF16)) == FA3_OK);
    REQUIRE(forward_row_of(fake.launches[0]).stage_bytes() == 32 << 10);
    CHECK(fake.launches[0].params().blocks_in_flight == card.small);
  }
}

TEST_CASE("without pages a box is a block, whatever a chunk's size is", "[launch][planned]") {
  fresh();
  for (const int32_t size : {1, 36, 1000}) {
    fa3_forward_params p = packed_call();
    chunk(p, size, 0);
    const Pair made = run(p);
    CHECK(made.params().box_rows == made.row().stage_keys());
    for (const TensorMap* map : {&made.params().k, &made.params().v})
      CHECK(map_of(*map).box == box_of(made.row(), made.row().stage_keys()));
  }
}

TEST_CASE("masks and batches reach the device's planner", "[launch][planned]") {
  fresh();
  const Shape shape{.batch = 2, .seqlen_q = 200, .seqlen_k = 500, .heads = 6, .heads_kv = 3, .head_dim = 128};
  fa3_forward_params p = imaginary(shape);
  const auto window = [&](int32_t mask, int32_t left, int32_t right) -> const Window& {
    p.mask = mask, p.window_left = left, p.window_right = right;
    return run(p).call().window;
  };
  const auto is = [](const Window& w, int32_t left, int32_t right, bool bottom_right) {
    return w.left == left && w.right == right && w.bottom_right == bottom_right;
  };
  CHECK(is(window(FA3_MASK_WINDOW, 128, 0), 128, 0, true));
  CHECK(is(window(FA3_MASK_WINDOW, -1, 7), -1, 7, true));
  CHECK(is(window(FA3_MASK_WINDOW, 0, 0), 0, 0, true));
  {
    const Pair made = run(p);
    const Lengths& lengths = made.call().lengths;
    CHECK((!lengths.cu_q && !lengths.cu_k && !lengths.used_q && !lengths.used_k && !lengths.leftpad_k));
    CHECK((lengths.batch == 2 && lengths.max_q == 200 && lengths.max_k == 500 && !lengths.batch_k));
    CHECK((made.call().total_q == 0 && made.call().total_k == 0));
    CHECK(map_of(made.params().k).dim == U64{128, 500, 3, 2});
    CHECK(made.params().output.o_stride_batch == 200 * 6 * 128);
    check_workspace(made, workspace_memory, workspace_of(p));
  }
  p.seqused_k = lengths_at(23, 2);
  CHECK(is(window(FA3_MASK_NONE, 0, 0), -1, -1, false));
  CHECK(is(window(FA3_MASK_CAUSAL_TOP_LEFT, 0, 0), -1, 0, false));
  CHECK(is(window(FA3_MASK_CAUSAL_BOTTOM_RIGHT, 0, 0), -1, 0, true));
  // Another batch of K and V.
  p.k = tensor(p.k.data, FA3_DTYPE_BF16, {7, 500, 3, 128}), p.v = tensor(p.v.data, FA3_DTYPE_BF16, {7, 500, 3, 128});
  p.cache_batch_idx = lengths_at(24, 2);
  const Pair made = run(p);
  CHECK((made.call().lengths.batch_k == far_away(24) && made.call().lengths.batch == 2));
  CHECK(map_of(made.params().v).dim == U64{128, 500, 3, 7});
}

TEST_CASE("other calls never run on rows for planned ones", "[launch][planned]") {
  FakeCuda& fake = fresh();
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
    for (const int64_t seqlen_q : {1, 100, 5000}) {
      fa3_forward_params p = imaginary({.batch = 2, .seqlen_q = seqlen_q, .seqlen_k = 5000, .heads = 8, .heads_kv = 2,
                                        .head_dim = 128});
      p.mask = mask;
      fake.launches.clear();
      REQUIRE(forward(p) == FA3_OK);
      REQUIRE(fake.launches.size() == 1);
      CHECK_FALSE(forward_row_of(fake.launches[0]).has(Trait::planned));
      // Nor is there a schedule.
      CHECK(schedule_of(p) == 0);
      CHECK(schedule(p, nullptr, 0) == FA3_OK);
      CHECK(fake.launches.size() == 1);
    }
  const auto refused = [&](const fa3_forward_params& p, const char* why) {
    fake.launches.clear();
    CHECK(forward(p) == FA3_ERROR_INVALID_ARGUMENT);
    expect_message(why);
    CHECK(fa3_forward_check(&p) == FA3_ERROR_INVALID_ARGUMENT);
    expect_message(why);
    CHECK(fake.launches.empty());
  };
  fa3_forward_params p = imaginary({.head_dim = 128});
  p.kernel = "fa3_fwdplanned_bf16_d128_window_192x64";
  refused(p, "params->kernel is fa3_fwdplanned_bf16_d128_window_192x64, which is for calls with lengths of their own");
  fa3_forward_params planned = packed_call();
  planned.kernel = "fa3_fwd_bf16_d128_causal_192x64";
  refused(planned,
          "params->kernel is fa3_fwd_bf16_d128_causal_192x64, which is for calls without lengths of their own");
  planned.kernel = "fa3_fwdplanned_bf16_d64_window_256x64";
  refused(planned, "which is for head_dim up to 64; q.dim[2] (head_dim) is 72");
  planned.kernel = "fa3_fwdplanned_fp16_d128_window_192x64";
  refused(planned, "which is for fp16; q.dtype is bf16");
}

TEST_CASE("softcap and slopes reach the kernel", "[launch][planned]") {
  fresh();
  fa3_forward_params p = packed_call();
  p.softmax_scale = 0.5f, p.softcap = 40;
  const Softcap softcap = run(p).forward.carried.planned.transforms.softcap;
  CHECK((softcap.cap == 80 && softcap.limit == float(80 * wide_limit)));
  CHECK(std::abs(softcap.exponent * 40 - 1.44269504f) < 1e-6f);
  // A sum of exponentials up to 2^(highest - m) has no score beyond the polynomial's limit, and m may be 0.
  CHECK((softcap.highest[0] < 40 * 1.4427f * 0.26f && softcap.highest[0] > 40 * 1.4427f * 0.25f));
  CHECK((softcap.highest[1] > 2 * softcap.highest[0] && softcap.lowest[0] < 0 && softcap.lowest[1] < 0));
  p.softcap = 1e-30f;  // all scores are beyond
  CHECK(run(p).forward.carried.planned.transforms.softcap.limit < 0);
  p.softcap = 3e38f;  // and all within
  const Softcap none = run(p).forward.carried.planned.transforms.softcap;
  CHECK((none.limit > 1e38f && none.wide[0] == 0 && none.highest[0] > 1e37f && none.lowest[0] < -1e37f));
  p.softcap = 0, p.alibi_slopes = tensor(far_away(20), FA3_DTYPE_FP32, {p.q.dim[1]});
  const Alibi alibi = run(p).forward.carried.planned.transforms.alibi;
  CHECK((alibi.slopes == far_away(20) && alibi.stride_batch == 0 && alibi.stride_head == 1));
  CHECK((alibi.inverse_scale == 2 && alibi.q.cu == p.cu_seqlens_q.data && alibi.q.total == p.q.dim[0]));
  p.softcap = 40;
  const ScoreTransforms both = run(p).forward.carried.planned.transforms;
  CHECK((both.softcap.cap == 80 && both.alibi.slopes == far_away(20) && both.alibi.inverse_scale == 2));
  // With e4m3 beside the scales.
  p = packed_call({.head_dim = 112, .head_dim_v = 112}, FA3_DTYPE_E4M3);
  add_scales(p), p.softmax_scale = 0.5f, p.softcap = 40;
  const auto carried = run(p).forward.carried;
  CHECK((carried.planned.transforms.softcap.cap == 80 && carried.planned.scales.q.data == p.q_scale.data));
}

TEST_CASE("a launch of wide queries over e4m3, where it differs", "[launch][planned]") {
  fresh();
  for (const int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16}) {
    fa3_forward_params p = packed_call({.head_dim = 80, .head_dim_v = 80}, dtype);
    change_keys_to_e4m3(p);
    p.k_scale.stride[0] = 40, p.v_scale = tensor(far_away(32), FA3_DTYPE_FP32, {1, 1, 1});
    const Pair made = run(p);
    const ForwardRow& row = made.row();
    CHECK((row.has_wide_q() && fa3::test::dtype_of(row) == dtype && row.d == 128));
    const Scales& s = made.scales();
    CHECK((s.k.data == far_away(31) && s.k.stride_batch == 40 && s.k.stride_head == 1 && s.k.stride_block == 0));
    CHECK((s.v.data == far_away(32) && s.v.stride_batch == 0 && s.v.stride_head == 0));
    CHECK((s.q.data == nullptr && s.o == nullptr && s.v_mean == nullptr && s.lse_offset == nullptr));
    const PlannedForwardParams& f = made.params();
    CHECK((f.output.o == p.o.data && fa3::test::dtype_of(row) == dtype && f.output.dtype == row.dtype));
    for (const TensorMap* map : {&f.k, &f.v, &f.v_rows[0], &f.v_rows[5]})
      CHECK((map_of(*map).type == CU_TENSOR_MAP_DATA_TYPE_UINT8 && map_of(*map).box[0] == 128 &&
             map_of(*map).dim[0] == 80));
    CHECK((map_of(f.v).box[1] == unsigned(row.stage_keys()) && map_of(f.v_rows[5]).box[1] == 32));
    CHECK((map_of(f.q).type != CU_TENSOR_MAP_DATA_TYPE_UINT8 && map_of(f.q).box[0] == 64));
    check_workspace(made, workspace_memory, workspace_of(p));
  }
}

TEST_CASE("a named kernel of a planned call is launched with its own numbers", "[launch][planned]") {
  FakeCuda& fake = fresh();
  int named_rows = 0;
  for (const ForwardRow& row : forward_rows) {
    if (!row.has(Trait::planned) || row.takes_copies()) continue;  // planned_copies_launch_test.cpp
    INFO(row.name);
    ++named_rows;
    const int unit = row.is_8bit() || row.has_wide_q() ? 16 : 8, unit_v = row.is_latent() ? 16 : unit;
    const int32_t query_rows = row.packs_heads() ? 2 : 1, heads = row.packs_heads() ? 3 : 6;
    const bool few = row.has(Trait::few_rows);
    const int32_t most = few ? row.most_rows() / query_rows : 300, total = few ? 10 : 500;
    fa3_forward_params p = packed_call(
        {.max_q = most, .total_q = total, .head_dim = row.d - unit, .head_dim_v = row.dv - unit_v}, dtype_of(row));
    if (row.is_8bit()) add_scales(p);
    if (row.has_wide_q()) change_keys_to_e4m3(p);
    add_for(row, p);
    if (row.has(Trait::alibi)) p.alibi_slopes = tensor(far_away(20), FA3_DTYPE_FP32, {3, p.q.dim[1]});
    p.kernel = row.name;
    const Pair made = run(p);
    CHECK(made.forward.kernel == row.name);
    CHECK(std::find(fake.loaded.begin(), fake.loaded.end(), row.name) != fake.loaded.end());
    CHECK((made.forward.block[0] == unsigned(row.threads()) && made.forward.shared == unsigned(row.smem_bytes())));
    CHECK((made.call().Br == row.Br && made.call().Bc == row.Bc && made.call().heads == heads));
    CHECK(made.params().tiles.heads == heads);
    const int32_t rows = total * query_rows, whole = (most * query_rows + row.Br - 1) / row.Br;  // of three sequences
    CHECK(made.call().most_tiles == std::min(3 * whole, (rows - 3) / row.Br + 3));
    // Slabs of 128 bytes, of which K's that is widened has more columns than the row's.
    const auto box = row.has_wide_q() ? U32{128, unsigned(row.stage_keys()), 1, 1} : U32(box_of(row, row.stage_keys()));
    CHECK(U32(map_of(made.params().k).box) == box);
    check_workspace(made, workspace_memory, workspace_of(p));
    const fa3_kernel_info first = info_of(p, 0), second = info_of(p, 1);
    const int launches = row.halves_columns() ? 3 : 2;
    CHECK((std::string(first.name) == plan_pass && first.kind == FA3_KERNEL_PASS && first.launches == launches));
    CHECK((first.grid == 1 && first.tiles == 0 && first.pieces == 0));
    CHECK((std::string(second.name) == row.name && second.kind == FA3_KERNEL_FORWARD && second.launches == launches));
    CHECK((second.grid == int(made.forward.grid[0]) && second.causal == 0));
    CHECK(second.tiles == int64_t{made.call().most_tiles} * heads);
    CHECK(second.pieces == second.tiles + int64_t{made.call().most_slots} * heads);
  }
  CHECK(named_rows > 5);
}

TEST_CASE("planned calls with nothing to compute launch nothing, those without keys do", "[launch][planned]") {
  FakeCuda& fake = fresh();
  const auto nothing = [&](const fa3_forward_params& p) {
    fake.launches.clear();
    CHECK(forward(p) == FA3_OK);
    CHECK(workspace_of(p) == FA3_FORWARD_WORKSPACE_BYTES);
    CHECK(schedule_of(p) == 0);
    CHECK(schedule(p, nullptr, 0) == FA3_OK);
    CHECK(fake.launches.empty());
    CHECK(info_of(p, 0).launches == 0);
  };
  nothing(packed_call({.batch = 0}));
  nothing(packed_call({.total_q = 0}));
  nothing(packed_call({.heads = 0, .heads_kv = 0}));
  nothing(paged_call(16, 100, {.total_q = 0}));
  fa3_forward_params p = packed_call({.total_q = 0});
  p.schedule = far_away(27), p.schedule_bytes = 16;  // of nothing
  nothing(p);

  // TMA takes no empty tensor: some of q stands for it.
  const auto no_keys = [&](fa3_forward_params given) {
    const Pair made = run(given);
    const PlannedForwardParams& f = made.params();
    CHECK(made.call().lengths.max_k == 0);
    CHECK((f.page_table == nullptr && f.box_rows == made.row().stage_keys()));
    for (const TensorMap* map : {&f.k, &f.v, &f.v_rows[0]}) {
      CHECK(map_of(*map).data == given.q.data);
      CHECK((map_of(*map).dim[1] == 1 && map_of(*map).dim[2] == 1 && map_of(*map).dim[3] == 1));
    }
    CHECK((map_of(f.k).dim[0] == 72 && map_of(f.v).dim[0] <= 72));
    CHECK(made.call().most_tiles >= 1);
    check_workspace(made, workspace_memory, workspace_of(given));
  };
  no_keys(packed_call({.total_k = 0, .head_dim_v = 64}));
  no_keys(packed_call({.total_k = 0, .head_dim_v = 128}));
  p = imaginary({.batch = 2, .seqlen_q = 9, .seqlen_k = 0, .head_dim = 72});
  p.flags = FA3_FLAG_BATCH_INVARIANT;
  no_keys(p);
  p = paged_call(16, 0);
  p.page_table.dim[1] = 0, p.max_seqlen_k = 0;
  no_keys(p);
  // There are pages, but no sequence has any.
  p = paged_call(16, 100);
  p.page_table.dim[1] = 0, p.max_seqlen_k = 0;
  const Pair made = run(p);
  CHECK((made.params().page_table == nullptr && made.params().box_rows == made.row().stage_keys()));
  CHECK(map_of(made.params().k).data == p.k.data);
}

TEST_CASE("nothing of a planned call is enqueued before all is ready", "[launch][planned]") {
  const fa3_forward_params p = packed_call();
  for (const char* failing : {"cuTensorMapEncodeTiled", "cuModuleLoadData"}) {
    FakeCuda& fake = fresh();
    fake.failing = failing, fake.spared = 1;
    CHECK(forward(p) == FA3_ERROR_CUDA);
    expect_message(failing);
    CHECK(fake.launches.empty());
  }
  FakeCuda& fake = fresh();
  fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CHECK(forward(p) == FA3_ERROR_NOT_LOADED);
  expect_message("fa3_preload");
  void* const memory = far_away(30);
  CHECK(schedule(p, memory, schedule_of(p)) == FA3_ERROR_NOT_LOADED);
  expect_message(plan_pass);
  fake.capture = CU_STREAM_CAPTURE_STATUS_NONE;
  REQUIRE(fa3_preload() == FA3_OK);
  fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  const int loads = fake.loads;
  CHECK((forward(p) == FA3_OK && schedule(p, memory, schedule_of(p)) == FA3_OK && fake.loads == loads));
}

TEST_CASE("a warm planned call costs little", "[launch][planned]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p = packed_call({.head_dim = 128, .head_dim_v = 128});
  p.kernel = "fa3_fwdplanned_bf16_d128_window_192x64";
  fake.record = false;
  REQUIRE(forward(p) == FA3_OK);
  fake.calls = 0;
  REQUIRE(forward(p) == FA3_OK);
  CHECK(fake.calls == 17);  // the current context's id, 14 maps, two launches
  p.kernel = nullptr;
  const double work = thousands([&] { forward(p); });
  INFO(work << " thousand multiplications");
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  CHECK(work < 10);
#endif
}

}  // namespace fa3::test
