// Fat binaries, in which nvcc puts code for several architectures into an object or a library: how far one reaches, and
// which parts of it are for what. cuobjdump takes out what is in them.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sass {

// Where the fat binary that begins at `offset` ends by its own header; nothing if none begins there.
std::optional<uint64_t> stated_end_of_fatbin(std::string_view bytes, size_t offset);

// The architectures for which a whole fat binary has machine code, 90 for sm_90 and sm_90a; nothing if its tables are
// not understood.
std::optional<std::set<int>> architectures(std::string_view fatbin);

// A fat binary to be written: its header, and entries as they lie in another.
struct Fatbin {
  std::string header;
  std::vector<std::string_view> entries;
  size_t size() const;
};
// Of a whole fat binary the machine code for one architecture alone, if its tables are understood; else all of it.
Fatbin only(std::string_view fatbin, int architecture);

}  // namespace sass
