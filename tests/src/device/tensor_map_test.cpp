// Tensor maps of rows that the table may get: the driver is a function of the test.
#include "device/tensor_map.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <type_traits>

#include "params/clipped.h"

namespace fa3::test {
namespace {

struct Asked {
  uint32_t columns, rows;
  CUtensorMapSwizzle swizzle;
  uint32_t rank;
  uint64_t address, dim[5], stride[5];  // stride[0] is unused: elements of the innermost dimension touch
};
Asked asked;

CUresult encode_tiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t rank, void* address, const cuuint64_t* dim,
                      const cuuint64_t* stride, const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  asked = {box[0], box[1], swizzle, rank, reinterpret_cast<uint64_t>(address), {}, {}};
  std::copy_n(dim, rank, asked.dim), std::copy_n(stride, rank - 1, asked.stride + 1);
  return CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("the swizzle is as wide as a box, whichever slabs a row has", "[tensor map]") {
  Driver driver{};
  driver.tensor_map_encode_tiled = encode_tiled;
  TensorMap map;
  const auto check = [&](const auto& row) {
    const int64_t d = row.d;
    const View view{nullptr, row.is_8bit() ? FA3_DTYPE_E4M3 : FA3_DTYPE_BF16, {2, 3, 4, d}, {12 * d, 4 * d, d, 1}};
    const auto right = [&] {
      const uint32_t bytes = asked.columns * uint32_t(row.element_bytes());
      return bytes == uint32_t(row.slab_bytes()) &&
             asked.swizzle == (bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
    };
    REQUIRE(encode(driver, "k", view, row, row.stage_keys(), map) == FA3_OK);
    CHECK(right());
    if constexpr (std::is_same_v<decltype(row), const ForwardRow&>) {
      REQUIRE(encode_packed(driver, "q", view, row, 2, map) == FA3_OK);
      CHECK(right());
    }
    REQUIRE(encode_clipped(driver, "q", view, row, row.Br, clipped_steps(view), map) == FA3_OK);
    CHECK(right());
  };
  const auto check_all = [&](const auto& rows) {
    for (auto row : rows) {
      INFO(row.name);
      check(row);
      row.traits = row.traits | Trait::narrow_slabs;
      REQUIRE(row.slab_bytes() == 64);
      check(row);
    }
  };
  check_all(forward_rows);
  check_all(backward_rows);
}

TEST_CASE("steps of a clipped map reach every row of every batch entry", "[tensor map]") {
  constexpr int64_t batch = 3, rows = 50, heads = 2, d = 64;
  const struct {
    int64_t batch_stride, row_stride, rows;
  } strides[] = {{rows * heads * d, heads * d, rows}, {heads * d, batch * heads * d, rows},  // sequences first
                 {70 * heads * d + 8, heads * d, rows},                                     // gaps of any size
                 {0, heads * d, rows}, {heads * d, 0, rows}, {0, 0, rows}, {heads * d, 0, 1}};
  for (const auto& [batch_stride, row_stride, count] : strides) {
    const View view{nullptr, FA3_DTYPE_BF16, {batch, count, heads, d}, {batch_stride, row_stride, d, 1}};
    const StepsOfView steps = clipped_steps(view);
    INFO(batch_stride << " and " << row_stride << " elements apart");
    CHECK((steps.bytes > 0 && steps.bytes % 16 == 0 && steps.count < INT32_MAX));
    for (int32_t b = 0; b < batch; ++b)
      for (int32_t row = 0; row < count; ++row)
        REQUIRE(steps.steps.at(b, row) * steps.bytes == 2 * (b * batch_stride + row * row_stride));
    CHECK(steps.steps.at(batch - 1, int32_t(count)) == steps.count);
  }
  const View far{nullptr, FA3_DTYPE_BF16, {2, 1 << 20, heads, d}, {8, int64_t{1} << 20, d, 1}};
  CHECK(clipped_steps(far).count >= INT32_MAX);
}

// Of which memory has its first rows low, as pools of the driver do, or far apart, as (seqlen, batch, heads, head_dim)
// has them.
TEST_CASE("a clipped map ends where the sequence does, wherever rows lie", "[tensor map]") {
  Driver driver{};
  driver.tensor_map_encode_tiled = encode_tiled;
  TensorMap map;
  constexpr int64_t entries = 2, rows = 50, heads = 3, d = 64;
  constexpr uint64_t head_bytes = 160;
  for (const uint64_t data : {uint64_t(0x1000), uint64_t(0x302000000), uint64_t(0x7f0000001000)})
    for (const uint64_t row_bytes : {uint64_t(1024), uint64_t(1) << 21, uint64_t(1) << 34, (uint64_t(1) << 34) + 4096}) {
      const View view{reinterpret_cast<void*>(data), FA3_DTYPE_BF16, {entries, rows, heads, d},
                      {rows * int64_t(row_bytes) / 2, int64_t(row_bytes) / 2, head_bytes / 2, 1}};
      REQUIRE(encode_clipped(driver, "k", view, backward_rows[0], 64, clipped_steps(view), map) == FA3_OK);
      CHECK((asked.rows == 64 && asked.rank == 5));
      CHECK(asked.address == data);  // there must be memory
      for (uint32_t i = 0; i < asked.rank; ++i) CHECK((asked.dim[i] >= 1 && asked.dim[i] <= uint64_t(1) << 32));
      for (uint32_t i = 1; i < asked.rank; ++i)
        CHECK((asked.stride[i] % 16 == 0 && asked.stride[i] < uint64_t(1) << 40));
      for (const auto& [first, n] : {std::pair{0, 0}, {0, 1}, {0, 100}, {37, 20}, {99, 1}, {100, 0}})
        for (const int row : {0, 1, 19, 20, 63, 99, 100, 300}) {
          INFO(first << " + " << row << " of " << n << ", " << row_bytes << " bytes apart, from " << data);
          const Place at = clipped(first + n, n, row, 2);
          const int32_t coordinates[] = {0, at.row, at.head, at.batch, clipped_rows};
          bool inside = true;
          uint64_t address = asked.address;
          for (uint32_t i = 0; i < asked.rank; ++i) {
            REQUIRE(coordinates[i] >= 0);
            inside &= uint64_t(coordinates[i]) < asked.dim[i];
            address += uint64_t(coordinates[i]) * asked.stride[i];
          }
          REQUIRE(inside == (row < n));
          if (inside) REQUIRE(address == data + uint64_t(first + row) * row_bytes + 2 * head_bytes);
        }
    }
}

}  // namespace fa3::test
