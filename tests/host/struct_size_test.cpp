// Structs that are shorter (an older client) or longer (a newer client) than this library's.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstddef>

#include "call.h"

namespace fa3::test {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("an older client's struct ends early, and what it lacks has its default", "[struct_size]") {
  // The bytes behind the old struct belong to someone else.
  fa3_forward_params p = imaginary();
  p.lse.rank = 77;
  p.mask = 99;
  p.softmax_scale = -1;
  p.struct_size = offsetof(fa3_forward_params, lse);
  CHECK(fa3_forward_check(&p) == FA3_OK);
  p.struct_size = offsetof(fa3_forward_params, mask);
  CHECK(fa3_forward_check(&p) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("lse.rank is 77"));
  p.lse.rank = 3;
  CHECK(fa3_forward_check(&p) == FA3_OK);
  p.mask = FA3_MASK_CAUSAL_TOP_LEFT;
  p.struct_size = offsetof(fa3_forward_params, softmax_scale);
  CHECK(fa3_forward_check(&p) == FA3_OK);
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  CHECK(fa3_forward_kernel_info(&p, 132, 0, &info) == FA3_OK);
  CHECK(info.causal == 1);

  // Before kernels had names to be called by; what follows the struct must not be taken for half of a pointer either.
  p.softmax_scale = 0;
  p.kernel = reinterpret_cast<const char*>(~uintptr_t{0});
  CHECK(offsetof(fa3_forward_params, kernel) == offsetof(fa3_forward_params, softmax_scale) + sizeof p.softmax_scale);
  for (size_t size = offsetof(fa3_forward_params, kernel); size < offsetof(fa3_forward_params, q_scale); ++size) {
    p.struct_size = size;
    CHECK(fa3_forward_check(&p) == FA3_OK);
    CHECK(fa3_forward_kernel_info(&p, 132, 0, &info) == FA3_OK);
  }
  p.struct_size = sizeof p;
  p.kernel = "none";
  CHECK(fa3_forward_check(&p) == FA3_ERROR_UNSUPPORTED);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("params->kernel is \"none\""));
}

TEST_CASE("a client older than FP8 has none of its tensors", "[struct_size]") {
  fa3_forward_params p = imaginary();
  fa3_tensor* const tensors[] = {&p.q_scale, &p.k_scale, &p.v_scale, &p.o_scale, &p.v_mean, &p.lse_offset};
  CHECK(offsetof(fa3_forward_params, q_scale) == 512);
  CHECK(sizeof p == 512 + 6 * sizeof(fa3_tensor));
  for (fa3_tensor* tensor : tensors) {
    p = imaginary();
    tensor->rank = 3;  // behind the old struct, someone else's
    p.struct_size = size_t(reinterpret_cast<char*>(tensor) - reinterpret_cast<char*>(&p));
    CHECK(fa3_forward_check(&p) == FA3_OK);
    p.struct_size += sizeof *tensor;
    CHECK(fa3_forward_check(&p) == FA3_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(fa3_last_error_message(), ContainsSubstring(".rank is 3, must be 0 (absent)"));
  }
  p = imaginary_e4m3();
  p.struct_size = offsetof(fa3_forward_params, q_scale);
  CHECK(fa3_forward_check(&p) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("q_scale is absent"));
}

TEST_CASE("a struct too short to name its tensors is refused", "[struct_size]") {
  fa3_forward_params p = imaginary();
  for (size_t size : {size_t{0}, size_t{1}, size_t{8}, offsetof(fa3_forward_params, o),
                      offsetof(fa3_forward_params, lse) - 1, size_t{4097}, SIZE_MAX}) {
    p.struct_size = size;
    CHECK(fa3_forward_check(&p) == FA3_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(fa3_last_error_message(),
               ContainsSubstring("params->struct_size is " + std::to_string(size) + ", must be the size"));
  }
}

TEST_CASE("a newer client's struct is accepted if what this version does not know is zero", "[struct_size]") {
  struct Newer {
    fa3_forward_params known;
    unsigned char unknown[4096 - sizeof(fa3_forward_params)];
  } p{};
  p.known = imaginary();
  p.known.struct_size = sizeof p;
  REQUIRE(sizeof p == 4096);  // the largest size that is read
  CHECK(fa3_forward_check(&p.known) == FA3_OK);
  for (size_t i : {size_t{0}, size_t{100}, sizeof p.unknown - 1}) {
    p.unknown[i] = 1;
    CHECK(fa3_forward_check(&p.known) == FA3_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(fa3_last_error_message(), ContainsSubstring("byte " + std::to_string(sizeof p.known + i) + " is set"));
    p.known.struct_size = sizeof p.known + i;
    CHECK(fa3_forward_check(&p.known) == FA3_OK);
    p.known.struct_size = sizeof p;
    p.unknown[i] = 0;
  }
}

TEST_CASE("no more of an info is written than the caller has", "[struct_size]") {
  struct {
    fa3_kernel_info info;
    unsigned char unknown[64];
  } newer{};
  fa3_kernel_info whole = FA3_KERNEL_INFO_INIT;
  REQUIRE(fa3_kernel_info_at(0, &whole) == FA3_OK);

  newer.info.struct_size = sizeof newer;
  CHECK(fa3_kernel_info_at(0, &newer.info) == FA3_OK);
  CHECK(newer.info.struct_size == sizeof newer);
  CHECK(std::memcmp(newer.info.name, whole.name, sizeof whole - offsetof(fa3_kernel_info, name)) == 0);

  for (size_t size = offsetof(fa3_kernel_info, kind); size <= sizeof whole; ++size) {
    fa3_kernel_info older;
    std::memset(&older, poison, sizeof older);
    older.struct_size = size;
    CHECK(fa3_kernel_info_at(0, &older) == FA3_OK);
    CHECK(older.struct_size == size);
    CHECK(std::memcmp(older.name, whole.name, size - offsetof(fa3_kernel_info, name)) == 0);
    for (size_t i = size; i < sizeof older; ++i) CHECK(reinterpret_cast<unsigned char*>(&older)[i] == poison);
  }

  fa3_kernel_info short_one;
  std::memset(&short_one, poison, sizeof short_one);
  short_one.struct_size = 8;
  CHECK(fa3_kernel_info_at(0, &short_one) == FA3_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(fa3_last_error_message(), ContainsSubstring("info->struct_size is 8"));
  CHECK(static_cast<unsigned char>(short_one.name[0]) == poison);
  newer.unknown[3] = 1;
  CHECK(fa3_kernel_info_at(0, &newer.info) == FA3_ERROR_INVALID_ARGUMENT);
}

}  // namespace fa3::test
