// Which tiles the library splits along the keys, seen in what it launches and unfolded as in the kernels (ptx/split.h).
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "call.h"
#include "fake_cuda.h"
#include "variant.h"

namespace fa3::test {
namespace {

using Catch::Matchers::ContainsSubstring;

char workspace_memory[64] __attribute__((aligned(16)));
constexpr size_t plenty = size_t{1} << 30;  // never touched

struct Planned {
  const Variant* variant;
  ForwardParams params;
  unsigned grid;
  size_t workspace;
};

Planned plan(const fa3_forward_params& p, int multiprocessors = 132) {
  static unsigned long long contexts = 1 << 20;
  FakeCuda& fake = fake_cuda();
  fake.failing.clear();
  fake.capture = CU_STREAM_CAPTURE_STATUS_NONE, fake.capture_result = CUDA_SUCCESS;
  fake.major = 9, fake.minor = 0;
  fake.record = true;
  fake.maps.clear(), fake.launches.clear();
  static int last = 0;
  if (last != multiprocessors || fake.context_id < 1 << 20) {
    fake.context_id = ++contexts;
    fake.context = reinterpret_cast<CUcontext>(uintptr_t{0x100000} + 16 * contexts);
  }
  fake.multiprocessors = last = multiprocessors;
  size_t bytes = 0;
  REQUIRE(fa3_forward_workspace_size(&p, 0, &bytes) == FA3_OK);
  REQUIRE(fa3_forward(&p, workspace_memory, bytes, nullptr) == FA3_OK);
  REQUIRE(fake.launches.size() == 1);
  const Launch& launch = fake.launches[0];
  const auto variant = std::find_if(std::begin(variants), std::end(variants),
                                    [&](const Variant& v) { return v.name == launch.kernel; });
  REQUIRE(variant != std::end(variants));
  return {&*variant, launch.params, launch.grid[0], bytes};
}

// K/V blocks of the tile, as the kernels number tiles.
int blocks_of(const Planned& made, int tile) {
  const ForwardParams& f = made.params;
  const int Br = made.variant->Br, Bc = made.variant->Bc;
  if (!made.variant->causal()) return std::max(1, (f.seqlen_k + Bc - 1) / Bc);
  const int per_section = f.section_heads * f.q_blocks, section = tile / per_section;
  const int heads = std::min<int>(f.section_heads, f.batch_heads - section * f.section_heads);
  const int q_block = f.q_blocks - 1 - (tile - section * per_section) / heads;
  const int64_t rows = std::min(f.q_origin + (q_block + 1) * Br, f.seqlen_q);
  const int64_t keys = std::min<int64_t>(f.seqlen_k, rows + f.causal_offset);
  return keys <= 0 ? 1 : int((keys + Bc - 1) / Bc);
}

// Every block of every tile is in one part, and every part knows its number and has a slot of its own.
void check_parts(const Planned& made) {
  const Split& split = made.params.split;
  const int origin = made.params.q_origin, end = origin + made.params.q_blocks * made.variant->Br;
  REQUIRE((origin % 64 == 0 && end >= made.params.seqlen_q && end - made.variant->Br < made.params.seqlen_q));
  if (origin > 0) REQUIRE((made.variant->causal() && origin <= -made.params.causal_offset));  // rows before it see no key
  const int tiles = made.params.q_blocks * made.params.batch_heads;
  REQUIRE(split.whole_tiles + split.tiles == tiles);
  REQUIRE((split.unit_blocks > 0 && split.stride > 0));
  std::vector<std::vector<Part>> parts(static_cast<size_t>(tiles));
  std::set<int> slots;
  for (int item = 0; item < split.items(); ++item) {
    int in_unit = 0, blocks_in_unit = 0;
    for (int place = split.place(item); place >= 0; place = split.next_in_unit(place)) {
      const int tile = split.tile_at(place);
      REQUIRE((tile >= 0 && tile < tiles));
      const Part part = split.part(place, blocks_of(made, tile));
      if (part.begin >= part.end) continue;
      ++in_unit, blocks_in_unit += part.end - part.begin;
      parts[size_t(tile)].push_back(part);
      if (split.cut ? tile >= split.tiles : tile < split.whole_tiles) {
        REQUIRE(part.count == 1);
        continue;
      }
      REQUIRE(part.split_tile == (split.cut ? tile : tile - split.whole_tiles));
      REQUIRE((part.slot + part.number >= 0 && part.slot + part.number < split.slots()));
      REQUIRE(slots.insert(part.slot + part.number).second);
      REQUIRE((part.slot >= 0 && part.slot + part.count <= split.slots()));
    }
    if (split.cut) REQUIRE(in_unit == 1);
    else if (item >= split.whole_tiles) REQUIRE((in_unit <= 2 && blocks_in_unit <= split.unit_blocks));
  }
  for (int tile = 0; tile < tiles; ++tile) {
    const auto& of_tile = parts[size_t(tile)];
    REQUIRE((!of_tile.empty() && of_tile.size() <= 255));
    int begin = 0;
    for (size_t i = 0; i < of_tile.size(); ++i) {
      REQUIRE((of_tile[i].number == int(i) && of_tile[i].count == int(of_tile.size())));
      REQUIRE(of_tile[i].slot == of_tile[0].slot);
      REQUIRE(of_tile[i].begin == begin);
      begin = of_tile[i].end;
    }
    REQUIRE(begin == blocks_of(made, tile));
  }
}

void check_sizes(const Planned& made, int multiprocessors) {
  const Split& split = made.params.split;
  const int Br = made.variant->Br, blind_blocks = (std::max(made.params.q_origin, 0) + Br - 1) / Br * made.params.batch_heads;
  CHECK(made.grid == unsigned(std::min(std::max(split.items(), blind_blocks), multiprocessors)));
  if (split.tiles == 0) {
    CHECK(made.workspace == FA3_FORWARD_WORKSPACE_BYTES);
    CHECK(split.units == 0);
    return;
  }
  const Variant& v = *made.variant;
  CHECK(v.is_fwd());
  CHECK((split.units <= 2 * multiprocessors && split.slots() <= 3 * multiprocessors));
  // Head, tickets and partial results, one behind the other.
  const char* base = workspace_memory;
  const char* tickets = reinterpret_cast<const char*>(made.params.tickets);
  const char* partials = static_cast<const char*>(made.params.partials);
  CHECK((tickets >= base + sizeof(Workspace) && (tickets - base) % 16 == 0));
  // The kernels clear tickets eight at a time (Claims::clear_tickets).
  const size_t cleared = (split.tiles * v.warpgroups() + 7) / 8 * 8 * sizeof(Tickets);
  CHECK((partials >= tickets + cleared && (partials - base) % 16 == 0));
  CHECK(made.workspace == size_t(partials - base) + size_t(split.slots()) * (v.Br / 16) * v.partial_bytes());
}

// The row of this kernel that holds the problem.
const char* row_of(Kernel kernel, const fa3_forward_params& p) {
  const Variant* best = nullptr;
  for (const Variant& v : variants)
    if (v.kernel == kernel && v.d >= p.q.dim[3] && v.causal() == (p.mask != FA3_MASK_NONE) &&
        (v.dtype == Dtype::bf16) == (p.q.dtype == FA3_DTYPE_BF16) && (!best || v.d < best->d))
      best = &v;
  REQUIRE(best);
  return best->name;
}

fa3_forward_params problem(const Shape& shape, int32_t mask = FA3_MASK_NONE, int32_t dtype = FA3_DTYPE_BF16) {
  fa3_forward_params p = imaginary(shape, dtype);
  p.mask = mask;
  return p;
}

}  // namespace

TEST_CASE("every block of every tile is in one part", "[split]") {
  std::mt19937_64 random(5);
  const auto pick = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
  int split = 0, across = 0, tails = 0, causal = 0, cut = 0;
  for (int n = 0; n < 3000; ++n) {
    Shape shape;
    shape.heads_kv = pick({1, 1, 2, 3, 8, 16});
    shape.heads = shape.heads_kv * pick({1, 1, 2, 5});
    shape.batch = pick({1, 1, 1, 2, 7, 20});
    shape.seqlen_q = random() % 3 ? 1 + random() % 4000 : 1 + random() % 20;
    shape.seqlen_k = random() % 3 ? random() % 10000 : random() % 300000;
    shape.head_dim = pick({64, 72, 128, 256});
    const int32_t mask = static_cast<int32_t>(random() % 3);
    const int multiprocessors = static_cast<int>(pick({132, 132, 114, 78, 1, 2, 144}));
    if (random() % 4 == 0) {  // few tiles, but more than multiprocessors
      shape.batch = 1;
      shape.seqlen_q = shape.seqlen_k = 2000 + random() % 15000;
      shape.heads = shape.heads_kv = std::max<int64_t>(1, multiprocessors * int64_t(128 + random() % 256) / shape.seqlen_q);
    }
    const Planned made = plan(problem(shape, mask), multiprocessors);
    INFO(made.variant->name << " batch " << shape.batch << " heads " << shape.heads << " q " << shape.seqlen_q << " k "
                            << shape.seqlen_k << " mask " << mask << " on " << multiprocessors);
    check_parts(made);
    check_sizes(made, multiprocessors);
    const Split& s = made.params.split;
    split += s.tiles > 0;
    across += s.tiles > 0 && !s.cut && s.stride % s.unit_blocks != 0;
    tails += s.tiles > 0 && s.whole_tiles > 0;
    causal += s.tiles > 0 && mask != FA3_MASK_NONE;
    cut += s.cut > 0;
  }
  CHECK(split > 500);
  CHECK(across > 100);
  CHECK(tails > 100);
  CHECK(causal > 100);
  CHECK(cut > 20);
}

TEST_CASE("a Divisor divides as / does", "[split]") {
  constexpr int32_t largest = INT32_MAX;
  std::vector<int32_t> divisors{1, 2, 3, 5, 7, 641, 65535, 65536, 65537, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, largest};
  std::mt19937 random(6);
  for (int i = 0; i < 2000; ++i) divisors.push_back(std::max<int32_t>(1, int32_t(random() >> 1) >> random() % 31));
  for (const int32_t d : divisors) {
    const Divisor divisor = Divisor::of(d);
    int wrong = divisor == d ? 0 : 1;
    const auto check = [&](int64_t n) { wrong += n >= 0 && n <= largest && int32_t(n) / divisor != int32_t(n) / d; };
    for (int i = 0; i < 50; ++i) {
      const int64_t multiple = int64_t(random() >> 1) / d * d;  // where the quotient changes
      check(multiple - 1), check(multiple), check(multiple + 1), check(random() >> 1);
    }
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{largest} - 1, int64_t{largest}, int64_t{largest} / d * d - 1})
      check(n);
    INFO(d);
    CHECK(wrong == 0);
  }
}

