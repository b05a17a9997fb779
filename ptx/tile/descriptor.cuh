// Shared-memory descriptors of wgmma's operands (PTX ISA, wgmma, Matrix-Descriptor Format): address bits 4-17, leading
// and stride offsets in 16-byte units, swizzle mode in bits 62-63. Adding to one moves the start, also in 16-byte
// units. Addresses are below 2^18, but in a cluster: there they hold the thread block's rank, from bit 24 on.
#pragma once
#include "config.cuh"

namespace fa3 {

enum class Swizzle : uint64_t { none = 0, bytes_128 = 1, bytes_64 = 2 };
constexpr uint64_t descriptor(uint32_t leading_bytes, uint32_t stride_bytes, Swizzle swizzle) {
  return uint64_t(leading_bytes >> 4) << 16 | uint64_t(stride_bytes >> 4) << 32 | uint64_t(swizzle) << 62;
}
constexpr uint32_t descriptor_units(uint32_t bytes) { return bytes >> 4; }
FA3_DEVICE uint64_t descriptor_start(const void* start) {
  const uint32_t address = ptx::shared_address(start);
  return descriptor_units(has(Trait::multicast) ? address & 0x3ffff : address);
}

}  // namespace fa3
