#include "points/planned.h"

#include <algorithm>
#include <cstdio>

namespace fa3::bench {

bool PlannedCall::any() const {
  return has_lengths() || page > 0 || window >= 0 || chunk > 0 || softcap > 0 || sinks || alibi || e4m3_cache;
}

std::string PlannedCall::words() const {
  std::string text;
  const auto add = [&](const char* word, int64_t number) { text.append(word).append(std::to_string(number)); };
  if (page > 0) add(" page ", page);
  if (window >= 0) add(" window ", window);
  if (chunk > 0) add(" chunk ", chunk);
  if (softcap > 0) {
    char number[32];
    std::snprintf(number, sizeof number, " softcap %g", double(softcap));
    text += number;
  }
  if (sinks) text += " sinks";
  if (alibi) text += " alibi";
  if (e4m3_cache) text += " e4m3 cache";
  return text;
}

std::string listed(const std::vector<int64_t>& lengths) {
  constexpr size_t few = 8;
  if (lengths.size() > few) {
    const auto [least, most] = std::ranges::minmax(lengths);
    return std::to_string(lengths.size()) + " of " + std::to_string(least) + " to " + std::to_string(most);
  }
  std::string text;
  for (const int64_t n : lengths) text.append(text.empty() ? "" : ",").append(std::to_string(n));
  return text;
}

}  // namespace fa3::bench
