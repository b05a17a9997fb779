// Standard output, of which every byte must arrive.
#pragma once

#include <string>
#include <string_view>

namespace sass {

// Throws std::system_error.
void print(std::string_view text);

// The version of what --json prints. Names that come new do not change it; those that go, or mean something else, do.
constexpr int json_schema = 1;

// {"schema":1,"<name>":[ entry, entry ]}, printed entry by entry.
class JsonList {
 public:
  explicit JsonList(const std::string& name) {
    print("{\"schema\":" + std::to_string(json_schema) + ",\"" + name + "\":[");
  }
  void add(const std::string& entry) {
    print((any_ ? "," : "") + entry);
    any_ = true;
  }
  void end() { print("]}\n"); }

 private:
  bool any_ = false;
};

}  // namespace sass
