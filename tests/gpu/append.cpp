// fa3_append on the GPU against the reference on the CPU: rows for caches, pages and slots, packed or not, rotary
// embedding, e4m3, strides, poison around all tensors and in every place that no row goes to, the same bits each time;
// numbers on the device that are wrong; graphs that are replayed with other lengths.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <climits>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "gpu.h"
#include "half.h"
#include "layout.h"
#include "placed.h"
#include "random.h"

namespace fa3::test {
namespace {

using tools::Layout;

enum class Where { caches, chosen_caches, pages, slots };

struct Appending {
  Where where = Where::pages;
  bool packed = true;
  fa3_dtype dtype = FA3_DTYPE_BF16, k_out = FA3_DTYPE_BF16, v_out = FA3_DTYPE_BF16, q_out = FA3_DTYPE_BF16;
  int64_t batch = 3, rows = 20;  // rows: of a sequence; packed from 0 to twice as many
  int64_t heads = 8, heads_kv = 2, d = 128, dv = 128;  // heads 0: no q; heads_kv 0: no k; dv 0: no v
  int64_t rotary_dim = 0, page_size = 16;
  bool interleaved = false, positions = false, used = false, in_place = false, padded = false, wide = false;
  bool wrong = false;     // any numbers as lengths, pages and the like
  bool extremes = false;  // elements that are not finite, or too large for e4m3
  bool middles = false;   // quotients next to the middle of two numbers of e4m3
  int scales = 0;      // bit 0: of each sequence, bit 1: of each head
  uint64_t seed = 0;

  std::string describe() const {
    const char* const places[] = {"caches", "chosen caches", "pages", "slots"};
    const auto n = [](int64_t x) { return std::to_string(x); };
    return std::string(tools::dtype_name(dtype)) + " to " + tools::dtype_name(k_out) + ", " +
           tools::dtype_name(v_out) + ", " + tools::dtype_name(q_out) + ", " + places[int(where)] +
           (packed ? ", packed" : "") + ", " + n(batch) + " x " + n(rows) + ", heads " + n(heads) + " and " +
           n(heads_kv) + ", d " + n(d) + " and " + n(dv) + ", rotary " + n(rotary_dim) +
           (interleaved ? " interleaved" : "") + (positions ? ", positions" : "") + ", pages of " + n(page_size) +
           (used ? ", used" : "") + (in_place ? ", in place" : "") + (padded ? ", padded" : "") +
           (wide ? ", 64 bits" : "") + (wrong ? ", wrong" : "") + (extremes ? ", extremes" : "") + (middles ? ", middles" : "") + ", scales " + n(scales) + ", seed " + n(int64_t(seed));
  }
};

class AppendCase {
 public:
  explicit AppendCase(const Appending& chosen) : a(chosen), random_(tools::mix(chosen.seed, 1)) {
    if (a.where == Where::slots) a.packed = true;
    make_sequences();
    const bool alone = a.where == Where::slots;
    if (a.heads_kv > 0) {
      k = place_rows(a.heads_kv, a.d, a.dtype);
      k_cache = place({caches_, cache_rows_, a.heads_kv, a.d}, a.k_out, true);
      if (a.k_out == FA3_DTYPE_E4M3) k_scale = place_scale(a.heads_kv);
      if (a.dv > 0) {
        v = place_rows(a.heads_kv, a.dv, a.dtype);
        v_cache = place({caches_, cache_rows_, a.heads_kv, a.dv}, a.v_out, true);
        if (a.v_out == FA3_DTYPE_E4M3) v_scale = place_scale(a.heads_kv);
      }
    }
    if (a.heads > 0) {
      q = place_rows(a.heads, a.d, a.dtype);
      if (!a.in_place) q_out = place_rows(a.heads, a.d, a.q_out);
      if (!a.in_place && a.q_out == FA3_DTYPE_E4M3) q_scale = place_scale(a.heads);
    }
    if (a.rotary_dim > 0) {
      cos = place({angles_, a.rotary_dim / 2}, FA3_DTYPE_FP32, true);
      sin = place({angles_, a.rotary_dim / 2}, FA3_DTYPE_FP32, true);
    }
    const bool has_before = !alone && (a.heads_kv > 0 || (a.rotary_dim > 0 && !a.positions));
    if (has_before) before = place_numbers(before_, false);
    if (a.packed && !alone) cu = place_numbers(cu_, false);
    if (a.used && !alone) used = place_numbers(used_, false);
    if (a.heads_kv > 0 && a.where == Where::chosen_caches) index = place_numbers(index_, false);
    if (a.heads_kv > 0 && a.where == Where::pages) {
      table = place({a.batch, columns_}, FA3_DTYPE_INT32, false);
      for (int64_t b = 0; b < a.batch; ++b)
        for (int64_t i = 0; i < columns_; ++i)
          table.data<int32_t>()[b * table.layout.stride[0] + i] = int32_t(table_[size_t(b * columns_ + i)]);
    }
    if (alone) slots = place_numbers(slots_, a.wide);
    if (a.rotary_dim > 0 && (a.positions || alone)) positions = place_numbers(positions_, a.wide);
    fill();
  }

