// What a served call launches (packed lengths, pages, windows, sinks, schedules), seen by a driver that only listens.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "forward_launches.h"
#include "served_call.h"

namespace fa3::test {
namespace {

using U64 = std::vector<uint64_t>;
using U32 = std::vector<uint32_t>;

constexpr const char* pass = "fa3_pass_plan_lengths";

const EncodedMap& map_of(const TensorMap& map) { return fake_cuda().maps.at(map.opaque[0]); }
U32 box_of(const ForwardRow& row, int rows) { return {unsigned(row.slab_columns()), unsigned(rows), 1, 1}; }

size_t workspace_of(const fa3_forward_params& p, int multiprocessors = 132) {
  size_t bytes = 0;
  REQUIRE(fa3_forward_workspace_size(&p, multiprocessors, &bytes) == FA3_OK);
  return bytes;
}
size_t schedule_of(const fa3_forward_params& p, int multiprocessors = 132) {
  size_t bytes = 0;
  REQUIRE(fa3_forward_schedule_size(&p, multiprocessors, &bytes) == FA3_OK);
  return bytes;
}
fa3_status schedule(const fa3_forward_params& p, void* to, size_t bytes) {
  return fa3_forward_schedule(&p, to, bytes, reinterpret_cast<fa3_stream>(stream));
}
// Of the call's launch of this number, or of its only one.
fa3_kernel_info info_of(const fa3_forward_params& p, int launch) {
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  REQUIRE(fa3_forward_kernel_info(&p, 132, launch, &info) == FA3_OK);
  return info;
}

// The two launches of a served call that has no schedule.
struct Pair {
  const Launch &planning, &forward;
  const PlanLengthsParams& call() const { return planning.carried.lengths.call; }
  const LengthsPlan& plan() const { return planning.carried.lengths.plan; }
  const PlannedForwardParams& params() const { return forward.carried.planned; }
  const ForwardRow& row() const { return forward_row_of(forward); }
};
Pair run(const fa3_forward_params& p) {
  FakeCuda& fake = fake_cuda();
  fake.launches.clear(), fake.maps.clear();
  REQUIRE(forward(p) == FA3_OK);
  REQUIRE(fake.launches.size() == 2);
  REQUIRE((fake.launches[0].kernel == pass && row_of(fake.launches[1]).kind == Kind::forward));
  return {fake.launches[0], fake.launches[1]};
}

// A slot of the partial results.
int64_t slot_bytes(const ForwardRow& row, const PlannedForwardParams& p) {
  if (!row.packs_heads()) return int64_t{row.Br / 16} * row.partial_bytes();
  const int64_t of_head = int64_t{p.visible.seqlen_q} << p.visible.packing.shift;
  return (of_head < row.Br ? (of_head + 3) / 4 * 4 : row.Br) * row.packed_row_bytes();
}

// Where the device's plan stands, which has room for as much as it may have, each part for itself.
struct Bytes {
  const char *begin, *end;
};
Bytes check_plan(const PlanLengthsParams& call, const LengthsPlan& plan) {
  const auto bytes = [](const auto* first, int64_t count) {
    CHECK(reinterpret_cast<uintptr_t>(first) % (sizeof *first < 16 ? sizeof *first : 16) == 0);
    return Bytes{reinterpret_cast<const char*>(first), reinterpret_cast<const char*>(first + count)};
  };
  const Bytes parts[] = {bytes(plan.counts, 1), bytes(plan.entries, most_entries(call.most_tiles, call.most_slots)),
                         bytes(plan.sequences, call.lengths.batch), bytes(plan.first_tile, call.lengths.batch + 1)};
  Bytes all = parts[0];
  for (const Bytes& a : parts) {
    for (const Bytes& b : parts) CHECK((&a == &b || a.end <= b.begin || b.end <= a.begin));
    all = {std::min(all.begin, a.begin), std::max(all.end, a.end)};
  }
  return all;
}

// What stands in the workspace stands one behind the other: the struct Workspace, the plan, tickets, slots.
void check_workspace(const Pair& pair, const char* begin, size_t bytes) {
  const PlanLengthsParams& call = pair.call();
  const PlannedForwardParams& p = pair.params();
  const Bytes plan = check_plan(call, pair.plan());
  CHECK((static_cast<const void*>(p.workspace) == begin && sizeof(Workspace) <= FA3_FORWARD_WORKSPACE_BYTES));
  CHECK(plan.begin >= begin + FA3_FORWARD_WORKSPACE_BYTES);
  CHECK(reinterpret_cast<const char*>(p.tickets) >= plan.end);
  // The kernels clear tickets eight at a time.
  const int64_t tickets = int64_t{call.most_slots / 2} * call.heads * pair.row().warpgroups();
  const char* const partials = static_cast<const char*>(p.partials);
  CHECK(partials >= reinterpret_cast<const char*>(p.tickets + (tickets + 7) / 8 * 8));
  CHECK(begin + bytes == partials + int64_t{call.most_slots} * call.heads * slot_bytes(pair.row(), p));
  CHECK(((reinterpret_cast<const char*>(p.tickets) - begin) % 16 == 0 && (partials - begin) % 16 == 0));
}

}  // namespace

TEST_CASE("a launch of packed lengths, in full", "[launch][served]") {
  fresh();
  for (const int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16}) {
    fa3_forward_params p = packed_call({}, dtype);
    p.seqused_q = int32_at(22, {3}), p.seqused_k = int32_at(23, {3}), p.leftpad_k = int32_at(24, {3});
    p.softmax_scale = 0.375f;
    const Pair made = run(p);
    const Launch &planning = made.planning, &forward = made.forward;

    CHECK((planning.grid[0] == 1 && planning.grid[1] == 1 && planning.grid[2] == 1));
    CHECK((planning.block[0] == unsigned(row_of(planning).threads) && planning.stream == stream));
    CHECK(planning.shared == unsigned(row_of(planning).smem_bytes));
    CHECK((!planning.early && forward.early));  // the kernel waits for the plan itself
    const PlanLengthsParams& call = made.call();
    const Lengths& lengths = call.lengths;
    CHECK((lengths.cu_q == place(20) && lengths.cu_k == place(21) && lengths.used_q == place(22)));
    CHECK((lengths.used_k == place(23) && lengths.leftpad_k == place(24) && lengths.batch_k == nullptr));
    CHECK((lengths.batch == 3 && lengths.max_q == 300 && lengths.max_k == 700));
    CHECK((call.total_q == 500 && call.total_k == 1100));
    CHECK((call.window.left == -1 && call.window.right == 0 && call.window.bottom_right));
    const ForwardRow& row = made.row();
    CHECK((row.has(Trait::own_lengths) && !row.packs_heads() && row.d >= 72 && fa3::test::dtype_of(row) == dtype));
    CHECK((call.Br == row.Br && call.Bc == row.Bc && call.heads == 6 && call.multiprocessors == 132));
    CHECK((call.unit == 0 && call.most_tiles >= 3 && call.most_slots == 3 * 132 / 6));

    const int64_t most_pieces = int64_t{6} * (call.most_tiles + call.most_slots);
    CHECK(forward.grid[0] == std::min<int64_t>(132, most_pieces));
    CHECK((forward.block[0] == unsigned(row.threads()) && forward.shared == unsigned(row.smem_bytes())));
    const PlannedForwardParams& f = made.params();
    CHECK((f.planned == made.plan().entries && f.counts == made.plan().counts));
    CHECK((f.visible.seqlen_q == 300 && f.visible.bounded_left && f.visible.bounded_right));
    CHECK((f.visible.packing.shift == 0 && f.heads_per_kv == 2 && f.tiles.heads == 6 && f.tiles.first_row == 0));
    CHECK((f.softmax_scale == 0.375f && f.softmax_scale_log2 == static_cast<float>(0.375 * 1.4426950408889634)));
    const Output& out = f.output;
    CHECK((out.o == p.o.data && out.head_dim == 72 && out.o_stride_row == 6 * 72 && out.o_stride_head == 72));
    CHECK((out.lse == p.lse.data && out.lse_stride_head == 500 && out.lse_stride_row == 1));
    CHECK((f.page_table == nullptr && f.box_rows == row.Bc && f.sinks == nullptr));
    check_workspace(made, workspace_memory, workspace_of(p));

    const struct {
      const TensorMap& map;
      const fa3_tensor& tensor;
      int rows;
    } maps[] = {{f.q, p.q, 64}, {f.k, p.k, row.Bc}, {f.v, p.v, row.Bc}, {f.o, p.o, 16}};
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
    for (int rows = 1; rows < row.Bc; rows *= 2) check(f.v_rows[boxes++], p.v, rows);
    CHECK(boxes <= PlannedForwardParams::v_boxes);
    for (int i = 0; i < PlannedForwardParams::o_boxes; ++i) check(f.o_rows[i], p.o, 1 << i);
    CHECK(fake_cuda().maps.size() == size_t(8 + boxes));
  }
}

