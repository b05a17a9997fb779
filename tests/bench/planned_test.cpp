// Points of planned calls: their words, shapes and counts, and where their rows lie.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "../../tools/fa3-bench/plans/plans.h"
#include "../../tools/fa3-bench/points/kernels.h"
#include "../../tools/fa3-bench/points/rows.h"
#include "bench_test.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;
using Dims = std::vector<int64_t>;

static Dims dims(const fa3_tensor& t) { return {t.dim, t.dim + t.rank}; }

static Point only(std::vector<std::string> words) {
  const auto points = points_of(std::move(words));
  REQUIRE(points.size() == 1);
  return points[0];
}

TEST_CASE("options make planned calls") {
  const Point packed = only({"--lengths=17,0,300", "--causal=1", "--head-dim=128", "--heads=8", "--kv-heads=2"});
  CHECK((packed.is_planned() && packed.batch == 3 && packed.seqlen == 300 && packed.seqlen_k == 300));
  CHECK(packed.label() == "bf16 d128 causal lengths 17,0,300 heads 8/2");
  fa3_forward_params params = packed.shapes();
  CHECK((dims(params.q) == Dims{317, 8, 128} && dims(params.k) == Dims{317, 2, 128}));
  CHECK(dims(params.v) == dims(params.k));
  CHECK((dims(params.o) == Dims{317, 8, 128} && dims(params.lse) == Dims{8, 317}));
  CHECK((dims(params.cu_seqlens_q) == Dims{4} && dims(params.cu_seqlens_k) == Dims{4} && params.page_table.rank == 0));
  CHECK((params.max_seqlen_q == 300 && params.max_seqlen_k == 300 && params.mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT));

  const Point paged = only({"--lengths=1,5", "--lengths-k=100,65", "--page=16", "--causal=1", "--head-dim=64",
                            "--sinks", "--window=31", "--e4m3-cache"});
  CHECK(paged.label() ==
        "bf16 d64 causal lengths 1,5 heads 32/32 lengths_k 100,65 page 16 window 31 sinks e4m3 cache");
  params = paged.shapes();
  CHECK((dims(params.q) == Dims{6, 32, 64} && dims(params.k) == Dims{7 + 5, 16, 32, 64}));
  CHECK((params.k.dtype == FA3_DTYPE_E4M3 && params.v.dtype == FA3_DTYPE_E4M3 && params.q.dtype == FA3_DTYPE_BF16));
  CHECK((dims(params.k_scale) == Dims{1, 1, 1} && params.q_scale.rank == 0 && params.cu_seqlens_k.rank == 0));
  CHECK((dims(params.seqused_k) == Dims{2} && dims(params.page_table) == Dims{2, 7} && dims(params.sinks) == Dims{32}));
  CHECK((params.mask == FA3_MASK_WINDOW && params.window_left == 31 && params.window_right == 0));

  const Point batched = only({"--batch=2", "--seqlen=4", "--seqlen-k=40", "--page=16", "--causal=0", "--head-dim=64",
                              "--chunk=16", "--softcap=30.5"});
  CHECK_THAT(batched.label(), ContainsSubstring(" seqlen 4 heads 32/32 seqlen_k 40 page 16 chunk 16 softcap 30.5"));
  params = batched.shapes();
  CHECK((dims(params.q) == Dims{2, 4, 32, 64} && dims(params.lse) == Dims{2, 32, 4} && params.cu_seqlens_q.rank == 0));
  CHECK((dims(params.k) == Dims{6, 16, 32, 64} && dims(params.page_table) == Dims{2, 3} && params.softcap == 30.5f));
  CHECK((params.mask == FA3_MASK_CHUNK && params.window_left == 16 && params.window_right == -1));
  for (const Point& p : {packed, paged, only({"--seqlen=512", "--causal=0", "--head-dim=64", "--alibi"})}) {
    INFO(p.label());
    CHECK(is_runnable(p));
    CHECK_THAT(kernel_of(p, 132).name, ContainsSubstring("fa3_fwdplanned"));
  }
  CHECK_FALSE(only({"--seqlen=512", "--causal=0", "--head-dim=64"}).is_planned());
  for (const Point& p : points_of({"--dtype=e4m3", "--lengths=5", "--v=rows,tiles"})) CHECK(p.v == VForm::rows);
}

TEST_CASE("a planned backward pass has the forward's lengths, masks and transforms") {
  const Point p =
      only({"--direction=bwd", "--lengths=17,300", "--causal=1", "--head-dim=128", "--window=63", "--sinks"});
  const fa3_backward_params params = p.backward_shapes();
  CHECK((dims(params.dq) == Dims{317, 16, 128} && dims(params.cu_seqlens_k) == Dims{3} && params.max_seqlen_k == 300));
  CHECK((params.mask == FA3_MASK_WINDOW && params.window_left == 63 && params.window_right == 0));
  CHECK((dims(params.sinks) == Dims{16} && dims(params.dsinks) == Dims{16}));
  CHECK_THAT(kernel_of(p, 132).name, ContainsSubstring("fa3_bwdplanned"));
  const Point transformed =
      only({"--direction=bwd", "--seqlen=512", "--causal=0", "--head-dim=64", "--alibi", "--softcap=20"});
  CHECK((dims(transformed.backward_shapes().alibi_slopes) == Dims{32} && transformed.backward_shapes().softcap == 20));
  CHECK(transformed.backward_shapes().dsinks.rank == 0);
}

