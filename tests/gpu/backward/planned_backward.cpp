// The backward pass of varlen sequences, windows, chunks and sinks through the C API: any mix of them against float64,
// wrong numbers on the device, and graphs that are replayed with other lengths.
#include "planned_backward.h"

#include <catch2/catch_test_macros.hpp>
#include <algorithm>
#include <array>
#include <string_view>

#include "../gpu.h"
#include "params.h"
#include "random.h"

namespace fa3::test {
namespace {

uint64_t seed_for(int number) { return tools::mix(tools::seed_of_run(), 41000000 + uint64_t(number)); }

// A case on the device, and calls on it.
class OnDevice {
 public:
  OnDevice(const PlannedGradients& g, bool deterministic) {
    for (const Image& image : g.forward.images)
      buffers_.push_back(tools::DeviceBuffer::for_tensor(std::max<size_t>(image.size(), 16)));
    std::vector<void*> bases;
    for (const tools::DeviceBuffer& buffer : buffers_) bases.push_back(buffer.at(0));
    params_ = g.params(bases);
    if (deterministic) params_.flags |= FA3_FLAG_DETERMINISTIC;
    bytes_ = tools::workspace_size(params_);
    workspace_ = tools::DeviceBuffer(bytes_ + 512);
    upload(g, 0xff);
  }
  // All images, outputs too, and the workspace's contents.
  void upload(const PlannedGradients& g, int fill) {
    uploaded_ = g.forward.images;
    for (size_t n = 0; n < buffers_.size(); ++n)
      if (!uploaded_[n].empty()) buffers_[n].upload(uploaded_[n].data(), uploaded_[n].size());
    workspace_.fill(fill_ = static_cast<unsigned char>(fill));
  }
  void launch(const tools::Stream& stream) const {
    const fa3_status status = fa3_backward(&params_, workspace_.at(256), bytes_, stream.get());
    INFO(fa3_last_error_message());
    REQUIRE(status == FA3_OK);
  }
  // Into the case's images; "", or what else was written.
  std::string download(const tools::Stream& stream, PlannedGradients& g) const {
    stream.synchronize();
    const std::vector<const View*> outputs = g.outputs();
    std::vector<Image>& images = g.forward.images;
    for (size_t n = 0; n < buffers_.size(); ++n)
      if (!images[n].empty()) buffers_[n].download(images[n].data(), images[n].size());
    for (size_t n = 0; n < buffers_.size(); ++n) {
      const bool is_output = std::any_of(outputs.begin(), outputs.end(),
                                         [n](const View* view) { return view->image == int(n); });
      if (!is_output && images[n] != uploaded_[n]) return "input " + std::to_string(n) + " was overwritten";
    }
    return is_filled(0) && is_filled(256 + bytes_) ? "" : "the workspace was left";
  }

 private:
  // Are 256 bytes of what the workspace lies in as they were?
  bool is_filled(size_t first) const {
    std::array<unsigned char, 256> bytes;
    workspace_.download(bytes.data(), bytes.size(), first);
    return std::all_of(bytes.begin(), bytes.end(), [&](unsigned char byte) { return byte == fill_; });
  }

