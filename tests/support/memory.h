// The memory of one problem: images of allocations with poison wherever no valid element lies, and views into them.
#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "layout.h"
#include "problem.h"

namespace fa3::test {

// One allocation's bytes.
using Image = std::vector<std::byte>;

// Both formats read these 16 bits as NaN. Inputs hold them beyond the valid elements, outputs everywhere before the
// call.
inline constexpr uint16_t poison16 = 0x7fab;
inline constexpr uint32_t poison32 = 0x7fabbeef;

// A tensor inside an image.
struct View {
  tools::Layout layout;
  int image = -1;
  int64_t first = 0;  // bytes from the image's start to element 0
  fa3_dtype dtype = FA3_DTYPE_NONE;

  template <class T>
  T* data(std::vector<Image>& images) const {
    return reinterpret_cast<T*>(images[size_t(image)].data() + first);
  }
  template <class T>
  const T* data(const std::vector<Image>& images) const {
    return reinterpret_cast<const T*>(images[size_t(image)].data() + first);
  }
};

// A problem with its inputs made and its outputs poisoned.
struct Case {
  Problem problem;
  std::vector<Image> images;
  View q, k, v, o, lse;

  explicit Case(const Problem& problem);

  // The call's parameters, given where each image lies.
  fa3_forward_params params(const std::vector<void*>& bases) const;
  fa3_forward_params host_params();
};

// Empty if every byte of the outputs' images outside the valid elements still holds its poison and every valid element
// was written; otherwise where not.
std::string check_poison(const Case& made);

}  // namespace fa3::test
