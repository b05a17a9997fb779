#include "report.h"

#include <cmath>
#include <ctime>
#include <map>

#include "half.h"

namespace fa3::bench {

// Share of what the tensor cores could do at the card's highest SM clock.
double Report::peak_share(const Result& result) const {
  return result.tflops() / device.matrix_peak_tflops(device.max_clock_mhz());
}

void Report::print_overhead(FILE* out) const {
  if (overhead)
    std::fprintf(out,
                 "host time of a warm call: median %.2f us, minimum %.2f us, 99th percentile %.2f us over %d calls; "
                 "cuLaunchKernel of an empty kernel: median %.2f us\n",
                 overhead->median_us, overhead->min_us, overhead->p99_us, overhead->calls, overhead->launch_us);
}

void Report::print_table(FILE* out) const {
  std::fprintf(
      out, "%s, %d SMs, %.0f MHz at most: matrix peak %.0f TFLOP/s. %d ms idle, %d warm-ups, %d runs, %d pass%s.\n",
      device.name.c_str(), device.sms, device.max_clock_mhz(), device.matrix_peak_tflops(device.max_clock_mhz()),
      protocol.idle_ms, protocol.warmups, protocol.reps, passes, passes == 1 ? "" : "es");
  std::fprintf(out, "%-5s %4s %6s %5s %7s %7s %9s %9s %9s %7s %8s %6s%s  %s\n", "dtype", "d", "mask", "batch", "seqlen",
               "heads", "median ms", "min ms", "spread", "TFLOP/s", "of peak", "check",
               protocol.clock ? "   MHz at clock" : "", "kernel");
  std::map<std::string, std::pair<double, int>> groups;
  for (const Result& r : results) {
    const Point& p = r.point;
    char heads[32], seqlen[32];
    std::snprintf(heads, sizeof heads, p.heads == p.kv_heads ? "%lld" : "%lld/%lld", (long long)p.heads,
                  (long long)p.kv_heads);
    std::snprintf(seqlen, sizeof seqlen, p.seqlen == p.seqlen_k ? "%lld" : "%lld/%lld", (long long)p.seqlen,
                  (long long)p.seqlen_k);
    std::fprintf(out, "%-5s %4lld %6s %5lld %7s %7s ", tools::dtype_name(p.dtype), (long long)p.head_dim,
                 p.causal ? "causal" : "full", (long long)p.batch, seqlen, heads);
    if (!r.problem.empty()) {
      std::fprintf(out, "FAILED: %s\n", r.problem.c_str());
      continue;
    }
    std::fprintf(out, "%9.4f %9.4f %8.1f%% %7.1f %7.1f%% %6s", r.median_ms, r.min_ms, 100 * r.spread, r.tflops(),
                 100 * peak_share(r), r.checked ? "ok" : "-");
    if (protocol.clock)
      std::fprintf(out, " %5.0f %7.1f%%", r.clock_mhz,
                   r.clock_mhz > 0 ? 100 * r.tflops() / device.matrix_peak_tflops(r.clock_mhz) : 0);
    std::fprintf(out, "  %s\n", r.kernel.c_str());
    auto& [log_sum, count] = groups[std::string(tools::dtype_name(p.dtype)) + " d" + std::to_string(p.head_dim) +
                                    (p.causal ? " causal" : " full") + (p.kernel.empty() ? "" : " " + p.kernel)];
    log_sum += std::log(r.tflops());
    ++count;
  }
  for (const auto& [name, group] : groups)
    if (group.second > 1)
      std::fprintf(out, "geometric mean of %s: %.1f TFLOP/s over %d points\n", name.c_str(),
                   std::exp(group.first / group.second), group.second);
}

void Report::print_csv(FILE* out) const {
  std::fprintf(
      out,
      "direction,dtype,head_dim,causal,batch,seqlen,heads,kv_heads,median_ms,min_ms,tflops,checked,kernel,seqlen_k,"
      "spread,peak_share,clock_mhz,passes,reps\n");
  for (const Result& r : results) {
    const Point& p = r.point;
    std::fprintf(out, "fwd,%s,%lld,%d,%lld,%lld,%lld,%lld,%.5f,%.5f,%.1f,%d,%s,%lld,%.4f,%.4f,%.0f,%d,%d\n",
                 tools::dtype_name(p.dtype), (long long)p.head_dim, int(p.causal), (long long)p.batch,
                 (long long)p.seqlen, (long long)p.heads, (long long)p.kv_heads, r.median_ms, r.min_ms, r.tflops(),
                 int(r.checked), r.kernel.c_str(), (long long)p.seqlen_k, r.spread, peak_share(r), r.clock_mhz, passes,
                 protocol.reps);
  }
}

// Messages of the library and names of the driver hold no control characters; quotes and backslashes are escaped.
static std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

void Report::print_json(FILE* out) const {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  std::fprintf(
      out,
      "{\n  \"date\": \"%s\",\n  \"library_version\": %d,\n  \"device\": %s,\n  \"cuda_driver\": %d,\n  \"sms\": %d,\n"
      "  \"max_clock_mhz\": %.0f,\n  \"matrix_peak_tflops\": %.1f,\n",
      date, fa3_version(), quoted(device.name).c_str(), device.driver_version, device.sms, device.max_clock_mhz(),
      device.matrix_peak_tflops(device.max_clock_mhz()));
  std::fprintf(out, "  \"protocol\": {\"idle_ms\": %d, \"warmups\": %d, \"reps\": %d, \"passes\": %d},\n",
               protocol.idle_ms, protocol.warmups, protocol.reps, passes);
  if (overhead)
    std::fprintf(out,
                 "  \"host_overhead_us\": {\"median\": %.3f, \"min\": %.3f, \"p99\": %.3f, \"launch\": %.3f, "
                 "\"calls\": %d},\n",
                 overhead->median_us, overhead->min_us, overhead->p99_us, overhead->launch_us, overhead->calls);
  std::fprintf(out, "  \"points\": [");
  const char* separator = "\n";
  for (const Result& r : results) {
    const Point& p = r.point;
    std::fprintf(
        out,
        "%s    {\"direction\": \"fwd\", \"dtype\": \"%s\", \"head_dim\": %lld, \"causal\": %s, \"batch\": %lld, "
        "\"seqlen\": %lld, \"seqlen_k\": %lld, \"heads\": %lld, \"kv_heads\": %lld, \"median_ms\": %.5f, "
        "\"min_ms\": %.5f, \"tflops\": %.2f, \"spread\": %.4f, \"peak_share\": %.4f, \"clock_mhz\": %.0f, "
        "\"checked\": %s, \"kernel\": %s, \"problem\": %s, \"pass_median_ms\": [",
        separator, tools::dtype_name(p.dtype), (long long)p.head_dim, p.causal ? "true" : "false", (long long)p.batch,
        (long long)p.seqlen, (long long)p.seqlen_k, (long long)p.heads, (long long)p.kv_heads, r.median_ms, r.min_ms,
        r.tflops(), r.spread, peak_share(r), r.clock_mhz, r.checked ? "true" : "false", quoted(r.kernel).c_str(),
        quoted(r.problem).c_str());
    for (size_t i = 0; i < r.pass_medians.size(); ++i) std::fprintf(out, "%s%.5f", i ? ", " : "", r.pass_medians[i]);
    std::fprintf(out, "]}");
    separator = ",\n";
  }
  std::fprintf(out, "\n  ]\n}\n");
}

}  // namespace fa3::bench