TEST_CASE("a launch on pages, in full", "[launch][served]") {
  fresh();
  for (const int64_t page_size : {1, 2, 16, 24, 48, 64, 100, 256, 1024}) {
    INFO("pages of " << page_size);
    fa3_forward_params p = paged_call(page_size, 5000);
    p.page_table.stride[0] = 1000;
    p.sinks = tensor(place(26), FA3_DTYPE_FP32, {6}), p.sinks.stride[0] = 3;
    const Pair made = run(p);
    const PlannedForwardParams& f = made.params();
    const ForwardRow& row = made.row();
    const int64_t pages = (700 + page_size - 1) / page_size;
    CHECK((f.page_table == place(25) && f.table_stride == 1000 && f.table_pages == pages && f.page_size == page_size));
    CHECK((row.Bc % f.box_rows == 0 && page_size % f.box_rows == 0));
    for (int64_t rows = f.box_rows + 1; rows <= row.Bc; ++rows) CHECK((row.Bc % rows != 0 || page_size % rows != 0));
    CHECK((f.sinks == place(26) && f.sinks_stride == 3));
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
    CHECK((lengths.cu_q == place(20) && lengths.cu_k == nullptr && lengths.used_k == place(23)));
    CHECK((lengths.max_k == 700 && made.call().total_q == 500 && made.call().total_k == 0));
    check_workspace(made, workspace_memory, workspace_of(p));
  }
}

