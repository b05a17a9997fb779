// Schedules of planned calls, and the memory that the device's plan has in the workspace, whatever the lengths are.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "planned_launches.h"

namespace fa3::test {

TEST_CASE("a schedule is made by one launch, and then calls have one launch", "[launch][planned]") {
  FakeCuda& fake = fresh();
  char* const memory = static_cast<char*>(far_away(30));
  fa3_forward_params p = packed_call();
  const size_t bytes = schedule_of(p);
  const Pair whole = run(p);
  const PlanForwardParams call = whole.call();
  const std::string kernel = whole.forward.kernel;
  const unsigned grid = whole.forward.grid[0];
  const void *const tickets = whole.params().tickets, *const partials = whole.params().partials;
  CHECK(bytes >= size_t(most_entries(call.most_tiles, call.most_slots)) * sizeof(PlannedPiece));
  CHECK(bytes + workspace_of(p) < plenty);

  fake.launches.clear(), fake.maps.clear();
  REQUIRE(schedule(p, memory, bytes) == FA3_OK);
  REQUIRE(fake.launches.size() == 1);
  CHECK((fake.launches[0].kernel == plan_pass && fake.launches[0].grid[0] == 1 && !fake.launches[0].early));
  CHECK((fake.launches[0].stream == stream && fake.maps.empty()));
  const PlanForwardPassParams planning = fake.launches[0].carried.lengths;
  constexpr size_t call_bytes = offsetof(PlanForwardParams, most_each) + sizeof call.most_each;  // without padding
  CHECK(std::memcmp(&planning.call, &call, call_bytes) == 0);
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
  CHECK((f.entries == planning.plan.entries && f.counts == planning.plan.counts));
  CHECK((f.tickets == tickets && f.partials == partials));
  // Who has set the fields already may make it anew.
  CHECK(schedule(with, memory, bytes) == FA3_OK);
  CHECK(fake.launches.back().kernel == plan_pass);
}

TEST_CASE("threads make schedules and use them, each its own", "[launch][planned][threads]") {
  FakeCuda& fake = fresh();
  constexpr int64_t threads = 4, calls = 400;
  const auto stream_of = [](int64_t id) { return reinterpret_cast<CUstream>(uintptr_t(16 * (1 + id))); };
  const auto memory_of = [](int64_t id) { return static_cast<char*>(far_away(30)) + (id << 20); };
  std::atomic<int> wrong{0};
  const auto work = [&](int64_t id) {
    fa3_forward_params p = packed_call({.batch = 3 + id});
    const auto own = reinterpret_cast<fa3_stream>(stream_of(id));
    for (int64_t n = 0; n < calls; ++n) {
      p.schedule = nullptr, p.schedule_bytes = 0;
      wrong += fa3_forward_schedule(&p, memory_of(id), size_t{1} << 20, own) != FA3_OK;
      p.schedule = memory_of(id), p.schedule_bytes = size_t{1} << 20;
      wrong += fa3_forward(&p, workspace_memory, plenty, own) != FA3_OK;
    }
  };
  std::vector<std::thread> all;
  for (int64_t id = 0; id < threads; ++id) all.emplace_back(work, id);
  for (std::thread& thread : all) thread.join();
  CHECK(wrong == 0);
  REQUIRE(fake.launches.size() == size_t(2 * threads * calls));
  int mismatches = 0;
  for (const Launch& launch : fake.launches) {
    const int64_t id = int64_t(reinterpret_cast<uintptr_t>(launch.stream) / 16) - 1;
    const PlanForwardPassParams& made = launch.carried.lengths;
    const bool plans = launch.kernel == plan_pass;
    const void* const counts = plans ? made.plan.counts : launch.carried.planned.counts;
    mismatches += counts != memory_of(id) || (plans && made.call.lengths.batch != 3 + id);
  }
  CHECK(mismatches == 0);
}

TEST_CASE("a schedule that cannot be is refused, and the message says why", "[launch][planned]") {
  FakeCuda& fake = fresh();
  char* const memory = static_cast<char*>(far_away(30));
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

TEST_CASE("whatever the lengths are, the device's plan keeps within the workspace", "[launch][planned]") {
  constexpr int multiprocessors = 24;
  fresh().multiprocessors = multiprocessors;
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  int split = 0, packs = 0;
  for (int n = 0; n < 300; ++n) {
    const int64_t heads_kv = 1 + below(4);
    const bool many = n % 50 == 7;  // sequences, more than a thread block keeps
    const PlannedShape shape{.batch = many ? 5000 : 1 + below(20), .max_q = n % 2 ? 1 + below(8) : 1 + below(700),
                             .total_q = 1 + below(3000), .max_k = 1 + below(20000), .total_k = 1 + below(60000),
                             .heads = heads_kv * (1 + below(5)), .heads_kv = heads_kv,
                             .head_dim = n % 3 ? 128 : 256, .head_dim_v = n % 3 ? 128 : 256};
    fa3_forward_params p = packed_call(shape);
    if (n % 5 == 0) p.flags = FA3_FLAG_BATCH_INVARIANT;
    if (n % 7 == 0) chunk(p, int32_t(1 + below(500)), 0);
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
    std::memset(static_cast<void*>(&scratch), 0xa5, sizeof scratch);
    plan_forward(InTurn(), made.call(), made.plan(), scratch);
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

TEST_CASE("the workspace of a planned call grows with its maxima", "[launch][planned]") {
  std::mt19937 random(4);
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  for (int n = 0; n < 2000; ++n) {
    const int64_t heads_kv = 1 + below(8);
    PlannedShape shape{.batch = 1 + below(300), .max_q = 65 + below(3000), .total_q = 1 + below(30000),
                       .max_k = 1 + below(100000), .total_k = 1 + below(300000), .heads = heads_kv * (1 + below(8)),
                       .heads_kv = heads_kv, .head_dim = 128, .head_dim_v = 128};
    if (n % 2) shape.max_q = 1 + below(32);
    fa3_forward_params p = packed_call(shape);
    if (n % 3 == 0) p.flags = FA3_FLAG_BATCH_INVARIANT;
    p.kernel = n % 2 ? "fa3_fwdplannedpacked_bf16_d128_window_64x64" : "fa3_fwdplanned_bf16_d128_window_192x64";
    const size_t bytes = workspace_of(p), scheduled = schedule_of(p);
    for (int64_t PlannedShape::* of : {&PlannedShape::batch, &PlannedShape::max_q, &PlannedShape::total_q,
                                       &PlannedShape::max_k, &PlannedShape::total_k}) {
      PlannedShape larger = shape;
      larger.*of += 1 + below(larger.*of);
      fa3_forward_params q = packed_call(larger);
      q.kernel = p.kernel, q.flags = p.flags;
      CHECK(workspace_of(q) >= bytes);
      CHECK(schedule_of(q) >= scheduled);
    }
  }
}

}  // namespace fa3::test
