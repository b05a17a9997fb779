// Varlen sequences, pages, windows, chunks and sinks through the C API: any mix of them against float64, wrong numbers
// on the device, graphs that are replayed with other lengths, schedules, and bits that do not depend on the batch.
#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "../gpu.h"
#include "device_case.h"
#include "params.h"
#include "ptx/plan/packing.h"
#include "random.h"
#include "planned_parts.h"

namespace fa3::test {
namespace {

uint64_t seed_for(int number) { return tools::mix(tools::seed_of_run(), 21000000 + uint64_t(number)); }

void run(const PlannedProblem& problem, int repeats = 3) {
  INFO(problem.describe());
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  PlannedCase made(problem);
  if (problem.kernel) CHECK(tools::forward_kernel_info(made.host_params()).name == std::string(problem.kernel));
  const std::string verdict = run_and_verify(made, expect(made), gpu().stream, repeats);
  CHECK(verdict == "");
}

// A call on a case whose numbers mean nothing: "" if it ran, and wrote to o and lse only.
std::string run_spoiled(PlannedCase& made) {
  const tools::Stream& stream = gpu().stream;
  DeviceCase device(made);
  device.reset(WorkspaceFill::random);
  device.launch(stream);
  device.download(stream, made);
  std::string bad = device.check_workspace();
  if (bad.empty()) bad = device.check_inputs();
  return bad.empty() ? check_outside(made) : bad;
}

// The outputs of one call, in the case's images.
void compute(PlannedCase& made) {
  DeviceCase device(made);
  device.reset(WorkspaceFill::random);
  device.launch(gpu().stream);
  device.download(gpu().stream, made);
}

// Packed queries of these lengths on pages: what servers call.
PlannedProblem on_pages(int64_t page_size, const PlannedProblem::Lengths& lengths, int number) {
  PlannedProblem p;
  p.seed = seed_for(number);
  p.heads = 8, p.heads_kv = number % 3 == 0 ? 8 : number % 3, p.head_dim = p.head_dim_v = number % 4 ? 128 : 64;
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT;
  p.packed_q = p.uses_k = true, p.page_size = page_size;
  if (number % 5 < 2) change_to_e4m3(p);
  if (number % 5 == 2) change_keys_to_e4m3(p);
  make_room(p, lengths, p.seed);
  return p;
}

}  // namespace

TEST_CASE("planned: random calls on every row for them", "[planned]") {
  gpu();
  for (const ForwardRow& row : forward_rows)
    for (int n = 0; n < 12 && row.has(Trait::planned); ++n)
      run(random_planned(seed_for(15000 + n + 16 * int(&row - forward_rows.data())), {.budget = 5e7, .row = &row}));
}

TEST_CASE("planned: random calls", "[planned]") {
  gpu();
  for (int n = 0; n < 200; ++n) run(random_planned(seed_for(n), {.budget = 1e8, .wide = n % 5 == 4}));
}

// Few sequences and long caches, whose keys are split among multiprocessors; and many short ones.
TEST_CASE("planned: long caches and large batches", "[planned]") {
  gpu();
  int number = 1000;
  for (const int64_t keys : {5000, 40000, 120000})
    for (const int64_t page_size : {1, 16, 64, 333}) {
      run(on_pages(page_size, {{1, keys}}, number++));
      run(on_pages(page_size, {{3, keys / 2}, {1, 100}, {0, 0}, {1, keys / 3}, {1, 1}}, number++));
    }
  for (const int64_t batch : {64, 300, 2000}) {
    PlannedProblem::Lengths decode, mixed;
    for (int64_t b = 0; b < batch; ++b) {
      decode.push_back({1, 1 + b * 37 % 400});
      mixed.push_back({b % 50 == 0 ? 200 : b % 7, 1 + b * 91 % 300});
    }
    run(on_pages(16, decode, number++));
    run(on_pages(64, mixed, number++));
  }
}

TEST_CASE("planned: no rows at all, and sequences without queries or keys", "[planned]") {
  gpu();
  int number = 2000;
  for (const PlannedProblem::Lengths& lengths :
       {PlannedProblem::Lengths{{0, 0}}, {{0, 500}}, {{5, 0}}, {{0, 0}, {0, 0}, {0, 70}}, {{300, 0}, {0, 9}, {1, 0}},
        {{40, 90}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}}})
    for (const int64_t page_size : {0, 16}) {
      PlannedProblem p = on_pages(page_size, lengths, number++);
      p.has_sinks = number % 2;
      make_room(p, lengths, p.seed);
      run(p);
    }
}

