#include "measure/append.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "check/samples.h"
#include "cuda_driver.h"
#include "half.h"
#include "layout.h"
#include "measure/turns.h"
#include "random.h"

namespace fa3::bench {
namespace {

using tools::Layout;

constexpr int64_t keys_before = 1000;  // of each sequence
constexpr float scale = 0.03f;

class AppendRunner {
 public:
  AppendRunner(const Protocol& protocol, const Appending& chosen) : protocol_(protocol), a_(chosen) {
    make_places();
    make_angles();
    const int64_t rows = a_.all_rows(), d = a_.head_dim;
    params_.struct_size = sizeof params_;
    params_.flags = a_.interleaved ? FA3_APPEND_ROTARY_INTERLEAVED : 0;
    params_.k = new_rows(k_, a_.heads_kv), params_.v = new_rows(v_, a_.heads_kv);
    const fa3_dtype cache = a_.e4m3 ? FA3_DTYPE_E4M3 : FA3_DTYPE_BF16;
    const std::vector<int64_t> cache_dims{pages_, a_.page_size, a_.heads_kv, d};
    params_.k_cache = output(k_cache_, cache_dims, cache), params_.v_cache = output(v_cache_, cache_dims, cache);
    if (a_.heads > 0) {
      params_.q = new_rows(q_, a_.heads);
      params_.q_out = output(q_out_, {rows, a_.heads, d}, FA3_DTYPE_BF16);
    }
    if (a_.e4m3) params_.k_scale = params_.v_scale = input(std::vector<float>{scale}, FA3_DTYPE_FP32, {1, 1, 1});
    if (a_.rotates) {
      params_.rotary_cos = input(cos_, FA3_DTYPE_FP32, {angles_, d / 2});
      params_.rotary_sin = input(sin_, FA3_DTYPE_FP32, {angles_, d / 2});
    }
    if (a_.slots) {
      params_.slot_mapping = input(slots_, FA3_DTYPE_INT64, {rows});
      if (a_.rotates) params_.rotary_positions = input(positions_, FA3_DTYPE_INT64, {rows});
    } else {
      params_.cache_seqlens = input(std::vector<int32_t>(size_t(a_.batch), int32_t(keys_before)), FA3_DTYPE_INT32,
                                    {a_.batch});
      params_.cu_seqlens_new = input(cu_, FA3_DTYPE_INT32, {a_.batch + 1});
      params_.page_table = input(table_, FA3_DTYPE_INT32, {a_.batch, int64_t(table_.size()) / a_.batch});
    }
    const size_t copied = size_t(a_.bytes() / 2);
    from_ = tools::DeviceBuffer(copied), copy_ = tools::DeviceBuffer(copied);
    from_.fill(poison_byte);
  }

  AppendResult run() {
    const auto call = [&] {
      if (fa3_append(&params_, stream_.get()) != FA3_OK)
        throw tools::CudaError(std::string("fa3_append: ") + fa3_last_error_message());
    };
    const auto copy = [&] { FA3_CU(cuMemcpyDtoDAsync, copy_.get(), from_.get(), copy_.size(), stream_.get()); };
    return checked_and_timed(protocol_, stream_, a_, call, copy, [&] { return check(); });
  }

 private:
  // Pages in any order. Only those that new rows go to are there: the table has one of them in place of the others.
  void make_places() {
    std::vector<int64_t> counts(size_t(a_.batch), a_.rows);
    if (a_.long_rows) counts[0] = a_.long_rows;
    const int64_t first_page = keys_before / a_.page_size, longest = *std::max_element(counts.begin(), counts.end());
    const int64_t columns = (keys_before + longest + a_.page_size - 1) / a_.page_size;
    for (const int64_t n : counts) pages_ += (keys_before + n + a_.page_size - 1) / a_.page_size - first_page;
    std::vector<int32_t> order(static_cast<size_t>(pages_));
    std::iota(order.begin(), order.end(), 0);
    tools::Random random(tools::mix(protocol_.seed, 5));
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.bits() % i]);
    table_.assign(size_t(a_.batch * columns), order[0]);
    cu_.push_back(0);
    size_t next = 0;
    for (int64_t b = 0; b < a_.batch; ++b) {
      const int64_t n = counts[size_t(b)];
      int32_t* const row = &table_[size_t(b * columns)];
      for (int64_t page = first_page; page * a_.page_size < keys_before + n; ++page) row[page] = order[next++];
      for (int64_t i = 0; i < n; ++i) {
        const int64_t position = keys_before + i;
        positions_.push_back(position);
        slots_.push_back(row[position / a_.page_size] * a_.page_size + position % a_.page_size);
      }
      cu_.push_back(int32_t(cu_.back() + n));
    }
    angles_ = keys_before + longest;
  }

