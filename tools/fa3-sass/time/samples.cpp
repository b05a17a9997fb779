#include "samples.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "../system/text.h"

namespace sass {
namespace {

constexpr const char* source_column = "Source";
constexpr const char* samples_column = "Warp Stall Sampling (All Samples)";

// Cells of a line, "a ""quoted"" one" among them.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t at = 0; at < line.size(); ++at) {
    const char c = line[at];
    if (c == '"' && quoted && at + 1 < line.size() && line[at + 1] == '"') cells.back() += line[++at];
    else if (c == '"') quoted = !quoted;
    else if (c == ',' && !quoted) cells.emplace_back();
    else cells.back() += c;
  }
  return cells;
}

// "@P0 FADD R1, R2, R3": FADD
std::string opcode_of(std::string_view source) {
  for (std::string_view word : split(source, ' '))
    if (!trim(word).empty() && word[0] != '@') return std::string(trim(word));
  return {};
}

}  // namespace

std::vector<double> samples_of(const Kernel& kernel, const std::string& path, std::string_view csv) {
  std::vector<double> samples;
  size_t source = 0, column = 0, number = 0;
  bool headed = false, ended = false;
  for (std::string_view line : split(csv, '\n')) {
    ++number;
    const auto fail = [&](const std::string& what) {
      throw std::runtime_error(path + ":" + std::to_string(number) + ": " + what);
    };
    const std::vector<std::string> cells = cells_of(trim(line));
    const auto found = std::ranges::find(cells, samples_column);
    if (found != cells.end() && std::ranges::count(cells, source_column) > 0) {
      ended = headed;  // of a second launch
      column = static_cast<size_t>(found - cells.begin());
      source = static_cast<size_t>(std::ranges::find(cells, source_column) - cells.begin());
      headed = true;
      continue;
    }
    if (!headed || ended || cells.size() <= std::max(source, column)) continue;
    if (samples.size() == kernel.listing.code.size()) break;
    const std::string &opcode = kernel.listing.code[samples.size()].opcode, there = opcode_of(cells[source]);
    if (opcode != there)
      fail("has " + there + " where the kernel has " + opcode + ": of another kernel, or another build");
    std::string digits = cells[column];
    std::erase(digits, ',');
    samples.push_back(std::strtod(digits.c_str(), nullptr));
  }
  if (!headed) throw std::runtime_error(path + ": no columns \"Source\" and \"" + std::string(samples_column) +
                                        "\": what `ncu --page source --print-source sass --csv` prints is wanted");
  if (samples.size() < kernel.listing.code.size())
    throw std::runtime_error(path + ": has " + std::to_string(samples.size()) + " instructions, but the kernel " +
                             std::to_string(kernel.listing.code.size()));
  return samples;
}

}  // namespace sass
