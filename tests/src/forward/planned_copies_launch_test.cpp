// What a call of wide queries over e4m3 launches that runs on copies of K and V in fp16.
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "planned_launches.h"

namespace fa3::test {
namespace {

using U64 = std::vector<uint64_t>;

constexpr const char* copy_pass = "fa3_pass_widen";
constexpr const char* kernel = "fa3_fwdplannedcopiedkv_bf16_d128_window_192x64";

// On copies, in whichever way its keys lie: 6 heads over 3 of 80 and 96 columns, up to 700 keys.
const PlannedShape shape{.head_dim = 80, .head_dim_v = 96};
fa3_forward_params on_copies(fa3_forward_params p) {
  change_keys_to_e4m3(p);
  p.v_scale = tensor(far_away(32), FA3_DTYPE_FP32, {1, 1, 1});
  p.kernel = kernel;
  return p;
}
fa3_forward_params packed() { return on_copies(packed_call(shape, FA3_DTYPE_BF16)); }
fa3_forward_params paged() { return on_copies(paged_call(16, 200, shape, FA3_DTYPE_BF16)); }
fa3_forward_params cached() {
  fa3_forward_params p = on_copies(packed_call(shape, FA3_DTYPE_BF16));
  p.cu_seqlens_k = {};
  p.k = tensor(p.k.data, FA3_DTYPE_E4M3, {5, 800, 3, 80}), p.v = tensor(p.v.data, FA3_DTYPE_E4M3, {5, 800, 3, 96});
  p.seqused_k = lengths_at(23, 3), p.leftpad_k = lengths_at(24, 3), p.cache_batch_idx = lengths_at(28, 3);
  return p;
}

int64_t offset(const void* at) { return static_cast<const char*>(at) - workspace_memory; }
int64_t round_up(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

TEST_CASE("a launch on copies, in full", "[launch][planned]") {
  FakeCuda& fake = fresh();
  const struct {
    fa3_forward_params p;
    int64_t entries, rows;  // of the copies
  } calls[] = {{packed(), 1, 1100}, {paged(), 3, 700}, {cached(), 3, 700}};
  for (const auto& [p, entries, rows] : calls) {
    fake.launches.clear(), fake.maps.clear();
    REQUIRE(forward(p) == FA3_OK);
    REQUIRE(fake.launches.size() == 3);
    const Launch &planning = fake.launches[0], &copying = fake.launches[1], &main = fake.launches[2];
    CHECK((planning.kernel == plan_pass && copying.kernel == copy_pass && main.kernel == kernel));
    // The pass waits for the plan before it ends, and the kernel for the pass.
    CHECK((!planning.early && copying.early && main.early));
    for (int launch = 0; launch < 3; ++launch) {
      const fa3_kernel_info info = info_of(p, launch);
      CHECK((info.name == fake.launches[size_t(launch)].kernel && info.launches == 3));
      CHECK(info.grid == int(fake.launches[size_t(launch)].grid[0]));
    }
    // Behind what a call of 16 bits has in its workspace.
    fa3_forward_params plain = p;
    plain.k.dtype = plain.v.dtype = p.q.dtype, plain.k_scale = plain.v_scale = {};
    plain.kernel = "fa3_fwdplanned_bf16_d128_window_192x64";
    const int64_t k_bytes = round_up(entries * rows * 3 * 80 * 2), v_bytes = round_up(entries * rows * 3 * 96 * 2);
    const int64_t first = round_up(int64_t(workspace_of(plain)));
    CHECK(int64_t(workspace_of(p)) == first + k_bytes + v_bytes);
    CHECK(schedule_of(p) == schedule_of(plain));

    const WidenParams& w = copying.carried.widen;
    const WidenedTensor &k = w.tensors[1], &v = w.tensors[2];
    CHECK((w.tensors[0].blocks.count == 0 && w.blocks.count == 0 && !w.bf16 && w.batch == 3));
    CHECK((k.from == p.k.data && v.from == p.v.data && offset(k.to) == first && offset(v.to) == first + k_bytes));
    const bool batched = entries == 3;
    for (const WidenedTensor* t : {&k, &v}) {
      const fa3_tensor& from = t == &k ? p.k : p.v;
      CHECK((t->rows == rows && t->lines == rows && t->blocks.heads == 3 && !t->tiles));
      CHECK((t->stride_row == from.stride[batched] && t->stride_head == from.stride[batched + 1]));
      CHECK((!batched || (t->stride_batch == from.stride[0] && t->entries == from.dim[0])));
      CHECK((t->blocks.count == entries * 3 * t->blocks.per_head && t->blocks.per_head * t->blocks.lines >= rows));
      CHECK((t->used == p.seqused_k.data && t->entry_of == p.cache_batch_idx.data));
      CHECK((t->page_table == p.page_table.data && (!p.page_table.data || t->page_size == 16)));
      CHECK(t->table_stride == p.page_table.stride[0]);
    }
    CHECK((k.head_dim == 80 && v.head_dim == 96));
    CHECK((!k.scale && !v.scale && !k.cu_seqlens && !v.cu_seqlens));
    CHECK(copying.grid[0] == unsigned(k.blocks.count + v.blocks.count));

    // The kernel has the scales, and the rest is that of 16 bits, of the copies.
    const PlannedForwardParams& f = main.carried.planned;
    const Scales& s = main.carried.planned.scales;
    CHECK((s.k.data == p.k_scale.data && s.k.stride_batch == 3 && s.k.stride_head == 1 && s.k.stride_block == 0));
    CHECK((s.v.data == p.v_scale.data && s.v.stride_batch == 0 && s.v.stride_head == 0 && !s.q.data && !s.v_mean));
    CHECK(f.page_table == nullptr);
    const Lengths& lengths = planning.carried.lengths.call.lengths;
    CHECK((lengths.batch_k == nullptr && lengths.used_k == p.seqused_k.data && lengths.cu_k == p.cu_seqlens_k.data));
    CHECK((lengths.leftpad_k == p.leftpad_k.data && lengths.max_k == 700));
    for (const auto& [map, t] : {std::pair{&f.k, &k}, {&f.v, &v}, {&f.v_rows[0], &v}}) {
      CHECK((map_of(*map).data == t->to && map_of(*map).type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16));
      CHECK(map_of(*map).dim == U64{uint64_t(t->head_dim), uint64_t(rows), 3, uint64_t(entries)});
    }
  }
}

TEST_CASE("a schedule for copies is as for other calls", "[launch][planned]") {
  FakeCuda& fake = fresh();
  for (fa3_forward_params p : {packed(), paged(), cached()}) {
    const size_t bytes = schedule_of(p);
    char* const memory = static_cast<char*>(far_away(30));
    fake.launches.clear();
    REQUIRE(schedule(p, memory, bytes) == FA3_OK);
    REQUIRE(fake.launches.size() == 1);
    CHECK(fake.launches[0].kernel == plan_pass);
    CHECK(fake.launches[0].carried.lengths.call.lengths.batch_k == nullptr);
    const PlannedPieces plan = fake.launches[0].carried.lengths.plan;
    p.schedule = memory, p.schedule_bytes = bytes;
    fake.launches.clear();
    REQUIRE(forward(p) == FA3_OK);
    REQUIRE(fake.launches.size() == 2);
    const Launch &copying = fake.launches[0], &main = fake.launches[1];
    CHECK((copying.kernel == copy_pass && main.kernel == kernel && !copying.early && main.early));
    CHECK((main.carried.planned.entries == plan.entries && main.carried.planned.counts == plan.counts));
  }
}

TEST_CASE("copies without elements are not made", "[launch][planned]") {
  FakeCuda& fake = fresh();
  fa3_forward_params p = packed();
  p.k.dim[0] = p.v.dim[0] = 0;
  REQUIRE(forward(p) == FA3_OK);
  REQUIRE(fake.launches.size() == 2);
  CHECK((fake.launches[0].kernel == plan_pass && fake.launches[1].kernel == kernel));
  // Nor is anything launched where the workspace is one without them.
  p = packed();
  fake.launches.clear();
  CHECK(fa3_forward(&p, workspace_memory, workspace_of(p) - 1, nullptr) == FA3_ERROR_WORKSPACE_TOO_SMALL);
  CHECK(fake.launches.empty());
}

}  // namespace fa3::test
