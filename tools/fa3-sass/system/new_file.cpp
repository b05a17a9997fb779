#include "new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace sass {

void write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw std::system_error(errno, std::generic_category());
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

NewFile::NewFile(const std::string& path)
    : path_(path), file_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
  if (file_ < 0) throw std::runtime_error(path + ": cannot be written: " + std::strerror(errno));
}

NewFile::~NewFile() {
  if (file_ >= 0) ::close(file_);
}

void NewFile::write(std::string_view bytes) {
  try {
    write_all(file_, bytes);
  } catch (const std::system_error& error) {
    throw std::runtime_error(path_ + ": cannot be written: " + error.code().message());
  }
}

void NewFile::close() {
  const int file = file_;
  file_ = -1;
  if (::close(file) != 0) throw std::runtime_error(path_ + ": cannot be written: " + std::strerror(errno));
}

}  // namespace sass
