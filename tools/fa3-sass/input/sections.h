// The sections of a CUDA ELF image.
#pragma once

#include <elf.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace sass {

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

// Nothing, if no CUDA image begins here.
std::optional<Elf64_Ehdr> cuda_header(std::string_view bytes);

struct Sections {
  std::string_view bytes;
  Elf64_Ehdr header{};
  std::vector<Elf64_Shdr> all;

  explicit Sections(std::string_view image);  // throws std::runtime_error on a damaged image

  std::string_view content(const Elf64_Shdr& section) const;
  std::string text(const Elf64_Shdr& strings, size_t offset) const;
  std::string name(const Elf64_Shdr& section) const { return text(names_, section.sh_name); }
  std::vector<Elf64_Sym> symbols(const Elf64_Shdr& table) const;
  std::string_view code_of(const std::string& function) const;  // empty if there is none

 private:
  Elf64_Shdr names_{};
};

// Of a section .nv.info: calls use(attribute, payload) for each entry; payload is a 16-bit value or the bytes that
// follow.
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

}  // namespace sass
