// fa3_combine on the GPU against the reference on the CPU: shapes, layouts, dtypes, numbers of parts, parts that have
// seen no key and hold NaN, poison around all tensors, the same bits each time; and attention over ranges of the keys,
// merged, against attention over all of them.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "device_case.h"
#include "gpu.h"
#include "half.h"
#include "layout.h"
#include "params.h"
#include "placed.h"
#include "random.h"

namespace fa3::test {
namespace {

using tools::Layout;

struct Combination {
  fa3_dtype parts_dtype = FA3_DTYPE_FP32, o_dtype = FA3_DTYPE_BF16;
  int64_t parts = 3, batch = 1, rows = 50, heads = 2, d = 128;
  bool wants_lse = true;
  double empty = 0.2;               // share of parts that have seen no key
  double spread = 2, center = 0;    // of the LSE
  bool padded = false, same_o = false;  // same_o: one O for all parts
  uint64_t seed = 0;

  std::string describe() const {
    const auto name = [](fa3_dtype dtype) { return dtype == FA3_DTYPE_FP32 ? "fp32" : tools::dtype_name(dtype); };
    return std::string(name(parts_dtype)) + " to " + name(o_dtype) + ", " + std::to_string(parts) + " parts x " +
           std::to_string(batch) + " x " + std::to_string(rows) + " x " + std::to_string(heads) + " x " +
           std::to_string(d) + (wants_lse ? "" : ", no LSE") + ", " + std::to_string(empty) + " empty, LSE " +
           std::to_string(center) + " +- " + std::to_string(spread) + (padded ? ", padded" : "") +
           (same_o ? ", one O" : "") + ", seed " + std::to_string(seed);
  }
};

class CombineCase {
 public:
  explicit CombineCase(const Combination& chosen) : c(chosen), random_(tools::mix(chosen.seed, 1)) {
    o_parts = place({c.parts, c.batch, c.rows, c.heads, c.d}, c.parts_dtype, true);
    lse_parts = place({c.parts, c.batch, c.heads, c.rows}, FA3_DTYPE_FP32, false);
    o = place({c.batch, c.rows, c.heads, c.d}, c.o_dtype, true);
    if (c.wants_lse) lse = place({c.batch, c.heads, c.rows}, FA3_DTYPE_FP32, false);
    if (c.same_o) o_parts.layout.stride[0] = 0;
    fill();
  }

  static constexpr int count = 4, outputs = 2;
  Placed* all(int i) {
    Placed* const list[count] = {&o, &lse, &o_parts, &lse_parts};
    return list[i];
  }
  // Given where each image lies.
  fa3_combine_params params(const std::vector<void*>& bases) {
    fa3_combine_params p{};
    p.struct_size = sizeof p;
    place_tensors(*this, bases, {&p.o, &p.lse, &p.o_parts, &p.lse_parts});
    return p;
  }

  Combination c;
  Placed o_parts, lse_parts, o, lse;

 private:
  // Any order of the dims, but for columns, which come last; gaps of 16 bytes or more, or of an element.
  Placed place(const std::vector<int64_t>& dims, fa3_dtype dtype, bool columns) {
    const int rank = int(dims.size()), movable = rank - columns;
    std::vector<int> order(dims.size());
    std::vector<int64_t> pad(dims.size(), 0);
    for (int i = 0; i < rank; ++i) order[size_t(i)] = i;
    if (c.padded) {
      for (int i = movable - 1; i > 0; --i) std::swap(order[size_t(i)], order[size_t(random_.between(0, i))]);
      for (int i = 0; i < rank; ++i)
        pad[size_t(i)] = random_.between(0, 2) * (columns ? 16 / tools::element_bytes(dtype) : 1);
    }
    return Placed(Layout::make(dims, order, pad), dtype, c.padded ? 16 : 0);
  }

  void fill() {
    std::vector<float> row(static_cast<size_t>(c.d));
    uint64_t first = 0;
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t i = 0; i < c.rows; ++i)
        for (int64_t h = 0; h < c.heads; ++h) {
          const bool all_empty = c.empty > 0 && random_.chance(0.03);
          for (int64_t n = 0; n < c.parts; ++n) {
            const bool is_empty = all_empty || random_.chance(c.empty);
            const int64_t lse_at[] = {n, b, h, i}, o_at[] = {n, b, i, h, 0};
            const double gauss = random_.uniform() + random_.uniform() + random_.uniform() - 1.5;
            lse_parts.write(lse_parts.layout.position(lse_at),
                            is_empty ? -INFINITY : float(c.center + 2 * c.spread * gauss));
            if (c.same_o && n > 0) continue;
            tools::normal(c.seed, first, row.data(), size_t(c.d));
            first += uint64_t(c.d);
            for (int64_t x = 0; x < c.d; ++x)
              o_parts.write(o_parts.layout.position(o_at) + x,
                            !is_empty || c.same_o ? row[size_t(x)] : x % 2 ? NAN : -INFINITY);
          }
        }
  }

