// Running another program and collecting what it prints.
#pragma once

#include <string>
#include <vector>

namespace sass {

struct Output {
  int status = 0;  // exit status, or 128 + signal
  std::string out, err;
};

// No shell is involved; throws std::runtime_error when the program cannot be started.
Output run(const std::vector<std::string>& command, const std::string& folder = "");

// A folder for temporary files that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace sass
