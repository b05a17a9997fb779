#include "json_reader.h"

#include <cctype>
#include <cstring>

namespace json_reader {
namespace {

struct Reader {
  std::string_view text;
  size_t at = 0;

  void blanks() {
    while (at < text.size() && std::strchr(" \t\r\n", text[at])) ++at;
  }
  bool take(char c) {
    blanks();
    if (at >= text.size() || text[at] != c) return false;
    ++at;
    return true;
  }
  bool word(std::string_view expected) {
    if (text.substr(at, expected.size()) != expected) return false;
    at += expected.size();
    return true;
  }
  bool string() {
    if (!take('"')) return false;
    for (; at < text.size() && text[at] != '"'; ++at) {
      const unsigned char c = static_cast<unsigned char>(text[at]);
      if (c < 0x20 || c > 0x7e) return false;
      if (c != '\\') continue;
      if (++at >= text.size()) return false;
      if (text[at] == 'u') {
        for (int i = 0; i < 4; ++i)
          if (++at >= text.size() || !std::isxdigit(static_cast<unsigned char>(text[at]))) return false;
      } else if (!std::strchr("\"\\/bfnrt", text[at])) {
        return false;
      }
    }
    return take('"');
  }
  bool digits() {
    const size_t begin = at;
    while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]))) ++at;
    return at > begin;
  }
  bool number() {
    if (at < text.size() && text[at] == '-') ++at;
    if (!digits()) return false;
    if (at < text.size() && text[at] == '.' && (++at, !digits())) return false;
    if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
      ++at;
      if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
      return digits();
    }
    return true;
  }
  template <class Element>
  bool list(char close, Element element) {
    if (take(close)) return true;
    do {
      if (!element()) return false;
    } while (take(','));
    return take(close);
  }
  bool value(int depth = 0) {
    if (depth > 100) return false;
    blanks();
    if (take('{')) return list('}', [&] { return string() && take(':') && value(depth + 1); });
    if (take('[')) return list(']', [&] { return value(depth + 1); });
    if (at < text.size() && text[at] == '"') return string();
    return word("true") || word("false") || word("null") || number();
  }
};

}  // namespace

bool valid(std::string_view text) {
  Reader reader{text};
  if (!reader.value()) return false;
  reader.blanks();
  return reader.at == text.size();
}

}  // namespace json_reader
