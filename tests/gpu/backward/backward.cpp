// The backward pass: gradients of many problems (backward_call.h), repeated calls, graphs.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "backward_call.h"
#include "problems/problem.h"
#include "random.h"

namespace fa3::test {
namespace {

using gradients::Call, gradients::Shape;

void run(const Shape& shape, int32_t dtype, int32_t mask, bool padded, bool with_dlse, float spread, uint64_t seed,
         uint64_t flags = 0, bool fp32 = false) {
  INFO("batch " << shape.batch << " q " << shape.seqlen_q << " k " << shape.seqlen_k << " heads " << shape.heads << "/"
                << shape.heads_kv << " d " << shape.head_dim << "/" << shape.v_dim() << " dtype " << dtype << " mask "
                << mask << " padded " << padded << " dlse " << with_dlse << " spread " << spread << " seed " << seed
                << " flags " << flags << " fp32 " << fp32);
  const tools::Stream& stream = gpu().stream;
  Call call(shape, dtype, mask, padded, with_dlse, spread, seed, flags, fp32);
  call.launch(stream);
  call.results(stream);
  CHECK(call.verdict() == "");
}

uint64_t seed_for(int n) { return tools::mix(tools::seed_of_run(), 12000000 + uint64_t(n)); }

// With NaN in all that is read of queries, in rows that see no key: q is longer than k.
void run_with_empty_rows(const Shape& shape, uint64_t flags, int n) {
  INFO("batch " << shape.batch << " q " << shape.seqlen_q << " k " << shape.seqlen_k << " heads " << shape.heads << "/"
                << shape.heads_kv << " d " << shape.head_dim << "/" << shape.v_dim() << " flags " << flags << " n "
                << n);
  const tools::Stream& stream = gpu().stream;
  Call call(shape, n % 2 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, FA3_MASK_CAUSAL_BOTTOM_RIGHT, n % 3 == 0, n % 5 < 3, 1,
            seed_for(n), flags);
  call.poison_empty_rows();
  call.launch(stream);
  call.results(stream);
  CHECK(call.verdict() == "");
}

}  // namespace

TEST_CASE("backward: small selection", "[backward][sanitizer]") {
  gpu();
  int n = 0;
  for (const int64_t head_dim : {128, 64, 256})
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
      run({1, 70, 150, 2, 1, head_dim}, FA3_DTYPE_BF16, mask, true, true, 1, seed_for(n++));
      run({2, 200, 130, 2, 2, head_dim - 8}, FA3_DTYPE_FP16, mask, false, false, 1, seed_for(n++));
      run({1, 70, 130, 2, 1, head_dim, head_dim / 2}, FA3_DTYPE_BF16, mask, true, true, 1, seed_for(n++));
      run({1, 700, 130, 4, 1, head_dim}, FA3_DTYPE_BF16, mask, true, false, 1, seed_for(n++));  // K/V heads have parts
      run({3, 50, 40, 4, 2, head_dim}, FA3_DTYPE_BF16, mask, true, true, 1, seed_for(n++));     // keys are one block
      run({1, 70, 150, 4, 2, head_dim}, FA3_DTYPE_BF16, mask, true, false, 1, seed_for(n++), 0, true);
      run({1, 70, 150, 4, 2, head_dim}, FA3_DTYPE_FP16, mask, true, false, 1, seed_for(n++), FA3_FLAG_ACCUMULATE, true);
    }
  for (const int64_t head_dim : {128, 64, 256}) {
    run_with_empty_rows({1, 130, 70, 2, 1, head_dim}, 0, n++);
    run_with_empty_rows({2, 260, 150, 1, 1, head_dim}, FA3_FLAG_DETERMINISTIC, n++);
  }
}

