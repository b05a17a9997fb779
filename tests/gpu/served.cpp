// Sequences with lengths of their own, and windows, which no call reaches yet: the rows of served.def, run by name. A
// case lays its sequences into packed tensors with NaN between them, one sequence that is all NaN among them, writes the
// list of pieces that a planner would write, and compares with float64.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/cubins.h"
#include "device/driver.h"
#include "device/enqueue.h"
#undef FA3_DRIVER_FUNCTIONS  // the tests have a list of their own
#include "gpu.h"
#include "half.h"
#include "memory.h"
#include "oracle.h"
#include "params.h"
#include "random.h"
#include "device/tensor_map.h"

namespace fa3::test {
namespace {

using tools::DeviceBuffer, tools::Random;

using namespace table;
constexpr ForwardRow served_rows[] = {
#include "served.def"
};
static_assert(std::all_of(std::begin(served_rows), std::end(served_rows),
                          [](const ForwardRow& row) { return row.valid(); }));

// What rows see: left and right of the diagonal that ends in the last row and the last key; or no_bound.
struct Bounds {
  int32_t left, right;

  // Counted from the diagonal that begins in the first row and the first key, as Sequence does.
  int32_t left_of(int32_t diagonal) const { return left == no_bound ? no_bound : left - diagonal; }
  int32_t right_of(int32_t diagonal) const { return right == no_bound ? no_bound : right + diagonal; }
};

// A problem of this file: sequences in packed tensors, or a batch of equal ones.
struct Served {
  const ForwardRow& row;
  int heads, heads_kv, head_dim;
  std::vector<Sequence> sequences;
  std::vector<bool> poisoned;  // sequences whose inputs are all NaN
  int64_t rows_q = 0, rows_k = 0, batch = 1;
  std::vector<uint16_t> q, k, v, o;  // (batch, rows, heads, head_dim)
  std::vector<float> lse;            // (batch, heads, rows)

