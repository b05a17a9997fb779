// fa3_quantize on the GPU against the reference on the CPU: shapes, layouts, granularities of scales, means, rotary
// embedding, incoherent processing, offsets of the LSE, tiles of V; poison around all outputs, any workspace, and the
// same bits each time.
#include <catch2/catch_test_macros.hpp>
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

enum class Granularity { block, head, tensor };
enum class Numbers { normal, shifted, outliers, zeros, not_finite };

struct Quantization {
  fa3_dtype dtype = FA3_DTYPE_BF16;
  int64_t batch = 1, rows = 100, heads = 2, heads_kv = 1, d = 128;
  Granularity scales = Granularity::block;
  bool mean = false, tiles = false, incoherent = false, interleaved = false, lse_offset = false;
  int64_t rotary_dim = 0;
  Numbers numbers = Numbers::normal;
  bool padded = false;
  int order = 0;
  uint64_t seed = 0;

  std::string describe() const {
    const char* const granularity[] = {"block", "head", "tensor"};
    const auto flag = [](bool set, const std::string& text) { return set ? text : ""; };
    return std::string(tools::dtype_name(dtype)) + " " + std::to_string(batch) + " x " + std::to_string(rows) + " x " +
           std::to_string(heads) + " x " + std::to_string(d) + ", scale of a " + granularity[int(scales)] +
           flag(mean, ", mean") + flag(tiles, ", tiles") + flag(incoherent, ", incoherent") +
           flag(lse_offset, ", lse_offset") + flag(rotary_dim > 0, ", rotary " + std::to_string(rotary_dim)) +
           flag(interleaved, " interleaved") + ", numbers " + std::to_string(int(numbers)) +
           flag(padded, ", padded, order " + std::to_string(order)) + ", seed " + std::to_string(seed);
  }
};

class QuantizeCase {
 public:
  explicit QuantizeCase(const Quantization& chosen) : q(chosen) {
    const int64_t blocks = (q.rows + 63) / 64;
    const std::vector<int64_t> dims = {q.batch, q.rows, q.heads, q.d};
    x = place(dims, q.dtype, 8);
    if (q.tiles) y = place({q.batch, q.heads, (q.rows + 15) / 16, q.d, 16}, FA3_DTYPE_E4M3, 16);
    else y = place(dims, FA3_DTYPE_E4M3, 16);
    if (q.scales == Granularity::tensor) scale = place({1, 1, 1}, FA3_DTYPE_FP32, 1);
    else scale = place({q.batch, q.heads, q.scales == Granularity::head ? 1 : blocks}, FA3_DTYPE_FP32, 1);
    if (q.mean) mean = place({q.batch, q.heads, q.d}, FA3_DTYPE_FP32, 1);
    if (q.rotary_dim) {
      cos = place({q.rows, q.rotary_dim / 2}, FA3_DTYPE_FP32, 4);
      sin = place({q.rows, q.rotary_dim / 2}, FA3_DTYPE_FP32, 4);
    }
    if (q.lse_offset) {
      k_mean = place({q.batch, q.heads_kv, q.d}, FA3_DTYPE_FP32, 1);
      lse = place({q.batch, q.heads, q.rows}, FA3_DTYPE_FP32, 1);
    }
    fill();
  }

  static constexpr int count = 8, outputs = 4;
  Placed* all(int i) {
    Placed* const list[count] = {&y, &scale, &mean, &lse, &x, &cos, &sin, &k_mean};
    return list[i];
  }

  // Given where each image lies.
  fa3_quantize_params params(const std::vector<void*>& bases) {
    fa3_quantize_params p{};
    p.struct_size = sizeof p;
    p.flags = uint64_t(q.incoherent ? FA3_QUANTIZE_INCOHERENT : 0);
    if (q.interleaved) p.flags |= FA3_QUANTIZE_ROTARY_INTERLEAVED;
    p.seed = q.seed * 77;
    p.softmax_scale = q.seed % 2 ? 0.125f : 0.f;
    place_tensors(*this, bases,
                  {&p.y, &p.scale, &p.mean, &p.lse_offset, &p.x, &p.rotary_cos, &p.rotary_sin, &p.k_mean});
    return p;
  }

  Quantization q;
  Placed x, y, scale, mean, cos, sin, k_mean, lse;

 private:
  Placed place(const std::vector<int64_t>& dims, fa3_dtype dtype, int64_t unit) {
    const int rank = int(dims.size());
    std::vector<int> order(dims.size());
    std::vector<int64_t> pad(dims.size(), 0);
    for (int i = 0; i < rank; ++i) order[size_t(i)] = i;
    if (q.padded) {
      if (rank >= 3 && q.order == 1) std::swap(order[0], order[1]);
      if (rank >= 4 && q.order == 2) std::swap(order[1], order[2]);
      // Not within what must stay whole: the last dimension, and of tiles the last two.
      for (int i = 1; i < rank - (rank == 5 ? 1 : 0); ++i)
        pad[size_t(i)] = unit * int64_t(tools::mix(q.seed, uint64_t(100 * rank + i)) % 3);
    }
    return Placed(Layout::make(dims, order, pad), dtype, q.padded ? 16 : 0);
  }

