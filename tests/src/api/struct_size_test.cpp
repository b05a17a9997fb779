// Structs that are shorter (an older client) or longer (a newer client) than this library's.
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cstddef>

#include "../imaginary.h"
#include "../refused.h"

namespace fa3::test {

namespace {

// So many bytes, and then no memory: whoever reads or writes on is caught.
class LastBytes {
 public:
  explicit LastBytes(size_t bytes) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))), bytes_(bytes) {
    REQUIRE(bytes <= page_);
    pages_ = mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages_ != MAP_FAILED);
    REQUIRE(mprotect(static_cast<char*>(pages_) + page_, page_, PROT_NONE) == 0);
  }
  ~LastBytes() { munmap(pages_, 2 * page_); }
  LastBytes(const LastBytes&) = delete;
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(static_cast<char*>(pages_) + page_ - bytes_);
  }
  // The struct as far as it fits, then zeros.
  template <class Params>
  void copy(Params p, size_t struct_size) {
    p.struct_size = struct_size;
    std::memcpy(as<void>(), &p, std::min(bytes_, sizeof p));
  }

 private:
  size_t page_, bytes_;
  void* pages_;
};

fa3_status check(const fa3_forward_params* p) { return fa3_forward_check(p); }
fa3_status check(const fa3_backward_params* p) { return fa3_backward_check(p); }
fa3_status check(const fa3_quantize_params* p) { return fa3_quantize_check(p); }
fa3_status check(const fa3_append_params* p) { return fa3_append_check(p); }
fa3_status check(const fa3_combine_params* p) { return fa3_combine_check(p); }

// Where each field ends that a client need not have, behind those that it needs.
template <class Params>
std::vector<size_t> ends(std::initializer_list<size_t> offsets) {
  std::vector<size_t> all(offsets);
  all.push_back(sizeof(Params));
  return all;
}
std::vector<size_t> ends_of(const fa3_forward_params&) {
  using P = fa3_forward_params;
  return ends<P>({offsetof(P, lse), offsetof(P, mask), offsetof(P, softmax_scale), offsetof(P, kernel),
                  offsetof(P, q_scale), offsetof(P, k_scale), offsetof(P, v_scale), offsetof(P, o_scale),
                  offsetof(P, v_mean), offsetof(P, lse_offset), offsetof(P, window_left), offsetof(P, window_right),
                  offsetof(P, max_seqlen_q), offsetof(P, max_seqlen_k), offsetof(P, sinks), offsetof(P, cu_seqlens_q),
                  offsetof(P, cu_seqlens_k), offsetof(P, seqused_q), offsetof(P, seqused_k), offsetof(P, leftpad_k),
                  offsetof(P, page_table), offsetof(P, cache_batch_idx), offsetof(P, schedule),
                  offsetof(P, schedule_bytes), offsetof(P, softcap), offsetof(P, reserved), offsetof(P, alibi_slopes),
                  offsetof(P, qv)});
}
std::vector<size_t> ends_of(const fa3_backward_params&) {
  using P = fa3_backward_params;
  return ends<P>({offsetof(P, mask), offsetof(P, softmax_scale), offsetof(P, kernel), offsetof(P, dlse),
                  offsetof(P, window_left), offsetof(P, window_right), offsetof(P, sinks), offsetof(P, dsinks),
                  offsetof(P, cu_seqlens_q), offsetof(P, cu_seqlens_k), offsetof(P, seqused_q), offsetof(P, seqused_k),
                  offsetof(P, max_seqlen_q), offsetof(P, max_seqlen_k), offsetof(P, softcap), offsetof(P, reserved),
                  offsetof(P, alibi_slopes)});
}
std::vector<size_t> ends_of(const fa3_quantize_params&) {
  using P = fa3_quantize_params;
  // Cosines without sines, or k_mean without lse_offset, are an error of the arguments.
  return ends<P>({offsetof(P, mean), offsetof(P, rotary_cos), offsetof(P, k_mean), offsetof(P, softmax_scale),
                  offsetof(P, reserved)});
}
std::vector<size_t> ends_of(const fa3_append_params&) {
  using P = fa3_append_params;
  // So are Q without its output and cosines without sines.
  return ends<P>({offsetof(P, cu_seqlens_new), offsetof(P, seqused_new), offsetof(P, page_table),
                  offsetof(P, cache_batch_idx), offsetof(P, slot_mapping), offsetof(P, q), offsetof(P, rotary_cos),
                  offsetof(P, rotary_positions), offsetof(P, k_scale), offsetof(P, v_scale), offsetof(P, q_scale)});
}
std::vector<size_t> ends_of(const fa3_combine_params&) {
  return ends<fa3_combine_params>({offsetof(fa3_combine_params, lse)});
}

}  // namespace

