// Cases of fa3_quantize, fa3_append and fa3_combine: each tensor lies in an allocation of its own, between poison, on
// both sides.
//
// A case has tensors all(0) .. all(count - 1), the first `outputs` of which the call writes, and params(bases), the
// parameters of a call whose tensors lie in those allocations.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "half.h"
#include "layout.h"
#include "problems/memory.h"

namespace fa3::test {

// Repeated, a NaN of fp16 and e4m3, and a huge number of bf16 and fp32.
constexpr unsigned char poison_byte = 0x7f;

struct Placed {
  static constexpr int64_t guard = 65536;
  tools::Layout layout;
  fa3_dtype dtype = FA3_DTYPE_NONE;  // none: the case does without this tensor
  Image image;
  int64_t first = 0;  // of its bytes in the allocation

  Placed() = default;
  // `shift` bytes behind the poison.
  Placed(const tools::Layout& layout, fa3_dtype dtype, int64_t shift)
      : layout(layout), dtype(dtype), first(guard + shift) {
    image.assign(size_t(first + layout.extent() * width() + guard), poison_byte);
  }
  int64_t width() const { return tools::element_bytes(dtype); }
  float read(int64_t at) const { return tools::read_element(image.data() + first, at, dtype); }
  void write(int64_t at, float value) { tools::write_element(image.data() + first, at, value, dtype); }
  template <class T>
  T* data() {
    return reinterpret_cast<T*>(image.data() + first);
  }
  fa3_tensor tensor(void* base) const { return layout.tensor(static_cast<std::byte*>(base) + first, dtype); }

  // "", or which byte that is no element's was overwritten.
  std::string overwritten() const {
    std::vector<char> element(image.size());
    layout.for_each([&](int64_t at) { std::memset(&element[size_t(first + at * width())], 1, size_t(width())); });
    for (size_t n = 0; n < element.size(); ++n)
      if (!element[n] && image[n] != poison_byte)
        return "byte " + std::to_string(int64_t(n) - first) + " is no element's and was overwritten";
    return "";
  }
};

// Fills in the tensors of a parameter struct, in the order of all().
template <class Case, size_t count>
void place_tensors(Case& made, const std::vector<void*>& bases, fa3_tensor* const (&tensors)[count]) {
  static_assert(count == Case::count);
  for (size_t i = 0; i < count; ++i)
    if (made.all(int(i))->dtype != FA3_DTYPE_NONE) *tensors[i] = made.all(int(i))->tensor(bases[i]);
}

// The parameters of a call on the case's own images.
template <class Case>
auto host_params(Case& made) {
  std::vector<void*> bases;
  for (int i = 0; i < Case::count; ++i) bases.push_back(made.all(i)->image.data());
  return made.params(bases);
}

// "", or which output was written to beside its elements.
template <class Case>
std::string overwritten(Case& made) {
  for (int i = 0; i < Case::outputs; ++i)
    if (made.all(i)->dtype != FA3_DTYPE_NONE)
      if (const std::string bad = made.all(i)->overwritten(); !bad.empty())
        return "output " + std::to_string(i) + ": " + bad;
  return "";
}

template <class Case>
std::vector<Image> output_images(Case& made) {
  std::vector<Image> images;
  for (int i = 0; i < Case::outputs; ++i) images.push_back(made.all(i)->image);
  return images;
}

// A case's tensors on the device.
template <class Case>
struct OnDevice {
  std::vector<tools::DeviceBuffer> buffers;
  decltype(std::declval<Case&>().params({})) params;

  explicit OnDevice(Case& made) {
    std::vector<void*> bases;
    for (int i = 0; i < Case::count; ++i) {
      const Image& image = made.all(i)->image;
      buffers.push_back(tools::DeviceBuffer::for_tensor(std::max<size_t>(image.size(), 16)));
      if (!image.empty()) buffers.back().upload(image.data(), image.size());
      bases.push_back(buffers.back().at(0));
    }
    params = made.params(bases);
  }
  void poison_outputs() {
    for (int i = 0; i < Case::outputs; ++i)
      buffers[size_t(i)].upload(Image(buffers[size_t(i)].size(), poison_byte).data(), buffers[size_t(i)].size());
  }
  void download_outputs(Case& made) const {
    for (int i = 0; i < Case::outputs; ++i)
      if (Image& image = made.all(i)->image; !image.empty()) buffers[size_t(i)].download(image.data(), image.size());
  }
};

inline std::string message(const char* call) { return std::string(call) + ": " + fa3_last_error_message(); }

}  // namespace fa3::test
