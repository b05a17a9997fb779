// Status and message of the calling thread's last call. The message is thread-local; nothing is allocated.
#pragma once
#include <cstdint>

#include "fa3.h"

namespace fa3 {

// Records the message and returns the status, so that a refusal is one line: return fail(FA3_ERROR_..., "...", ...).
[[gnu::format(printf, 2, 3)]] fa3_status fail(fa3_status status, const char* format, ...);

// For %lld.
inline long long ll(int64_t value) { return value; }

// Clears the message and returns FA3_OK.
fa3_status succeed();

const char* last_message();

}  // namespace fa3
