// Plans as text, which need no GPU.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>

#include "../../tools/fa3-bench/plans/plans.h"
#include "../../tools/fa3-bench/points/kernels.h"
#include "bench_test.h"
#include "params.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("a plan names the library's kernel, or why it has none") {
  const auto plan = plan_points(points_of({"--head-dim=64,1000", "--causal=0", "--seqlen=512", "--kernel=auto"}), 132);
  REQUIRE(plan.size() == 2);
  CHECK_THAT(plan[0].kernel, ContainsSubstring("_bf16_d64_full"));
  CHECK(plan[0].problem.empty());
  CHECK(plan[1].kernel.empty());
  CHECK_THAT(plan[1].problem, ContainsSubstring("dim[3]"));
}

TEST_CASE("plans show every kernel that fits, the one that is taken and its pieces") {
  const std::vector<Point> points =
      points_of({"--head-dim=128", "--causal=1", "--seqlen=4096", "--batch=1", "--heads=4"});
  const std::string plans = show_plans(points, assumed_card(132), true).text;
  size_t lines = 0, stars = 0;
  for (const fa3_kernel_info& info : kernels_of_build(Direction::forward)) {
    const size_t at = plans.find(std::string(" ") + info.name + " ");
    if (at == std::string::npos) continue;
    ++lines;
    CHECK((info.dtype == FA3_DTYPE_BF16 && info.head_dim == 128 && info.causal == 1 && info.chosen == 1));
    const bool taken = plans[at - 1] == '*';
    stars += taken;
    const fa3_forward_params params = points[0].shapes();
    CHECK((tools::forward_kernel_info(params, 132).name == std::string(info.name)) == taken);
  }
  CHECK((lines == 4 && stars == 1));  // two for short sequences among them
  CHECK_THAT(plans,
             ContainsSubstring("part 1 of 2") && ContainsSubstring("part 2 of 2") && ContainsSubstring("tiles 0 to 3"));
  CHECK_THAT(show_plans(points, assumed_card(132), false).text, !ContainsSubstring("part 1"));
  const Plans some =
      show_plans(points_of({"--head-dim=64,1000", "--causal=0", "--seqlen=512"}), assumed_card(132), true);
  CHECK_THAT(some.text, ContainsSubstring("q.dim[3]"));
  CHECK(some.refused == 1);
  CHECK(parse({"--plan", "--pieces", "--multiprocessors=78"}).multiprocessors == 78);
}

TEST_CASE("plans of decoding follow from the card") {
  const std::vector<Point> points = points_of(
      {"--head-dim=128", "--causal=0", "--seqlen=1", "--seqlen-k=30000", "--batch=12", "--heads=28", "--kv-heads=4"});
  std::set<std::string> plans;
  for (const NamedCard& known : known_cards) {
    CHECK(parse({"--plan", std::string("--card=") + known.name}).card == known.name);
    plans.insert(show_plans(points, known.card, true).text);
  }
  CHECK(plans.size() == std::size(known_cards));
  CHECK_THAT(show_plans(points, known_cards[0].card, false).text, ContainsSubstring("with 3.35 TB/s of memory"));
}

TEST_CASE("plans of packed sequences show what the device would make of their lengths") {
  const auto plan = [](std::vector<std::string> arguments, bool pieces) {
    for (const char* word : {"--plan", "--head-dim=128", "--heads=8", "--kv-heads=2"}) arguments.push_back(word);
    return show_plans(parse(arguments).selection.points(), assumed_card(132), pieces);
  };
  const Plans causal = plan({"--lengths=17,4096,300,0", "--causal=1"}, true);
  CHECK(causal.refused == 0);
  CHECK_THAT(causal.text,
             ContainsSubstring("\nbf16 d128 causal lengths 17,4096,300,0 heads 8/2\n") &&
                 ContainsSubstring("\n* fa3_fwdplanned_bf16_d128_window_192x64        192x64       200     248") &&
                 ContainsSubstring("each for 8 heads:\n    sequence 1, query block") &&
                 ContainsSubstring("\n    sequence 2, query block 0, blocks 0 to 1\n") &&
                 ContainsSubstring("\n    sequence 0, query block 0, blocks 0 to 0\n") &&
                 ContainsSubstring("query blocks 15 to 20, blocks 0 to 47, part 1 of 2\n") &&
                 !ContainsSubstring("sequence 3"));
  // Heads of one K/V head are packed.
  const Plans decode = plan({"--lengths=1,1,1", "--lengths-k=131072,0,300", "--causal=0"}, true);
  CHECK_THAT(decode.text, ContainsSubstring("lengths 1,1,1 heads 8/2 lengths_k 131072,0,300\n") &&
                              ContainsSubstring("each for 2 heads:\n    sequence 0, query block 0, blocks ") &&
                              ContainsSubstring("\n    sequence 0, query block 0, blocks 0 to 48, part 1 of 42\n") &&
                              ContainsSubstring("\n    sequence 2, query block 0, blocks 0 to 4\n") &&
                              ContainsSubstring("\n    sequence 1, query block 0, blocks 0 to 0\n"));
  const Plans full = plan({"--lengths=1000,4096", "--causal=0"}, true);
  CHECK_THAT(full.text, ContainsSubstring("\n    sequence 1, query blocks 0 to 31, blocks 0 to 31\n"));
  CHECK_THAT(plan({"--lengths=1000,4096", "--causal=0"}, false).text, !ContainsSubstring("sequence 1"));
  const Plans nothing = plan({"--lengths=0,0", "--causal=0"}, true);
  CHECK((nothing.refused == 0 && nothing.text.find("\n  there is nothing to compute\n") != std::string::npos));
  CHECK(plan({"--lengths=3,5", "--lengths-k=0,0", "--causal=0"}, true).refused == 0);
  const Plans many = plan({"--lengths=1,1", "--lengths-k=700000000,700000000", "--causal=0"}, false);
  CHECK(many.refused == 1);
  CHECK_THAT(many.text, ContainsSubstring("\n  the library refuses it: k.dim[0] (rows) is 1400000000"));
}

}  // namespace fa3::bench
