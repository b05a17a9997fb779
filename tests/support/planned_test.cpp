// Planned problems cover what there is, and their judge finds what a kernel may get wrong. The CPU reference stands in
// for kernels.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>

#include "half.h"
#include "random.h"
#include "references/online_softmax.h"
#include "planned_run.h"

namespace fa3::test {
namespace {

// A problem of which no part is left out: every change below changes its results.
PlannedProblem plain_planned(int32_t mask) {
  PlannedProblem p;
  p.mask = mask, p.packed_q = true, p.uses_k = true, p.has_sinks = true, p.seed = 5;
  if (mask == FA3_MASK_WINDOW) p.window_left = 40, p.window_right = 3;
  if (mask == FA3_MASK_CHUNK) p.window_left = 100;
  p.dtype = FA3_DTYPE_FP16;
  return p;
}
const PlannedProblem::Lengths plain_lengths = {{30, 500}, {1, 640}, {64, 64}, {17, 333}, {100, 220}};

// Runs the case as it is after the change and judges it as it was before.
std::string verdict_on(const PlannedProblem& problem, const std::function<void(PlannedProblem&)>& change) {
  PlannedCase made(problem);
  const PlannedExpected expected = expect(made);
  PlannedCase other = made;
  change(other.problem);
  other.write_numbers();
  run(other);
  made.images = other.images;
  return verify(made, expected);
}

PlannedProblem with_lengths(PlannedProblem p) {
  make_room(p, plain_lengths, 1);
  std::fill(p.poisoned.begin(), p.poisoned.end(), false);
  return p;
}

}  // namespace

TEST_CASE("random planned problems cover the axes", "[planned]") {
  const uint64_t seed = tools::seed_of_run();
  INFO("repeat with FA3_TEST_SEED=" << seed);
  std::set<int32_t> masks;
  std::set<int64_t> head_dims, groups, page_sizes;
  int fields[13] = {}, no_queries = 0, no_keys = 0, no_key_seen = 0, cut = 0;
  for (uint64_t n = 0; n < 300; ++n) {
    const PlannedProblem p = random_planned(tools::mix(seed, n), {1e6});
    masks.insert(p.mask), head_dims.insert(p.head_dim), groups.insert(p.group()), page_sizes.insert(p.page_size);
    const bool its_fields[] = {p.packed_q,   p.packed_k, p.uses_q,    p.uses_k,        p.pads_k,
                               p.indexes_cache, p.has_sinks, p.want_lse, p.batch_invariant, p.head_dim_v != p.head_dim,
                               p.heads_kv == 1, p.packed_q && p.page_size > 0, p.e4m3_keys};
    for (size_t i = 0; i < std::size(fields); ++i) fields[i] += its_fields[i];
    for (int64_t b = 0; b < p.batch; ++b) {
      const PlannedSequence s = p.sequence(b);
      no_queries += s.queries == 0, no_keys += s.queries > 0 && s.keys == 0;
      bool sees_any = false;
      for (int64_t j = 0; j < s.keys; ++j) sees_any |= p.sees(s, 0, j);
      no_key_seen += s.queries > 0 && s.keys > 0 && !sees_any;
      cut += s.queries < std::min(p.lengths[size_t(b)][0], p.rows_q);
    }
  }
  CHECK(masks.size() == 5);
  CHECK((head_dims.size() > 20 && groups.size() > 8 && page_sizes.size() > 15));
  for (const int count : fields) CHECK(count > 10);
  CHECK(no_queries > 100);
  CHECK(no_keys > 100);
  CHECK(no_key_seen > 20);
  CHECK(cut > 3);
}

TEST_CASE("random wide problems cover latent caches", "[planned][latent]") {
  const uint64_t seed = tools::seed_of_run();
  INFO("repeat with FA3_TEST_SEED=" << seed);
  int latent = 0, in_one_buffer = 0, odd = 0;
  for (uint64_t n = 0; n < 200; ++n) {
    const PlannedProblem p = random_planned(tools::mix(seed, n), {.budget = 1e5, .wide = true});
    if (!p.e4m3_latent) continue;
    ++latent, in_one_buffer += p.one_buffer, odd += p.head_dim_v % FA3_LATENT_SCALE_COLUMNS != 0;
    CHECK((p.has_qv && !p.v_in_k && !p.e4m3_keys && p.head_dim_v % 16 == 0 && p.softcap == 0));
  }
  CHECK((latent > 15 && in_one_buffer > 3 && in_one_buffer < latent && odd > 3));
}

// Each number that is there, and no other: elements, scales in any place, K beside them.
TEST_CASE("a latent cache of e4m3 holds numbers where rows count", "[planned][latent]") {
  for (const bool one_buffer : {false, true}) {
    PlannedProblem p = plain_planned(FA3_MASK_CAUSAL_BOTTOM_RIGHT);
    p.has_qv = p.e4m3_latent = true, p.one_buffer = one_buffer, p.head_dim_v = 304, p.page_size = 16, p.heads_kv = 1;
    PlannedCase made(with_lengths(p));
    const auto numbers = [&](const View& view) {
      int64_t count = 0;
      view.layout.for_each([&](int64_t at) { count += std::isfinite(view.read(made.images, at)); });
      return count;
    };
    int64_t keys = 0;
    for (int64_t b = 0; b < made.problem.batch; ++b) {
      const PlannedProblem::Range near = made.problem.keys_near(made.problem.sequence(b));
      keys += near.end - near.begin;
    }
    CHECK((made.latent_scale.layout.dim[3] == 3 && numbers(made.latent_scale) <= 3 * keys));
    CHECK(numbers(made.latent_scale) * 304 == numbers(made.v) * 3);
    CHECK(numbers(made.k) * 304 == numbers(made.v) * 64);
    std::set<float> scales;
    made.latent_scale.layout.for_each([&](int64_t at) {
      if (const float scale = made.latent_scale.read(made.images, at); !std::isnan(scale)) scales.insert(scale);
    });
    CHECK(scales.size() > 100);
    const fa3_forward_params call = made.host_params();
    CHECK(fa3_forward_check(&call) == FA3_OK);
    const auto bytes = [](const fa3_tensor& t) { return static_cast<const char*>(t.data); };
    if (one_buffer) CHECK((bytes(call.v_scale) == bytes(call.v) + 304 && bytes(call.k) == bytes(call.v_scale) + 16));
  }
}

TEST_CASE("the judge of planned cases accepts right results", "[planned]") {
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_MASK_WINDOW,
                             FA3_MASK_CHUNK})
    CHECK(verdict_on(with_lengths(plain_planned(mask)), [](PlannedProblem&) {}) == "");
}

