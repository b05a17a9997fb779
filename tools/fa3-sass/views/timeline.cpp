#include "timeline.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>

#include "hues.h"
#include "strips.h"
#include "svg.h"

namespace sass {
namespace {

constexpr int labels = 96, margin = 16, gap = 36;  // beside the lanes, round the page, between two kernels
constexpr int lane_height = 34, bar_height = 18, mark_height = 24;
constexpr const char* lane_names[] = {"tensor", "MUFU", "FMA, ALU", "memory", "waits, control"};
constexpr int lanes = 5;
// How wide a character is at most, in the fonts that browsers and converters take.
constexpr double wide = 9.1, bold_wide = 9.0, normal_wide = 6.7, small_wide = 6.3;

std::string fill(const std::string& colour, const std::string& opacity = "") {
  return "fill=\"" + colour + "\"" + (opacity.empty() ? "" : " opacity=\"" + opacity + "\"");
}

// The place of a kernel on the page, and its scale.
struct Column {
  double left, width, slot;
  size_t characters(double each) const { return static_cast<size_t>((width + labels) / each); }
};

class Panel {
 public:
  Panel(const Kernel& kernel, const Strip& strip, const Column& column, Page& page)
      : kernel_(kernel), strip_(strip), column_(column), page_(page) {}

  // Returns where it ends.
  double draw(double top) {
    double y = top;
    for (const std::string& line : wrapped(strip_.title, column_.characters(bold_wide)))
      page_.text(column_.left, y += 18, line, "title");
    for (const std::string& note : strip_.notes)
      if (!note.empty())
        for (const std::string& line : wrapped(note, column_.characters(normal_wide)))
          page_.text(column_.left, y += 15, line);
    y += 8;
    const int size = strip_.turn.size(),
              most = strip_.clocks.empty() ? static_cast<int>(column_.width / column_.slot + 0.5) : size;
    const int rows = std::max(1, (size + most - 1) / most), each = (size + rows - 1) / rows;
    for (int begin = 0; begin < size; begin += each) y = row(begin, std::min(begin + each, size), y);
    page_.text(column_.left + labels, y + 2, strip_.axis, "small");
    return list_of_ways(y + 8);
  }

 private:
  int size() const { return strip_.turn.size(); }
  Kind kind(int position) const { return strip_.turn.kinds[static_cast<size_t>(position)]; }
  const Instruction& at(int position) const {
    return kernel_.listing.code[static_cast<size_t>(strip_.turn.code[static_cast<size_t>(position)])];
  }
  std::string tip(int position) const {
    char address[16];
    std::snprintf(address, sizeof address, "%04x  ", static_cast<unsigned>(at(position).address));
    const std::string& source = at(position).source;
    return address + at(position).text + (source.empty() ? "" : "  // " + source);
  }

  double row(int begin, int end, double top) {
    begin_ = begin;
    end_ = end;
    std::vector<const Bar*> bars;
    for (const Bar& bar : strip_.bars)
      if (!pieces(bar.from, bar.to).empty()) bars.push_back(&bar);
    const double bars_top = top + 18, lanes_top = bars_top + static_cast<double>(bars.size()) * bar_height + 4;
    bool marks = false;
    for (const RareWay& way : strip_.ways) marks |= way.leaves >= begin && way.leaves < end;
    const double bottom = lanes_top + lanes * lane_height + (marks ? mark_height : 0);
    for (size_t b = 0; b < bars.size(); ++b)
      draw_bar(*bars[b], bars_top + static_cast<double>(b) * bar_height, lanes_top, bottom);
    draw_lanes(lanes_top, bottom, marks);
    draw_waits(top + 10, bars_top - 4, lanes_top, bottom);
    if (marks) draw_marks(bottom - mark_height);
    draw_axis(bottom);
    return bottom + 28;
  }

  double x(double position) const { return at_clock(strip_.place(position)); }
  double at_clock(double clock) const {
    return column_.left + labels + (clock - strip_.place(begin_)) * column_.slot;
  }