  std::vector<tools::DeviceBuffer> buffers_;
  std::vector<Image> uploaded_;
  fa3_backward_params params_{};
  size_t bytes_ = 0;
  tools::DeviceBuffer workspace_;
  unsigned char fill_ = 0;
};

// Whether there are dlse and dsinks, whether dq is to be summed up in a fixed order, whether gradients are float32, and
// whether they are added to what is there.
struct Wishes {
  bool dlse, dsinks, deterministic, fp32, adds;
};
Wishes random_wishes(const PlannedProblem& problem, uint64_t seed) {
  tools::Random random(tools::mix(seed, 22));
  const bool dlse = random.chance(0.4) && !problem.centered_k, dsinks = problem.has_sinks && random.chance(0.7);
  const bool deterministic = random.chance(0.4), fp32 = random.chance(0.4);
  return {dlse, dsinks, deterministic, fp32, fp32 && random.chance(0.5)};
}
PlannedGradients case_of(const PlannedProblem& problem, const Wishes& wishes) {
  return {problem, wishes.dlse, wishes.dsinks, wishes.fp32 ? FA3_DTYPE_FP32 : FA3_DTYPE_NONE, wishes.adds};
}
std::string text_of(const PlannedProblem& problem, const Wishes& wishes) {
  return problem.describe() + (wishes.dlse ? " dlse" : "") + (wishes.dsinks ? " dsinks" : "") +
         (wishes.deterministic ? " deterministic" : "") + (wishes.fp32 ? " float32" : "") +
         (wishes.adds ? " added" : "");
}

// Twice, with other numbers in the workspace: dk, dv and dsinks have the same bits, and in a fixed order all.
std::string run(PlannedGradients& g, bool deterministic) {
  const ExpectedGradients expected = expect_rounded(g);
  OnDevice device(g, deterministic);
  std::vector<Image> first;
  for (const int fill : {0xff, 0x3c}) {
    g.poison_outputs();
    device.upload(g, fill);
    device.launch(gpu().stream);
    if (const std::string bad = device.download(gpu().stream, g); !bad.empty()) return bad;
    if (const std::string bad = verify(g, expected); !bad.empty()) return bad;
    if (first.empty()) first = g.forward.images;
    for (const View* view : g.outputs()) {
      const PlannedProblem& p = g.forward.problem;
      const bool sums_dq = p.head_dim <= 128 && p.head_dim_v <= 128;
      const bool has_order = view->image != g.dq.image || deterministic || !sums_dq;
      if (has_order && first[size_t(view->image)] != g.forward.images[size_t(view->image)])
        return "the second run has other bits";
    }
  }
  return "";
}

void check(int number, double budget, int64_t guard = -1, Trait transform = Trait::plain) {
  const uint64_t seed = seed_for(number);
  PlannedProblem problem = random_for_kernels(seed, budget, transform);
  if (guard >= 0) problem.guard = guard;
  const Wishes wishes = random_wishes(problem, seed);
  PlannedGradients g = case_of(problem, wishes);
  INFO(text_of(problem, wishes));
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  CHECK(run(g, wishes.deterministic) == "");
}

}  // namespace

TEST_CASE("planned backward: random calls", "[planned][backward]") {
  gpu();
  for (int n = 0; n < 150; ++n) check(n, 4e7);
}

TEST_CASE("planned backward: softcap and ALiBi", "[planned][backward]") {
  gpu();
  constexpr Trait transforms[] = {Trait::softcap, Trait::alibi, Trait::softcap | Trait::alibi};
  for (int n = 0; n < 180; ++n) check(6000 + n, 4e7, -1, transforms[n % 3]);
}

TEST_CASE("planned backward: centered k", "[planned][backward]") {
  gpu();
  for (int n = 0; n < 90; ++n) check(7000 + n, 4e7, -1, Trait::centered_k);
}

// Channels of keys that have means: dq is as exact as without them, and it is not without the flag.
TEST_CASE("planned backward: centered k of keys with means", "[planned][backward]") {
  gpu();
  for (const int64_t head_dim : {64, 128, 256})
    for (const float mean : {0.f, 1.f, 4.f})
      for (const fa3_dtype dtype : {FA3_DTYPE_BF16, FA3_DTYPE_FP16})
        for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_MASK_WINDOW, FA3_MASK_CHUNK}) {
          PlannedProblem p;
          p.dtype = dtype, p.mask = mask, p.head_dim = p.head_dim_v = head_dim, p.packed_q = p.packed_k = true;
          p.heads = 2, p.heads_kv = 1, p.seed = 5, p.guard = 64, p.k_mean = mean, p.centered_k = true;
          if (mask >= FA3_MASK_WINDOW) p.window_left = 150;
          make_room(p, {{500, 500}, {100, 300}, {200, 64}}, 1);
          p.poisoned.assign(size_t(p.batch), false);
          PlannedGradients g = case_of(p, {});
          INFO(text_of(p, {}));
          CHECK(run(g, head_dim == 64) == "");
          if (mean < 4) continue;
          const ExpectedGradients expected = expect_rounded(g);
          g.forward.problem.centered_k = false;
          g.poison_outputs();
          OnDevice device(g, false);
          device.launch(gpu().stream);
          CHECK(device.download(gpu().stream, g) == "");
          CHECK(verify(g, expected) != "");
        }
}

