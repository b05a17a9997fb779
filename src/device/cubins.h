// The compiled kernels as the driver takes them, in the order of the table: fat binaries, each of which holds a row's
// cubin, compressed or as it is. Defined by the assembly file that tools/build/embed.py writes.
#pragma once
#include <cstdint>

extern "C" {
struct Fa3Cubin {
  const void* data;
  uint64_t size;
};
[[gnu::visibility("hidden")]] extern const Fa3Cubin fa3_cubins[];
}
