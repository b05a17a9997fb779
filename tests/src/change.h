// A change of good parameters, and what must come of it.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fa3.h"

namespace fa3::test {

using P = fa3_forward_params;
inline constexpr fa3_status invalid = FA3_ERROR_INVALID_ARGUMENT, unsupported = FA3_ERROR_UNSUPPORTED;

struct Change {
  const char* name;  // what the message must contain
  fa3_status status;
  void (*apply)(P&);
};

inline void expect(fa3_status actual, const Change& change) {
  INFO(change.name);
  CHECK(actual == change.status);
  CHECK_THAT(fa3_last_error_message(), Catch::Matchers::ContainsSubstring(change.name));
}

inline void move(fa3_tensor& t, intptr_t bytes) { t.data = static_cast<char*>(t.data) + bytes; }

}  // namespace fa3::test
