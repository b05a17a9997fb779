// Fat binaries, in which nvcc puts code for several architectures into an object or a library: how far one reaches, and
// what it is for. cuobjdump takes out what is in it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>

namespace sass {

// Where the fat binary that begins at `offset` ends by its own header; nothing if none begins there.
std::optional<uint64_t> stated_end_of_fatbin(std::string_view bytes, size_t offset);

// The architectures for which a whole fat binary has machine code, 90 for sm_90 and sm_90a; nothing if its tables are
// not understood.
std::optional<std::set<int>> architectures(std::string_view fatbin);

}  // namespace sass