  Visible visible(const Sequence& s, Packing packing = {0}) const {
    return visible_of(s, row.bounded_left(), row.bounded_right(), packing);
  }
  int64_t q_at(const Sequence& s, int64_t i, int64_t head) const {
    return ((s.q_batch * rows_q + s.q_row + i) * heads + head) * head_dim;
  }
  int64_t k_at(const Sequence& s, int64_t j, int64_t head) const {
    return ((s.k_batch * rows_k + s.k_row + j) * heads_kv + head) * head_dim;
  }
  int64_t lse_at(const Sequence& s, int64_t i, int64_t head) const {
    return (s.q_batch * heads + head) * rows_q + s.q_row + i;
  }
  float scale() const { return float(1 / std::sqrt(double(head_dim))); }
};

// Inputs of N(0,1) where a sequence has rows, NaN elsewhere, and outputs of poison.
void fill(Served& made, uint64_t seed) {
  const auto poison = [](std::vector<uint16_t>& to, int64_t elements) { to.assign(size_t(elements), poison16); };
  poison(made.q, made.batch * made.rows_q * made.heads * made.head_dim);
  poison(made.k, made.batch * made.rows_k * made.heads_kv * made.head_dim);
  made.v = made.k, made.o = made.q;
  made.lse.assign(size_t(made.batch * made.rows_q * made.heads), std::bit_cast<float>(poison32));
  std::vector<float> numbers(size_t(made.heads * made.head_dim));
  uint64_t row = 0;
  const auto write = [&](std::vector<uint16_t>& to, int64_t at, int heads) {
    tools::normal(seed, row++ * numbers.size(), numbers.data(), numbers.size());
    for (int n = 0; n < heads * made.head_dim; ++n) to[size_t(at + n)] = tools::to_bf16(numbers[size_t(n)]);
  };
  for (size_t n = 0; n < made.sequences.size(); ++n) {
    const Sequence& s = made.sequences[n];
    if (made.poisoned[n]) continue;
    for (int64_t i = 0; i < s.seqlen_q; ++i) write(made.q, made.q_at(s, i, 0), made.heads);
    for (int64_t j = 0; j < s.seqlen_k; ++j) {
      write(made.k, made.k_at(s, j, 0), made.heads_kv);
      write(made.v, made.k_at(s, j, 0), made.heads_kv);
    }
  }
}

// Sequences one after the other, with gaps of a few rows.
Served packed(const ForwardRow& row, const std::vector<std::array<int, 2>>& lengths, Bounds bounds, uint64_t seed) {
  Random random(seed);
  Served made{row, 4, 2, row.d, {}, {}, 0, 0, 1, {}, {}, {}, {}, {}};
  for (const auto& [seqlen_q, seqlen_k] : lengths) {
    const int32_t q_row = int32_t(made.rows_q + random.between(0, 3)), k_row = int32_t(made.rows_k + random.between(0, 3));
    const int32_t diagonal = seqlen_k - seqlen_q;
    made.sequences.push_back(
        {q_row, 0, k_row, 0, seqlen_q, seqlen_k, bounds.left_of(diagonal), bounds.right_of(diagonal)});
    made.poisoned.push_back(random.chance(0.15));
    made.rows_q = q_row + seqlen_q, made.rows_k = k_row + seqlen_k;
  }
  made.rows_q += 1, made.rows_k += 1;
  fill(made, seed);
  return made;
}

// A batch of sequences of the same length.
Served batched(const ForwardRow& row, int batch, int seqlen_q, int seqlen_k, Bounds bounds, uint64_t seed) {
  Served made{row, 4, 2, row.d, {}, {}, seqlen_q, seqlen_k, batch, {}, {}, {}, {}, {}};
  for (int b = 0; b < batch; ++b)
    made.sequences.push_back({0, b, 0, b, seqlen_q, seqlen_k, bounds.left_of(seqlen_k - seqlen_q),
                              bounds.right_of(seqlen_k - seqlen_q)});
  made.poisoned.assign(size_t(batch), false);
  fill(made, seed);
  return made;
}

struct Expectation {
  std::vector<float> o, lse, plain_o, plain_lse;  // where the outputs have valid elements; elsewhere NaN
};

// One row: in float64 from the inputs, and as plain float32 code does it, with P and O rounded to bf16.
void expect_row(const Served& made, const Sequence& s, int64_t i, int head, Expectation& to) {
  const Keys keys = made.visible(s).of(int32_t(i));
  const int64_t at = made.q_at(s, i, head);
  const int head_kv = head / (made.heads / made.heads_kv), d = made.head_dim;
  const auto count = size_t(std::max(keys.end - keys.begin, 0));
  std::vector<double> score(count);
  std::vector<float> plain_score(count);
  const auto number = [](const std::vector<uint16_t>& from, int64_t n) { return tools::from_bf16(from[size_t(n)]); };
  for (size_t j = 0; j < count; ++j) {
    const int64_t key = made.k_at(s, keys.begin + int64_t(j), head_kv);
    double sum = 0;
    float plain = 0;
    for (int c = 0; c < d; ++c) {
      sum += double(number(made.q, at + c)) * number(made.k, key + c);
      plain += number(made.q, at + c) * number(made.k, key + c);
    }
    score[j] = sum * made.scale(), plain_score[j] = plain * made.scale();
  }
  double m = -INFINITY, l = 0;
  float plain_l = 0;
  for (const double x : score) m = std::max(m, x);
  for (size_t j = 0; j < count; ++j) {
    score[j] = std::exp(score[j] - m), l += score[j];
    const float p = std::exp(plain_score[j] - float(m));
    plain_l += p, plain_score[j] = tools::from_bf16(tools::to_bf16(p));
  }
  const int64_t row = made.lse_at(s, i, head);
  to.lse[size_t(row)] = count ? float(m + std::log(l)) : -INFINITY;
  to.plain_lse[size_t(row)] = count ? float(m) + std::log(plain_l) : -INFINITY;
  std::vector<double> o(static_cast<size_t>(d));
  std::vector<float> plain_o(static_cast<size_t>(d));
  for (size_t j = 0; j < count; ++j) {
    const int64_t key = made.k_at(s, keys.begin + int64_t(j), head_kv);
    for (int c = 0; c < d; ++c) {
      o[size_t(c)] += score[j] * number(made.v, key + c);
      plain_o[size_t(c)] += plain_score[j] * number(made.v, key + c);
    }
  }
  for (int c = 0; c < d; ++c) {
    to.o[size_t(at + c)] = count ? float(o[size_t(c)] / l) : 0.f;
    to.plain_o[size_t(at + c)] = count ? tools::from_bf16(tools::to_bf16(plain_o[size_t(c)] / plain_l)) : 0.f;
  }
}

Expectation expect(const Served& made) {
  Expectation to;
  to.o.assign(made.o.size(), NAN), to.plain_o = to.o;
  to.lse.assign(made.lse.size(), NAN), to.plain_lse = to.lse;
  std::vector<std::thread> threads;
  const int workers = int(std::max(1u, std::thread::hardware_concurrency()));
  for (int worker = 0; worker < workers; ++worker)
    threads.emplace_back([&, worker] {
      int64_t number = 0;
      for (size_t n = 0; n < made.sequences.size(); ++n)
        for (int64_t i = 0; !made.poisoned[n] && i < made.sequences[n].seqlen_q; ++i)
          for (int head = 0; head < made.heads; ++head)
            if (number++ % workers == worker) expect_row(made, made.sequences[n], i, head, to);
    });
  for (std::thread& thread : threads) thread.join();
  return to;
}

// "", or what is wrong: beside valid elements every byte is as it was, rows without keys are exactly 0 and -inf, and the
// errors are at most 1.25 times those of plain code, with oracle.h's room for luck in few elements.
std::string verify(const Served& made, const Expectation& expected) {
  std::vector<bool> of_poisoned(made.lse.size());
  for (size_t n = 0; n < made.sequences.size(); ++n)
    for (int64_t i = 0; made.poisoned[n] && i < made.sequences[n].seqlen_q; ++i)
      for (int head = 0; head < made.heads; ++head) of_poisoned[size_t(made.lse_at(made.sequences[n], i, head))] = true;
  std::vector<float> o, o_right, o_plain, lse, lse_right, lse_plain;
  for (int64_t b = 0; b < made.batch; ++b)
    for (int64_t i = 0; i < made.rows_q; ++i)
      for (int head = 0; head < made.heads; ++head) {
        const auto row = size_t((b * made.heads + head) * made.rows_q + i);
        const auto at = size_t(((b * made.rows_q + i) * made.heads + head) * made.head_dim);
        const std::string where =
            " of batch " + std::to_string(b) + " row " + std::to_string(i) + " head " + std::to_string(head);
        if (of_poisoned[row]) continue;
        if (std::isnan(expected.lse[row])) {  // of no sequence
          if (std::bit_cast<uint32_t>(made.lse[row]) != poison32) return "lse" + where + " was overwritten";
          for (int c = 0; c < made.head_dim; ++c)
            if (made.o[at + size_t(c)] != poison16) return "o" + where + " was overwritten";
          continue;
        }
        const bool empty = expected.lse[row] == -INFINITY;
        if (empty ? made.lse[row] != -INFINITY : !std::isfinite(made.lse[row])) return "lse" + where + " is wrong";
        if (!empty) {
          lse.push_back(made.lse[row]), lse_right.push_back(expected.lse[row]);
          lse_plain.push_back(expected.plain_lse[row]);
        }
        for (int c = 0; c < made.head_dim; ++c) {
          const float x = tools::from_bf16(made.o[at + size_t(c)]);
          if (empty ? x != 0 : !std::isfinite(x)) return "o" + where + " is " + std::to_string(x);
          o.push_back(x), o_right.push_back(expected.o[at + size_t(c)]);
          o_plain.push_back(expected.plain_o[at + size_t(c)]);
        }
      }
  const auto compare = [](const char* what, const std::vector<float>& ours, const std::vector<float>& right,
                          const std::vector<float>& plain, double floor) -> std::string {
    const Errors error = errors(ours, right), of_plain = errors(plain, right);
    if (error.rms <= 1.25 * of_plain.rms + floor * error.size_rms / 20 &&
        error.max <= 1.25 * of_plain.max + 2 * floor * error.size_max)
      return "";
    return std::string(what) + ": errors " + std::to_string(error.rms) + " and " + std::to_string(error.max) +
           ", of plain code " + std::to_string(of_plain.rms) + " and " + std::to_string(of_plain.max);
  };
  if (const std::string bad = compare("o", o, o_right, o_plain, 0x1p-8); !bad.empty()) return bad;
  return compare("lse", lse, lse_right, lse_plain, 0x1p-17);
}

// What a planner makes: for each tile of each sequence a piece, or parts of a few grains, in any order.
struct List {
  std::vector<Planned> planned;
  int32_t slots = 0, grain = 1;
};
List plan(const Served& made, Packing packing, Random& random) {
  List list;
  list.grain = int32_t(random.between(1, 3));
  for (size_t n = 0; n < made.sequences.size(); ++n) {
    const Sequence& s = made.sequences[n];
    const Visible seen = made.visible(s, packing);
    for (int32_t q_block = 0; q_block * made.row.Br < seen.rows(); ++q_block) {
      const Blocks blocks = tile_blocks(seen, q_block * made.row.Br, made.row.Br, made.row.Bc);
      const int32_t begin = blocks.begin / list.grain, count = (blocks.end + list.grain - 1) / list.grain - begin;
      const int32_t parts = count > 1 && random.chance(0.5) ? int32_t(random.between(2, std::min(count, 5))) : 1;
      for (int32_t part = 0; part < parts; ++part)
        list.planned.push_back({int32_t(n), q_block, list.slots, uint16_t(begin + count * part / parts),
                                uint16_t(begin + count * (part + 1) / parts), uint16_t(part), uint16_t(parts)});
      if (parts > 1) list.slots += parts;
    }
  }
  for (size_t n = list.planned.size(); n > 1; --n)
    std::swap(list.planned[n - 1], list.planned[size_t(random.between(0, int64_t(n) - 1))]);
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

fa3::View view_of(const DeviceBuffer& buffer, int64_t batch, int64_t rows, int64_t heads, int64_t head_dim) {
  return {buffer.at(0), FA3_DTYPE_BF16, {batch, rows, heads, head_dim}, {rows * heads * head_dim, heads * head_dim,
          head_dim, 1}};
}

void encode_maps(const Driver& driver, const Served& made, const fa3::View& q, const fa3::View& k, const fa3::View& v,
                 const fa3::View& o, PlannedForwardParams& p) {
  const ForwardRow& row = made.row;
  const auto must = [](fa3_status status) { REQUIRE(status == FA3_OK); };
  const bool packs = row.packs_heads();
  must(packs ? encode_packed(driver, "q", q, row, made.heads_kv, p.q) : encode(driver, "q", q, row, q_box_rows, p.q));
  must(encode(driver, "k", k, row, row.Bc, p.k));
  must(encode(driver, "v", v, row, row.Bc, p.v));
  must(encode(driver, "o", o, row, o_box_rows, p.o));
  for (int box = 0; box < PlannedForwardParams::v_boxes; ++box)
    must(encode(driver, "v", v, row, 1 << box, p.v_rows[box]));
  for (int box = 0; box < PlannedForwardParams::o_boxes; ++box)
    must(encode(driver, "o", o, row, 1 << box, p.o_rows[box]));
}

// Runs the case on its row, three times with other leftovers in the workspace. "", or what is wrong.
std::string run(Served made, uint64_t seed) {
  const ForwardRow& row = made.row;
  const tools::Stream& stream = gpu().stream;
  const Driver* driver;
  REQUIRE(get_driver(driver) == FA3_OK);
  const Expectation expected = expect(made);
  Random random(seed + 1);
  const bool packs = row.packs_heads(), own = row.has(Trait::own_lengths);
  const Packing packing = packs ? Packing::of(made.heads / made.heads_kv) : Packing{0};
  const int32_t heads = packs ? made.heads_kv : made.heads;
  const List list = own ? plan(made, packing, random) : List{};

  const DeviceBuffer q = on_device(made.q), k = on_device(made.k), v = on_device(made.v);
  const DeviceBuffer o(made.o.size() * 2), lse(made.lse.size() * 4);
  const DeviceBuffer sequences = on_device(made.sequences), planned = on_device(list.planned);
  const DeviceBuffer counts = on_device(std::vector{PlannedCounts{int32_t(list.planned.size()), list.slots}});
  int32_t most_rows = 0;
  for (const Sequence& s : made.sequences) most_rows = std::max(most_rows, int32_t(packing.rows(s.seqlen_q)));
  const size_t tickets_bytes =
      (size_t(list.slots / 2) * size_t(heads * row.warpgroups()) * sizeof(Tickets) + 63) / 64 * 64;
  const size_t slot_bytes = packs ? size_t(Packing::slot_rows(most_rows, row.Br) * row.packed_row_bytes())
                                  : size_t(row.Br / 16 * row.partial_bytes());
  const DeviceBuffer workspace(256 + tickets_bytes + size_t(list.slots * heads) * slot_bytes);

  union {
    PlannedForwardParams own;
    ListedForwardParams listed;
  } params;
  std::memset(static_cast<void*>(&params), 0, sizeof params);
  PlannedForwardParams& p = params.own;
  encode_maps(*driver, made, view_of(q, made.batch, made.rows_q, made.heads, made.head_dim),
              view_of(k, made.batch, made.rows_k, made.heads_kv, made.head_dim),
              view_of(v, made.batch, made.rows_k, made.heads_kv, made.head_dim),
              view_of(o, made.batch, made.rows_q, made.heads, made.head_dim), p);
  const int64_t row_stride = made.heads * made.head_dim;
  p.output = {o.at(0), made.rows_q * row_stride, made.head_dim, row_stride, static_cast<float*>(lse.at(0)),
              made.heads * made.rows_q, made.rows_q, 1, made.head_dim, row.dtype};
  p.workspace = static_cast<Workspace*>(workspace.at(0));
  p.tickets = static_cast<Tickets*>(workspace.at(256));
  p.partials = workspace.at(256 + tickets_bytes);
  p.heads_per_kv = Divisor::of(made.heads / made.heads_kv);
  p.softmax_scale = made.scale(), p.softmax_scale_log2 = float(double(made.scale()) * 1.4426950408889634);
  p.tiles.heads = Divisor::of(heads);
  int64_t pieces = int64_t(list.planned.size()) * heads;
  if (own) {
    p.visible.seqlen_q = most_rows >> packing.shift, p.visible.packing = packing;
    p.sequences = static_cast<const Sequence*>(sequences.at(0));
    p.planned = static_cast<const Planned*>(planned.at(0));
    p.counts = static_cast<const PlannedCounts*>(counts.at(0));
    p.grain = list.grain;
  } else {
    const int32_t q_blocks = (int32_t(made.rows_q) + row.Br - 1) / row.Br, all = int32_t(made.batch) * heads;
    std::memset(static_cast<void*>(&params.listed.list), 0, sizeof params.listed.list);
    p.visible = made.visible(made.sequences[0]);
    p.tiles = {q_blocks, 0, all, Divisor::of(heads), Divisor::of(all), Divisor::of(all * q_blocks), Divisor::of(all)};
    p.pieces = {all * q_blocks, 0, 0, 1, Divisor::of(1)};
    pieces = all * q_blocks;
  }

  std::vector<uint16_t> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto poisoned_o = std::vector<uint16_t>(made.o.size(), poison16);
    const auto poisoned_lse = std::vector<uint32_t>(made.lse.size(), poison32);
    o.upload(poisoned_o.data(), o.size());
    lse.upload(poisoned_lse.data(), lse.size());
    workspace.fill(static_cast<unsigned char>(random.between(0, 255)));
    const int64_t grid = std::clamp<int64_t>(pieces, 1, random.pick<int64_t>({132, 132, 7}));
    REQUIRE(enqueue(*driver, Row::of(row, 0), load(*driver, row), grid, &params, false, stream.get()) == FA3_OK);
    stream.synchronize();
    o.download(made.o.data(), o.size());
    lse.download(made.lse.data(), lse.size());
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
      const int most_q = row.packs_heads() ? 40 : 420;
      std::vector<std::array<int, 2>> lengths = {
          {1, 1}, {0, 70}, {20, 0}, {row.packs_heads() ? 32 : row.Br, 2 * row.Bc}, {5, 3 * row.Bc + 1}, {30, 7}};
      for (int n = 0; n < 8; ++n)
        lengths.push_back({int(random.between(1, most_q)), int(random.between(1, random.chance(0.5) ? 90 : 600))});
      for (size_t n = lengths.size(); n > 1; --n) std::swap(lengths[n - 1], lengths[size_t(random.between(0, int64_t(n) - 1))]);
      const Served made = packed(row, lengths, bounds, seed);
      INFO(text_of(made, bounds) << ", seed " << seed_of_run);
      CHECK(run(made, seed) == "");
    }
    INFO(row.name << ": no rows at all");
    CHECK(run(packed(row, {{0, 100}, {0, 0}}, bounds_of(row)[0], 1), 1) == "");
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
