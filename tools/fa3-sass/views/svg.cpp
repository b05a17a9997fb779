#include "svg.h"

#include <algorithm>
#include <cstdio>

namespace sass {
namespace {

// Instructions have the same colours on both grounds; text, lines and the ground itself change.
constexpr const char* style =
    "<style>\n"
    ".page{fill:#fff}\n"
    "text{font:11px sans-serif;fill:#1e293b}\n"
    ".name{font:bold 15px monospace}\n"
    ".title{font-size:14px;font-weight:bold}\n"
    ".small{font-size:10px;fill:#475569}\n"
    ".lane{text-anchor:end;font-weight:bold}\n"
    ".inside{text-anchor:middle;fill:#fff;font-size:10px}\n"
    ".number{text-anchor:middle;fill:#fff;font-size:9px;font-weight:bold}\n"
    ".tick{text-anchor:middle;font-size:10px;fill:#475569}\n"
    ".wait{fill:#b91c1c;font-weight:bold}\n"
    ".mbarrier{fill:#6d28d9}\n"
    ".rule{stroke:#94a3b8;stroke-width:0.6}\n"
    ".waits{stroke:#b91c1c;stroke-width:1.6}\n"
    ".mbarriers{stroke:#6d28d9;stroke-width:1.2;stroke-dasharray:4 3}\n"
    ".rare{fill:#475569;stroke:none}\n"
    ".rareway{stroke:#475569;stroke-width:1.2;stroke-dasharray:2 2}\n"
    "@media (prefers-color-scheme:dark){\n"
    ".page{fill:#0f172a}\n"
    "text{fill:#e2e8f0}\n"
    ".small,.tick{fill:#a8b3c4}\n"
    ".inside,.number{fill:#fff}\n"
    ".wait{fill:#f87171}\n"
    ".mbarrier{fill:#c4b5fd}\n"
    ".waits{stroke:#f87171}\n"
    ".mbarriers{stroke:#c4b5fd}\n"
    ".rule{stroke:#64748b}\n"
    ".rareway{stroke:#a8b3c4}\n"
    "}\n"
    "</style>\n";

std::string attributes(const std::string& look) {
  if (look.empty() || look.find('=') != std::string::npos) return look;
  return "class=\"" + look + "\"";
}

std::string ending(const char* element, const std::string& tip) {
  return tip.empty() ? "/>\n" : "><title>" + xml_text(tip) + "</title></" + element + ">\n";
}

}  // namespace

std::string xml_text(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '&') result += "&amp;";
    else if (c == '"') result += "&quot;";
    else result += static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f ? c : '?';
  }
  return result;
}

std::vector<std::string> wrapped(const std::string& words, size_t width) {
  width = std::max<size_t>(width, 8);
  std::vector<std::string> lines;
  size_t begin = 0;
  while (words.size() - begin > width) {
    size_t end = begin + width;
    const size_t best = words.find_last_of(" ,", end - 1);
    if (best != std::string::npos && best >= begin + width / 3) end = best + 1;
    lines.push_back(words.substr(begin, end - begin));
    begin = end;
    while (begin < words.size() && words[begin] == ' ') ++begin;
  }
  if (begin < words.size() || lines.empty()) lines.push_back(words.substr(begin));
  return lines;
}

void Page::rectangle(double x, double y, double width, double height, const std::string& look, const std::string& tip) {
  char geometry[160];
  std::snprintf(geometry, sizeof geometry, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" ", x, y, width,
                height);
  body_ += geometry + attributes(look) + ending("rect", tip);
}

void Page::line(double x1, double y1, double x2, double y2, const std::string& look) {
  char geometry[160];
  std::snprintf(geometry, sizeof geometry, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" ", x1, y1, x2, y2);
  body_ += geometry + attributes(look) + "/>\n";
}

void Page::circle(double x, double y, double radius, const std::string& look, const std::string& tip) {
  char geometry[120];
  std::snprintf(geometry, sizeof geometry, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" ", x, y, radius);
  body_ += geometry + attributes(look) + ending("circle", tip);
}

void Page::text(double x, double y, const std::string& words, const std::string& look) {
  char place[120];
  std::snprintf(place, sizeof place, "<text x=\"%.1f\" y=\"%.1f\" ", x, y);
  body_ += place + attributes(look) + ">" + xml_text(words) + "</text>\n";
}

std::string Page::document(double width, double height, const std::string& title) const {
  char head[200];
  std::snprintf(head, sizeof head,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n",
                width, height, width, height);
  return head + ("<title>" + xml_text(title) + "</title>\n") + style +
         "<rect width=\"100%\" height=\"100%\" class=\"page\"/>\n" + body_ + "</svg>\n";
}

}  // namespace sass