// Few heads of K and V: they have parts, up to one for each query head.
TEST_CASE("planned backward: parts of heads of K and V", "[planned][backward]") {
  gpu();
  const std::string_view kinds[] = {"plain", "softcap", "alibi", "softcap and alibi", "centered k", "sinks"};
  constexpr std::array<int64_t, 2> groups[] = {{8, 1}, {10, 2}, {7, 1}};
  constexpr std::array<int64_t, 2> columns[] = {{64, 64}, {128, 128}, {256, 256}, {40, 56}};
  int n = 0;
  for (const auto& [head_dim, head_dim_v] : columns)
    for (const std::string_view kind : kinds)
      for (const int32_t mask : {FA3_MASK_NONE, FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_MASK_WINDOW, FA3_MASK_CHUNK}) {
        PlannedProblem p;
        p.dtype = n % 4 == 3 ? FA3_DTYPE_FP16 : FA3_DTYPE_BF16, p.mask = mask, p.packed_q = p.packed_k = true;
        p.head_dim = head_dim, p.head_dim_v = head_dim_v, p.heads = groups[n % 3][0], p.heads_kv = groups[n % 3][1];
        p.seed = seed_for(9500 + n), p.guard = 64;
        if (mask >= FA3_MASK_WINDOW) p.window_left = 135;
        p.softcap = kind.starts_with("softcap") ? 3.f : 0.f, p.has_sinks = kind == "sinks";
        p.has_slopes = kind.ends_with("alibi"), p.centered_k = kind == "centered k";
        if (p.has_slopes && mask == FA3_MASK_CHUNK) continue;  // not together
        make_room(p, {{130, 200}, {1, 129}, {0, 70}, {70, 0}, {65, 140}}, 1);
        p.poisoned.assign(size_t(p.batch), false);
        const Wishes wishes{false, p.has_sinks, n % 5 < 2, n % 7 < 3, n % 7 < 1};
        PlannedGradients g = case_of(p, wishes);
        INFO(text_of(p, wishes));
        INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
        CHECK(run(g, wishes.deterministic) == "");
        ++n;
      }
}

// So many key blocks that thread blocks round dQ of earlier ones beside later ones.
TEST_CASE("planned backward: parts of many sequences", "[planned][backward]") {
  gpu();
  PlannedProblem p;
  p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.packed_q = p.packed_k = true, p.guard = 64;
  p.head_dim = p.head_dim_v = 72, p.heads = 8, p.heads_kv = 1, p.seed = seed_for(9600);
  PlannedProblem::Lengths lengths(80, {150, 150});
  lengths.push_back({512, 512});
  make_room(p, lengths, 1);
  p.max_seqlen_q = p.max_seqlen_k = 512;
  p.poisoned.assign(size_t(p.batch), false);
  PlannedGradients g = case_of(p, {});
  INFO(text_of(p, {}));
  INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
  CHECK(run(g, false) == "");
}

