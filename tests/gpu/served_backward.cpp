// The backward pass of sequences with lengths of their own, which no call reaches yet: rows of served.def, run by name.
// A case lays its sequences into packed tensors with NaN between them, and some that are all NaN among them, writes
// their list, LSE and D as passes would, and compares with float64.
#include "served_backward.h"

#include <catch2/catch_test_macros.hpp>
#include <algorithm>

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

static_assert(std::all_of(served_backward_rows.begin(), served_backward_rows.end(), [](const BackwardRow& row) {
  return row.valid() && row.has(Trait::own_lengths);
}));

void must(fa3_status status) { REQUIRE(status == FA3_OK); }

CUfunction load(const Driver& driver, const BackwardRow& row) {
  static CUfunction functions[served_backward_rows.size()];  // of the run's only context
  const auto number = size_t(&row - served_backward_rows.data());
  CUfunction& function = functions[number];
  if (function) return function;
  CUmodule module;
  tools::check(driver.module_load_data(&module, fa3_cubins[served_rows.size() + number].data), "cuModuleLoadData");
  tools::check(driver.module_get_function(&function, module, row.name), row.name);
  tools::check(driver.func_set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, row.smem_bytes()),
               "cuFuncSetAttribute");
  return function;
}

template <class T>
DeviceBuffer on_device(const std::vector<T>& from) {
  DeviceBuffer buffer(from.size() * sizeof(T));
  buffer.upload(from.data(), from.size() * sizeof(T));
  return buffer;
}

// A case on the device.
struct Memory {
  DeviceBuffer q, dout, dq, k, v, dk, dv, lse_log2, delta, sequences, claimed;

  explicit Memory(const ServedBackward& made)
      : q(on_device(made.q.all)), dout(on_device(made.dout.all)), dq(on_device(made.dq.all)),
        k(on_device(made.k.all)), v(on_device(made.v.all)), dk(on_device(made.dk.all)), dv(on_device(made.dv.all)),
        lse_log2(on_device(made.lse_log2)), delta(on_device(made.delta)), sequences(on_device(made.sequences)),
        claimed(sizeof(uint32_t)) {}
};

View view_of(const DeviceBuffer& buffer, const PackedTensor& tensor) {
  const int64_t heads = tensor.heads, d = tensor.head_dim, of_row = heads * d;
  return {buffer.at(size_t(tensor.first()) * 2), FA3_DTYPE_BF16, {PackedTensor::entries, tensor.rows, heads, d},
          {tensor.rows * of_row, of_row, d, 1}};
}

// The maps, and what is the same in each run.
PlannedBackwardParams params_of(const Driver& driver, const ServedBackward& made, const Memory& memory) {
  const BackwardRow& row = made.row;
  PlannedBackwardParams p{};
  const auto map = [&](const char* name, const DeviceBuffer& buffer, const PackedTensor& tensor, int rows, Clipped use,
                       TensorMap& to) {
    must(encode_clipped(driver, name, view_of(buffer, tensor), row, rows, use, to));
  };
  map("q", memory.q, made.q, row.Br, Clipped::loads, p.q);
  map("dout", memory.dout, made.dout, row.Br, Clipped::loads, p.dout);
  map("k", memory.k, made.k, row.Bc, Clipped::loads, p.k);
  map("v", memory.v, made.v, row.Bc, Clipped::loads, p.v);
  map("dq", memory.dq, made.dq, 64, Clipped::stores, p.dq);
  map("dk", memory.dk, made.dk, 64, Clipped::stores, p.dk);
  map("dv", memory.dv, made.dv, 64, Clipped::stores, p.dv);
  const int32_t tiles = made.tiles() * (row.Br / backward_tile_rows);
  p.rows.lse_log2 = static_cast<float*>(memory.lse_log2.at(0));
  p.rows.delta = static_cast<float*>(memory.delta.at(0));
  p.rows.tiles = Divisor::of(tiles), p.rows.heads = Divisor::of(made.heads);
  p.rows.tiles_per_visit = row.Br / backward_tile_rows;
  p.heads_per_kv = p.readers = made.heads_per_kv();
  p.softmax_scale = made.scale(), p.softmax_scale_log2 = float(double(made.scale()) * 1.4426950408889634);
  p.order.batch_heads = int32_t(made.sequences.size()) * made.heads_kv, p.order.blocks = 1;
  p.order.heads = Divisor::of(made.heads_kv);
  p.order.parts = p.order.ranges = p.order.share = Divisor::of(1);
  p.order.head_tiles = tiles * p.readers;
  p.order.spread = {31, 0};
  p.order.claimed = static_cast<uint32_t*>(memory.claimed.at(0));
  p.sequences = static_cast<const Sequence*>(memory.sequences.at(0));
  p.entry_rows_q = int32_t(made.q.rows), p.entry_rows_k = int32_t(made.k.rows);
  return p;
}