  // What of a span lies in this row; one that runs over the end of the turn is in two pieces.
  std::vector<std::pair<double, double>> pieces(double from, double to) const {
    std::vector<std::pair<double, double>> result;
    for (const double shift : {0.0, static_cast<double>(size())}) {
      const double first = std::max<double>(from - shift, begin_), last = std::min<double>(to - shift, end_);
      if (first < last) result.emplace_back(first, last);
    }
    return result;
  }

  void draw_bar(const Bar& bar, double y, double lanes_top, double bottom) {
    const auto draw = [&](double from, double to, const char* ground, const char* strength) {
      for (const auto& [first, last] : pieces(from, to)) {
        page_.rectangle(x(first), y, x(last) - x(first), bar_height - 4,
                        fill(bar.colour, strength) + " rx=\"2\"", bar.name + ": " + bar.words);
        page_.rectangle(x(first), lanes_top, x(last) - x(first), bottom - lanes_top,
                        fill(bar.colour, ground));
      }
    };
    draw(bar.from, bar.commit, "0.06", "0.4");
    draw(bar.commit, bar.to, "0.16", "0.95");
    page_.text(column_.left + labels - 8, y + 11, bar.name, "lane");
    std::pair<double, double> widest{0, 0};
    for (const auto& piece : pieces(bar.commit, bar.to))
      if (piece.second - piece.first > widest.second - widest.first) widest = piece;
    const double room = x(widest.second) - x(widest.first);
    for (const std::string* words : {&bar.words, &bar.fewer})
      if (static_cast<double>(words->size()) * small_wide < room) {
        page_.text((x(widest.first) + x(widest.second)) / 2, y + 10.5, *words, "inside");
        break;
      }
  }

  void draw_lanes(double top, double bottom, bool marks) {
    for (int l = 0; l < lanes + marks; ++l) {
      const double y = top + l * lane_height, height = l < lanes ? lane_height : mark_height;
      page_.line(x(begin_), y, x(end_), y, "rule");
      page_.text(column_.left + labels - 8, y + height / 2 + 4, l < lanes ? lane_names[l] : "rare ways", "lane");
    }
    page_.line(x(begin_), bottom, x(end_), bottom, "rule");
    for (int p = begin_; p < end_; ++p) {
      const double inset = kind(p) == Kind::wgmma ? 3 : 6;
      const double y = top + static_cast<int>(lane_of(kind(p))) * lane_height + inset;
      const auto draw = [&](double left, double width) {
        page_.rectangle(left, y, std::max(width, 0.8), lane_height - 2 * inset,
                        fill(hue_of(kernel_, strip_.turn, p).colour), tip(p));
      };
      if (strip_.clocks.empty()) draw(x(p) + 0.2, column_.slot - 0.5);
      else each_span(strip_.began[static_cast<size_t>(p)], strip_.busy[static_cast<size_t>(p)], draw);
    }
  }

  // What runs over the end of the turn goes on at its beginning.
  template <class Draw>
  void each_span(double from, double clocks, const Draw& draw) const {
    const double turn = strip_.length(), begin = std::fmod(from, turn), end = std::min(begin + clocks, turn);
    draw(at_clock(begin), (end - begin) * column_.slot);
    if (begin + clocks > turn) draw(at_clock(0), std::min(begin + clocks - turn, turn) * column_.slot);
  }

