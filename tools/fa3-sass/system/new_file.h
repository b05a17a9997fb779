// A file that is written; what cannot be written is an error.
#pragma once

#include <string>
#include <string_view>

namespace sass {

// Throws std::system_error.
void write_all(int file, std::string_view bytes);

class NewFile {
 public:
  explicit NewFile(const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  void write(std::string_view bytes);
  void close();

 private:
  std::string path_;
  int file_;
};

}  // namespace sass
