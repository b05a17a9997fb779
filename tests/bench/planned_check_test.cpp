// The checks of planned calls, of any kind, take what the CPU reference computes, and find what is wrong.
#include <algorithm>
#include <bit>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

#include "../../tools/fa3-bench/check/check_gradients.h"
#include "../../tools/fa3-bench/measure/fp8.h"
#include "../../tools/fa3-bench/points/rows.h"
#include "bench_test.h"
#include "half.h"
#include "random.h"

namespace fa3::bench {

using Catch::Matchers::ContainsSubstring;
using Words = std::vector<std::string>;

// A call on the host by the references. Inputs repeat themselves, as those of large points do.
struct PlannedComputed {
  static constexpr int64_t period = 5000;
  using Tensor = std::vector<uint16_t>;
  Point point;
  Tensor q, k, v, o, dout, dq, dk, dv;  // inputs as the checks read them; k and v maybe of e4m3, two in one
  std::vector<float> lse, sinks, slopes, dsinks, one = {1};

  explicit PlannedComputed(Words words) : point(point_of(std::move(words))) {
    const Point& p = point;
    q = random(1, period, p.dtype), k = random(2, period, p.key_dtype()), v = random(3, period, p.key_dtype());
    dout = random(4, period, p.dtype);
    o.resize(size_t(p.o_elements())), lse.resize(size_t(p.lse_elements()));
    dq.resize(size_t(p.q_elements())), dk.resize(size_t(p.k_elements())), dv.resize(size_t(p.v_elements()));
    dsinks.resize(size_t(p.heads));
    for (int64_t h = 0; h < p.heads; ++h) sinks.push_back(p.sink(h)), slopes.push_back(p.slope(h));
    Rows rows(p);
    Tensor whole[] = {repeated(q, p.q_elements(), p.dtype), repeated(k, p.k_elements(), p.key_dtype()),
                      repeated(v, p.v_elements(), p.key_dtype()), repeated(dout, p.o_elements(), p.dtype)};
    const fa3_forward_params forward = p.params(
        {whole[0].data(), whole[1].data(), p.v_in_k() ? whole[1].data() : whole[2].data(), o.data(), lse.data(),
         one.data(), rows.cu_q.data(), rows.cu_k.data(), rows.used_k.data(), rows.page_table.data(), sinks.data(),
         slopes.data()});
    INFO(p.label());
    const fa3_status status = fa3_reference_forward(&forward, 1);
    INFO(fa3_last_error_message());
    REQUIRE(status == FA3_OK);
    if (!p.is_backward()) return;
    const fa3_backward_params gradients = p.backward_params(
        forward, {whole[3].data(), dq.data(), dk.data(), dv.data(), p.planned.sinks ? dsinks.data() : nullptr});
    REQUIRE(fa3_reference_backward(&gradients, 1) == FA3_OK);
  }

  std::string verdict() const {
    const HostTensors tensors{q.data(), k.data(), v.data(), o.data(), lse.data(), period};
    const std::string problem = check_rows(point, tensors, 150, 7);
    if (!point.is_backward() || !problem.empty()) return problem;
    return check_gradients(point, tensors, {dout.data(), dq.data(), dk.data(), dv.data(), dsinks.data()}, 150, 7);
  }

 private:
  static Point point_of(Words words) {
    for (const char* word : {"--heads=4", "--kv-heads=2"})
      if (std::ranges::none_of(words, [](const std::string& w) { return w.starts_with("--heads"); }))
        words.push_back(word);
    const auto points = points_of(words);
    REQUIRE(points.size() == 1);
    return points[0];
  }
  static Tensor random(uint64_t seed, int64_t count, fa3_dtype dtype) {
    Tensor numbers(size_t(count), 0);
    if (dtype == FA3_DTYPE_E4M3) {
      const auto bytes = normal_e4m3(seed, size_t(count));
      std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(numbers.data()));
    } else {
      tools::fill_normal(seed, numbers.data(), size_t(count), dtype);
    }
    return numbers;
  }
  static Tensor repeated(const Tensor& numbers, int64_t count, fa3_dtype dtype) {
    Tensor all(size_t(count), 0);
    for (int64_t i = 0; i < count; ++i)
      tools::write_element(all.data(), i, tools::read_element(numbers.data(), i % period, dtype), dtype);
    return all;
  }
};

