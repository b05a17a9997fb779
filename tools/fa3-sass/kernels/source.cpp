#include "source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "../system/mapped.h"
#include "../system/new_file.h"
#include "../system/text.h"
#include "../system/tidy.h"

namespace sass {
namespace {

// nvdisasm's text or cuobjdump's: no zeros, and one of the words with which such a text or a part of it begins.
bool is_listing(std::string_view bytes) {
  const std::string_view start = bytes.substr(0, 4096);
  if (start.find('\0') != std::string_view::npos) return false;
  for (const char* word : {".text.", "Function :", ".headerflags", ".elftype", ".target", "Fatbin elf code:"})
    if (start.find(word) != std::string_view::npos) return true;
  return false;
}

void copy(int from, const std::string& name, const std::string& to) {
  NewFile file(to);
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const ssize_t got = read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::runtime_error(name + ": cannot be read: " + std::strerror(errno));
    if (got == 0) break;
    file.write({buffer.data(), static_cast<size_t>(got)});
  }
  file.close();
}

std::unique_ptr<Source> open_file(const std::string& path, const std::string& name) {
  return is_listing(MappedFile(path).bytes()) ? open_listing(path, name) : open_images(path, name);
}

// What cannot be read at any place, or a second time, is copied.
class CopiedSource : public Source {
 public:
  CopiedSource(const std::string& file, const std::string& name) : Source(name) {
    const std::string path = folder_.path() + "/input";
    const int input = file == "-" ? 0 : ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (input < 0) throw std::runtime_error(name + ": cannot be read: " + std::strerror(errno));
    copy(input, name, path);
    if (input != 0) close(input);
    source_ = open_file(path, name);
    choose(source_->architecture());
    for (const Entry& entry : source_->entries()) add(entry.name);
  }
  void each(const std::vector<size_t>& wanted, const std::function<void(Kernel&&)>& use) const override {
    source_->each(wanted, use);
  }
  const KernelRecord* record(size_t kernel) const override { return source_->record(kernel); }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<Source> source_;
};

}  // namespace

void Source::choose(const std::set<int>& found, const std::set<int>& other_archs) {
  for (int sm : {hopper, 100, 101, 103})
    if (found.contains(sm)) return choose(sm);
  std::set<int> all = found;
  all.insert(other_archs.begin(), other_archs.end());
  std::string names;
  for (int sm : all) names += (names.empty() ? "sm_" : ", sm_") + std::to_string(sm);
  throw std::runtime_error(name_ + ": has code for " + names + ", but none for sm_90, and other code is not supported");
}

void Source::add(const std::string& kernel) { entries_.push_back({kernel, demangle(kernel)}); }

std::vector<size_t> Source::matching(const std::string& wanted) const {
  std::vector<size_t> found;
  if (const auto number = kernel_number(wanted)) {
    if (*number < 1 || *number > entries_.size())
      throw std::runtime_error(name_ + ": no kernel " + wanted + ": it has " + std::to_string(entries_.size()));
    found.push_back(*number - 1);
  } else {
    for (size_t i = 0; i < entries_.size(); ++i)
      if (matches(wanted, entries_[i].name, entries_[i].readable)) found.push_back(i);
  }
  if (found.empty())
    throw std::runtime_error(name_ + (wanted.empty() ? ": no kernels" : ": no kernel matches \"" + wanted + "\""));
  return found;
}

std::vector<Kernel> Source::read(const std::vector<size_t>& wanted) const {
  std::vector<Kernel> kernels;
  each(wanted, [&](Kernel&& kernel) { kernels.push_back(std::move(kernel)); });
  return kernels;
}

std::unique_ptr<Source> open_source(const std::string& file) {
  if (file == "-") return std::make_unique<CopiedSource>(file, "standard input");
  if (!std::filesystem::is_regular_file(file)) return std::make_unique<CopiedSource>(file, file);
  return open_file(file, file);
}

void refuse_others(const Source& source, const std::string& verb) {
  if (source.architecture() != hopper)
    throw std::runtime_error(source.name() + ": has code for sm_" + std::to_string(source.architecture()) +
                             ", but what " + verb + " says holds for sm_90 alone; try list, show, timeline --all");
}

}  // namespace sass
