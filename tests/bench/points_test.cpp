// The points that options make up, and their parameters.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>

#include "../../tools/fa3-bench/points/kernels.h"
#include "bench_test.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

TEST_CASE("the default is the paper's grid, in bf16") {
  const auto points = points_of({});
  CHECK(points.size() == 3 * 2 * 6);
  for (const Point& p : points) {
    CHECK(p.dtype == FA3_DTYPE_BF16);
    CHECK(p.batch * p.seqlen == 16384);
    CHECK(p.heads * p.head_dim == 2048);
    CHECK_THAT(p.flop(), WithinRel((p.causal ? 2.0 : 4.0) * 16384 * 2048 * double(p.seqlen), 1e-12));
  }
  CHECK(labels(points_of({"--set", "grid"})) == labels(points));
}

TEST_CASE("v may have a head dimension of its own") {
  const auto points = points_of({"--head-dim=192", "--head-dim-v=128", "--seqlen=1024", "--causal=0"});
  REQUIRE(points.size() == 1);
  CHECK_THAT(points[0].label(), ContainsSubstring("bf16 d192x128 full"));
  CHECK_THAT(points[0].flop(), WithinRel(2.0 * 16 * 1024 * 1024 * double(points[0].heads) * (192 + 128), 1e-12));
  const fa3_forward_params forward = points[0].shapes();
  const fa3_backward_params backward = points[0].backward_shapes();
  CHECK((forward.q.dim[3] == 192 && forward.k.dim[3] == 192 && forward.v.dim[3] == 128 && forward.o.dim[3] == 128));
  CHECK((backward.dq.dim[3] == 192 && backward.dk.dim[3] == 192 && backward.dv.dim[3] == 128 &&
         backward.dout.dim[3] == 128));
  Point gradients = points[0];
  gradients.direction = Direction::backward;
  CHECK_THAT(gradients.flop() / points[0].flop(), WithinRel((3 * 192 + 2 * 128) / (192.0 + 128), 1e-12));
}

TEST_CASE("sets hold what they are there for") {
  const auto grid = points_of({"--set=grid"}), fp16 = points_of({"--set=fp16"}), extra = points_of({"--set=extra"}),
             table2 = points_of({"--set=table2"});
  CHECK(fp16.size() == 12);
  for (const Point& p : fp16) CHECK((p.dtype == FA3_DTYPE_FP16 && p.head_dim == 128 && p.batch * p.seqlen == 16384));
  CHECK(labels(table2) == std::vector<std::string>{"bf16 d128 full batch 4 seqlen 8448 heads 16/16"});

  CHECK(extra.size() == 15);
  std::set<std::string> different;
  for (const auto& label : labels(extra)) different.insert(label);
  CHECK(different.size() == extra.size());
  for (const auto& label : labels(grid)) CHECK(different.count(label) == 0);
  CHECK(different.count(table2[0].label()) == 1);
  const auto any = [&](const auto& property) { return std::any_of(extra.begin(), extra.end(), property); };
  CHECK(any([](const Point& p) { return p.heads == 4 * p.kv_heads; }));
  CHECK(any([](const Point& p) { return p.heads == 8 * p.kv_heads; }));
  CHECK(any([](const Point& p) { return p.seqlen % 2 == 1; }));
  CHECK(any([](const Point& p) { return p.seqlen == 131072; }));
  for (const int64_t head_dim : {64, 128, 256})
    CHECK(any([=](const Point& p) { return p.head_dim == head_dim && p.batch * p.heads < 10; }));

  const auto few_heads = points_of({"--set=few_heads"});
  for (const Point& p : few_heads) CHECK((p.batch * p.kv_heads <= 10 && p.batch * p.heads <= 32));
  CHECK(std::count_if(few_heads.begin(), few_heads.end(), [](const Point& p) { return p.heads > p.kv_heads; }) == 7);
  for (const auto& label : labels(few_heads)) CHECK(different.insert(label).second);

  auto all = labels(extra);
  for (const auto& label : labels(fp16)) all.push_back(label);
  CHECK(labels(points_of({"--set", "extra,fp16"})) == all);
  CHECK(points_of({"--set", "grid,extra", "--filter", "d64 causal"}).size() == 6 + 2);
}

TEST_CASE("sets of other shapes hold what they are there for, and all of it runs") {
  const auto head_dim = points_of({"--set=head_dim"}), unequal = points_of({"--set=unequal"}),
             short_ones = points_of({"--set=short"}), decode = points_of({"--set=decode"});
  std::set<int64_t> grid_dims;
  for (const auto& p : points_of({"--set=grid"})) grid_dims.insert(p.head_dim);
  std::set<int64_t> dims, lengths, queries;
  for (const auto& p : head_dim) {
    CHECK(grid_dims.count(p.head_dim) == 0);
    CHECK(p.batch * p.seqlen == 16384);
    dims.insert(p.head_dim);
  }
  CHECK(head_dim.size() == dims.size() * 2 * 3);
  CHECK(dims.count(96) + dims.count(192) == 2);
  for (const auto& p : unequal) CHECK(p.v_dim() != p.head_dim);
  CHECK(unequal.size() == 5 * 2 * 2);
  for (const auto& p : short_ones) {
    CHECK(p.seqlen == p.seqlen_k);
    CHECK(p.v_dim() == p.head_dim);
    lengths.insert(p.seqlen);
  }
  CHECK(*lengths.begin() == 16);
  CHECK(*lengths.rbegin() == 577);
  int large = 0;
  for (const auto& p : decode) {
    CHECK(p.seqlen_k >= 2048);
    CHECK(p.causal == (p.seqlen > 1));
    queries.insert(p.seqlen);
    large += 2 * (p.k_elements() + p.v_elements()) >= 500000000;
  }
  CHECK(queries == std::set<int64_t>{1, 4});
  CHECK(large >= 12);
  for (const auto* set : {&head_dim, &unequal, &short_ones, &decode})
    for (const auto& p : *set) CHECK(is_runnable(p));
}

