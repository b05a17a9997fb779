// fa3_reference_append against straightforward code: a case first decides where each row goes, and then writes down the
// lengths, page tables or slots that say so. Every byte of the outputs is compared.
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "../call.h"
#include "../formats.h"

namespace fa3::test {
namespace {

using P = fa3_append_params;

enum class Where { caches, chosen_caches, pages, slots };

struct Random {
  std::mt19937 bits;
  int64_t between(int64_t least, int64_t most) {
    return least + int64_t(bits() % uint32_t(most - least + 1));
  }
  bool chance(double p) { return bits() < p * 4294967296.0; }
};

// A tensor in memory of its own: dims but for the last, which is without gaps, in any order, with gaps of 16 elements.
struct Strided {
  fa3_tensor t;
  Buffer memory;

  Strided(Random& random, int32_t dtype, const std::vector<int64_t>& dims, bool columns = true)
      : t(layout(random, dtype, dims, columns)), memory(extent(t)) {
    t.data = memory.as();
  }
  static fa3_tensor layout(Random& random, int32_t dtype, const std::vector<int64_t>& dims, bool columns) {
    fa3_tensor t{nullptr, dtype, int32_t(dims.size()), {}, {}};
    std::vector<int> order(dims.size() - columns);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.bits);
    int64_t next = columns ? (dims.back() + 15) / 16 * 16 : 1;
    std::copy(dims.begin(), dims.end(), t.dim);
    if (columns) t.stride[dims.size() - 1] = 1;
    for (const int i : order) {
      t.stride[i] = next;
      next = next * std::max<int64_t>(dims[size_t(i)], 1) + 16 * random.between(0, 1);
    }
    return t;
  }
  static size_t extent(const fa3_tensor& t) {
    int64_t last = 0;
    for (int i = 0; i < t.rank; ++i) last += std::max<int64_t>(t.dim[i] - 1, 0) * t.stride[i];
    return size_t((last + 17) * element_size(t.dtype));
  }
};

template <class T>
fa3_tensor numbers(std::vector<T>& v) {
  return tensor(v.data(), sizeof(T) == 8 ? FA3_DTYPE_INT64 : FA3_DTYPE_INT32, {int64_t(v.size())});
}

// A new row: where it lies, of which sequence it is, and what becomes of it. cache or position below 0: it has none.
struct Row {
  int64_t batch, row, sequence, cache, cache_row, position;
  bool used;
};

struct Case {
  Random random;
  Where where;
  bool packed, rotates, interleaved, has_q, has_v;
  int64_t heads, heads_kv, d, dv, rotary_dim = 0, caches = 0, cache_rows = 0, angles = 40;
  int32_t dtype, k_out, v_out, q_out;
  std::vector<Row> rows;
  std::vector<int32_t> cu, used, before, index, table, slots_32, positions_32;
  std::vector<int64_t> slots_64, positions_64, count;
  int64_t table_columns = 0;
  bool wide_slots, wide_positions, gives_positions;

  explicit Case(unsigned seed) : random{std::mt19937(seed)} {
    where = Where(random.between(0, 3));
    packed = where == Where::slots || random.chance(0.5);
    rotates = random.chance(0.6), interleaved = random.chance(0.5), has_q = random.chance(0.6);
    has_v = random.chance(0.8);
    heads_kv = random.between(1, 3), heads = heads_kv * random.between(1, 3);
    dtype = random.chance(0.5) ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
    const auto out = [&] { return random.chance(0.4) ? int32_t(FA3_DTYPE_E4M3) : dtype; };
    k_out = out(), v_out = out(), q_out = out();
    d = 16 * random.between(1, 5), dv = 16 * random.between(1, 5);
    if (k_out == dtype && q_out == dtype && random.chance(0.5)) d -= 8;
    if (v_out == dtype && random.chance(0.5)) dv -= 8;
    if (rotates) rotary_dim = 16 * random.between(0, d / 16);
    wide_slots = random.chance(0.5), wide_positions = random.chance(0.5);
    gives_positions = rotates && (where == Where::slots || random.chance(0.5));
    if (where == Where::slots) make_slots();
    else make_sequences();
  }

