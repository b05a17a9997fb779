#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "new_file.h"
#include "tidy.h"

extern char** environ;

namespace sass {
namespace {

struct Pipe {
  int ends[2] = {-1, -1};
  // Closed on exec: two threads may start programs at once, and a child that inherited the other's write end would
  // keep the reader waiting.
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe: " + std::string(std::strerror(errno)));
  }
  ~Pipe() {
    shut(0);
    shut(1);
  }
  void shut(int end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
};

void collect(Pipe& out, Pipe& err, Output& result) {
  pollfd wanted[2] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
  std::string* into[2] = {&result.out, &result.err};
  static thread_local char buffer[1 << 16];
  for (int open = 2; open > 0;) {
    if (poll(wanted, 2, -1) < 0 && errno != EINTR) return;
    for (int i = 0; i < 2; ++i) {
      if (wanted[i].fd < 0 || wanted[i].revents == 0) continue;
      const ssize_t got = read(wanted[i].fd, buffer, sizeof buffer);
      if (got > 0) {
        into[i]->append(buffer, static_cast<size_t>(got));
      } else if (got == 0 || errno != EINTR) {
        wanted[i].fd = -1;
        --open;
      }
    }
  }
}

// A file without a name that holds these bytes; /dev/null if there are none.
class Input {
 public:
  explicit Input(std::string_view bytes)
      : file_(bytes.empty() ? open("/dev/null", O_RDONLY | O_CLOEXEC) : memfd_create("input", MFD_CLOEXEC)) {
    const std::string trouble = "no file in memory for another program's input: ";
    if (file_ < 0) throw std::runtime_error(trouble + std::strerror(errno));
    try {
      write_all(file_, bytes);
    } catch (const std::system_error& error) {
      close(file_);
      throw std::runtime_error(trouble + error.code().message());
    }
    lseek(file_, 0, SEEK_SET);
  }
  ~Input() { close(file_); }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;
  int file() const { return file_; }

 private:
  int file_;
};

// The child gets the signals that this program holds back for itself (tidy.h).
class Attributes {
 public:
  Attributes() {
    sigset_t none, usual;
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    posix_spawnattr_init(&value_);
    posix_spawnattr_setsigmask(&value_, &none);
    posix_spawnattr_setsigdefault(&value_, &usual);
    posix_spawnattr_setflags(&value_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~Attributes() { posix_spawnattr_destroy(&value_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  const posix_spawnattr_t* get() const { return &value_; }

 private:
  posix_spawnattr_t value_;
};

}  // namespace

Output run(const std::vector<std::string>& command, const RunOptions& options) {
  Pipe out, err;
  const Input input(options.input);
  const Attributes attributes;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.file(), 0);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err.ends[1], 2);
  if (!options.folder.empty()) posix_spawn_file_actions_addchdir_np(&actions, options.folder.c_str());
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  int failed = 0;
  pid_t id = 0;
  Output result;
  const auto start = [&] {
    failed = posix_spawnp(&id, arguments[0], &actions, attributes.get(), arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) throw std::runtime_error(command[0] + ": cannot be started: " + std::strerror(failed));
    return id;
  };
  Child child(start);
  out.shut(1);
  err.shut(1);
  collect(out, err, result);
  const int status = child.wait();
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace sass
