#include "images.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <unordered_set>

#include "../system/new_file.h"
#include "../system/process.h"
#include "../system/text.h"
#include "cubin.h"
#include "disassembler.h"
#include "fatbin.h"
#include "sections.h"
#include "whole.h"
#include "zip.h"

namespace fs = std::filesystem;

namespace sass {
namespace {

constexpr std::string_view elf_magic(
    "\x7f"
    "ELF",
    4);
constexpr std::string_view fatbin_magic("\x50\xed\x55\xba", 4);
constexpr size_t window = size_t{16} << 20;  // of the file that is in memory while it is searched

// Where `wanted` stands at or behind `at`. `passed` is told of each window that is left behind.
size_t find_from(std::string_view bytes, std::string_view wanted, size_t at,
                 const std::function<void(size_t)>& passed) {
  for (; at < bytes.size(); at += window) {
    const size_t found = bytes.substr(at, window + wanted.size() - 1).find(wanted);
    if (found != std::string_view::npos) return at + found;
    passed(at);
  }
  return std::string_view::npos;
}

// Of a wheel's members those that may hold machine code for GPUs.
bool may_hold_code(const std::string& member) {
  const std::string file = fs::path(member).filename().string();
  if (file.find(".so.") != std::string::npos) return true;
  for (const char* end : {".so", ".cubin", ".fatbin", ".a", ".o", ".bin"})
    if (file.ends_with(end)) return true;
  return false;
}

}  // namespace

std::vector<Image> embedded_images(const std::string& name, std::string_view bytes,
                                   const std::function<void(size_t)>& passed) {
  std::vector<Image> images;
  std::unordered_set<std::string_view> seen;
  for (size_t at = find_from(bytes, elf_magic, 0, passed); at != std::string_view::npos;) {
    const auto extent = cuda_elf_extent(bytes, at);
    char place[32];
    std::snprintf(place, sizeof place, "+0x%zx", at);
    const std::string image = at == 0 ? name : name + place;
    if (!extent && cuda_header(bytes.substr(at))) refuse_cut_off(image, bytes.substr(at), stated_end(bytes.substr(at)));
    if (extent && seen.insert(bytes.substr(at, *extent)).second) images.push_back({image, bytes.substr(at, *extent)});
    at = find_from(bytes, elf_magic, at + (extent ? *extent : elf_magic.size()), passed);
  }
  return images;
}

Images::Images(const std::string& path, const std::string& name) {
  files_.emplace_back(path);
  const std::string_view bytes = files_.back().bytes();
  if (is_zip(bytes)) {
    add_members(bytes, name);
  } else {
    files_.pop_back();
    add_file(path, name);
  }
  if (images_.empty()) add_blackwell();
  std::unordered_set<std::string_view> seen;
  std::erase_if(images_, [&](const Image& image) {
    const bool again = !seen.insert(image.bytes).second;
    let_go(image.bytes);
    return again;
  });
  if (images_.empty() && other_archs_.empty()) throw std::runtime_error(name + ": holds no CUDA machine code");
}

void Images::add_file(const std::string& path, const std::string& name) {
  files_.emplace_back(path);
  const std::string_view bytes = files_.back().bytes();
  const size_t before = images_.size();
  refuse_cut_off(name, bytes, stated_end(bytes));
  size_t gone = 0;
  const auto passed = [&](size_t end) {
    let_go(bytes.substr(gone, end - std::min(gone, end)));
    gone = std::max(gone, end);
  };
  for (Image& image : embedded_images(name, bytes, passed)) images_.push_back(std::move(image));
  gone = 0;
  std::vector<Fatbin> fatbins;
  for (size_t at = find_from(bytes, fatbin_magic, 0, passed); at != std::string_view::npos;) {
    const auto end = stated_end_of_fatbin(bytes, at);
    refuse_cut_off(name, bytes, end);
    if (end) {
      const std::string_view fatbin = bytes.substr(at, *end - at);
      const auto found = architectures(fatbin);
      if (!found || found->contains(hopper)) fatbins.push_back(only(fatbin, hopper));
      else {
        other_archs_.insert(found->begin(), found->end());
        fatbins_of_other_archs_[name].push_back(fatbin);
      }
    }
    at = find_from(bytes, fatbin_magic, end ? *end : at + fatbin_magic.size(), passed);
    passed(std::min(at, bytes.size()));
  }
  passed(bytes.size());
  add_fatbins(fatbins, name, hopper);
  if (images_.size() == before && !fatbins_of_other_archs_.contains(name)) files_.pop_back();
}

void Images::add_blackwell() {
  for (const int architecture : {100, 101, 103}) {
    if (!other_archs_.contains(architecture) || !images_.empty()) continue;
    for (const auto& [name, all] : fatbins_of_other_archs_) {
      std::vector<Fatbin> fatbins;
      for (const std::string_view fatbin : all)
        if (architectures(fatbin)->contains(architecture)) fatbins.push_back(only(fatbin, architecture));
      add_fatbins(fatbins, name, architecture);
    }
  }
}

// cuobjdump takes three times the memory of its file, so it gets a few fat binaries at a time.
void Images::add_fatbins(const std::vector<Fatbin>& fatbins, const std::string& name, int architecture) {
  constexpr size_t most_bytes = size_t{32} << 20;
  size_t count = 0;
  for (size_t next = 0; next < fatbins.size();) {
    const std::string path = fresh_folder() + "/fatbins";
    NewFile file(path);
    size_t bytes = 0;
    do {
      file.write(fatbins[next].header);
      for (const std::string_view entry : fatbins[next].entries) {
        file.write(entry);
        let_go(entry);
      }
      file.write(std::string(-fatbins[next].size() % 8, '\0'));  // each begins at such a multiple
      bytes += fatbins[next++].size();
    } while (next < fatbins.size() && bytes + fatbins[next].size() <= most_bytes);
    file.close();
    add_extracted(path, name, architecture, count);
    fs::remove(path);
  }
}

// Of a file of fat binaries; `count` counts on over all of them.
void Images::add_extracted(const std::string& path, const std::string& name, int architecture, size_t& count) {
  // cuobjdump writes the images into the folder it runs in, as <its own file's name>.<number>.sm_90a.cubin. Only
  // those of one architecture are wanted: libraries carry many.
  const std::string cuobjdump = find_tool("cuobjdump"), folder = fresh_folder();
  const Output output = run({cuobjdump, "-xelf", "sm_" + std::to_string(architecture), path}, {folder, {}});
  const auto extension = [](const fs::path& file) { return file.extension().string(); };
  std::multimap<size_t, fs::path> files;  // by that number
  for (const auto& file : fs::directory_iterator(folder)) {
    const std::string number = extension(file.path().stem().stem());
    files.emplace(kernel_number(number.empty() ? number : number.substr(1)).value_or(0), file.path());
  }
  const std::string said(trim(output.err.empty() ? output.out : output.err));
  // It fails, too, if there is nothing for it.
  if (output.status != 0 && (!files.empty() || said.find("does not contain device code") == std::string::npos))
    throw std::runtime_error(name + ": cuobjdump: " + said);
  for (const auto& [number, file] : files) {
    files_.emplace_back(file.string());
    const std::string_view bytes = files_.back().bytes();
    const std::string image = name + ":" + std::to_string(++count) + extension(file.stem()) + ".cubin";
    refuse_cut_off(image, bytes, stated_end(bytes));
    images_.push_back({image, bytes});
  }
}

void Images::add_members(std::string_view zip, const std::string& name) {
  for (const ZipMember& member : zip_members(name, zip)) {
    if (!may_hold_code(member.name)) continue;
    const std::string path = fresh_folder() + "/" + fs::path(member.name).filename().string(),
                      title = name + ":" + member.name;
    try {
      extract(member, path);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(title + ": " + error.what());
    }
    let_go(member.compressed);
    const size_t before = images_.size();
    add_file(path, title);
    if (images_.size() == before) fs::remove(path);
  }
}

std::string Images::fresh_folder() {
  if (!folder_) folder_.emplace();
  const std::string path = folder_->path() + "/" + std::to_string(folders_++);
  fs::create_directory(path);
  return path;
}

}  // namespace sass