  static constexpr int count = 18, outputs = 4;  // q is one if it is written in place
  Placed* all(int i) {
    Placed* const list[count] = {&k_cache, &v_cache, &q_out, &q,    &k,         &v,       &before,  &cu,      &used,
                                 &table,   &index,   &slots, &cos,  &sin,       &positions, &k_scale, &v_scale, &q_scale};
    return list[i];
  }
  // Given where each image lies.
  fa3_append_params params(const std::vector<void*>& bases) {
    fa3_append_params p{};
    p.struct_size = sizeof p;
    p.flags = a.interleaved ? FA3_APPEND_ROTARY_INTERLEAVED : 0;
    place_tensors(*this, bases,
                  {&p.k_cache, &p.v_cache, &p.q_out, &p.q, &p.k, &p.v, &p.cache_seqlens, &p.cu_seqlens_new,
                   &p.seqused_new, &p.page_table, &p.cache_batch_idx, &p.slot_mapping, &p.rotary_cos, &p.rotary_sin,
                   &p.rotary_positions, &p.k_scale, &p.v_scale, &p.q_scale});
    if (a.in_place) p.q_out = p.q;
    return p;
  }

  Appending a;
  Placed k, v, q, k_cache, v_cache, q_out, before, cu, used, table, index, slots, cos, sin, positions, k_scale, v_scale,
      q_scale;

