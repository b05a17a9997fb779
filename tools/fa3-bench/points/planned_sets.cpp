#include "points/planned_sets.h"

#include <algorithm>
#include <array>
#include <string>

#include "points/mixes.h"

namespace fa3::bench {

namespace {

struct Heads {
  int64_t heads, kv_heads, head_dim;

  std::string text() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " d" + std::to_string(head_dim);
  }
};

// In bf16, causal: sequences of one length.
Point batched(const char* kind, int64_t batch, int64_t seqlen, int64_t seqlen_k, const Heads& shape) {
  Point p{FA3_DTYPE_BF16, shape.head_dim, true, batch, seqlen, seqlen_k, shape.heads, shape.kv_heads, {}};
  p.planned.kind = kind;
  return p;
}

// Of lengths of their own.
Point packed(const char* kind, const std::vector<int64_t>& lengths, const std::vector<int64_t>& lengths_k,
             const Heads& shape) {
  Point p = batched(kind, int64_t(lengths.size()), std::ranges::max(lengths), std::ranges::max(lengths_k), shape);
  p.planned.lengths = lengths, p.planned.lengths_k = lengths_k;
  return p;
}

constexpr int64_t mixed = 0;  // in place of a context's length

struct Step {
  int64_t batch, context, page;
};

// One query of each sequence, or several.
Point decoding_step(const char* kind, const Step& step, const Heads& shape, int64_t queries = 1) {
  const bool is_mixed = step.context == mixed;
  Point p = is_mixed ? packed(kind, std::vector(size_t(step.batch), queries), mixed_contexts(step.batch), shape)
                     : batched(kind, step.batch, queries, step.context, shape);
  p.planned.page = step.page;
  p.planned.name = "b" + std::to_string(step.batch) + " ctx " + (is_mixed ? "mixed" : std::to_string(step.context));
  if (shape.head_dim > 512) {
    p.head_dim_v = 512;
    p.planned.name += " sq " + std::to_string(queries) + " heads " + std::to_string(shape.heads) + " page " +
                      std::to_string(step.page);
    return p;
  }
  p.planned.name += " page " + std::to_string(step.page) + " " + shape.text();
  if (queries > 1) p.planned.name += " sq " + std::to_string(queries);
  return p;
}

void set_window(Point& p, int64_t left) {
  p.planned.window = left;
  p.planned.name += " left " + std::to_string(left);
}

void add_plain_steps(std::vector<Point>& points) {
  constexpr Heads usual{32, 8, 128};
  for (const int64_t batch : {1, 8, 32, 128})
    for (const int64_t context : {int64_t{2048}, int64_t{8192}, int64_t{32768}, mixed})
      if (batch > 1 || context != mixed) points.push_back(decoding_step("decode", {batch, context, 64}, usual));
  for (const int64_t page : {16, 128, 256})
    for (const auto& [batch, context] : {std::pair{int64_t{8}, int64_t{8192}}, {32, mixed}, {128, 2048}})
      points.push_back(decoding_step("decode", {batch, context, page}, usual));
  for (const Heads& shape : {Heads{64, 8, 128}, {64, 8, 64}, {32, 8, 256}, {32, 8, 64}, {32, 1, 128}, {8, 8, 128}})
    for (const Step& step : {Step{1, 32768, 64}, {8, 8192, 16}, {8, 8192, 64}, {32, mixed, 64}, {128, 2048, 64}})
      points.push_back(decoding_step("decode", step, shape));
  for (const Step& step : {Step{8, 8192, 64}, {32, mixed, 64}})
    points.push_back(decoding_step("decode", step, usual, 4));
}

void add_latent_steps(std::vector<Point>& points) {
  struct Latent {
    int64_t batch, context, heads, queries;
  };
  for (const auto& [batch, context, heads, queries] :
       {Latent{1, 8192, 128, 1}, {1, 32768, 128, 1}, {32, 2048, 128, 1}, {32, 8192, 128, 1}, {32, 8192, 16, 1},
        {128, 2048, 128, 1}, {128, 2048, 16, 1}, {128, 8192, 128, 1}, {32, mixed, 128, 1}, {32, 8192, 128, 2},
        {128, 4096, 128, 4}})
    points.push_back(decoding_step("mla", {batch, context, 64}, {heads, 1, 576}, queries));
}

}  // namespace

std::vector<Point> planned_decoding() {
  std::vector<Point> points;
  add_plain_steps(points);
  for (const int64_t left : {127, 1023, 4095})
    set_window(points.emplace_back(decoding_step("decode_window", {32, 32768, 64}, {32, 8, 128})), left);
  constexpr Heads with_sinks{64, 8, 64};
  for (const Step& step : {Step{8, 8192, 64}, {32, mixed, 64}})
    set_window(points.emplace_back(decoding_step("sink_decode", step, with_sinks)), 127);
  for (const Step& step : {Step{32, mixed, 64}, {128, 2048, 64}})
    points.push_back(decoding_step("sink_decode", step, with_sinks));
  for (auto p = points.end() - 4; p != points.end(); ++p) p->planned.sinks = true;
  add_latent_steps(points);
  for (const Heads& shape : {Heads{32, 8, 128}, {64, 8, 128}, {64, 8, 64}})
    for (const Step& step :
         {Step{1, 32768, 128}, {8, 8192, 128}, {32, mixed, 128}, {128, 2048, 128}, {32, mixed, 64}})
      points.emplace_back(decoding_step("fp8kv", step, shape)).planned.e4m3_cache = true;
  return points;
}

