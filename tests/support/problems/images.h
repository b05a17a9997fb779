// Images of allocations: tensors in host memory with poison wherever no element lies, and views into them.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "layout.h"
#include "problem.h"

namespace fa3::test {

// One allocation's bytes. Not of std::byte, which GCC compares one by one.
using Image = std::vector<unsigned char>;

// NaN: in bf16 and fp16, in float32, and in e4m3, whose other NaN is the one that kernels write. Inputs hold it beyond
// the valid elements, outputs everywhere before the call. Only keys beyond seqlen_k in the last tile of V are zeros.
inline constexpr uint16_t poison16 = 0x7fab;
inline constexpr uint32_t poison32 = 0x7fabbeef;
inline constexpr uint8_t poison8 = 0xff;

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

  // The element at a position of the layout, as a value and as poison.
  float read(const std::vector<Image>& images, int64_t position) const;
  void write(std::vector<Image>& images, int64_t position, float value) const;
  void write_poison(std::vector<Image>& images, int64_t position) const;
  bool is_poison(const std::vector<Image>& images, int64_t position) const;  // of 16 or 32 bits
  // Elements side by side, of q, k or v: each over the scale.
  void write_row(std::vector<Image>& images, int64_t position, const std::vector<float>& row, float scale) const;
  // The tensor of a call, given where each image lies.
  fa3_tensor tensor(const std::vector<void*>& bases) const {
    return layout.tensor(static_cast<std::byte*>(bases[size_t(image)]) + first, dtype);
  }
};

// More than a tile of rows before and behind a tensor, so that a stray access meets poison, not unmapped memory.
inline constexpr int64_t guard_bytes = 65536;

// Dims (batch, seqlen, heads, head_dim) in the storage's order.
tools::Layout lay_out(const Storage& storage, fa3_dtype dtype, int64_t batch, int64_t seqlen, int64_t heads,
                      int64_t head_dim);
// The same for (batch, heads, seqlen), as of lse: its innermost dimension may be strided, too.
tools::Layout lay_out_lse(const Storage& storage, int64_t batch, int64_t heads, int64_t seqlen);

// Adds an image for so many elements of `element` bytes between poison, the first `shift` bytes behind its guard.
int add_image(std::vector<Image>& images, int64_t elements, int element, int64_t shift, int64_t guard = guard_bytes);
View add_view(std::vector<Image>& images, const tools::Layout& layout, fa3_dtype dtype, int64_t shift,
              int64_t guard = guard_bytes);

// N(0,1) times a factor, in every element.
void fill_normal(std::vector<Image>& images, const View& view, uint64_t seed, float factor);

// Flags for the elements of the view's image, from its start: true for those of the tensor.
std::vector<char> elements_of(const std::vector<Image>& images, const View& view);

// Empty if each element of the view's image was written if its flag says so, and otherwise still holds its poison; or
// where not.
std::string check_poison(const std::vector<Image>& images, const View& view, const std::vector<char>& written,
                         const char* name);

}  // namespace fa3::test
