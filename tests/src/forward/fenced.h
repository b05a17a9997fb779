// Memory that ends where a tensor does.
#pragma once
#include <catch2/catch_test_macros.hpp>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>

#include "problems/images.h"

namespace fa3::test {

// A tensor's memory with forbidden pages around it, so near that the first byte behind it, or before it, is in one.
class Fenced {
 public:
  Fenced(const Image& image, bool at_the_end) : bytes_(image.size()) {
    const auto page = size_t(sysconf(_SC_PAGESIZE)), inside = (bytes_ + page - 1) / page * page;
    all_ = inside + 2 * page;
    void* const memory = mmap(nullptr, all_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    memory_ = static_cast<unsigned char*>(memory);
    if (inside) REQUIRE(mprotect(memory_ + page, inside, PROT_READ | PROT_WRITE) == 0);
    data_ = memory_ + page + (at_the_end ? inside - bytes_ : 0);
    std::copy(image.begin(), image.end(), data_);
  }
  Fenced(const Fenced&) = delete;
  ~Fenced() { munmap(memory_, all_); }
  unsigned char* data() const { return data_; }

 private:
  size_t bytes_, all_;
  unsigned char *memory_, *data_;
};

}  // namespace fa3::test
