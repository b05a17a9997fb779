// The memory of one problem: tensors in images (images.h), with poison wherever no valid element lies.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "images.h"

namespace fa3::test {

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
