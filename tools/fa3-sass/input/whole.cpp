#include "whole.h"

#include <algorithm>
#include <charconv>

#include "../system/text.h"
#include "sections.h"

namespace sass {
namespace {

constexpr std::string_view archive_magic = "!<arch>\n";
constexpr size_t member_header = 60, member_size = 48, member_size_digits = 10;

// What adds to no nonsense: damaged numbers count as the largest end.
uint64_t end_of(uint64_t offset, uint64_t size) { return offset + size < offset ? UINT64_MAX : offset + size; }

uint64_t end_of_elf(std::string_view bytes) {
  const auto header = get<Elf64_Ehdr>(bytes, 0);
  if (!header) return sizeof(Elf64_Ehdr);
  if (header->e_ident[EI_CLASS] != ELFCLASS64) return 0;
  uint64_t end = std::max(end_of(header->e_shoff, uint64_t{header->e_shnum} * header->e_shentsize),
                          end_of(header->e_phoff, uint64_t{header->e_phnum} * header->e_phentsize));
  if (end > bytes.size()) return end;
  for (size_t i = 0; i < header->e_shnum && header->e_shentsize == sizeof(Elf64_Shdr); ++i)
    if (const auto section = get<Elf64_Shdr>(bytes, header->e_shoff + i * sizeof(Elf64_Shdr));
        section && section->sh_type != SHT_NOBITS && section->sh_type != SHT_NULL)
      end = std::max(end, end_of(section->sh_offset, section->sh_size));
  for (size_t i = 0; i < header->e_phnum && header->e_phentsize == sizeof(Elf64_Phdr); ++i)
    if (const auto segment = get<Elf64_Phdr>(bytes, header->e_phoff + i * sizeof(Elf64_Phdr)))
      end = std::max(end, end_of(segment->p_offset, segment->p_filesz));
  return end;
}

uint64_t end_of_archive(std::string_view bytes) {
  uint64_t at = archive_magic.size();
  while (at < bytes.size()) {
    if (bytes.size() - at < member_header) return at + member_header;
    const std::string_view digits = trim(bytes.substr(at + member_size, member_size_digits));
    uint64_t size = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), size).ec != std::errc()) return UINT64_MAX;
    const uint64_t end = end_of(at + member_header, size);
    if (end > bytes.size()) return end;
    at = end + end % 2;
  }
  return at - (at > bytes.size());  // the last member's padding may be missing
}

}  // namespace

std::optional<uint64_t> stated_end(std::string_view bytes) {
  if (bytes.starts_with(ELFMAG)) return end_of_elf(bytes);
  if (bytes.starts_with(archive_magic)) return end_of_archive(bytes);
  return std::nullopt;
}

void refuse_cut_off(const std::string& name, std::string_view bytes, std::optional<uint64_t> end) {
  if (!end || *end <= bytes.size()) return;
  throw std::runtime_error(name + ": cut off or damaged: it has " + std::to_string(bytes.size()) +
                           " bytes, and its tables tell of " +
                           (*end == UINT64_MAX ? std::string("more") : std::to_string(*end)));
}

}  // namespace sass
