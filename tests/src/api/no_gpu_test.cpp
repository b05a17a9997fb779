// The GPU's functions on a machine, or a thread, that has none.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "../call.h"
#include "../refused.h"

namespace fa3::test {
namespace {

using Catch::Matchers::ContainsSubstring;

// This thread made no context, so there is none even where there is a GPU. What the status is called, the message does
// not say again.
void expect_none(fa3_status status) {
  CHECK_THAT(fa3_last_error_message(), !ContainsSubstring(fa3_status_string(status)));
  if (status == FA3_ERROR_NO_DRIVER) CHECK_THAT(fa3_last_error_message(), ContainsSubstring("libcuda.so.1"));
  else {
    expect(status, FA3_ERROR_NO_CONTEXT, "a context must be current in the calling thread");
  }
}

}  // namespace

TEST_CASE("without a context nothing runs, and the message says so", "[no-gpu]") {
  Buffer q(4096), k(4096), v(4096), o(4096), lse(4096), workspace(64);
  const fa3_forward_params p = describe({}, FA3_DTYPE_BF16, q.as(), k.as(), v.as(), o.as(), lse.as());
  for (int i = 0; i < 2; ++i) {
    expect_none(fa3_forward(&p, workspace.as(), workspace.bytes(), nullptr));
    expect_none(fa3_preload());
  }
  CHECK((o.untouched() && lse.untouched() && workspace.untouched()));
  CHECK(fa3_forward_check(&p) == FA3_OK);
  CHECK(std::string(fa3_last_error_message()) == "");
}

TEST_CASE("nothing to compute needs no GPU", "[no-gpu]") {
  Buffer workspace(64);
  for (const Shape& shape :
       {Shape{.batch = 0}, Shape{.seqlen_q = 0}, Shape{.heads = 0}, Shape{.heads = 0, .heads_kv = 0}}) {
    const fa3_forward_params p = describe(shape, FA3_DTYPE_FP16, nullptr, reinterpret_cast<void*>(1 << 20),
                                          reinterpret_cast<void*>(1 << 20), nullptr, nullptr);
    CHECK(fa3_forward(&p, workspace.as(), workspace.bytes(), nullptr) == FA3_OK);
    CHECK(workspace.untouched());
  }
}

TEST_CASE("questions need a context only if they are about its device", "[no-gpu]") {
  for (const fa3_forward_params& p : {imaginary(), imaginary({.batch = 0})}) {
    size_t bytes = 12345;
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    expect_none(fa3_forward_workspace_size(&p, 0, &bytes));
    expect_none(fa3_forward_kernel_info(&p, 0, 0, &info));
    CHECK((bytes == 12345 && info.name[0] == '\0'));
    CHECK(fa3_forward_workspace_size(&p, 132, &bytes) == FA3_OK);
    CHECK(fa3_forward_kernel_info(&p, 132, 0, &info) == FA3_OK);
    CHECK(std::string(fa3_last_error_message()) == "");
  }
  // Wrong parameters are refused first.
  fa3_forward_params p = imaginary();
  p.mask = 9;
  size_t bytes = 0;
  CHECK(fa3_forward_workspace_size(&p, 0, &bytes) == FA3_ERROR_INVALID_ARGUMENT);
}

}  // namespace fa3::test
