// Calls of fa3_forward, for a driver that only listens.
#pragma once
#include "../launches.h"
#include "../row_call.h"

namespace fa3::test {

inline fa3_status forward(const fa3_forward_params& p) {
  return fa3_forward(&p, workspace_memory, plenty, reinterpret_cast<fa3_stream>(stream));
}

inline fa3_forward_params causal(const Shape& shape, int32_t mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT) {
  fa3_forward_params p = imaginary(shape);
  p.mask = mask;
  return p;
}

// A problem of that row, which runs on it.
inline fa3_forward_params named(const ForwardRow& v, const Shape& shape = {}) {
  fa3_forward_params p = imaginary_for(v, shape);
  p.kernel = v.name;
  return p;
}

}  // namespace fa3::test