  void make_slots() {
    caches = random.between(1, 9), cache_rows = random.between(1, 20);
    std::vector<int64_t> all(size_t(caches * cache_rows));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random.bits);
    const int64_t total = random.between(0, std::min<int64_t>(int64_t(all.size()), 30));
    for (int64_t n = 0; n < total; ++n) {
      int64_t slot = all[size_t(n)];
      if (random.chance(0.1)) slot = random.chance(0.5) ? -1 - slot : caches * cache_rows + slot;
      const bool there = slot >= 0 && slot < caches * cache_rows;
      const int64_t position = rotates ? random.between(-1, angles) : 0;
      rows.push_back({0, n, 0, there ? slot / cache_rows : -1, slot % cache_rows, position, true});
      slots_32.push_back(int32_t(slot)), slots_64.push_back(slot);
      positions_32.push_back(int32_t(position)), positions_64.push_back(position);
    }
  }

  void make_sequences() {
    const int64_t batch = random.between(1, 4), each = random.between(0, 9);
    cache_rows = where == Where::pages ? random.between(1, 7) : random.between(1, 30);
    table_columns = where == Where::pages ? random.between(0, 30 / cache_rows) : 0;
    caches = where == Where::caches ? batch : batch * std::max<int64_t>(table_columns, 1) + random.between(0, 3);
    std::vector<int32_t> all(static_cast<size_t>(caches));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random.bits);
    const auto take = [&] {
      if (random.chance(0.1)) return random.chance(0.5) ? int32_t(caches) : random.chance(0.5) ? -1 : INT_MIN;
      const int32_t last = all.back();
      all.pop_back();
      return last;
    };
    const bool gives_used = random.chance(0.4);
    int64_t next = packed ? random.between(0, 2) : 0;  // rows of no sequence come first
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t n = packed ? random.between(0, 9) : each, start = random.between(-3, 30);
      const int64_t first = random.between(0, angles);
      cu.push_back(int32_t(next)), before.push_back(int32_t(start));
      used.push_back(int32_t(random.between(-1, 11)));
      positions_32.push_back(int32_t(first)), positions_64.push_back(first);
      index.push_back(where == Where::chosen_caches ? take() : int32_t(b));
      for (int64_t i = 0; i < table_columns; ++i) table.push_back(take());
      for (int64_t i = 0; i < n; ++i) {
        const int64_t key = start + i;
        int64_t cache = index.back(), row = key;
        if (where == Where::pages) {
          const int64_t page = key / cache_rows;
          cache = key >= 0 && page < table_columns ? table[size_t(b * table_columns + page)] : -1;
          row = key % cache_rows;
        }
        if (key < 0 || row >= cache_rows || cache >= caches) cache = -1;
        rows.push_back({packed ? 0 : b, packed ? next + i : i, b, cache, row, gives_positions ? first + i : key,
                        !gives_used || i < used.back()});
      }
      next += n;
    }
    cu.push_back(int32_t(next));
    count = {batch, packed ? next + random.between(0, 2) : each};
    if (!gives_used) used.clear();
  }

  std::vector<int64_t> dims(int64_t n, int64_t columns) {
    if (where == Where::slots) return {int64_t(rows.size()), n, columns};
    if (packed) return {count[1], n, columns};
    return {count[0], count[1], n, columns};
  }
};

int64_t place(const fa3_tensor& t, int64_t a, int64_t row, int64_t head) {
  return t.rank == 3 ? row * t.stride[0] + head * t.stride[1]
                     : a * t.stride[0] + row * t.stride[1] + head * t.stride[2];
}

