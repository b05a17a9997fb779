// A row that is a pass: a small kernel before, after or instead of others.
#pragma once
#include "cells.h"

namespace fa3 {

struct PassRow {
  static constexpr Kind kind = Kind::pass;
  const char* name;
  const char* kernel;
  Pass pass;
  int d;  // the largest head dimension that it takes; 0: any
  // Its threads, as many thread blocks of it as a multiprocessor is to hold at once, and its shared memory.
  int pass_threads, pass_blocks, pass_bytes;
  Trait traits;

  constexpr bool has(Trait trait) const { return uint32_t(traits) & uint32_t(trait); }
  static constexpr bool chosen() { return true; }
  // Is it one of fa3_quantize's?
  constexpr bool quantizes() const { return pass == Pass::quantize || pass == Pass::measure || pass == Pass::finish; }
  constexpr int threads() const { return pass_threads; }
  constexpr int smem_bytes() const { return pass_bytes; }
  constexpr int resident_blocks() const { return pass_blocks; }
  static constexpr int cluster_blocks() { return 1; }

  constexpr bool valid() const {
    return has_only(traits, Trait::pass_traits) && pass_threads % 32 == 0 && pass_threads <= 1024 &&
           pass_threads * pass_blocks <= 2048 && pass_blocks * (pass_bytes + 1024) <= 228 * 1024 &&
           (!quantizes() || (pass_threads >= d && pass_threads <= 2 * d));
  }
};

}  // namespace fa3
