// fa3-bench: checks and times the library's forward or backward pass, or its combination of partial results. Exit
// status: 0, 1 if a point failed or all plans are refused, 2 for a wrong command line, 77 if there is no GPU.
#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "check/reference.h"
#include "measure/append.h"
#include "measure/combine.h"
#include "measure/measure.h"
#include "options/options.h"
#include "plans/plans.h"
#include "report/report.h"

namespace fa3::bench {

static void write(const std::string& path, const Report& report, void (Report::*print)(FILE*) const) {
  if (path.empty()) return;
  FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  if (!file) throw std::runtime_error("cannot write " + path);
  (report.*print)(file);
  if (file != stdout && std::fclose(file) != 0) throw std::runtime_error("cannot write " + path);
}

// That plans are for.
static Card card_of(const Options& options) {
  constexpr int usual = 132;  // multiprocessors of H100 SXM and H200
  for (const NamedCard& known : known_cards)
    if (options.card == known.name) return known.card;
  if (options.multiprocessors || !tools::why_no_hopper().empty())
    return assumed_card(options.multiprocessors ? options.multiprocessors : usual);
  const tools::DeviceInfo info = tools::device_info();
  return card_of_device(info.sms, memory_bytes_per_us(info.memory_khz, info.memory_bits), info.cache_bytes,
                        info.max_clock_khz);
}

// --list: what would be run.
static void list(const Options& options, const std::vector<Point>& points) {
  Report plan;
  plan.protocol = options.protocol;
  plan.results = plan_points(points, card_of(options).multiprocessors);
  write(options.json, plan, &Report::print_list);
  if (options.json.empty())
    for (const Point& point : points) std::printf("%s\n", point.label().c_str());
}

static void show_progress(size_t done, size_t all, const Result& result) {
  std::fprintf(stderr, "\r\033[K[%zu/%zu] %s: %.1f TFLOP/s", done, all, result.point.label().c_str(), result.tflops());
  if (done == all) std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
}

static int run(const Options& options) {
  std::vector<std::string> left_out;
  const std::vector<Point> points = options.selection.points(&left_out);
  for (const std::string& line : left_out) std::fprintf(stderr, "fa3-bench: left out: %s\n", line.c_str());
  if (options.reference) return run_reference(options.protocol.seed);
  if (points.empty()) throw std::invalid_argument("no point to run");
  if (options.list) {
    list(options, points);
    return 0;
  }
  if (options.plan) {
    const Plans plans = show_plans(points, card_of(options), options.pieces);
    std::fputs(plans.text.c_str(), stdout);
    return plans.refused == points.size();
  }
  if (const std::string reason = tools::why_no_hopper(); !reason.empty()) {
    std::fprintf(stderr, "fa3-bench: no Hopper GPU: %s. --reference runs the CPU reference instead.\n", reason.c_str());
    return 77;
  }

  if (options.combine) {
    const std::vector<CombineResult> results = run_combinations(options.protocol, combinations());
    print(stdout, results);
    return std::any_of(results.begin(), results.end(), [](const CombineResult& r) { return !r.problem.empty(); });
  }

  if (options.append) {
    const std::vector<AppendResult> results = run_appendings(options.protocol, appendings());
    print(stdout, results);
    return std::any_of(results.begin(), results.end(), [](const AppendResult& r) { return !r.problem.empty(); });
  }

  const int passes = options.protocol.passes;
  Report report{tools::device_info(), options.protocol, {}, {}};
  Bench bench(options.protocol, points);
  if (options.overhead) {
    report.overhead = tools::host_overhead();
    report.print_overhead(options.json == "-" ? stderr : stdout);
  } else {
    report.results = plan_points(points, current_device);

    size_t done = 0;
    for (int pass = 0; pass < passes; ++pass)
      for (Result& result : report.results) {
        bench.run(result);
        if (options.progress) show_progress(++done, points.size() * size_t(passes), result);
      }
    report.print_table(options.csv == "-" || options.json == "-" ? stderr : stdout);
    write(options.csv, report, &Report::print_csv);
  }
  write(options.json, report, &Report::print_json);
  for (const Result& result : report.results)
    if (!result.problem.empty()) return 1;
  return 0;
}

}  // namespace fa3::bench

int main(int argc, char* argv[]) {
  try {
    const auto options = fa3::bench::Options::parse(argc, argv);
    if (!options.answer.empty()) {
      std::fputs(options.answer.c_str(), stdout);
      return 0;
    }
    return fa3::bench::run(options);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "fa3-bench: %s (--help lists the options)\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fa3-bench: %s\n", error.what());
    return 1;
  }
}