long double column_of(const Case& c, const uint16_t* x, const fa3_tensor& cos, const fa3_tensor& sin, int64_t position,
                      int64_t column) {
  const auto value = [&](int64_t i) { return value_of(x[i], c.dtype); };
  const int64_t half = c.rotary_dim / 2;
  const bool second = c.interleaved ? column % 2 : column >= half;
  const int64_t pair = c.interleaved ? column / 2 : column % half, other = c.interleaved ? column ^ 1
                                                                 : second ? column - half : column + half;
  const auto of = [&](const fa3_tensor& t) {
    return (long double)(static_cast<const float*>(t.data)[position * t.stride[0] + pair]);
  };
  return second ? value(other) * of(sin) + value(column) * of(cos) : value(column) * of(cos) - value(other) * of(sin);
}

void check(unsigned seed) {
  Case c(seed);
  Random& random = c.random;
  INFO("seed " << seed << ", " << c.rows.size() << " rows, where " << int(c.where) << ", packed " << c.packed);
  std::normal_distribution<float> normal;
  Strided k(random, c.dtype, c.dims(c.heads_kv, c.d)), v(random, c.dtype, c.dims(c.heads_kv, c.dv));
  Strided q(random, c.dtype, c.dims(c.heads, c.d)), q_out(random, c.q_out, c.dims(c.heads, c.d));
  Strided k_cache(random, c.k_out, {c.caches, c.cache_rows, c.heads_kv, c.d});
  Strided v_cache(random, c.v_out, {c.caches, c.cache_rows, c.heads_kv, c.dv});
  Strided cos(random, FA3_DTYPE_FP32, {c.angles, c.rotary_dim / 2}), sin(random, FA3_DTYPE_FP32,
                                                                         {c.angles, c.rotary_dim / 2});
  for (Strided* s : {&k, &v, &q})
    for (size_t i = 0; i < s->memory.bytes() / 2; ++i)
      s->memory.as<uint16_t>()[i] = nearest(normal(random.bits), c.dtype);
  for (Strided* s : {&cos, &sin})
    for (size_t i = 0; i < s->memory.bytes() / 4; ++i) s->memory.as<float>()[i] = normal(random.bits);
  const int64_t batch = c.where == Where::slots ? 1 : c.count[0];
  const auto scale = [&](int64_t heads) {
    return Strided(random, FA3_DTYPE_FP32, {random.chance(0.5) ? 1 : batch, random.chance(0.5) ? 1 : heads, 1}, false);
  };
  Strided k_scale = scale(c.heads_kv), v_scale = scale(c.heads_kv), q_scale = scale(c.heads);
  for (Strided* s : {&k_scale, &v_scale, &q_scale})
    for (size_t i = 0; i < s->memory.bytes() / 4; ++i)
      s->memory.as<float>()[i] = std::exp2(normal(random.bits) - 5);

  P p = FA3_APPEND_PARAMS_INIT;
  p.flags = c.interleaved ? FA3_APPEND_ROTARY_INTERLEAVED : 0;
  p.k = k.t, p.k_cache = k_cache.t;
  if (c.has_v) p.v = v.t, p.v_cache = v_cache.t;
  const bool in_place = c.has_q && c.q_out == c.dtype && random.chance(0.3);
  const std::vector<uint16_t> q_before(q.memory.as<uint16_t>(), q.memory.as<uint16_t>() + q.memory.bytes() / 2);
  if (c.has_q) p.q = q.t, p.q_out = in_place ? q.t : q_out.t;
  if (c.k_out == FA3_DTYPE_E4M3) p.k_scale = k_scale.t;
  if (c.has_v && c.v_out == FA3_DTYPE_E4M3) p.v_scale = v_scale.t;
  if (c.has_q && c.q_out == FA3_DTYPE_E4M3) p.q_scale = q_scale.t;
  if (c.rotates) p.rotary_cos = cos.t, p.rotary_sin = sin.t;
  if (c.gives_positions) p.rotary_positions = c.wide_positions ? numbers(c.positions_64) : numbers(c.positions_32);
  if (c.where == Where::slots) {
    p.slot_mapping = c.wide_slots ? numbers(c.slots_64) : numbers(c.slots_32);
  } else {
    p.cache_seqlens = numbers(c.before);
    if (c.packed) p.cu_seqlens_new = numbers(c.cu);
    if (!c.used.empty()) p.seqused_new = numbers(c.used);
    if (c.where == Where::chosen_caches) p.cache_batch_idx = numbers(c.index);
    if (c.where == Where::pages) p.page_table = tensor(c.table.data(), FA3_DTYPE_INT32, {batch, c.table_columns});
  }

  // What must come out, from images of what was there before.
  struct Output {
    fa3_tensor x, y, scale;
    std::vector<unsigned char> image;
    Buffer* memory;
    bool rotated, in_cache;
  };
  std::vector<Output> outputs;
  const auto add = [&](const fa3_tensor& x, const fa3_tensor& y, const fa3_tensor& of, Buffer& memory, bool rotated,
                       bool in_cache) {
    if (x.rank == 0) return;
    const auto* const bytes = memory.as<unsigned char>();
    outputs.push_back({x, y, of, {bytes, bytes + memory.bytes()}, &memory, rotated, in_cache});
  };
  add(p.k, p.k_cache, p.k_scale, k_cache.memory, true, true);
  add(p.v, p.v_cache, p.v_scale, v_cache.memory, false, true);
  add(p.q, p.q_out, p.q_scale, in_place ? q.memory : q_out.memory, true, false);
  for (const Row& row : c.rows) {
    if (!row.used || (c.rotary_dim > 0 && (row.position < 0 || row.position >= c.angles))) continue;
    for (Output& out : outputs) {
      if (out.in_cache && row.cache < 0) continue;
      const int64_t heads = out.x.dim[out.x.rank - 2], columns = out.x.dim[out.x.rank - 1];
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t from = place(out.x, row.batch, row.row, head);
        const auto* const rows = static_cast<const uint16_t*>(out.x.data);
        const uint16_t* const x = (out.in_cache ? rows : q_before.data()) + from;
        const int64_t to = out.in_cache ? place(out.y, row.cache, row.cache_row, head)
                                        : place(out.y, row.batch, row.row, head);
        for (int64_t column = 0; column < columns; ++column) {
          const bool turns = out.rotated && column < c.rotary_dim;
          const long double value =
              turns ? column_of(c, x, cos.t, sin.t, row.position, column) : value_of(x[column], c.dtype);
          unsigned char* const at = out.image.data() + element_size(out.y.dtype) * (to + column);
          if (out.y.dtype == FA3_DTYPE_E4M3) {
            const int64_t n = out.scale.dim[0] == 1 ? 0 : row.sequence, h = out.scale.dim[1] == 1 ? 0 : head;
            const float divisor =
                static_cast<const float*>(out.scale.data)[n * out.scale.stride[0] + h * out.scale.stride[1]];
            *at = static_cast<unsigned char>(nearest(float(value / divisor), FA3_DTYPE_E4M3));
          } else {
            const uint16_t bits = turns ? nearest(value, c.dtype) : x[column];
            std::memcpy(at, &bits, 2);
          }
        }
      }
    }
  }
  const fa3_status status = fa3_reference_append(&p);
  INFO(fa3_last_error_message());
  REQUIRE(status == FA3_OK);
  for (const Output& out : outputs) {
    const auto* const bytes = out.memory->as<unsigned char>();
    const auto wrong = std::mismatch(out.image.begin(), out.image.end(), bytes).first - out.image.begin();
    INFO("output " << &out - outputs.data() << ", byte " << wrong << " of " << out.image.size());
    CHECK(size_t(wrong) == out.image.size());
  }
  if (!in_place) CHECK(std::memcmp(q_before.data(), q.memory.as(), q.memory.bytes()) == 0);
}

