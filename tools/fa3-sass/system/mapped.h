// A file as bytes that the system reads when they are looked at and drops when they are let go: files of hundreds of
// megabytes cost no memory.
#pragma once

#include <string>
#include <string_view>

namespace sass {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws std::runtime_error
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = {}; }
  MappedFile& operator=(MappedFile&&) = delete;
  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
};

// Drops from memory what lies in this part of a mapped file; it is read again when it is looked at.
void let_go(std::string_view part);

}  // namespace sass
