// Points from a file of batches.
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "../../tools/fa3-bench/points/batches.h"
#include "bench_test.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("a batch of a server") {
  const auto points = batches_of(R"({"heads": 32, "kv_heads": 8, "head_dim": 128, "lengths": [1, 1, 512],
                                     "lengths_k": [9000, 17, 4608], "page": 16})");
  REQUIRE(points.size() == 1);
  CHECK(labels(points) == labels(points_of({"--lengths=1,1,512", "--lengths-k=9000,17,4608", "--page=16", "--causal=1",
                                            "--head-dim=128", "--heads=32", "--kv-heads=8"})));
  const auto several = batches_of(
      R"([{"heads": 8, "head_dim": 64, "lengths": [17, 0]},
          {"name": "a step", "heads": 8, "head_dim": 576, "head_dim_v": 512, "kv_heads": 1, "dtype": "fp16",
           "lengths": [1], "lengths_k": [300], "causal": false, "window": -1, "chunk": 64, "softcap": 2.5,
           "sinks": true, "alibi": true, "e4m3_cache": true, "page": 0}])");
  REQUIRE(several.size() == 2);
  CHECK(several[0].label() == "bf16 d64 causal lengths 17,0 heads 8/8");
  CHECK(several[1].label() ==
        "fp16 d576x512 full lengths 1 heads 8/1 lengths_k 300 chunk 64 softcap 2.5 sinks alibi e4m3 cache");
  CHECK(several[1].planned.name == "a step");
}

TEST_CASE("a batch that is none is refused, by number and field") {
  const struct {
    const char *text, *named;
  } cases[] = {
      {"", "is no JSON"},
      {"{", "is no JSON"},
      {"[]", "has no batch"},
      {"5", "batch 0: is no object"},
      {"{}", "batch 0: has no heads"},
      {R"({"heads": 8, "lengths": [1]})", "has no head_dim"},
      {R"({"heads": 8, "head_dim": 64})", "has no lengths"},
      {R"([{"heads": 8, "head_dim": 64, "lengths": [1]}, 7])", "batch 1: is no object"},
      {R"({"heads": 0, "head_dim": 64, "lengths": [1]})", "heads is 0, must be a number from 1"},
      {R"({"heads": "8", "head_dim": 64, "lengths": [1]})", "heads is \"8\""},
      {R"({"heads": 8.5, "head_dim": 64, "lengths": [1]})", "heads is 8.5"},
      {R"({"heads": 18446744073709551615, "head_dim": 64, "lengths": [1]})", "heads is 18446744073709551615"},
      {R"({"heads": 8, "head_dim": 64, "lengths": []})", "lengths is no list"},
      {R"({"heads": 8, "head_dim": 64, "lengths": 5})", "lengths is no list"},
      {R"({"heads": 8, "head_dim": 64, "lengths": [1, -1]})", "lengths is -1"},
      {R"({"heads": 8, "head_dim": 64, "lengths": [1, 2], "lengths_k": [5]})",
       "lengths_k has 1 lengths, but lengths 2"},
      {R"({"heads": 8, "head_dim": 64, "lengths": [1], "dtype": "fp8"})", "dtype is \"fp8\""},
      {R"({"heads": 8, "head_dim": 64, "lengths": [1], "causal": 1})", "causal is 1, must be true or false"},
      {R"({"heads": 8, "head_dim": 64, "lengths": [1], "softcap": -1})", "softcap is -1"},
      {R"({"heads": 8, "head_dim": 64, "lengths": [1], "name": 5})", "name is 5"},
      {R"({"heads": 8, "head_dim": 64, "lengths": [1], "window": 5, "chunk": 6})", "a window or a chunk"},
      {R"({"heads": 8, "head_dim": 64, "lengths": [1], "pages": 16})", "\"pages\" is no field of a batch"},
  };
  for (const auto& [text, named] : cases) {
    INFO(text);
    CHECK_THROWS_AS(batches_of(text), std::invalid_argument);
    CHECK_THROWS_WITH(batches_of(text), ContainsSubstring(named));
  }
}

TEST_CASE("a file of batches takes the place of a set") {
  char path[] = "/tmp/fa3-batches-XXXXXX.json";
  const int descriptor = mkstemps(path, 5);
  REQUIRE(descriptor >= 0);
  close(descriptor);
  std::ofstream(path) << R"([{"heads": 8, "head_dim": 64, "lengths": [17, 5]}])";
  const auto points = points_of({"--batches", path});
  CHECK(labels(points) == std::vector<std::string>{"bf16 d64 causal lengths 17,5 heads 8/8"});
  CHECK(points_of({"--batches", path, "--direction", "bwd"})[0].is_backward());
  for (const std::vector<std::string>& beside :
       {std::vector<std::string>{"--set", "grid"}, {"--seqlen", "512"}, {"--page", "16"}, {"--heads", "8"}}) {
    std::vector<std::string> words = {"--batches", path};
    words.insert(words.end(), beside.begin(), beside.end());
    CHECK_THROWS_WITH(parse(words), ContainsSubstring(" has no meaning beside "));
  }
  std::ofstream(path) << "[7]";
  CHECK_THROWS_WITH(parse({"--batches", path}), ContainsSubstring(std::string("--batches: ") + path + ": batch 0: "));
  std::remove(path);
}

}  // namespace fa3::bench
