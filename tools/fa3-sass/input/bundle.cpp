#include "bundle.h"

#include <optional>

#include "sections.h"

namespace sass {
namespace {

// What nvdisasm says beside the code: the targets of indirect branches, and which accesses are spills. Other attributes
// may speak of symbols by number.
constexpr int attribute_branch_targets = 0x34, attribute_annotations = 0x55;
constexpr uint32_t index_bits = 0x00ffffff;  // of a code section's sh_info: its kernel's symbol

class Writer {
 public:
  explicit Writer(const Elf64_Ehdr& kind) : header_(kind), bytes_(sizeof kind, '\0') {
    symbols_.emplace_back();
    sections_.emplace_back();
  }

  void add(const Sections& image, const KernelRecord& kernel) {
    for (const Elf64_Shdr& table : image.all) {
      if (table.sh_type != SHT_SYMTAB) continue;
      const std::vector<Elf64_Sym> symbols = image.symbols(table);
      const auto index = static_cast<size_t>(kernel.symbol);
      if (index >= symbols.size()) continue;
      const size_t code = symbols[index].st_shndx;
      const auto placed = static_cast<uint16_t>(section(image, image.all[code], image.content(image.all[code])));
      for (size_t s = 0; s < symbols.size(); ++s) {  // the kernel, its section, functions within it
        if (symbols[s].st_shndx != code) continue;
        if (s == (image.all[code].sh_info & index_bits))
          sections_[placed].sh_info = (image.all[code].sh_info & ~index_bits) | static_cast<uint32_t>(symbols_.size());
        symbols_.push_back(symbols[s]);
        symbols_.back().st_name = text(symbol_names_, image.text(image.all[table.sh_link], symbols[s].st_name));
        symbols_.back().st_shndx = placed;
      }
      for (const Elf64_Shdr& other : image.all)
        if (other.sh_info == code && other.sh_type >= SHT_LOPROC && image.name(other) == ".nv.info." + kernel.name)
          sections_[section(image, other, remarks(image.content(other)))].sh_info = placed;
      return;
    }
  }

  std::string finish() {
    const uint32_t symbol_names = static_cast<uint32_t>(sections_.size());
    table(SHT_STRTAB, ".strtab", symbol_names_, 0, 0);
    const std::string_view symbols(reinterpret_cast<const char*>(symbols_.data()),
                                   symbols_.size() * sizeof(Elf64_Sym));
    const uint32_t symbol_table = table(SHT_SYMTAB, ".symtab", symbols, sizeof(Elf64_Sym), symbol_names);
    for (Elf64_Shdr& section : sections_)
      if (section.sh_type == SHT_PROGBITS || section.sh_type >= SHT_LOPROC) section.sh_link = symbol_table;
    const uint32_t own_name = text(section_names_, ".shstrtab");
    header_.e_shstrndx = static_cast<uint16_t>(table(SHT_STRTAB, "", section_names_, 0, 0));
    sections_.back().sh_name = own_name;
    pad(8);
    header_.e_shoff = bytes_.size();
    header_.e_shnum = static_cast<uint16_t>(sections_.size());
    header_.e_phoff = header_.e_phnum = 0;
    bytes_.append(reinterpret_cast<const char*>(sections_.data()), sections_.size() * sizeof(Elf64_Shdr));
    std::memcpy(bytes_.data(), &header_, sizeof header_);
    return std::move(bytes_);
  }

 private:
  static uint32_t text(std::string& names, const std::string& name) {
    const size_t at = names.size();
    names += name + '\0';
    return static_cast<uint32_t>(at);
  }
  void pad(size_t alignment) { bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment, '\0'); }

  static std::string remarks(std::string_view info) {
    std::string kept;
    each_attribute(info, [&](int attribute, std::string_view payload) {
      constexpr size_t head = 4;  // of an entry; its payload follows
      if ((attribute == attribute_branch_targets || attribute == attribute_annotations) && payload.size() >= head)
        kept.append(payload.data() - head, head + payload.size());
    });
    return kept;
  }

  size_t section(const Sections& image, const Elf64_Shdr& from, std::string_view content) {
    Elf64_Shdr copy = from;
    pad(from.sh_addralign > 1 && from.sh_addralign <= 4096 ? from.sh_addralign : 1);
    copy.sh_offset = bytes_.size();
    copy.sh_name = text(section_names_, image.name(from));
    copy.sh_size = content.size();
    bytes_ += content;
    sections_.push_back(copy);
    return sections_.size() - 1;
  }

  uint32_t table(uint32_t type, const char* name, std::string_view content, size_t entry, uint32_t link) {
    pad(8);
    Elf64_Shdr section{};
    section.sh_type = type;
    section.sh_name = *name ? text(section_names_, name) : 0;
    section.sh_offset = bytes_.size();
    section.sh_size = content.size();
    section.sh_link = link;
    section.sh_info = type == SHT_SYMTAB;
    section.sh_addralign = 8;
    section.sh_entsize = entry;
    bytes_ += content;
    sections_.push_back(section);
    return static_cast<uint32_t>(sections_.size() - 1);
  }

  Elf64_Ehdr header_;
  std::string bytes_, section_names_ = std::string(1, '\0'), symbol_names_ = std::string(1, '\0');
  std::vector<Elf64_Sym> symbols_;
  std::vector<Elf64_Shdr> sections_;
};

}  // namespace

bool same_kind(std::string_view image, std::string_view other) {
  const auto a = cuda_header(image), b = cuda_header(other);
  return a && b && std::memcmp(a->e_ident, b->e_ident, sizeof a->e_ident) == 0 && a->e_flags == b->e_flags &&
         a->e_type == b->e_type && a->e_version == b->e_version;
}

std::string bundle(const std::vector<Bundled>& kernels) {
  std::optional<Sections> image;
  std::optional<Writer> writer;
  for (const Bundled& bundled : kernels) {
    if (!image || image->bytes.data() != bundled.image.data()) image.emplace(bundled.image);
    if (!writer) writer.emplace(image->header);
    writer->add(*image, *bundled.kernel);
  }
  return writer ? writer->finish() : std::string();
}

}  // namespace sass
