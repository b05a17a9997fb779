#include "text.h"

#include <cxxabi.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace sass {

std::string_view trim(std::string_view text) {
  const char* blank = " \t\r\n";
  const size_t first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    if (end == std::string_view::npos) {
      parts.push_back(text.substr(begin));
      return parts;
    }
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

bool glob(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool matches(std::string_view wanted, std::string_view name, std::string_view readable) {
  if (wanted.empty() || glob(wanted, name) || glob(wanted, readable)) return true;
  return wanted.find_first_of("*?") == std::string_view::npos &&
         (name.find(wanted) != std::string_view::npos || readable.find(wanted) != std::string_view::npos);
}

std::optional<size_t> kernel_number(std::string_view wanted) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), number);
  if (wanted.empty() || end != wanted.data() + wanted.size()) return std::nullopt;
  return error == std::errc() ? number : std::string::npos;
}

namespace {
bool full_names = false;
}  // namespace

void show_full_names() { full_names = true; }

std::string shortened(const std::string& name, size_t most) {
  constexpr std::string_view gap = "...";
  if (name.size() <= most || full_names) return name;
  const size_t end = (most - gap.size()) / 3, begin = most - gap.size() - end;
  return name.substr(0, begin) + std::string(gap) + name.substr(name.size() - end);
}

std::string demangle(const std::string& name) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 && text ? std::string(text.get()) : name;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) throw std::runtime_error(path + ": cannot be read");
  return bytes;
}

std::string number(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", value);
  std::string result = text;
  result.erase(result.find_last_not_of('0') + 1);
  if (result.back() == '.') result.pop_back();
  return result;
}

}  // namespace sass
