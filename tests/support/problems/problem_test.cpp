// Random problems and their memory.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "../references/oracle.h"
#include "e4m3_rows.h"
#include "params.h"
#include "random.h"

namespace fa3::test {

TEST_CASE("random problems are accepted, run on their row and cover the axes") {
  std::set<int64_t> head_dims;
  std::set<Pattern> patterns;
  int empty_rows = 0, gqa = 0, packed = 0, narrower_v = 0, wider_v = 0;
  for (const ForwardRow& row : forward_rows) {
    if (row.has(Trait::planned)) continue;  // takes other problems
    for (uint64_t i = 0; i < 25; ++i) {
      const uint64_t number = 1000 * uint64_t(&row - forward_rows.data()) + i;  // other problems for every row
      const Problem p = random_problem(row, tools::mix(tools::seed_of_run(), number), 2e6);
      Case made(p);
      INFO(p.describe());
      const fa3_forward_params params = made.host_params();
      const fa3_status status = fa3_forward_check(&params);
      INFO(fa3_last_error_message());
      REQUIRE(status == FA3_OK);
      fa3_kernel_info info = tools::kernel_info();
      REQUIRE(fa3_forward_kernel_info(&params, 132, 0, &info) == FA3_OK);
      REQUIRE(std::string(info.name) == row.name);
      head_dims.insert(p.head_dim);
      patterns.insert(p.pattern);
      empty_rows += p.visible_keys(0) == 0;
      gqa += p.heads != p.heads_kv;
      packed += p.packed_qkv;
      narrower_v += p.v_dim() < p.head_dim;
      wider_v += p.v_dim() > p.head_dim;
    }
  }
  CHECK(head_dims.size() > 25);
  CHECK(patterns.size() == pattern_count);
  CHECK(empty_rows > 5);
  CHECK(gqa > 100);
  CHECK(packed > 5);
  CHECK((narrower_v > 100 && wider_v > 100));
}

TEST_CASE("numbers of a tensor are N(0,1), rounded to its dtype") {
  for (const ForwardRow& row : forward_rows) {
    if (row.causal() || row.dtype == Dtype::e4m3 || row.has(Trait::planned)) continue;
    const Case made(plain_problem(row, 2, 130, 200, 4, 2, 60));
    for (int tensor = 0; tensor < 3; ++tensor) {
      double sum = 0, squares = 0;
      const int64_t rows = tensor == 0 ? 130 : 200;
      std::vector<float> numbers(size_t(tensor == 2 ? row.dv : row.d));
      for (int64_t i = 0; i < rows; ++i) {
        made.read_row(tensor, 1, i, 1, numbers.data());
        for (const float x : numbers) sum += x, squares += double(x) * x;
      }
      const double count = double(rows) * double(numbers.size());
      CHECK(std::fabs(sum) < 5 * std::sqrt(count));
      CHECK(std::fabs(squares / count - 1) < 0.1);
    }
  }
}

TEST_CASE("every scale of e4m3 is the smallest that holds its block") {
  Problem p = plain_problem(e4m3_rows[0], 2, 130, 200, 4, 2, 50);
  p.head_dim = 32, p.v_mean = p.lse_offset = true;
  const auto largest = [&](const Case& made, int tensor, int64_t b, int64_t h, int64_t first, int64_t rows) {
    std::vector<float> row(size_t(p.head_dim));
    float found = 0;
    for (int64_t i = first; i < first + rows; ++i) {
      made.read_row(tensor, b, i, h, row.data());
      for (const float x : row) found = std::max(found, std::fabs(x));
    }
    return found;
  };
  for (const bool tiles : {false, true})
    for (const Scales kind : {Scales::tensor, Scales::head, Scales::block}) {
      p.q_scales = p.k_scales = p.v_scales = kind, p.v_tiles = tiles;
      const Case made(p);
      const View* const scales[] = {&made.q_scale, &made.k_scale, &made.v_scale};
      for (int t = 0; t < 3; ++t) {
        const int64_t heads = t == 0 ? 4 : 2, rows = t == 0 ? 130 : 200, blocks = (rows + 63) / 64;
        const std::vector<int64_t> dim = kind == Scales::tensor ? std::vector<int64_t>{1, 1, 1}
                                         : kind == Scales::head ? std::vector<int64_t>{2, heads, 1}
                                                                : std::vector<int64_t>{2, heads, blocks};
        CHECK(scales[t]->layout.dim == dim);
        float tensor_largest = 0;
        std::set<float> different;
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t h = 0; h < heads; ++h) {
            for (int64_t n = 0; n < blocks && kind == Scales::block; ++n)
              CHECK(largest(made, t, b, h, 64 * n, std::min<int64_t>(64, rows - 64 * n)) == 448);
            const float head_largest = largest(made, t, b, h, 0, rows);
            if (kind == Scales::head) CHECK(head_largest == 448);
            tensor_largest = std::max(tensor_largest, head_largest);
            different.insert(made.scale_of(t, b, rows - 1, h));
          }
        CHECK(tensor_largest == 448);
        CHECK(different.size() == (kind == Scales::tensor ? 1 : size_t(2 * heads)));
      }
    }
}

TEST_CASE("tiles hold what rows hold, zeros beyond the last key, and nothing else is a number") {
  Problem p = plain_problem(e4m3_rows[0], 2, 5, 37, 2, 2, 51);
  p.head_dim = 48, p.v = Storage{Storage::sbhd, 1, 1, 2, 1, 3, false, false};
  p.v_tiles = true;
  const Case tiles(p);
  p.v_tiles = false;
  const Case rows(p);
  CHECK(tiles.v.layout.dim == std::vector<int64_t>{2, 2, 3, 48, 16});
  std::vector<float> a(48), b(48);
  for (int64_t batch = 0; batch < 2; ++batch)
    for (int64_t head = 0; head < 2; ++head)
      for (int64_t key = 0; key < 37; ++key) {
        tiles.read_row(2, batch, key, head, a.data()), rows.read_row(2, batch, key, head, b.data());
        CHECK(a == b);
      }
  // Both are read as the header says: the library's reference agrees.
  Case same_tiles(tiles), same_rows(rows);
  CHECK(reference_forward(same_tiles).o == reference_forward(same_rows).o);

  const Image& image = tiles.images[size_t(tiles.v.image)];
  size_t zeros = 0, poisoned = 0;
  for (const auto byte : image) zeros += byte == 0, poisoned += byte == poison8;
  size_t zeros_of_keys = 0;
  for (int64_t n = 0; n < 2 * 2 * 37; ++n) {
    tiles.read_row(2, n / 74, n % 37, n / 37 % 2, a.data());
    zeros_of_keys += size_t(std::count(a.begin(), a.end(), 0.0f));
  }
  // Some zeros among the keys are negative.
  CHECK((zeros >= 2 * 2 * 11 * 48 && zeros <= 2 * 2 * 11 * 48 + zeros_of_keys));
  CHECK(poisoned == image.size() - 2 * 2 * 48 * 48);
}

}  // namespace fa3::test