TEST_CASE("a grid of one's own") {
  const auto points = points_of({"--dtype", "bf16", "--head-dim=128", "--causal", "1", "--batch", "2", "--seqlen",
                                 "100", "--seqlen-k", "300", "--heads", "8", "--kv-heads", "2"});
  REQUIRE(points.size() == 1);
  CHECK(points[0].label() == "bf16 d128 causal batch 2 seqlen 100 heads 8/2 seqlen_k 300");
  CHECK(points[0].seen(0, 0).end == 201);
  CHECK_THAT(points[0].flop(), WithinRel(4.0 * 128 * 8 * 2 * (201 + 300) * 50, 1e-12));
  CHECK(points_of({"--dtype", "fp16,bf16"}).size() == 72);
  CHECK(labels(points_of({"--dtype", "fp16", "--head-dim", "128"})) == labels(points_of({"--set", "fp16"})));
}

TEST_CASE("points of e4m3 run in every form that is asked for") {
  const auto points = points_of({"--set", "fp8"});
  REQUIRE(points.size() == 2 * 36);
  const auto grid = points_of({});
  for (size_t i = 0; i < points.size(); ++i) {
    CHECK((points[i].dtype == FA3_DTYPE_E4M3 && points[i].scales == Scales::tensor && !points[i].two_level));
    CHECK(points[i].v == (i % 2 ? VForm::tiles : VForm::rows));
    CHECK(points[i].label() == "e4m3" + grid[i / 2].label().substr(4) + (i % 2 ? " v tiles" : " v rows"));
    CHECK(points[i].flop() == grid[i / 2].flop());
  }
  CHECK(labels(points_of({"--dtype", "e4m3"})) == labels(points));
  const auto extra = labels(points_of({"--set", "extra"}));
  const auto fp8extra = labels(points_of({"--set", "fp8extra", "--v", "tiles"}));
  REQUIRE(fp8extra.size() == extra.size());
  for (size_t i = 0; i < extra.size(); ++i) CHECK(fp8extra[i] == "e4m3" + extra[i].substr(4) + " v tiles");

  const auto all = points_of({"--dtype=bf16,e4m3", "--head-dim=64", "--seqlen=100", "--causal=0", "--tokens=200",
                              "--scales=tensor,head,block", "--two-level=0,1", "--v", "tiles,rows", "--kv-heads=4"});
  REQUIRE(all.size() == 1 + 3 * 2 * 2);
  CHECK(all[0].label() == "bf16 d64 full batch 2 seqlen 100 heads 32/4");
  CHECK(all[1].label() == "e4m3 d64 full batch 2 seqlen 100 heads 32/4 v tiles");
  CHECK(all[12].label() == "e4m3 d64 full batch 2 seqlen 100 heads 32/4 v rows scales block two-level");
  std::set<std::string> different;
  for (const auto& label : labels(all)) different.insert(label);
  CHECK(different.size() == all.size());
}

TEST_CASE("a point's parameters have its form") {
  Point p{FA3_DTYPE_E4M3, 64, true, 2, 100, 130, 8, 4, {}};
  float ones[1];
  const auto params = [&] { return p.params({.scales = ones}); };
  const auto dims = [](const fa3_tensor& t) { return std::vector<int64_t>(t.dim, t.dim + t.rank); };
  using Dims = std::vector<int64_t>;
  CHECK((params().q.dtype == FA3_DTYPE_E4M3 && params().o.dtype == FA3_DTYPE_BF16 && params().flags == 0));
  CHECK(dims(params().v) == Dims{2, 130, 4, 64});
  for (const fa3_tensor& scale : {params().q_scale, params().k_scale, params().v_scale}) {
    CHECK(dims(scale) == Dims{1, 1, 1});
    CHECK((scale.dtype == FA3_DTYPE_FP32 && scale.data == ones));
  }
  CHECK(p.scale_elements() == 1);
  p.scales = Scales::head, p.v = VForm::tiles, p.two_level = true;
  CHECK(dims(params().q_scale) == Dims{2, 8, 1});
  CHECK(dims(params().v_scale) == Dims{2, 4, 1});
  CHECK(dims(params().v) == Dims{2, 4, 9, 64, 16});
  CHECK(params().v.stride[2] == 64 * 16);
  CHECK(params().flags == FA3_FLAG_TWO_LEVEL);
  p.scales = Scales::block;
  CHECK(dims(params().q_scale) == Dims{2, 8, 2});
  CHECK(dims(params().k_scale) == Dims{2, 4, 3});
  CHECK(dims(params().v_scale) == Dims{2, 4, 3});
  CHECK(p.scale_elements() == 2 * 8 * 2);
  const Point half{FA3_DTYPE_FP16, 64, true, 2, 100, 130, 8, 4, {}};
  CHECK((half.scale_elements() == 0 && half.shapes().q_scale.rank == 0 && half.form().empty()));
}

}  // namespace fa3::bench
