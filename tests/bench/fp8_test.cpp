// Inputs of 8 bits.
#include <catch2/catch_test_macros.hpp>

#include "../../tools/fa3-bench/measure/fp8.h"
#include "bench_test.h"
#include "half.h"
#include "random.h"

namespace fa3::bench {

TEST_CASE("inputs of e4m3 are N(0,1), rounded once") {
  const std::vector<uint8_t> numbers = normal_e4m3(3, 10000);
  float normal[10000];
  tools::normal(3, 0, normal, 10000);
  for (size_t i = 0; i < 10000; ++i) CHECK(numbers[i] == tools::to_e4m3(normal[i]));
}

TEST_CASE("tiles hold V as the header says") {
  const Point p{FA3_DTYPE_E4M3, 48, false, 2, 1, 37, 6, 3, {}, VForm::tiles};
  std::vector<uint8_t> v(size_t(p.k_elements()));
  for (size_t i = 0; i < v.size(); ++i) v[i] = uint8_t(tools::mix(i) % 0x7f + 1);
  const std::vector<uint8_t> tiles = tiles_of(p, v.data());
  REQUIRE(tiles.size() == 2 * 3 * 3 * 48 * 16);
  size_t at = 0;
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 3; ++h)
      for (int g = 0; g < 3; ++g)
        for (int row = 0; row < 48; ++row)
          for (int byte = 0; byte < 16; ++byte, ++at) {
            const int a16 = row / 16, c2 = row / 8 % 2, r = row % 8, q = byte / 4, b2 = byte / 2 % 2, e = byte % 2;
            const int column = 16 * a16 + 2 * r + c2, key = 16 * g + 8 * b2 + 2 * q + e;
            CHECK(tiles[at] == (key < 37 ? v[size_t(((b * 37 + key) * 3 + h) * 48 + column)] : 0));
          }
}

}  // namespace fa3::bench