// Of each kind of mask, with sequences around the ends of tiles and blocks.
TEST_CASE("planned: lengths around the ends of tiles and blocks", "[planned]") {
  gpu();
  int number = 3000;
  for (const int64_t head_dim : {64, 128, 256})
    for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_MASK_WINDOW, FA3_MASK_CHUNK})
      for (const bool packed_k : {false, true})
        for (const int e4m3 : {0, 1, 2}) {  // nothing, all, or K and V
          tools::Random random(seed_for(number++));
          PlannedProblem::Lengths lengths;
          for (int n = 0; n < 24; ++n)
            lengths.push_back({std::max<int64_t>(64 * random.between(0, 6) + random.between(-2, 2), 0),
                               std::max<int64_t>(64 * random.between(0, 9) + random.between(-2, 2), 0)});
          PlannedProblem p;
          p.seed = seed_for(number);
          p.mask = mask, p.head_dim = p.head_dim_v = head_dim, p.packed_q = true, p.packed_k = packed_k;
          if (mask == FA3_MASK_WINDOW || mask == FA3_MASK_CHUNK) p.window_left = int32_t(64 * random.between(1, 3));
          if (mask == FA3_MASK_WINDOW) p.window_right = int32_t(random.between(0, 64));
          if (!packed_k) p.uses_k = true, p.page_size = random.pick({16, 64, 100});
          if (e4m3 == 1) change_to_e4m3(p);
          if (e4m3 == 2) change_keys_to_e4m3(p);
          make_room(p, lengths, p.seed);
          run(p);
        }
}

// Heads over one latent cache: one tensor, or two with a second query; a few queries and a prompt, whose tiles are full
// of heads and queries.
TEST_CASE("planned: latent attention", "[planned][latent]") {
  gpu();
  int number = 16000;
  for (const int64_t heads : {1, 16, 24, 64, 128})
    for (const int64_t page_size : {0, 1, 16, 64})
      for (const bool one_tensor : {false, true}) {
        PlannedProblem p;
        p.seed = seed_for(number++);
        tools::Random random(p.seed);
        p.dtype = random.chance(0.5) ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
        p.heads = heads, p.heads_kv = 1, p.head_dim = one_tensor ? 576 : 64, p.head_dim_v = 512;
        p.has_qv = !one_tensor, p.v_in_k = one_tensor;
        p.mask = number % 3 ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_WINDOW;
        if (p.mask == FA3_MASK_WINDOW) p.window_left = int32_t(random.between(0, 300));
        p.packed_q = true, p.has_sinks = number % 4 == 0, p.uses_k = true, p.page_size = page_size;
        PlannedProblem::Lengths lengths = {{1, 1}, {2, 63}, {3, 64}, {4, 65}, {1, 3000}, {0, 70}, {5, 0}, {70, 200}};
        if (heads <= 24) lengths.push_back({600, 900});
        make_room(p, lengths, p.seed);
        run(p);
      }
  for (const int64_t heads : {16, 72, 128})
    for (const int64_t keys : {20000, 60000}) {  // which are split among multiprocessors
      PlannedProblem p;
      p.seed = seed_for(number++);
      p.heads = heads, p.heads_kv = 1, p.head_dim = 576, p.head_dim_v = 512, p.v_in_k = true;
      p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.packed_q = p.uses_k = true, p.page_size = 64;
      make_room(p, {{1, keys}, {2, keys / 3}, {1, 100}}, p.seed);
      run(p);
    }
}

// On one thread block for 64 rows, and on clusters of two for 128, of which the second one may have no rows at all;
// with sequences whose pieces are split, more pieces than clusters, and windows that leave one of them less to do.
TEST_CASE("planned: latent attention on each kernel", "[planned][latent]") {
  gpu();
  int number = 16500;
  for (const char* kernel :
       {"fa3_fwdplannedmla_bf16_d64x512_window_64x128", "fa3_fwdplannedmla_fp16_d64x512_window_64x128",
        "fa3_fwdplannedmlacluster_bf16_d64x512_window_128x128", "fa3_fwdplannedmlacluster_fp16_d64x512_window_128x128"})
    for (const int64_t heads : {8, 40, 64, 128})
      for (const int64_t page_size : {0, 16, 64}) {
        PlannedProblem p;
        p.seed = seed_for(number++);
        tools::Random random(p.seed);
        p.kernel = kernel, p.dtype = std::strstr(kernel, "bf16") ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
        p.heads = heads, p.heads_kv = 1, p.head_dim = 576, p.head_dim_v = 512, p.v_in_k = true;
        p.mask = number % 3 ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_WINDOW;
        if (p.mask == FA3_MASK_WINDOW) p.window_left = int32_t(random.between(0, 300));
        p.packed_q = true, p.has_sinks = number % 4 == 0, p.uses_k = true, p.page_size = page_size;
        PlannedProblem::Lengths lengths = {{1, 12000}, {2, 63}, {0, 70}, {5, 0}, {33, 200}, {4, 5000}};
        if (number % 2)
          for (int n = 0; n < 150; ++n) lengths.push_back({random.between(0, 3), random.between(0, 200)});
        make_room(p, lengths, p.seed);
        run(p);
      }
}