  tools::Random random_;
};

// What the reference makes of it, O in float32: its rounding is the kernel's own affair.
bool compute_on_host(CombineCase& made) {
  if (made.c.o_dtype != FA3_DTYPE_FP32)
    made.o = Placed(Layout::packed({made.c.batch, made.c.rows, made.c.heads, made.c.d}), FA3_DTYPE_FP32, 0);
  const fa3_combine_params params = host_params(made);
  return fa3_reference_combine(&params) == FA3_OK;
}

bool within(double ours, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(ours);
  return ours == expected || std::fabs(ours - expected) <= tolerance;
}

// Compared with the reference's; "" or what is wrong.
std::string compare(CombineCase& ours, CombineCase& expected) {
  const Combination& c = ours.c;
  if (const std::string bad = overwritten(ours); !bad.empty()) return bad;
  // One rounding of O; of float32 the weights, each of some last bits, and the sums.
  const double roundoff = c.o_dtype == FA3_DTYPE_FP32 ? 0x1p-24 : tools::unit_roundoff(c.o_dtype);
  const double smallest = c.o_dtype == FA3_DTYPE_FP16 ? 0x1p-25 : 0;
  const double sums = 1.5e-6 + 6e-8 * double(c.parts);
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < c.rows; ++i) {
        const std::string where =
            " of (" + std::to_string(b) + ", " + std::to_string(i) + ", " + std::to_string(h) + ")";
        int64_t seen = 0, last = 0;
        bool numbers = true;
        for (int64_t n = 0; n < c.parts; ++n) {
          const int64_t at[] = {n, b, h, i};
          const float lse = ours.lse_parts.read(ours.lse_parts.layout.position(at));
          if (lse != -INFINITY) seen++, last = n, numbers &= std::isfinite(lse);
        }
        const int64_t lse_at[] = {b, h, i}, o_at[] = {b, i, h, 0};
        if (c.wants_lse) {
          const float a = ours.lse.read(ours.lse.layout.position(lse_at));
          const float must = expected.lse.read(expected.lse.layout.position(lse_at));
          if (!within(a, must, seen == 1 ? 0 : 1.2e-7 * std::fabs(must) + sums))
            return "lse" + where + " is " + std::to_string(a) + ", must be " + std::to_string(must);
        }
        for (int64_t x = 0; x < c.d; ++x) {
          double largest = 0;
          for (int64_t n = 0; n < c.parts; ++n) {
            const int64_t at[] = {n, b, i, h, x}, at_lse[] = {n, b, h, i};
            if (ours.lse_parts.read(ours.lse_parts.layout.position(at_lse)) != -INFINITY)
              largest = std::max(largest, std::fabs(double(ours.o_parts.read(ours.o_parts.layout.position(at)))));
          }
          const float a = ours.o.read(ours.o.layout.position(o_at) + x);
          double must = expected.o.read(expected.o.layout.position(o_at) + x), tolerance = 0;
          if (seen > 1) {
            tolerance = roundoff * std::fabs(must) * 1.001 + smallest + sums * largest;
          } else if (seen == 1 && numbers && c.o_dtype != FA3_DTYPE_FP32) {  // that part, rounded
            const int64_t at[] = {last, b, i, h, x};
            must = tools::round_to(ours.o_parts.read(ours.o_parts.layout.position(at)), c.o_dtype);
          }
          if (!within(a, must, tolerance))
            return "column " + std::to_string(x) + " of o" + where + " is " + std::to_string(a) + ", must be " +
                   std::to_string(must);
        }
      }
  return "";
}

std::string run_and_compare(CombineCase& made, const tools::Stream& stream, int repeats) {
  CombineCase expected = made;
  if (!compute_on_host(expected)) return message("fa3_reference_combine");
  OnDevice<CombineCase> device(made);
  std::vector<Image> first;
  for (int run = 0; run < repeats; ++run) {
    device.poison_outputs();
    if (fa3_combine(&device.params, stream.get()) != FA3_OK) return message("fa3_combine");
    stream.synchronize();
    device.download_outputs(made);
    const std::vector<Image> images = output_images(made);
    if (run == 0) first = images;
    else if (images != first) return "run " + std::to_string(run + 1) + " gave other bits than run 1";
  }
  return compare(made, expected);
}

