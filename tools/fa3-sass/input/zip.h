// The members of a zip file, such as a Python wheel.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sass {

struct ZipMember {
  std::string name;
  uint16_t method = 0;  // 0 stored, 8 deflated
  uint32_t checksum = 0;
  uint64_t size = 0;            // of the text
  std::string_view compressed;  // in the zip file's bytes
};

bool is_zip(std::string_view bytes);

// Throws std::runtime_error, with this name, on what is no whole zip file.
std::vector<ZipMember> zip_members(const std::string& name, std::string_view bytes);

// Writes the member's text to a new file. Throws std::runtime_error if it is damaged or the file cannot be written.
void extract(const ZipMember& member, const std::string& path);

}  // namespace sass