// Whatever stands in device memory, nothing outside of the tensors is touched.
TEST_CASE("planned backward: wrong numbers reach nothing outside of the tensors", "[planned][backward]") {
  gpu();
  for (int n = 0; n < 80; ++n) {
    const uint64_t seed = seed_for(1000 + n);
    const PlannedProblem problem = random_for_kernels(seed, 2e7);
    const Wishes wishes = random_wishes(problem, seed);
    PlannedGradients g = case_of(problem, wishes);
    INFO(text_of(problem, wishes));
    INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
    spoil_numbers(g.forward.problem, seed_for(2000 + n));
    g.forward.write_numbers();
    OnDevice device(g, wishes.deterministic);
    device.launch(gpu().stream);
    CHECK(device.download(gpu().stream, g) == "");
    CHECK(check_around(g) == "");
  }
}

// As graphs have them: behind the sequences prefix sums are 0.
TEST_CASE("planned backward: places of a batch that are not in use", "[planned][backward]") {
  gpu();
  for (int n = 0; n < 60; ++n) {
    const uint64_t seed = seed_for(9700 + n);
    PlannedProblem problem = random_for_kernels(seed, 2e7);
    problem.packed_q = problem.packed_k = true, problem.uses_q = problem.uses_k = false;
    PlannedProblem::Lengths lengths = problem.lengths;
    lengths.resize(lengths.size() + 5, {0, 0});
    make_room(problem, lengths, seed);
    problem.poisoned.assign(size_t(problem.batch), false);
    const Wishes wishes = random_wishes(problem, seed);
    PlannedGradients g = case_of(problem, wishes);
    INFO(text_of(problem, wishes));
    INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
    const ExpectedGradients expected = expect_rounded(g);
    for (auto* sums : {&g.forward.problem.cu_q, &g.forward.problem.cu_k}) std::fill(sums->end() - 5, sums->end(), 0);
    g.forward.write_numbers();
    OnDevice device(g, wishes.deterministic);
    device.launch(gpu().stream);
    CHECK(device.download(gpu().stream, g) == "");
    CHECK(verify(g, expected) == "");
  }
}

