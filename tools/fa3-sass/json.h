// Writing JSON: values are built as text, so that a report reads like its output.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sass::json {

std::string quote(std::string_view text);
std::string number(double value);
std::string array(const std::vector<std::string>& values);
std::string object(const std::vector<std::pair<std::string, std::string>>& members);

}  // namespace sass::json
