// The pass that plans varlen sequences (ptx/plan/plan_forward.h), alone: its lists against those that the host makes by
// the same functions, and how long it takes.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "device/cubins.h"
#include "device/driver.h"
#include "device/enqueue.h"
#include "forward/plan/planned.h"
#undef FA3_DRIVER_FUNCTIONS  // the tests have a list of their own
#include "../gpu.h"
#include "random.h"
#include "planned.h"

namespace fa3::test {
namespace {

using tools::DeviceBuffer, tools::Random;

constexpr auto passes = table::rows_of<table::planned_lines, Kind::pass>(&table::Line::pass);
static_assert(passes.size() == 1 && passes[0].pass == Pass::plan_forward && passes[0].valid());

struct PlannerCase {
  std::string name;
  bool packs;
  int heads, heads_kv;
  std::vector<int32_t> q, k;  // lengths of the sequences
  Window window = {-1, 0, true};
  int64_t chunk = 0;
  bool batch_invariant = false;
};
PlannerCase alike(std::string name, bool packs, int heads, int heads_kv, size_t batch, int32_t q, int32_t k) {
  return {std::move(name), packs, heads, heads_kv, std::vector<int32_t>(batch, q), std::vector<int32_t>(batch, k)};
}

std::vector<PlannerCase> planner_cases() {
  Random random(17);
  const auto mixed = [&](size_t batch, int64_t least, int64_t most) {
    std::vector<int32_t> lengths;
    for (size_t n = 0; n < batch; ++n) lengths.push_back(int32_t(random.between(least, most)));
    return lengths;
  };
  std::vector<PlannerCase> cases = {
      alike("prefill of 8 x 2048", false, 16, 16, 8, 2048, 2048),
      alike("prefill of 64 x 500", false, 16, 16, 64, 500, 500),
      alike("prefill of 4096 x 64", false, 8, 8, 4096, 64, 64),
      alike("prefill of 1 x 131072", false, 16, 16, 1, 131072, 131072),
      alike("prefill of 1 x 131072, one head", false, 1, 1, 1, 131072, 131072),
      alike("decoding, 8 x 8192", true, 32, 8, 8, 1, 8192),
      alike("decoding, 1 x 131072", true, 32, 8, 1, 1, 131072),
      alike("decoding, 17 x 20000: two rounds and a tail", true, 32, 8, 17, 1, 20000),
      alike("decoding, 5000 x 300: more than shared memory holds", true, 32, 8, 5000, 1, 300),
      {"decoding, 256 of mixed lengths", true, 32, 8, std::vector<int32_t>(256, 1), mixed(256, 1, 16000)},
      {"decoding, 64 of mixed lengths, one head", true, 8, 1, std::vector<int32_t>(64, 1), mixed(64, 1, 60000)},
      {"decoding, 128 of mixed lengths, one head", true, 8, 1, std::vector<int32_t>(128, 1), mixed(128, 0, 60000)},
      {"chunks and decoding, windows", false, 8, 8, mixed(60, 0, 700), mixed(60, 0, 30000), {1000, 20, true}},
      {"chunks of positions", false, 8, 8, mixed(20, 0, 9000), mixed(20, 0, 9000), {-1, 0, true}, 512},
      {"a constant unit", false, 8, 8, mixed(20, 0, 9000), mixed(20, 0, 60000), {-1, 0, true}, 0, true},
      {"no sequence has rows", false, 8, 8, {0, 0, 0}, {5, 0, 70}}};
  PlannerCase long_one = alike("decoding, one long among 255", true, 32, 8, 256, 1, 1000);
  long_one.k[100] = 131072;
  cases.push_back(long_one);
  return cases;
}

std::vector<int32_t> starts_of(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> starts{0};
  for (const int32_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

// The case's parameters, with lengths on the host, and on the device.
struct PlannerCall {
  std::vector<int32_t> cu_q, cu_k;
  DeviceBuffer device_cu_q, device_cu_k;
  PlanForwardParams on_host, on_device;

  explicit PlannerCall(const PlannerCase& made)
      : cu_q(starts_of(made.q)), cu_k(starts_of(made.k)), device_cu_q(cu_q.size() * 4), device_cu_k(cu_k.size() * 4) {
    device_cu_q.upload(cu_q.data(), cu_q.size() * 4), device_cu_k.upload(cu_k.data(), cu_k.size() * 4);
    const auto row = std::find_if(planned_rows.begin(), planned_rows.end(), [&](const ForwardRow& r) {
      return r.d == 128 && r.packs_heads() == made.packs && r.bounded_left();
    });
    ForwardProblem problem{};
    problem.batch = int64_t(made.q.size()), problem.heads = made.heads, problem.heads_kv = made.heads_kv;
    problem.seqlen_q = *std::max_element(made.q.begin(), made.q.end());
    problem.seqlen_k = *std::max_element(made.k.begin(), made.k.end());
    problem.head_dim = problem.head_dim_v = 128;
    problem.lengths = {cu_q.data(), cu_k.data(), nullptr, nullptr, nullptr, nullptr, int32_t(problem.batch),
                       int32_t(problem.seqlen_q), int32_t(problem.seqlen_k)};
    problem.total_q = cu_q.back(), problem.total_k = cu_k.back();
    problem.window = made.window, problem.chunk = made.chunk, problem.batch_invariant = made.batch_invariant;
    REQUIRE(plan_forward_params({problem, *row}, 132, on_host));
    on_device = on_host;
    on_device.lengths.cu_q = static_cast<const int32_t*>(device_cu_q.at(0));
    on_device.lengths.cu_k = static_cast<const int32_t*>(device_cu_k.at(0));
  }
};

struct PlannerLaunch {
  const Driver* driver;
  CUfunction function;

  PlannerLaunch() {
    REQUIRE(get_driver(driver) == FA3_OK);
    static CUfunction loaded;  // of the run's only context
    if (!loaded) {
      CUmodule module;
      const size_t number = planned_rows.size();
      tools::check(driver->module_load_data(&module, fa3_cubins[number].data), "cuModuleLoadData");
      tools::check(driver->module_get_function(&loaded, module, passes[0].name), passes[0].name);
      tools::check(driver->func_set_attribute(loaded, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                              passes[0].smem_bytes()), "cuFuncSetAttribute");
    }
    function = loaded;
  }
  void operator()(const PlanForwardParams& params, const DeviceBuffer& plan) const {
    PlanForwardPassParams pass{params, plan_at(plan.at(0), params)};
    REQUIRE(enqueue(*driver, Row::of(passes[0], 0), function, 1, &pass, false, gpu().stream.get()) == FA3_OK);
  }
};

struct PlannerList {
  PlannedCounts counts;
  std::vector<PlannedPiece> entries;
};
PlannerList list_in(void* memory, const PlanForwardParams& params) {
  const PlannedPieces plan = plan_at(memory, params);
  const int64_t most = most_entries(params.most_tiles, params.most_slots);
  return {*plan.counts, {plan.entries, plan.entries + std::clamp<int64_t>(plan.counts->entries, 0, most)}};
}
PlannerList list_by_host(const PlanForwardParams& params) {
  std::vector<std::max_align_t> memory(size_t(plan_bytes(params)) / sizeof(std::max_align_t) + 1);
  const auto scratch = std::make_unique<PlanScratch>();
  plan_forward(InTurn(), params, plan_at(memory.data(), params), *scratch);
  return list_in(memory.data(), params);
}

// Entries in an order of their own, without their slots, which depend on who comes first.
std::vector<PlannedPiece> sorted(std::vector<PlannedPiece> entries) {
  for (PlannedPiece& entry : entries) entry.slot = 0;
  std::sort(entries.begin(), entries.end(),
            [](const PlannedPiece& a, const PlannedPiece& b) { return std::memcmp(&a, &b, sizeof a) < 0; });
  return entries;
}
bool are_same(const std::vector<PlannedPiece>& a, const std::vector<PlannedPiece>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(PlannedPiece)) == 0);
}

// "", or what is wrong with the device's list.
std::string compare(const PlannerList& made, const PlannerList& wanted, const PlanForwardParams& params) {
  if (made.counts.entries != wanted.counts.entries || made.counts.slots != wanted.counts.slots)
    return std::to_string(made.counts.entries) + " entries and " + std::to_string(made.counts.slots) + " slots, not " +
           std::to_string(wanted.counts.entries) + " and " + std::to_string(wanted.counts.slots);
  if (!are_same(sorted(made.entries), sorted(wanted.entries))) return "other entries than the host's";
  // Where nothing is split, and pieces are many, each has its place, unless sequences have one tile each.
  const bool by_sequence =
      int64_t{made.counts.entries} * params.heads >= few_rounds * int64_t{params.multiprocessors} &&
      params.packing.rows(params.lengths.max_q) > params.Br;
  if (by_sequence && made.counts.slots == 0 && !are_same(made.entries, wanted.entries)) return "in another order";
  std::set<int32_t> slots;
  for (const PlannedPiece& entry : made.entries)
    if (entry.parts > 1 && !slots.insert(entry.slot + entry.part).second) return "a slot is taken twice";
  if (!slots.empty() && (*slots.begin() < 0 || *slots.rbegin() >= made.counts.slots)) return "a slot that there is not";
  return "";
}

}  // namespace

TEST_CASE("the device plans varlen sequences as the host does", "[planned][planner]") {
  gpu();
  const PlannerLaunch launch;
  for (const PlannerCase& made : planner_cases()) {
    INFO(made.name);
    const PlannerCall call(made);
    const PlannerList wanted = list_by_host(call.on_host);
    const auto bytes = size_t(plan_bytes(call.on_host));
    constexpr size_t beyond = 4096;
    const DeviceBuffer plan(bytes + beyond);
    std::vector<std::max_align_t> memory((bytes + beyond) / sizeof(std::max_align_t) + 1);
    for (const unsigned char leftover : {0x00, 0xff, 0xc5}) {
      plan.fill(leftover);
      launch(call.on_device, plan);
      gpu().stream.synchronize();
      plan.download(memory.data(), bytes + beyond);
      const auto* const behind = reinterpret_cast<const unsigned char*>(memory.data()) + bytes;
      CHECK(std::all_of(behind, behind + beyond, [&](unsigned char byte) { return byte == leftover; }));
      CHECK(compare(list_in(memory.data(), call.on_host), wanted, call.on_host) == "");
    }
  }
}

// Not a test: prints how long the pass takes, launches behind each other.
TEST_CASE("times of the planner", "[.planner-times]") {
  gpu();
  const PlannerLaunch launch;
  std::printf("%-56s %8s %8s %8s\n", "", "entries", "slots", "us");
  for (const PlannerCase& made : planner_cases()) {
    const PlannerCall call(made);
    const PlannerList list = list_by_host(call.on_host);
    const DeviceBuffer plan(size_t(plan_bytes(call.on_host)));
    const auto time_of = [&](int launches) {
      const tools::Event start, end;
      start.record(gpu().stream);
      for (int n = 0; n < launches; ++n) launch(call.on_device, plan);
      end.record(gpu().stream);
      end.synchronize();
      return double(end.milliseconds_since(start)) * 1e3 / launches;
    };
    time_of(100);
    double best = 1e9;
    for (int n = 0; n < 10; ++n) best = std::min(best, time_of(200));
    std::printf("%-56s %8d %8d %8.2f\n", made.name.c_str(), list.counts.entries, list.counts.slots, best);
  }
}

}  // namespace fa3::test