// One row of one head of 16 columns.
struct Small {
  alignas(16) uint16_t k[16] = {}, k_cache[2][16] = {}, q[16] = {};
  alignas(16) float cos[2][8], sin[2][8];
  alignas(16) uint8_t e4m3[2][16] = {};
  float scale = 1;
  int32_t before[1] = {0};
  P p = FA3_APPEND_PARAMS_INIT;

  Small() {
    std::fill_n(&cos[0][0], 16, 1.f), std::fill_n(&sin[0][0], 16, 0.f);
    p.k = tensor(k, FA3_DTYPE_BF16, {1, 1, 1, 16}), p.k_cache = tensor(k_cache, FA3_DTYPE_BF16, {1, 2, 1, 16});
    p.cache_seqlens = tensor(before, FA3_DTYPE_INT32, {1});
  }
  Small(const Small&) = delete;
  void to_e4m3() {
    p.k_cache = tensor(e4m3, FA3_DTYPE_E4M3, {1, 2, 1, 16}), p.k_scale = tensor(&scale, FA3_DTYPE_FP32, {1, 1, 1});
  }
  void rotate() {
    p.rotary_cos = tensor(cos, FA3_DTYPE_FP32, {2, 8}), p.rotary_sin = tensor(sin, FA3_DTYPE_FP32, {2, 8});
  }
  void run() {
    INFO(fa3_last_error_message());
    REQUIRE(fa3_reference_append(&p) == FA3_OK);
  }
};

}  // namespace