void check(const Combination& c, int repeats = 2) {
  INFO(c.describe());
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  CombineCase made(c);
  CHECK(run_and_compare(made, gpu().stream, repeats) == "");
}

constexpr fa3_dtype dtypes[] = {FA3_DTYPE_BF16, FA3_DTYPE_FP16, FA3_DTYPE_FP32};

Combination random_combination(uint64_t seed) {
  tools::Random random(seed);
  Combination c;
  c.seed = seed % 1000003;
  c.parts_dtype = dtypes[random.between(0, 2)], c.o_dtype = dtypes[random.between(0, 2)];
  c.parts = random.chance(0.6) ? random.between(1, 9) : random.between(10, 70);
  c.batch = random.between(1, 3);
  c.heads = random.between(1, 9);
  c.rows = random.chance(0.5) ? random.between(1, 20) : random.between(1, 200);
  c.d = random.chance(0.5) ? random.pick<int64_t>({64, 128, 192, 256}) : 8 * random.between(1, 64);
  c.wants_lse = random.chance(0.9);
  c.empty = random.pick({0.0, 0.0, 0.2, 0.5, 0.95});
  c.spread = random.pick({0.1, 2.0, 20.0, 500.0});
  c.center = random.pick({0.0, 7.0, -300.0, 4000.0});
  c.padded = random.chance(0.5);
  c.same_o = random.chance(0.1);
  return c;
}

uint64_t seed_for(int number) { return tools::mix(tools::seed_of_run(), 11000000 + uint64_t(number)); }

}  // namespace

TEST_CASE("combine: random shapes", "[combine]") {
  gpu();
  for (int i = 0; i < 200; ++i) check(random_combination(seed_for(i)));
}

TEST_CASE("combine: every head dimension and dtype", "[combine]") {
  gpu();
  int number = 1000;
  for (int64_t d = 8; d <= 512; d += 8)
    for (const fa3_dtype parts : dtypes) {
      Combination c = random_combination(seed_for(number++));
      c.d = d, c.parts_dtype = parts, c.o_dtype = dtypes[number % 3], c.rows = 40, c.batch = 1;
      check(c);
    }
}

TEST_CASE("combine: every number of parts", "[combine]") {
  gpu();
  for (int64_t parts = 0; parts <= 70; ++parts)
    for (const int64_t rows : {1, 90}) {  // few rows: a part's share of a thread block's threads
      Combination c;
      c.parts = parts, c.rows = rows, c.seed = seed_for(2000) % 1000003, c.empty = parts % 2 ? 0.3 : 0;
      c.d = parts % 3 == 0 ? 64 : parts % 3 == 1 ? 128 : 72;
      c.parts_dtype = dtypes[parts % 3], c.o_dtype = FA3_DTYPE_FP32;
      check(c);
    }
}

// So many rows that parts are not shared, and so many heads of few rows that a thread block has several, the last one
// fewer.
TEST_CASE("combine: many rows, many heads", "[combine]") {
  gpu();
  for (const fa3_dtype parts : dtypes) {
    Combination c;
    c.parts_dtype = parts, c.o_dtype = FA3_DTYPE_FP16, c.parts = 9, c.seed = seed_for(3000) % 1000003;
    c.batch = 2, c.rows = 3001, c.heads = 6, c.d = 64;
    check(c);
    c.batch = 41, c.rows = 1, c.heads = 301;
    check(c);
    c.batch = 7, c.rows = 3, c.heads = 601, c.parts = 4, c.padded = true;
    check(c);
  }
}

// Of parts whose LSE is a number, the largest is not the first, nor near the others.
TEST_CASE("combine: LSE of all sizes", "[combine]") {
  gpu();
  for (const double spread : {0.0, 1e-3, 30.0, 100.0, 1e4, 1e30})
    for (const double center : {0.0, 88.0, -1e4, 1e6}) {
      Combination c;
      c.spread = spread, c.center = center, c.parts = 7, c.empty = 0.4, c.seed = seed_for(4000) % 1000003;
      check(c);
    }
}