TEST_CASE("there are no more thread blocks than there may be pieces", "[launch][served]") {
  fresh();
  for (const int64_t max_k : {40, 500}) {
    const fa3_forward_params p = packed_call({.batch = 2, .max_q = 100, .total_q = 150, .max_k = max_k,
                                              .total_k = 2 * max_k, .heads = 2, .heads_kv = 2});
    const Pair made = run(p);
    const int64_t most = int64_t{2} * (made.call().most_tiles + made.call().most_slots);
    CHECK((most < 132 && made.forward.grid[0] == most && info_of(p, 1).grid == most));
  }
}

TEST_CASE("few queries run with packed heads, and need no map of O", "[launch][served]") {
  fresh();
  const ServedShape decode{.batch = 8, .max_q = 2, .total_q = 16, .max_k = 9000, .total_k = 60000, .heads = 32,
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

TEST_CASE("masks and batches reach the device's planner", "[launch][served]") {
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
  p.seqused_k = int32_at(23, {2});
  CHECK(is(window(FA3_MASK_NONE, 0, 0), -1, -1, false));
  CHECK(is(window(FA3_MASK_CAUSAL_TOP_LEFT, 0, 0), -1, 0, false));
  CHECK(is(window(FA3_MASK_CAUSAL_BOTTOM_RIGHT, 0, 0), -1, 0, true));
  // Another batch of K and V.
  p.k = tensor(p.k.data, FA3_DTYPE_BF16, {7, 500, 3, 128}), p.v = tensor(p.v.data, FA3_DTYPE_BF16, {7, 500, 3, 128});
  p.cache_batch_idx = int32_at(24, {2});
  const Pair made = run(p);
  CHECK((made.call().lengths.batch_k == place(24) && made.call().lengths.batch == 2));
  CHECK(map_of(made.params().v).dim == U64{128, 500, 3, 7});
}

TEST_CASE("other calls never run on rows for served ones", "[launch][served]") {
  FakeCuda& fake = fresh();
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
    for (const int64_t seqlen_q : {1, 100, 5000}) {
      fa3_forward_params p = imaginary({.batch = 2, .seqlen_q = seqlen_q, .seqlen_k = 5000, .heads = 8, .heads_kv = 2,
                                        .head_dim = 128});
      p.mask = mask;
      fake.launches.clear();
      REQUIRE(forward(p) == FA3_OK);
      REQUIRE(fake.launches.size() == 1);
      CHECK_FALSE(forward_row_of(fake.launches[0]).has(Trait::own_lengths));
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
  p.kernel = "fa3_fwdserved_bf16_d128_window_192x64";
  refused(p, "params->kernel is fa3_fwdserved_bf16_d128_window_192x64, which is for calls with lengths of their own");
  fa3_forward_params served = packed_call();
  served.kernel = "fa3_fwd_bf16_d128_causal_192x64";
  refused(served, "params->kernel is fa3_fwd_bf16_d128_causal_192x64, which is for calls without lengths of their own");
  served.kernel = "fa3_fwdserved_bf16_d64_window_256x64";
  refused(served, "which is for head_dim up to 64; q.dim[2] (head_dim) is 72");
  served.kernel = "fa3_fwdserved_fp16_d128_window_192x64";
  refused(served, "which is for fp16; q.dtype is bf16");
}

TEST_CASE("a named kernel of a served call is launched with its own numbers", "[launch][served]") {
  FakeCuda& fake = fresh();
  int named_rows = 0;
  for (const ForwardRow& row : forward_rows) {
    if (!row.has(Trait::own_lengths)) continue;
    INFO(row.name);
    ++named_rows;
    fa3_forward_params p = packed_call({.head_dim = row.d - 8, .head_dim_v = row.dv - 8}, dtype_of(row));
    p.kernel = row.name;
    const Pair made = run(p);
    CHECK(made.forward.kernel == row.name);
    CHECK(fake.loaded.back() == row.name);
    CHECK((made.forward.block[0] == unsigned(row.threads()) && made.forward.shared == unsigned(row.smem_bytes())));
    const int32_t of_query = row.packs_heads() ? 2 : 1, heads = row.packs_heads() ? 3 : 6;
    CHECK((made.call().Br == row.Br && made.call().Bc == row.Bc && made.call().heads == heads));
    CHECK(made.params().tiles.heads == heads);
    // Three sequences of up to 300 queries, of 500 in all.
    const int32_t rows = 500 * of_query, whole = (300 * of_query + row.Br - 1) / row.Br;
    CHECK(made.call().most_tiles == std::min(3 * whole, (rows - 3) / row.Br + 3));
    CHECK(map_of(made.params().k).box == box_of(row, row.Bc));
    check_workspace(made, workspace_memory, workspace_of(p));
    const fa3_kernel_info first = info_of(p, 0), second = info_of(p, 1);
    CHECK((std::string(first.name) == pass && first.kind == FA3_KERNEL_PASS && first.launches == 2));
    CHECK((first.grid == 1 && first.tiles == 0 && first.pieces == 0));
    CHECK((std::string(second.name) == row.name && second.kind == FA3_KERNEL_FORWARD && second.launches == 2));
    CHECK((second.grid == int(made.forward.grid[0]) && second.causal == 0));
    CHECK(second.tiles == int64_t{made.call().most_tiles} * heads);
    CHECK(second.pieces == second.tiles + int64_t{made.call().most_slots} * heads);
  }
  CHECK(named_rows > 5);
}

TEST_CASE("a schedule is made by one launch, and then calls have one launch", "[launch][served]") {
  FakeCuda& fake = fresh();
  char* const memory = static_cast<char*>(place(30));
  fa3_forward_params p = packed_call();
  const size_t bytes = schedule_of(p);
  const Pair whole = run(p);
  const PlanLengthsParams call = whole.call();
  const std::string kernel = whole.forward.kernel;
  const unsigned grid = whole.forward.grid[0];
  const void *const tickets = whole.params().tickets, *const partials = whole.params().partials;
  CHECK(bytes >= size_t(most_entries(call.most_tiles, call.most_slots)) * sizeof(Planned));
  CHECK(bytes + workspace_of(p) < plenty);

  fake.launches.clear(), fake.maps.clear();
  REQUIRE(schedule(p, memory, bytes) == FA3_OK);
  REQUIRE(fake.launches.size() == 1);
  CHECK((fake.launches[0].kernel == pass && fake.launches[0].grid[0] == 1 && !fake.launches[0].early));
  CHECK((fake.launches[0].stream == stream && fake.maps.empty()));
  const PlanLengthsPassParams planning = fake.launches[0].carried.lengths;
  CHECK(std::memcmp(&planning.call, &call, sizeof call) == 0);
  const Bytes used = check_plan(call, planning.plan);
  CHECK((used.begin >= memory && used.end <= memory + bytes));

  fa3_forward_params with = p;
  with.schedule = memory, with.schedule_bytes = bytes;
  CHECK(workspace_of(with) == workspace_of(p));
  CHECK(schedule_of(with) == bytes);
  CHECK((info_of(with, 0).launches == 1 && std::string(info_of(with, 0).name) == kernel));
  fake.launches.clear(), fake.maps.clear();
  REQUIRE(fa3_forward(&with, workspace_memory, workspace_of(with), nullptr) == FA3_OK);
  REQUIRE(fake.launches.size() == 1);
  const Launch& launch = fake.launches[0];
  CHECK((launch.kernel == kernel && launch.grid[0] == grid && !launch.early));
  const PlannedForwardParams& f = launch.carried.planned;
  CHECK((f.planned == planning.plan.entries && f.counts == planning.plan.counts));
  CHECK((f.tickets == tickets && f.partials == partials));
  // Who has set the fields already may make it anew.
  CHECK(schedule(with, memory, bytes) == FA3_OK);
  CHECK(fake.launches.back().kernel == pass);
}

TEST_CASE("a schedule that cannot be is refused, and the message says why", "[launch][served]") {
  FakeCuda& fake = fresh();
  char* const memory = static_cast<char*>(place(30));
  const fa3_forward_params p = packed_call();
  const size_t bytes = schedule_of(p);
  const auto text = [](size_t n) { return std::to_string(n); };
  CHECK(fa3_forward_schedule_size(&p, 132, nullptr) == FA3_ERROR_INVALID_ARGUMENT);
  expect_message("bytes is NULL");
  fake.calls = 0;
  CHECK(schedule(p, nullptr, bytes) == FA3_ERROR_INVALID_ARGUMENT);
  expect_message("schedule is NULL");
  CHECK(fake.calls == 0);
  CHECK(schedule(p, memory + 8, bytes) == FA3_ERROR_INVALID_ARGUMENT);
  expect_message("must be aligned to 16 bytes");
  CHECK(schedule(p, memory, bytes - 1) == FA3_ERROR_WORKSPACE_TOO_SMALL);
  expect_message(("schedule_bytes is " + text(bytes - 1) + ", must be at least " + text(bytes)).c_str());
  for (const auto& [name, tensor] : {std::pair{"o", &p.o}, {"q", &p.q}, {"cu_seqlens_k", &p.cu_seqlens_k}}) {
    CHECK(schedule(p, tensor->data, bytes) == FA3_ERROR_INVALID_ARGUMENT);
    expect_message((std::string("schedule may overlap ") + name).c_str());
  }
  // And in the call that has it.
  fa3_forward_params with = p;
  const auto refused = [&](fa3_status status, const std::string& why) {
    CHECK(forward(with) == status);
    expect_message(why.c_str());
  };
  with.schedule = memory, with.schedule_bytes = bytes - 1;
  refused(FA3_ERROR_WORKSPACE_TOO_SMALL, "schedule_bytes is " + text(bytes - 1) + ", must be at least " + text(bytes));
  with.schedule = memory + 8, with.schedule_bytes = bytes;
  refused(FA3_ERROR_INVALID_ARGUMENT, "schedule is ");
  for (const auto& [name, tensor] : {std::pair{"o", &p.o}, {"lse", &p.lse}}) {
    with.schedule = tensor->data;
    refused(FA3_ERROR_INVALID_ARGUMENT, std::string(name) + " may overlap schedule");
  }
  with.schedule = workspace_memory + 48;
  refused(FA3_ERROR_INVALID_ARGUMENT, "workspace may overlap schedule");
  CHECK(fake.launches.empty());
}

TEST_CASE("served calls with nothing to compute launch nothing, those without keys write their rows", "[launch][served]") {
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
  p.schedule = place(27), p.schedule_bytes = 16;  // of nothing
  nothing(p);

  // TMA takes no empty tensor: some of q stands for it.
  const auto no_keys = [&](fa3_forward_params given) {
    const Pair made = run(given);
    const PlannedForwardParams& f = made.params();
    CHECK(made.call().lengths.max_k == 0);
    CHECK((f.page_table == nullptr && f.box_rows == made.row().Bc));
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
  CHECK((made.params().page_table == nullptr && made.params().box_rows == made.row().Bc));
  CHECK(map_of(made.params().k).data == p.k.data);
}

TEST_CASE("whatever the lengths are, the device's plan keeps within the workspace", "[launch][served]") {
  constexpr int multiprocessors = 24;
  fresh().multiprocessors = multiprocessors;
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  int split = 0, packs = 0;
  for (int n = 0; n < 300; ++n) {
    const int64_t heads_kv = 1 + below(4);
    const ServedShape shape{.batch = 1 + below(20), .max_q = n % 2 ? 1 + below(8) : 1 + below(700),
                            .total_q = 1 + below(3000), .max_k = 1 + below(20000), .total_k = 1 + below(60000),
                            .heads = heads_kv * (1 + below(5)), .heads_kv = heads_kv,
                            .head_dim = n % 3 ? 128 : 256, .head_dim_v = n % 3 ? 128 : 256};
    fa3_forward_params p = packed_call(shape);
    if (n % 5 == 0) p.flags = FA3_FLAG_BATCH_INVARIANT;
    // Prefix sums that may decrease, and lengths above the maxima.
    std::vector<int32_t> cu_q, cu_k;
    for (int64_t b = 0; b <= shape.batch; ++b) {
      cu_q.push_back(int32_t(below(2 * shape.total_q)) - 5), cu_k.push_back(int32_t(below(2 * shape.total_k)) - 5);
    }
    if (n % 4) std::sort(cu_q.begin(), cu_q.end()), std::sort(cu_k.begin(), cu_k.end());
    p.cu_seqlens_q.data = cu_q.data(), p.cu_seqlens_k.data = cu_k.data();
    const size_t bytes = workspace_of(p, multiprocessors);
    constexpr size_t guard = 4096;
    Buffer memory(bytes + 2 * guard);
    char* const workspace = memory.as<char>() + guard;
    fake_cuda().launches.clear(), fake_cuda().maps.clear();
    REQUIRE(fa3_forward(&p, workspace, bytes, nullptr) == FA3_OK);
    REQUIRE(fake_cuda().launches.size() == 2);
    const Pair made{fake_cuda().launches[0], fake_cuda().launches[1]};
    check_workspace(made, workspace, bytes);
    static PlanScratch scratch;
    plan_lengths(InTurn(), made.call(), made.plan(), scratch);
    const auto poisoned = [](const char* begin, const char* end) {
      return std::all_of(begin, end, [](char c) { return static_cast<unsigned char>(c) == poison; });
    };
    CHECK((poisoned(workspace - guard, workspace) && poisoned(workspace + bytes, workspace + bytes + guard)));
    CHECK((poisoned(workspace, workspace + FA3_FORWARD_WORKSPACE_BYTES)));
    CHECK(poisoned(reinterpret_cast<char*>(made.params().tickets), workspace + bytes));
    const PlannedCounts& counts = *made.plan().counts;
    CHECK((counts.entries <= most_entries(made.call().most_tiles, made.call().most_slots)));
    CHECK(counts.slots <= made.call().most_slots);
    split += counts.slots > 0, packs += made.row().packs_heads();
  }
  CHECK((split > 20 && packs > 50));
}

TEST_CASE("the workspace of a served call grows with its maxima", "[launch][served]") {
  std::mt19937 random(4);
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  for (int n = 0; n < 2000; ++n) {
    const int64_t heads_kv = 1 + below(8);
    ServedShape shape{.batch = 1 + below(300), .max_q = 65 + below(3000), .total_q = 1 + below(30000),
                      .max_k = 1 + below(100000), .total_k = 1 + below(300000), .heads = heads_kv * (1 + below(8)),
                      .heads_kv = heads_kv, .head_dim = 128, .head_dim_v = 128};
    if (n % 2) shape.max_q = 1 + below(32);
    fa3_forward_params p = packed_call(shape);
    if (n % 3 == 0) p.flags = FA3_FLAG_BATCH_INVARIANT;
    p.kernel = n % 2 ? "fa3_fwdservedpacked_bf16_d128_window_64x64" : "fa3_fwdserved_bf16_d128_window_192x64";
    const size_t bytes = workspace_of(p), scheduled = schedule_of(p);
    for (int64_t ServedShape::* of : {&ServedShape::batch, &ServedShape::max_q, &ServedShape::total_q,
                                      &ServedShape::max_k, &ServedShape::total_k}) {
      ServedShape larger = shape;
      larger.*of += 1 + below(larger.*of);
      fa3_forward_params q = packed_call(larger);
      q.kernel = p.kernel, q.flags = p.flags;
      CHECK(workspace_of(q) >= bytes);
      CHECK(schedule_of(q) >= scheduled);
    }
  }
}

TEST_CASE("nothing of a served call is enqueued before all is ready", "[launch][served]") {
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
  void* const memory = place(30);
  CHECK(schedule(p, memory, schedule_of(p)) == FA3_ERROR_NOT_LOADED);
  expect_message(pass);
  fake.capture = CU_STREAM_CAPTURE_STATUS_NONE;
  REQUIRE(fa3_preload() == FA3_OK);
  fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  const int loads = fake.loads;
  CHECK((forward(p) == FA3_OK && schedule(p, memory, schedule_of(p)) == FA3_OK && fake.loads == loads));
}

TEST_CASE("a warm served call costs little", "[launch][served]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p = packed_call({.head_dim = 128, .head_dim_v = 128});
  p.kernel = "fa3_fwdserved_bf16_d128_window_192x64";
  fake.record = false;
  REQUIRE(forward(p) == FA3_OK);
  fake.calls = 0;
  REQUIRE(forward(p) == FA3_OK);
  CHECK(fake.calls == 17);  // the current context's id, 14 maps, two launches
  p.kernel = nullptr;
  double best = 1e9;
  for (int n = 0; n < 2000; ++n) {
    const auto start = std::chrono::steady_clock::now();
    forward(p);
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  INFO(best << " microseconds");
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  CHECK(best < 4);
#endif
}

}  // namespace fa3::test
