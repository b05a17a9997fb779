#include "measure/fp8.h"

#include <algorithm>

#include "half.h"
#include "parallel.h"
#include "random.h"

namespace fa3::bench {

std::vector<uint8_t> normal_e4m3(uint64_t seed, size_t count) {
  constexpr int64_t block = 4096;
  std::vector<uint8_t> out(count);
  tools::parallel_for((int64_t(count) + block - 1) / block, 4, [&](int64_t begin, int64_t end) {
    float values[block];
    for (int64_t first = begin * block; first < std::min(end * block, int64_t(count)); first += block) {
      const int64_t n = std::min(block, int64_t(count) - first);
      tools::normal(seed, uint64_t(first), values, size_t(n));
      for (int64_t i = 0; i < n; ++i) out[size_t(first + i)] = tools::to_e4m3(values[i]);
    }
  });
  return out;
}

std::vector<uint8_t> tiles_of(const Point& p, const uint8_t* v, int64_t period) {
  const int64_t d = p.v_dim(), groups = p.v_groups();
  std::vector<uint8_t> tiles(size_t(p.batch * p.kv_heads * groups * d * v_tile_keys));
  tools::parallel_for(p.batch * p.kv_heads * groups, 64, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t b = tile / groups / p.kv_heads, h = tile / groups % p.kv_heads, first = tile % groups * v_tile_keys;
      for (int64_t n = 0; n < std::min(v_tile_keys, p.seqlen_k - first); ++n) {
        const int64_t row = ((b * p.seqlen_k + first + n) * p.kv_heads + h) * d;
        uint8_t* byte = &tiles[size_t(tile * d * v_tile_keys + n % 8 / 2 * 4 + n / 8 * 2 + n % 2)];
        for (int64_t c = 0; c < d; ++c)
          byte[(c / 16 * 16 + c % 2 * 8 + c % 16 / 2) * v_tile_keys] = v[(row + c) % period];
      }
    }
  });
  return tiles;
}

}  // namespace fa3::bench
