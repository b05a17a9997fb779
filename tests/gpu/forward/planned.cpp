// Sequences with lengths of their own, keys in pages, and windows, which no call reaches yet: the rows of planned.def,
// run by name. A case lays its sequences into packed tensors or pages with NaN between them, and some that are all NaN
// among them, writes the list of pieces that a planner would write, and compares with float64.
#include "planned.h"

#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

#include "device/cubins.h"
#include "device/driver.h"
#include "device/enqueue.h"
#include "device/tensor_map.h"
#undef FA3_DRIVER_FUNCTIONS  // the tests have a list of their own
#include "../gpu.h"
#include "random.h"

namespace fa3::test {
namespace {

using tools::DeviceBuffer, tools::Random;

static_assert(std::all_of(planned_rows.begin(), planned_rows.end(), [](const ForwardRow& row) {
  return row.valid() && row.has(Trait::planned);
}));

template <class T>
void shuffle(std::vector<T>& all, Random& random) {
  for (size_t n = all.size(); n > 1; --n) std::swap(all[n - 1], all[size_t(random.between(0, int64_t(n) - 1))]);
}

// What a planner makes: for each tile of each sequence a piece, or parts of a few grains, in any order.
struct List {
  std::vector<PlannedPiece> planned;
  int32_t slots = 0;
};
List plan(const PlannedCall& made, Random& random) {
  List list;
  for (const Sequence& sequence : made.sequences) {
    const Visible seen = made.visible(sequence, made.packing());
    for (int32_t q_block = 0; q_block * made.row.Br < seen.rows(); ++q_block) {
      const Blocks blocks = tile_blocks(seen, q_block * made.row.Br, made.row.Br, made.row.Bc);
      const int32_t begin = blocks.begin, count = blocks.end - begin;
      const int32_t parts = count > 1 && random.chance(0.5) ? int32_t(random.between(2, std::min(count, 5))) : 1;
      for (int32_t part = 0; part < parts; ++part)
        list.planned.push_back({sequence, q_block, list.slots, begin + count * part / parts,
                                begin + count * (part + 1) / parts, part, parts, 0, 0});
      if (parts > 1) list.slots += parts;
    }
  }
  shuffle(list.planned, random);
  return list;
}

CUfunction load(const Driver& driver, const ForwardRow& row) {
  static CUfunction functions[planned_rows.size()];  // of the run's only context
  CUfunction& function = functions[&row - planned_rows.data()];
  if (function) return function;
  CUmodule module;
  tools::check(driver.module_load_data(&module, fa3_cubins[&row - planned_rows.data()].data), "cuModuleLoadData");
  tools::check(driver.module_get_function(&function, module, row.name), row.name);
  tools::check(driver.func_set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, row.smem_bytes()),
               "cuFuncSetAttribute");
  return function;
}

template <class T>
DeviceBuffer on_device(const std::vector<T>& from) {
  DeviceBuffer buffer(std::max<size_t>(from.size() * sizeof(T), 16));
  if (!from.empty()) buffer.upload(from.data(), from.size() * sizeof(T));
  return buffer;
}

int32_t longest(const PlannedCall& made) {
  int32_t longest = 0;
  for (const Sequence& s : made.sequences) longest = std::max(longest, s.seqlen_q);
  return longest;
}

// Thread blocks have their first pieces from the list's beginning, whether or not there are so many. What stands behind
// its end must not matter.
constexpr int most_thread_blocks = 132;

// A case and its list on the device.
struct Memory {
  DeviceBuffer q, k, v, o, lse, page_table, planned, counts, workspace;
  size_t tickets, partials;  // where they begin in the workspace