TEST_CASE("what is split, and what is not", "[split]") {
  const auto split = [](const Shape& shape, int32_t mask = FA3_MASK_NONE, Kernel kernel = Kernel::fwd) {
    fa3_forward_params p = problem(shape, mask);
    p.kernel = row_of(kernel, p);
    return plan(p).params.split;
  };
  // One sequence, one head: as many parts as pay for being put together.
  Split s = split({.batch = 1, .seqlen_q = 1, .seqlen_k = 131072, .heads = 1, .heads_kv = 1, .head_dim = 128});
  CHECK((s.whole_tiles == 0 && s.tiles == 1 && s.units > 16 && s.units <= 32));
  s = split({.batch = 1, .seqlen_q = 1, .seqlen_k = 131072, .heads = 1, .heads_kv = 1, .head_dim = 128},
            FA3_MASK_CAUSAL_BOTTOM_RIGHT);
  CHECK((s.tiles == 1 && s.units > 16 && s.units <= 32));
  // A wave, and two thirds of one.
  s = split({.batch = 1, .seqlen_q = 64, .seqlen_k = 4096, .heads = 220, .heads_kv = 220, .head_dim = 64});
  CHECK((s.whole_tiles == 132 && s.tiles == 88 && s.units == 131 && s.unit_blocks == 43));
  // Whole waves, and so many of them that the last does not matter.
  const auto heads = [&](int64_t batch, int64_t n) {
    return split({.batch = batch, .seqlen_q = 64, .seqlen_k = 4096, .heads = n, .heads_kv = n, .head_dim = 64});
  };
  CHECK(heads(1, 264).tiles == 0);
  CHECK(heads(100, 133).tiles == 0);
  // Too few keys, or none.
  CHECK(split({.batch = 1, .seqlen_q = 64, .seqlen_k = 300, .heads = 1, .heads_kv = 1, .head_dim = 64}).tiles == 0);
  CHECK(split({.batch = 1, .seqlen_q = 64, .seqlen_k = 0, .heads = 1, .heads_kv = 1, .head_dim = 64}).tiles == 0);
  // Causal problems that fill the machine.
  CHECK(split({.batch = 1, .seqlen_q = 8192, .seqlen_k = 8192, .heads = 8, .heads_kv = 8, .head_dim = 128},
              FA3_MASK_CAUSAL_TOP_LEFT).tiles == 0);
  // About as many tiles as multiprocessors, of which the longest last longer than the others together: cut, as long as that
  // pays for putting them together. First parts as long as the longest whole tile, second parts among the short tiles.
  const auto causal = [&](int64_t seqlen, int64_t n, int64_t head_dim, Kernel kernel = Kernel::fwd) {
    return split({.batch = 1, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = n, .heads_kv = n, .head_dim = head_dim},
                 FA3_MASK_CAUSAL_TOP_LEFT, kernel);
  };
  s = causal(2048, 4, 128);
  CHECK((s.cut == 0 && s.tiles == 44 && s.unit_blocks == 8));
  s = causal(8192, 4, 128);
  CHECK((s.cut == 89 && s.tiles == 13 * 4 && s.whole_tiles == 30 * 4 && s.units == 2 * s.tiles && s.slots() == s.units));
  CHECK((s.cut_after == 17 * 4 && s.cut_run == 4));
  s = causal(16384, 2, 128);
  CHECK((s.cut == 178 && s.tiles == 26 * 2));
  CHECK(causal(8192, 5, 64).cut > 0);
  CHECK(causal(4096, 8, 128).cut > 0);
  CHECK(causal(4096, 11, 128).tiles == 0);
  CHECK(causal(8192, 3, 128, Kernel::fwdsmall).cut == 49);
  CHECK(causal(32768, 2, 128).tiles == 0);
  // Only the kernels that the library chooses know how.
  for (const Variant& v : variants) {
    const Shape long_keys{.batch = 1, .seqlen_q = 64, .seqlen_k = 8192, .heads = 1, .heads_kv = 1, .head_dim = v.d};
    fa3_forward_params p = problem(long_keys, v.causal() ? FA3_MASK_CAUSAL_BOTTOM_RIGHT : FA3_MASK_NONE,
                                   v.dtype == Dtype::bf16 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16);
    p.kernel = v.name;
    INFO(v.name);
    CHECK((plan(p).params.split.tiles > 0) == v.is_fwd());
  }
}