// For compute-sanitizer's racecheck and a build for it (-Dracecheck=true), which takes long for each turn.
static void run_a_few_tiles(fa3_dtype dtype) {
  gpu();
  int n = 50;
  for (const int64_t head_dim : {128, 64, 256})
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      DYNAMIC_SECTION("d " << head_dim << " mask " << mask) {
        run({1, 200, 300, 2, 1, head_dim}, dtype, mask, true, false, 1, seed_for(n++));
        run({1, 200, 300, 2, 1, head_dim}, dtype, mask, true, true, 1, seed_for(n++), FA3_FLAG_DETERMINISTIC);
        run({2, 200, 100, 2, 1, head_dim}, dtype, mask, true, false, 1, seed_for(n++));  // keys are one block
      }
}
TEST_CASE("backward: a few tiles on each kernel", "[backward][.racecheck]") { run_a_few_tiles(FA3_DTYPE_BF16); }
TEST_CASE("backward: a few tiles on each kernel of fp16", "[backward][.racecheck]") { run_a_few_tiles(FA3_DTYPE_FP16); }

TEST_CASE("backward: borders of tiles, blocks and rings", "[backward]") {
  gpu();
  int n = 100;
  const std::pair<int64_t, int64_t> lengths[] = {{1, 1},     {64, 128},  {65, 129}, {63, 127}, {128, 64},
                                                 {192, 256}, {193, 257}, {256, 1},  {1, 300},  {320, 320}};
  for (const int64_t head_dim : {64, 128, 256, 192, 136})
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (const auto& [q, k] : lengths) {
        const int32_t dtype = n % 2 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
        run({1, q, k, 2, 1, head_dim}, dtype, mask, n % 3 == 0, n % 2, 1, seed_for(n));
        ++n;
      }
}

TEST_CASE("backward: head dimensions of q and k, and of v and o, that differ", "[backward]") {
  gpu();
  int n = 6000;
  const std::pair<int64_t, int64_t> pairs[] = {{192, 128}, {64, 128}, {128, 64},  {64, 256}, {256, 64},
                                               {8, 64},    {64, 8},   {120, 128}, {8, 256},  {256, 8}};
  for (const auto& [head_dim, head_dim_v] : pairs)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}}) {
        const int32_t dtype = n % 3 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
        run({2, 150, 200, 4, 2, head_dim, head_dim_v}, dtype, mask, n % 2, n % 5 < 2, 1, seed_for(n), flags);
        ++n;
      }
}

TEST_CASE("backward: gradients in float32, and added to what is there", "[backward]") {
  gpu();
  // One key block and several; parts of K/V heads, one and several; second sums of dq; rows and keys that see nothing;
  // runs; nothing on one side; above 128 columns.
  const Shape shapes[] = {{1, 70, 150, 2, 2, 128}, {2, 100, 128, 4, 1, 64},  {1, 700, 130, 4, 1, 120},
                          {2, 300, 170, 6, 3, 64, 128}, {1, 130, 400, 3, 3, 40}, {1, 520, 520, 28, 28, 128},
                          {40, 1, 129, 900, 1, 64}, {2, 0, 70, 4, 2, 64},     {2, 70, 0, 4, 2, 128},
                          {1, 200, 300, 2, 1, 256},     {2, 170, 150, 4, 2, 192, 64}, {1, 130, 70, 6, 1, 40, 136}};
  int n = 18000;
  for (const Shape& shape : shapes)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_ACCUMULATE},
                                   uint64_t{FA3_FLAG_ACCUMULATE | FA3_FLAG_DETERMINISTIC}}) {
        run(shape, n % 3 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, mask, n % 2, n % 5 < 2, 1, seed_for(n), flags, true);
        ++n;
      }
}

TEST_CASE("backward: every length to 600", "[backward][shapes][long]") {
  gpu();
  constexpr int longest = 600;
  constexpr int64_t head_dims[] = {64, 128, 256};
  for (int length = 1; length <= longest; ++length) {
    tools::Random random(seed_for(20000 + length));
    const int64_t other = random.chance(0.5) ? length : random.between(1, longest);
    run({1, other, length, 2, random.between(1, 2), head_dims[random.between(0, 2)]},
        length % 4 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, length % 3, false, length % 5 == 0, 1, random.bits(),
        length % 7 ? 0 : FA3_FLAG_DETERMINISTIC);
  }
}