TEST_CASE("append: the reference is the header's words", "[append]") {
  for (unsigned seed = 1; seed <= 1500; ++seed) check(seed);
}

TEST_CASE("append: bits of what is not rotated stay, NaN's too", "[append]") {
  Small small;
  for (int i = 0; i < 16; ++i) small.k[i] = uint16_t(0x7f81 + 0x8007 * i);
  small.run();
  CHECK(std::memcmp(small.k, small.k_cache[0], 32) == 0);
  CHECK(small.k_cache[1][0] == 0);
}

TEST_CASE("append: e4m3 is saturated, and rounded to even", "[append]") {
  Small small;
  small.to_e4m3();
  small.scale = 0.5f;
  // 224 becomes 448, and so does all beyond; 17 is between 16 and 18, and 17.5 above that; NaN stays NaN.
  const uint16_t x[16] = {0x4360, 0x4380, 0x7f80, 0xff80, 0x7fc0, 0xffff, 0x4108, 0x410c,
                          0x8000, 0x0001, 0xc360, 0xc400, 0x3f00, 0x3a80, 0x3a00, 0x3980};
  const uint8_t y[16] = {0x7e, 0x7e, 0x7e, 0xfe, 0x7f, 0x7f, 0x58, 0x59,
                         0x80, 0x00, 0xfe, 0xfe, 0x38, 0x01, 0x00, 0x00};
  std::copy_n(x, 16, small.k);
  small.run();
  for (int i = 0; i < 16; ++i) CHECK(int(small.e4m3[0][i]) == int(y[i]));
  CHECK(small.e4m3[1][0] == 0);
}

// Quotients next to the middle of two numbers of e4m3, which become that middle, and then the even one of the two.
TEST_CASE("append: a quotient is rounded to float32 first", "[append]") {
  Small small;
  small.to_e4m3();
  int differ = 0;
  for (int x = 1; x < 256; ++x)
    for (int middle = 17; middle < 32; middle += 2) {
      small.scale = float(x) / float(middle);
      small.k[0] = nearest(x, FA3_DTYPE_BF16);
      small.run();
      const uint16_t expected = nearest(float(x) / small.scale, FA3_DTYPE_E4M3);
      CHECK(int(small.e4m3[0][0]) == int(expected));
      differ += expected != nearest((long double)x / small.scale, FA3_DTYPE_E4M3);
    }
  CHECK(differ > 100);
}

