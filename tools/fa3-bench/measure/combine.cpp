#include "measure/combine.h"

#include <algorithm>
#include <cmath>

#include "check/samples.h"
#include "cuda_driver.h"
#include "half.h"
#include "layout.h"
#include "measure/turns.h"
#include "parallel.h"
#include "random.h"

namespace fa3::bench {
namespace {

const char* dtype_name(fa3_dtype dtype) { return dtype == FA3_DTYPE_FP32 ? "fp32" : tools::dtype_name(dtype); }

// Parts of N(0,1) are the same numbers, each from so many elements further on.
constexpr int64_t shift = 8;

class CombineRunner {
 public:
  CombineRunner(const Protocol& protocol, const Combination& chosen) : protocol_(protocol), c_(chosen) {
    const int64_t count = c_.elements() + shift * c_.parts, rows = c_.rows();
    const int width = tools::element_bytes(c_.parts_dtype);
    numbers_.resize(size_t(count * width));
    const uint64_t seed = tools::mix(protocol_.seed, 1);
    if (c_.parts_dtype == FA3_DTYPE_FP32) {
      tools::parallel_for(count, 1 << 16, [&](int64_t begin, int64_t end) {
        tools::normal(seed, uint64_t(begin), reinterpret_cast<float*>(numbers_.data()) + begin, size_t(end - begin));
      });
    } else {
      tools::fill_normal(seed, reinterpret_cast<uint16_t*>(numbers_.data()), size_t(count), c_.parts_dtype);
    }
    lse_numbers_.resize(size_t(c_.parts * rows));
    tools::normal(tools::mix(protocol_.seed, 2), 0, lse_numbers_.data(), lse_numbers_.size());
    const size_t part_bytes = size_t(c_.elements() * width);
    const size_t copied = size_t(c_.bytes() / 2);  // from o_parts
    o_parts_ = tools::DeviceBuffer(std::max(part_bytes * size_t(c_.parts), copied));
    for (int64_t n = 0; n < c_.parts; ++n)
      o_parts_.upload(numbers_.data() + n * shift * width, part_bytes, part_bytes * size_t(n));
    lse_parts_ = tools::DeviceBuffer(lse_numbers_.size() * 4);
    lse_parts_.upload(lse_numbers_.data(), lse_numbers_.size() * 4);
    o_ = tools::DeviceBuffer(size_t(c_.elements() * tools::element_bytes(c_.o_dtype)));
    lse_ = tools::DeviceBuffer(size_t(rows) * 4);
    o_.fill(poison_byte), lse_.fill(poison_byte);
    copy_ = tools::DeviceBuffer(copied);

    using tools::Layout;
    params_.struct_size = sizeof params_;
    params_.o_parts =
        Layout::packed({c_.parts, c_.batch, c_.seqlen, c_.heads, c_.head_dim}).tensor(o_parts_.at(0), c_.parts_dtype);
    params_.lse_parts =
        Layout::packed({c_.parts, c_.batch, c_.heads, c_.seqlen}).tensor(lse_parts_.at(0), FA3_DTYPE_FP32);
    params_.o = Layout::packed({c_.batch, c_.seqlen, c_.heads, c_.head_dim}).tensor(o_.at(0), c_.o_dtype);
    params_.lse = Layout::packed({c_.batch, c_.heads, c_.seqlen}).tensor(lse_.at(0), FA3_DTYPE_FP32);
  }

  CombineResult run() {
    const auto call = [&] {
      if (fa3_combine(&params_, stream_.get()) != FA3_OK)
        throw tools::CudaError(std::string("fa3_combine: ") + fa3_last_error_message());
    };
    const auto copy = [&] {
      FA3_CU(cuMemcpyDtoDAsync, copy_.get(), o_parts_.get(), size_t(c_.bytes() / 2), stream_.get());
    };
    return checked_and_timed(protocol_, stream_, c_, call, copy, [&] { return check(); });
  }

