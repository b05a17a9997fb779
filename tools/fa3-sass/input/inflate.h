// Deflate (RFC 1951), the compression of zip files and so of Python wheels.
#pragma once

#include <functional>
#include <string_view>

namespace sass {

// Hands over the text piece by piece; throws std::runtime_error on what is no whole stream.
void inflate(std::string_view stream, const std::function<void(std::string_view)>& use);

}  // namespace sass