  // Labels must not run into each other: those of waits go first, and one that has no room is left out.
  void draw_waits(double labels_y, double waits_top, double lanes_top, double bottom) {
    std::vector<std::pair<double, double>> taken;
    const auto label = [&](double middle, const std::string& words, const char* look) {
      const double width = static_cast<double>(words.size()) * normal_wide;
      const double left = std::min(middle - 2, std::max(x(end_), x(begin_) + width) - width);
      for (const auto& [from, to] : taken)
        if (left < to && from < left + width) return;
      page_.text(left, labels_y, words, look);
      taken.emplace_back(left, left + width + 4);
    };
    const auto each = [&](bool group_waits) {
      for (int p = begin_; p < end_; ++p) {
        const double middle = x(p + 0.5);
        if (group_waits && kind(p) == Kind::wait) {
          page_.line(middle, waits_top, middle, bottom, "waits");
          label(middle, "wait<" + std::to_string(wait_count(at(p))) + ">", "wait");
        } else if (!group_waits && (kind(p) == Kind::mbarrier_wait || kind(p) == Kind::barrier)) {
          page_.line(middle, lanes_top, middle, bottom, "mbarriers");
          label(middle, kind(p) == Kind::barrier ? "barrier" : "mbarrier", "mbarrier");
        }
      }
    };
    each(true);
    each(false);
  }

  void draw_marks(double top) {
    double taken = -1e9;
    for (size_t w = 0; w < strip_.ways.size(); ++w) {
      const RareWay& way = strip_.ways[w];
      if (way.leaves < begin_ || way.leaves >= end_) continue;
      const double at_branch = x(way.leaves + 0.5), middle = std::max(at_branch, taken);
      page_.line(at_branch, top - lane_height + 4, middle, top + mark_height / 2.0, "rareway");
      page_.circle(middle, top + mark_height / 2.0, 8, "rare", kinds_text(kernel_, way.code));
      page_.text(middle, top + mark_height / 2.0 + 3, std::to_string(w + 1), "number");
      taken = middle + 18;
    }
  }

  void draw_axis(double y) {
    constexpr int steps[] = {5, 10, 20, 50, 100, 200, 500};
    const int step = *std::find_if(std::begin(steps), std::end(steps) - 1,
                                   [&](int s) { return s * column_.slot >= 5 * small_wide; });
    const int first = static_cast<int>(strip_.place(begin_)), last = static_cast<int>(strip_.place(end_));
    for (int p = (first + step - 1) / step * step; p <= last; p += step) {
      page_.line(at_clock(p), y, at_clock(p), y + 5, "rule");
      page_.text(at_clock(p), y + 15, std::to_string(p), "tick");
    }
  }

  double list_of_ways(double y) {
    for (size_t w = 0; w < strip_.ways.size(); ++w) {
      const RareWay& way = strip_.ways[w];
      std::string words = "rare way " + std::to_string(w + 1) + ", from " + std::to_string(way.leaves);
      words += way.returns < 0 ? " and not back" : " to " + std::to_string(way.returns);
      words += ": " + count_of(way.code.size(), "instruction") + " (" + kinds_text(kernel_, way.code) + ")";
      for (const std::string& line : wrapped(words, static_cast<size_t>(column_.width / small_wide)))
        page_.text(column_.left + labels, y += 14, line, "small");
    }
    return y + 16;
  }

