// The CPU reference with lengths, pages, windows, chunks and sinks: random problems against the tests' own oracle, and
// what follows from the definition alone.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fenced.h"
#include "random.h"
#include "planned_parts.h"
#include "planned_run.h"

namespace fa3::test {
namespace {

// "", or which element is not the float64 result, rounded once to float32.
std::string compare(const std::vector<float>& ours, const std::vector<float>& right, const char* what) {
  for (size_t n = 0; n < right.size(); ++n) {
    const bool near = std::abs(ours[n] - right[n]) <= 0x1p-22 * std::abs(right[n]) + 1e-12;
    if (!near && ours[n] != right[n])
      return std::string(what) + " " + std::to_string(n) + " is " + std::to_string(ours[n]) + ", should be " +
             std::to_string(right[n]);
  }
  return "";
}

// One sequence of so many queries and keys, with any scale of the scores.
PlannedProblem single(int64_t queries, int64_t keys, int32_t mask, int32_t left, int32_t right) {
  PlannedProblem p;
  p.mask = mask, p.window_left = left, p.window_right = right;
  p.o_dtype = FA3_DTYPE_FP32, p.heads = p.heads_kv = 1, p.head_dim = p.head_dim_v = 8;
  p.packed_q = p.packed_k = true;
  p.batch = 1, p.entries_k = 1, p.rows_q = p.max_seqlen_q = int32_t(queries), p.rows_k = p.max_seqlen_k = int32_t(keys);
  p.max_seqlen_k = std::max(p.max_seqlen_k, 1);
  p.cu_q = {0, int32_t(queries)}, p.cu_k = {0, int32_t(keys)}, p.poisoned = {false};
  return p;
}

}  // namespace

TEST_CASE("random planned problems against the oracle", "[planned]") {
  const uint64_t seed = tools::seed_of_run();
  INFO("repeat with FA3_TEST_SEED=" << seed);
  for (uint64_t n = 0; n < 400; ++n) {
    PlannedProblem p = random_planned(tools::mix(seed, n), {.budget = 5e5, .most_heads = 12, .most_head_dim = 32,
                                                            .wide = n % 8 == 7});
    const bool exact = n % 3 != 0;
    if (exact) p.o_dtype = FA3_DTYPE_FP32;
    PlannedCase made(p);
    INFO(p.describe());
    run(made, int(n % 3));
    const PlannedExpected expected = expect(made);
    CHECK(verify(made, expected) == "");
    if (!exact) continue;
    const Output ours = gather(made, expected.rows);
    CHECK(compare(ours.o, expected.numbers.reference.o, "o") == "");
    if (p.want_lse) CHECK(compare(ours.lse, expected.numbers.reference.lse, "lse") == "");
  }
}

TEST_CASE("a latent cache of e4m3 is one of the numbers that its scales make of it", "[planned]") {
  const uint64_t seed = tools::mix(tools::seed_of_run(), 2);
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  int latent = 0;
  for (uint64_t n = 0; n < 60; ++n) {
    PlannedProblem p = random_planned(tools::mix(seed, n), {.budget = 3e5, .most_heads = 12, .wide = true});
    if (!p.e4m3_latent) continue;
    p.o_dtype = FA3_DTYPE_FP32, ++latent;
    PlannedCase made(p);
    INFO(p.describe());
    std::vector<std::vector<float>> memory(4);
    fa3_forward_params widened = made.host_params();
    widened.v_scale = {};
    const std::tuple<fa3_tensor*, const View*> tensors[] = {
        {&widened.q, &made.q}, {&widened.k, &made.k}, {&widened.v, &made.v}, {&widened.qv, &made.qv}};
    for (size_t i = 0; i < memory.size(); ++i) {
      const auto [t, view] = tensors[i];
      const std::vector<int64_t>& dim = view->layout.dim;
      for (int64_t row = 0; row < dim[0] * dim[1] * dim[2]; ++row) {
        const int64_t index[] = {row / dim[2] / dim[1], row / dim[2] % dim[1], row % dim[2], 0};
        const int64_t at = view->layout.position(index);
        for (int64_t c = 0; c < dim[3]; ++c)
          memory[i].push_back(view == &made.v ? made.value_at(at, made.latent_scale.layout.position(index), c)
                                              : view->read(made.images, at + c));
      }
      t->data = memory[i].data(), t->dtype = FA3_DTYPE_FP32;
      REQUIRE(fa3_tensor_pack(t) == FA3_OK);
    }
    run(made);
    const std::vector<Image> images = made.images;
    made.poison_outputs();
    const fa3_status status = fa3_reference_forward(&widened, 1);
    INFO(fa3_last_error_message());
    REQUIRE(status == FA3_OK);
    CHECK((made.images == images));
  }
  CHECK(latent > 3);
}

// Where all scores are equal, O is the mean of the values that a row sees, and LSE the logarithm of how many they are.
TEST_CASE("windows and chunks of equal scores, in closed form", "[planned]") {
  const auto check = [](const PlannedProblem& chosen, auto first, auto last) {
    PlannedProblem p = chosen;
    p.softmax_scale = 1e-30f;
    PlannedCase made(p);
    run(made);
    const PlannedSequence s = p.sequence(0);
    INFO(p.describe());
    for (int64_t i = 0; i < s.queries; ++i) {
      const int64_t begin = std::max<int64_t>(first(i + s.keys - s.queries), 0);
      const int64_t end = std::min<int64_t>(last(i + s.keys - s.queries) + 1, s.keys);
      double sum = 0;
      for (int64_t j = begin; j < end; ++j) sum += made.v.read(made.images, made.key_position(made.v, s, j, 0));
      const double o = made.o.read(made.images, made.query_position(made.o, s, i, 0));
      const double lse = made.lse.read(made.images, made.query_position(made.lse, s, i, 0));
      INFO("query " << i << ", " << end - begin << " keys");
      const double count = double(end - begin);
      if (begin >= end) CHECK((o == 0 && lse == -INFINITY));
      else CHECK((std::abs(o - sum / count) < 1e-6 && std::abs(lse - std::log(count)) < 1e-6));
    }
  };
  for (const auto& [queries, keys] : {std::pair{1, 300}, {70, 200}, {200, 70}, {130, 130}, {9, 0}})
    for (const int32_t size : {1, 5, 64, 100, 1000}) {
      const auto position = [](int64_t p) { return p; };
      const auto chunk_begin = [&](int64_t p) { return p < 0 ? int64_t{1} << 40 : p - p % size; };
      const auto chunk_end = [&](int64_t p) { return p < 0 ? -1 : p - p % size + size - 1; };
      check(single(queries, keys, FA3_MASK_CHUNK, size, 0), chunk_begin, position);
      check(single(queries, keys, FA3_MASK_CHUNK, size, -1), chunk_begin, chunk_end);
      for (const int32_t other : {0, 3, 70}) {
        check(single(queries, keys, FA3_MASK_WINDOW, size, other), [&](int64_t p) { return p - size; },
              [&](int64_t p) { return p + other; });
        check(single(queries, keys, FA3_MASK_WINDOW, other, -1), [&](int64_t p) { return p - other; },
              [](int64_t) { return int64_t{1} << 40; });
      }
    }
}

TEST_CASE("a chunk is a sequence of its own", "[planned]") {
  constexpr int64_t size = 64, length = 300;
  for (const int32_t right : {0, -1}) {
    PlannedCase whole(single(length, length, FA3_MASK_CHUNK, size, right));
    PlannedProblem p = whole.problem;
    p.mask = right == 0 ? FA3_MASK_CAUSAL_TOP_LEFT : FA3_MASK_NONE, p.window_left = p.window_right = 0;
    p.batch = (length + size - 1) / size, p.poisoned.assign(size_t(p.batch), false);
    for (std::vector<int32_t>* cu : {&p.cu_q, &p.cu_k}) {
      cu->clear();
      for (int64_t b = 0; b <= p.batch; ++b) cu->push_back(int32_t(std::min(b * size, length)));
    }
    PlannedCase chunks(p);
    for (size_t image : {size_t(whole.q.image), size_t(whole.k.image), size_t(whole.v.image)})
      chunks.images[image] = whole.images[image];
    run(whole), run(chunks);
    CHECK(chunks.images[size_t(chunks.o.image)] == whole.images[size_t(whole.o.image)]);
    CHECK(chunks.images[size_t(chunks.lse.image)] == whole.images[size_t(whole.lse.image)]);
  }
}

TEST_CASE("a sink is one more exponential without a value", "[planned]") {
  for (const float sink : {-INFINITY, -1000.0f, -20.0f, -1.5f, 0.0f, 2.5f, 30.0f, 1000.0f}) {
    PlannedProblem p = single(50, 90, FA3_MASK_WINDOW, 30, 0);
    p.rows_q = p.max_seqlen_q = p.cu_q[1] = 100;  // the first ones see no key
    PlannedCase without(p);
    p.has_sinks = true, p.sinks = {sink};
    PlannedCase made(p);
    run(without), run(made);
    INFO("sink " << sink);
    const PlannedSequence s = p.sequence(0);
    for (int64_t i = 0; i < s.queries; ++i) {
      const double lse = without.lse.read(without.images, without.query_position(without.lse, s, i, 0));
      const double o = without.o.read(without.images, without.query_position(without.o, s, i, 0));
      const double its_lse = made.lse.read(made.images, made.query_position(made.lse, s, i, 0));
      const double its_o = made.o.read(made.images, made.query_position(made.o, s, i, 0));
      if (lse == -INFINITY) CHECK((its_o == 0 && its_lse == sink));
      else {
        const double larger = std::max<double>(lse, sink);
        const double right = larger + std::log(std::exp(lse - larger) + std::exp(sink - larger));
        CHECK(std::abs(its_lse - right) <= 1e-6 * std::max(1.0, std::abs(right)));
        CHECK(std::abs(its_o - o * std::exp(lse - right)) <= 1e-6);
      }
    }
  }
}

TEST_CASE("without anything of its own a planned call has the bits of the other", "[planned]") {
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
    for (const auto& [queries, keys] : {std::pair{130, 70}, {70, 130}, {1, 200}}) {
      PlannedProblem p;
      p.mask = mask, p.seed = 3;
      p.batch = p.entries_k = 3, p.rows_q = queries, p.rows_k = keys, p.poisoned.assign(3, false);
      PlannedCase plain(p);
      p.uses_q = p.uses_k = p.pads_k = p.indexes_cache = p.has_sinks = true;
      p.used_q.assign(3, queries), p.used_k.assign(3, keys), p.leftpad_k.assign(3, 0), p.cache_batch_idx = {0, 1, 2};
      p.sinks.assign(size_t(p.heads), -INFINITY);
      PlannedCase planned(p);
      run(plain), run(planned);
      CHECK(planned.images[size_t(planned.o.image)] == plain.images[size_t(plain.o.image)]);
      CHECK(planned.images[size_t(planned.lse.image)] == plain.images[size_t(plain.lse.image)]);
    }
}

TEST_CASE("a sequence has the same bits alone, packed, and with its queries in chunks", "[planned]") {
  const uint64_t seed = tools::mix(tools::seed_of_run(), 1);
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (uint64_t n = 0; n < 60; ++n) {
    const uint64_t parts_seed = tools::mix(seed, n);
    PlannedCase made(random_planned(parts_seed, {5e5, 12, 32}));
    const PlannedProblem& p = made.problem;
    INFO(p.describe());
    run(made);
    const auto check = [&](const std::vector<PlannedPart>& parts, Kinds kinds) {
      PlannedCase parts_case = parts_of(made, parts, kinds, parts_seed);
      INFO(parts_case.problem.describe());
      run(parts_case);
      CHECK(same_bits(made, parts, parts_case) == "");
    };
    const std::vector<PlannedPart> all = all_sequences(p);
    if (all.empty()) continue;
    check(all, Kinds::packed);
    check({all.rbegin(), all.rend()}, Kinds::same);
    check({all[parts_seed % all.size()]}, Kinds::same);
    if (!can_be_cut(p)) continue;
    std::vector<PlannedPart> cut;
    for (const PlannedPart& part : all)
      for (const PlannedPart& piece : random_cuts(p, part.sequence, tools::mix(parts_seed, uint64_t(part.sequence))))
        cut.push_back(piece);
    if (!cut.empty()) check(cut, n % 2 ? Kinds::same : Kinds::packed);
  }
}

// Windows begin within blocks of keys, at other places for other queries. Each key is the one 50 before again, with V
// negated, so that of 100 keys O is what rounding has left.
TEST_CASE("a window's queries in chunks have the same bits", "[planned]") {
  for (const auto& [mask, left] :
       {std::pair{FA3_MASK_WINDOW, 99}, {FA3_MASK_WINDOW, 0}, {FA3_MASK_WINDOW, 299}, {FA3_MASK_CHUNK, 150}})
    for (uint64_t seed = 0; seed < 3; ++seed) {
      PlannedCase made(single(300, 700, mask, left, 0));
      const PlannedSequence s = made.problem.sequence(0);
      for (int64_t j = 50; j < s.keys; ++j)
        for (int64_t x = 0; x < 8; ++x)
          for (const View* view : {&made.k, &made.v}) {
            const float before = view->read(made.images, made.key_position(*view, s, j - 50, 0) + x);
            view->write(made.images, made.key_position(*view, s, j, 0) + x, view == &made.v ? -before : before);
          }
      run(made);
      const std::vector<PlannedPart> parts = random_cuts(made.problem, 0, seed);
      PlannedCase parts_case = parts_of(made, parts, Kinds::same, seed);
      INFO(parts_case.problem.describe());
      run(parts_case);
      CHECK(same_bits(made, parts, parts_case) == "");
    }
}

TEST_CASE("planned results do not depend on the number of threads", "[planned]") {
  for (uint64_t n = 0; n < 10; ++n) {
    PlannedCase one(random_planned(tools::mix(n, 2), {5e5, 12, 32})), many = one;
    run(one, 1);
    for (const int threads : {0, 2, 7}) {
      many.poison_outputs();
      run(many, threads);
      CHECK(many.images == one.images);
    }
  }
}

TEST_CASE("wrong lengths and page numbers reach nothing outside of the tensors", "[planned]") {
  const uint64_t seed = tools::mix(tools::seed_of_run(), 3);
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (uint64_t n = 0; n < 150; ++n) {
    PlannedProblem p = random_planned(tools::mix(seed, n), {2e5, 12, 32});
    p.guard = 0;
    PlannedCase made(p);
    spoil_numbers(made.problem, tools::mix(seed, n + 1000));
    made.write_numbers();
    INFO(p.describe());
    for (const bool at_the_end : {false, true}) {
      std::vector<std::unique_ptr<Fenced>> fenced;
      std::vector<void*> bases;
      for (const Image& image : made.images) {
        fenced.push_back(std::make_unique<Fenced>(image, at_the_end));
        bases.push_back(fenced.back()->data());
      }
      const fa3_forward_params params = made.params(bases);
      const fa3_status status = fa3_reference_forward(&params, 1);
      INFO(fa3_last_error_message());
      REQUIRE(status == FA3_OK);
      const std::vector<int> outputs = made.outputs();
      for (size_t image = 0; image < made.images.size(); ++image) {
        if (std::find(outputs.begin(), outputs.end(), int(image)) == outputs.end())
          CHECK(std::equal(made.images[image].begin(), made.images[image].end(), fenced[image]->data()));
        else std::copy_n(fenced[image]->data(), made.images[image].size(), made.images[image].begin());
      }
      CHECK(check_outside(made) == "");
      made.poison_outputs();
    }
  }
}

TEST_CASE("wrong numbers of some sequences leave the others right", "[planned]") {
  const uint64_t seed = tools::mix(tools::seed_of_run(), 4);
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (uint64_t n = 0; n < 60; ++n) {
    PlannedCase made(random_planned(tools::mix(seed, n), {2e5, 12, 32}));
    INFO(made.problem.describe());
    const PlannedExpected expected = expect(made);
    const PlannedProblem right = made.problem;
    spoil_poisoned(made.problem, tools::mix(seed, n + 1000));
    made.write_numbers();
    run(made);
    made.problem = right;
    CHECK(verify(made, expected) == "");
  }
}

TEST_CASE("pages that there are none of count as zeros", "[planned]") {
  PlannedProblem p = single(3, 20, FA3_MASK_NONE, 0, 0);
  p.packed_k = false, p.cu_k.clear(), p.max_seqlen_k = 0;
  p.page_size = p.rows_k = 4, p.pages_each = p.entries_k = 5, p.page_table = {3, 1, 0, 4, 2};
  PlannedCase made(p), zeros(p);
  made.problem.page_table[1] = 5, made.problem.page_table[4] = -1;
  made.write_numbers();
  for (const int64_t page : {1, 2})
    for (int64_t row = 0; row < 4; ++row)
      for (const View* view : {&zeros.k, &zeros.v}) {
        const int64_t index[] = {page, row, 0, 0};
        view->write_row(zeros.images, view->layout.position(index), std::vector<float>(8, 0.0f), 1);
      }
  run(made), run(zeros);
  CHECK(made.images[size_t(made.o.image)] == zeros.images[size_t(zeros.o.image)]);
}

TEST_CASE("cache entries that there are none of have no keys", "[planned]") {
  PlannedProblem p;
  p.batch = 3, p.entries_k = 2, p.rows_q = 2, p.rows_k = 9, p.indexes_cache = true, p.poisoned.assign(3, false);
  p.cache_batch_idx = {1, 0, 1};
  PlannedCase made(p);
  made.problem.cache_batch_idx = {1, 2, -1};
  made.write_numbers();
  run(made);
  for (int64_t b = 0; b < 3; ++b) {
    const float lse = made.lse.read(made.images, made.query_position(made.lse, p.sequence(b), 1, 3));
    CHECK((b == 0 ? std::isfinite(lse) : lse == -INFINITY));
  }
}

}  // namespace fa3::test