TEST_CASE("an online softmax passes on random planned problems", "[planned]") {
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (uint64_t n = 0; n < 100; ++n) {
    PlannedCase made(random_planned(tools::mix(tools::seed_of_run(), 5000 + n), {1e6}));
    INFO(made.problem.describe());
    const PlannedExpected expected = expect(made);
    online_forward(made, 64);
    CHECK(verify(made, expected) == "");
  }
}

TEST_CASE("the judge of planned cases finds other masks, lengths, pages and sinks", "[planned]") {
  struct Change {
    const char* what;
    std::function<void(PlannedProblem&)> change;
  };
  const auto check = [](const PlannedProblem& p, std::initializer_list<Change> changes) {
    for (const auto& [what, change] : changes) {
      INFO(p.describe() << ": " << what);
      CHECK(verdict_on(p, change) != "");
    }
  };
  const Change shorter{"a key less", [](PlannedProblem& p) { --p.used_k[1]; }};
  const Change longer{"a key more", [](PlannedProblem& p) { ++p.used_k[0]; }};
  const Change moved{"queries one row on", [](PlannedProblem& p) { ++p.cu_q[1]; }};
  const Change sink{"another sink", [](PlannedProblem& p) { p.sinks[1] += 0.1f; }};
  const Change right{"a bound further right", [](PlannedProblem& p) { ++p.window_right; }};
  const Change left{"a bound further left", [](PlannedProblem& p) { ++p.window_left; }};
  check(with_lengths(plain_planned(FA3_MASK_NONE)), {shorter, longer, moved, sink});
  check(with_lengths(plain_planned(FA3_MASK_CAUSAL_BOTTOM_RIGHT)),
        {shorter, moved, {"top left", [](PlannedProblem& p) { p.mask = FA3_MASK_CAUSAL_TOP_LEFT; }}});
  check(with_lengths(plain_planned(FA3_MASK_WINDOW)),
        {shorter, left, right, {"no bound", [](PlannedProblem& p) { p.window_left = -1; }}});
  check(with_lengths(plain_planned(FA3_MASK_CHUNK)),
        {shorter, left, {"not causal", [](PlannedProblem& p) { p.window_right = -1; }}});

  PlannedProblem pages = plain_planned(FA3_MASK_NONE);
  pages.page_size = 16;
  check(with_lengths(pages), {shorter, longer, {"two pages exchanged", [](PlannedProblem& p) {
                                std::swap(p.page_table[0], p.page_table[size_t(p.pages_each)]);
                              }}});
  PlannedProblem padded = plain_planned(FA3_MASK_NONE);
  padded.pads_k = padded.indexes_cache = true;
  check(with_lengths(padded),
        {shorter,
         {"padding less", [](PlannedProblem& p) { --*std::max_element(p.leftpad_k.begin(), p.leftpad_k.end()); }},
         {"another cache entry", [](PlannedProblem& p) { std::swap(p.cache_batch_idx[0], p.cache_batch_idx[1]); }}});
}

