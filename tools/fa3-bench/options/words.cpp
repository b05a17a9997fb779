#include "options/words.h"

#include <algorithm>
#include <charconv>

namespace fa3::bench {

CLI::Validator validator(const Check& check) {
  return {[check](const std::string& word) { return check(word); }, ""};
}

// Decimal digits only: CLI11 itself would take 010 for eight.
Check number(int64_t least, int64_t most) {
  return [=](const std::string& word) -> std::string {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool plain = error == std::errc() && end == word.data() + word.size() && std::to_string(value) == word;
    if (plain && value >= least && value <= most) return "";
    return "\"" + word + "\" is no number from " + std::to_string(least) + " to " + std::to_string(most);
  };
}

Check real() {
  return [](const std::string& word) -> std::string {
    float value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool plain = error == std::errc() && end == word.data() + word.size();
    return plain && value > 0 && value <= 1e30f ? "" : "\"" + word + "\" is no number above 0, up to 1e30";
  };
}

Check file(const std::string& ending, bool or_dash) {
  return [=](const std::string& word) -> std::string {
    const bool ends = word.size() > ending.size() && word.substr(word.size() - ending.size()) == ending;
    if (ends || (or_dash && word == "-")) return "";
    return "\"" + word + "\" is " + (or_dash ? "neither a" : "no") + " file's name ending in " + ending +
           (or_dash ? " nor -" : "");
  };
}

std::string any_word(const std::string&) { return ""; }

std::string part_of_label(const std::string& word) {
  return word.empty() || word[0] == '-' ? "\"" + word + "\" is no part of a label" : "";
}

void read(const std::string& word, std::string& value) { value = word; }
void read(const std::string& word, int64_t& value) { value = std::stoll(word); }
void read(const std::string& word, bool& value) { value = word == "1"; }
void read(const std::string& word, Direction& value) {
  value = word == "bwd" ? Direction::backward : Direction::forward;
}
void read(const std::string& word, fa3_dtype& value) {
  value = word == "e4m3" ? FA3_DTYPE_E4M3 : word == "bf16" ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16;
}
void read(const std::string& word, VForm& value) { value = word == "tiles" ? VForm::tiles : VForm::rows; }
void read(const std::string& word, Scales& value) {
  value = word == "block" ? Scales::block : word == "head" ? Scales::head : Scales::tensor;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// CLI11 gives a flag the word behind `=`, or else true; false for one such as --no-progress.
static std::string no_value(const std::string& word) {
  return word == "true" || word == "false" ? "" : "takes no value, not \"" + word + "\"";
}

CLI::Option* add_flag(CLI::App& app, const std::string& names, bool& value, const std::string& help) {
  return app.add_flag(names, value, help)->check(validator(no_value));
}

}  // namespace fa3::bench
