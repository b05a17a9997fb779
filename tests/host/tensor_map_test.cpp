// Tensor maps of rows that the table may get: the driver is a function of the test.
#include "device/tensor_map.h"

#include <catch2/catch_test_macros.hpp>

namespace fa3::test {
namespace {

struct Asked {
  uint32_t columns;
  CUtensorMapSwizzle swizzle;
};
Asked asked;

CUresult encode_tiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                      const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  asked = {box[0], swizzle};
  return CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("the swizzle is as wide as a box, whichever slabs a row has", "[tensor map]") {
  Driver driver{};
  driver.tensor_map_encode_tiled = encode_tiled;
  TensorMap map;
  const auto check = [&](Row row) {
    const int64_t d = row.d;
    const View view{nullptr, row.is_8bit() ? FA3_DTYPE_E4M3 : FA3_DTYPE_BF16, {2, 3, 4, d}, {12 * d, 4 * d, d, 1}};
    const auto right = [&] {
      const uint32_t bytes = asked.columns * uint32_t(row.element_bytes());
      return bytes == uint32_t(row.slab_bytes()) &&
             asked.swizzle == (bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
    };
    REQUIRE(encode(driver, "k", view, row, row.Bc, map) == FA3_OK);
    CHECK(right());
    REQUIRE(encode_packed(driver, "q", view, row, 2, map) == FA3_OK);
    CHECK(right());
  };
  for (Row row : rows) {
    if (row.kind == Kind::pass) continue;
    INFO(row.name);
    check(row);
    row.traits = row.traits | Trait::narrow_slabs;
    REQUIRE(row.slab_bytes() == 64);
    check(row);
  }
}

}  // namespace fa3::test
