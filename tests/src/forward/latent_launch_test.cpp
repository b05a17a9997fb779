// What calls with a second query, and head dimensions above 256, launch, seen by a driver that only listens.
#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "planned_launches.h"

namespace fa3::test {
namespace {

using U64 = std::vector<uint64_t>;
using U32 = std::vector<uint32_t>;

// 16 heads of up to 300 queries on pages of 64 keys.
fa3_forward_params on_pages(int64_t head_dim, int64_t head_dim_v, int64_t page_size = 64, int64_t max_q = 300) {
  return paged_call(page_size, 5000, {.max_q = max_q, .heads = 16, .heads_kv = 1, .head_dim = head_dim,
                                      .head_dim_v = head_dim_v});
}

// {columns, heads, queries, 1, 1} in boxes of 64 rows, or of fewer: 16 heads of four queries.
void check_queries(const TensorMap& map, void* data, uint64_t columns, uint64_t row_bytes, uint32_t box_queries = 4) {
  const EncodedMap& m = map_of(map);
  CHECK((m.data == data && m.dim == U64{columns, 16, 500, 1, 1} && m.box == U32{64, 16, box_queries, 1, 1}));
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
  const auto& f = one.forward.carried.planned;
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
  const auto& g = told.forward.carried.planned;
  CHECK((told.forward.kernel == one.forward.kernel && g.softmax_scale == float(1 / std::sqrt(568.0))));
  check_queries(g.q, two.q.data, 56, 112);
  check_queries(g.qv, two.qv.data, 512, 1024);
  check_keys(g.k, two.k.data, 56, 1152, row.stage_keys());
  check_keys(g.v, p.k.data, 512, 1152, row.stage_keys());

  two.softcap = 30;
  const Pair capped = run(two);
  const auto& h = capped.forward.carried.planned;
  CHECK((capped.row().has(Trait::qv) && capped.row().has(Trait::softcap)));
  CHECK(capped.forward.carried.planned.transforms.softcap.cap_scaled == float(30 * 1.4426950408889634));
  check_queries(h.q, two.q.data, 56, 112);
  check_queries(h.qv, two.qv.data, 512, 1024);
  check_keys(h.v, p.k.data, 512, 1152, row.stage_keys());
}

// V of e4m3 comes in boxes of 128 columns, and all of its rows in the largest ones, wherever a sequence ends.
TEST_CASE("a launch over a latent cache of e4m3", "[launch][latent]") {
  FakeCuda& fake = fresh();
  void* const cache = far_away(42);
  const struct {
    const char* name;
    int64_t page_size, max_q;
    uint32_t box_queries;
  } calls[] = {{"fa3_fwdplannedfp8mla_bf16_d64x512_window_64x128", 64, 300, 4},
               {"fa3_fwdplannedfp8mla_bf16_d64x512_window_64x128", 16, 300, 4},
               {"fa3_fwdplannedfp8mla32rows_bf16_d64x512_window_64x128", 64, 2, 2},
               {"fa3_fwdplannedfp8mla16rows_bf16_d64x512_window_64x128", 32, 1, 1}};
  for (const auto& [name, page_size, max_q, box_queries] : calls) {
    INFO(name << " on pages of " << page_size);
    fa3_forward_params p = on_pages(64, 512, page_size, max_q);
    p.qv = tensor(far_away(41), FA3_DTYPE_BF16, {500, 16, 512});
    change_to_latent_tokens(p, cache);
    const Pair made = run(p);
    const ForwardRow& row = made.row();
    const auto& f = made.forward.carried.planned;
    CHECK((made.forward.kernel == name && f.box_rows == std::min<int>(int(page_size), row.stage_keys())));
    CHECK(f.softmax_scale == float(1 / std::sqrt(576.0)));
    check_queries(f.q, p.q.data, 64, 128, box_queries);
    check_queries(f.qv, p.qv.data, 512, 1024, box_queries);
    const auto check_map = [&, rows = uint64_t(page_size), box = uint32_t(f.box_rows)](
                               const TensorMap& map, int64_t at, uint64_t columns, uint32_t box_columns) {
      const EncodedMap& m = map_of(map);
      CHECK((m.data == behind(cache, at) && m.dim == U64{columns, rows, 1, 5000}));
      CHECK((m.box == U32{box_columns, box, 1, 1} && m.stride[0] == 656 && m.stride[2] == rows * 656));
      CHECK((m.type == CU_TENSOR_MAP_DATA_TYPE_UINT8) == (at == 0));
    };
    check_map(f.v, 0, 512, 128), check_map(f.k, 528, 64, 64);
    CHECK(fake.maps.size() == 4);  // and none with boxes of fewer rows
    const LatentScales& s = f.latent_scales;
    CHECK((s.data == behind(cache, 512) && s.stride_batch == page_size * 164 && s.stride_row == 164));
    CHECK((s.batches == 5000 && s.rows == page_size && s.bytes == 16));
    check_workspace(made, workspace_memory, workspace_of(p));
  }
}

TEST_CASE("a launch over a packed latent cache of e4m3, and one without keys", "[launch][latent]") {
  fresh();
  fa3_forward_params p = packed_call({.heads = 16, .heads_kv = 2, .head_dim = 56, .head_dim_v = 272});
  p.v.dtype = FA3_DTYPE_E4M3, p.v_scale = latent_scale(p.v, far_away(43));
  p.qv = tensor(far_away(41), FA3_DTYPE_BF16, {500, 16, 272});
  const Pair made = run(p);
  const LatentScales& s = made.forward.carried.planned.latent_scales;
  CHECK((made.row().is_latent() && s.data == far_away(43) && s.batches == 1 && s.rows == 1100));
  CHECK((s.stride_row == 8 && s.stride_head == 4 && s.bytes == 12));
  CHECK(map_of(made.params().v).dim == U64{272, 1100, 2, 1});

  p.k.dim[0] = p.v.dim[0] = p.v_scale.dim[0] = 0, p.k.data = p.v.data = p.v_scale.data = nullptr;
  const Pair none = run(p);
  CHECK((none.row().is_latent() && map_of(none.params().v).data == p.q.data));
  CHECK(none.forward.carried.planned.latent_scales.batches == 0);
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
  const PlannedForwardParams &passed = pass.carried.planned, &launched = made.params();
  CHECK((pass.kernel == "fa3_pass_add_parts" && pass.early && pass.cluster == 1));
  CHECK((passed.tile_rows == 128 && passed.partials == launched.partials && passed.entries == launched.entries));
  check_workspace(made, workspace_memory, workspace_of(p));

  fresh().multiprocessors = 131;
  CHECK(run(p).forward.grid[0] == 130);
  fresh();
  p.flags = FA3_FLAG_BATCH_INVARIANT;
  const Pair invariant = run(p);
  CHECK((!invariant.row().has(Trait::multicast) && invariant.forward.cluster == 1));
  p.kernel = "fa3_fwdplannedmlacluster_bf16_d64x512_window_128x128";
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