TEST_CASE("backward: every pair of head dimensions", "[backward][shapes][long]") {
  gpu();
  for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8)
    for (int64_t head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8) {
      tools::Random random(seed_for(int(400000 + head_dim * 1000 + head_dim_v)));
      run({1, random.between(1, 140), random.between(1, 200), 2, 1, head_dim, head_dim_v},
          random.chance(0.5) ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, int32_t(random.between(0, 2)), random.chance(0.5),
          random.chance(0.5), 1, random.bits(), random.chance(0.2) ? FA3_FLAG_DETERMINISTIC : 0, random.chance(0.3));
    }
}

TEST_CASE("backward: random shapes", "[backward][long]") {
  gpu();
  for (int n = 0; n < 40; ++n) {
    tools::Random random(seed_for(1000 + n));
    const int64_t heads_kv = random.between(1, 3), heads = heads_kv * random.between(1, 3);
    const Shape shape{random.between(1, 3), random.between(1, 400), random.between(1, 400), heads, heads_kv,
                      8 * random.between(1, 32), random.chance(0.5) ? 0 : 8 * random.between(1, 32)};
    run(shape, random.chance(0.5) ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, int32_t(random.between(0, 2)), random.chance(0.5),
        random.chance(0.5), random.chance(0.3) ? 8.f : 1.f, seed_for(2000 + n),
        random.chance(0.3) ? FA3_FLAG_DETERMINISTIC : 0);
  }
}

TEST_CASE("backward: many heads, so that thread blocks take several key blocks and round dQ of others", "[backward]") {
  gpu();
  int n = 3000;
  for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}})
    for (const int64_t head_dim : {64, 128})
      for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
        run({5, 70, 130, 64, 64, head_dim}, FA3_DTYPE_BF16, mask, true, false, 1, seed_for(n++), flags);
        run({1, 200, 70, 300, 100, head_dim - 8}, FA3_DTYPE_FP16, mask, false, true, 1, seed_for(n++), flags);
        run({1, 70, 400, 100, 100, head_dim}, FA3_DTYPE_BF16, mask, false, false, 1, seed_for(n++), flags);
      }
}

TEST_CASE("backward: few heads of K and V, so that each has several parts", "[backward][long]") {
  gpu();
  // Parts of some query heads, of one, and of a range of its tiles, the last of which may be shorter.
  const Shape shapes[] = {{1, 300, 2000, 8, 2, 128},    {2, 128, 1100, 16, 2, 64},     {1, 700, 700, 12, 2, 256},
                          {1, 900, 300, 8, 1, 128},     {2, 600, 200, 6, 2, 64},       {1, 400, 65, 64, 1, 120, 56},
                          {3, 1000, 129, 4, 1, 40, 64}, {1, 2000, 100, 2, 1, 200, 72}, {2, 900, 200, 3, 3, 128},
                          {1, 1500, 300, 1, 1, 64}};
  int n = 13000;
  for (const Shape& shape : shapes)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}}) {
        const int32_t dtype = n % 3 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
        run(shape, dtype, mask, n % 2, n % 5 < 2, 1, seed_for(n), flags);
        ++n;
      }
}

TEST_CASE("backward: few heads in a fixed order of dQ, whose key blocks begin apart", "[backward][long]") {
  gpu();
  // Under a causal mask, too, as there are more than 132 key blocks.
  const Shape shapes[] = {{1, 520, 520, 28, 28, 120}, {1, 300, 260, 90, 45, 128}, {1, 400, 400, 34, 34, 56}};
  int n = 14000;
  for (const Shape& shape : shapes)
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
      run(shape, n % 3 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, mask, n % 2, n % 5 < 2, 1, seed_for(n),
          FA3_FLAG_DETERMINISTIC);
      ++n;
    }
}

