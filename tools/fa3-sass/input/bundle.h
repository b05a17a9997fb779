// Kernels of one or several images as one small image: nvdisasm takes longer to begin than to print a kernel, and
// longer still with a large image.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cubin.h"

namespace sass {

struct Bundled {
  std::string_view image;
  const KernelRecord* kernel = nullptr;
};

// Whether two images' kernels may stand in one bundle.
bool same_kind(std::string_view image, std::string_view other);

// For kernels that stand alone, of images of one kind, with different names.
std::string bundle(const std::vector<Bundled>& kernels);

}  // namespace sass