TEST_CASE("the longest parts and tiles come first where tiles are cut", "[split]") {
  fa3_forward_params p =
      problem({.batch = 1, .seqlen_q = 8192, .seqlen_k = 8192, .heads = 4, .heads_kv = 4, .head_dim = 128},
              FA3_MASK_CAUSAL_TOP_LEFT);
  p.kernel = row_of(Kernel::fwd, p);
  const Planned made = plan(p);
  const Split& s = made.params.split;
  REQUIRE(s.cut > 0);
  int last = INT32_MAX;
  for (int place = 0; place < s.items(); ++place) {
    const Part part = s.part(place, blocks_of(made, s.tile_at(place)));
    const int length = part.end - part.begin;
    INFO("place " << place << ": " << length << " blocks after " << last);
    CHECK(length <= last);
    last = length;
  }
}

TEST_CASE("smaller tiles run what they fit better", "[split]") {
  const auto small = [](const Shape& shape, int32_t mask, int multiprocessors = 132) {
    return plan(problem(shape, mask), multiprocessors).variant->kernel == Kernel::fwdsmall;
  };
  const auto square = [](int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) {
    return Shape{.batch = batch, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = heads, .heads_kv = heads,
                 .head_dim = head_dim};
  };
  // Large problems, the paper's grid, stay with fwd.
  for (const int64_t head_dim : {64, 128, 256})
    for (int64_t seqlen = 512; seqlen <= 16384; seqlen *= 2)
      for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT}) {
        INFO(head_dim << " " << seqlen << " " << mask);
        CHECK_FALSE(small(square(16384 / seqlen, seqlen, 2048 / head_dim, head_dim), mask));
      }
  // 172 tiles of 192 rows for 132 multiprocessors, or 256 of 128; 11 in place of 16 for each of 8 heads, on 132 or 88.
  CHECK(small(square(1, 8192, 4, 128), FA3_MASK_CAUSAL_BOTTOM_RIGHT));
  CHECK(small(square(1, 2048, 8, 128), FA3_MASK_NONE));
  CHECK_FALSE(small(square(1, 2048, 8, 128), FA3_MASK_NONE, 88));
  // What they would fit as well, but for their lower speed.
  CHECK_FALSE(small(square(1, 8192, 6, 128), FA3_MASK_CAUSAL_BOTTOM_RIGHT));
  CHECK_FALSE(small(square(1, 16384, 4, 64), FA3_MASK_NONE));
  // None at this head_dim, and none where a kernel is named.
  CHECK_FALSE(small(square(1, 2048, 8, 256), FA3_MASK_NONE));
  fa3_forward_params p = problem(square(1, 2048, 8, 128));
  p.kernel = row_of(Kernel::fwd, p);
  CHECK(plan(p).variant->kernel == Kernel::fwd);
  p.kernel = row_of(Kernel::fwdsmall, p);
  CHECK(plan(p).variant->kernel == Kernel::fwdsmall);
}