// Nothing waits for the consumers where a key block has no tiles, while they may still round dQ of others.
TEST_CASE("backward: many key blocks that no query sees", "[backward]") {
  gpu();
  int n = 10000;
  for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}})
    for (const int64_t head_dim : {64, 128}) {
      run({1, 200, 1000, 100, 100, head_dim}, FA3_DTYPE_BF16, FA3_MASK_CAUSAL_TOP_LEFT, false, false, 1, seed_for(n++),
          flags);
      // Of so many heads for each of K and V that rounding takes long.
      run({4, 128, 512, 256, 16, head_dim}, FA3_DTYPE_BF16, FA3_MASK_CAUSAL_TOP_LEFT, false, false, 1, seed_for(n++),
          flags);
      run({20, 8, 2000, 4, 4, head_dim - 8}, FA3_DTYPE_FP16, FA3_MASK_CAUSAL_TOP_LEFT, true, true, 1, seed_for(n++),
          flags);
    }
}

// Whoever waits for K of a key block with queries must not take it for that of a block without, two phases before.
TEST_CASE("backward: K that comes later than V, behind key blocks that no query sees", "[backward][long]") {
  int n = 15000;
  for (const int64_t head_dim : {64, 128}) {
    const tools::Stream& stream = gpu().stream;
    Call call({1, 200, 1000, 100, 100, head_dim}, FA3_DTYPE_BF16, FA3_MASK_CAUSAL_TOP_LEFT, false, false, 1,
              seed_for(n++), FA3_FLAG_DETERMINISTIC);
    call.keep_k_on_host();
    std::vector<unsigned char> first;
    for (int i = 0; i < 3; ++i) {
      call.poison();
      call.launch(stream);
      std::vector<unsigned char> all = call.results(stream);
      if (i == 0) {
        CHECK(call.verdict() == "");
        first = std::move(all);
      } else {
        const bool same_bits = all == first;
        CHECK(same_bits);
      }
    }
  }
}

TEST_CASE("backward: many tiles for each of many key blocks", "[backward][long]") {
  gpu();
  int n = 4000;
  for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}})
    for (const int64_t head_dim : {64, 128})
      run({4, 512, 512, 32, 32, head_dim}, FA3_DTYPE_BF16, FA3_MASK_NONE, false, false, 1, seed_for(n++), flags);
}

TEST_CASE("backward: so many key blocks of many heads that they prepare rows for one another", "[backward]") {
  gpu();
  int n = 9000;
  for (const int64_t head_dim : {64, 120}) {
    run({1, 40, 2048, 20, 20, head_dim}, FA3_DTYPE_BF16, FA3_MASK_NONE, false, true, 1, seed_for(n++));
    run({1, 20, 2100, 40, 20, head_dim}, FA3_DTYPE_FP16, FA3_MASK_NONE, true, false, 1, seed_for(n++));
    run({1, 20, 4096, 15, 15, head_dim}, FA3_DTYPE_BF16, FA3_MASK_CAUSAL_BOTTOM_RIGHT, false, true, 1, seed_for(n++));
  }
}

TEST_CASE("backward: Algorithm 3", "[backward]") {
  const tools::Stream& stream = gpu().stream;
  const Shape shapes[] = {{1, 70, 150, 2, 1, 128}, {2, 200, 400, 4, 2, 120}, {3, 300, 130, 30, 10, 128},
                          {1, 64, 128, 1, 1, 72},  {1, 193, 1, 1, 1, 128},   {2, 256, 512, 8, 8, 128}};
  int n = 8000;
  for (const char* name : {"alg3", "alg3asis"})
    for (const bool causal : {false, true})
      for (const Shape& shape : shapes) {
        const std::string kernel =
            std::string("fa3_") + name + "_bf16_d128_" + (causal ? "causal" : "full") + "_64x128";
        INFO(kernel << " q " << shape.seqlen_q << " k " << shape.seqlen_k << " d " << shape.head_dim);
        Call call(shape, FA3_DTYPE_BF16, causal ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE, n % 2, n % 3 == 0, 1,
                  seed_for(n));
        call.choose(kernel.c_str());
        call.launch(stream);
        call.results(stream);
        CHECK(call.verdict() == "");
        ++n;
      }
}