// Row by row: NaN, infinities and the largest numbers as LSE, at each place.
TEST_CASE("combine: LSE that are no numbers", "[combine]") {
  gpu();
  constexpr float inf = INFINITY, most = 3.4e38f;
  const float values[] = {0, -inf, inf, NAN, most, -most};
  for (const int64_t shared : {0, 1}) {  // parts shared by a thread block's threads, or not
    Combination c;
    c.parts = shared ? 9 : 3, c.rows = 216, c.heads = shared ? 1 : 300, c.d = 64, c.empty = 0;
    c.seed = seed_for(5000) % 1000003;
    CombineCase made(c);
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < c.rows; ++i)
        for (int64_t n = 0; n < c.parts; ++n) {
          const int64_t at[] = {n, 0, h, i}, o_at[] = {n, 0, i, h, 0};
          const int64_t block[] = {1, 6, 36};
          const float value = n < 3 ? values[i / block[n] % 6] : -inf;
          made.lse_parts.write(made.lse_parts.layout.position(at), value);
          for (int64_t x = 0; x < c.d && value == -inf; ++x)
            made.o_parts.write(made.o_parts.layout.position(o_at) + x, NAN);
        }
    CHECK(run_and_compare(made, gpu().stream, 2) == "");
  }
}

TEST_CASE("combine: nothing to compute", "[combine]") {
  gpu();
  for (const int which : {0, 1, 2}) {
    Combination c;
    (which == 0 ? c.batch : which == 1 ? c.rows : c.heads) = 0;
    check(c);
  }
}

TEST_CASE("combine: small selection", "[combine][sanitizer]") {
  gpu();
  for (const fa3_dtype parts : dtypes)
    for (const fa3_dtype o : dtypes)
      for (const int64_t count : {0, 1, 3, 17}) {
        Combination c;
        c.parts_dtype = parts, c.o_dtype = o, c.parts = count, c.d = count == 3 ? 72 : 128;
        c.rows = count == 1 ? 1 : 37, c.heads = 3, c.padded = count != 1, c.seed = 21 + uint64_t(count);
        check(c);
      }
}

TEST_CASE("combine: a captured call is replayed", "[combine][graphs]") {
  const tools::Stream& stream = gpu().stream;
  Combination c;
  c.seed = 5;
  CombineCase made(c), expected(c);
  REQUIRE(compute_on_host(expected));
  OnDevice<CombineCase> device(made);
  tools::Graph::begin(stream);
  REQUIRE(fa3_combine(&device.params, stream.get()) == FA3_OK);
  const tools::Graph graph = tools::Graph::end(stream);
  for (int replay = 0; replay < 3; ++replay) {
    device.poison_outputs();
    graph.launch(stream);
    stream.synchronize();
    device.download_outputs(made);
    CHECK(compare(made, expected) == "");
  }
}