  Memory(const PlannedCall& made, const List& list)
      : q(on_device(made.q)), k(on_device(made.k)), v(on_device(made.v)), o(on_device(made.o)),
        lse(on_device(made.lse)), page_table(on_device(made.page_table)),
        planned(std::max<size_t>(list.planned.size(), most_thread_blocks) * sizeof(PlannedPiece)),
        counts(on_device(std::vector{PlannedCounts{int32_t(list.planned.size()), list.slots}})) {
    const ForwardRow& row = made.row;
    planned.fill(0xc5);
    if (!list.planned.empty()) planned.upload(list.planned.data(), list.planned.size() * sizeof(PlannedPiece));
    const auto heads = size_t(made.heads_of_tiles()), slots = size_t(list.slots);
    const auto most_rows = int32_t(made.packing().rows(longest(made)));
    const int32_t slot_rows = Packing::slot_rows(most_rows, row.Br, row.slot_unit());
    const size_t slot_bytes =
        row.packs_heads() ? size_t(slot_rows * row.packed_row_bytes()) : size_t(row.Br / 16 * row.partial_bytes());
    tickets = 256;
    partials = tickets + (slots / 2 * heads * size_t(row.warpgroups()) * sizeof(Tickets) + 63) / 64 * 64;
    workspace = DeviceBuffer(partials + slots * heads * slot_bytes);
  }
};

View view_of(const DeviceBuffer& buffer, int64_t batch, int64_t rows, int64_t heads, int64_t head_dim) {
  const int64_t stride = heads * head_dim;
  return {buffer.at(0), FA3_DTYPE_BF16, {batch, rows, heads, head_dim}, {rows * stride, stride, head_dim, 1}};
}

void must(fa3_status status) { REQUIRE(status == FA3_OK); }

PlannedForwardParams parameters(const Driver& driver, const PlannedCall& made, const Memory& memory) {
  PlannedForwardParams p;
  std::memset(static_cast<void*>(&p), 0, sizeof p);
  const ForwardRow& row = made.row;
  const View q = view_of(memory.q, made.batch, made.rows_q, made.heads, made.head_dim);
  const View k = view_of(memory.k, made.batch_k, made.rows_k, made.heads_kv, made.head_dim);
  const View v = view_of(memory.v, made.batch_k, made.rows_k, made.heads_kv, made.head_dim);
  const View o = view_of(memory.o, made.batch, made.rows_q, made.heads, made.head_dim);
  must(row.packs_heads() ? encode_packed(driver, "q", q, row, made.heads_kv, p.q)
                         : encode(driver, "q", q, row, q_box_rows, p.q));
  const int box_rows = made.paged ? std::gcd(row.stage_keys(), int(made.rows_k)) : row.stage_keys();
  must(encode(driver, "k", k, row, box_rows, p.k));
  must(encode(driver, "v", v, row, box_rows, p.v));
  must(encode(driver, "o", o, row, o_box_rows, p.o));
  for (int n = 0; n < PlannedForwardParams::v_boxes; ++n) must(encode(driver, "v", v, row, 1 << n, p.v_rows[n]));
  for (int n = 0; n < PlannedForwardParams::o_boxes; ++n) must(encode(driver, "o", o, row, 1 << n, p.o_rows[n]));
  p.output = {memory.o.at(0), o.stride[0], o.stride[2], o.stride[1], static_cast<float*>(memory.lse.at(0)),
              made.heads * made.rows_q, made.rows_q, 1, made.head_dim, row.dtype};
  p.workspace = static_cast<Workspace*>(memory.workspace.at(0));
  p.tickets = static_cast<Tickets*>(memory.workspace.at(memory.tickets));
  p.partials = memory.workspace.at(memory.partials);
  p.heads_per_kv = Divisor::of(made.heads / made.heads_kv);
  p.softmax_scale = made.scale(), p.softmax_scale_log2 = float(double(made.scale()) * 1.4426950408889634);
  p.tiles.heads = Divisor::of(made.heads_of_tiles());
  p.visible.seqlen_q = longest(made), p.visible.packing = made.packing();
  p.entries = static_cast<const PlannedPiece*>(memory.planned.at(0));
  p.counts = static_cast<const PlannedCounts*>(memory.counts.at(0));
  if (made.paged) {
    p.page_table = static_cast<const int32_t*>(memory.page_table.at(0));
    p.table_stride = int32_t(made.table_pages);
    p.box_rows = box_rows;
    p.page_size = Divisor::of(int32_t(made.rows_k));
  }
  return p;
}

// Runs the case on its row, three times with other leftovers in the workspace. "", or what is wrong.
std::string run(PlannedCall made, uint64_t seed) {
  const ForwardRow& row = made.row;
  const tools::Stream& stream = gpu().stream;
  const Driver* driver;
  must(get_driver(driver));
  Random random(seed + 1);
  const List list = plan(made, random);
  const Memory memory(made, list);
  PlannedForwardParams params = parameters(*driver, made, memory);

  const Expectation expected = expect(made);
  const DeviceBuffer sinks = on_device(made.sinks);
  if (!made.sinks.empty()) {
    params.sinks = static_cast<const float*>(sinks.at(0));
    params.sinks_stride = 1;
  }
  const auto poisoned_o = made.o;
  const auto poisoned_lse = made.lse;
  std::vector<uint16_t> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    memory.o.upload(poisoned_o.data(), poisoned_o.size() * 2);
    memory.lse.upload(poisoned_lse.data(), poisoned_lse.size() * 4);
    memory.workspace.fill(static_cast<unsigned char>(random.between(0, 255)));
    // Grids do not know lengths: there may be fewer pieces than thread blocks.
    const int64_t grid = random.pick<int64_t>({most_thread_blocks, most_thread_blocks, 7});
    must(enqueue(*driver, Row::of(row, 0), load(*driver, row), grid, &params, false, stream.get()));
    stream.synchronize();
    memory.o.download(made.o.data(), made.o.size() * 2);
    memory.lse.download(made.lse.data(), made.lse.size() * 4);
    if (const std::string bad = verify(made, expected); !bad.empty()) return bad;
    if (repeat == 0) first = made.o;
    else if (made.o != first) return "run " + std::to_string(repeat) + " has other bits";
  }
  return "";
}

std::string text_of(const PlannedCall& made, Bounds bounds) {
  std::string text = std::string(made.row.name) + ", left " + std::to_string(bounds.left) + " right " +
                     std::to_string(bounds.right) + ", (q, k):";
  for (size_t n = 0; n < std::min<size_t>(made.sequences.size(), 16); ++n)
    text += " (" + std::to_string(made.sequences[n].seqlen_q) + ", " + std::to_string(made.sequences[n].seqlen_k) +
            (made.poisoned[n] ? ", NaN)" : ")");
  return text;
}

