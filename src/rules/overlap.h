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

// Do the strides nest, that is, is each larger than the span of all smaller ones? Then different indices name different
// elements. They may do so without, but to tell that in general takes a search. If not, `dim` is the first dim whose
// stride is too small, and `span` what it has to step over.
bool strides_nest(const View& view, int& dim, int64_t& span);

// Could an element of one share a byte with an element of the other? False is exact. True may be wrong only for views
// that interleave otherwise than by a common stride (slices of one buffer, such as a packed QKVO, interleave by a
// common stride).
bool may_overlap(const View& a, const View& b);

}  // namespace fa3