  void fill() {
    tools::Random random(tools::mix(q.seed, 9));
    const int64_t d = q.d;
    std::vector<float> row(static_cast<size_t>(d));
    for (int64_t b = 0; b < q.batch; ++b)
      for (int64_t h = 0; h < q.heads; ++h) {
        const float size = q.numbers == Numbers::zeros ? 0.f : std::ldexp(1.f, int(random.between(-4, 4)));
        for (int64_t i = 0; i < q.rows; ++i) {
          tools::normal(q.seed, uint64_t(((b * q.heads + h) * q.rows + i) * d), row.data(), size_t(d));
          for (int64_t c = 0; c < d; ++c) {
            float value = row[size_t(c)] * size;
            if (q.numbers == Numbers::shifted) value += size * float(c % 7 - 3) * 2;
            if (q.numbers == Numbers::outliers && random.chance(0.001)) value *= 50;
            if (q.numbers == Numbers::not_finite && random.chance(0.003))
              value = random.chance(0.5) ? NAN : random.chance(0.5) ? INFINITY : -INFINITY;
            const int64_t index[4] = {b, i, h, c};
            x.data<uint16_t>()[x.layout.position(index)] = tools::to_half(value, q.dtype);
          }
        }
      }
    if (q.rotary_dim)
      for (int64_t i = 0; i < q.rows; ++i)
        for (int64_t c = 0; c < q.rotary_dim / 2; ++c) {
          const double angle = double(i) * std::pow(10000.0, -2.0 * double(c) / double(q.rotary_dim));
          const int64_t index[2] = {i, c};
          cos.data<float>()[cos.layout.position(index)] = float(std::cos(angle));
          sin.data<float>()[sin.layout.position(index)] = float(std::sin(angle));
        }
    if (q.lse_offset)
      k_mean.layout.for_each([&](int64_t at) { k_mean.data<float>()[at] = float(random.uniform() - 0.5); });
  }
};

std::vector<float> floats(Placed& placed) {
  std::vector<float> values;
  placed.layout.for_each([&](int64_t at) { values.push_back(placed.data<float>()[at]); });
  return values;
}

// Numbers of e4m3 in their order, the zeros the same; NaN far away.
int rank_of(uint8_t code) {
  const int magnitude = code & 0x7f;
  return magnitude == 0x7f ? 1000 : code & 0x80 ? -magnitude : magnitude;
}

// Compared with the reference's; "" or what is wrong.
std::string compare(QuantizeCase& ours, QuantizeCase& expected) {
  const Quantization& q = ours.q;
  if (const std::string bad = overwritten(ours); !bad.empty()) return bad;
  if (const std::string bad = overwritten(expected); !bad.empty()) return "the reference: " + bad;
  const bool exact = !q.mean && !q.incoherent && !q.rotary_dim;
  const auto near = [&](const char* what, Placed& a, Placed& b, double relative, double absolute) -> std::string {
    const std::vector<float> left = floats(a), right = floats(b);
    for (size_t n = 0; n < left.size(); ++n) {
      if (left[n] == right[n] || (std::isnan(left[n]) && std::isnan(right[n]))) continue;
      const double error = std::fabs(double(left[n]) - right[n]);
      if (std::isfinite(right[n]) && error <= relative * std::fabs(right[n]) + absolute) continue;
      return std::string(what) + " " + std::to_string(n) + " is " + std::to_string(left[n]) + ", must be " +
             std::to_string(right[n]);
    }
    return "";
  };
  float largest = 0;
  for (const float value : floats(expected.scale)) largest = std::max(largest, 448 * value);
  if (q.mean)
    for (const float value : floats(expected.mean))
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  std::string bad = near("scale", ours.scale, expected.scale, exact ? 0 : 2e-6, exact ? 0 : 1e-8 * largest);
  if (bad.empty() && q.mean) bad = near("mean", ours.mean, expected.mean, 0, 2e-6 * largest);
  if (bad.empty() && q.lse_offset)
    bad = near("lse_offset", ours.lse, expected.lse, 1e-5, 1e-6 * largest * std::sqrt(double(q.d)));
  if (!bad.empty()) return bad;
  // A single row is its own mean: y is what float32's roundings leave of nothing.
  if (q.mean && q.rows == 1 && (q.incoherent || q.rotary_dim)) return "";
  int64_t elements = 0, differ = 0;
  ours.y.layout.for_each([&](int64_t at) {
    const uint8_t a = ours.y.data<uint8_t>()[at], b = expected.y.data<uint8_t>()[at];
    const int distance = std::abs(rank_of(a) - rank_of(b));
    ++elements;
    differ += distance > 0;
    if (distance > (exact ? 0 : 1))
      bad = "y: byte " + std::to_string(at) + " is " + std::to_string(a) + ", must be " + std::to_string(b);
  });
  if (!bad.empty()) return bad;
  // Float32 and float64 on two sides of a rounding boundary.
  if (differ > 4 + elements / 1000)
    return std::to_string(differ) + " of " + std::to_string(elements) + " elements of y differ by a step";
  return "";
}