// Few heads, or few of several queries: up to 16 rows, and up to 32. Scores that are large move m often.
TEST_CASE("planned: latent attention of few rows", "[planned][latent]") {
  gpu();
  struct Kernel {
    const char* name;
    int64_t rows;
  };
  int number = 16700;
  for (const Kernel& kernel : {Kernel{"fa3_fwdplannedmla16rows_bf16_d64x512_window_64x128", 16},
                               Kernel{"fa3_fwdplannedmla16rows_fp16_d64x512_window_64x128", 16},
                               Kernel{"fa3_fwdplannedmla32rows_bf16_d64x512_window_64x128", 32},
                               Kernel{"fa3_fwdplannedmla32rows_fp16_d64x512_window_64x128", 32}})
    for (const int64_t heads : {1, 3, 8, 16})
      for (const int64_t page_size : {0, 16, 64})
        for (const float scale : {0.07f, 1.f}) {
          PlannedProblem p;
          p.seed = seed_for(number++);
          tools::Random random(p.seed);
          p.kernel = kernel.name, p.dtype = std::strstr(kernel.name, "bf16") ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
          p.heads = heads, p.heads_kv = 1, p.head_dim = 576, p.head_dim_v = 512, p.v_in_k = true;
          p.softmax_scale = scale;
          p.mask = number % 3 ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_WINDOW;
          if (p.mask == FA3_MASK_WINDOW) p.window_left = int32_t(random.between(0, 300));
          p.packed_q = true, p.has_sinks = number % 4 == 0, p.uses_k = true, p.page_size = page_size;
          const int64_t queries = kernel.rows / (heads == 3 ? 4 : heads);
          PlannedProblem::Lengths lengths = {{queries, 12000}, {1, 63}, {0, 70}, {queries, 0}, {1, 200}, {1, 5000}};
          if (number % 2)
            for (int n = 0; n < 150; ++n) lengths.push_back({random.between(0, queries), random.between(0, 200)});
          make_room(p, lengths, p.seed);
          p.max_seqlen_q = int32_t(queries);
          set_numbers(p, lengths, p.seed);  // pages for all keys that so many queries see
          run(p);
        }
}

// V of e4m3, in one buffer with K and its scales or each for itself, of all of the kernel's columns or of some, where a
// row has scales for fewer. Rows as above; long sequences, whose pieces are split, and many short ones.
TEST_CASE("planned: latent attention over e4m3", "[planned][latent]") {
  gpu();
  int number = 18000;
  for (const ForwardRow& row : forward_rows) {
    if (!row.is_latent()) continue;
    for (const int64_t heads : {1, 3, 16, 32, 128})
      for (const int64_t page_size : {0, 1, 16, 64}) {
        const int64_t query_rows = Packing::of(heads).rows(1);
        const bool has_few_rows = row.has(Trait::few_rows);
        if (has_few_rows && query_rows > row.most_rows()) continue;
        PlannedProblem p;
        p.seed = seed_for(number++);
        tools::Random random(p.seed);
        p.kernel = row.name, p.dtype = dtype_of(row), p.heads = heads, p.heads_kv = 1;
        p.head_dim = random.pick({64, 64, 40}), p.head_dim_v = random.pick({512, 512, 304, 64});
        choose_cache(p, row);
        p.has_qv = true, p.one_buffer = number % 2;
        p.softmax_scale = random.pick({0.0f, 0.07f, 0.5f});
        p.mask = number % 3 ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_WINDOW;
        if (p.mask == FA3_MASK_WINDOW) p.window_left = int32_t(random.between(0, 300));
        p.packed_q = true, p.has_sinks = number % 4 == 0, p.page_size = page_size;
        p.packed_k = page_size == 0 && random.chance(0.5), p.uses_k = !p.packed_k;
        const int64_t queries = has_few_rows ? row.most_rows() / query_rows : 70, few = std::min<int64_t>(queries, 4);
        PlannedProblem::Lengths lengths = {{1, 12000}, {few, 3000}, {1, 63}, {0, 70}, {queries, 0}, {1, 64}, {1, 65},
                                           {queries, 200}};
        if (number % 2)
          for (int n = 0; n < 150; ++n) lengths.push_back({random.between(0, few), random.between(0, 200)});
        make_room(p, lengths, p.seed);
        if (has_few_rows) p.max_seqlen_q = int32_t(queries), set_numbers(p, lengths, p.seed);
        run(p);
      }
  }
}

