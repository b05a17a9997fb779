#include "images.h"

#include <cstdio>
#include <filesystem>
#include <set>
#include <stdexcept>

#include "cubin.h"
#include "disassembler.h"
#include "process.h"
#include "text.h"

namespace fs = std::filesystem;

namespace sass {
namespace {

constexpr std::string_view elf_magic(
    "\x7f"
    "ELF",
    4);
constexpr std::string_view fatbin_magic("\x50\xed\x55\xba", 4);

void add_fatbin_images(const std::string& path, std::vector<Image>& images, std::set<std::string>& seen) {
  const std::string cuobjdump = find_tool("cuobjdump");
  const TemporaryFolder folder;
  // cuobjdump writes the extracted images into the folder it runs in. Only Hopper's are wanted: libraries carry many.
  const Output output = run({cuobjdump, "-xelf", "sm_90", fs::absolute(path).string()}, folder.path());
  std::set<std::string> files;
  for (const auto& file : fs::directory_iterator(folder.path())) files.insert(file.path().string());
  if (files.empty() && images.empty() && output.status != 0)
    throw std::runtime_error(path + ": cuobjdump: " + std::string(trim(output.err.empty() ? output.out : output.err)));
  for (const std::string& file : files) {
    std::string bytes = read_file(file);
    if (seen.insert(bytes).second)
      images.push_back({path + ":" + fs::path(file).filename().string(), std::move(bytes)});
  }
}

}  // namespace

std::vector<Image> embedded_images(const std::string& name, std::string_view bytes) {
  std::vector<Image> images;
  std::set<std::string_view> seen;
  for (size_t at = bytes.find(elf_magic); at != std::string_view::npos;) {
    const auto extent = cuda_elf_extent(bytes, at);
    if (extent && seen.insert(bytes.substr(at, *extent)).second) {
      char place[32];
      std::snprintf(place, sizeof place, "+0x%zx", at);
      images.push_back({at == 0 ? name : name + place, std::string(bytes.substr(at, *extent))});
    }
    at = bytes.find(elf_magic, at + (extent ? *extent : elf_magic.size()));
  }
  return images;
}

std::vector<Image> images_of(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<Image> images = embedded_images(path, bytes);
  if (bytes.find(fatbin_magic) != std::string::npos) {
    std::set<std::string> seen;
    for (const Image& image : images) seen.insert(image.bytes);
    add_fatbin_images(path, images, seen);
  }
  if (images.empty()) throw std::runtime_error(path + ": holds no CUDA machine code");
  return images;
}

}  // namespace sass
