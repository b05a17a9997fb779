// The CUDA images inside any file: a cubin, images embedded as plain bytes (.incbin), or fat binaries (through
// cuobjdump).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sass {

struct Image {
  std::string name;   // for messages: the file, and where in it
  std::string bytes;  // one whole CUDA ELF image
};

// Whole CUDA ELF images in the bytes, wherever they lie; each content once.
std::vector<Image> embedded_images(const std::string& name, std::string_view bytes);

// All images of a file, with what cuobjdump finds in fat binaries. Throws std::runtime_error when the file holds none.
std::vector<Image> images_of(const std::string& path);

}  // namespace sass