 private:
  // No two rows have the same place; some have none.
  void make_sequences() {
    angles_ = 3 * a.rows + 40;
    int64_t longest = 1;
    total_ = a.packed ? random_.between(0, 2) : 0;
    for (int64_t b = 0; b < a.batch; ++b) {
      const int64_t n = a.packed ? random_.chance(0.2) ? 0 : random_.between(0, 2 * a.rows) : a.rows;
      cu_.push_back(total_), total_ += n;
      before_.push_back(random_.between(0, 2 * a.rows));
      used_.push_back(random_.between(-1, 2 * a.rows));
      longest = std::max(longest, before_.back() + n);
    }
    cu_.push_back(total_);
    // Rows before the tensor's first, and positions before the cache's, are none.
    if (random_.chance(0.2)) cu_[0] -= random_.between(0, 3 + cu_[0]);
    for (int64_t& x : before_) x -= random_.chance(0.1) ? x + random_.between(1, 3) : 0;
    if (a.packed) total_ += random_.between(0, 2);
    else total_ = a.batch * a.rows;
    const bool has_pages = a.where == Where::pages || a.where == Where::slots;
    cache_rows_ = has_pages ? a.page_size : std::max<int64_t>(longest - random_.between(0, 2), 1);
    columns_ = has_pages ? std::max<int64_t>((longest - random_.between(0, 2)) / a.page_size, 1) : 1;
    caches_ = a.where == Where::caches ? a.batch : a.batch * columns_ + random_.between(0, 2);
    if (a.where == Where::slots) caches_ = std::max(caches_, (total_ + a.page_size - 1) / a.page_size);
    const auto shuffled = [&](int64_t n) {
      std::vector<int64_t> numbers(static_cast<size_t>(n));
      std::iota(numbers.begin(), numbers.end(), 0);
      for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[random_.bits() % i]);
      return numbers;
    };
    table_ = shuffled(caches_), index_ = shuffled(caches_), slots_ = shuffled(caches_ * cache_rows_);
    table_.resize(size_t(a.batch * columns_)), index_.resize(size_t(a.batch)), slots_.resize(size_t(total_));
    positions_.resize(size_t(a.where == Where::slots ? total_ : a.batch));
    for (int64_t& x : positions_) x = random_.between(-1, angles_);
    for (auto* numbers : {&table_, &index_})
      for (int64_t& x : *numbers)
        if (random_.chance(0.03)) x = random_.pick<int64_t>({-1, caches_, INT_MIN, INT_MAX});
    for (int64_t& x : slots_)
      if (random_.chance(0.03)) x = random_.pick<int64_t>({-1, caches_ * cache_rows_, INT_MIN, INT_MAX});
    if (!a.wrong) return;
    for (auto* numbers : {&cu_, &before_, &used_, &table_, &index_, &slots_, &positions_})
      for (int64_t& x : *numbers)
        if (random_.chance(0.5))
          x = random_.chance(0.5) ? int64_t(int32_t(random_.bits()))
                                  : random_.pick<int64_t>({-1, 0, 1, total_, caches_, INT_MAX, INT_MAX - 1, INT_MIN});
    if (a.wide)
      for (auto* numbers : {&slots_, &positions_})
        for (int64_t& x : *numbers)
          if (random_.chance(0.3)) x = random_.chance(0.5) ? int64_t(random_.bits()) : INT64_MAX - (x & 3);
  }

  // Any order of the dims, but for columns, which come last; gaps of 16 bytes, or between rows of numbers of an element.
  Placed place(const std::vector<int64_t>& dims, fa3_dtype dtype, bool columns) {
    const int rank = int(dims.size()), movable = columns ? rank - 1 : 1;
    std::vector<int> order(dims.size());
    std::vector<int64_t> pad(dims.size(), 0);
    std::iota(order.begin(), order.end(), 0);
    const int64_t unit = columns ? 16 / tools::element_bytes(dtype) : 1;
    if (a.padded) {
      for (int i = movable - 1; i > 0; --i) std::swap(order[size_t(i)], order[size_t(random_.between(0, i))]);
      for (int i = 1; i < rank; ++i) pad[size_t(i)] = unit * random_.between(0, 2);
    }
    // Rows begin at multiples of 16 bytes.
    if (columns) pad[size_t(rank - 1)] += (unit - dims.back() % unit) % unit;
    return Placed(Layout::make(dims, order, pad), dtype, a.padded ? 16 : 0);
  }
  Placed place_rows(int64_t heads, int64_t d, fa3_dtype dtype) {
    if (a.packed) return place({total_, heads, d}, dtype, true);
    return place({a.batch, a.rows, heads, d}, dtype, true);
  }
  Placed place_scale(int64_t heads) {
    const int64_t batch = (a.scales & 1) && a.where != Where::slots ? a.batch : 1;
    return Placed(Layout::packed({batch, a.scales & 2 ? heads : 1, 1}), FA3_DTYPE_FP32, a.padded ? 4 : 0);
  }
  Placed place_numbers(const std::vector<int64_t>& numbers, bool has_64_bits) {
    Placed placed(Layout::packed({int64_t(numbers.size())}), has_64_bits ? FA3_DTYPE_INT64 : FA3_DTYPE_INT32,
                  a.padded ? 8 : 0);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (has_64_bits) placed.data<int64_t>()[i] = numbers[i];
      else placed.data<int32_t>()[i] = int32_t(numbers[i]);
    }
    return placed;
  }

