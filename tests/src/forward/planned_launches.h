// What planned calls launch (varlen sequences, pages, windows, sinks), with a driver that only listens.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "../planned_calls.h"
#include "forward_launches.h"

namespace fa3::test {

inline constexpr const char* plan_pass = "fa3_pass_plan_forward";

inline const EncodedMap& map_of(const TensorMap& map) { return fake_cuda().maps.at(map.opaque[0]); }
inline std::vector<uint32_t> box_of(const ForwardRow& row, int rows) {
  return {unsigned(row.slab_columns()), unsigned(rows), 1, 1};
}

inline size_t workspace_of(const fa3_forward_params& p, int multiprocessors = 132) {
  size_t bytes = 0;
  REQUIRE(fa3_forward_workspace_size(&p, multiprocessors, &bytes) == FA3_OK);
  return bytes;
}
inline size_t schedule_of(const fa3_forward_params& p, int multiprocessors = 132) {
  size_t bytes = 0;
  REQUIRE(fa3_forward_schedule_size(&p, multiprocessors, &bytes) == FA3_OK);
  return bytes;
}
inline fa3_status schedule(const fa3_forward_params& p, void* to, size_t bytes) {
  return fa3_forward_schedule(&p, to, bytes, reinterpret_cast<fa3_stream>(stream));
}
// Of the call's launch of this number, or of its only one.
inline fa3_kernel_info info_of(const fa3_forward_params& p, int launch) {
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  REQUIRE(fa3_forward_kernel_info(&p, 132, launch, &info) == FA3_OK);
  return info;
}

// The two launches of a planned call that has no schedule.
struct Pair {
  const Launch &planning, &forward;
  const PlanForwardParams& call() const { return planning.carried.lengths.call; }
  const PlannedPieces& plan() const { return planning.carried.lengths.plan; }
  const PlannedForwardParams& params() const { return forward.carried.planned; }
  const Scales& scales() const { return forward.carried.planned.scales; }
  const ForwardRow& row() const { return forward_row_of(forward); }
};
inline Pair run(const fa3_forward_params& p) {
  FakeCuda& fake = fake_cuda();
  fake.launches.clear(), fake.maps.clear();
  REQUIRE(forward(p) == FA3_OK);
  REQUIRE((fake.launches.size() >= 2 && row_of(fake.launches[1]).kind == Kind::forward));
  const bool may_split = fake.launches[0].carried.lengths.call.most_slots > 0;
  const bool adds_parts = may_split && forward_row_of(fake.launches[1]).halves_columns();
  REQUIRE((fake.launches[0].kernel == plan_pass && fake.launches.size() == (adds_parts ? 3 : 2)));
  return {fake.launches[0], fake.launches[1]};
}

// A slot of the partial results.
inline int64_t slot_bytes(const ForwardRow& row, const PlannedForwardParams& p) {
  if (!row.packs_heads()) return int64_t{row.Br / 16} * row.partial_bytes();
  const int64_t head_rows = int64_t{p.visible.seqlen_q} << p.visible.packing.shift;
  const int64_t unit = row.slot_unit();
  return (head_rows < row.Br ? (head_rows + unit - 1) / unit * unit : row.Br) * row.packed_row_bytes();
}

// Where the device's plan stands, which has room for as many entries as it may have.
struct Bytes {
  const char *begin, *end;
};
inline Bytes check_plan(const PlanForwardParams& call, const PlannedPieces& plan) {
  const char* const begin = reinterpret_cast<const char*>(plan.counts);
  const Bytes all{begin, begin + plan_bytes(call)};
  const auto bytes = [&](const auto* first, int64_t count) {
    const Bytes part{reinterpret_cast<const char*>(first), reinterpret_cast<const char*>(first + count)};
    CHECK((part.begin >= all.begin && part.end <= all.end));
    return part;
  };
  const Bytes counts = bytes(plan.counts, 1);
  const Bytes entries = bytes(plan.entries, most_entries(call.most_tiles, call.most_slots));
  CHECK(counts.end <= entries.begin);
  CHECK((entries.begin - all.begin) % 16 == 0);
  if (plan.sequences) CHECK(bytes(plan.sequences, call.sequences).begin >= entries.end);
  return all;
}

// What stands in the workspace stands one behind the other: the struct Workspace, the plan, tickets, slots.
inline void check_workspace(const Pair& pair, const char* begin, size_t bytes) {
  const PlanForwardParams& call = pair.call();
  const PlannedForwardParams& p = pair.params();
  const Bytes plan = check_plan(call, pair.plan());
  CHECK((static_cast<const void*>(p.workspace) == begin && sizeof(Workspace) <= FA3_FORWARD_WORKSPACE_BYTES));
  CHECK(plan.begin >= begin + FA3_FORWARD_WORKSPACE_BYTES);
  CHECK(reinterpret_cast<const char*>(p.tickets) >= plan.end);
  // The kernels clear tickets eight at a time.
  const int64_t tile_tickets = pair.row().halves_columns() ? 0 : pair.row().warpgroups();
  const int64_t tickets = int64_t{call.most_slots / 2} * call.heads * tile_tickets;
  const char* const partials = static_cast<const char*>(p.partials);
  CHECK(partials >= reinterpret_cast<const char*>(p.tickets + (tickets + 7) / 8 * 8));
  CHECK(begin + bytes == partials + int64_t{call.most_slots} * call.heads * slot_bytes(pair.row(), p));
  CHECK(((reinterpret_cast<const char*>(p.tickets) - begin) % 16 == 0 && (partials - begin) % 16 == 0));
}

}  // namespace fa3::test
