#include "align.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace sass {
namespace {

using Sequence = std::span<const Element>;

// Length counts first: no sum of the second reaches one of the first.
constexpr int64_t per_form = int64_t{1} << 32, per_whole = 1;

int64_t score(const Element& a, const Element& b) {
  return a.form != b.form ? int64_t{0} : per_form + (a.whole == b.whole ? per_whole : 0);
}

// The best score of the whole of `a` with each beginning of `b`; read backwards, with each end of `b`.
template <bool backwards>
std::vector<int64_t> scores(Sequence a, Sequence b) {
  const auto at = [](Sequence sequence, size_t i) -> const Element& {
    return sequence[backwards ? sequence.size() - 1 - i : i];
  };
  std::vector<int64_t> row(b.size() + 1, 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t above = row[j + 1];
      const int64_t gained = score(at(a, i), at(b, j));
      row[j + 1] = std::max({above, row[j], diagonal + gained});
      diagonal = above;
    }
  }
  return row;
}

// Hirschberg: the best place to cut `b` where `a` is cut in the middle, then both halves by themselves.
void align(Sequence a, Sequence b, int first_a, int first_b, std::vector<std::pair<int, int>>& pairs) {
  while (!a.empty() && !b.empty() && a[0].whole == b[0].whole && a[0].form == b[0].form) {
    pairs.emplace_back(first_a++, first_b++);
    a = a.subspan(1);
    b = b.subspan(1);
  }
  size_t tail = 0;
  while (tail < a.size() && tail < b.size() && a[a.size() - 1 - tail].whole == b[b.size() - 1 - tail].whole &&
         a[a.size() - 1 - tail].form == b[b.size() - 1 - tail].form)
    ++tail;
  const Sequence rest_a = a.first(a.size() - tail), rest_b = b.first(b.size() - tail);
  if (rest_a.size() == 1) {
    const auto best = std::max_element(rest_b.begin(), rest_b.end(), [&](const Element& x, const Element& y) {
      return score(rest_a[0], x) < score(rest_a[0], y);
    });
    if (best != rest_b.end() && best->form == rest_a[0].form)
      pairs.emplace_back(first_a, first_b + static_cast<int>(best - rest_b.begin()));
  } else if (!rest_a.empty() && !rest_b.empty()) {
    const size_t middle = rest_a.size() / 2;
    const auto head = scores<false>(rest_a.first(middle), rest_b), rear = scores<true>(rest_a.subspan(middle), rest_b);
    size_t cut = 0;
    for (size_t j = 1; j <= rest_b.size(); ++j)
      if (head[j] + rear[rest_b.size() - j] > head[cut] + rear[rest_b.size() - cut]) cut = j;
    align(rest_a.first(middle), rest_b.first(cut), first_a, first_b, pairs);
    align(rest_a.subspan(middle), rest_b.subspan(cut), first_a + static_cast<int>(middle),
          first_b + static_cast<int>(cut), pairs);
  }
  for (size_t i = 0; i < tail; ++i)
    pairs.emplace_back(first_a + static_cast<int>(a.size() - tail + i),
                       first_b + static_cast<int>(b.size() - tail + i));
}

}  // namespace

std::vector<std::pair<int, int>> align(const std::vector<Element>& before, const std::vector<Element>& after) {
  std::vector<std::pair<int, int>> pairs;
  align(before, after, 0, 0, pairs);
  return pairs;
}

}  // namespace sass