TEST_CASE("what queries see, and what that costs") {
  Point p{FA3_DTYPE_BF16, 64, true, 2, 10, 30, 4, 2, {}};
  const auto seen = [&](int64_t b, int64_t i) { return std::pair(p.seen(b, i).begin, p.seen(b, i).end); };
  CHECK(seen(0, 0) == std::pair<int64_t, int64_t>(0, 21));
  p.planned.window = 5;
  CHECK(seen(1, 0) == std::pair<int64_t, int64_t>(15, 21));
  CHECK(p.flop() == 4.0 * 64 * 4 * 2 * 10 * 6);
  CHECK(p.kv_bytes() == 2.0 * 2 * 2 * 2 * 64 * (30 - 15));
  p.causal = false;
  CHECK(seen(0, 0) == std::pair<int64_t, int64_t>(15, 26));
  CHECK(seen(0, 9) == std::pair<int64_t, int64_t>(24, 30));
  p.planned.window = -1, p.planned.chunk = 8;
  CHECK(seen(0, 0) == std::pair<int64_t, int64_t>(16, 24));
  p.causal = true;
  CHECK(seen(0, 3) == std::pair<int64_t, int64_t>(16, 24));
  CHECK(seen(0, 4) == std::pair<int64_t, int64_t>(24, 25));

  Point packed{FA3_DTYPE_BF16, 64, true, 3, 20, 20, 4, 4, {}};
  packed.planned.lengths = packed.planned.lengths_k = {20, 0, 10};
  CHECK_THAT(packed.flop(), WithinRel(4.0 * 64 * 4 * (200 + 50), 1e-12));
  packed.planned.lengths_k = {20, 7, 12}, packed.planned.e4m3_cache = true;
  CHECK_THAT(packed.flop(), WithinRel(4.0 * 64 * 4 * (200 + 10 * 2 + 55), 1e-12));
  CHECK(packed.kv_bytes() == 2.0 * 64 * 4 * (20 + 12));  // nobody sees the second one's keys
}

TEST_CASE("rows of sequences lie where the device finds them") {
  Point p{FA3_DTYPE_BF16, 64, true, 3, 20, 37, 4, 2, {}};
  p.planned.lengths = {20, 0, 10}, p.planned.lengths_k = {37, 7, 12};
  const Rows packed(p);
  CHECK((packed.cu_q == std::vector<int32_t>{0, 20, 20, 30} && packed.cu_k == std::vector<int32_t>{0, 37, 44, 56}));
  CHECK((packed.query(2, 3) == 23 && packed.key(2, 3) == 47 && packed.lse(2, 3, 1) == 30 + 23));
  CHECK((packed.page_table.empty() && packed.used_k.empty()));

  p.planned.page = 16;
  const Rows paged(p);
  CHECK((p.pages() == 3 + 1 + 1 && p.pages_each() == 3 && p.key_rows() == 80));
  CHECK((paged.cu_k.empty() && paged.used_k == std::vector<int32_t>{37, 7, 12} && paged.page_table.size() == 9));
  std::set<int64_t> rows;
  for (int64_t b = 0; b < 3; ++b)
    for (int64_t j = 0; j < p.keys(b); ++j) {
      rows.insert(paged.key(b, j));
      CHECK(paged.key(b, j) == paged.page_table[size_t(b * 3 + j / 16)] * 16 + j % 16);
    }
  CHECK((rows.size() == 56 && *rows.rbegin() < 80));
  CHECK(Rows(p).page_table == paged.page_table);

  const Rows batched(Point{FA3_DTYPE_BF16, 64, true, 3, 20, 37, 4, 2, {}});
  CHECK((batched.query(2, 3) == 43 && batched.key(2, 3) == 77 && batched.lse(2, 3, 1) == (2 * 4 + 1) * 20 + 3));
  CHECK(batched.cu_q.empty());
}

