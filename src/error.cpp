#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace fa3 {
namespace {
thread_local char message[512];
}

fa3_status fail(fa3_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return status;
}

fa3_status succeed() {
  message[0] = '\0';
  return FA3_OK;
}

const char* last_message() { return message; }

}  // namespace fa3