  void fill() {
    uint64_t first = 0;
    for (Placed* x : {&k, &v, &q}) {
      std::vector<float> values(size_t(x->dtype == FA3_DTYPE_NONE ? 0 : x->layout.count()));
      tools::normal(a.seed, first, values.data(), values.size());
      first += values.size();
      size_t n = 0;
      if (a.extremes)
        for (float& value : values)
          if (random_.chance(0.02)) value = random_.pick({INFINITY, -INFINITY, NAN, 448.f, -460.f, 30000.f});
      if (a.middles)
        for (float& value : values) value = float(random_.between(1, 255));
      if (!values.empty()) x->layout.for_each([&](int64_t at) { x->write(at, values[n++]); });
    }
    if (a.rotary_dim > 0)
      for (int64_t i = 0; i < angles_; ++i)
        for (int64_t c = 0; c < a.rotary_dim / 2; ++c) {
          const double angle = double(i) * std::pow(10000.0, -2.0 * double(c) / double(a.rotary_dim));
          const int64_t at[2] = {i, c};
          cos.write(cos.layout.position(at), float(std::cos(angle)));
          sin.write(sin.layout.position(at), float(std::sin(angle)));
        }
    for (Placed* scale : {&k_scale, &v_scale, &q_scale})
      if (scale->dtype != FA3_DTYPE_NONE)
        scale->layout.for_each([&](int64_t at) {
          const float middle = float(2 * random_.between(8, 15) + 1);
          scale->write(at, a.middles ? float(random_.between(1, 255)) / middle
                                     : std::exp2(float(random_.uniform() * 6 - 9)));
        });
  }

  tools::Random random_;
  int64_t total_, caches_, cache_rows_, columns_, angles_;
  std::vector<int64_t> cu_, before_, used_, table_, index_, slots_, positions_;
};

// Numbers of e4m3 in their order, the zeros the same; NaN far away.
int rank_of(uint8_t code) {
  const int magnitude = code & 0x7f;
  return magnitude == 0x7f ? 1000 : code & 0x80 ? -magnitude : magnitude;
}

// One output compared with the reference's; "" or what is wrong. Columns that are not rotated have the same bits.
// largest: of the elements that are rotated; their angles are at most 1.
std::string compare(Placed& ours, Placed& expected, int64_t rotary_dim, double largest) {
  if (ours.dtype == FA3_DTYPE_NONE || ours.image == expected.image) return "";
  const Layout& layout = ours.layout;
  const int64_t columns = layout.dim.back();
  Image rest = ours.image;  // with the reference's elements where ours are near enough
  int64_t differ = 0, n = 0;
  std::string bad;
  layout.for_each([&](int64_t at) {
    const int64_t column = n++ % columns, byte = ours.first + at * ours.width();
    if (column >= rotary_dim || std::equal(&ours.image[size_t(byte)], &ours.image[size_t(byte + ours.width())],
                                           &expected.image[size_t(byte)]))
      return;
    const float a = ours.read(at), b = expected.read(at);
    differ += !(std::isnan(a) && std::isnan(b));
    // Float32 and float64 on two sides of a rounding boundary. Or NaN of other bits.
    const double tolerance = 2.1 * tools::unit_roundoff(ours.dtype) * std::fabs(b) + largest * 0x1p-22;
    const bool near = ours.dtype == FA3_DTYPE_E4M3
                          ? std::abs(rank_of(ours.data<uint8_t>()[at]) - rank_of(expected.data<uint8_t>()[at])) <= 1
                          : std::fabs(double(a) - b) <= tolerance || (std::isnan(a) && std::isnan(b));
    if (near) std::copy_n(expected.image.begin() + byte, ours.width(), rest.begin() + byte);
    else if (bad.empty())
      bad = "element " + std::to_string(at) + " is " + std::to_string(a) + ", must be " + std::to_string(b);
  });
  if (!bad.empty()) return bad;
  if (differ > 4 + layout.count() / 200)
    return std::to_string(differ) + " of " + std::to_string(layout.count()) + " elements differ by a step";
  const auto wrong = std::mismatch(rest.begin(), rest.end(), expected.image.begin());
  if (wrong.first == rest.end()) return "";
  return "byte " + std::to_string(wrong.first - rest.begin() - ours.first) + " differs, and is none of a rotated element";
}

