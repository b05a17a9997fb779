#include "cubin.h"

#include <algorithm>
#include <map>
#include <set>

#include "sections.h"

namespace sass {
namespace {

constexpr unsigned char entry_bit = 0x10;  // STO_CUDA_ENTRY in a symbol's st_other
constexpr uint32_t type_cuda_info = 0x70000000;

// EIATTR codes of .nv.info
constexpr int attribute_max_threads = 0x05, attribute_required_threads = 0x10, attribute_frame_size = 0x11,
              attribute_parameter = 0x17, attribute_registers = 0x2f;

// Instructions have 16 bytes; the lowest 9 bits of the first word are the opcode, the next 3 the form of its operands.
constexpr size_t instruction_bytes = 16;
constexpr uint32_t opcode_bits = 0x1ff;
constexpr uint32_t warpgroup = 0x1c5, first_wgmma = 0x1f0, last_wgmma = 0x1f3;  // HGMMA to BGMMA
constexpr uint32_t telling[] = {0x1c8, 0x143, 0x183, 0x187};  // USETMAXREG, CALL.ABS, LDL, STL
constexpr uint32_t near_call = 0x144, mufu = 0x108;           // CALL.REL
constexpr uint64_t exp2 = 2;                                  // what a MUFU computes, in bits 74 to 79
// SYNCS, ARRIVES, STAS, and all of TMA; between them others, which are taken for such, too.
constexpr uint32_t first_handover = 0x1a7, last_handover = 0x1bf, ldgdepbar = 0x1af;
constexpr uint32_t bar = 0x11d;
constexpr uint64_t bar_of_all = 0xb1d, behind_bar_of_all = 0x10000;  // BAR.SYNC.DEFER_BLOCKING 0x0
constexpr uint64_t guard_bits = 0xf000, control_bits = ~uint64_t{0} << 41;

// `functions`: where those that the kernel calls begin, behind its own code; nothing if there are none.
void glance_at(std::string_view code, std::optional<uint64_t> functions, KernelRecord& kernel) {
  kernel.no_wgmmas = kernel.plain = kernel.hands_nothing_over = true;
  for (size_t at = 0; at + instruction_bytes <= code.size() && kernel.no_wgmmas; at += instruction_bytes) {
    const uint32_t opcode = need<uint32_t>(code, at) & opcode_bits;
    if (opcode == warpgroup || (opcode >= first_wgmma && opcode <= last_wgmma)) kernel.no_wgmmas = false;
    if (std::ranges::count(telling, opcode) > 0) kernel.plain = false;
    if (opcode == near_call && !(functions && kernel.stands_alone)) kernel.plain = false;
    if (opcode == mufu && functions && at >= *functions && (need<uint64_t>(code, at + 8) >> 10 & 0x3f) == exp2)
      kernel.plain = false;
    if (opcode >= first_handover && opcode <= last_handover && opcode != ldgdepbar) kernel.hands_nothing_over = false;
    if (opcode == bar && ((need<uint64_t>(code, at) & ~guard_bits) != bar_of_all ||
                          (need<uint64_t>(code, at + 8) & ~control_bits) != behind_bar_of_all))
      kernel.hands_nothing_over = false;
  }
  kernel.plain = kernel.plain && kernel.no_wgmmas;
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

// The first function behind a kernel's own code, by section.
static std::map<size_t, uint64_t> first_functions(const std::vector<Elf64_Sym>& symbols) {
  std::map<size_t, uint64_t> functions;
  for (const Elf64_Sym& symbol : symbols)
    if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value > 0) {
      uint64_t& first = functions.emplace(symbol.st_shndx, symbol.st_value).first->second;
      first = std::min<uint64_t>(first, symbol.st_value);
    }
  return functions;
}

Cubin read_cubin(std::string_view bytes) {
  const Sections sections(bytes);
  const Elf64_Ehdr& header = sections.header;
  Cubin cubin;
  // The architecture moved from the lowest byte of the flags to the second with ABI version 8 (CUDA 13).
  cubin.sm = static_cast<int>(header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff);
  cubin.linked = header.e_type != ET_REL;
  std::set<size_t> relocated;  // sections
  for (const Elf64_Shdr& section : sections.all)
    if ((section.sh_type == SHT_REL || section.sh_type == SHT_RELA) && section.sh_size > 0)
      relocated.insert(section.sh_info);

  std::map<int, size_t> kernel_of_symbol;
  std::map<std::string, size_t> kernel_of_name;
  for (const Elf64_Shdr& section : sections.all) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const std::vector<Elf64_Sym> symbols = sections.symbols(section);
    const std::map<size_t, uint64_t> functions = first_functions(symbols);
    for (size_t i = 0; i < symbols.size(); ++i) {
      const Elf64_Sym& symbol = symbols[i];
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !(symbol.st_other & entry_bit) || symbol.st_shndx == SHN_UNDEF)
        continue;
      KernelRecord kernel;
      kernel.name = sections.text(sections.all[section.sh_link], symbol.st_name);
      kernel.symbol = static_cast<int>(i);
      kernel.code_bytes = symbol.st_size;
      kernel.stands_alone = symbol.st_shndx < sections.all.size() && !relocated.contains(symbol.st_shndx);
      if (cubin.sm == 90 && symbol.st_shndx < sections.all.size()) {
        const auto first = functions.find(symbol.st_shndx);
        glance_at(sections.content(sections.all[symbol.st_shndx]),
                  first == functions.end() ? std::nullopt : std::optional(first->second), kernel);
      }
      kernel_of_symbol[kernel.symbol] = kernel_of_name[kernel.name] = cubin.kernels.size();
      cubin.kernels.push_back(kernel);
    }
  }
  const auto tells_lines = [&](const Elf64_Shdr& section) {
    return section.sh_size > 0 && sections.name(section) == ".debug_line";
  };
  if (std::ranges::any_of(sections.all, tells_lines))
    for (KernelRecord& kernel : cubin.kernels) kernel.has_lines = true;
  for (const Elf64_Shdr& section : sections.all) {
    const std::string name = sections.name(section);
    if (section.sh_type == type_cuda_info && name == ".nv.info") {
      each_attribute(sections.content(section), [&](int attribute, std::string_view payload) {
        if ((attribute != attribute_registers && attribute != attribute_frame_size) || payload.size() < 8) return;
        const auto kernel = kernel_of_symbol.find(static_cast<int>(need<uint32_t>(payload, 0)));
        if (kernel == kernel_of_symbol.end()) return;
        const int value = static_cast<int>(need<uint32_t>(payload, 4));
        KernelRecord& record = cubin.kernels[kernel->second];
        (attribute == attribute_registers ? record.registers : record.stack_bytes) = value;
        if (record.stack_bytes > 0) record.plain = false;
      });
    } else if (section.sh_type == type_cuda_info && starts_with(name, ".nv.info.")) {
      const auto kernel = kernel_of_name.find(name.substr(9));
      if (kernel == kernel_of_name.end()) continue;
      each_attribute(sections.content(section), [&](int attribute, std::string_view payload) {
        // One for each parameter; the size stands above 18 bits of other things.
        if (attribute == attribute_parameter && payload.size() >= 12)
          cubin.kernels[kernel->second].parameter_bytes += static_cast<int>(need<uint32_t>(payload, 8) >> 18);
        // .maxntid, or .reqntid, which says how many threads there always are.
        if ((attribute != attribute_max_threads && attribute != attribute_required_threads) || payload.size() < 12)
          return;
        cubin.kernels[kernel->second].max_threads =
            static_cast<int>(need<uint32_t>(payload, 0) * need<uint32_t>(payload, 4) * need<uint32_t>(payload, 8));
      });
    } else if (starts_with(name, ".nv.shared.")) {
      const auto kernel = kernel_of_name.find(name.substr(11));
      if (kernel != kernel_of_name.end())
        cubin.kernels[kernel->second].shared_bytes = static_cast<int64_t>(section.sh_size);
    } else if (starts_with(name, ".nv.constant") && !starts_with(name, ".nv.constant0.")) {  // tables of jumps
      const auto kernel = kernel_of_name.find(name.substr(std::min(name.find('.', 4), name.size() - 1) + 1));
      if (kernel != kernel_of_name.end()) cubin.kernels[kernel->second].stands_alone = false;
    }
  }
  return cubin;
}

}  // namespace sass