TEST_CASE("backward: rows that see no key may hold anything, and their dq is 0", "[backward]") {
  const Shape shapes[] = {{1, 256, 3, 4, 2, 64},     {2, 300, 299, 2, 1, 128},   {3, 700, 130, 2, 2, 120},
                          {1, 65, 1, 2, 1, 64, 128}, {2, 200, 72, 3, 3, 256},    {1, 1000, 200, 4, 4, 192, 64},
                          {40, 90, 30, 8, 8, 128},   {1, 2000, 1000, 8, 1, 128}, {5, 321, 257, 64, 64, 64}};
  int n = 15000;
  for (const Shape& shape : shapes)
    for (const uint64_t flags : {uint64_t{0}, uint64_t{FA3_FLAG_DETERMINISTIC}}) run_with_empty_rows(shape, flags, n++);
}

TEST_CASE("backward: many sequences whose keys are one block", "[backward]") {
  gpu();
  int n = 16000;
  for (const int64_t head_dim : {64, 128, 40})
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
      run({100, 50, 50, 4, 4, head_dim}, FA3_DTYPE_BF16, mask, false, true, 1, seed_for(n++));
      run({20, 150, 128, 12, 4, head_dim}, FA3_DTYPE_FP16, mask, true, false, 1, seed_for(n++));
      run({300, 1, 1, 4, 2, head_dim}, FA3_DTYPE_BF16, mask, false, false, 1, seed_for(n++), FA3_FLAG_DETERMINISTIC);
    }
}

TEST_CASE("backward: batches that are worked on in several runs", "[backward][long]") {
  gpu();
  // Sums of dq of a query take the room of 128, so that the workspace of all would be more than 1 GiB.
  run({40, 1, 129, 900, 1, 64}, FA3_DTYPE_BF16, FA3_MASK_NONE, false, true, 1, seed_for(17000));
  run({50, 2, 130, 360, 2, 128}, FA3_DTYPE_FP16, FA3_MASK_CAUSAL_BOTTOM_RIGHT, true, false, 1, seed_for(17001),
      FA3_FLAG_DETERMINISTIC);
}

TEST_CASE("backward: nothing on one side", "[backward]") {
  gpu();
  run({2, 0, 70, 4, 2, 64}, FA3_DTYPE_BF16, FA3_MASK_NONE, true, false, 1, 1);
  run({2, 70, 0, 4, 2, 64}, FA3_DTYPE_BF16, FA3_MASK_CAUSAL_BOTTOM_RIGHT, true, true, 1, 2);
  run({2, 70, 9, 0, 2, 128}, FA3_DTYPE_FP16, FA3_MASK_NONE, false, false, 1, 3);
  run({0, 70, 9, 2, 2, 128}, FA3_DTYPE_FP16, FA3_MASK_NONE, false, false, 1, 4);
  run({2, 0, 70, 4, 2, 256}, FA3_DTYPE_BF16, FA3_MASK_NONE, true, false, 1, 5);
  run({2, 70, 0, 4, 2, 256}, FA3_DTYPE_BF16, FA3_MASK_CAUSAL_BOTTOM_RIGHT, true, true, 1, 6);
  run({2, 70, 9, 0, 2, 200}, FA3_DTYPE_FP16, FA3_MASK_NONE, false, false, 1, 7);
}

TEST_CASE("backward: deterministic, 100 times the same bits", "[backward][long]") {
  const tools::Stream& stream = gpu().stream;
  const int64_t head_dim = GENERATE(64, 128);
  const int32_t mask = GENERATE(FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT);
  // So few heads that they have several parts; so many that key blocks begin apart; and so many that, under a causal
  // mask, the last key blocks come first.
  const Shape shape = GENERATE_COPY(Shape{1, 70, 400, 2, 1, head_dim}, Shape{1, 300, 300, 45, 45, head_dim},
                                    Shape{2, 130, 300, 96, 96, head_dim});
  Call call(shape, FA3_DTYPE_BF16, mask, false, false, 1, seed_for(7000), FA3_FLAG_DETERMINISTIC);
  call.launch(stream);
  const std::vector<unsigned char> first = call.results(stream);
  CHECK(call.verdict() == "");
  for (int i = 0; i < 100; ++i) {
    call.poison();
    call.launch(stream);
    REQUIRE(call.results(stream) == first);
  }
}

