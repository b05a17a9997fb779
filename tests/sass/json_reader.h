// Just enough JSON to say whether a text is JSON.
#pragma once

#include <string_view>

namespace json_reader {

bool valid(std::string_view text);

}  // namespace json_reader
