// Shared by the wrappers of this folder. The rules of the folder:
//  - A wrapper is one PTX instruction and carries its mnemonic as name ('.' and '::' become '_', qualifiers with a
//    single legal value are left out).
//  - The exact PTX stands above it after "ptx:", its operands called like the wrapper's parameters, and in brackets the
//    title of its section in the PTX ISA: what follows the colon in "Data Movement and Conversion Instructions: cvt".
//    (Section numbers change from edition to edition.) tests/ptx compiles every wrapper and compares.
//  - No loops, no policy. Shared-memory addresses are uint32_t in the shared window (shared_address).
//  - asm stands here and nowhere else in the project.
#pragma once
#include <cstdint>

#define FA3_DEVICE __device__ __forceinline__

namespace fa3::ptx {

FA3_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace fa3::ptx