// As "stress" of extremes.cpp: fresh random problems until half of its time is over.
TEST_CASE("backward: stress", "[.stress]") {
  const tools::Stream& stream = gpu().stream;
  const char* text = std::getenv("FA3_STRESS_SECONDS");
  const double seconds = (text ? std::atof(text) : 60) / 2;
  const auto start = std::chrono::steady_clock::now();
  int problems = 0;
  for (; std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds; ++problems) {
    tools::Random random(seed_for(100000000 + problems));
    const bool many = random.chance(0.3);  // heads, so that thread blocks take several key blocks
    const int64_t heads_kv = many ? random.between(70, 150) : random.between(1, 4);
    const int64_t heads = heads_kv * (many ? 1 : random.between(1, 3));
    const bool ahead = !many && random.chance(0.3);  // so many key blocks that they prepare rows for one another
    const Shape shape{ahead ? 20 : 1, random.between(1, many ? 70 : ahead ? 16 : 300),
                      ahead ? random.between(1921, 4200) : random.between(1, many ? 200 : 400), heads, heads_kv,
                      random.chance(0.7) ? 64 * random.between(1, 2) : 8 * random.between(1, 32)};
    const bool deterministic = random.chance(0.5);
    const int32_t mask = int32_t(random.between(0, 2));
    INFO("batch " << shape.batch << " q " << shape.seqlen_q << " k " << shape.seqlen_k << " heads " << heads << "/"
                  << heads_kv << " d " << shape.head_dim << " mask " << mask << " deterministic " << deterministic);
    INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
    Call call(shape, random.chance(0.5) ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, mask, false, random.chance(0.5), 1,
              seed_for(200000000 + problems), deterministic ? FA3_FLAG_DETERMINISTIC : 0);
    std::vector<unsigned char> first;
    for (int i = 0; i < 6; ++i) {
      call.poison();
      call.launch(stream);
      const std::vector<unsigned char> results = call.results(stream);
      if (i == 0) first = results;
      if (deterministic) REQUIRE(results == first);
      if (i == 5) REQUIRE(call.verdict() == "");
    }
  }
  std::printf("backward stress: %d random problems, 6 runs each, in %.0f s\n", problems, seconds);
}

TEST_CASE("backward: without sums in global memory the same call gives the same bits", "[backward]") {
  const tools::Stream& stream = gpu().stream;
  Call call({1, 200, 330, 4, 2, 256}, FA3_DTYPE_BF16, FA3_MASK_CAUSAL_BOTTOM_RIGHT, false, true, 1, seed_for(6000));
  call.launch(stream);
  const std::vector<unsigned char> first = call.results(stream);
  for (int i = 0; i < 3; ++i) {
    call.poison();
    call.launch(stream);
    CHECK(call.results(stream) == first);
  }
}

TEST_CASE("backward: a captured call is replayed, one after another in one workspace", "[backward][graphs]") {
  const tools::Stream& stream = gpu().stream;
  const int64_t head_dim = GENERATE(128, 256);
  Call call({1, 150, 200, 2, 1, head_dim}, FA3_DTYPE_BF16, FA3_MASK_CAUSAL_BOTTOM_RIGHT, false, true, 1,
            seed_for(5000 + int(head_dim)));
  tools::Graph::begin(stream);
  call.launch(stream);
  call.launch(stream);
  const tools::Graph graph = tools::Graph::end(stream);
  for (int i = 0; i < 3; ++i) {
    call.poison();
    graph.launch(stream);
    call.results(stream);
    CHECK(call.verdict() == "");
  }
}

}  // namespace fa3::test
