#include "zip.h"

#include <zlib.h>

#include <algorithm>

#include "../system/new_file.h"
#include "inflate.h"
#include "sections.h"

namespace sass {
namespace {

// Sizes and places, from PKWARE's APPNOTE.
constexpr std::string_view local_magic("PK\3\4", 4), entry_magic("PK\1\2", 4), end_magic("PK\5\6", 4),
    end64_locator_magic("PK\6\7", 4);
constexpr size_t local_size = 30, file_entry_size = 46, end_size = 22, locator_size = 20, longest_comment = 65535;
constexpr uint32_t elsewhere = 0xffffffff;  // the number is in the entry's extra field

struct Directory {
  uint64_t offset = 0, count = 0;
};

Directory directory_of(std::string_view bytes) {
  const std::string_view tail = bytes.substr(bytes.size() - std::min(bytes.size(), end_size + longest_comment));
  const size_t at = tail.rfind(end_magic);
  if (at == std::string_view::npos || tail.size() - at < end_size) throw std::runtime_error("its directory is missing");
  Directory found{need<uint32_t>(tail, at + 16), need<uint16_t>(tail, at + 10)};
  if (found.offset != elsewhere && found.count != 0xffff) return found;
  if (at < locator_size || tail.substr(at - locator_size, 4) != end64_locator_magic) return found;
  const auto end64 = need<uint64_t>(tail, at - locator_size + 8);
  return {need<uint64_t>(bytes, end64 + 48), need<uint64_t>(bytes, end64 + 32)};
}

ZipMember member_at(std::string_view bytes, uint64_t& at) {
  if (at > bytes.size() || bytes.substr(at, 4) != entry_magic) throw std::runtime_error("its directory is damaged");
  const std::string_view entry = bytes.substr(at);
  const auto name_size = need<uint16_t>(entry, 28), extra_size = need<uint16_t>(entry, 30),
             comment_size = need<uint16_t>(entry, 32);
  if (entry.size() < file_entry_size + name_size + extra_size) throw std::runtime_error("its directory is damaged");
  ZipMember member;
  member.method = need<uint16_t>(entry, 10);
  member.checksum = need<uint32_t>(entry, 16);
  member.name = entry.substr(file_entry_size, name_size);
  uint64_t compressed = need<uint32_t>(entry, 20), local = need<uint32_t>(entry, 42);
  member.size = need<uint32_t>(entry, 24);
  const std::string_view extra = entry.substr(file_entry_size + name_size, extra_size);
  for (size_t field = 0; field + 4 <= extra.size(); field += 4u + need<uint16_t>(extra, field + 2)) {
    if (need<uint16_t>(extra, field) != 1) continue;
    size_t next = field + 4;
    for (uint64_t* number : {&member.size, &compressed, &local})
      if (*number == elsewhere) {
        *number = need<uint64_t>(extra, next);
        next += 8;
      }
  }
  const uint64_t begin = local + local_size + need<uint16_t>(bytes, local + 26) + need<uint16_t>(bytes, local + 28);
  if (begin > bytes.size() || bytes.size() - begin < compressed) throw std::runtime_error("a member ends beyond it");
  member.compressed = bytes.substr(begin, compressed);
  at += file_entry_size + name_size + extra_size + comment_size;
  return member;
}

}  // namespace

bool is_zip(std::string_view bytes) { return bytes.starts_with(local_magic); }

std::vector<ZipMember> zip_members(const std::string& name, std::string_view bytes) {
  std::vector<ZipMember> members;
  try {
    const Directory directory = directory_of(bytes);
    uint64_t at = directory.offset;
    for (uint64_t i = 0; i < directory.count; ++i) members.push_back(member_at(bytes, at));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(name + ": cut off or damaged: no whole zip file: " + error.what());
  }
  return members;
}

void extract(const ZipMember& member, const std::string& path) {
  NewFile file(path);
  uint32_t checksum = 0;
  uint64_t size = 0;
  const auto use = [&](std::string_view text) {
    checksum = static_cast<uint32_t>(crc32_z(checksum, reinterpret_cast<const Bytef*>(text.data()), text.size()));
    size += text.size();
    file.write(text);
  };
  if (member.method == 0) use(member.compressed);
  else if (member.method == 8) inflate(member.compressed, use);
  else throw std::runtime_error("compressed by method " + std::to_string(member.method) + ", which is not supported");
  if (size != member.size || checksum != member.checksum)
    throw std::runtime_error("damaged: its checksum is another one");
  file.close();
}

}  // namespace sass
