// Every length to 600, every pair of head dimensions and large batches of short sequences, on whatever the library
// chooses for them. The cases of rows.cpp are about one row at a time.
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "../gpu.h"
#include "device_case.h"
#include "random.h"

namespace fa3::test {
namespace {

constexpr fa3_mask masks[] = {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_MASK_CAUSAL_TOP_LEFT};
constexpr int longest = 600, largest_head_dim = 256;

void verify(const Problem& problem) {
  INFO(problem.describe());
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  const std::string verdict = run_and_verify(problem, gpu().stream, 2);
  CHECK(verdict == "");
}

Problem problem(uint64_t number, fa3_mask mask) {
  Problem p;
  p.seed = tools::mix(tools::seed_of_run(), 15000000 + number);
  p.dtype = number % 3 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
  p.mask = mask;
  return p;
}

}  // namespace

// Queries and keys alike, as encoders have them, and as many keys for a random number of queries.
TEST_CASE("shapes: every length to 600", "[shapes][long]") {
  gpu();
  for (const int64_t head_dim : {64, 128, 256})
    for (int length = 1; length <= longest; ++length) {
      Problem p = problem(uint64_t(head_dim * 1000 + length), masks[length % 3]);
      tools::Random random(p.seed);
      p.head_dim = head_dim;
      p.heads_kv = random.between(1, 2), p.heads = p.heads_kv * random.between(1, 3);
      p.seqlen_q = p.seqlen_k = length;
      verify(p);
      p.mask = masks[(length + 1) % 3];
      p.seqlen_q = random.between(1, longest);
      p.heads = p.heads_kv;
      verify(p);
    }
}

TEST_CASE("shapes: every pair of head dimensions", "[shapes][long]") {
  gpu();
  for (int head_dim = 8; head_dim <= largest_head_dim; head_dim += 8)
    for (int head_dim_v = 8; head_dim_v <= largest_head_dim; head_dim_v += 8)
      for (const fa3_mask mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
        Problem p = problem(uint64_t(1000000 + head_dim * 1000 + head_dim_v / 8 * 2 + (mask != FA3_MASK_NONE)), mask);
        tools::Random random(p.seed);
        p.head_dim = head_dim, p.head_dim_v = head_dim_v;
        p.heads_kv = 1, p.heads = random.between(1, 3);
        p.seqlen_q = random.between(1, 140), p.seqlen_k = random.between(1, 200);
        verify(p);
      }
}

// Many more tiles than thread blocks, most of them with few rows or few keys.
TEST_CASE("shapes: large batches of short sequences", "[shapes][long]") {
  gpu();
  int number = 2000000;
  for (const int64_t length : {16, 33, 64, 77, 128, 197, 256, 384, 577})
    for (const int64_t head_dim : {64, 80, 128, 256})
      for (const fa3_mask mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
        Problem p = problem(uint64_t(number++), mask);
        p.head_dim = head_dim;
        p.batch = 4096 / length + 1, p.heads = 8, p.heads_kv = number % 4 ? 8 : 2;
        p.seqlen_q = p.seqlen_k = length;
        verify(p);
      }
}

// A few of each, for compute-sanitizer.
TEST_CASE("shapes: small selection", "[shapes][sanitizer]") {
  gpu();
  int number = 3000000;
  for (const int64_t head_dim : {8, 40, 72, 96, 112, 152, 192, 224})
    for (const int64_t length : {17, 197}) {
      Problem p = problem(uint64_t(number), masks[number % 3]);
      ++number;
      p.head_dim = head_dim, p.head_dim_v = length == 17 ? 264 - head_dim : 0;
      p.heads = 4, p.heads_kv = 2;
      p.seqlen_q = p.seqlen_k = length;
      verify(p);
    }
}

}  // namespace fa3::test