  void make_angles() {
    const int64_t half = a_.head_dim / 2;
    cos_.resize(size_t(angles_ * half)), sin_.resize(cos_.size());
    for (int64_t i = 0; i < angles_; ++i)
      for (int64_t c = 0; c < half; ++c) {
        const double angle = double(i) * std::pow(10000.0, -double(c) / double(half));
        cos_[size_t(i * half + c)] = float(std::cos(angle)), sin_[size_t(i * half + c)] = float(std::sin(angle));
      }
  }

  template <class T>
  fa3_tensor input(const std::vector<T>& numbers, fa3_dtype dtype, const std::vector<int64_t>& dims) {
    inputs_.emplace_back(numbers.size() * sizeof(T));
    inputs_.back().upload(numbers.data(), numbers.size() * sizeof(T));
    return Layout::packed(dims).tensor(inputs_.back().at(0), dtype);
  }
  fa3_tensor new_rows(std::vector<uint16_t>& numbers, int64_t heads) {
    const std::vector<int64_t> dims{a_.all_rows(), heads, a_.head_dim};
    numbers.resize(size_t(Layout::packed(dims).count()));
    tools::fill_normal(tools::mix(protocol_.seed, inputs_.size()), numbers.data(), numbers.size(), FA3_DTYPE_BF16);
    return input(numbers, FA3_DTYPE_BF16, dims);
  }
  static fa3_tensor output(tools::DeviceBuffer& buffer, const std::vector<int64_t>& dims, fa3_dtype dtype) {
    const Layout layout = Layout::packed(dims);
    buffer = tools::DeviceBuffer(size_t(layout.count() * tools::element_bytes(dtype)));
    buffer.fill(poison_byte);
    return layout.tensor(buffer.at(0), dtype);
  }

  // Sampled rows of K, V and Q against float64, up to one rounding.
  std::string check() const {
    std::string problem = check("k", k_, k_cache_, a_.heads_kv, true, a_.rotates, a_.e4m3);
    if (problem.empty()) problem = check("v", v_, v_cache_, a_.heads_kv, true, false, a_.e4m3);
    if (problem.empty() && a_.heads > 0) problem = check("q", q_, q_out_, a_.heads, false, a_.rotates, false);
    return problem;
  }

  std::string check(const char* what, const std::vector<uint16_t>& x, const tools::DeviceBuffer& buffer, int64_t heads,
                    bool in_cache, bool rotates, bool e4m3) const {
    const fa3_dtype dtype = e4m3 ? FA3_DTYPE_E4M3 : FA3_DTYPE_BF16;
    std::vector<uint8_t> y(buffer.size());
    buffer.download(y.data(), y.size());
    return first_problem(protocol_.checked_rows, [&](int64_t n) -> std::string {
      const Place place = sample(protocol_.seed, n, {a_.all_rows()}, heads);
      const int64_t d = a_.head_dim, half = d / 2, position = positions_[size_t(place.row)];
      const uint16_t* const row = &x[size_t((place.row * heads + place.head) * d)];
      const int64_t to = ((in_cache ? slots_[size_t(place.row)] : place.row) * heads + place.head) * d;
      for (int64_t c = 0; c < d; ++c) {
        const bool second = a_.interleaved ? c % 2 : c >= half;
        const int64_t pair = a_.interleaved ? c / 2 : c % half;
        const int64_t other = a_.interleaved ? c ^ 1 : second ? c - half : c + half;
        double must = tools::from_half(row[c], FA3_DTYPE_BF16);
        const double partner = tools::from_half(row[other], FA3_DTYPE_BF16);
        const double turn = cos_[size_t(position * half + pair)], side = sin_[size_t(position * half + pair)];
        if (rotates) must = must * turn + (second ? partner : -partner) * side;
        if (e4m3) must = std::clamp(must / double{scale}, -448.0, 448.0);
        const double is = tools::read_element(y.data(), to + c, dtype);
        const double least = e4m3 ? 0x1p-10 : 1e-6;  // half of the least step, or what float32's products leave
        if (!(std::fabs(is - must) <= 1.01 * tools::unit_roundoff(dtype) * std::fabs(must) + least))
          return wrong(what, place, is, must);
      }
      return "";
    });
  }