// What it is for. Causal attention of a sequence over three ranges of its keys: of the second and the third, the first
// queries see nothing. Merged, its error is that of attention over all keys, and of one rounding more.
TEST_CASE("combine: attention over ranges of keys", "[combine][sanitizer]") {
  const tools::Stream& stream = gpu().stream;
  for (const fa3_dtype dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16})
    for (const int64_t d : {64, 128}) {
      constexpr int64_t batch = 2, n = 400, heads = 4, heads_kv = 2, parts = 3, begin[] = {0, 96, 250, n};
      const Layout q_layout = Layout::packed({batch, n, heads, d}), k_layout = Layout::packed({batch, n, heads_kv, d});
      const Layout lse_layout = Layout::packed({batch, heads, n});
      const Layout parts_layout = Layout::packed({parts, batch, n, heads, d});
      std::vector<uint16_t> q(size_t(q_layout.count())), k(size_t(k_layout.count())), v(k.size());
      tools::fill_normal(seed_for(6000), q.data(), q.size(), dtype);
      tools::fill_normal(seed_for(6001), k.data(), k.size(), dtype);
      tools::fill_normal(seed_for(6002), v.data(), v.size(), dtype);
      const size_t o_bytes = q.size() * 2, lse_bytes = size_t(lse_layout.count()) * 4;
      const tools::DeviceBuffer on_q(o_bytes), on_k(k.size() * 2), on_v(k.size() * 2), whole(o_bytes),
          whole_lse(lse_bytes), o_parts(parts * o_bytes), lse_parts(parts * lse_bytes), o(o_bytes), lse(lse_bytes);
      on_q.upload(q.data(), o_bytes), on_k.upload(k.data(), k.size() * 2), on_v.upload(v.data(), k.size() * 2);
      fa3_forward_params f = tools::forward_params();
      f.q = q_layout.tensor(on_q.at(0), dtype);
      f.k = k_layout.tensor(on_k.at(0), dtype), f.v = k_layout.tensor(on_v.at(0), dtype);
      f.o = q_layout.tensor(whole.at(0), dtype), f.lse = lse_layout.tensor(whole_lse.at(0), FA3_DTYPE_FP32);
      f.mask = FA3_MASK_CAUSAL_TOP_LEFT;
      std::vector<tools::DeviceBuffer> workspaces;
      const auto attend = [&](const fa3_forward_params& params) {
        const size_t bytes = tools::workspace_size(params);
        workspaces.emplace_back(bytes);
        REQUIRE(fa3_forward(&params, workspaces.back().at(0), bytes, stream.get()) == FA3_OK);
      };
      attend(f);
      for (int i = 0; i < parts; ++i) {
        // Keys up to the sequence's end from bottom right, others from top left; in the middle by what is left of both:
        // queries from begin[i] on.
        fa3_forward_params part = f;
        const int64_t first = begin[i], end = begin[i + 1], skipped = i == 1 ? first : 0;
        part.k = k_layout.tensor(on_k.at(size_t(first * heads_kv * d * 2)), dtype);
        part.v = k_layout.tensor(on_v.at(size_t(first * heads_kv * d * 2)), dtype);
        part.k.dim[1] = part.v.dim[1] = end - first;
        part.o.data = o_parts.at(size_t(i) * o_bytes + size_t(skipped * heads * d * 2));
        part.lse.data = lse_parts.at(size_t(i) * lse_bytes + size_t(skipped * 4));
        part.q.data = on_q.at(size_t(skipped * heads * d * 2));
        part.q.dim[1] = part.o.dim[1] = part.lse.dim[2] = n - skipped;
        part.mask = i == 2 ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_CAUSAL_TOP_LEFT;
        if (skipped > 0) {  // what no call writes: LSE = -inf, and O that is never to be used
          std::vector<float> minus(lse_bytes / 4, -INFINITY);
          lse_parts.upload(minus.data(), lse_bytes, size_t(i) * lse_bytes);
          const Image nan(o_bytes, 0xff);
          o_parts.upload(nan.data(), o_bytes, size_t(i) * o_bytes);
        }
        attend(part);
      }
      fa3_combine_params c{};
      c.struct_size = sizeof c;
      c.o_parts = parts_layout.tensor(o_parts.at(0), dtype);
      c.lse_parts = Layout::packed({parts, batch, heads, n}).tensor(lse_parts.at(0), FA3_DTYPE_FP32);
      c.o = q_layout.tensor(o.at(0), dtype), c.lse = lse_layout.tensor(lse.at(0), FA3_DTYPE_FP32);
      REQUIRE(fa3_combine(&c, stream.get()) == FA3_OK);
      stream.synchronize();

      std::vector<float> exact(q.size()), exact_lse(lse_bytes / 4), ours_lse(lse_bytes / 4), all_lse(lse_bytes / 4);
      std::vector<uint16_t> ours(q.size()), all(q.size());
      fa3_forward_params reference = f;
      reference.q.data = q.data(), reference.k.data = k.data(), reference.v.data = v.data();
      reference.o.data = exact.data(), reference.o.dtype = FA3_DTYPE_FP32, reference.lse.data = exact_lse.data();
      REQUIRE(fa3_reference_forward(&reference, 0) == FA3_OK);
      o.download(ours.data(), o_bytes), whole.download(all.data(), o_bytes);
      lse.download(ours_lse.data(), lse_bytes), whole_lse.download(all_lse.data(), lse_bytes);
      double merged_error = 0, whole_error = 0, lse_error = 0, whole_lse_error = 0;
      for (size_t i = 0; i < ours.size(); ++i) {
        merged_error += std::pow(double(tools::from_half(ours[i], dtype)) - exact[i], 2);
        whole_error += std::pow(double(tools::from_half(all[i], dtype)) - exact[i], 2);
      }
      for (size_t i = 0; i < ours_lse.size(); ++i) {
        lse_error = std::max(lse_error, std::fabs(double(ours_lse[i]) - exact_lse[i]));
        whole_lse_error = std::max(whole_lse_error, std::fabs(double(all_lse[i]) - exact_lse[i]));
      }
      INFO(tools::dtype_name(dtype) << " " << d << ": root mean squares "
                                    << std::sqrt(merged_error / double(ours.size())) << " and "
                                    << std::sqrt(whole_error / double(ours.size())));
      CHECK(merged_error <= 2 * 1.2 * whole_error);
      INFO("LSE " << lse_error << " and " << whole_lse_error);
      CHECK(lse_error <= 2 * whole_lse_error + 2e-6);
    }
}

}  // namespace fa3::test
