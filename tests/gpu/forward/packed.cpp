// Packed heads: few queries, and several heads for each of K and V in the rows of a tile. rows.cpp has problems of all
// kinds for these kernels; here are those that they are for.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <string>

#include "../gpu.h"
#include "device_case.h"
#include "params.h"
#include "random.h"
#include "rows.h"

namespace fa3::test {
namespace {

using tools::Random;

constexpr bool packs_heads(const ForwardRow& row) { return row.packs_heads(); }
constexpr bool packs_few_rows(const ForwardRow& row) { return packs_heads(row) && row.Br == 64; }

// Are there two rows for few packed rows, one for whole tiles (Trait::shares_keys) and one for parts?
bool has_rival(const ForwardRow& row) {
  return std::count_if(forward_rows.begin(), forward_rows.end(), [&](const ForwardRow& other) {
    return packs_few_rows(other) && other.dtype == row.dtype && other.mask == row.mask && other.d == row.d &&
           other.dv == row.dv;
  }) == 2;
}

// Layouts and pattern of the seed; bottom-right and top-left masks in turn.
Problem problem_of(const ForwardRow& row, int64_t heads_per_kv, int64_t seqlen_q, int64_t seqlen_k, int number) {
  const uint64_t seed = seed_for(row, 9000 + number);
  Random random(seed);
  Problem p = random_problem(row, seed);
  p.packed_qkv = false;
  p.head_dim = row.d - (random.chance(0.3) ? 8 * random.between(0, row.d / 16) : 0);
  p.batch = random.between(1, 3);
  p.heads_kv = random.between(1, 3);
  p.heads = p.heads_kv * heads_per_kv;
  p.seqlen_q = seqlen_q, p.seqlen_k = seqlen_k;
  // Where one key has nearly all the weight of all rows, its P is 1 in plain code, which rounds nothing, but not in
  // these kernels (ptx/tile/scores/speculative.cuh). With more K/V heads that is one of several keys; rows.cpp has such
  // problems.
  for (const Pattern one_key : {Pattern::outliers, Pattern::large, Pattern::spikes})
    if (p.pattern == one_key) p.pattern = Pattern::normal;
  if (row.causal()) p.mask = number % 2 ? FA3_MASK_CAUSAL_TOP_LEFT : FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  return p;
}

void ratios(const ForwardRow& row) {
  gpu();
  for (int heads = 1; heads <= 64; ++heads) {
    Random random(seed_for(row, 8900 + heads));
    const int64_t seqlen_q = random.between(1, std::min(64, 800 / heads));
    run(problem_of(row, heads, seqlen_q, random.between(1, 4 * row.Bc + 3), heads), row, 2);
  }
  for (const int heads : {65, 71, 96, 128, 200})
    for (const int64_t seqlen_q : {1, 3}) run(problem_of(row, heads, seqlen_q, 2 * row.Bc + heads, heads), row, 2);
  for (int64_t seqlen_q = 1; seqlen_q <= 64; ++seqlen_q)
    run(problem_of(row, 1 + seqlen_q % 9, seqlen_q, 3 * row.Bc - seqlen_q, 300 + int(seqlen_q)), row, 2);
  // So many tiles of few blocks that the ring of K and V goes round, with one block each for one of two warpgroups that
  // take turns; and with three, so that which of them has two depends on who claimed what.
  for (const int blocks : {1, 3}) {
    Problem many = problem_of(row, 3, 2, blocks * row.Bc - 3, 500 + 2 * blocks);
    many.batch = 500, many.heads_kv = 3, many.heads = 9;
    run(many, row, 4);
  }
  for (const int64_t seqlen_k : {1, 2, 20})  // under a bottom-right mask the first queries see nothing
    run(problem_of(row, 5, 64, seqlen_k, 400 + 2 * int(seqlen_k)), row, 2);
}

// The last one to finish its part stores: often, and with as many parts as there can be.
void parts(const ForwardRow& row) {
  gpu();
  int number = 500;
  for (const int64_t heads : {1, 4, 7, 12, 28, 64, 100})
    for (const int64_t seqlen_q : {1, 5}) {
      Problem p = problem_of(row, heads, seqlen_q, 40 * row.Bc + 2 * heads + seqlen_q, number);
      number += 2;  // under a top-left mask there is nothing to split
      p.batch = 1;
      CHECK(run(p, row, 6));
    }
  Problem most = plain_problem(row, 1, 1, 131072, 8, 1, seed_for(row, 9600));
  CHECK(run(most, row, 4));
  // Tiles so long that they end in ever shorter parts: 126, and 140, of which the first are whole. All have the same
  // keys.
  for (const int64_t batch : {18, 20}) {
    const int64_t seqlen_k = 4'200'000 / (2 * (row.d + row.dv));
    Problem shared = plain_problem(row, batch, 1, seqlen_k, 28, 7, seed_for(row, 9601 + int(batch)));
    shared.k.share_batch = shared.v.share_batch = true;
    CHECK(run(shared, row, 2));
  }
}

// What the library takes by itself.
void chosen(const ForwardRow& row) {
  gpu();
  for (const int64_t batch : {1, 40})
    for (const int64_t heads : {8, 28, 64}) {
      const bool splits = batch == 1;
      if (has_rival(row) && row.has(Trait::shares_keys) == splits) continue;
      const int64_t seqlen_k = splits ? 5000 : 1500;
      Problem p = plain_problem(row, batch, 1, seqlen_k, heads, 4, seed_for(row, 9700 + int(heads + batch)));
      p.kernel = nullptr;
      Case made(p);
      fa3_kernel_info info = tools::kernel_info();
      const fa3_forward_params params = made.host_params();
      REQUIRE(fa3_forward_kernel_info(&params, 0, 0, &info) == FA3_OK);
      CHECK(info.name == std::string(row.name));
      run(p, row);
    }
}

}  // namespace

const RowCases ratios_cases(": heads for each K and V", "[packed]", ratios, packs_heads);
const RowCases parts_cases(": parts of few queries", "[packed][split]", parts, packs_heads);
const RowCases chosen_cases(": chosen for few queries", "[packed]", chosen, packs_few_rows);

}  // namespace fa3::test
