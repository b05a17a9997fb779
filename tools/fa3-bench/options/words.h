// Words of a command line: what is checked of them, and how options take them.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "half.h"
#include "points/point.h"

namespace fa3::bench {

// A problem's text, "" for a word that is right.
using Check = std::function<std::string(const std::string& word)>;

CLI::Validator validator(const Check& check);
Check number(int64_t least, int64_t most);
Check real();  // above 0
// A file's name with its ending, so that `--json=yes` does not write a file named yes, nor `--json --list` one named
// --list; or "-", if that is allowed.
Check file(const std::string& ending, bool or_dash = true);
std::string any_word(const std::string& word);
std::string part_of_label(const std::string& word);

// What the words of a list stand for, and back.
void read(const std::string& word, std::string& value);
void read(const std::string& word, int64_t& value);
void read(const std::string& word, bool& value);
void read(const std::string& word, Direction& value);
void read(const std::string& word, fa3_dtype& value);
void read(const std::string& word, VForm& value);
void read(const std::string& word, Scales& value);
inline std::string shown(const std::string& value) { return value; }
inline std::string shown(int64_t value) { return std::to_string(value); }
inline std::string shown(bool value) { return value ? "1" : "0"; }
inline std::string shown(fa3_dtype value) { return tools::dtype_name(value); }
template <class Enum>
  requires std::is_enum_v<Enum>
std::string shown(Enum value) {
  return name(value);
}

std::vector<std::string> split(const std::string& text);  // at commas

// Words with commas between. CLI11's own lists pass over words that are missing, as in `512,`.
template <class T>
CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<T>& list, const Check& check,
                      const std::string& help) {
  const auto each = [check](const std::string& text) -> std::string {
    for (const std::string& word : split(text))
      if (const std::string problem = check(word); !problem.empty()) return problem;
    return "";
  };
  const auto take = [&list](const std::string& text) {
    list.clear();
    for (const std::string& word : split(text)) {
      T value;
      read(word, value);
      list.push_back(value);
    }
  };
  std::vector<std::string> otherwise;
  for (const T& value : list) otherwise.push_back(shown(value));
  return app.add_option_function<std::string>(name, take, help)
      ->check(validator(each))
      ->type_name("LIST")
      ->default_str(CLI::detail::join(otherwise, ","));
}

template <class T>
CLI::Option* add_number(CLI::App& app, const std::string& name, T& value, int64_t least, int64_t most,
                        const std::string& help) {
  CLI::Option* option = app.add_option(name, value, help)->check(validator(number(least, most)))->type_name("N");
  return value > 0 ? option->capture_default_str() : option;  // else what the help says
}

template <class Enum>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Enum& value, const std::vector<std::string>& words,
                        const std::string& help) {
  return app.add_option_function<std::string>(name, [&value](const std::string& word) { read(word, value); }, help)
      ->check(validator(CLI::IsMember(words)))
      ->type_name("WORD")
      ->default_str(shown(value));
}

CLI::Option* add_flag(CLI::App& app, const std::string& names, bool& value, const std::string& help);

}  // namespace fa3::bench