std::string compare(AppendCase& ours, AppendCase& expected) {
  for (int i = 0; i < AppendCase::outputs; ++i)
    if (const std::string bad = compare(*ours.all(i), *expected.all(i), i == 1 ? 0 : ours.a.rotary_dim,
                                        ours.a.extremes ? 30000 : 8);
        !bad.empty())
      return "output " + std::to_string(i) + ": " + bad;
  return "";
}

bool compute_on_host(AppendCase& made) {
  const fa3_append_params params = host_params(made);
  return fa3_reference_append(&params) == FA3_OK;
}

// What the outputs hold before the call: poison, and Q where it is written in place.
void restore_outputs(OnDevice<AppendCase>& device, const std::vector<Image>& images) {
  for (size_t i = 0; i < images.size(); ++i)
    if (!images[i].empty()) device.buffers[i].upload(images[i].data(), images[i].size());
}

std::string run_and_compare(AppendCase& made, const tools::Stream& stream, int repeats) {
  AppendCase expected = made;
  const std::vector<Image> before = output_images(made);
  if (!compute_on_host(expected)) return message("fa3_reference_append");
  OnDevice<AppendCase> device(made);
  std::vector<Image> first;
  for (int run = 0; run < repeats; ++run) {
    restore_outputs(device, before);
    if (fa3_append(&device.params, stream.get()) != FA3_OK) return message("fa3_append");
    stream.synchronize();
    device.download_outputs(made);
    const std::vector<Image> images = output_images(made);
    if (run == 0) first = images;
    else if (images != first && !made.a.wrong) return "run " + std::to_string(run + 1) + " gave other bits than run 1";
  }
  // Of wrong numbers it is only known that nothing else is written.
  return made.a.wrong ? overwritten(made) : compare(made, expected);
}

void check(const Appending& a, int repeats = 2) {
  INFO(a.describe());
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  AppendCase made(a);
  CHECK(run_and_compare(made, gpu().stream, repeats) == "");
}

Appending random_appending(uint64_t seed) {
  tools::Random random(seed);
  Appending a;
  a.seed = seed % 1000003;
  a.where = random.pick({Where::caches, Where::chosen_caches, Where::pages, Where::pages, Where::slots});
  a.packed = random.chance(0.5);
  a.dtype = random.pick({FA3_DTYPE_BF16, FA3_DTYPE_FP16});
  const auto out = [&] { return random.chance(0.35) ? FA3_DTYPE_E4M3 : a.dtype; };
  a.k_out = out(), a.v_out = out(), a.q_out = out();
  a.batch = random.between(1, 9);
  a.rows = random.chance(0.3) ? 1 : random.between(1, 40);
  a.heads_kv = random.between(1, 4);
  a.heads = random.chance(0.6) ? a.heads_kv * random.between(1, 5) : 0;
  if (a.heads > 0 && a.where != Where::slots && random.chance(0.1)) a.heads_kv = 0;
  const auto head_dim = [&] {
    return random.chance(0.6) ? random.pick<int64_t>({64, 128, 256, 576}) : 16 * random.between(1, 20);
  };
  a.d = head_dim(), a.dv = random.chance(0.2) ? 0 : random.chance(0.6) ? a.d : head_dim();
  if (random.chance(0.2) && a.k_out != FA3_DTYPE_E4M3 && a.q_out != FA3_DTYPE_E4M3) a.d += 8;
  if (random.chance(0.2) && a.v_out != FA3_DTYPE_E4M3 && a.dv > 0) a.dv -= 8;
  if (random.chance(0.6)) a.rotary_dim = random.chance(0.5) ? a.d / 16 * 16 : 16 * random.between(0, a.d / 16);
  a.page_size = random.pick<int64_t>({1, 2, 3, 4, 8, 16, 64, 77, 128, 1024});
  a.interleaved = random.chance(0.5), a.positions = random.chance(0.5), a.used = random.chance(0.3);
  a.padded = random.chance(0.5), a.wide = random.chance(0.5);
  a.in_place = a.heads > 0 && a.q_out == a.dtype && random.chance(0.4);
  a.scales = int(random.between(0, 3));
  return a;
}

