// Sequences with lengths of their own, and windows, which no call reaches yet: the rows of served.def, run by name. A
// case lays its sequences into packed tensors with NaN between them, and some that are all NaN among them, writes the
// list of pieces that a planner would write, and compares with float64.
#include "served.h"

#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "device/cubins.h"
#include "device/driver.h"
#include "device/enqueue.h"
#include "device/tensor_map.h"
#undef FA3_DRIVER_FUNCTIONS  // the tests have a list of their own
#include "gpu.h"
#include "random.h"

namespace fa3::test {
namespace {

using tools::DeviceBuffer, tools::Random;

using namespace table;
constexpr ForwardRow served_rows[] = {
#include "served.def"
};
static_assert(std::all_of(std::begin(served_rows), std::end(served_rows),
                          [](const ForwardRow& row) { return row.valid(); }));

template <class T>
void shuffle(std::vector<T>& all, Random& random) {
  for (size_t n = all.size(); n > 1; --n) std::swap(all[n - 1], all[size_t(random.between(0, int64_t(n) - 1))]);
}

// What a planner makes: for each tile of each sequence a piece, or parts of a few grains, in any order.
struct List {
  std::vector<Planned> planned;
  int32_t slots = 0;
};
List plan(const Served& made, Random& random) {
  List list;
  for (const Sequence& sequence : made.sequences) {
    const Visible seen = made.visible(sequence, made.packing());
    for (int32_t q_block = 0; q_block * made.row.Br < seen.rows(); ++q_block) {
      const Blocks blocks = tile_blocks(seen, q_block * made.row.Br, made.row.Br, made.row.Bc);
      const int32_t begin = blocks.begin, count = blocks.end - begin;
      const int32_t parts = count > 1 && random.chance(0.5) ? int32_t(random.between(2, std::min(count, 5))) : 1;
      for (int32_t part = 0; part < parts; ++part)
        list.planned.push_back({sequence, q_block, list.slots, begin + count * part / parts,
                                begin + count * (part + 1) / parts, part, parts, {}});
      if (parts > 1) list.slots += parts;
    }
  }
  shuffle(list.planned, random);
  return list;
}

CUfunction load(const Driver& driver, const ForwardRow& row) {
  static CUfunction functions[std::size(served_rows)];  // of the run's only context
  CUfunction& function = functions[&row - served_rows];
  if (function) return function;
  CUmodule module;
  tools::check(driver.module_load_data(&module, fa3_cubins[&row - served_rows].data), "cuModuleLoadData");
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

int32_t longest(const Served& made) {
  int32_t longest = 0;
  for (const Sequence& s : made.sequences) longest = std::max(longest, s.seqlen_q);
  return longest;
}

// A case and its list on the device.
struct Memory {
  DeviceBuffer q, k, v, o, lse, planned, counts, workspace;
  size_t tickets, partials;  // where they begin in the workspace

  Memory(const Served& made, const List& list)
      : q(on_device(made.q)), k(on_device(made.k)), v(on_device(made.v)), o(on_device(made.o)),
        lse(on_device(made.lse)), planned(on_device(list.planned)),
        counts(on_device(std::vector{PlannedCounts{int32_t(list.planned.size()), list.slots}})) {
    const ForwardRow& row = made.row;
    const auto heads = size_t(made.heads_of_tiles()), slots = size_t(list.slots);
    const auto most_rows = int32_t(made.packing().rows(longest(made)));
    const size_t slot_bytes = row.packs_heads() ? size_t(Packing::slot_rows(most_rows, row.Br) * row.packed_row_bytes())
                                                : size_t(row.Br / 16 * row.partial_bytes());
    tickets = 256;
    partials = tickets + (slots / 2 * heads * size_t(row.warpgroups()) * sizeof(Tickets) + 63) / 64 * 64;
    workspace = DeviceBuffer(partials + slots * heads * slot_bytes);
  }
};

View view_of(const DeviceBuffer& buffer, int64_t batch, int64_t rows, int64_t heads, int64_t head_dim) {
  const int64_t of_row = heads * head_dim;
  return {buffer.at(0), FA3_DTYPE_BF16, {batch, rows, heads, head_dim}, {rows * of_row, of_row, head_dim, 1}};
}

void must(fa3_status status) { REQUIRE(status == FA3_OK); }

void set_common(const Driver& driver, const Served& made, const Memory& memory, ForwardParams& p) {
  const ForwardRow& row = made.row;
  const View q = view_of(memory.q, made.batch, made.rows_q, made.heads, made.head_dim);
  must(row.packs_heads() ? encode_packed(driver, "q", q, row, made.heads_kv, p.q)
                         : encode(driver, "q", q, row, q_box_rows, p.q));
  must(encode(driver, "k", view_of(memory.k, made.batch, made.rows_k, made.heads_kv, made.head_dim), row, row.Bc, p.k));
  must(encode(driver, "v", view_of(memory.v, made.batch, made.rows_k, made.heads_kv, made.head_dim), row, row.Bc, p.v));
  const View o = view_of(memory.o, made.batch, made.rows_q, made.heads, made.head_dim);
  must(encode(driver, "o", o, row, o_box_rows, p.o));
  p.output = {memory.o.at(0), o.stride[0], o.stride[2], o.stride[1], static_cast<float*>(memory.lse.at(0)),
              made.heads * made.rows_q, made.rows_q, 1, made.head_dim, row.dtype};
  p.workspace = static_cast<Workspace*>(memory.workspace.at(0));
  p.tickets = static_cast<Tickets*>(memory.workspace.at(memory.tickets));
  p.partials = memory.workspace.at(memory.partials);
  p.heads_per_kv = Divisor::of(made.heads / made.heads_kv);
  p.softmax_scale = made.scale(), p.softmax_scale_log2 = float(double(made.scale()) * 1.4426950408889634);
  p.tiles.heads = Divisor::of(made.heads_of_tiles());
}

// Of rows with Trait::own_lengths. Returns the number of pieces.
int64_t set_list(const Driver& driver, const Served& made, const List& list, const Memory& memory,
                 PlannedForwardParams& p) {
  const View v = view_of(memory.v, made.batch, made.rows_k, made.heads_kv, made.head_dim);
  const View o = view_of(memory.o, made.batch, made.rows_q, made.heads, made.head_dim);
  for (int box = 0; box < PlannedForwardParams::v_boxes; ++box)
    must(encode(driver, "v", v, made.row, 1 << box, p.v_rows[box]));
  for (int box = 0; box < PlannedForwardParams::o_boxes; ++box)
    must(encode(driver, "o", o, made.row, 1 << box, p.o_rows[box]));
  p.visible.seqlen_q = longest(made), p.visible.packing = made.packing();
  p.planned = static_cast<const Planned*>(memory.planned.at(0));
  p.counts = static_cast<const PlannedCounts*>(memory.counts.at(0));
  return int64_t(list.planned.size()) * made.heads_of_tiles();
}

// Of other rows: all tiles whole, in one section. Returns their number.
int64_t set_tiles(const Served& made, ForwardParams& p) {
  const int32_t q_blocks = (int32_t(made.rows_q) + made.row.Br - 1) / made.row.Br;
  const int32_t heads = made.heads_of_tiles(), all = int32_t(made.batch) * heads;
  p.visible = made.visible(made.sequences[0]);
  p.tiles = {q_blocks, 0, all, Divisor::of(heads), Divisor::of(all), Divisor::of(all * q_blocks), Divisor::of(all)};
  p.pieces = {all * q_blocks, 0, 0, 1, Divisor::of(1)};
  return p.pieces.count();
}

// Runs the case on its row, three times with other leftovers in the workspace. "", or what is wrong.
std::string run(Served made, uint64_t seed) {
  const ForwardRow& row = made.row;
  const tools::Stream& stream = gpu().stream;
  const Driver* driver;
  must(get_driver(driver));
  Random random(seed + 1);
  const bool own_lengths = row.has(Trait::own_lengths);
  const List list = own_lengths ? plan(made, random) : List{};
  const Memory memory(made, list);
  union {
    PlannedForwardParams planned;
    ListedForwardParams listed;
  } params;
  std::memset(static_cast<void*>(&params), 0, sizeof params);
  set_common(*driver, made, memory, params.planned);
  const int64_t pieces =
      own_lengths ? set_list(*driver, made, list, memory, params.planned) : set_tiles(made, params.listed);

  const Expectation expected = expect(made);
  const DeviceBuffer sinks = on_device(made.sinks);
  if (!made.sinks.empty()) {
    params.planned.sinks = static_cast<const float*>(sinks.at(0));
    params.planned.sinks_stride = 1;
  }
  const auto poisoned_o = made.o;
  const auto poisoned_lse = made.lse;
  std::vector<uint16_t> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    memory.o.upload(poisoned_o.data(), poisoned_o.size() * 2);
    memory.lse.upload(poisoned_lse.data(), poisoned_lse.size() * 4);
    memory.workspace.fill(static_cast<unsigned char>(random.between(0, 255)));
    const int64_t grid = std::clamp<int64_t>(pieces, 1, random.pick<int64_t>({132, 132, 7}));
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

std::string text_of(const Served& made, Bounds bounds) {
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

TEST_CASE("sequences with lengths of their own", "[served]") {
  gpu();
  const uint64_t seed_of_run = tools::seed_of_run();
  for (const ForwardRow& row : served_rows) {
    if (!row.has(Trait::own_lengths)) continue;
    uint64_t number = 0;
    for (const Bounds bounds : bounds_of(row)) {
      const uint64_t seed = tools::mix(seed_of_run, ++number);
      Random random(seed);
      const Served made = packed(row, lengths_for(row, random), bounds, seed);
      INFO(text_of(made, bounds) << ", seed " << seed_of_run);
      CHECK(run(made, seed) == "");
    }
    INFO(row.name << ": no rows at all");
    CHECK(run(packed(row, {{0, 100}, {0, 0}}, bounds_of(row)[0], 1), 1) == "");
  }
}

// As large as sums of exponentials are; so large that keys hardly count, or not at all; so small that sinks do not.
TEST_CASE("sinks", "[served]") {
  gpu();
  const uint64_t seed_of_run = tools::seed_of_run();
  for (const ForwardRow& row : served_rows) {
    if (!row.has(Trait::own_lengths)) continue;
    const std::vector<Bounds> all = bounds_of(row);
    uint64_t number = 300;
    for (const std::vector<float>& sinks : std::vector<std::vector<float>>{
             {5, 2, 6, 4}, {20, 18, 21, 19}, {9e3f, 1e4f, 1e4f, 9e3f}, {-1e4f, -3e38f, -INFINITY, -30}}) {
      const Bounds bounds = all[++number % all.size()];
      const uint64_t seed = tools::mix(seed_of_run, number);
      Random random(seed);
      Served made = packed(row, lengths_for(row, random), bounds, seed);
      made.sinks = sinks;
      INFO(text_of(made, bounds) << ", seed " << seed_of_run << ", sinks " << sinks[0] << " ...");
      CHECK(run(made, seed) == "");
    }
  }
}

TEST_CASE("windows", "[served]") {
  gpu();
  const uint64_t seed_of_run = tools::seed_of_run();
  for (const ForwardRow& row : served_rows) {
    if (row.has(Trait::own_lengths)) continue;
    uint64_t number = 100;
    for (const Bounds bounds : bounds_of(row))
      for (const auto& [seqlen_q, seqlen_k] : {std::array{777, 777}, {300, 900}, {450, 200}, {64, 64}, {1, 257}}) {
        const uint64_t seed = tools::mix(seed_of_run, ++number);
        const Served made = batched(row, 2, seqlen_q, seqlen_k, bounds, seed);
        INFO(text_of(made, bounds) << ", seed " << seed_of_run);
        CHECK(run(made, seed) == "");
      }
  }
}

}  // namespace fa3::test
