#include "plans.h"

#include <catch2/catch_test_macros.hpp>
#include <algorithm>

#include "validate.h"

namespace fa3::test {

static Problem problem_of(const fa3_forward_params& p) {
  Problem problem;
  REQUIRE(validate(&p, Rules::shapes, problem) == FA3_OK);
  return problem;
}

Problem problem_of(const Shape& shape, int32_t mask, const char* kernel, int32_t dtype) {
  fa3_forward_params p = imaginary(shape, dtype);
  p.mask = mask, p.kernel = kernel;
  return problem_of(p);
}

Problem problem_of(const Row& row, const Shape& shape) {
  fa3_forward_params p = imaginary_for(row, shape);
  p.kernel = row.name;
  return problem_of(p);
}

Shape square(int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) {
  return {
      .batch = batch, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = heads, .heads_kv = heads, .head_dim = head_dim};
}

Fit fit_of(const Problem& problem) {
  Fit made;
  REQUIRE(fit(problem, made) == FA3_OK);
  return made;
}

const ForwardPlan& planned(const Problem& problem, int multiprocessors) {
  return plan(problem, fit_of(problem), multiprocessors).forward;
}

int64_t visible_keys(const Problem& problem, int64_t row) {
  if (!problem.causal) return problem.seqlen_k;
  return std::clamp<int64_t>(row + problem.causal_offset + 1, 0, problem.seqlen_k);
}

int64_t rows_of_query(const Problem& problem, const Row& row) {
  int64_t rows = 1;
  while (row.has(Trait::packs_heads) && rows < problem.heads / problem.heads_kv) rows *= 2;
  return rows;
}

Unfolded unfold(const Problem& problem, const ForwardPlan& plan, int32_t number) {
  const Row& row = rows[plan.row];
  const Tile tile = tile_at(plan.tiles, number, problem.causal);
  const int64_t first_row = plan.tiles.first_row + int64_t{tile.q_block} * row.Br;
  int64_t last_query = std::min<int64_t>(first_row + row.Br, problem.seqlen_q) - 1;
  if (row.has(Trait::packs_heads))
    last_query = std::min((first_row + row.Br - 1) / rows_of_query(problem, row), problem.seqlen_q - 1);
  const int64_t keys = visible_keys(problem, last_query);  // later ones see more
  return {tile, first_row, std::max<int32_t>(1, int32_t((keys + row.Bc - 1) / row.Bc))};
}

}  // namespace fa3::test