// What the reference makes of it, in the case's own images.
bool compute_on_host(QuantizeCase& made) {
  const fa3_quantize_params params = host_params(made);
  return fa3_reference_quantize(&params) == FA3_OK;
}

// Runs it on the device, three times with another workspace each.
std::string run_and_compare(QuantizeCase& made, const tools::Stream& stream, int repeats) {
  QuantizeCase expected = made;
  if (!compute_on_host(expected)) return message("fa3_reference_quantize");
  OnDevice<QuantizeCase> device(made);
  size_t bytes = 0;
  REQUIRE(fa3_quantize_workspace_size(&device.params, &bytes) == FA3_OK);
  constexpr size_t before = 272, behind = 688;  // the alignment promised, and no more
  tools::DeviceBuffer workspace(before + bytes + behind);
  std::vector<Image> first;
  for (int run = 0; run < repeats; ++run) {
    std::vector<std::byte> content(workspace.size(), std::byte{0xa5});
    for (size_t i = 0; i < bytes; ++i) {
      const std::byte fills[] = {std::byte(tools::mix(made.q.seed, i)), std::byte{0xff}, std::byte{0}};
      content[before + i] = fills[run % 3];
    }
    workspace.upload(content.data(), content.size());
    device.poison_outputs();
    if (fa3_quantize(&device.params, workspace.at(before), bytes, stream.get()) != FA3_OK)
      return message("fa3_quantize");
    stream.synchronize();
    device.download_outputs(made);
    const std::vector<Image> images = output_images(made);
    std::vector<std::byte> after(workspace.size());
    workspace.download(after.data(), after.size());
    for (size_t i = 0; i < after.size(); ++i)
      if ((i < before || i >= before + bytes) && after[i] != std::byte{0xa5})
        return "byte " + std::to_string(int64_t(i) - int64_t(before)) + " of the workspace of " +
               std::to_string(bytes) + " was overwritten";
    if (run == 0) first = images;
    else if (images != first) return "run " + std::to_string(run + 1) + " gave other bits than run 1";
  }
  return compare(made, expected);
}

void check(const Quantization& q, int repeats = 3) {
  INFO(q.describe());
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  QuantizeCase made(q);
  CHECK(run_and_compare(made, gpu().stream, repeats) == "");
}

Quantization random_quantization(uint64_t seed) {
  tools::Random random(seed);
  Quantization q;
  q.seed = seed % 1000003;
  q.dtype = random.chance(0.5) ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
  q.batch = random.between(1, 3);
  q.heads_kv = random.between(1, 3);
  q.heads = q.heads_kv * random.between(1, 3);
  q.rows = random.chance(0.2) ? random.between(1, 64) : random.between(1, 1100);
  q.d = 16 * random.between(1, 16);
  if (random.chance(0.5)) q.d = random.pick<int64_t>({64, 128, 256});
  q.scales = random.pick({Granularity::block, Granularity::head, Granularity::tensor});
  q.mean = random.chance(0.4);
  q.tiles = random.chance(0.3);
  q.incoherent = random.chance(0.4);
  q.lse_offset = random.chance(0.3);
  if (random.chance(0.3)) q.rotary_dim = random.chance(0.5) ? q.d : 16 * random.between(1, q.d / 16);
  q.interleaved = random.chance(0.5);
  q.numbers = random.pick({Numbers::normal, Numbers::shifted, Numbers::outliers});
  q.padded = random.chance(0.5);
  q.order = int(random.between(0, 2));
  return q;
}

uint64_t seed_for(int number) { return tools::mix(tools::seed_of_run(), 9000000 + uint64_t(number)); }

}  // namespace

TEST_CASE("quantize: random shapes", "[quantize]") {
  gpu();
  for (int i = 0; i < 150; ++i) check(random_quantization(seed_for(i)));
}