TEST_CASE("heads that share the L2 cache are as many in every section", "[split]") {
  const auto section = [](int64_t heads, int64_t heads_kv, int32_t mask) {
    const Shape shape{.batch = 1, .seqlen_q = 8192, .seqlen_k = 8192, .heads = heads, .heads_kv = heads_kv,
                      .head_dim = 128};  // K and V of a head: 4 MB of 32
    return int(plan(problem(shape, mask)).params.section_heads);
  };
  CHECK(section(32, 32, FA3_MASK_CAUSAL_TOP_LEFT) == 8);
  CHECK(section(9, 9, FA3_MASK_CAUSAL_TOP_LEFT) == 9);  // not 8 and 1
  CHECK(section(12, 12, FA3_MASK_CAUSAL_TOP_LEFT) == 6);
  CHECK(section(34, 34, FA3_MASK_CAUSAL_TOP_LEFT) == 9);
  CHECK(section(36, 9, FA3_MASK_CAUSAL_TOP_LEFT) == 36);
  CHECK(section(80, 20, FA3_MASK_CAUSAL_TOP_LEFT) == 28);  // of 20 groups of 4 heads: 7, 7 and 6
  CHECK(section(9, 9, FA3_MASK_NONE) == 1);
}

TEST_CASE("the plan depends on the problem and the multiprocessors only", "[split]") {
  const fa3_forward_params p =
      problem({.batch = 1, .seqlen_q = 700, .seqlen_k = 9000, .heads = 6, .heads_kv = 2, .head_dim = 128});
  const Planned first = plan(p);
  plan(p, 114);
  const Planned again = plan(p);
  CHECK(std::memcmp(&first.params.split, &again.params.split, sizeof(Split)) == 0);
  CHECK(first.workspace == again.workspace);
}

