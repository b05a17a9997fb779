#include "tidy.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

namespace sass {
namespace {

struct Belongings {
  std::mutex mutex;
  std::set<pid_t> children;
  std::set<std::string> folders;
};

// Never destroyed: a signal may come while the program ends.
Belongings& belongings() {
  static Belongings* const all = new Belongings;
  return *all;
}

void await_end(pid_t child) {  // without taking its status, so that the number stays its own
  siginfo_t ignored;
  while (waitid(P_PID, static_cast<id_t>(child), &ignored, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
}

void remove_folder(const std::string& path) {
  // A file may come in between, as long as another thread writes some.
  std::error_code failed;
  for (int tries = 0; tries < 100 && std::filesystem::exists(path, failed); ++tries)
    std::filesystem::remove_all(path, failed);
}

// On a thread of its own, so that it may lock and wait. The lock is kept: nothing is started or made any more.
[[noreturn]] void end_by(int signal) {
  belongings().mutex.lock();
  for (pid_t child : belongings().children) kill(child, SIGKILL);
  for (pid_t child : belongings().children) await_end(child);
  for (const std::string& folder : belongings().folders) remove_folder(folder);
  ::signal(signal, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  raise(signal);
  _exit(128 + signal);
}

}  // namespace

void tidy_up_when_stopped() {
  sigset_t awaited;
  sigemptyset(&awaited);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&awaited, signal);  // nohup stays nohup
  }
  pthread_sigmask(SIG_BLOCK, &awaited, nullptr);
  std::thread([awaited] {
    int signal = 0;
    while (sigwait(&awaited, &signal) != 0) {
    }
    end_by(signal);
  }).detach();
}

Child::Child(const std::function<pid_t()>& start) {
  const std::lock_guard lock(belongings().mutex);
  id_ = start();
  belongings().children.insert(id_);
}

Child::~Child() {
  if (id_ != 0) kill(id_, SIGKILL);  // nobody reads what it prints any more
  wait();
}

int Child::wait() {
  if (id_ == 0) return status_;
  await_end(id_);
  const std::lock_guard lock(belongings().mutex);
  while (waitpid(id_, &status_, 0) < 0 && errno == EINTR) {
  }
  belongings().children.erase(id_);
  id_ = 0;
  return status_;
}

TemporaryFolder::TemporaryFolder() {
  std::error_code none;
  std::filesystem::path parent = std::filesystem::temp_directory_path(none);
  std::string name = (parent / "fa3-sass-XXXXXX").string();
  const std::lock_guard lock(belongings().mutex);
  if (!mkdtemp(name.data())) throw std::runtime_error(name + ": no temporary folder: " + std::strerror(errno));
  path_ = name;
  belongings().folders.insert(path_);
}

TemporaryFolder::~TemporaryFolder() {
  const std::lock_guard lock(belongings().mutex);
  remove_folder(path_);
  belongings().folders.erase(path_);
}

}  // namespace sass
