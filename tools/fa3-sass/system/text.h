// Small helpers on text that every other file needs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sass {

std::string_view trim(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);

// Shell-style match with * and ?; the whole name must match.
bool glob(std::string_view pattern, std::string_view name);

// A user's idea of a kernel: a glob, or any part of the (demangled) name.
bool matches(std::string_view wanted, std::string_view name, std::string_view readable);

// "12": the kernel of this number. No name is one.
std::optional<size_t> kernel_number(std::string_view wanted);

std::string demangle(const std::string& name);

// At most this many characters: of a longer name its beginning and its end.
constexpr size_t shown_name = 60;
void show_full_names();  // from now on `shortened` leaves names as they are
std::string shortened(const std::string& name, size_t most = shown_name);
std::string read_file(const std::string& path);  // throws std::runtime_error

// A figure as people write it: no trailing zeros, three decimals at most.
std::string number(double value);

}  // namespace sass