TEST_CASE("the judge of planned cases finds other scales of a latent cache", "[planned][latent]") {
  for (const fa3_dtype dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16})
    for (const bool one_buffer : {false, true}) {
      PlannedProblem p = plain_planned(FA3_MASK_CAUSAL_BOTTOM_RIGHT);
      p.dtype = dtype, p.has_qv = p.e4m3_latent = true, p.one_buffer = one_buffer, p.head_dim_v = 304, p.heads_kv = 1;
      PlannedCase made(with_lengths(p));
      const PlannedExpected expected = expect(made);
      const auto scale = [&](int64_t at) { return made.latent_scale.read(made.images, at); };
      const auto verdict_with = [&](const std::function<float(int64_t)>& scale_of) {
        PlannedCase other = made;
        made.latent_scale.layout.for_each([&](int64_t at) {
          if (!std::isnan(scale(at))) other.latent_scale.write(other.images, at, scale_of(at));
        });
        run(other);
        return verify(other, expected);
      };
      CHECK(verdict_with(scale) == "");
      CHECK(verdict_with([&](int64_t at) { return 1.03f * scale(at); }) != "");
      CHECK(verdict_with([&](int64_t at) { return scale(at % 4 ? at - 1 : at); }) != "");  // the group before has that
    }
}

TEST_CASE("the judge of planned cases finds rows that are wrong, missing or too many", "[planned]") {
  PlannedProblem p = plain_planned(FA3_MASK_CAUSAL_BOTTOM_RIGHT);
  p.uses_q = true;
  PlannedCase made(with_lengths(p));
  const PlannedExpected expected = expect(made);
  run(made);
  REQUIRE(verify(made, expected) == "");
  const auto verdict_after = [&](const std::function<void(PlannedCase&)>& damage) {
    PlannedCase damaged = made;
    damage(damaged);
    return verify(damaged, expected);
  };
  const PlannedSequence s = made.problem.sequence(3), last = made.problem.sequence(4);
  REQUIRE(made.problem.rows_q > last.first_query + last.queries);
  const auto o_at = [&](PlannedCase& c, const PlannedSequence& of, int64_t i) -> uint16_t& {
    return c.o.data<uint16_t>(c.images)[c.query_position(c.o, of, i, 2)];
  };
  const auto lse_at = [&](PlannedCase& c, int64_t i) -> float& {
    return c.lse.data<float>(c.images)[c.query_position(c.lse, s, i, 2)];
  };
  CHECK(verdict_after([&](PlannedCase& c) { o_at(c, s, 4) = poison16; }) != "");
  CHECK(verdict_after([&](PlannedCase& c) { o_at(c, last, last.queries) = 0; }) != "");
  CHECK(verdict_after([&](PlannedCase& c) { o_at(c, s, 4) ^= 0x8000; }) != "");
  CHECK(verdict_after([&](PlannedCase& c) { lse_at(c, 4) += 1e-4f; }) != "");
  CHECK(verdict_after([&](PlannedCase& c) { lse_at(c, 4) = NAN; }) != "");
  CHECK(verdict_after([&](PlannedCase& c) { lse_at(c, -1) = 0; }) != "");
  // A fault in the longest sequence alone, where rows are small beside those of few keys.
  CHECK(verdict_after([&](PlannedCase& c) {
          for (int64_t x = 0; x < c.problem.head_dim; ++x) (&o_at(c, c.problem.sequence(1), 0))[x] ^= 0x20;
        }) != "");
}

}  // namespace fa3::test
