// Tensors and a workspace in the same memory: what is refused, and what is not. And inputs whose strides are 0 or
// below: they are read where they lie.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "../src/change.h"
#include "../src/row_call.h"

namespace fa3::test {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("the workspace's last bytes count", "[arguments]") {
  P p = imaginary();
  move(p.lse, 12);  // it begins with the workspace's last element
  CHECK(fa3_forward(&p, static_cast<char*>(p.lse.data) - 60, 64, nullptr) == invalid);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("workspace may overlap lse"));
}

TEST_CASE("strides of outputs that do not nest are refused by that rule", "[arguments]") {
  // No two of these elements share an address.
  P p = imaginary({.batch = 2, .seqlen_q = 4, .seqlen_k = 4, .heads = 2, .heads_kv = 2, .head_dim = 8});
  set_strides(p.lse, {29, 19, 17});
  CHECK(fa3_forward_check(&p) == invalid);
  CHECK(std::string(fa3_last_error_message()) ==
        "lse.stride[1] is 19: elements of an output may overlap unless its strides nest, that is, each is larger than "
        "the span of the smaller ones, here 51");
  set_strides(p.lse, {72, 52, 17});  // spans are 51 and 103
  CHECK(fa3_forward_check(&p) == invalid);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("lse.stride[0] is 72: ") && ContainsSubstring("here 103"));
  set_strides(p.lse, {104, 52, 17});
  CHECK(fa3_forward_check(&p) == FA3_OK);
}

TEST_CASE("tensors that share memory are refused, slices that do not are not", "[arguments]") {
  // Rows of 8 elements in buffers that repeat with a period, at any offset, also reaching into the next period.
  constexpr int64_t batch = 2, seqlen = 3, heads = 2, row = 8, unit = 16;
  const auto rows_of = [](const fa3_tensor& t) {  // addresses of rows; each is 16 bytes and a multiple of them
    std::set<uintptr_t> rows;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < seqlen; ++i)
        for (int64_t h = 0; h < heads; ++h)
          rows.insert(reinterpret_cast<uintptr_t>(t.data) + 2 * (b * t.stride[0] + i * t.stride[1] + h * t.stride[2]));
    return rows;
  };
  int accepted = 0, refused = 0;
  for (const int64_t period : {2, 3, 4, 5, 6})  // rows of 8 from one row of queries to the next
    for (const int64_t o_step : {1, 2, 3})
      for (const int64_t q_step : {0, 1, 2, 3})
        for (int64_t offset = -40; offset <= 40; ++offset)
          for (const bool own_batches : {false, true}) {
            P p = imaginary({batch, seqlen, seqlen, heads, heads, row});
            p.lse = {};
            p.q.data = static_cast<char*>(p.o.data) + unit * offset;
            set_strides(p.o, {period * seqlen * row, period * row, o_step * row, 1});
            set_strides(p.q, {(own_batches ? period * seqlen : period) * row, period * row, q_step * row, 1});
            std::set<uintptr_t> o = rows_of(p.o);
            if (o.size() < batch * seqlen * heads || o_step >= period) continue;  // not an output
            const std::set<uintptr_t> q = rows_of(p.q);
            const bool shared = std::any_of(q.begin(), q.end(), [&](uintptr_t at) { return o.contains(at); });
            const int64_t place = (offset % period + period) % period;  // of q in o's period; o is at 0
            const bool slices = o_step + 1 <= place && place + q_step + 1 <= period;
            const fa3_status status = fa3_forward_check(&p);
            INFO("period " << period << " steps " << o_step << " " << q_step << " offset " << offset << " batches "
                           << own_batches << " " << fa3_last_error_message());
            if (shared) REQUIRE(status == invalid);
            else if (slices) CHECK(status == FA3_OK);
            const bool meet = *q.begin() < *o.rbegin() && *o.begin() < *q.rbegin();
            accepted += meet && status == FA3_OK;
            refused += shared;
          }
  CHECK((accepted > 50 && refused > 500));
}

namespace {

// Memory that ends with the bytes given: the next one faults.
class EndOfPage {
 public:
  EndOfPage(const void* data, size_t bytes) {
    page_ = static_cast<char*>(mmap(nullptr, 2 * size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(page_ + size_, size_, PROT_NONE);
    at_ = std::memcpy(page_ + size_ - bytes, data, bytes);
  }
  ~EndOfPage() { munmap(page_, 2 * size_); }
  EndOfPage(const EndOfPage&) = delete;
  EndOfPage& operator=(const EndOfPage&) = delete;
  void* data() const { return at_; }

 private:
  size_t size_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* page_;
  void* at_;
};

}  // namespace

TEST_CASE("a broadcast is read where it lies, and nowhere else", "[arguments]") {
  // torch's new_ones(()).expand(1, 1024, 1, 64) has strides that are all 0.
  const float one = 1, three[3] = {2, 4, 6};
  const EndOfPage element(&one, sizeof one), row(three, sizeof three);
  Buffer o(2 * 70 * 4 * 3 * 4), lse(2 * 70 * 4 * 4);
  P p = describe({.batch = 2, .seqlen_q = 70, .seqlen_k = 90, .heads = 4, .heads_kv = 2, .head_dim = 3},
                 FA3_DTYPE_FP32, element.data(), element.data(), element.data(), o.as(), lse.as());
  for (fa3_tensor* t : {&p.q, &p.k, &p.v}) set_strides(*t, {0, 0, 0, 0});
  const auto check = [&](const float* expected) {
    REQUIRE(fa3_reference_forward(&p, 1) == FA3_OK);
    size_t wrong = 0;
    for (int i = 0; i < 2 * 70 * 4 * 3; ++i) wrong += std::fabs(o.as<float>()[i] - expected[i % 3]) > 1e-6f;
    for (int i = 0; i < 2 * 70 * 4; ++i)  // all 90 scores are 3 / sqrt(3)
      wrong += std::fabs(lse.as<float>()[i] - (std::sqrt(3.0f) + std::log(90.0f))) > 1e-5f;
    CHECK(wrong == 0);
  };
  const float ones[3] = {1, 1, 1};
  check(ones);
  p.v.data = row.data(), p.v.stride[3] = 1;
  check(three);
  p.v.data = static_cast<float*>(row.data()) + 2, p.v.stride[3] = -1;
  const float backwards[3] = {6, 4, 2};
  check(backwards);
}

}  // namespace fa3::test
