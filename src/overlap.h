// Which bytes a strided view touches, and whether two views can share one.
#pragma once
#include "problem.h"

namespace fa3 {

struct Extent {
  uintptr_t begin, end;  // bytes [begin, end)
};

// The smallest range of bytes around the view's elements; false if it leaves the address space. The view has elements,
// and each dim * stride is below 2^40 bytes.
bool extent_of(const View& view, Extent& extent);

// Do different indices always name different elements? Sufficient, not necessary: ordered by stride, each dim must step
// over everything that the dims before it span, as in every nesting of slices and pads. On failure `inner` and `outer`
// name the first pair of dims that break this.
bool elements_distinct(const View& view, int& inner, int& outer);

// Could an element of one share a byte with an element of the other? False is exact. True may be wrong only for views
// that interleave otherwise than by a common stride (slices of one buffer, such as a packed QKVO, interleave by a
// common stride).
bool may_overlap(const View& a, const View& b);

}  // namespace fa3
