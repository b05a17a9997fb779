// Drawing with SVG: one self-contained page, readable on light and on dark ground.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sass {

// Any bytes as text of an XML document: what XML or the ground's encoding does not allow becomes "?".
std::string xml_text(std::string_view text);

// The words in lines of at most `width` characters, broken behind spaces and commas where that is possible.
std::vector<std::string> wrapped(const std::string& words, size_t width);

class Page {
 public:
  // `look` is a style class or attributes; `tip` is shown where a pointer rests.
  void rectangle(double x, double y, double width, double height, const std::string& look, const std::string& tip = "");
  void line(double x1, double y1, double x2, double y2, const std::string& look);
  void circle(double x, double y, double radius, const std::string& look, const std::string& tip = "");
  void text(double x, double y, const std::string& words, const std::string& look = "");

  // Everything drawn so far as a document. `title` is what a reader program says of it.
  std::string document(double width, double height, const std::string& title) const;

 private:
  std::string body_;
};

}  // namespace sass
