// Backward calls of e4m3 on the simulated driver, from the caller's parameters to gradients: the launches that the host
// makes compute what the reference does, in a workspace of the size that was asked for.
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "../device/simulated_device.h"
#include "e4m3_gradients.h"

namespace fa3::test {

TEST_CASE("gradients of e4m3, launched", "[e4m3][backward]") {
  make_current();
  constexpr size_t guard = 256;
  constexpr char poison = 0x5a;
  for (const E4m3Form& form : e4m3_forms()) {
    INFO(form.name);
    E4m3Call call(form, 2);
    const fa3_tensor* const gradients[] = {&call.p.dq, &call.p.dk, &call.p.dv, &call.p.dsinks};
    REQUIRE(fa3_reference_backward(&call.p, 1) == FA3_OK);
    std::vector<std::vector<double>> right;
    for (const fa3_tensor* t : gradients) right.push_back(call.numbers(*t));
    call.clear_gradients();
    size_t bytes = 0;
    REQUIRE(fa3_backward_workspace_size(&call.p, &bytes) == FA3_OK);
    std::vector<char> memory(bytes + 2 * guard, poison);
    const fa3_status status = fa3_backward(&call.p, memory.data() + guard, bytes, nullptr);
    INFO(fa3_last_error_message());
    REQUIRE(status == FA3_OK);
    const auto is_poison = [](char byte) { return byte == poison; };
    CHECK(std::all_of(memory.begin(), memory.begin() + guard, is_poison));
    CHECK(std::all_of(memory.end() - guard, memory.end(), is_poison));
    // Elements times scales are rounded, too.
    const double limit = form.dtype == FA3_DTYPE_BF16 ? 1.2e-2 : 1.5e-3;
    for (size_t i = 0; i < right.size(); ++i) {
      INFO("gradient " << i);
      CHECK(relative_error(call.numbers(*gradients[i]), right[i]) < limit);
    }
  }
}

}  // namespace fa3::test