  const Protocol& protocol_;
  const Appending a_;
  int64_t pages_ = 0, angles_ = 0;
  std::vector<int32_t> table_, cu_;
  std::vector<int64_t> slots_, positions_;  // of each row
  std::vector<float> cos_, sin_;
  std::vector<uint16_t> k_, v_, q_;
  tools::Stream stream_;
  std::vector<tools::DeviceBuffer> inputs_;
  tools::DeviceBuffer k_cache_, v_cache_, q_out_, from_, copy_;
  fa3_append_params params_{};
};

}  // namespace

int64_t Appending::bytes() const {
  const int64_t width = e4m3 ? 1 : 2;
  return all_rows() * head_dim * (heads * 4 + 2 * heads_kv * (2 + width));
}

std::vector<Appending> appendings() {
  std::vector<Appending> all;
  for (const int64_t batch : {1, 8, 32, 64, 128, 256}) all.push_back({"decode", batch, 1, 32, 8, 128});
  for (const bool e4m3 : {false, true}) {
    const std::string to = e4m3 ? ", to e4m3" : "";
    all.push_back({"decode" + to, 256, 1, 32, 8, 128, true, false, e4m3});
    all.push_back({"K and V alone" + to, 256, 1, 0, 8, 128, false, false, e4m3, true});
    all.push_back({"K and V alone" + to, 1, 32768, 0, 8, 128, false, false, e4m3, true});
    all.push_back({"K and V alone, rotated" + to, 1, 32768, 0, 8, 128, true, false, e4m3, true});
    all.push_back({"prompts" + to, 4, 8192, 32, 8, 128, true, false, e4m3});
    all.push_back({"prompts, interleaved" + to, 4, 8192, 32, 8, 128, true, true, e4m3});
    all.push_back({"a prompt, decoding" + to, 64, 1, 32, 8, 128, true, false, e4m3, false, 8192});
  }
  all.push_back({"many prompts", 1024, 32, 32, 8, 128});
  all.push_back({"prompts", 4, 16384, 32, 8, 64});
  all.push_back({"prompts", 4, 4096, 16, 16, 256});
  all.push_back({"prompts", 4, 8192, 20, 4, 96});
  all.push_back({"one head of K and V", 4, 32768, 8, 1, 128});
  all.push_back({"one head, alone", 4, 65536, 0, 1, 64, true, false, false, true});
  all.push_back({"pages of 1", 4, 8192, 32, 8, 128, true, false, false, false, 0, 1});
  all.push_back({"pages of 256", 4, 8192, 32, 8, 128, true, false, false, false, 0, 256});
  return all;
}

std::vector<AppendResult> run_appendings(const Protocol& protocol, const std::vector<Appending>& appendings) {
  return run_each<AppendRunner>(protocol, appendings);
}

void print(FILE* out, const std::vector<AppendResult>& results) {
  std::fprintf(out, "%-34s %11s %5s %3s %4s %8s %9s %7s %9s %6s\n", "fa3_append", "rows", "heads", "kv", "d", "MB",
               "us", "GB/s", "copy us", "share");
  for (const AppendResult& r : results) {
    const Appending& a = r.of;
    const std::string rows = std::to_string(a.batch) + "x" + std::to_string(a.rows);
    std::fprintf(out, "%-34s %11s %5lld %3lld %4lld ", a.name.c_str(), rows.c_str(), static_cast<long long>(a.heads),
                 static_cast<long long>(a.heads_kv), static_cast<long long>(a.head_dim));
    if (!r.problem.empty()) std::fprintf(out, "%s\n", r.problem.c_str());
    else
      std::fprintf(out, "%8.2f %9.2f %7.0f %9.2f %6.2f\n", double(a.bytes()) * 1e-6, r.us, r.gigabytes_per_second(),
                   r.copy_us, r.share());
  }
}

}  // namespace fa3::bench