std::vector<Point> planned_prefill() {
  std::vector<Point> points;
  const auto add = [&](std::vector<int64_t> before, int64_t chunk, int64_t page, const Heads& shape) {
    for (int64_t& keys : before) keys += chunk;
    const auto [least, most] = std::ranges::minmax(before);
    Point& p = points.emplace_back(packed("chunked", std::vector(before.size(), chunk), before, shape));
    p.planned.page = page;
    p.planned.name = std::to_string(before.size()) + " seq; q " + std::to_string(chunk) + " on " +
                     std::to_string(least) + ".." + std::to_string(most) + " page " + std::to_string(page) + " " +
                     shape.text();
  };
  for (const int64_t page : {16, 64, 128, 256})
    for (const std::vector<int64_t>& before :
         {std::vector<int64_t>{8192}, {32768}, {8192, 16384, 24576, 32768}})
      add(before, 512, page, {32, 8, 128});
  for (const int64_t page : {16, 64}) {
    add(std::vector<int64_t>(4, 8192), 2048, page, {64, 8, 64});
    add(std::vector<int64_t>(4, 8192), 512, page, {16, 8, 256});
  }
  return points;
}

std::vector<Point> planned_mixed() {
  struct Batch {
    int64_t decoding;
    std::vector<int64_t> prompts;
  };
  constexpr Heads shape{32, 8, 128};
  std::vector<Point> points;
  for (const int64_t page : {16, 64})
    for (const auto& [decoding, prompts] : {Batch{32, {512}}, {64, {2048}}, {128, {512, 512, 1024}}}) {
      std::vector<int64_t> lengths(size_t(decoding), 1), keys = contexts_beside_prompts(decoding);
      for (const int64_t n : prompts) lengths.push_back(n), keys.push_back(8192 + n);
      Point& p = points.emplace_back(packed("mixed", lengths, keys, shape));
      p.planned.page = page;
      p.planned.name = std::to_string(p.batch) + " seq; q 1.." + std::to_string(p.seqlen) + " on " +
                       std::to_string(std::ranges::min(keys)) + ".." + std::to_string(p.seqlen_k) + " page " +
                       std::to_string(page) + " " + shape.text();
    }
  return points;
}

std::vector<Point> packed_documents() {
  std::vector<Point> points;
  const auto add = [&](const char* kind, const char* name, const std::vector<int64_t>& lengths, const Heads& shape) {
    points.push_back(packed(kind, lengths, lengths, shape));
    points.back().planned.name = std::string(name) + "; " + shape.text();
  };
  const auto same = [](size_t count, int64_t length) { return std::vector<int64_t>(count, length); };
  constexpr Heads usual{32, 8, 128};
  add("varlen", "mixed 16k", mixed_documents(16384), usual);
  add("varlen", "mixed 64k", mixed_documents(65536), usual);
  add("varlen", "8 x 2048", same(8, 2048), usual);
  add("varlen", "32 x 2048", same(32, 2048), usual);
  add("varlen", "4 x 16384", same(4, 16384), usual);
  add("varlen", "64 x 256", same(64, 256), usual);
  std::vector<int64_t> one_long = same(65, 128);
  one_long[0] = 32768;
  add("varlen", "one 32768, 64 of 128", one_long, usual);
  add("varlen", "mixed 16k", mixed_documents(16384), {64, 8, 64});
  add("varlen", "mixed 64k", mixed_documents(65536), {16, 8, 256});
  add("doc", "mixed 16k", mixed_documents(16384), usual);  // again, beside peers that mask one long sequence
  add("doc", "16 x 1024", same(16, 1024), usual);
  return points;
}

std::vector<Point> masked_and_capped() {
  std::vector<Point> points;
  const auto add = [&](const char* kind, int64_t batch, int64_t n, const Heads& shape) -> Point& {
    points.push_back(batched(kind, batch, n, n, shape));
    points.back().planned.name = "b" + std::to_string(batch) + " n" + std::to_string(n) + " " + shape.text();
    return points.back();
  };
  for (const auto& [batch, n] : {std::pair{2, 8192}, {1, 32768}})
    for (const int64_t left : {128, 1024, 4096}) set_window(add("window", batch, n, {32, 8, 128}), left);
  for (const int64_t left : {128, 1024}) set_window(add("window", 2, 8192, {64, 8, 64}), left);
  set_window(add("window", 2, 8192, {16, 8, 256}), 1024);
  set_window(add("window", 2, 8192, {16, 16, 128}), 1024);
  for (const auto& [batch, n, left] : {std::array<int64_t, 3>{4, 4096, 128}, {4, 4096, -1}, {1, 32768, 128}}) {
    Point& p = add("sink", batch, n, {64, 8, 64});
    set_window(p, left);
    p.planned.sinks = true;
  }
  struct Capped {
    int64_t batch, n;
    Heads shape;
  };
  for (const auto& [batch, n, shape] :
       {Capped{4, 4096, {32, 8, 128}}, {2, 8192, {16, 8, 256}}, {4, 4096, {16, 16, 128}}})
    for (const int cap : {30, 50}) {
      Point& p = add("softcap", batch, n, shape);
      p.planned.softcap = float(cap);
      p.planned.name += " cap " + std::to_string(cap);
    }
  add("alibi", 2, 8192, {32, 8, 128}).planned.alibi = true;
  add("alibi", 4, 4096, {16, 16, 64}).planned.alibi = true;
  return points;
}

}  // namespace fa3::bench