TEST_CASE("an older client's struct ends early, and what it lacks has its default", "[struct_size]") {
  // The bytes behind the old struct belong to someone else.
  fa3_forward_params p = imaginary();
  p.lse.rank = 77;
  p.mask = 99;
  p.softmax_scale = -1;
  p.struct_size = offsetof(fa3_forward_params, lse);
  CHECK(fa3_forward_check(&p) == FA3_OK);
  p.struct_size = offsetof(fa3_forward_params, mask);
  expect(fa3_forward_check(&p), FA3_ERROR_INVALID_ARGUMENT, "lse.rank is 77");
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
  p.kernel = "none";
  for (size_t size : {offsetof(fa3_forward_params, q_scale), sizeof p}) {
    p.struct_size = size;
    expect(fa3_forward_check(&p), FA3_ERROR_UNSUPPORTED, "params->kernel is \"none\"");
  }
}

TEST_CASE("half a kernel's name is none in the backward pass, too", "[struct_size]") {
  fa3_backward_params p = imaginary_params<fa3_backward_params>();
  p.kernel = reinterpret_cast<const char*>(~uintptr_t{0});
  for (p.struct_size = offsetof(fa3_backward_params, kernel); p.struct_size < offsetof(fa3_backward_params, dlse);
       ++p.struct_size)
    CHECK(fa3_backward_check(&p) == FA3_OK);
  p.kernel = "none";
  CHECK(fa3_backward_check(&p) == FA3_ERROR_UNSUPPORTED);
}

TEST_CASE("a client older than FP8 has none of its tensors", "[struct_size]") {
  fa3_forward_params p = imaginary();
  fa3_tensor* const tensors[] = {&p.q_scale, &p.k_scale, &p.v_scale, &p.o_scale, &p.v_mean, &p.lse_offset};
  CHECK(offsetof(fa3_forward_params, q_scale) == 512);
  CHECK(offsetof(fa3_forward_params, window_left) == 512 + 6 * sizeof(fa3_tensor));
  for (fa3_tensor* tensor : tensors) {
    p = imaginary();
    tensor->rank = 3;  // behind the old struct, someone else's
    p.struct_size = size_t(reinterpret_cast<char*>(tensor) - reinterpret_cast<char*>(&p));
    CHECK(fa3_forward_check(&p) == FA3_OK);
    p.struct_size += sizeof *tensor;
    expect(fa3_forward_check(&p), FA3_ERROR_INVALID_ARGUMENT, ".rank is 3, must be 0 (absent)");
  }
  p = imaginary_e4m3();
  p.struct_size = offsetof(fa3_forward_params, q_scale);
  expect(fa3_forward_check(&p), FA3_ERROR_INVALID_ARGUMENT, "q_scale is absent");
}

