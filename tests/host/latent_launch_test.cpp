// What calls with a second query, and head dimensions above 256, launch, seen by a driver that only listens.
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "served_launches.h"

namespace fa3::test {
namespace {

using U64 = std::vector<uint64_t>;
using U32 = std::vector<uint32_t>;

// 16 heads of up to 300 queries on pages of 64 keys.
fa3_forward_params on_pages(int64_t head_dim, int64_t head_dim_v) {
  return paged_call(64, 5000, {.heads = 16, .heads_kv = 1, .head_dim = head_dim, .head_dim_v = head_dim_v});
}

// {columns, heads, queries, 1, 1} in boxes of 64 rows: 16 heads of four queries.
void check_queries(const TensorMap& map, void* data, uint64_t columns, uint64_t row_bytes) {
  const EncodedMap& m = map_of(map);
  CHECK((m.data == data && m.dim == U64{columns, 16, 500, 1, 1} && m.box == U32{64, 16, 4, 1, 1}));
  CHECK((m.stride[0] == row_bytes && m.stride[1] == 16 * row_bytes));
  CHECK(m.swizzle == CU_TENSOR_MAP_SWIZZLE_128B);
}
void check_keys(const TensorMap& map, void* data, uint64_t columns, uint64_t row_bytes, uint32_t rows) {
  const EncodedMap& m = map_of(map);
  CHECK((m.data == data && m.dim == U64{columns, 64, 1, 5000} && m.box == U32{64, rows, 1, 1}));
  CHECK((m.stride[0] == row_bytes && m.stride[2] == 64 * row_bytes));
}

void* behind(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }

}  // namespace

TEST_CASE("a launch with V in K, and the same with a second query", "[launch][latent]") {
  fresh();
  fa3_forward_params p = on_pages(576, 512);
  p.v = p.k, p.v.dim[3] = 512;
  const Pair one = run(p);
  const ForwardRow& row = one.row();
  const LatentForwardParams& f = one.forward.carried.latent;
  CHECK((row.has(Trait::qv) && one.call().heads == 1 && f.visible.packing.shift == 4 && f.heads_per_kv == 16));
  CHECK((f.output.head_dim == 512 && f.box_rows == row.stage_keys() && f.page_table == p.page_table.data));
  CHECK(f.softmax_scale == float(1 / std::sqrt(576.0)));
  check_queries(f.q, behind(p.q.data, 1024), 64, 1152);
  check_queries(f.qv, p.q.data, 512, 1152);
  check_keys(f.k, behind(p.k.data, 1024), 64, 1152, row.stage_keys());
  check_keys(f.v, p.k.data, 512, 1152, row.stage_keys());
  for (int i = 0; 1 << i < row.stage_keys(); ++i) check_keys(f.v_rows[i], p.k.data, 512, 1152, 1u << i);
  check_workspace(one, workspace_memory, workspace_of(p));

  fa3_forward_params two = p;
  two.q = tensor(far_away(40), FA3_DTYPE_BF16, {500, 16, 56});
  two.qv = tensor(far_away(41), FA3_DTYPE_BF16, {500, 16, 512});
  two.k.dim[3] = 56, two.k.data = behind(p.k.data, 1024);
  const Pair told = run(two);
  const LatentForwardParams& g = told.forward.carried.latent;
  CHECK((told.forward.kernel == one.forward.kernel && g.softmax_scale == float(1 / std::sqrt(568.0))));
  check_queries(g.q, two.q.data, 56, 112);
  check_queries(g.qv, two.qv.data, 512, 1024);
  check_keys(g.k, two.k.data, 56, 1152, row.stage_keys());
  check_keys(g.v, p.k.data, 512, 1152, row.stage_keys());

  two.softcap = 30;
  const Pair capped = run(two);
  const LatentForwardParams& h = capped.forward.carried.latent;
  CHECK((capped.row().has(Trait::qv) && capped.row().has(Trait::softcap)));
  CHECK(capped.forward.carried.transformed.transforms.softcap.cap_scaled == float(30 * 1.4426950408889634));
  check_queries(h.q, two.q.data, 56, 112);
  check_queries(h.qv, two.qv.data, 512, 1024);
  check_keys(h.v, p.k.data, 512, 1152, row.stage_keys());
}

// More than 64 rows over one cache run on clusters of two; a pass behind adds their parts up.
TEST_CASE("a launch on clusters", "[launch][latent]") {
  fresh();
  fa3_forward_params p = paged_call(64, 5000, {.heads = 128, .heads_kv = 1, .head_dim = 576, .head_dim_v = 512});
  p.v = p.k, p.v.dim[3] = 512;
  const Pair made = run(p);
  CHECK((made.row().has(Trait::multicast) && made.forward.cluster == 2 && made.forward.early));
  CHECK((made.forward.grid[0] == 132 && made.call().multiprocessors == 66));
  const Launch& pass = fake_cuda().launches[2];
  const PlannedForwardParams &of_pass = pass.carried.planned, &of_kernel = made.params();
  CHECK((pass.kernel == "fa3_pass_add_parts" && pass.early && pass.cluster == 1));
  CHECK((of_pass.tile_rows == 128 && of_pass.partials == of_kernel.partials && of_pass.planned == of_kernel.planned));
  check_workspace(made, workspace_memory, workspace_of(p));

  fresh().multiprocessors = 131;
  CHECK(run(p).forward.grid[0] == 130);
  fresh();
  p.flags = FA3_FLAG_BATCH_INVARIANT;
  const Pair invariant = run(p);
  CHECK((!invariant.row().has(Trait::multicast) && invariant.forward.cluster == 1));
  p.kernel = "fa3_fwdservedmlapair_bf16_d64x512_window_128x128";
  CHECK(forward(p) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK(std::string(fa3_last_error_message()).find("BATCH_INVARIANT") != std::string::npos);
}

TEST_CASE("a launch with K and V apart above 256", "[launch][latent]") {
  fresh();
  const fa3_forward_params p = on_pages(384, 264);
  const Pair made = run(p);
  const PlannedForwardParams& f = made.params();
  const ForwardRow& row = made.row();
  CHECK((row.halves_columns() && !row.has(Trait::qv) && row.o_from_registers() && f.output.head_dim == 264));
  check_queries(f.q, p.q.data, 384, 768);
  check_keys(f.k, p.k.data, 384, 768, row.stage_keys());
  check_keys(f.v, p.v.data, 264, 528, row.stage_keys());
  check_workspace(made, workspace_memory, workspace_of(p));
}

// Where no sequence has a key, some of Q stands for K and V, which may be nowhere.
TEST_CASE("a launch with V in K without keys", "[launch][latent]") {
  fresh();
  fa3_forward_params p = on_pages(576, 512);
  p.k.dim[0] = 0, p.k.data = nullptr;
  p.v = p.k, p.v.dim[3] = 512;
  const Pair made = run(p);
  CHECK((made.row().has(Trait::qv) && map_of(made.params().v).data == behind(p.q.data, 1024)));
}

TEST_CASE("a schedule of a call with V in K", "[launch][latent]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p = on_pages(576, 512);
  p.v = p.k, p.v.dim[3] = 512;
  const size_t bytes = schedule_of(p);
  REQUIRE(bytes > 0);
  REQUIRE(schedule(p, far_away(60), bytes) == FA3_OK);
  p.schedule = far_away(60), p.schedule_bytes = bytes;
  fake.launches.clear();
  REQUIRE(forward(p) == FA3_OK);
  CHECK((fake.launches.size() == 2 && forward_row_of(fake.launches[0]).has(Trait::qv)));
  CHECK(fake.launches[1].kernel == "fa3_pass_add_parts");
}

// The workspace overlaps what the caller knows by this name.
TEST_CASE("a workspace in the latent part of q is in q", "[launch][latent]") {
  fresh();
  fa3_forward_params p = on_pages(576, 512);
  p.v = p.k, p.v.dim[3] = 512;
  CHECK(fa3_forward(&p, p.q.data, plenty, nullptr) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK(std::string(fa3_last_error_message()).find("overlap q:") != std::string::npos);
  CHECK(std::string(fa3_last_error_message()).find("qv") == std::string::npos);
}

}  // namespace fa3::test