  const Kernel& kernel_;
  const Strip& strip_;
  const Column& column_;
  Page& page_;
  int begin_ = 0, end_ = 0;  // of the row
};

// What the colours and lines of the page mean, each once.
double draw_legend(const std::vector<const Kernel*>& kernels, const std::vector<std::vector<Strip>>& strips,
                   double width, double top, Page& page) {
  double x = margin, y = top + 18;
  const auto entry = [&](const std::string& name, double sign, const std::function<void(double, double)>& draw) {
    const double needed = sign + 8 + static_cast<double>(name.size()) * small_wide;
    if (x + needed > width - margin && x > margin) x = margin, y += 18;
    draw(x, y);
    page.text(x + sign + 5, y, name, "small");
    x += needed + 10;
  };
  const auto square = [&](const std::string& name, const std::string& colour) {
    entry(name, 10, [&](double at, double line) { page.rectangle(at, line - 9, 10, 10, fill(colour)); });
  };
  std::set<std::string> gemms, seen;
  std::vector<Hue> hues;
  bool ways = false, waits = false, barriers = false, groups = false;
  for (size_t k = 0; k < kernels.size(); ++k)
    for (const Strip& strip : strips[k]) {
      ways |= !strip.ways.empty();
      groups |= !strip.turn.groups.empty();
      for (const Gemm& gemm : strip.turn.gemms) gemms.insert(gemm.name);
      for (int p = 0; p < strip.turn.size(); ++p) {
        const Kind kind = strip.turn.kinds[static_cast<size_t>(p)];
        waits |= kind == Kind::wait;
        barriers |= kind == Kind::mbarrier_wait || kind == Kind::barrier;
        const Hue hue = hue_of(*kernels[k], strip.turn, p);
        if (kind == Kind::wgmma && strip.turn.gemms.empty()) gemms.insert("GEMM");
        if (*hue.name && seen.insert(hue.name).second) hues.push_back(hue);
      }
    }
  if (groups) {
    const auto bar = [&](const char* opacity) {
      return [&page, opacity](double at, double line) {
        page.rectangle(at, line - 10, 26, 12, fill("#64748b", opacity));
      };
    };
    entry("group of WGMMAs being issued", 26, bar("0.4"));
    entry("in flight: committed, and not yet waited for", 26, bar("0.95"));
  }
  const auto stroke = [&](const char* look) {
    return [&page, look](double at, double line) { page.line(at + 3, line - 11, at + 3, line + 2, look); };
  };
  if (waits) entry("wait<n>: until at most n groups are in flight", 6, stroke("waits"));
  if (barriers) entry("wait at an mbarrier or barrier", 6, stroke("mbarriers"));
  if (ways)
    entry("branch to a rare way", 16, [&](double at, double line) {
      page.circle(at + 8, line - 4, 7, "rare");
      page.text(at + 8, line - 1, "n", "number");
    });
  for (const std::string& gemm : gemms) square(gemm, gemm_colour(gemm));
  for (const Hue& hue : hues) square(hue.name, hue.colour);
  return y + 14;
}

}  // namespace

std::string timeline_svg(const std::vector<const Kernel*>& kernels, const TimelineOptions& options) {
  const bool alone = kernels.size() == 1;
  const double lanes_width = alone ? 1100 : 640;
  const int most = alone ? 260 : 170;  // instructions in a row
  std::vector<std::vector<Strip>> strips;
  double longest = 1;  // of a row, on the whole page: all of it has one scale
  for (const Kernel* kernel : kernels) {
    strips.push_back(strips_of(*kernel, options));
    for (const Strip& strip : strips.back()) {
      const int rows = strip.clocks.empty() ? (strip.turn.size() + most - 1) / most : 1;
      if (rows > 0) longest = std::max(longest, std::ceil(strip.length() / rows));
    }
  }
  Page page;
  std::string title;
  double bottom = 0;
  for (size_t k = 0; k < kernels.size(); ++k) {
    const Column column{margin + static_cast<double>(k) * (labels + lanes_width + gap), lanes_width,
                        std::min(lanes_width / longest, 14.0)};
    constexpr size_t most_lines = 6;  // of a name; the rest of a longer one is in the document's title
    std::vector<std::string> names = wrapped(kernels[k]->readable, column.characters(wide));
    if (names.size() > most_lines) {
      names.resize(most_lines);
      names.back().resize(std::min(names.back().size(), column.characters(wide) - 4));
      names.back() += " ...";
    }
    double y = 8;
    for (const std::string& line : names) page.text(column.left, y += 19, line, "name");
    if (strips[k].empty())
      page.text(column.left, y + 24, options.whole ? "no code" : "no loop with WGMMAs; --all shows the whole kernel");
    y += 12;
    for (const Strip& strip : strips[k]) y = Panel(*kernels[k], strip, column, page).draw(y) + 10;
    bottom = std::max(bottom, strips[k].empty() ? y + 24 : y);
    title += (title.empty() ? "" : " and ") + kernels[k]->readable;
  }
  const double count = static_cast<double>(kernels.size());
  const double width = 2 * margin + count * (labels + lanes_width) + (count - 1) * gap + 12;
  return page.document(width, draw_legend(kernels, strips, width, bottom, page), title);
}

}  // namespace sass