TEST_CASE("a client older than lengths, windows and sinks has none of them", "[struct_size]") {
  using P = fa3_forward_params;
  P p = imaginary();
  CHECK(offsetof(P, sinks) == offsetof(P, window_left) + 4 * sizeof(int32_t));
  CHECK(offsetof(P, schedule) == offsetof(P, sinks) + 8 * sizeof(fa3_tensor));
  CHECK(offsetof(P, softcap) == offsetof(P, schedule) + sizeof p.schedule + sizeof p.schedule_bytes);
  CHECK(offsetof(P, alibi_slopes) == offsetof(P, softcap) + sizeof p.softcap + sizeof p.reserved);
  CHECK(offsetof(P, qv) == offsetof(P, alibi_slopes) + sizeof p.alibi_slopes);
  CHECK(sizeof p == offsetof(P, qv) + sizeof p.qv);
  // What lies behind its struct is someone else's, and would be refused.
  const auto set = [&](size_t from) { std::memset(reinterpret_cast<char*>(&p) + from, 0x55, sizeof p - from); };
  for (const size_t size : {offsetof(P, window_left), offsetof(P, sinks), offsetof(P, cu_seqlens_q),
                            offsetof(P, page_table), offsetof(P, schedule), offsetof(P, softcap),
                            offsetof(P, alibi_slopes), offsetof(P, qv)}) {
    INFO(size << " bytes");
    p = imaginary();
    set(size);
    p.struct_size = size;
    CHECK(fa3_forward_check(&p) == FA3_OK);
    p.struct_size = sizeof p;
    CHECK(fa3_forward_check(&p) != FA3_OK);
  }
  // Half of a schedule is none, and half of a softcap.
  for (const auto& [from, end] : {std::pair{offsetof(P, schedule), offsetof(P, softcap)},
                                  {offsetof(P, softcap), offsetof(P, alibi_slopes)}}) {
    p = imaginary();
    set(from);
    for (p.struct_size = from; p.struct_size < end; ++p.struct_size) CHECK(fa3_forward_check(&p) == FA3_OK);
  }
}

TEST_CASE("a client older than the backward pass of lengths, windows and sinks has none of them", "[struct_size]") {
  using P = fa3_backward_params;
  CHECK(offsetof(P, sinks) == offsetof(P, window_left) + 2 * sizeof(int32_t));
  CHECK(offsetof(P, max_seqlen_q) == offsetof(P, sinks) + 6 * sizeof(fa3_tensor));
  CHECK(offsetof(P, softcap) == offsetof(P, max_seqlen_q) + 2 * sizeof(int32_t));
  CHECK(offsetof(P, alibi_slopes) == offsetof(P, softcap) + sizeof(float) + sizeof(int32_t));
  CHECK(offsetof(P, q_scale) == offsetof(P, alibi_slopes) + sizeof(fa3_tensor));
  CHECK(sizeof(P) == offsetof(P, q_scale) + 5 * sizeof(fa3_tensor));
  for (const size_t size : {offsetof(P, window_left), offsetof(P, sinks), offsetof(P, dsinks),
                            offsetof(P, cu_seqlens_q), offsetof(P, seqused_k), offsetof(P, max_seqlen_q),
                            offsetof(P, softcap), offsetof(P, alibi_slopes), offsetof(P, q_scale),
                            offsetof(P, v_mean)}) {
    INFO(size << " bytes");
    P p = imaginary_params<P>();
    std::memset(reinterpret_cast<char*>(&p) + size, 0x55, sizeof p - size);
    p.struct_size = size;
    CHECK(fa3_backward_check(&p) == FA3_OK);
    p.struct_size = sizeof p;
    CHECK(fa3_backward_check(&p) == FA3_ERROR_INVALID_ARGUMENT);
  }
  // Half of a softcap is none: no kernel for softcap runs.
  P p = imaginary_params<P>();
  const auto kernel = [&] {
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_backward_kernel_info(&p, 132, 0, &info) == FA3_OK);
    return std::string(info.name);
  };
  const std::string right = kernel();
  std::memset(reinterpret_cast<char*>(&p) + offsetof(P, softcap), 0x55, sizeof p - offsetof(P, softcap));
  for (p.struct_size = offsetof(P, softcap); p.struct_size < offsetof(P, alibi_slopes); ++p.struct_size)
    CHECK(kernel() == right);
  p.reserved = 0, p.struct_size = offsetof(P, alibi_slopes);
  CHECK(kernel() != right);
}

