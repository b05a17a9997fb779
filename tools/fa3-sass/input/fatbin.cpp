#include "fatbin.h"

#include <cstring>
#include <functional>

#include "sections.h"

namespace sass {
namespace {

// A header, then entries: each has a header of its own, and code as an ELF image or as PTX.
constexpr uint16_t known_version = 1, kind_elf = 2;
constexpr size_t header_bytes = 16, header_size = 8, entry_size = 4, entry_payload = 8, entry_architecture = 28;

// Calls visit(entry, architecture) for each entry with machine code. Whether the tables were understood.
bool for_each_image(std::string_view fatbin, const std::function<void(std::string_view, int)>& visit) {
  for (size_t at = header_bytes; at < fatbin.size();) {
    const auto kind = get<uint16_t>(fatbin, at);
    const auto size = get<uint32_t>(fatbin, at + entry_size);
    const auto architecture = get<uint32_t>(fatbin, at + entry_architecture);
    const auto payload = get<uint64_t>(fatbin, at + entry_payload);
    if (!architecture || *size <= entry_architecture || *size > fatbin.size() - at) return false;
    if (*payload > fatbin.size() - at - *size) return false;
    if (*kind == kind_elf) visit(fatbin.substr(at, *size + *payload), static_cast<int>(*architecture));
    at += *size + *payload;
  }
  return true;
}

}  // namespace

std::optional<uint64_t> stated_end_of_fatbin(std::string_view bytes, size_t offset) {
  const auto version = get<uint16_t>(bytes, offset + 4), header = get<uint16_t>(bytes, offset + 6);
  const auto size = get<uint64_t>(bytes, offset + header_size);
  if (!size || *version != known_version || *header != header_bytes) return std::nullopt;  // magic may stand anywhere
  const uint64_t end = offset + header_bytes + *size;
  return end < offset ? UINT64_MAX : end;
}

std::optional<std::set<int>> architectures(std::string_view fatbin) {
  std::set<int> found;
  if (!for_each_image(fatbin, [&](std::string_view, int architecture) { found.insert(architecture); }))
    return std::nullopt;
  return found;
}

size_t Fatbin::size() const {
  size_t bytes = header.size();
  for (const std::string_view entry : entries) bytes += entry.size();
  return bytes;
}

Fatbin only(std::string_view fatbin, int architecture) {
  Fatbin made{std::string(fatbin.substr(0, header_bytes)), {}};
  const bool understood = for_each_image(fatbin, [&](std::string_view entry, int of) {
    if (of == architecture) made.entries.push_back(entry);
  });
  if (!understood) return {"", {fatbin}};
  const uint64_t size = made.size() - header_bytes;
  std::memcpy(made.header.data() + header_size, &size, sizeof size);
  return made;
}

}  // namespace sass