TEST_CASE("append: q is written wherever k goes, but not without a position", "[append]") {
  Small small;
  alignas(16) uint16_t q_out[16] = {};
  small.rotate();
  small.k[0] = 0x3f80, small.q[0] = 0x4000;
  small.p.q = tensor(small.q, FA3_DTYPE_BF16, {1, 1, 1, 16});
  small.p.q_out = tensor(q_out, FA3_DTYPE_BF16, {1, 1, 1, 16});
  int64_t position[1] = {1};
  small.p.rotary_positions = tensor(position, FA3_DTYPE_INT64, {1});
  small.before[0] = 2;  // beyond the cache
  small.run();
  CHECK((q_out[0] == 0x4000 && small.k_cache[0][0] == 0 && small.k_cache[1][0] == 0));
  q_out[0] = 0;
  small.before[0] = 1;
  for (const int64_t none : {int64_t{2}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    position[0] = none;
    small.run();
    CHECK((q_out[0] == 0 && small.k_cache[1][0] == 0));
  }
  position[0] = 0;
  small.run();
  CHECK((q_out[0] == 0x4000 && small.k_cache[1][0] == 0x3f80));
}

// Of wrong numbers rows may be left out or go elsewhere, but to nobody else's memory.
TEST_CASE("append: whatever stands in lengths and tables, nothing else is written", "[append]") {
  std::mt19937 random(3);
  const auto any = [&]() -> int32_t {
    switch (random() % 6) {
      case 0: return int32_t(random());
      case 1: return INT_MAX - int32_t(random() % 3);
      case 2: return INT_MIN + int32_t(random() % 3);
      case 3: return -int32_t(random() % 5);
      default: return int32_t(random() % 12);
    }
  };
  for (int n = 0; n < 3000; ++n) {
    // Three sequences, packed or of two rows each; of pages of three keys, or caches of six.
    const bool packed = random() % 2, slots = packed && random() % 3 == 0, pages = random() % 2, rotates = random() % 2;
    Buffer k(6 * 16 * 2), cache(5 * 6 * 16 * 2);
    std::memset(k.as(), 0x11, k.bytes());
    std::vector<int32_t> cu(4), before(3), used(3), table(6), index(3), slot(6), position(6);
    for (auto* v : {&cu, &before, &used, &table, &index, &slot, &position})
      for (int32_t& x : *v) x = any();
    alignas(16) float cos[4][8], sin[4][8] = {};
    std::fill_n(&cos[0][0], 32, 1.f);
    P p = FA3_APPEND_PARAMS_INIT;
    p.k = packed ? tensor(k.as(), FA3_DTYPE_BF16, {6, 1, 16}) : tensor(k.as(), FA3_DTYPE_BF16, {3, 2, 1, 16});
    p.k_cache = tensor(cache.as(), FA3_DTYPE_BF16, {pages && !slots ? 10 : 5, pages && !slots ? 3 : 6, 1, 16});
    if (slots) {
      p.slot_mapping = numbers(slot);
    } else {
      p.cache_seqlens = numbers(before);
      if (packed) p.cu_seqlens_new = numbers(cu);
      if (random() % 2) p.seqused_new = numbers(used);
      if (pages) p.page_table = tensor(table.data(), FA3_DTYPE_INT32, {3, 2});
      else p.cache_batch_idx = numbers(index);
    }
    if (rotates) {
      p.rotary_cos = tensor(cos, FA3_DTYPE_FP32, {4, 8}), p.rotary_sin = tensor(sin, FA3_DTYPE_FP32, {4, 8});
      if (!slots) position.resize(3);
      p.rotary_positions = numbers(position);
    }
    const fa3_status status = fa3_reference_append(&p);
    INFO(n << ": " << fa3_last_error_message());
    REQUIRE(status == FA3_OK);
    // Rows are of one pattern: an element is that or as before.
    const auto* const bytes = cache.as<unsigned char>();
    for (size_t i = 0; i < cache.bytes(); i += 32)
      for (size_t x = 1; x < 32; ++x) REQUIRE(bytes[i + x] == bytes[i]);
    for (size_t i = 0; i < cache.bytes(); ++i) REQUIRE((bytes[i] == 0x11 || bytes[i] == poison));
    for (size_t i = cache.bytes(); i < cache.bytes() + 64; ++i) REQUIRE(bytes[i] == poison);
  }
}

}  // namespace fa3::test
