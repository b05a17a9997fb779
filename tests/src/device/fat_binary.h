// The cubin in a fat binary, as a driver older than CUDA 12.4 finds it: as it is, or in LZ4.
#pragma once
#include <lz4.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace fa3::test {

// Offsets of its header, and in the entry behind it.
namespace fat_binary {
constexpr uint32_t magic = 0xba55ed50;
constexpr size_t bytes_behind_header = 8, header_bytes = 16;
constexpr size_t kind = 0, entry_bytes = 4, stored_bytes = 8, compressed_bytes = 16, architecture = 28, flags = 40,
                 cubin_bytes = 56;  // the last and compressed_bytes are 0 if the cubin is stored as it is
constexpr uint16_t kind_elf = 2;
constexpr uint64_t flag_lz4 = 0x2000, flag_zstd = 0x8000;
}  // namespace fat_binary

template <class T>
T read_at(const char* bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

// Empty, unless the image is a fat binary that holds a cubin for Hopper, as it is or in LZ4, and nothing else.
inline std::string cubin_of(const void* image) {
  using namespace fat_binary;
  const char* header = static_cast<const char*>(image);
  const char* entry = header + header_bytes;
  if (reinterpret_cast<uintptr_t>(image) % 8 != 0 || read_at<uint32_t>(header, 0) != magic) return {};
  const auto compressed = read_at<uint32_t>(entry, compressed_bytes);
  const auto begin = read_at<uint32_t>(entry, entry_bytes);
  const auto stored = read_at<uint64_t>(entry, stored_bytes), bytes = read_at<uint64_t>(entry, cubin_bytes);
  const uint64_t compression = read_at<uint64_t>(entry, flags) & (flag_lz4 | flag_zstd);
  if (read_at<uint16_t>(entry, kind) != kind_elf || read_at<uint32_t>(entry, architecture) != 90 ||
      read_at<uint64_t>(header, bytes_behind_header) != begin + stored)
    return {};
  if (compression == 0) return compressed == 0 && bytes == 0 ? std::string(entry + begin, stored) : std::string();
  if (compression != flag_lz4 || stored != (uint64_t{compressed} + 7) / 8 * 8) return {};
  std::string cubin(bytes, '\0');
  const int size = LZ4_decompress_safe(entry + begin, cubin.data(), static_cast<int>(compressed),
                                       static_cast<int>(cubin.size()));
  return size == static_cast<int>(cubin.size()) ? cubin : std::string();
}

}  // namespace fa3::test
