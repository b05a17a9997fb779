// Standard output, of which every byte must arrive.
#pragma once

#include <string>
#include <string_view>

namespace sass {

// Throws std::system_error.
void print(std::string_view text);

// {"<name>":[ entry, entry ]}, printed entry by entry.
class JsonList {
 public:
  explicit JsonList(const std::string& name) { print("{\"" + name + "\":["); }
  void add(const std::string& entry) {
    print((any_ ? "," : "") + entry);
    any_ = true;
  }
  void end() { print("]}\n"); }

 private:
  bool any_ = false;
};

}  // namespace sass
