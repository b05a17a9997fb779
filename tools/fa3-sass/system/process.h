// Running another program and collecting what it prints.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sass {

struct Output {
  int status = 0;  // exit status, or 128 + signal
  std::string out, err;
};

struct RunOptions {
  std::string folder{};      // to run in
  std::string_view input{};  // on standard input, as a file that can be read at any place
};

// No shell is involved; throws std::runtime_error when the program cannot be started.
Output run(const std::vector<std::string>& command, const RunOptions& options = {});

}  // namespace sass