TEST_CASE("planned: head dimensions above 256", "[planned][latent]") {
  gpu();
  int number = 17000;
  for (const auto& [d, dv] :
       {std::pair{264, 264}, {384, 384}, {512, 512}, {512, 64}, {64, 512}, {256, 264}, {320, 256}})
    for (const int64_t group : {1, 3, 8})
      for (const bool packed_k : {false, true}) {
        PlannedProblem p;
        p.seed = seed_for(number++);
        p.dtype = number % 2 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
        p.heads_kv = 2, p.heads = 2 * group, p.head_dim = d, p.head_dim_v = dv;
        p.mask = number % 3 ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE;
        p.packed_q = packed_k, p.packed_k = packed_k;
        const PlannedProblem::Lengths several = {{1, 700}, {300, 300}, {65, 130}, {7, 9}};
        make_room(p, packed_k ? several : PlannedProblem::Lengths(3, {130, 257}), p.seed);
        run(p);
      }
}

// Whatever stands in device memory, nothing outside of the tensors is touched.
TEST_CASE("planned: wrong numbers reach nothing outside of the tensors", "[planned]") {
  gpu();
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  for (int n = 0; n < 100; ++n) {
    PlannedCase made(random_planned(seed_for(4000 + n), {.budget = 2e7, .wide = n % 5 == 4}));
    INFO(made.problem.describe());
    spoil_numbers(made.problem, seed_for(5000 + n));
    made.write_numbers();
    CHECK(run_spoiled(made) == "");
  }
}

TEST_CASE("planned: wrong numbers of some sequences leave the others right", "[planned]") {
  gpu();
  for (int n = 0; n < 60; ++n) {
    PlannedCase made(random_planned(seed_for(6000 + n), {.budget = 2e7, .wide = n % 5 == 4}));
    INFO(made.problem.describe());
    INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
    const PlannedExpected expected = expect(made);
    PlannedCase spoiled = made;
    spoil_poisoned(spoiled.problem, seed_for(7000 + n));
    spoiled.write_numbers();
    CHECK(run_spoiled(spoiled) == "");
    made.images = spoiled.images;
    CHECK(verify(made, expected) == "");
  }
}

TEST_CASE("planned: a graph is replayed with other lengths", "[planned]") {
  const tools::Stream& stream = gpu().stream;
  for (int n = 0; n < 40; ++n) {
    const PlannedProblem problem = random_planned(seed_for(8000 + n), {.budget = 3e7, .wide = n % 5 == 4});
    const bool scheduled = n % 3 == 0;  // the schedule is made in the graph, too
    PlannedCase first(problem);
    DeviceCase device(first);
    device.reset(WorkspaceFill::random);
    if (scheduled) device.reserve_schedule();
    tools::Graph::begin(stream);
    if (scheduled) device.make_schedule(stream);
    device.launch(stream);
    if (scheduled) device.launch(stream);  // the next layer
    const tools::Graph graph = tools::Graph::end(stream);
    for (int replay = 0; replay < 4; ++replay) {
      PlannedProblem other = problem;
      if (replay > 0) set_numbers(other, other_lengths(problem.lengths, seed_for(9000 + 4 * n + replay)), other.seed);
      if (replay == 3) set_numbers(other, PlannedProblem::Lengths(problem.lengths.size(), {0, 0}), other.seed);
      INFO(other.describe());
      INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
      PlannedCase made(other);
      const PlannedExpected expected = expect(made);
      device.reset(WorkspaceFill::ones);
      device.upload_inputs(made);
      graph.launch(stream);
      device.download(stream, made);
      CHECK(verify(made, expected) == "");
    }
  }
}

