// What the library says about itself: versions, statuses, the kernels of the table and the choice among them.
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "../refused.h"
#include "../row_call.h"

namespace fa3::test {

using Catch::Matchers::ContainsSubstring;

namespace {

Shape shape_of(int64_t head_dim, int64_t head_dim_v) {
  return {.batch = 3, .seqlen_q = 1000, .seqlen_k = 77, .heads = 6, .heads_kv = 2, .head_dim = head_dim,
          .head_dim_v = head_dim_v};
}
Shape shape_of(const ForwardRow& v) { return shape_of(v.d, v.dv); }

// A problem that fits this row, with the given head dimensions, and without any data.
fa3_forward_params fitting(const ForwardRow& v, int64_t head_dim, int64_t head_dim_v) {
  fa3_forward_params p = imaginary_for(v, shape_of(head_dim, head_dim_v));
  for (fa3_tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse, &p.q_scale, &p.k_scale, &p.v_scale}) t->data = nullptr;
  return p;
}

// The name alone, behind which the next read would fault.
class EndOfMemory {
 public:
  explicit EndOfMemory(const std::string& text, bool terminated) {
    page_ = static_cast<char*>(mmap(nullptr, 2 * size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(page_ + size_, size_, PROT_NONE);
    const size_t bytes = text.size() + terminated;
    at_ = page_ + size_ - bytes;
    std::memcpy(page_ + size_ - bytes, text.c_str(), bytes);
  }
  ~EndOfMemory() { munmap(page_, 2 * size_); }
  EndOfMemory(const EndOfMemory&) = delete;
  EndOfMemory& operator=(const EndOfMemory&) = delete;
  const char* text() const { return at_; }

 private:
  size_t size_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* page_;
  const char* at_;
};

}  // namespace

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
  REQUIRE(fa3_kernel_count() == row_count);
  std::set<std::string> names;
  for (int row = 0; row < row_count; ++row) {
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    REQUIRE(fa3_kernel_info_at(row, &info) == FA3_OK);
    CHECK(std::string(info.name) == rows[row].name);
    CHECK(rows[row].number == row);
    const auto check_any = [&](const auto& v) {
      CHECK((std::string(info.name) == v.name && info.head_dim == v.d));
      CHECK((info.threads == v.threads() && info.threads == rows[row].threads));
      CHECK((info.shared_memory_bytes == v.smem_bytes() && info.shared_memory_bytes == rows[row].smem_bytes));
      CHECK(info.chosen == rows[row].chosen);
    };
    const auto check_tiled = [&](const auto& v) {
      check_any(v);
      CHECK((info.dtype == dtype_of(v) && info.head_dim_v == v.dv && info.causal == v.causal()));
      CHECK((info.block_q == v.Br && info.block_kv == v.Bc && info.stages == v.stages));
      CHECK((info.producer_registers == v.producer_registers() && info.consumer_registers == v.consumer_registers()));
      CHECK(info.chosen == v.has(Trait::chosen));
    };
    if (const ForwardRow* forward = rows[row].forward()) {
      const ForwardRow& v = *forward;
      CHECK(info.kind == FA3_KERNEL_FORWARD);
      check_tiled(v);
      // A warpgroup for each 64 rows of the thread block, or two that take turns at the keys or have half of O's
      // columns each, and a producer; a second one where K and V are widened for up to two, or a latent cache is. Two
      // warpgroups have registers enough; of more, the producer gives its to the consumers: as many as the machine has.
      const int row_warpgroups = v.has(Trait::shares_keys) || v.has(Trait::eight_warps) || v.halves_columns() ? 2 : 1;
      const int warpgroups = row_warpgroups * info.block_q / 64 / v.cluster_blocks();
      const bool widens = (v.widens() && warpgroups <= 2) || v.widens_latent();
      const int producers = v.has(Trait::no_producer) ? 0 : widens ? 2 : 1;
      const int registers = producers * info.producer_registers + warpgroups * info.consumer_registers;
      CHECK(info.threads == 128 * (warpgroups + producers));
      const bool moved = warpgroups + producers > 2;
      CHECK(((info.producer_registers > 0) == moved && (info.consumer_registers > 0) == moved));
      const int launched = 65536 / info.threads / 8 * 8 * (warpgroups + producers);
      if (moved) CHECK((registers <= launched && (v.widens() || registers + 8 * warpgroups > launched)));
    } else if (const BackwardRow* backward = rows[row].backward()) {
      const BackwardRow& v = *backward;
      CHECK(info.kind == FA3_KERNEL_BACKWARD);
      check_tiled(v);
      // A consumer warpgroup for each 64 keys, one for dQ, and a producer. Of two kernels that share the work, each has
      // two consumer warpgroups and a producer.
      CHECK(info.threads == (v.takes_several_blocks() ? 128 * (info.block_kv / 64 + 2) : 384));
      CHECK((v.dq_registers() > 0) == v.takes_several_blocks());
      CHECK(info.producer_registers + v.dq_registers() + v.warpgroups() * info.consumer_registers <=
            65536 / info.threads / 8 * 8 * (info.threads / 128));
    } else {
      const PassRow& v = *rows[row].pass();
      CHECK((info.kind == FA3_KERNEL_PASS && info.dtype == FA3_DTYPE_NONE && info.chosen == 1));
      check_any(v);
      CHECK((info.threads == v.pass_threads && info.shared_memory_bytes == v.pass_bytes));
      CHECK((info.head_dim_v == 0 && info.causal == 0 && info.block_q == 0 && info.block_kv == 0 && info.stages == 0));
      CHECK((info.producer_registers == 0 && info.consumer_registers == 0));
    }
    CHECK(info.tiles == 0);
    CHECK(info.grid == 0);
    names.insert(info.name);
  }
  CHECK(names.size() == size_t(row_count));
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  for (int row : {-1, row_count, 1 << 30}) {
    expect(fa3_kernel_info_at(row, &info), FA3_ERROR_INVALID_ARGUMENT, "index is " + std::to_string(row));
  }
}

TEST_CASE("setmaxnreg has no more registers to move than a launch has", "[kernels]") {
  // 168 for each of 384 threads, not a third of 512: those that ask for 512 in all would wait for ever.
  CHECK(launched_registers(384) == 504);
  CHECK(launched_registers(512) == 512);
  CHECK(launched_registers(640) == 480);
  for (const ForwardRow& v : forward_rows) {
    INFO(v.name);
    CHECK(v.moved_registers() <= launched_registers(v.threads()));
    CHECK((v.moved_registers() > 0) == v.moves_registers());
  }
  for (const BackwardRow& v : backward_rows) {
    INFO(v.name);
    CHECK((v.moved_registers() > 0 && v.moved_registers() <= launched_registers(v.threads())));
  }
}

TEST_CASE("a problem runs on the smallest kernel that holds it", "[kernels]") {
  for (int32_t dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16})
    for (int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
      for (int64_t n = 0; n < 32 * 32; ++n) {
        const int64_t head_dim = 8 + n % 32 * 8, head_dim_v = 8 + n / 32 * 8;
        const Shape shape = shape_of(head_dim, head_dim_v);
        fa3_forward_params p = describe(shape, dtype, nullptr, nullptr, nullptr, nullptr, nullptr);
        p.mask = mask;
        fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
        REQUIRE(fa3_forward_kernel_info(&p, 132, 0, &info) == FA3_OK);
        CHECK(info.dtype == dtype);
        CHECK(info.causal == (mask != FA3_MASK_NONE));
        CHECK((info.head_dim >= head_dim && info.head_dim_v >= head_dim_v));
        CHECK(info.chosen == 1);
        for (const ForwardRow& v : forward_rows) {
          if (!v.has(Trait::chosen) || v.has(Trait::planned)) continue;
          const bool same = dtype_of(v) == dtype && v.causal() == (info.causal == 1);
          if (same && v.d >= head_dim && v.dv >= head_dim_v) CHECK(v.d + v.dv >= info.head_dim + info.head_dim_v);
        }
        // With the diagonal at the end, 77 of the 1000 rows see a key.
        const int rows = mask == FA3_MASK_CAUSAL_BOTTOM_RIGHT ? 77 : 1000;
        CHECK(info.tiles == 3 * 6 * ((rows + info.block_q - 1) / info.block_q));
      }
}

TEST_CASE("a named kernel runs what fits it", "[kernels]") {
  for (const ForwardRow& v : forward_rows) {
    INFO(v.name);
    const std::string name = v.name;  // a text like any other: no address is compared
    const int64_t unit = head_dim_unit(v);
    for (int64_t head_dim = unit; head_dim <= v.d; head_dim += unit) {
      const int64_t head_dim_v = head_dim % (3 * unit) == 0 ? v.dv : std::min<int64_t>(head_dim, v.dv);
      fa3_forward_params p = fitting(v, head_dim, head_dim_v);
      p.kernel = name.c_str();
      fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
      size_t bytes = 0;
      const bool planned = v.has(Trait::planned);
      const int passes = planned + v.takes_copies();  // before it: one that plans, one that makes copies
      REQUIRE(fa3_forward_kernel_info(&p, 132, passes, &info) == FA3_OK);
      CHECK(info.name == name);
      CHECK(info.launches == passes + 1);
      CHECK((info.head_dim == v.d && info.head_dim_v == v.dv));
      CHECK(info.threads == v.threads());
      CHECK(info.producer_registers == v.producer_registers());
      CHECK(info.consumer_registers == v.consumer_registers());
      CHECK(info.shared_memory_bytes == v.smem_bytes());
      const int rows = v.causal() && !v.has(Trait::no_producer) ? 77 : 1000;
      if (!v.packs_heads()) CHECK(info.tiles == 3 * 6 * ((rows + v.Br - 1) / v.Br));
      CHECK(fa3_forward_workspace_size(&p, 132, &bytes) == FA3_OK);
      if (planned) CHECK(bytes > FA3_FORWARD_WORKSPACE_BYTES + size_t(info.pieces / 6) * 64);
      else CHECK(bytes == FA3_FORWARD_WORKSPACE_BYTES);
    }
  }
}

TEST_CASE("a named kernel that does not fit is refused, and the message says what does not", "[kernels]") {
  const auto refused = [](const fa3_forward_params& p, fa3_forward_params imagined, const std::string& why) {
    fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
    size_t bytes = 0;
    const auto message = ContainsSubstring("params->kernel is " + std::string(p.kernel) + ", which is for " + why);
    CHECK(fa3_forward_kernel_info(&p, 132, 0, &info) == FA3_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(fa3_last_error_message(), message);
    CHECK(info.name[0] == '\0');
    CHECK(fa3_forward_workspace_size(&p, 132, &bytes) == FA3_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(fa3_last_error_message(), message);
    imagined.mask = p.mask, imagined.kernel = p.kernel;
    imagined.window_left = p.window_left, imagined.window_right = p.window_right;
    CHECK(fa3_forward_check(&imagined) == FA3_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(fa3_last_error_message(), message);
    CHECK(fa3_forward(&imagined, reinterpret_cast<void*>(64), 64, nullptr) == FA3_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(fa3_last_error_message(), message);
  };
  for (const ForwardRow& v : forward_rows) {
    fa3_forward_params p = fitting(v, v.d, v.dv);
    p.kernel = v.name;
    const int32_t mask = p.mask;
    for (int32_t wrong : {FA3_MASK_NONE, FA3_MASK_CAUSAL_TOP_LEFT, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
      if ((wrong == FA3_MASK_NONE) == (mask == FA3_MASK_NONE) && !v.has(Trait::planned)) continue;
      // What makes it planned is still there.
      if (v.transforms_scores() || v.halves_columns() || v.has_wide_q() || v.stores_fp32()) continue;
      p.mask = wrong, p.window_left = p.window_right = 0;
      refused(p, imaginary_for(v, shape_of(v)),
              v.has(Trait::planned) ? "calls with lengths of their own, pages, windows, sinks, softcap, alib"
              : v.causal()              ? "a causal mask; mask is FA3_MASK_NONE"
                                        : "no mask; mask is causal");
    }
    if (!v.has(Trait::planned) && !v.is_8bit()) {
      p.mask = FA3_MASK_WINDOW, p.window_left = 5, p.window_right = 0;
      refused(p, imaginary_for(v, shape_of(v)), "calls without lengths of their own, pages, windows, sinks, softcap");
    }
    const int32_t other = v.dtype == Dtype::bf16 ? FA3_DTYPE_FP16 : FA3_DTYPE_BF16;
    p = describe(shape_of(v), other, nullptr, nullptr, nullptr, nullptr, nullptr);
    p.mask = mask, p.kernel = v.name;
    if (mask == FA3_MASK_WINDOW) p.window_left = 5;
    const char* const names[] = {"bf16; q.dtype is fp16", "fp16; q.dtype is bf16", "e4m3; q.dtype is bf16"};
    refused(p, imaginary(shape_of(v), other), names[static_cast<int>(v.dtype)]);
    if (v.d < 256 && !v.has(Trait::qv)) {
      const int64_t larger = v.d + head_dim_unit(v);
      p = fitting(v, larger, v.dv);
      p.kernel = v.name;
      refused(p, imaginary_for(v, shape_of(larger, v.dv)),
              "head_dim up to " + std::to_string(v.d) + "; q.dim[3] (head_dim) is " + std::to_string(larger));
    }
    if (v.dv < 256) {
      const int64_t larger = v.dv + head_dim_unit(v);
      p = fitting(v, v.d, larger);
      p.kernel = v.name;
      refused(p, imaginary_for(v, shape_of(v.d, larger)),
              "head_dim_v up to " + std::to_string(v.dv) + "; v.dim[3] (head_dim_v) is " + std::to_string(larger));
    }
  }
  for (const Row& v : rows) {
    if (v.kind == Kind::forward) continue;
    fa3_forward_params p = imaginary();
    p.kernel = v.name;
    CHECK(fa3_forward_check(&p) == FA3_ERROR_INVALID_ARGUMENT);
    CHECK(fa3_last_error_message() == "params->kernel is " + std::string(v.name) + ", which is no forward kernel");
  }
}

TEST_CASE("a named kernel that packs heads refuses more rows than it can count", "[kernels]") {
  fa3_forward_params p =
      imaginary({.batch = 1, .seqlen_q = 1 << 21, .seqlen_k = 8, .heads = 1023, .heads_kv = 1, .head_dim = 8});
  CHECK(fa3_forward_check(&p) == FA3_OK);
  p.kernel = "fa3_fwdpacked_bf16_d64_full_128x128";
  CHECK(fa3_forward_check(&p) == FA3_ERROR_UNSUPPORTED);
  CHECK(std::string(fa3_last_error_message()) ==
        "params->kernel is fa3_fwdpacked_bf16_d64_full_128x128, which packs the heads that share k and v (here 1023, "
        "as 1024) into rows; with q.dim[1] (seqlen_q) 2097152 that makes more than 2147482623");
  fa3_forward_params most =
      imaginary({.batch = 1, .seqlen_q = 2147482623, .seqlen_k = 8, .heads = 1, .heads_kv = 1, .head_dim = 8});
  most.kernel = p.kernel;
  CHECK(fa3_forward_check(&most) == FA3_OK);
}

TEST_CASE("a name that no kernel has", "[kernels]") {
  fa3_forward_params p = imaginary();
  const auto unknown = [&](const char* name, const std::string& shown) {
    p.kernel = name;
    CHECK(fa3_forward_check(&p) == FA3_ERROR_UNSUPPORTED);
    CHECK(std::string(fa3_last_error_message()) ==
          "params->kernel is \"" + shown + "\", no kernel of this build (fa3_kernel_info_at names those; the "
                                            "paper's algorithms need one with -Dpaper=true)");
  };
  const std::string first = rows[0].name;
  unknown("", "");
  unknown("fwd", "fwd");
  unknown("%s%n", "%s%n");
  unknown("two\nlines~\x7f\xff", "two?lines~??");
  unknown((first + "_").c_str(), first + "_");
  unknown((" " + first).c_str(), " " + first);
  unknown(first.substr(0, first.size() - 1).c_str(), first.substr(0, first.size() - 1));
  unknown(std::string(62, 'x').c_str(), std::string(62, 'x'));
  unknown(std::string(5000, 'x').c_str(), std::string(63, 'x') + "...");
  unknown(EndOfMemory(std::string(63, 'x'), false).text(), std::string(63, 'x') + "...");
  unknown(EndOfMemory(first + "?", true).text(), first + "?");

  // Other arguments are refused first, whatever the name is.
  p.mask = 9;
  expect(fa3_forward_check(&p), FA3_ERROR_INVALID_ARGUMENT, "mask is 9");
}

TEST_CASE("the reference does not look at the kernel's name", "[kernels]") {
  Buffer in(4096), o(4096), same(4096);
  std::memset(in.as(), 0x3c, 4096);
  fa3_forward_params p = describe({}, FA3_DTYPE_BF16, in.as(), in.as(), in.as(), o.as(), nullptr);
  p.kernel = reinterpret_cast<const char*>(16);  // leads nowhere
  CHECK(fa3_reference_forward(&p, 1) == FA3_OK);
  p.o.data = same.as(), p.kernel = nullptr;
  CHECK(fa3_reference_forward(&p, 1) == FA3_OK);
  CHECK(std::memcmp(o.as(), same.as(), 4096) == 0);
}

TEST_CASE("a problem without rows has no tiles", "[kernels]") {
  fa3_forward_params p = imaginary({.batch = 0, .head_dim = 256}, FA3_DTYPE_FP16);
  fa3_kernel_info info = FA3_KERNEL_INFO_INIT;
  REQUIRE(fa3_forward_kernel_info(&p, 132, 0, &info) == FA3_OK);
  CHECK((info.dtype == FA3_DTYPE_FP16 && info.head_dim == 256 && info.causal == 0));  // that would run it
  CHECK(info.tiles == 0);
  CHECK(info.grid == 0);
}

TEST_CASE("rows with lengths of their own are causal ones with a window instead", "[kernels]") {
  const auto is_same_tile = [](const ForwardRow& a, const ForwardRow& b) {
    return a.dtype == b.dtype && a.d == b.d && a.dv == b.dv && a.Br == b.Br && a.Bc == b.Bc && a.heads == b.heads;
  };
  int planned = 0, held = 0;
  for (const ForwardRow& v : forward_rows) {
    if (!v.has(Trait::planned) || v.has_wide_q() || v.halves_columns()) continue;
    INFO(v.name);
    const auto twin = std::find_if(forward_rows.begin(), forward_rows.end(), [&](const ForwardRow& other) {
      return other.causal() && !other.has(Trait::shares_keys) && is_same_tile(other, v);
    });
    REQUIRE(twin != forward_rows.end());
    // With packed heads only two or three blocks may be on their way, so that more stages are of no use.
    const int stages = v.packs_heads() ? std::min(twin->stages, 4) : twin->stages;
    CHECK((v.mask == Mask::window && v.stages == stages && v.q_buffers == twin->q_buffers));
    CHECK(((v.o_exit == twin->o_exit || v.stores_fp32()) && same_text(v.kernel, twin->kernel)));
    // That one may leave groups of keys out, which only the causal diagonal lets it, have narrow slabs, and registers
    // for Q.
    constexpr Trait may =
        Trait::skip_masked | Trait::narrow_slabs | Trait::softcap | Trait::alibi | Trait::q_in_registers;
    CHECK((v.traits | may) == (twin->traits | may | Trait::planned));
    planned += !v.transforms_scores() && !v.stores_fp32();
  }
  // They hold every head dimension that causal rows have; from 64 on with columns for at most a fifth more.
  for (const ForwardRow& v : forward_rows) {
    if (!v.causal() || !v.chosen() || v.is_8bit() || v.has(Trait::shares_keys)) continue;
    INFO(v.name);
    CHECK(std::any_of(forward_rows.begin(), forward_rows.end(), [&](const ForwardRow& other) {
      return other.has(Trait::planned) && other.dtype == v.dtype && other.heads == v.heads && other.d >= v.d &&
             other.dv >= v.dv && (v.d < 64 || 5 * (other.d + other.dv) <= 6 * (v.d + v.dv));
    }));
    ++held;
  }
  CHECK((planned > 0 && held > planned));
}

// Rows that would compile and then compute something wrong, or wait for ever.
TEST_CASE("rows that no kernel can run are not valid", "[kernels]") {
  const auto with = [](const char* name, Mask mask, Trait trait) {
    ForwardRow row = forward_row(row_named(name));
    REQUIRE(row.valid());
    row.mask = mask, row.traits = row.traits | trait;
    return row;
  };
  const char *bf16 = "fa3_fwd_bf16_d128_full_192x64", *e4m3 = "fa3_fwd_e4m3_d128_full_192x96";
  const char *paper = "fa3_alg1_bf16_d128_full_128x176", *turns = "fa3_fwdsharedkeys_bf16_d64_full_64x128";
  const char *blocks = "fa3_fwdblockscales_e4m3_d128_full_192x64", *tiles = "fa3_fwdvtiles_e4m3_d128_full_192x96";
  CHECK(with(bf16, Mask::window, Trait::planned).valid());
  CHECK_FALSE(with(bf16, Mask::window, Trait::plain).valid());      // its producer knows no bound on the left
  CHECK(with(e4m3, Mask::window, Trait::planned).valid());
  CHECK_FALSE(with(blocks, Mask::full, Trait::planned).valid());  // its producer loads no scales of blocks
  CHECK_FALSE(with(tiles, Mask::full, Trait::planned).valid());   // and no tiles
  CHECK_FALSE(with(paper, Mask::full, Trait::planned).valid());
  CHECK(with(turns, Mask::full, Trait::planned).valid());
  CHECK_FALSE(with(turns, Mask::window, Trait::planned).valid());
  // A box of one row would be 64 bytes.
  CHECK_FALSE(with("fa3_fwd_bf16_d96_full_192x64", Mask::full, Trait::planned).valid());
  CHECK_FALSE(with(bf16, Mask::full, Trait::one_key_block).valid());  // of another kind of row
  // Float32 calls are planned.
  ForwardRow fp32 = forward_row(row_named(bf16));
  fp32.o_exit = OExit::registers_fp32;
  CHECK_FALSE(fp32.valid());
  // K and V are widened by warps of the producer for sequences of their own lengths, whose scales are those of heads.
  ForwardRow widened = forward_row(row_named("fa3_fwdplannedfp8kv_bf16_d128_window_192x64"));
  REQUIRE(widened.valid());
  CHECK((widened.landing_buffers() >= 2 && widened.loaded_bytes() == widened.stage_bytes() / 2));
  for (const auto& spoil : {+[](ForwardRow& row) { row.kv_scales = KvScales::none; },
                            +[](ForwardRow& row) { row.kv_scales = KvScales::blocks; },
                            +[](ForwardRow& row) { row.traits = row.traits | Trait::softcap; },
                            +[](ForwardRow& row) { row.stages = 8; },  // leaves no room where K and V land
                            +[](ForwardRow& row) { row.dv = 64; }}) {
    ForwardRow row = widened;
    spoil(row);
    CHECK_FALSE(row.valid());
  }

  // Copies of them lie there as K and V of 16 bits do.
  const ForwardRow copied = forward_row(row_named("fa3_fwdplannedcopiedkv_bf16_d128_window_192x64"));
  const ForwardRow plain = forward_row(row_named("fa3_fwdplanned_bf16_d128_window_192x64"));
  CHECK((copied.valid() && copied.smem_bytes() == plain.smem_bytes() && copied.stage_bytes() == plain.stage_bytes()));
  CHECK((copied.landing_buffers() == 0 && copied.loaded_bytes() == plain.loaded_bytes()));

  // Above 256 columns scores may be capped; slopes there are none.
  for (const char* name :
       {"fa3_fwdplannedmla_bf16_d64x512_window_64x128", "fa3_fwdplannedwide_bf16_d512x512_window_64x64"}) {
    ForwardRow row = forward_row(row_named(name));
    row.traits = row.traits | Trait::softcap;
    CHECK(row.valid());
    row.traits = row.traits | Trait::alibi;
    CHECK_FALSE(row.valid());
  }

  const auto with_lengths = [](const char* name) {
    BackwardRow row = backward_row(row_named(name));
    REQUIRE(row.valid());
    row.traits = row.traits | Trait::planned;
    return row;
  };
  CHECK(with_lengths("fa3_bwdshort_bf16_d128_causal_64x128").valid());
  CHECK(with_lengths("fa3_bwd_bf16_d128_causal_64x128").valid());
  CHECK(with_lengths("fa3_bwd_keys_bf16_d256_causal_64x64").valid());
  CHECK_FALSE(with_lengths("fa3_alg3_bf16_d128_causal_64x128").valid());
  for (const char* name : {"fa3_bwdshort_bf16_d128_causal_64x128", "fa3_bwd_keys_bf16_d256_causal_64x64",
                           "fa3_bwd_queries_bf16_d256_causal_128x64"}) {
    BackwardRow row = with_lengths(name);
    for (const Trait transform : {Trait::softcap, Trait::alibi}) {
      row.traits = backward_row(row_named(name)).traits | transform;
      CHECK_FALSE(row.valid());
      row.traits = row.traits | Trait::planned;
      CHECK(row.valid());
    }
    row.traits = row.traits | Trait::softcap | Trait::alibi;
    CHECK(row.valid());
  }
}

}  // namespace fa3::test
