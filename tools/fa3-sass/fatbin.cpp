#include "fatbin.h"

#include "sections.h"

namespace sass {
namespace {

// A header, then entries: each has a header of its own, and code as an ELF image or as PTX.
constexpr uint16_t known_version = 1, kind_elf = 2;
constexpr size_t header_bytes = 16, entry_size = 4, entry_payload = 8, entry_architecture = 28;

}  // namespace

std::optional<uint64_t> stated_end_of_fatbin(std::string_view bytes, size_t offset) {
  const auto version = get<uint16_t>(bytes, offset + 4), header = get<uint16_t>(bytes, offset + 6);
  const auto size = get<uint64_t>(bytes, offset + 8);
  if (!size || *version != known_version || *header != header_bytes) return std::nullopt;  // magic may stand anywhere
  const uint64_t end = offset + header_bytes + *size;
  return end < offset ? UINT64_MAX : end;
}

std::optional<std::set<int>> architectures(std::string_view fatbin) {
  std::set<int> found;
  for (size_t at = header_bytes; at < fatbin.size();) {
    const auto kind = get<uint16_t>(fatbin, at);
    const auto size = get<uint32_t>(fatbin, at + entry_size);
    const auto architecture = get<uint32_t>(fatbin, at + entry_architecture);
    const auto payload = get<uint64_t>(fatbin, at + entry_payload);
    if (!architecture || *size <= entry_architecture || *size > fatbin.size() - at) return std::nullopt;
    if (*payload > fatbin.size() - at - *size) return std::nullopt;
    if (*kind == kind_elf) found.insert(static_cast<int>(*architecture));
    at += *size + *payload;
  }
  return found;
}

}  // namespace sass