std::vector<Bounds> bounds_of(const ForwardRow& row) {
  if (!row.bounded_right()) return {{no_bound, no_bound}};
  if (!row.bounded_left()) return {{no_bound, 0}, {no_bound, 5}};
  return {{no_bound, no_bound}, {no_bound, 0}, {0, 0}, {17, 0}, {128, 0}, {100, 60}, {0, 33}};
}

// Sequences with one query or none, with no keys, with whole tiles and blocks; and any.
std::vector<std::array<int, 2>> lengths_for(const ForwardRow& row, Random& random) {
  const int most_q = row.packs_heads() ? 40 : 420;
  std::vector<std::array<int, 2>> lengths = {
      {1, 1}, {0, 70}, {20, 0}, {row.packs_heads() ? 32 : row.Br, 2 * row.Bc}, {5, 3 * row.Bc + 1}, {30, 7}};
  for (int n = 0; n < 8; ++n)
    lengths.push_back({int(random.between(1, most_q)), int(random.between(1, random.chance(0.5) ? 90 : 600))});
  shuffle(lengths, random);
  return lengths;
}

}  // namespace

TEST_CASE("sequences with lengths of their own", "[planned]") {
  gpu();
  const uint64_t seed_of_run = tools::seed_of_run();
  for (const ForwardRow& row : planned_rows) {
    uint64_t number = 0;
    for (const Bounds bounds : bounds_of(row)) {
      const uint64_t seed = tools::mix(seed_of_run, ++number);
      Random random(seed);
      const PlannedCall made = packed(row, lengths_for(row, random), bounds, seed);
      INFO(text_of(made, bounds) << ", seed " << seed_of_run);
      CHECK(run(made, seed) == "");
    }
    INFO(row.name << ": no rows at all");
    CHECK(run(packed(row, {{0, 100}, {0, 0}}, bounds_of(row)[0], 1), 1) == "");
  }
}

TEST_CASE("keys in pages", "[planned]") {
  gpu();
  const uint64_t seed_of_run = tools::seed_of_run();
  for (const ForwardRow& row : planned_rows) {
    uint64_t number = 200;
    const std::vector<Bounds> all = bounds_of(row);
    for (const int page_size : {1, 2, 3, 8, 16, 32, 48, 64, 128, 1000}) {
      const Bounds bounds = all[++number % all.size()];
      const uint64_t seed = tools::mix(seed_of_run, number);
      Random random(seed);
      const PlannedCall made = paged(row, lengths_for(row, random), page_size, bounds, seed);
      INFO(text_of(made, bounds) << ", pages of " << page_size << ", seed " << seed_of_run);
      CHECK(run(made, seed) == "");
    }
    INFO(row.name << ": no rows at all, no keys at all");
    CHECK(run(paged(row, {{0, 100}, {0, 0}}, 16, all[0], 1), 1) == "");
    CHECK(run(paged(row, {{70, 0}, {3, 0}}, 16, all[0], 1), 1) == "");
  }
}

// As large as sums of exponentials are; so large that keys hardly count, or not at all; so small that sinks do not.
TEST_CASE("sinks", "[planned]") {
  gpu();
  const uint64_t seed_of_run = tools::seed_of_run();
  for (const ForwardRow& row : planned_rows) {
    const std::vector<Bounds> all = bounds_of(row);
    uint64_t number = 300;
    for (const std::vector<float>& sinks : std::vector<std::vector<float>>{
             {5, 2, 6, 4}, {20, 18, 21, 19}, {9e3f, 1e4f, 1e4f, 9e3f}, {-1e4f, -3e38f, -INFINITY, -30}}) {
      const Bounds bounds = all[++number % all.size()];
      const uint64_t seed = tools::mix(seed_of_run, number);
      Random random(seed);
      PlannedCall made = packed(row, lengths_for(row, random), bounds, seed);
      made.sinks = sinks;
      INFO(text_of(made, bounds) << ", seed " << seed_of_run << ", sinks " << sinks[0] << " ...");
      CHECK(run(made, seed) == "");
    }
  }
}

TEST_CASE("windows", "[planned]") {
  gpu();
  const uint64_t seed_of_run = tools::seed_of_run();
  for (const ForwardRow& row : planned_rows) {
    if (!row.bounded_left()) continue;
    uint64_t number = 100;
    for (const Bounds bounds : bounds_of(row))
      for (const auto& [seqlen_q, seqlen_k] : {std::array{777, 777}, {300, 900}, {450, 200}, {64, 64}, {1, 257}}) {
        const uint64_t seed = tools::mix(seed_of_run, ++number);
        const PlannedCall made =
            batched(row, 2, row.packs_heads() ? seqlen_q / 8 + 1 : seqlen_q, seqlen_k, bounds, seed);
        INFO(text_of(made, bounds) << ", seed " << seed_of_run);
        CHECK(run(made, seed) == "");
      }
  }
}

}  // namespace fa3::test
