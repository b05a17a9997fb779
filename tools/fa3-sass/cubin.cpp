#include "cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

namespace sass {
namespace {

constexpr int machine_cuda = 190;
constexpr unsigned char entry_bit = 0x10;  // STO_CUDA_ENTRY in a symbol's st_other
constexpr uint32_t type_cuda_info = 0x70000000;

// EIATTR codes of .nv.info
constexpr int attribute_max_threads = 0x05, attribute_frame_size = 0x11, attribute_parameter = 0x17,
              attribute_registers = 0x2f;

template <class T>
std::optional<T> get(std::string_view bytes, size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
T need(std::string_view bytes, size_t offset) {
  if (const auto value = get<T>(bytes, offset)) return *value;
  throw std::runtime_error("damaged CUDA image: it ends too early");
}

std::optional<Elf64_Ehdr> cuda_header(std::string_view bytes) {
  const auto header = get<Elf64_Ehdr>(bytes, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_machine != machine_cuda || header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shoff == 0)
    return std::nullopt;
  return header;
}

struct Sections {
  std::string_view bytes;
  std::vector<Elf64_Shdr> all;

  explicit Sections(std::string_view image) : bytes(image) {
    const auto header = cuda_header(image);
    if (!header) throw std::runtime_error("not a CUDA image");
    for (int i = 0; i < header->e_shnum; ++i)
      all.push_back(need<Elf64_Shdr>(image, header->e_shoff + static_cast<size_t>(i) * sizeof(Elf64_Shdr)));
    if (header->e_shstrndx >= all.size()) throw std::runtime_error("damaged CUDA image: no section names");
    names_ = all[header->e_shstrndx];
  }

  std::string_view content(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS) return {};
    if (section.sh_offset > bytes.size() || section.sh_size > bytes.size() - section.sh_offset)
      throw std::runtime_error("damaged CUDA image: a section ends beyond the file");
    return bytes.substr(section.sh_offset, section.sh_size);
  }
  std::string text(const Elf64_Shdr& strings, size_t offset) const {
    const std::string_view table = content(strings);
    if (offset >= table.size()) throw std::runtime_error("damaged CUDA image: a name lies outside its table");
    const size_t end = std::min(table.find('\0', offset), table.size());
    return std::string(table.substr(offset, end - offset));
  }
  std::string name(const Elf64_Shdr& section) const { return text(names_, section.sh_name); }

 private:
  Elf64_Shdr names_{};
};

// Calls use(attribute, payload) for each entry; payload is a 16-bit value or the bytes that follow.
template <class Use>
void each_attribute(std::string_view info, Use use) {
  for (size_t at = 0; at + 4 <= info.size();) {
    const int format = static_cast<unsigned char>(info[at]), attribute = static_cast<unsigned char>(info[at + 1]);
    if (format == 4) {  // EIFMT_SVAL: a size, then the bytes
      const size_t size = need<uint16_t>(info, at + 2);
      if (info.size() - at - 4 < size) throw std::runtime_error("damaged CUDA image: .nv.info ends too early");
      use(attribute, info.substr(at + 4, size));
      at += 4 + size;
    } else {
      use(attribute, info.substr(at + 2, 2));
      at += 4;
    }
  }
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

}  // namespace

std::optional<size_t> cuda_elf_extent(std::string_view bytes, size_t offset) {
  if (offset >= bytes.size()) return std::nullopt;
  const std::string_view image = bytes.substr(offset);
  const auto header = cuda_header(image);
  if (!header) return std::nullopt;
  uint64_t end = header->e_shoff + static_cast<uint64_t>(header->e_shnum) * sizeof(Elf64_Shdr);
  if (header->e_phnum > 0)
    end = std::max<uint64_t>(end, header->e_phoff + static_cast<uint64_t>(header->e_phnum) * header->e_phentsize);
  if (end > image.size() || header->e_shoff > image.size()) return std::nullopt;
  for (int i = 0; i < header->e_shnum; ++i) {
    const auto section = get<Elf64_Shdr>(image, header->e_shoff + static_cast<size_t>(i) * sizeof(Elf64_Shdr));
    if (!section || section->sh_type == SHT_NOBITS || section->sh_type == SHT_NULL) continue;
    if (section->sh_offset > image.size() || section->sh_size > image.size() - section->sh_offset) return std::nullopt;
    end = std::max<uint64_t>(end, section->sh_offset + section->sh_size);
  }
  return static_cast<size_t>(end);
}

Cubin read_cubin(std::string_view bytes) {
  const Sections sections(bytes);
  const auto header = cuda_header(bytes);
  Cubin cubin;
  // The architecture moved from the lowest byte of the flags to the second with ABI version 8 (CUDA 13).
  cubin.sm =
      static_cast<int>(header->e_ident[EI_ABIVERSION] >= 8 ? header->e_flags >> 8 & 0xff : header->e_flags & 0xff);

  std::map<int, size_t> kernel_of_symbol;
  std::map<std::string, size_t> kernel_of_name;
  for (const Elf64_Shdr& section : sections.all) {
    if (section.sh_type != SHT_SYMTAB) continue;
    if (section.sh_link >= sections.all.size()) throw std::runtime_error("damaged CUDA image: no symbol names");
    const std::string_view table = sections.content(section);
    for (size_t i = 0; (i + 1) * sizeof(Elf64_Sym) <= table.size(); ++i) {
      const auto symbol = need<Elf64_Sym>(table, i * sizeof(Elf64_Sym));
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !(symbol.st_other & entry_bit) || symbol.st_shndx == SHN_UNDEF)
        continue;
      KernelRecord kernel;
      kernel.name = sections.text(sections.all[section.sh_link], symbol.st_name);
      kernel.symbol = static_cast<int>(i);
      kernel_of_symbol[kernel.symbol] = kernel_of_name[kernel.name] = cubin.kernels.size();
      cubin.kernels.push_back(kernel);
    }
  }
  for (const Elf64_Shdr& section : sections.all) {
    const std::string name = sections.name(section);
    if (section.sh_type == type_cuda_info && name == ".nv.info") {
      each_attribute(sections.content(section), [&](int attribute, std::string_view payload) {
        if ((attribute != attribute_registers && attribute != attribute_frame_size) || payload.size() < 8) return;
        const auto kernel = kernel_of_symbol.find(static_cast<int>(need<uint32_t>(payload, 0)));
        if (kernel == kernel_of_symbol.end()) return;
        const int value = static_cast<int>(need<uint32_t>(payload, 4));
        (attribute == attribute_registers ? cubin.kernels[kernel->second].registers
                                          : cubin.kernels[kernel->second].stack_bytes) = value;
      });
    } else if (section.sh_type == type_cuda_info && starts_with(name, ".nv.info.")) {
      const auto kernel = kernel_of_name.find(name.substr(9));
      if (kernel == kernel_of_name.end()) continue;
      each_attribute(sections.content(section), [&](int attribute, std::string_view payload) {
        // One for each parameter; the size stands above 18 bits of other things.
        if (attribute == attribute_parameter && payload.size() >= 12)
          cubin.kernels[kernel->second].parameter_bytes += static_cast<int>(need<uint32_t>(payload, 8) >> 18);
        if (attribute != attribute_max_threads || payload.size() < 12) return;
        cubin.kernels[kernel->second].max_threads =
            static_cast<int>(need<uint32_t>(payload, 0) * need<uint32_t>(payload, 4) * need<uint32_t>(payload, 8));
      });
    } else if (starts_with(name, ".nv.shared.")) {
      const auto kernel = kernel_of_name.find(name.substr(11));
      if (kernel != kernel_of_name.end())
        cubin.kernels[kernel->second].shared_bytes = static_cast<int64_t>(section.sh_size);
    }
  }
  return cubin;
}

}  // namespace sass
