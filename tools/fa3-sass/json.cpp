#include "json.h"

#include <cmath>
#include <cstdio>

namespace sass::json {

std::string quote(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte > 0x7e) {  // names in damaged files need not be UTF-8
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      result += escaped;
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

std::string array(const std::vector<std::string>& values) {
  std::string result = "[";
  for (const std::string& value : values) result += (result.size() > 1 ? ", " : "") + value;
  return result + "]";
}

std::string object(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string result = "{";
  for (const auto& [name, value] : members) result += (result.size() > 1 ? ", " : "") + quote(name) + ": " + value;
  return result + "}";
}

}  // namespace sass::json