TEMPLATE_TEST_CASE("structs of every size end where their struct_size says", "[struct_size]", fa3_forward_params,
                   fa3_backward_params, fa3_quantize_params, fa3_append_params, fa3_combine_params) {
  const TestType p = imaginary_params<TestType>();
  const std::vector<size_t> ends = ends_of(p);
  const size_t minimum = ends.front(), known = sizeof p;
  CHECK(ends.back() == known);

  // An older client's, wherever it ends: what it lacks has its default, and what lies there is not read.
  for (size_t size = minimum; size <= known; ++size) {
    LastBytes bytes(size);
    bytes.copy(p, size);
    const fa3_status status = check(bytes.as<TestType>());
    const bool ends_with_a_field = std::find(ends.begin(), ends.end(), size) != ends.end();
    if (ends_with_a_field ? status != FA3_OK : status != FA3_OK && status != FA3_ERROR_INVALID_ARGUMENT)
      FAIL(size << " bytes: " << fa3_last_error_message());
  }
  for (size_t size : {size_t{0}, size_t{1}, size_t{8}, minimum - 1, size_t{4097}, SIZE_MAX}) {
    LastBytes bytes(std::clamp(size, sizeof size, known));
    bytes.copy(p, size);
    expect(check(bytes.as<TestType>()), FA3_ERROR_INVALID_ARGUMENT,
           "params->struct_size is " + std::to_string(size) + ", must be the size");
  }

  // A newer client's is accepted if what this version does not know is zero.
  for (size_t size : {known + 1, known + 8, known + 100, size_t{4096}}) {  // the largest size that is read
    LastBytes bytes(size);
    bytes.copy(p, size);
    CHECK(check(bytes.as<TestType>()) == FA3_OK);
    for (size_t at : {known, (known + size) / 2, size - 1}) {
      bytes.as<unsigned char>()[at] = 1;
      expect(check(bytes.as<TestType>()), FA3_ERROR_INVALID_ARGUMENT, "byte " + std::to_string(at) + " is set");
      bytes.as<unsigned char>()[at] = 0;
    }
  }
}

TEST_CASE("what the initialisers say", "[struct_size]") {
  const auto is_zero_but_for_its_size = [](auto initialised) {
    if (initialised.struct_size != sizeof initialised) return false;
    initialised.struct_size = 0;
    const decltype(initialised) zero{};
    return std::memcmp(&initialised, &zero, sizeof zero) == 0;
  };
  CHECK(is_zero_but_for_its_size(fa3_forward_params(FA3_FORWARD_PARAMS_INIT)));
  CHECK(is_zero_but_for_its_size(fa3_backward_params(FA3_BACKWARD_PARAMS_INIT)));
  CHECK(is_zero_but_for_its_size(fa3_quantize_params(FA3_QUANTIZE_PARAMS_INIT)));
  CHECK(is_zero_but_for_its_size(fa3_append_params(FA3_APPEND_PARAMS_INIT)));
  CHECK(is_zero_but_for_its_size(fa3_combine_params(FA3_COMBINE_PARAMS_INIT)));
  CHECK(is_zero_but_for_its_size(fa3_kernel_info(FA3_KERNEL_INFO_INIT)));
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
    LastBytes bytes(size);
    bytes.copy(fa3_kernel_info{}, size);
    CHECK(fa3_kernel_info_at(0, bytes.as<fa3_kernel_info>()) == FA3_OK);
    fa3_kernel_info older{};  // where it lies it may be at any address
    std::memcpy(static_cast<void*>(&older), bytes.as<char>(), size);
    CHECK(older.struct_size == size);
    CHECK(std::memcmp(older.name, whole.name, size - offsetof(fa3_kernel_info, name)) == 0);
  }

  fa3_kernel_info short_one;
  std::memset(&short_one, poison, sizeof short_one);
  short_one.struct_size = 8;
  expect(fa3_kernel_info_at(0, &short_one), FA3_ERROR_INVALID_ARGUMENT, "info->struct_size is 8");
  CHECK(static_cast<unsigned char>(short_one.name[0]) == poison);
  newer.unknown[3] = 1;
  CHECK(fa3_kernel_info_at(0, &newer.info) == FA3_ERROR_INVALID_ARGUMENT);
}

}  // namespace fa3::test
