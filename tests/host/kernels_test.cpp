// What the library says about itself: versions, statuses, the kernels of the table and the choice among them.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>
#include <string>

#include "call.h"
#include "variant.h"

namespace fa3::test {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("versions are the header's", "[kernels]") {
  CHECK(fa3_version() == FA3_VERSION_MAJOR * 10000 + FA3_VERSION_MINOR * 100 + FA3_VERSION_PATCH);
  CHECK(fa3_abi_version() == FA3_ABI_VERSION);
  CHECK(std::string(FA3_PROJECT_VERSION) == std::to_string(FA3_VERSION_MAJOR) + "." +
                                                std::to_string(FA3_VERSION_MINOR) + "." +
                                                std::to_string(FA3_VERSION_PATCH));
  CHECK(std::string(FA3_SOVERSION) == std::to_string(FA3_ABI_VERSION));
}

TEST_CASE("every status has a text of its own", "[kernels]") {
  std::set<std::string> texts;
  for (int status = FA3_OK; status <= FA3_ERROR_OUT_OF_MEMORY; ++status)
    texts.insert(fa3_status_string(static_cast<fa3_status>(status)));
  CHECK(texts.size() == FA3_ERROR_OUT_OF_MEMORY + 1);
  CHECK(std::string(fa3_status_string(FA3_ERROR_INVALID_ARGUMENT)) == "invalid argument");
  CHECK(std::string(fa3_status_string(static_cast<fa3_status>(12))) == "unknown status");
}

TEST_CASE("the kernels are the rows of the table", "[kernels]") {
  REQUIRE(fa3_kernel_count() == variant_count);
  std::set<std::string> names;
  for (int row = 0; row < variant_count; ++row) {
    const Variant& v = variants[row];
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_kernel_info_at(row, &info) == FA3_OK);
    CHECK(std::string(info.name) == v.name);
    CHECK(info.dtype == (v.dtype == Dtype::bf16 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16));
    CHECK(info.head_dim == v.d);
    CHECK(info.causal == v.causal());
    CHECK(info.block_q == v.Br);
    CHECK(info.block_kv == v.Bc);
    CHECK(info.stages == v.stages);
    CHECK(info.threads == v.threads());
    CHECK(info.producer_registers == v.producer_registers());
    CHECK(info.consumer_registers == v.consumer_registers());
    CHECK(info.shared_memory_bytes == v.smem_bytes());
    CHECK(info.tiles == 0);
    CHECK(info.grid == 0);
    names.insert(info.name);
  }
  CHECK(names.size() == size_t(variant_count));
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  for (int row : {-1, variant_count, 1 << 30}) {
    CHECK(fa3_kernel_info_at(row, &info) == FA3_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(fa3_last_error_message(), ContainsSubstring("index is " + std::to_string(row)));
  }
}

TEST_CASE("a problem runs on the smallest kernel that holds it", "[kernels]") {
  for (int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16})
    for (int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
        Shape shape{.batch = 3, .seqlen_q = 1000, .seqlen_k = 77, .heads = 6, .heads_kv = 2, .head_dim = head_dim};
        fa3_forward_params p = describe(shape, dtype, nullptr, nullptr, nullptr, nullptr, nullptr);
        p.mask = mask;
        fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
        REQUIRE(fa3_forward_kernel_info(&p, &info) == FA3_OK);
        CHECK(info.dtype == dtype);
        CHECK(info.causal == (mask != FA3_MASK_NONE));
        CHECK(info.head_dim >= head_dim);
        for (const Variant& v : variants) {
          const bool same = (v.dtype == Dtype::bf16) == (dtype == FA3_DTYPE_BF16) && v.causal() == (info.causal == 1);
          if (same && v.d >= head_dim) CHECK(v.d >= info.head_dim);
        }
        CHECK(info.tiles == 3 * 6 * ((1000 + info.block_q - 1) / info.block_q));
      }
}

TEST_CASE("a problem without rows has no tiles", "[kernels]") {
  fa3_forward_params p = imaginary({.batch = 0});
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  REQUIRE(fa3_forward_kernel_info(&p, &info) == FA3_OK);
  CHECK(info.name[0] != '\0');
  CHECK(info.tiles == 0);
  CHECK(info.grid == 0);
}

}  // namespace fa3::test