TEST_CASE("the largest problems are planned without overflow", "[split]") {
  constexpr int64_t most = INT32_MAX - 1024;
  for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT})
    for (const int64_t heads : {1, 100, 131, 200}) {
      const Shape shape{.batch = 1, .seqlen_q = 8, .seqlen_k = most, .heads = heads, .heads_kv = 1, .head_dim = 8};
      const Planned made = plan(problem(shape, mask));
      INFO(heads << " heads, mask " << mask);
      check_sizes(made, 132);
      check_parts(made);
    }
}

TEST_CASE("a workspace that is too small for the parts is refused", "[split]") {
  const fa3_forward_params p =
      problem({.batch = 1, .seqlen_q = 100, .seqlen_k = 9000, .heads = 2, .heads_kv = 2, .head_dim = 128});
  const size_t bytes = plan(p).workspace;
  REQUIRE(bytes > FA3_FORWARD_WORKSPACE_BYTES);
  fake_cuda().launches.clear(), fake_cuda().maps.clear();
  const int loads = fake_cuda().loads;
  for (const size_t less : {bytes - 1, size_t{FA3_FORWARD_WORKSPACE_BYTES}}) {
    CHECK(fa3_forward(&p, workspace_memory, less, nullptr) == FA3_ERROR_WORKSPACE_TOO_SMALL);
    CHECK_THAT(fa3_last_error_message(), ContainsSubstring("workspace_bytes is " + std::to_string(less) +
                                                           ", must be at least " + std::to_string(bytes)));
  }
  CHECK((fake_cuda().launches.empty() && fake_cuda().maps.empty() && fake_cuda().loads == loads));
  CHECK(fa3_forward(&p, workspace_memory, plenty, nullptr) == FA3_OK);
}

TEST_CASE("without a context one can ask for the size on 132 multiprocessors", "[split]") {
  const fa3_forward_params p =
      problem({.batch = 1, .seqlen_q = 100, .seqlen_k = 9000, .heads = 5, .heads_kv = 5, .head_dim = 128});
  const size_t bytes = plan(p).workspace, smaller = plan(p, 24).workspace;
  CHECK(smaller != bytes);
  fake_cuda().context = nullptr;
  size_t without = 0;
  CHECK(fa3_forward_workspace_size(&p, 132, &without) == FA3_OK);
  CHECK(without == bytes);
  fake_cuda().context_id = 0;
}

}  // namespace fa3::test
