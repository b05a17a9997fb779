// The memory of one problem: images of allocations with poison wherever no valid element lies, and views into them.
#pragma once
#include <array>
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
  // Elements side by side, of q, k or v: each over the scale.
  void write_row(std::vector<Image>& images, int64_t position, const std::vector<float>& row, float scale) const;
};

// A problem with its inputs made and its outputs poisoned.
struct Case {
  Problem problem;
  std::vector<Image> images;
  View q, k, v, o, lse;
  View q_scale, k_scale, v_scale, o_scale, v_mean, lse_offset;  // of e4m3; without an image where absent

  explicit Case(const Problem& problem);

  // Where an element of v lies, also as tiles.
  int64_t v_position(int64_t b, int64_t key, int64_t head, int64_t column) const;
  // The elements of a row of q, k or v (0, 1, 2), and what they are to be multiplied by.
  void read_row(int tensor, int64_t b, int64_t row, int64_t head, float* out) const;
  float scale_of(int tensor, int64_t b, int64_t row, int64_t head) const;
  // Of v_mean or lse_offset; 0 where it is absent.
  float number(const View& view, int64_t b, int64_t head, int64_t i) const;
  float output_scale() const;  // o_scale, or 1

  // The call's parameters, given where each image lies.
  fa3_forward_params params(const std::vector<void*>& bases) const;
  fa3_forward_params host_params();
};

// Empty if every byte of the outputs' images outside the valid elements still holds its poison and every valid element
// was written; otherwise where not.
std::string check_poison(const Case& made);

}  // namespace fa3::test