uint64_t seed_for(int number) { return tools::mix(tools::seed_of_run(), 13000000 + uint64_t(number)); }

}  // namespace

TEST_CASE("append: random calls", "[append]") {
  gpu();
  for (int i = 0; i < 400; ++i) check(random_appending(seed_for(i)));
}

TEST_CASE("append: every head dimension", "[append]") {
  gpu();
  for (int64_t d = 8; d <= 1024; d += d < 320 ? 8 : 64)
    for (const bool interleaved : {false, true}) {
      Appending a = random_appending(seed_for(1000 + int(d)));
      a.d = a.dv = d, a.heads = 4, a.heads_kv = 2, a.interleaved = interleaved, a.rotary_dim = d / 16 * 16;
      if (d % 16 != 0) a.k_out = a.v_out = a.q_out = a.dtype;
      check(a);
      if (d > 32) a.rotary_dim = (d - 17) / 16 * 16;
      check(a);
    }
}

// Sequences are looked for 32 at a time: up to three times here, with empty ones and rows of none.
TEST_CASE("append: every number of packed sequences", "[append]") {
  gpu();
  for (const int64_t batch : {1, 2, 31, 32, 33, 64, 65, 1023, 1024, 1025, 1056, 1057, 4000})
    for (const int64_t heads_kv : {1, 17}) {  // several rows of a warp, and one
      Appending a;
      a.batch = batch, a.rows = 1, a.heads_kv = heads_kv, a.heads = 0, a.d = a.dv = 16;
      a.rotary_dim = 16, a.page_size = 2, a.seed = seed_for(2000 + int(batch)) % 1000003;
      check(a);
    }
}

TEST_CASE("append: rows of one to many lanes", "[append]") {
  gpu();
  for (const int64_t d : {8, 16, 24, 32, 48, 64, 96, 128})
    for (const int64_t heads_kv : {1, 2, 3, 5, 8, 9, 16})
      for (const int64_t rows : {1, 7, 33}) {
        Appending a = random_appending(seed_for(3000 + int(d)));
        a.heads = 0, a.heads_kv = heads_kv, a.d = d, a.dv = rows == 7 ? 0 : d, a.rows = rows, a.batch = 2;
        a.in_place = false, a.rotary_dim = d / 16 * 16, a.k_out = a.v_out = a.q_out = a.dtype;
        check(a);
      }
}

// A step of decoding, and a chunk of a long prompt.
TEST_CASE("append: many sequences, many rows", "[append]") {
  gpu();
  for (const fa3_dtype out : {FA3_DTYPE_BF16, FA3_DTYPE_E4M3}) {
    Appending a;
    a.k_out = a.v_out = out, a.heads = 32, a.heads_kv = 8, a.rotary_dim = 128, a.scales = 2;
    a.batch = 256, a.rows = 1, a.packed = false, a.in_place = true, a.seed = seed_for(4000) % 1000003;
    check(a);
    a.batch = 1, a.rows = 3000, a.packed = true, a.page_size = 64;
    check(a);
    a.where = Where::slots, a.page_size = 16, a.wide = true;
    check(a);
  }
}

