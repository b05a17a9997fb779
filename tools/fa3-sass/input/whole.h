// Whether a file is all there: a download that broke off must not pass for a small library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sass {

// Where an ELF file (a library, an object, a cubin) or an archive ends by its own tables; nothing if it is neither.
std::optional<uint64_t> stated_end(std::string_view bytes);

// Throws std::runtime_error if a file of this name has fewer bytes.
void refuse_cut_off(const std::string& name, std::string_view bytes, std::optional<uint64_t> end);

}  // namespace sass
