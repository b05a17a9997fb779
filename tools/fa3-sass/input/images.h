// The CUDA images inside any file: a cubin, images embedded as plain bytes (.incbin), fat binaries (through cuobjdump),
// and all of these in the members of a wheel.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "../system/mapped.h"
#include "../system/tidy.h"
#include "fatbin.h"

namespace sass {

struct Image {
  std::string name;        // for messages: the file, and where in it
  std::string_view bytes;  // one whole CUDA ELF image
};

// Whole CUDA ELF images in the bytes, wherever they lie; each content once. Throws std::runtime_error if one is cut
// off. `passed` is told up to where the bytes have been looked at.
std::vector<Image> embedded_images(const std::string& name, std::string_view bytes,
                                   const std::function<void(size_t)>& passed = [](size_t) {});

// All images of a file, with what cuobjdump finds in fat binaries: for Hopper, or if the file has nothing for it, for
// data centre GPUs of Blackwell. The file stays where it is, and what had to be
// extracted in a temporary folder, as long as the object lives.
class Images {
 public:
  // `name` is the file's in messages. Throws std::runtime_error when the file holds none, or is not all there.
  Images(const std::string& path, const std::string& name);
  const std::vector<Image>& all() const { return images_; }
  // Architectures of fat binaries that are not for Hopper.
  const std::set<int>& other_archs() const { return other_archs_; }

 private:
  void add_file(const std::string& path, const std::string& name);
  void add_blackwell();
  void add_fatbins(const std::vector<Fatbin>& fatbins, const std::string& name, int architecture);
  void add_extracted(const std::string& path, const std::string& name, int architecture, size_t& count);
  void add_members(std::string_view zip, const std::string& name);
  std::string fresh_folder();

  std::optional<TemporaryFolder> folder_;
  size_t folders_ = 0;
  std::deque<MappedFile> files_;
  std::vector<Image> images_;
  std::set<int> other_archs_;
  std::map<std::string, std::vector<std::string_view>> fatbins_of_other_archs_;  // by the file's name
};

}  // namespace sass
