// Changes of right parameters that the API refuses, and what it must say.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

#include "fa3.h"

namespace fa3::test {

inline constexpr fa3_status invalid = FA3_ERROR_INVALID_ARGUMENT, unsupported = FA3_ERROR_UNSUPPORTED;

template <class Params>
struct ChangeOf {
  const char* name;  // what the message must contain
  fa3_status status;
  void (*apply)(Params&);
};

// actual: what a call has just returned.
inline void expect(fa3_status actual, fa3_status status, const std::string& message) {
  INFO(message);
  CHECK(actual == status);
  CHECK_THAT(fa3_last_error_message(), Catch::Matchers::ContainsSubstring(message));
}

template <class Params>
void expect(fa3_status actual, const ChangeOf<Params>& change) {
  expect(actual, change.status, change.name);
}

inline void move(fa3_tensor& t, intptr_t bytes) { t.data = static_cast<char*>(t.data) + bytes; }

}  // namespace fa3::test