TEST_CASE("quantize: every head dimension", "[quantize]") {
  gpu();
  for (int64_t d = 16; d <= 256; d += 16)
    for (const bool mean : {false, true}) {
      Quantization q = random_quantization(seed_for(1000 + int(d) + mean));
      q.d = d, q.mean = mean, q.incoherent = true, q.rotary_dim = d > 16 && mean ? d - 16 : 0, q.batch = 1;
      check(q);
      q.incoherent = false, q.tiles = true, q.rotary_dim = 0;
      check(q);
    }
}

TEST_CASE("quantize: lengths at the borders of tiles, blocks and parts", "[quantize]") {
  gpu();
  for (const int64_t rows : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1025})
    for (const Granularity scales : {Granularity::block, Granularity::head, Granularity::tensor})
      for (const bool tiles : {false, true}) {
        Quantization q;
        q.rows = rows, q.scales = scales, q.tiles = tiles, q.mean = rows % 2, q.seed = seed_for(2000) % 1000003;
        q.d = rows % 3 == 0 ? 64 : rows % 3 == 1 ? 128 : 256;
        check(q);
      }
}

TEST_CASE("quantize: numbers that are not finite, and zeros", "[quantize]") {
  gpu();
  for (const Granularity scales : {Granularity::block, Granularity::head, Granularity::tensor})
    for (const Numbers numbers : {Numbers::not_finite, Numbers::zeros})
      for (const bool mean : {false, true})
        for (const bool tiles : {false, true}) {
          Quantization q;
          q.rows = 300, q.scales = scales, q.numbers = numbers, q.mean = mean, q.tiles = tiles;
          q.seed = seed_for(3000) % 1000003;
          check(q);
          if (mean) continue;
          // What is not finite stays in its block of mixed columns: here the whole row, or 16 columns of it.
          q.incoherent = true, q.d = tiles ? 128 : 48;
          check(q);
        }
}

// More heads than thread blocks that measure, and several parts of each head.
TEST_CASE("quantize: many heads", "[quantize]") {
  gpu();
  for (const Granularity scales : {Granularity::block, Granularity::head, Granularity::tensor})
    for (const bool mean : {false, true}) {
      Quantization q;
      q.batch = 2, q.heads = 7, q.rows = 6000, q.d = scales == Granularity::head ? 64 : 128;
      q.scales = scales, q.mean = mean, q.incoherent = mean, q.tiles = !mean, q.seed = seed_for(4000) % 1000003;
      check(q, 5);
      q.batch = 300, q.heads = 5, q.rows = 20, q.d = 64;
      check(q);
    }
}

TEST_CASE("quantize: nothing to compute", "[quantize]") {
  gpu();
  for (const bool mean : {false, true}) {
    Quantization q;
    q.mean = mean, q.rows = 0;
    check(q);
    q.rows = 10, q.batch = 0;
    check(q);
    q.batch = 1, q.heads = 0;
    check(q);
  }
}

TEST_CASE("quantize: small selection", "[quantize][sanitizer]") {
  gpu();
  for (const int64_t d : {64, 128, 256})
    for (const bool measures : {false, true})
      for (const bool rotates : {false, true}) {
        Quantization q;
        q.rows = 330, q.d = d, q.mean = measures;
        q.scales = !measures || d == 128 ? Granularity::block : d == 64 ? Granularity::head : Granularity::tensor;
        q.rotary_dim = rotates ? d - 16 : 0, q.interleaved = d == 64, q.incoherent = d != 128, q.tiles = rotates;
        q.lse_offset = !rotates, q.padded = true, q.order = 2, q.seed = 11 + uint64_t(d);
        check(q);
      }
}

TEST_CASE("quantize: a captured call is replayed", "[quantize][graphs]") {
  const tools::Stream& stream = gpu().stream;
  for (const bool mean : {false, true}) {
    Quantization q;
    q.mean = mean, q.scales = mean ? Granularity::head : Granularity::block, q.rows = 700, q.seed = 5;
    QuantizeCase made(q), expected(q);
    REQUIRE(compute_on_host(expected));
    OnDevice<QuantizeCase> device(made);
    size_t bytes = 0;
    REQUIRE(fa3_quantize_workspace_size(&device.params, &bytes) == FA3_OK);
    tools::DeviceBuffer workspace(bytes);
    workspace.fill(0x5a);
    tools::Graph::begin(stream);
    REQUIRE(fa3_quantize(&device.params, workspace.at(0), bytes, stream.get()) == FA3_OK);
    REQUIRE(fa3_quantize(&device.params, workspace.at(0), bytes, stream.get()) == FA3_OK);
    const tools::Graph graph = tools::Graph::end(stream);
    for (int replay = 0; replay < 3; ++replay) {
      device.poison_outputs();
      graph.launch(stream);
      stream.synchronize();
      device.download_outputs(made);
      CHECK(compare(made, expected) == "");
    }
  }
}

}  // namespace fa3::test
