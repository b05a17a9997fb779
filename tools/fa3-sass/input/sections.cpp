#include "sections.h"

#include <algorithm>

namespace sass {
namespace {

constexpr int machine_cuda = 190;

}  // namespace

std::optional<Elf64_Ehdr> cuda_header(std::string_view bytes) {
  const auto header = get<Elf64_Ehdr>(bytes, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_machine != machine_cuda || header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shoff == 0)
    return std::nullopt;
  return header;
}

Sections::Sections(std::string_view image) : bytes(image) {
  const auto found = cuda_header(image);
  if (!found) throw std::runtime_error("not a CUDA image");
  header = *found;
  for (int i = 0; i < header.e_shnum; ++i)
    all.push_back(need<Elf64_Shdr>(image, header.e_shoff + static_cast<size_t>(i) * sizeof(Elf64_Shdr)));
  if (header.e_shstrndx >= all.size()) throw std::runtime_error("damaged CUDA image: no section names");
  names_ = all[header.e_shstrndx];
}

std::string_view Sections::content(const Elf64_Shdr& section) const {
  if (section.sh_type == SHT_NOBITS) return {};
  if (section.sh_offset > bytes.size() || section.sh_size > bytes.size() - section.sh_offset)
    throw std::runtime_error("damaged CUDA image: a section ends beyond the file");
  return bytes.substr(section.sh_offset, section.sh_size);
}

std::string Sections::text(const Elf64_Shdr& strings, size_t offset) const {
  const std::string_view table = content(strings);
  if (offset >= table.size()) throw std::runtime_error("damaged CUDA image: a name lies outside its table");
  const size_t end = std::min(table.find('\0', offset), table.size());
  return std::string(table.substr(offset, end - offset));
}

std::string_view Sections::code_of(const std::string& function) const {
  for (const Elf64_Shdr& section : all)
    if (section.sh_type == SHT_PROGBITS && name(section) == ".text." + function) return content(section);
  return {};
}

std::vector<Elf64_Sym> Sections::symbols(const Elf64_Shdr& table) const {
  if (table.sh_link >= all.size()) throw std::runtime_error("damaged CUDA image: no symbol names");
  const std::string_view bytes_of_table = content(table);
  std::vector<Elf64_Sym> result(bytes_of_table.size() / sizeof(Elf64_Sym));
  if (!result.empty()) std::memcpy(result.data(), bytes_of_table.data(), result.size() * sizeof(Elf64_Sym));
  return result;
}

}  // namespace sass