// What may differ from run to run, and must not be seen in the results: in which order key blocks are taken, and how
// many threads store dQ.
void set_order(KeyOrder& order, Random& random) {
  order.section_heads = int32_t(random.between(1, order.batch_heads));
  order.section = Divisor::of(order.section_heads);
  order.sections = (order.batch_heads + order.section_heads - 1) / order.section_heads;
  order.behind = order.ahead = order.sections;  // no thread block rounds or prepares anything
  order.adders = int32_t(random.between(1, 2));
}

// Runs the case on its row, three times. "", or what is wrong.
std::string run(ServedBackward made, uint64_t seed) {
  const tools::Stream& stream = gpu().stream;
  const Driver* driver;
  must(get_driver(driver));
  Random random(seed + 1);
  const Memory memory(made);
  PlannedBackwardParams params = params_of(*driver, made, memory);
  const ExpectedGradients expected = expect(made);
  const std::pair<PackedTensor*, const DeviceBuffer*> gradients[] = {
      {&made.dq, &memory.dq}, {&made.dk, &memory.dk}, {&made.dv, &memory.dv}};
  const std::array poison = {made.dq.all, made.dk.all, made.dv.all};
  std::array<std::vector<uint16_t>, 3> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (size_t n = 0; n < 3; ++n) gradients[n].second->upload(poison[n].data(), poison[n].size() * 2);
    memory.claimed.fill(0);
    set_order(params.order, random);
    const int64_t grid = std::min<int64_t>(params.order.batch_heads, random.pick<int64_t>({132, 132, 7}));
    must(enqueue(*driver, Row::of(made.row, 0), load(*driver, made.row), grid, &params, false, stream.get()));
    stream.synchronize();
    for (auto& [tensor, buffer] : gradients) buffer->download(tensor->all.data(), tensor->all.size() * 2);
    if (const std::string bad = verify(made, expected); !bad.empty()) return bad;
    for (size_t n = 0; n < 3; ++n)
      if (repeat == 0) first[n] = gradients[n].first->all;
      else if (first[n] != gradients[n].first->all) return "run " + std::to_string(repeat) + " has other bits";
  }
  return "";
}

std::string text_of(const ServedBackward& made, Bounds bounds) {
  std::string text = std::string(made.row.name) + ", " + std::to_string(made.heads) + " heads over " +
                     std::to_string(made.heads_kv) + ", left " + std::to_string(bounds.left) + " right " +
                     std::to_string(bounds.right) + ", (q, k):";
  for (size_t n = 0; n < made.sequences.size(); ++n)
    text += " (" + std::to_string(made.sequences[n].seqlen_q) + ", " + std::to_string(made.sequences[n].seqlen_k) +
            (made.poisoned[n] ? ", NaN)" : ")");
  return text;
}

std::vector<Bounds> bounds_of(const BackwardRow& row) {
  if (!row.bounded_right()) return {{no_bound, no_bound}};
  if (!row.bounded_left()) return {{no_bound, 0}, {no_bound, 5}};
  return {{no_bound, no_bound}, {0, 0}, {17, 0}, {40, 20}, {0, 33}};
}

// Sequences with one query or none, with no keys, with whole tiles and blocks and a row more or less, with tiles that
// see no key under a causal mask; and any.
std::vector<std::array<int, 2>> lengths_for(Random& random) {
  std::vector<std::array<int, 2>> lengths = {{1, 1},    {0, 70},  {20, 0},   {64, 64},  {128, 128}, {65, 63},
                                             {300, 65}, {63, 127}, {200, 64}, {129, 128}, {1, 128}};
  for (int n = 0; n < 5; ++n) lengths.push_back({int(random.between(1, 300)), int(random.between(1, 128))});
  for (size_t n = lengths.size(); n > 1; --n)
    std::swap(lengths[n - 1], lengths[size_t(random.between(0, int64_t(n) - 1))]);
  return lengths;
}

}  // namespace

TEST_CASE("gradients of sequences with lengths of their own", "[served][backward]") {
  gpu();
  const uint64_t seed_of_run = tools::seed_of_run();
  for (const BackwardRow& row : served_backward_rows)
    for (const int heads_kv : {4, 1}) {
      uint64_t number = uint64_t(heads_kv) * 100;
      for (const Bounds bounds : bounds_of(row)) {
        const uint64_t seed = tools::mix(seed_of_run, ++number);
        Random random(seed);
        const ServedBackward made = packed_gradients(row, heads_kv, lengths_for(random), bounds, seed);
        INFO(text_of(made, bounds) << ", seed " << seed_of_run);
        CHECK(run(made, seed) == "");
      }
      INFO(row.name << ": no rows at all");
      CHECK(run(packed_gradients(row, heads_kv, {{0, 100}, {0, 0}}, bounds_of(row)[0], 1), 1) == "");
    }
}

}  // namespace fa3::test