 private:
  // Sampled rows against float64: one rounding, and some last bits of float32 in the weights and sums.
  std::string check() const {
    std::vector<uint8_t> o(o_.size());
    std::vector<float> lse(size_t(c_.rows()));
    o_.download(o.data(), o.size());
    lse_.download(lse.data(), lse.size() * 4);
    if (const std::string problem = unwritten("lse", lse.data(), c_.rows()); !problem.empty()) return problem;
    const bool fp32 = c_.o_dtype == FA3_DTYPE_FP32;
    const double roundoff = fp32 ? 0x1p-24 : tools::unit_roundoff(c_.o_dtype), sums = 1.5e-6 + 6e-8 * double(c_.parts);
    const std::vector<int64_t> rows(size_t(c_.batch), c_.seqlen);
    return first_problem(protocol_.checked_rows, [&](int64_t n) -> std::string {
      const Place place = sample(protocol_.seed, n, rows, c_.heads);
      const int64_t lse_at = (place.batch * c_.heads + place.head) * c_.seqlen + place.row;
      const int64_t o_at = ((place.batch * c_.seqlen + place.row) * c_.heads + place.head) * c_.head_dim;
      double sum = 0;
      for (int64_t i = 0; i < c_.parts; ++i) sum += std::exp(double{lse_numbers_[size_t(i * c_.rows() + lse_at)]});
      if (!(std::fabs(lse[size_t(lse_at)] - std::log(sum)) <= 1.2e-7 * std::fabs(std::log(sum)) + sums))
        return wrong("lse", place, lse[size_t(lse_at)], std::log(sum));
      for (int64_t x = 0; x < c_.head_dim; ++x) {
        double exact = 0, largest = 0;
        for (int64_t i = 0; i < c_.parts; ++i) {
          const double weight = std::exp(double{lse_numbers_[size_t(i * c_.rows() + lse_at)]}) / sum;
          const double number = tools::read_element(numbers_.data(), o_at + x + i * shift, c_.parts_dtype);
          exact += weight * number;
          largest = std::max(largest, std::fabs(number));
        }
        const double is = tools::read_element(o.data(), o_at + x, c_.o_dtype);
        if (!(std::fabs(is - exact) <= 1.001 * roundoff * std::fabs(exact) + 0x1p-25 + sums * largest))
          return wrong("o", place, is, exact);
      }
      return "";
    });
  }

  const Protocol& protocol_;
  const Combination c_;
  std::vector<uint8_t> numbers_;
  std::vector<float> lse_numbers_;
  tools::Stream stream_;
  tools::DeviceBuffer o_parts_, lse_parts_, o_, lse_, copy_;
  fa3_combine_params params_{};
};

}  // namespace

int64_t Combination::bytes() const {
  return parts * (elements() * tools::element_bytes(parts_dtype) + rows() * 4) +
         elements() * tools::element_bytes(o_dtype) + rows() * 4;
}

std::string Combination::label() const {
  return std::string(dtype_name(parts_dtype)) + " to " + dtype_name(o_dtype) + " d" + std::to_string(head_dim) + " " +
         std::to_string(batch) + "x" + std::to_string(seqlen) + "x" + std::to_string(heads) + " parts " +
         std::to_string(parts);
}

std::vector<Combination> combinations() {
  std::vector<Combination> all;
  for (const auto& [from, to] : {std::pair{FA3_DTYPE_FP32, FA3_DTYPE_BF16}, {FA3_DTYPE_BF16, FA3_DTYPE_BF16}})
    for (const int64_t head_dim : {64, 128, 256})
      for (const int64_t parts : {2, 3, 8, 64}) {
        all.push_back({from, to, parts, 2, 8192, 2048 / head_dim, head_dim});
        all.push_back({from, to, parts, 64, 1, 32, head_dim});
      }
  all.push_back({FA3_DTYPE_FP32, FA3_DTYPE_FP32, 2, 2, 8192, 16, 128});
  all.push_back({FA3_DTYPE_BF16, FA3_DTYPE_FP32, 2, 2, 8192, 16, 128});
  all.push_back({FA3_DTYPE_FP16, FA3_DTYPE_FP16, 3, 2, 8192, 16, 128});
  all.push_back({FA3_DTYPE_FP32, FA3_DTYPE_BF16, 64, 1, 1, 32, 128});
  all.push_back({FA3_DTYPE_BF16, FA3_DTYPE_BF16, 3, 2, 8192, 16, 96});
  all.push_back({FA3_DTYPE_BF16, FA3_DTYPE_BF16, 3, 2, 8192, 4, 512});
  return all;
}

std::vector<CombineResult> run_combinations(const Protocol& protocol, const std::vector<Combination>& combinations) {
  return run_each<CombineRunner>(protocol, combinations);
}

void print(FILE* out, const std::vector<CombineResult>& results) {
  std::fprintf(out, "%-44s %8s %9s %7s %9s %6s\n", "fa3_combine", "MB", "us", "GB/s", "copy us", "share");
  for (const CombineResult& r : results) {
    if (!r.problem.empty()) {
      std::fprintf(out, "%-44s %s\n", r.of.label().c_str(), r.problem.c_str());
      continue;
    }
    std::fprintf(out, "%-44s %8.1f %9.2f %7.0f %9.2f %6.2f\n", r.of.label().c_str(),
                 double(r.of.bytes()) * 1e-6, r.us, r.gigabytes_per_second(), r.copy_us, r.share());
  }
}

}  // namespace fa3::bench