// (seqlen, batch, heads, head_dim) with rows 2 MB apart, all tensors between each other's rows: the same bits as
// without gaps.
TEST_CASE("planned backward: rows far apart", "[planned][backward]") {
  gpu();
  constexpr int64_t batch = 2, seqlen = 150, heads = 4, heads_kv = 2, row_bytes = 1 << 21;
  for (const int64_t d : {64, 128, 256}) {
    struct Operand {
      int64_t heads, bytes, first;  // of a batch entry's row; where it begins in a row of all tensors
      tools::DeviceBuffer dense;
      fa3_tensor tensor;
    };
    enum { q, o, dout, dq, k, v, dk, dv, operands };
    std::vector<Operand> all(operands);
    const auto make = [&](void* data, int64_t n, int64_t row) {
      return fa3_tensor{data, FA3_DTYPE_BF16, 4, {batch, seqlen, n, d}, {n * d, row, d, 1}};
    };
    for (int i = 0; i < operands; ++i) {
      Operand& operand = all[size_t(i)];
      operand.heads = i < k ? heads : heads_kv, operand.bytes = batch * operand.heads * d * 2, operand.first = i * 65536;
      std::vector<uint16_t> values(size_t(seqlen * operand.bytes / 2));
      tools::fill_normal(seed_for(9800 + int(d) + i), values.data(), values.size(), FA3_DTYPE_BF16);
      operand.dense = tools::DeviceBuffer(size_t(seqlen * operand.bytes));
      operand.dense.upload(values.data(), values.size() * 2);
      operand.tensor = make(operand.dense.at(0), operand.heads, operand.bytes / 2);
    }
    const tools::DeviceBuffer lse(size_t(batch * heads * seqlen * 4));
    fa3_backward_params p = FA3_BACKWARD_PARAMS_INIT;
    p.mask = FA3_MASK_WINDOW, p.window_left = 100, p.flags = FA3_FLAG_DETERMINISTIC;
    p.lse = {lse.at(0), FA3_DTYPE_FP32, 3, {batch, heads, seqlen}, {heads * seqlen, seqlen, 1}};
    const auto set = [&](const std::vector<Operand>& from) {
      fa3_tensor* const fields[] = {&p.q, &p.o, &p.dout, &p.dq, &p.k, &p.v, &p.dk, &p.dv};
      for (int i = 0; i < operands; ++i) *fields[i] = from[size_t(i)].tensor;
    };
    set(all);
    fa3_forward_params f = FA3_FORWARD_PARAMS_INIT;
    f.q = p.q, f.k = p.k, f.v = p.v, f.o = p.o, f.lse = p.lse, f.mask = p.mask, f.window_left = p.window_left;
    const tools::DeviceBuffer workspace(std::max(tools::workspace_size(f), tools::workspace_size(p)));
    const auto gradients = [&] {
      workspace.fill(0xff);
      const fa3_status status = fa3_backward(&p, workspace.at(0), workspace.size(), gpu().stream.get());
      INFO(fa3_last_error_message());
      REQUIRE(status == FA3_OK);
      gpu().stream.synchronize();
    };
    REQUIRE(fa3_forward(&f, workspace.at(0), workspace.size(), gpu().stream.get()) == FA3_OK);
    gpu().stream.synchronize();
    gradients();

    const tools::DeviceBuffer wide(size_t(seqlen * row_bytes));
    wide.fill(0xff);
    for (Operand& operand : all) {
      std::vector<unsigned char> bytes(size_t(seqlen * operand.bytes));
      operand.dense.download(bytes.data(), bytes.size());
      operand.tensor = make(wide.at(size_t(operand.first)), operand.heads, row_bytes / 2);
      const bool is_output = &operand == &all[dq] || &operand == &all[dk] || &operand == &all[dv];
      for (int64_t row = 0; row < seqlen && !is_output; ++row)
        wide.upload(&bytes[size_t(row * operand.bytes)], size_t(operand.bytes), size_t(row * row_bytes + operand.first));
    }
    set(all);
    gradients();
    for (const int i : {dq, dk, dv}) {
      const Operand& operand = all[size_t(i)];
      std::vector<unsigned char> right(size_t(seqlen * operand.bytes)), row(size_t(operand.bytes));
      operand.dense.download(right.data(), right.size());
      int64_t wrong = 0;
      for (int64_t n = 0; n < seqlen; ++n) {
        wide.download(row.data(), row.size(), size_t(n * row_bytes + operand.first));
        wrong += !std::equal(row.begin(), row.end(), right.begin() + n * operand.bytes);
      }
      INFO("d " << d << ", gradient " << i);
      CHECK(wrong == 0);
    }
  }
}

// Where blocks begin at the diagonal each waits for those behind it, which wrong numbers may take out of the list.
TEST_CASE("planned backward: from the diagonal, with right and wrong numbers", "[planned][backward]") {
  gpu();
  for (int n = 0; n < 4; ++n) {
    tools::Random random(seed_for(9000 + n));
    PlannedProblem p;
    p.mask = FA3_MASK_CAUSAL_BOTTOM_RIGHT, p.head_dim = p.head_dim_v = n % 2 ? 64 : 40;
    p.dtype = n % 3 ? FA3_DTYPE_BF16 : FA3_DTYPE_FP16, p.packed_q = p.packed_k = true;
    p.heads = p.heads_kv = 100, p.seed = random.bits();  // so that blocks are many
    PlannedProblem::Lengths lengths = {{200, 500}, {0, 0}, {150, 500}, {30, 300}, {200, 0}};
    for (auto& [queries, keys] : lengths) queries += random.between(0, 9), keys += random.between(0, 12);
    make_room(p, lengths, 1);
    p.poisoned.assign(size_t(p.batch), false);
    PlannedGradients g = case_of(p, {});
    INFO(text_of(p, {}));
    INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
    CHECK(run(g, true) == "");
    spoil_numbers(g.forward.problem, seed_for(9100 + n));
    g.forward.write_numbers();
    OnDevice device(g, true);
    device.launch(gpu().stream);
    CHECK(device.download(gpu().stream, g) == "");
    CHECK(check_around(g) == "");
  }
}

