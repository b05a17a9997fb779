#include "kernel.h"

#include "../system/text.h"

namespace sass {

std::string Figure::shown() const { return is_text ? text : number(value); }

const Figure* find(const Figures& figures, std::string_view name) {
  for (const Figure& figure : figures)
    if (figure.name == name) return &figure;
  return nullptr;
}

}  // namespace sass