TEST_CASE("sets of planned calls hold what they are there for, and all of it runs") {
  std::set<std::string> names;
  const auto with = [&](const char* set) {
    const auto points = points_of({"--set", set});
    for (const Point& p : points) {
      INFO(p.label());
      CHECK((p.causal && is_runnable(p)));
      CHECK(names.insert(p.planned.kind + " " + p.planned.name).second);
    }
    return points;
  };
  const auto decode = with("serve_decode"), prefill = with("serve_prefill"), mixed = with("serve_mixed"),
             documents = with("documents"), masks = with("masks");
  for (const auto* set : {&decode, &prefill, &mixed})
    for (const Point& p : *set) CHECK(p.planned.page > 0);
  const auto any = [](const std::vector<Point>& points, const auto& property) {
    return std::any_of(points.begin(), points.end(), property);
  };
  for (const Point& p : decode) CHECK(p.seqlen <= 4);
  CHECK(any(decode, [](const Point& p) { return p.planned.sinks && p.planned.window == 127; }));
  CHECK(any(decode, [](const Point& p) { return p.planned.e4m3_cache; }));
  CHECK(any(decode, [](const Point& p) { return p.v_in_k(); }));
  for (const Point& p : prefill) CHECK((p.seqlen >= 512 && p.seqlen < p.seqlen_k));
  for (const Point& p : mixed)
    CHECK((std::ranges::count(p.planned.lengths, 1) >= 32 && std::ranges::max(p.planned.lengths) >= 512));
  for (const Point& p : documents) CHECK((p.packed_k() && p.planned.lengths == p.planned.lengths_k));
  CHECK(documents[0].query_rows() == 16384);
  CHECK(documents[1].query_rows() == 65536);
  CHECK(any(masks, [](const Point& p) { return p.planned.alibi; }));
  CHECK(any(masks, [](const Point& p) { return p.planned.softcap == 50; }));
  for (const char* both : {"documents", "masks"})
    for (const Point& p : points_of({"--set", both, "--direction", "bwd"})) CHECK(is_runnable(p));
  // As in tests/records.
  for (const char* name :
       {"decode b32 ctx mixed page 64 32/8 d128 sq 4", "decode_window b32 ctx 32768 page 64 32/8 d128 left 127",
        "sink_decode b8 ctx 8192 page 64 64/8 d64 left 127", "mla b32 ctx mixed sq 1 heads 128 page 64",
        "chunked 4 seq; q 512 on 8704..33280 page 16 32/8 d128",
        "mixed 131 seq; q 1..1024 on 512..32768 page 16 32/8 d128",
        "varlen one 32768, 64 of 128; 32/8 d128", "window b2 n8192 32/8 d128 left 128", "alibi b4 n4096 16/16 d64",
        "sink b4 n4096 64/8 d64 left -1", "softcap b2 n8192 16/8 d256 cap 30"})
    CHECK(names.contains(name));
}

TEST_CASE("reports tell what is planned") {
  Report report;
  report.device.sms = 132;
  report.device.max_clock_khz = 1980000;
  for (const Point& point : points_of({"--set=serve_mixed,table2"})) {
    Result& result = report.results.emplace_back();
    result.point = point;
    result.add_pass({0.1});
  }
  const std::string csv = printed(report, &Report::print_csv);
  CHECK_THAT(csv, ContainsSubstring(",two_level,head_dim_v,call,kind,name,gbytes_s\n"));
  CHECK_THAT(csv, ContainsSubstring(",128,lengths 33 of 1 to 512 lengths_k 33 of 1320 to 32768 page 16,mixed,"
                                    "33 seq; q 1..512 on 1320..32768 page 16 32/8 d128,"));
  CHECK_THAT(csv, ContainsSubstring("\nfwd,bf16,128,0,4,8448,16,16,") && ContainsSubstring(",128,,,,2768.2\n"));
  CHECK_THAT(printed(report, &Report::print_table),
             ContainsSubstring(" lengths_k 33 of 1320 to 32768 page 16: 33 seq; q 1..512"));
  const auto list = nlohmann::json::parse(printed(report, &Report::print_list))["points"];
  CHECK(
      (list[0]["planned"]["lengths"].size() == 33 && list[0]["planned"]["page"] == 16 && list[6]["planned"].is_null()));
  CHECK(list[0]["planned"]["kind"] == "mixed");
  const Point quoted = only({"--lengths=5,6", "--causal=0", "--head-dim=64"});
  report.results.resize(1), report.results[0].point = quoted;
  CHECK_THAT(printed(report, &Report::print_csv), ContainsSubstring(",\"lengths 5,6\",,,"));
}

TEST_CASE("plans of planned calls") {
  const auto plan = [](std::vector<std::string> words) {
    return show_plans(points_of(std::move(words)), assumed_card(132), true);
  };
  const Plans paged = plan({"--lengths=1,1,512", "--lengths-k=9000,17,4608", "--page=16", "--causal=1",
                            "--head-dim=128", "--heads=32", "--kv-heads=8"});
  CHECK(paged.refused == 0);
  CHECK_THAT(paged.text, ContainsSubstring(" causal lengths 1,1,512 heads 32/8 lengths_k 9000,17,4608 page 16\n") &&
                             ContainsSubstring("\n* fa3_fwdplanned") && ContainsSubstring("    sequence 2, ") &&
                             ContainsSubstring("    sequence 1, query block 0, blocks 0 to 0\n"));
  const Plans windows = plan({"--batch=2", "--seqlen=1024", "--causal=1", "--head-dim=128", "--window=127"});
  CHECK_THAT(windows.text, ContainsSubstring("    sequence 1, query block") && !ContainsSubstring("part 1"));
  const Plans refused = plan({"--batch=2", "--seqlen=1024", "--causal=1", "--head-dim=128", "--alibi", "--chunk=64"});
  CHECK((refused.refused == 1 && refused.text.find("alibi_slopes") != std::string::npos));
}

}  // namespace fa3::bench