TEST_CASE("planned: one schedule for several calls, also at the same time", "[planned]") {
  const tools::Stream& stream = gpu().stream;
  for (int n = 0; n < 40; ++n) {
    PlannedProblem problem = random_planned(seed_for(10000 + n), {.budget = 3e7, .wide = n % 5 == 4});
    INFO(problem.describe());
    INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
    std::vector<PlannedCase> layers;
    std::vector<DeviceCase> devices;
    for (int layer = 0; layer < 3; ++layer, ++problem.seed) {
      layers.emplace_back(problem);
      devices.emplace_back(layers.back());
      devices.back().reset(WorkspaceFill::random);
    }
    devices[0].make_schedule(stream);
    stream.synchronize();
    const tools::Stream streams[3];
    for (size_t i = 0; i < 3; ++i) {
      if (i > 0) devices[i].take_schedule(devices[0]);
      devices[i].launch(streams[i]);
    }
    for (size_t i = 0; i < 3; ++i) {
      devices[i].download(streams[i], layers[i]);
      CHECK(verify(layers[i], expect(layers[i])) == "");
      CHECK(devices[i].check_workspace() == "");
    }
    // It is the plan that the call makes itself without one, so the bits are the same.
    PlannedCase own(layers[2].problem);
    compute(own);
    CHECK(own.images == layers[2].images);
  }
}

TEST_CASE("planned: bits of a sequence alone, in another batch and in chunks of its queries", "[planned]") {
  gpu();
  for (int n = 0; n < 60; ++n) {
    const uint64_t seed = seed_for(11000 + n);
    PlannedProblem problem = random_planned(seed, {.budget = 5e7, .wide = n % 5 == 4});
    if (problem.has_slopes) continue;  // not together with what follows
    problem.batch_invariant = true;
    PlannedCase made(problem);
    INFO(problem.describe());
    INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
    compute(made);
    const auto check = [&](const std::vector<PlannedPart>& parts, Kinds kinds) {
      PlannedCase parts_case = parts_of(made, parts, kinds, seed);
      INFO(parts_case.problem.describe());
      compute(parts_case);
      CHECK(same_bits(made, parts, parts_case) == "");
    };
    const std::vector<PlannedPart> all = all_sequences(problem);
    if (all.empty()) continue;
    check(all, Kinds::packed);
    check({all.rbegin(), all.rend()}, Kinds::same);
    const PlannedPart& longest = *std::max_element(
        all.begin(), all.end(), [](const PlannedPart& a, const PlannedPart& b) { return a.keys < b.keys; });
    check({longest}, Kinds::same);
    if (!can_be_cut(problem)) continue;
    std::vector<PlannedPart> cut;
    for (const PlannedPart& part : all)
      for (const PlannedPart& piece : random_cuts(problem, part.sequence, tools::mix(seed, uint64_t(part.sequence))))
        cut.push_back(piece);
    if (!cut.empty()) check(cut, Kinds::same);
  }
}

// Long caches, which are split: alone and beside so many others that nothing would be split without the flag.
TEST_CASE("planned: bits of split sequences do not depend on the batch", "[planned]") {
  gpu();
  int number = 12000;
  for (const int64_t queries : {1, 5, 70, 300})
    for (const int64_t keys : {3000, 9000, 50000}) {
      PlannedProblem::Lengths lengths = {{queries, keys}, {1, keys}};
      for (int64_t n = 0; n < 150; ++n) lengths.push_back({1 + n % 3, 200 + n * 17 % 900});
      PlannedProblem p = on_pages(64, lengths, number);
      p.batch_invariant = true, p.heads_kv = 2;
      make_room(p, lengths, seed_for(number++));
      std::fill(p.poisoned.begin(), p.poisoned.end(), false);
      PlannedCase made(p);
      INFO(p.describe());
      INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
      compute(made);
      for (const int64_t b : {0, 1}) {
        const std::vector<PlannedPart> alone = {whole(p, b)};
        PlannedCase single = parts_of(made, alone, Kinds::same, p.seed);
        compute(single);
        CHECK(same_bits(made, alone, single) == "");
      }
      const std::vector<PlannedPart> cut = random_cuts(p, 0, p.seed);
      PlannedCase chunks = parts_of(made, cut, Kinds::same, p.seed);
      compute(chunks);
      CHECK(same_bits(made, cut, chunks) == "");
    }
}

// A few of each, for compute-sanitizer: tensors end where their allocations do.
TEST_CASE("planned: small selection", "[planned][sanitizer]") {
  gpu();
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  int number = 0;
  const auto run_both = [&](PlannedProblem p) {
    p.guard = 0;
    run(p, 1);
    PlannedCase spoiled(p);
    spoil_numbers(spoiled.problem, seed_for(14000 + number++));
    spoiled.write_numbers();
    CHECK(run_spoiled(spoiled) == "");
  };
  for (int n = 0; n < 12; ++n) run_both(random_planned(seed_for(13000 + n), {.budget = 2e6, .wide = n % 4 == 3}));
  for (const ForwardRow& row : forward_rows)
    if (row.is_latent()) run_both(random_planned(seed_for(13000 + number), {.budget = 2e6, .row = &row}));
}

}  // namespace fa3::test