TEST_CASE("planned backward: a graph is replayed with other lengths", "[planned][backward]") {
  const tools::Stream& stream = gpu().stream;
  for (int n = 0; n < 25; ++n) {
    const uint64_t seed = seed_for(3000 + n);
    const PlannedProblem problem = random_for_kernels(seed, 2e7);
    const Wishes wishes = random_wishes(problem, seed);
    OnDevice device(case_of(problem, wishes), wishes.deterministic);
    tools::Graph::begin(stream);
    device.launch(stream);
    const tools::Graph graph = tools::Graph::end(stream);
    for (int replay = 0; replay < 3; ++replay) {
      PlannedProblem other = problem;
      if (replay > 0) set_numbers(other, other_lengths(problem.lengths, seed_for(4000 + 4 * n + replay)), other.seed);
      PlannedGradients g = case_of(other, wishes);
      INFO(text_of(other, wishes));
      INFO("repeat with FA3_TEST_SEED=" << tools::seed_of_run());
      device.upload(g, 0x80);
      graph.launch(stream);
      CHECK(device.download(stream, g) == "");
      CHECK(verify(g, expect_rounded(g)) == "");
    }
  }
}

// For compute-sanitizer's racecheck and a build for it (-Dracecheck=true), which takes long for each turn.
static void run_a_few_tiles(fa3_dtype dtype) {
  gpu();
  const std::string_view kinds[] = {"plain", "softcap", "alibi", "softcap and alibi", "centered k"};
  for (const int64_t head_dim : {128, 64, 256})
    for (const std::string_view kind : kinds)
      DYNAMIC_SECTION("d " << head_dim << " " << kind)
        for (const int32_t mask : {FA3_MASK_CAUSAL_BOTTOM_RIGHT, FA3_MASK_WINDOW}) {
          PlannedProblem p;
          p.dtype = dtype, p.mask = mask, p.head_dim = p.head_dim_v = head_dim, p.packed_q = p.packed_k = true;
          p.heads = 2, p.heads_kv = 1, p.seed = seed_for(8000), p.guard = 64;
          if (mask == FA3_MASK_WINDOW) p.window_left = 100;
          p.softcap = kind.starts_with("softcap") ? 3.f : 0.f;
          p.has_slopes = kind.ends_with("alibi"), p.centered_k = kind == "centered k";
          make_room(p, {{200, 300}, {70, 90}}, 1);
          p.poisoned.assign(size_t(p.batch), false);
          for (const bool fp32 : {false, true}) {
            const Wishes wishes{false, false, mask == FA3_MASK_WINDOW, fp32, fp32 && mask == FA3_MASK_WINDOW};
            PlannedGradients g = case_of(p, wishes);
            INFO(text_of(p, wishes));
            CHECK(run(g, wishes.deterministic) == "");
          }
        }
}
TEST_CASE("planned backward: a few tiles on each kernel", "[planned][backward][.racecheck]") {
  run_a_few_tiles(FA3_DTYPE_BF16);
}
TEST_CASE("planned backward: a few tiles on each kernel of fp16", "[planned][backward][.racecheck]") {
  run_a_few_tiles(FA3_DTYPE_FP16);
}

// A few, for compute-sanitizer: tensors end where their allocations do.
TEST_CASE("planned backward: small selection", "[planned][backward][sanitizer]") {
  gpu();
  for (int n = 0; n < 12; ++n) check(5000 + n, 1e6, 0);
  for (int n = 0; n < 6; ++n) check(5100 + n, 1e6, 0, n % 2 ? Trait::softcap : Trait::alibi);
  for (int n = 0; n < 6; ++n) check(5200 + n, 1e6, 0, Trait::centered_k);
}

}  // namespace fa3::test
