// Random parameter bytes: a check never crashes, answers the same twice, and explains every refusal.
#include <catch2/catch_test_macros.hpp>
#include <array>
#include <random>
#include <string>

#include "call.h"
#include "row.h"

namespace fa3::test {
namespace {

// As large as the largest struct_size that is read.
union Bytes {
  std::array<unsigned char, 4096> bytes;
  fa3_forward_params params;
};

int64_t odd_number(std::mt19937_64& random) {
  constexpr int64_t small[] = {0, 1, 2, 3, 7, 8, 16, 64, 128, 256, -1, -8, 1 << 20};
  constexpr int64_t large[] = {INT32_MAX, INT32_MIN, 1LL << 31, 1LL << 32, 1LL << 39, 1LL << 40, INT64_MAX, INT64_MIN};
  const int64_t near = random() % 3 ? small[random() % std::size(small)] : large[random() % std::size(large)];
  return random() % 4 ? near : static_cast<int64_t>(static_cast<uint64_t>(near) + random() % 17 - 8);
}

// The one pointer that is followed: some row's name, another text, or none.
const char* any_kernel(std::mt19937_64& random) {
  switch (random() % 4) {
    case 0: return "";
    case 1: return "no such kernel, and a text that is longer than any name of a kernel can be, or a message need show";
    case 2: return nullptr;
    default: return rows[random() % row_count].name;
  }
}

void mutate(fa3_tensor& t, std::mt19937_64& random) {
  switch (random() % 5) {
    case 0: t.dim[random() % FA3_MAX_RANK] = odd_number(random); break;
    case 1:
      for (int64_t& s : t.stride) s = random() % 2 ? odd_number(random) : 8 << random() % 30;
      t.stride[3] = random() % 4 ? 1 : odd_number(random);
      break;
    case 2: t.data = reinterpret_cast<void*>(random() % 4 ? random() & ~15ull : random()); break;
    case 3: t.dtype = static_cast<int32_t>(random() % 3 ? random() % 6 : odd_number(random)); break;
    case 4: t.rank = static_cast<int32_t>(random() % 3 ? random() % 7 : odd_number(random)); break;
  }
}

void mutate(fa3_forward_params& p, std::mt19937_64& random) {
  fa3_tensor* const tensors[] = {&p.q,       &p.k,       &p.v,       &p.o,      &p.lse,       &p.q_scale,
                                 &p.k_scale, &p.v_scale, &p.o_scale, &p.v_mean, &p.lse_offset};
  switch (random() % 10) {
    case 0: p.struct_size = random() % 2 ? static_cast<size_t>(odd_number(random)) : random() % 5000; break;
    case 1: p.flags = random() % 8; break;
    case 2: p.mask = static_cast<int32_t>(random() % 5) - 1; break;
    case 3: p.softmax_scale = static_cast<float>(odd_number(random)); break;
    case 4: {  // the same dim of all, so that shapes stay consistent
      const int i = random() % 4;
      const int64_t n = odd_number(random);
      for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o}) t->dim[i] = n;
      break;
    }
    case 5: {
      const int64_t n = random() % 4 ? odd_number(random) : 8 << random() % 6;
      for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o}) t->dim[3] = n;
      break;
    }
    case 6: p.kernel = any_kernel(random); break;
    default: mutate(*tensors[random() % (p.q_scale.rank ? std::size(tensors) : 5)], random);
  }
}

void probe(const Bytes& input, std::mt19937_64& random, size_t& accepted) {
  const fa3_status status = fa3_forward_check(&input.params);
  const std::string message = fa3_last_error_message();
  if ((status == FA3_OK) != message.empty()) FAIL("status " << status << " with message '" << message << "'");
  if (fa3_forward_check(&input.params) != status || message != fa3_last_error_message()) FAIL("two answers");
  if (status != FA3_OK && status != FA3_ERROR_INVALID_ARGUMENT && status != FA3_ERROR_UNSUPPORTED)
    FAIL("status " << status);
  size_t bytes = 0;
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  const int32_t multiprocessors = random() % 2 ? 132 : 1 + static_cast<int32_t>(random() % 1024);
  const fa3_status shape = fa3_forward_workspace_size(&input.params, multiprocessors, &bytes);
  if (fa3_forward_kernel_info(&input.params, multiprocessors, 0, &info) != shape) FAIL("info and workspace disagree");
  if (shape == FA3_OK) {
    // The header's bound; the few KB are 64 bytes for each multiprocessor.
    const size_t rows = size_t(3) * multiprocessors * info.block_q, few_kilobytes = 64 * (size_t(multiprocessors) + 2);
    if (bytes < FA3_FORWARD_WORKSPACE_BYTES || bytes > rows * 4 * (info.head_dim_v + 8) + few_kilobytes)
      FAIL(info.name << " takes " << bytes << " bytes on " << multiprocessors << " multiprocessors");
    if (info.pieces < info.tiles || info.grid > multiprocessors || info.launches != (info.grid > 0)) FAIL("info");
  }
  if (status == FA3_OK && shape != FA3_OK) FAIL("accepted, but without a workspace size");
  // That a build has no kernel for it is no fault of the arguments.
  accepted += status == FA3_OK || message.starts_with("no kernel of this build");
}

}  // namespace

TEST_CASE("random bytes", "[fuzz]") {
  std::mt19937_64 random(20240711);
  size_t accepted = 0;
  Bytes input;
  for (int n = 0; n < 30000; ++n) {
    for (size_t i = 0; i < sizeof(fa3_forward_params) + 64; ++i) input.bytes[i] = static_cast<unsigned char>(random());
    input.params.struct_size = n % 3 ? sizeof(fa3_forward_params) : random();
    input.params.kernel = any_kernel(random);
    probe(input, random, accepted);
  }
  CHECK(accepted == 0);
}

TEST_CASE("mutations of good parameters", "[fuzz]") {
  std::mt19937_64 random(1);
  size_t accepted = 0;
  constexpr int rounds = 200000;
  Bytes input{};
  for (int n = 0; n < rounds; ++n) {
    input.params = imaginary();
    for (int changes = random() % 4; changes >= 0; --changes) mutate(input.params, random);
    probe(input, random, accepted);
  }
  // The mutations reach both sides.
  CHECK(accepted > rounds / 50);
  CHECK(accepted < rounds / 2);
}

TEST_CASE("mutations of good FP8 parameters", "[fuzz]") {
  std::mt19937_64 random(2);
  size_t accepted = 0;
  constexpr int rounds = 200000;
  Bytes input{};
  for (int n = 0; n < rounds; ++n) {
    fa3_forward_params& p = input.params;
    p = imaginary_e4m3();
    const auto at = [](uintptr_t place) { return reinterpret_cast<void*>(place << 42); };
    if (random() % 2) p.v = tensor(at(3), FA3_DTYPE_E4M3, {2, 2, 19, 32, 16});
    if (random() % 2) p.o.dtype = FA3_DTYPE_E4M3, p.o_scale = tensor(at(9), FA3_DTYPE_FP32, {1});
    if (random() % 2) p.v_mean = tensor(at(10), FA3_DTYPE_FP32, {2, 2, 32});
    if (random() % 2) p.lse_offset = tensor(at(11), FA3_DTYPE_FP32, {2, 4, 130});
    for (int changes = random() % 4; changes >= 0; --changes) mutate(p, random);
    probe(input, random, accepted);
  }
  CHECK(accepted > rounds / 50);
  CHECK(accepted < rounds / 2);
}

}  // namespace fa3::test
