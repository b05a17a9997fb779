// Colours for terminals; plain text for everything else.
#pragma once

#include <string>

namespace sass {

struct Colours {
  bool on = false;
  std::string paint(const char* code, const std::string& text) const {
    return on ? std::string(code) + text + "\x1b[0m" : text;
  }
  std::string bold(const std::string& text) const { return paint("\x1b[1m", text); }
  std::string dim(const std::string& text) const { return paint("\x1b[2m", text); }
  std::string red(const std::string& text) const { return paint("\x1b[31m", text); }
  std::string green(const std::string& text) const { return paint("\x1b[32m", text); }
};

}  // namespace sass