TEST_CASE("the check takes right results of planned calls") {
  for (const Words& words :
       {Words{"--lengths=17,0,60", "--causal=1"}, Words{"--lengths=17,9", "--lengths-k=40,90", "--causal=0"},
        Words{"--lengths=30,9", "--lengths-k=7,90", "--causal=1", "--dtype=fp16"},
        Words{"--lengths=1,1,20", "--lengths-k=100,5,70", "--page=16", "--causal=1"},
        Words{"--batch=2", "--seqlen=3", "--seqlen-k=70", "--page=7", "--causal=1", "--sinks"},
        Words{"--batch=2", "--seqlen=60", "--causal=1", "--window=9"},
        Words{"--batch=2", "--seqlen=60", "--causal=0", "--window=9", "--sinks"},
        Words{"--lengths=50,20", "--causal=1", "--chunk=16"}, Words{"--lengths=50,20", "--causal=0", "--chunk=16"},
        Words{"--lengths=50,20", "--causal=1", "--softcap=2"},
        Words{"--lengths=50,20", "--lengths-k=90,20", "--causal=1", "--alibi"},
        Words{"--lengths=50,20", "--causal=1", "--alibi", "--softcap=20", "--sinks"},
        Words{"--lengths=1,3", "--lengths-k=90,20", "--page=16", "--causal=1", "--e4m3-cache"},
        Words{"--lengths=1,3", "--lengths-k=90,20", "--page=16", "--causal=1", "--dtype=e4m3", "--v=rows"},
        Words{"--lengths=1,2", "--lengths-k=40,20", "--page=16", "--causal=1", "--head-dim=576", "--head-dim-v=512",
              "--heads=4", "--kv-heads=1"}}) {
    Words all = words;
    if (std::ranges::none_of(all, [](const std::string& w) { return w.starts_with("--head-dim"); }))
      all.push_back("--head-dim=64");
    const PlannedComputed made(all);
    INFO(made.point.label());
    CHECK(made.verdict() == "");
  }
}

TEST_CASE("the check takes right gradients of planned calls") {
  for (const Words& words :
       {Words{"--lengths=17,0,60", "--causal=1"}, Words{"--lengths=30,9", "--lengths-k=7,90", "--causal=1"},
        Words{"--batch=2", "--seqlen=60", "--causal=1", "--window=9", "--dtype=fp16"},
        Words{"--lengths=50,20", "--causal=0", "--chunk=16"}, Words{"--lengths=50,20", "--causal=1", "--sinks"},
        Words{"--lengths=50,20", "--causal=1", "--softcap=2"}, Words{"--lengths=50,20", "--causal=1", "--alibi"},
        Words{"--batch=1", "--seqlen=50", "--causal=1", "--alibi", "--softcap=5", "--sinks", "--window=20"}}) {
    Words all = words;
    all.push_back("--head-dim=64"), all.push_back("--direction=bwd");
    const PlannedComputed made(all);
    INFO(made.point.label());
    CHECK(made.verdict() == "");
  }
}

TEST_CASE("the check finds results of another call") {
  const auto [words, other, what] = GENERATE(table<Words, Words, const char*>({
      {{"--window=9"}, {"--window=8"}, "o of batch"},
      {{"--window=9"}, {}, "o of batch"},
      {{"--chunk=16"}, {"--chunk=17"}, "o of batch"},
      {{"--sinks"}, {}, "o of batch"},
      {{"--softcap=2"}, {}, "o of batch"},
      {{"--softcap=20"}, {"--softcap=21"}, "lse of batch"},
      {{"--alibi"}, {}, "o of batch"},
  }));
  const auto with = [](Words more) {
    more.insert(more.end(), {"--lengths=50,20", "--causal=1", "--head-dim=64", "--dtype=fp16"});
    return PlannedComputed(more);
  };
  PlannedComputed made = with(words);
  CHECK(made.verdict() == "");
  const PlannedComputed wrong = with(other);
  if (std::string(what) == "lse of batch") made.lse = wrong.lse;
  else made.o = wrong.o;
  CHECK_THAT(made.verdict(), ContainsSubstring(what));
}

TEST_CASE("the check finds a page that was taken for another, and rows of another sequence") {
  PlannedComputed made({"--lengths=1,20", "--lengths-k=100,70", "--page=16", "--causal=1", "--head-dim=64"});
  CHECK(made.verdict() == "");
  SECTION("page") {
    const size_t row = 16 * 2 * 64;  // of K: the elements of a page
    std::swap_ranges(made.k.begin(), made.k.begin() + long(row), made.k.begin() + long(row));
    CHECK_THAT(made.verdict(), ContainsSubstring("of batch"));
  }
  SECTION("sequence") {
    std::swap_ranges(made.o.begin(), made.o.begin() + 4 * 64, made.o.begin() + 4 * 64);
    CHECK_THAT(made.verdict(), ContainsSubstring("o of batch"));
  }
  SECTION("not written") {
    made.lse.back() = std::bit_cast<float>(0xffffffffu);
    CHECK_THAT(made.verdict(), ContainsSubstring("an element of lse was not written"));
  }
}

TEST_CASE("the check finds a wrong gradient of a sink") {
  PlannedComputed made({"--lengths=50,20", "--causal=1", "--head-dim=64", "--sinks", "--direction=bwd"});
  CHECK(made.verdict() == "");
  made.dsinks.back() *= 1.01f;
  CHECK_THAT(made.verdict(), ContainsSubstring("dsinks of batch 0 row 0 head 3"));
}

}  // namespace fa3::bench
