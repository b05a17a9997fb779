// Nothing is left behind, also by a program that is stopped: its children are ended and its temporary folders removed,
// then the signal takes its usual course.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace sass {

// From here on Ctrl-C, a hang-up and a plain kill tidy up first. To be called before any thread begins.
void tidy_up_when_stopped();

// A child process that is ended with this program. `start` starts it.
class Child {
 public:
  explicit Child(const std::function<pid_t()>& start);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  int wait();  // for its end; what waitpid tells

 private:
  pid_t id_ = 0;
  int status_ = 0;
};

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
