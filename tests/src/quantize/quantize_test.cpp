// fa3_quantize: its arguments, its workspace, and the parts in which it measures.
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../call.h"
#include "../refused.h"
#include "params/quantize_work.h"

namespace fa3::test {
namespace {

using P = fa3_quantize_params;

P params() {
  P p{};
  p.struct_size = sizeof p;
  return p;
}

// Parameters with every tensor, whose pointers are far apart and lead nowhere.
P imaginary_quantization(bool tiles = false) {
  const auto at = [](uintptr_t n) { return reinterpret_cast<void*>(n << 42); };
  P p = params();
  p.x = tensor(at(1), FA3_DTYPE_BF16, {2, 100, 4, 64});
  p.y = tiles ? tensor(at(2), FA3_DTYPE_E4M3, {2, 4, 7, 64, 16}) : tensor(at(2), FA3_DTYPE_E4M3, {2, 100, 4, 64});
  p.scale = tensor(at(3), FA3_DTYPE_FP32, {2, 4, 2});
  p.mean = tensor(at(4), FA3_DTYPE_FP32, {2, 4, 64});
  p.rotary_cos = tensor(at(5), FA3_DTYPE_FP32, {100, 16});
  p.rotary_sin = tensor(at(6), FA3_DTYPE_FP32, {100, 16});
  p.k_mean = tensor(at(7), FA3_DTYPE_FP32, {2, 2, 64});
  p.lse_offset = tensor(at(8), FA3_DTYPE_FP32, {2, 4, 100});
  return p;
}

using Change = ChangeOf<P>;

const Change bad_shapes[] = {
    {"flags is 0x4, has bits", invalid, [](P& p) { p.flags = 4; }},
    {"softmax_scale is -1", invalid, [](P& p) { p.softmax_scale = -1; }},
    {"softmax_scale is nan", invalid, [](P& p) { p.softmax_scale = NAN; }},
    {"softmax_scale is inf", invalid, [](P& p) { p.softmax_scale = INFINITY; }},
    {"softmax_scale is 3e+38, must be > 0 and finite (times log2(e), too)", invalid,
     [](P& p) { p.softmax_scale = 3e38f; }},
    {"reserved is 1, must be 0", invalid, [](P& p) { p.reserved = 1; }},
    {"reserved is -1, must be 0", invalid, [](P& p) { p.reserved = -1; }},
    {"x.dtype is fp32; the kernels quantize bf16 and fp16", unsupported, [](P& p) { p.x.dtype = FA3_DTYPE_FP32; }},
    {"x.dtype is 99, must be a fa3_dtype", invalid, [](P& p) { p.x.dtype = 99; }},
    {"x.rank is 3, must be 4", invalid, [](P& p) { p.x.rank = 3; }},
    {"x.dim[0] is -1", invalid, [](P& p) { p.x.dim[0] = -1; }},
    {"x.dim[3] (head_dim) is 72, must be a multiple of 16 from 16 to 256", invalid, [](P& p) { p.x.dim[3] = 72; }},
    {"x.dim[3] (head_dim) is 272; the largest supported is 256", unsupported, [](P& p) { p.x.dim[3] = 272; }},
    {"x.dim[3] (head_dim) is 0", invalid, [](P& p) { p.x.dim[3] = 0; }},
    {"x.stride[3] is 2, must be 1", invalid, [](P& p) { p.x.stride[3] = 2; }},
    {"x.stride[1] is 260, must be a multiple of 8", invalid, [](P& p) { p.x.stride[1] = 260; }},
    {"x.stride[0] is -8", invalid, [](P& p) { p.x.stride[0] = -8; }},
    {"y.dtype is bf16, must be e4m3", invalid, [](P& p) { p.y.dtype = FA3_DTYPE_BF16; }},
    {"y.dtype is e5m2, which no function takes", unsupported, [](P& p) { p.y.dtype = FA3_DTYPE_E5M2; }},
    {"y.rank is 3, must be 4, or 5", invalid, [](P& p) { p.y.rank = 3; }},
    {"y.dim[0] is 3, must equal x.dim[0], which is 2", invalid, [](P& p) { p.y.dim[0] = 3; }},
    {"y.dim[1] is 3, must equal x.dim[1], which is 100", invalid, [](P& p) { p.y.dim[1] = 3; }},
    {"y.dim[2] is 3, must equal x.dim[2], which is 4", invalid, [](P& p) { p.y.dim[2] = 3; }},
    {"y.dim[3] is 32, must equal x.dim[3], which is 64", invalid, [](P& p) { p.y.dim[3] = 32; }},
    {"y.stride[1] is 264, must be a multiple of 16", invalid, [](P& p) { p.y.stride[1] = 264; }},
    {"y.stride[2] is 0, must be > 0", invalid, [](P& p) { p.y.stride[2] = 0; }},
    {"y.stride[3] is 2, must be 1", invalid, [](P& p) { p.y.stride[3] = 2; }},
    {"y.stride[2] is 48: elements of an output may overlap", invalid, [](P& p) { p.y.stride[2] = 48; }},
    {"scale.dtype is bf16, must be fp32", invalid, [](P& p) { p.scale.dtype = FA3_DTYPE_BF16; }},
    {"scale.rank is 2, must be 3", invalid, [](P& p) { p.scale.rank = 2; }},
    {"scale.dim is 2, 1, 2, must be 1, 1, 1, or", invalid, [](P& p) { p.scale.dim[1] = 1; }},
    {"which are 2, 4, 2", invalid, [](P& p) { p.scale.dim[2] = 3; }},
    {"scale.stride[0] is 3: elements of an output may overlap", invalid, [](P& p) { p.scale.stride[0] = 3; }},
    {"mean.dtype is bf16, must be fp32", invalid, [](P& p) { p.mean.dtype = FA3_DTYPE_BF16; }},
    {"mean.rank is 4, must be 3", invalid, [](P& p) { p.mean.rank = 4; }},
    {"mean.dim[0] is 1, must equal x.dim[0]", invalid, [](P& p) { p.mean.dim[0] = 1; }},
    {"mean.dim[1] is 1, must equal x.dim[2]", invalid, [](P& p) { p.mean.dim[1] = 1; }},
    {"mean.dim[2] is 1, must equal x.dim[3]", invalid, [](P& p) { p.mean.dim[2] = 1; }},
    {"mean.stride[2] is 2, must be 1", invalid, [](P& p) { p.mean.stride[2] = 2; }},
    {"rotary_sin is absent, must be given where rotary_cos is", invalid, [](P& p) { p.rotary_sin = {}; }},
    {"rotary_cos is absent, must be given where rotary_sin is", invalid, [](P& p) { p.rotary_cos = {}; }},
    {"rotary_cos.dtype is fp16, must be fp32", invalid, [](P& p) { p.rotary_cos.dtype = FA3_DTYPE_FP16; }},
    {"rotary_sin.rank is 3, must be 2", invalid, [](P& p) { p.rotary_sin.rank = 3; }},
    {"rotary_cos.dim[0] is 99, must equal x.dim[1], which is 100", invalid, [](P& p) { p.rotary_cos.dim[0] = 99; }},
    {"rotary_cos.dim[1] (rotary_dim / 2) is 12, must be a multiple", invalid, [](P& p) { p.rotary_cos.dim[1] = 12; }},
    {"rotary_cos.dim[1] (rotary_dim / 2) is 40, must be", invalid, [](P& p) { p.rotary_cos.dim[1] = 40; }},
    {"rotary_sin.dim[1] is 8, must equal rotary_cos.dim[1]", invalid, [](P& p) { p.rotary_sin.dim[1] = 8; }},
    {"rotary_sin.stride[0] is 18, must be a multiple of 4", invalid, [](P& p) { p.rotary_sin.stride[0] = 18; }},
    {"rotary_cos.stride[1] is 2, must be 1", invalid, [](P& p) { p.rotary_cos.stride[1] = 2; }},
    {"k_mean is absent, must be given where lse_offset is", invalid, [](P& p) { p.k_mean = {}; }},
    {"lse_offset is absent, must be given where k_mean is", invalid, [](P& p) { p.lse_offset = {}; }},
    {"k_mean.dtype is bf16, must be fp32", invalid, [](P& p) { p.k_mean.dtype = FA3_DTYPE_BF16; }},
    {"k_mean.dim[0] is 1, must equal x.dim[0]", invalid, [](P& p) { p.k_mean.dim[0] = 1; }},
    {"k_mean.dim[1] is 3, must divide the heads, x.dim[2], which is 4", invalid, [](P& p) { p.k_mean.dim[1] = 3; }},
    {"k_mean.dim[1] is 0, must divide", invalid, [](P& p) { p.k_mean.dim[1] = 0; }},
    {"k_mean.dim[2] is 32, must equal x.dim[3]", invalid, [](P& p) { p.k_mean.dim[2] = 32; }},
    {"k_mean.stride[2] is 2, must be 1", invalid, [](P& p) { p.k_mean.stride[2] = 2; }},
    {"lse_offset.dtype is bf16, must be fp32", invalid, [](P& p) { p.lse_offset.dtype = FA3_DTYPE_BF16; }},
    {"lse_offset.dim[0] is 1, must equal x.dim[0]", invalid, [](P& p) { p.lse_offset.dim[0] = 1; }},
    {"lse_offset.dim[1] is 1, must equal x.dim[2]", invalid, [](P& p) { p.lse_offset.dim[1] = 1; }},
    {"lse_offset.dim[2] is 1, must equal x.dim[1]", invalid, [](P& p) { p.lse_offset.dim[2] = 1; }},
    {"lse_offset.stride[2] is 0, must be > 0", invalid, [](P& p) { p.lse_offset.stride[2] = 0; }},
};

const Change bad_pointers[] = {
    {"x.data is NULL", invalid, [](P& p) { p.x.data = nullptr; }},
    {"x.data is 0x40000000008, must be aligned to 16 bytes", invalid, [](P& p) { move(p.x, 8); }},
    {"y.data is 0x80000000008, must be aligned to 16 bytes", invalid, [](P& p) { move(p.y, 8); }},
    {"scale.data is NULL", invalid, [](P& p) { p.scale.data = nullptr; }},
    {"scale.data is 0xc0000000002, must be aligned to 4 bytes", invalid, [](P& p) { move(p.scale, 2); }},
    {"mean.data is NULL", invalid, [](P& p) { p.mean.data = nullptr; }},
    {"rotary_cos.data is 0x140000000008, must be aligned to 16 bytes", invalid, [](P& p) { move(p.rotary_cos, 8); }},
    {"k_mean.data is NULL", invalid, [](P& p) { p.k_mean.data = nullptr; }},
    {"y may overlap x", invalid, [](P& p) { p.y.data = p.x.data; }},
    {"y may overlap scale", invalid, [](P& p) { p.scale.data = p.y.data; }},
    {"scale may overlap lse_offset", invalid, [](P& p) { p.scale.data = p.lse_offset.data; }},
    {"mean may overlap k_mean", invalid, [](P& p) { p.mean.data = p.k_mean.data; }},
    {"lse_offset may overlap rotary_sin", invalid, [](P& p) { p.lse_offset.data = p.rotary_sin.data; }},
};

void check_refused(const P& p, const Change& change) {
  INFO(change.name);
  expect(fa3_quantize_check(&p), change);
  CHECK(fa3_reference_quantize(&p) == change.status);  // follows no pointer either
}

}  // namespace

TEST_CASE("quantize: good arguments are accepted", "[quantize]") {
  for (const bool tiles : {false, true}) {
    P p = imaginary_quantization(tiles);
    INFO(fa3_last_error_message());
    CHECK(fa3_quantize_check(&p) == FA3_OK);
    p.scale = tensor(p.scale.data, FA3_DTYPE_FP32, {2, 4, 1});
    CHECK(fa3_quantize_check(&p) == FA3_OK);
    p.scale = tensor(p.scale.data, FA3_DTYPE_FP32, {1, 1, 1});
    CHECK(fa3_quantize_check(&p) == FA3_OK);
    p.mean = p.rotary_cos = p.rotary_sin = p.k_mean = p.lse_offset = {};
    CHECK(fa3_quantize_check(&p) == FA3_OK);
    p.x.stride[0] = p.x.stride[2] = 0;  // broadcasts
    p.flags = FA3_QUANTIZE_INCOHERENT | FA3_QUANTIZE_ROTARY_INTERLEAVED;
    CHECK(fa3_quantize_check(&p) == FA3_OK);
    p.x.dim[0] = p.y.dim[0] = 1, p.y.stride[0] = 3;  // not used
    CHECK(fa3_quantize_check(&p) == FA3_OK);
  }
}

TEST_CASE("quantize: a bad argument is named", "[quantize]") {
  size_t bytes = 0;
  for (const Change& change : bad_shapes) {
    P p = imaginary_quantization();
    change.apply(p);
    check_refused(p, change);
    CHECK(fa3_quantize_workspace_size(&p, &bytes) == change.status);
  }
  for (const Change& change : bad_pointers) {
    P p = imaginary_quantization();
    change.apply(p);
    check_refused(p, change);
    CHECK(fa3_quantize_workspace_size(&p, &bytes) == FA3_OK);
  }
  const Change bad_tiles[] = {
      {"y.dim[1] is 3, must equal x.dim[2], which is 4", invalid, [](P& p) { p.y.dim[1] = 3; }},
      {"y.dim[2] is 6, must equal the number of tiles, x.dim[1] / 16 rounded up, which is 7", invalid,
       [](P& p) { p.y.dim[2] = 6; }},
      {"y.dim[3] is 48, must equal x.dim[3]", invalid, [](P& p) { p.y.dim[3] = 48; }},
      {"y.dim[4] is 8, must be 16", invalid, [](P& p) { p.y.dim[4] = 8; }},
      {"y.stride[3] is 32, must be 16", invalid, [](P& p) { p.y.stride[3] = 32; }},
      {"y.stride[4] is 2, must be 1", invalid, [](P& p) { p.y.stride[4] = 2; }},
      {"y.stride[2] is 1032, must be a multiple of 16", invalid, [](P& p) { p.y.stride[2] = 1032; }},
      {"y.stride[2] is 1008: elements of an output may overlap", invalid, [](P& p) { p.y.stride[2] = 1008; }},
  };
  for (const Change& change : bad_tiles) {
    P p = imaginary_quantization(true);
    change.apply(p);
    check_refused(p, change);
  }
  P many = imaginary_quantization();
  many.mean = many.rotary_cos = many.rotary_sin = many.k_mean = many.lse_offset = {};
  many.x.stride[0] = many.x.stride[1] = many.x.stride[2] = 0;
  many.x.dim[0] = many.y.dim[0] = 1 << 16, many.x.dim[1] = many.y.dim[1] = 1, many.x.dim[2] = many.y.dim[2] = 1 << 15;
  many.y.stride[0] = 64 << 15;
  many.scale = tensor(many.scale.data, FA3_DTYPE_FP32, {1, 1, 1});
  expect(fa3_quantize_check(&many), unsupported, "x has 2147483648 heads of 1 rows");
  CHECK(fa3_quantize_check(nullptr) == invalid);
  const P good = imaginary_quantization();
  expect(fa3_quantize_workspace_size(&good, nullptr), invalid, "bytes is NULL");
}

TEST_CASE("quantize: rows and blocks that the kernels cannot count are refused", "[quantize]") {
  const auto check = [](int64_t rows, int64_t heads) {
    P p = imaginary_quantization();
    p.mean = p.rotary_cos = p.rotary_sin = p.k_mean = p.lse_offset = {};
    p.x.dim[0] = 1, p.x.dim[1] = rows, p.x.dim[2] = heads, p.x.dim[3] = 16;
    p.x.stride[0] = p.x.stride[1] = p.x.stride[2] = 0;
    p.y = tensor(p.y.data, FA3_DTYPE_E4M3, {1, rows, heads, 16});
    p.scale = tensor(p.scale.data, FA3_DTYPE_FP32, {1, 1, 1});
    return fa3_quantize_check(&p);
  };
  constexpr int64_t most_rows = INT32_MAX - 1024, most_blocks = INT32_MAX - 65536;
  CHECK((check(most_rows, 1) == FA3_OK && check(1, most_blocks) == FA3_OK));
  CHECK((check(most_rows + 1, 1) == unsupported && check(1, most_blocks + 1) == unsupported));
}

TEST_CASE("quantize: the workspace", "[quantize]") {
  size_t bytes = 0;
  P p = imaginary_quantization();
  p.mean = {};
  p.x.data = p.y.data = nullptr;
  REQUIRE(fa3_quantize_workspace_size(&p, &bytes) == FA3_OK);
  CHECK(bytes == FA3_FORWARD_WORKSPACE_BYTES);
  p = imaginary_quantization();
  REQUIRE(fa3_quantize_workspace_size(&p, &bytes) == FA3_OK);
  CHECK(bytes > FA3_FORWARD_WORKSPACE_BYTES);
  std::vector<uint64_t> memory(bytes / 8 + 2);
  void* const workspace = memory.data();
  expect(fa3_quantize(&p, nullptr, bytes, nullptr), invalid, "workspace is NULL");
  CHECK(fa3_quantize(&p, workspace, bytes - 1, nullptr) == FA3_ERROR_WORKSPACE_TOO_SMALL);
  expect(fa3_quantize(&p, p.x.data, bytes, nullptr), invalid, "workspace may overlap x");
  expect(fa3_quantize(&p, p.mean.data, bytes, nullptr), invalid, "workspace may overlap mean");
  p.x.dim[1] = p.y.dim[1] = p.rotary_cos.dim[0] = p.rotary_sin.dim[0] = p.lse_offset.dim[2] = p.scale.dim[2] = 0;
  CHECK(fa3_quantize(&p, workspace, sizeof(uint64_t) * memory.size(), nullptr) == FA3_OK);  // no GPU is asked for
}

TEST_CASE("quantize: the parts that are measured", "[quantize]") {
  for (const PassRow& row : pass_rows) {
    if (row.pass != Pass::measure) continue;
    for (const Measure measure : {Measure::largest, Measure::sums, Measure::extremes})
      for (const int64_t heads : {1, 2, 7, 16, 33, 128, 5000})
        for (const int64_t length : {1, 64, 257, 1000, 16384, 100000}) {
          const MeasureStep step = MeasureStep::of(row, measure);
          const QuantizeParts parts = QuantizeParts::of(row, measure, heads, length);
          const int64_t steps = divided_up(length, step.rows), resident = 132 * row.resident_blocks();
          CHECK((parts.groups == divided_up(heads, step.heads) && parts.parts >= 1 && parts.parts <= steps));
          CHECK(parts.thread_blocks == std::min<int64_t>(resident, int64_t{parts.groups} * parts.parts));
          // None has a step more than it must, and the machine is filled by half at least, if there is enough.
          const int64_t most = std::max<int64_t>(1, resident / parts.groups);
          CHECK(divided_up<int64_t>(steps, parts.parts) == divided_up(steps, most));
          CHECK((parts.parts == steps || parts.groups * parts.parts * 2 >= std::min<int64_t>(resident, parts.groups)));
        }
  }
}

}  // namespace fa3::test
