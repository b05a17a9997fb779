// What a broken rule means, in a sentence, for those who did not write the rule.
#pragma once

#include <string>

namespace sass {

// What may happen where the rule for this figure is broken; empty for figures that only describe a kernel.
std::string meaning_of(const std::string& figure);

}  // namespace sass