TEST_CASE("append: elements that are not finite, or too large", "[append]") {
  gpu();
  for (int i = 0; i < 60; ++i) {
    Appending a = random_appending(seed_for(6000 + i));
    a.extremes = true, a.d = a.dv = 64, a.rotary_dim = i % 3 * 32;
    check(a);
  }
}

TEST_CASE("append: quotients next to the middle of two numbers", "[append]") {
  gpu();
  Appending a;
  a.k_out = a.v_out = a.q_out = FA3_DTYPE_E4M3, a.heads_kv = 64, a.batch = 9, a.scales = 3, a.middles = true;
  a.seed = seed_for(7000) % 1000003;
  check(a);
}

TEST_CASE("append: nothing to write", "[append]") {
  gpu();
  for (const bool packed : {false, true}) {
    Appending a;
    a.packed = packed, a.rows = 0;
    check(a);
    a.rows = 3, a.batch = 0, a.where = Where::caches;
    check(a);
  }
}

TEST_CASE("append: wrong numbers on the device", "[append][sanitizer]") {
  gpu();
  for (int i = 0; i < 60; ++i) {
    Appending a = random_appending(seed_for(5000 + i));
    a.wrong = true, a.positions = true, a.used = i % 2, a.batch = 1 + i % 40, a.rows = 1 + i % 7, a.d = 64, a.dv = 32;
    a.rotary_dim = 32;
    check(a);
  }
}

TEST_CASE("append: small selection", "[append][sanitizer]") {
  gpu();
  for (const Where where : {Where::caches, Where::chosen_caches, Where::pages, Where::slots})
    for (const bool rotates : {false, true})
      for (const bool narrow : {false, true}) {
        Appending a;
        a.where = where, a.packed = narrow, a.rotary_dim = rotates ? 48 : 0, a.interleaved = narrow, a.padded = true;
        a.d = narrow ? 128 : 72, a.dv = narrow ? 64 : 40, a.in_place = rotates, a.positions = narrow, a.wide = rotates;
        if (narrow) a.k_out = a.v_out = FA3_DTYPE_E4M3, a.q_out = rotates ? a.dtype : FA3_DTYPE_E4M3, a.scales = 3;
        a.batch = 5, a.rows = 9, a.page_size = 4, a.used = !narrow, a.seed = 31;
        check(a);
      }
}

// Lengths and page tables are read when the kernel runs.
TEST_CASE("append: a captured call is replayed with other lengths", "[append][graphs]") {
  const tools::Stream& stream = gpu().stream;
  Appending a;
  a.rotary_dim = 64, a.seed = 5, a.batch = 6, a.rows = 12;
  AppendCase first(a);
  OnDevice<AppendCase> device(first);
  tools::Graph::begin(stream);
  REQUIRE(fa3_append(&device.params, stream.get()) == FA3_OK);
  const tools::Graph graph = tools::Graph::end(stream);
  for (int replay = 0; replay < 4; ++replay) {
    AppendCase made = first;
    for (Placed* numbers : {&made.before, &made.cu, &made.table}) {
      // The same sums with another start, lengths that are shorter, pages in another order.
      int32_t* const all = numbers->data<int32_t>();
      const int64_t n = numbers->layout.count();
      if (numbers == &made.table) std::rotate(all, all + replay % n, all + n);
      else for (int64_t i = 0; i < n; ++i) all[i] = std::max(all[i] - replay, 0);
    }
    for (int i = 0; i < AppendCase::count; ++i)
      if (const Image& image = made.all(i)->image; !image.empty())
        device.buffers[size_t(i)].upload(image.data(), image.size());
    AppendCase expected = made;
    REQUIRE(compute_on_host(expected));
    graph.launch(stream);
    stream.synchronize();
    device.download_outputs(made);
    CHECK(compare(made, expected) == "");
  }
}

}  // namespace fa3::test
