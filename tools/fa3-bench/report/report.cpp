#include "report/report.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "half.h"

namespace fa3::bench {

// What the tensor cores could do at a clock: with e4m3 twice what they can with 16 bits.
double Report::peak(const Result& result, double mhz) const {
  return device.matrix_peak_tflops(mhz) * (result.point.is_fp8() ? 2 : 1);
}

double Report::peak_share(const Result& result) const { return result.tflops() / peak(result, device.max_clock_mhz()); }

void Report::print_overhead(FILE* out) const {
  if (overhead)
    std::fprintf(out,
                 "host time of a warm call: median %.2f us, minimum %.2f us, 99th percentile %.2f us over %d calls; "
                 "cuLaunchKernel of an empty kernel: median %.2f us\n",
                 overhead->median_us, overhead->min_us, overhead->p99_us, overhead->calls, overhead->launch_us);
}

// " lengths 1,512 lengths_k 300,4608", "" of batches.
static std::string lengths_of(const Point& p) {
  if (!p.packed_q()) return "";
  const std::string keys = p.planned.lengths_k == p.planned.lengths ? "" : " lengths_k " + listed(p.planned.lengths_k);
  return " lengths " + listed(p.planned.lengths) + keys;
}

static std::string call_of(const Point& p) {
  const std::string call = lengths_of(p) + p.planned.words();
  return call.empty() ? "" : call.substr(1);
}

void Report::print_table(FILE* out) const {
  std::fprintf(
      out, "%s, %d SMs, %.0f MHz at most: matrix peak %.0f TFLOP/s. %d ms idle, %d warm-ups, %d runs, %d pass%s.\n",
      device.name.c_str(), device.sms, device.max_clock_mhz(), device.matrix_peak_tflops(device.max_clock_mhz()),
      protocol.idle_ms, protocol.warmups, protocol.reps, protocol.passes, protocol.passes == 1 ? "" : "es");
  std::fprintf(out, "%-5s %7s %6s %5s %7s %7s %9s %9s %9s %7s %8s %7s %6s%s  %s\n", "dtype", "d", "mask", "batch",
               "seqlen", "heads", "median ms", "min ms", "spread", "TFLOP/s", "of peak", "GB/s", "check",
               protocol.clock ? "   MHz at clock" : "", "kernel");
  std::map<std::string, std::pair<double, int>> groups;
  for (const Result& r : results) {
    const Point& p = r.point;
    char heads[32], seqlen[32], head_dim[32];
    std::snprintf(head_dim, sizeof head_dim, p.v_dim() == p.head_dim ? "%lld" : "%lldx%lld", (long long)p.head_dim,
                  (long long)p.v_dim());
    std::snprintf(heads, sizeof heads, p.heads == p.kv_heads ? "%lld" : "%lld/%lld", (long long)p.heads,
                  (long long)p.kv_heads);
    std::snprintf(seqlen, sizeof seqlen, p.seqlen == p.seqlen_k ? "%lld" : "%lld/%lld", (long long)p.seqlen,
                  (long long)p.seqlen_k);
    std::fprintf(out, "%-5s %7s %6s %5lld %7s %7s ", tools::dtype_name(p.dtype), head_dim,
                 p.causal ? "causal" : "full", (long long)p.batch, seqlen, heads);
    if (!r.problem.empty()) {
      std::fprintf(out, "FAILED: %s\n", r.problem.c_str());
      continue;
    }
    std::fprintf(out, "%9.4f %9.4f %8.1f%% %7.1f %7.1f%% %7.0f %6s", r.median_ms, r.min_ms, 100 * r.spread, r.tflops(),
                 100 * peak_share(r), r.gbytes(), r.checked ? "ok" : "-");
    if (protocol.clock)
      std::fprintf(out, " %5.0f %7.1f%%", r.clock_mhz,
                   r.clock_mhz > 0 ? 100 * r.tflops() / peak(r, r.clock_mhz) : 0);
    std::fprintf(out, "  %s%s%s", r.kernel.c_str(), lengths_of(p).c_str(), p.form().c_str());
    std::fprintf(out, "%s%s\n", p.planned.name.empty() ? "" : ": ", p.planned.name.c_str());
    auto& [log_sum, count] = groups[p.kind() + p.form() + (p.library_chooses() ? "" : " " + p.kernel)];
    log_sum += std::log(r.tflops());
    ++count;
  }
  for (const auto& [name, group] : groups)
    if (group.second > 1)
      std::fprintf(out, "geometric mean of %s: %.1f TFLOP/s over %d points\n", name.c_str(),
                   std::exp(group.first / group.second), group.second);
}

// One definition of the columns: peers.py asks for it, and adds two for each further peer.
static const char* const csv_columns =
    "direction,dtype,head_dim,causal,batch,seqlen,heads,kv_heads,median_ms,min_ms,tflops,checked,seqlen_k,kernel,"
    "spread,passes,reps,v,scales,two_level,head_dim_v";
// Behind them, where a call is planned: what it has, its kind and name in tests/records, and the speed of its memory.
static const char* const planned_columns = ",call,kind,name,gbytes_s";

static std::string kind_of(const Point& p) {
  return p.planned.kind.empty() ? "" : p.planned.kind + (p.is_backward() ? "_bwd" : "");
}

// A text with commas in it.
static std::string quoted(const std::string& text) {
  return text.find_first_of(",\"\n") == std::string::npos
             ? text
             : '"' + std::regex_replace(text, std::regex("\""), "\"\"") + '"';
}

void Report::print_csv(FILE* out) const {
  const bool any_planned =
      std::ranges::any_of(results, [](const Result& result) { return result.point.is_planned(); });
  std::fprintf(out, "%s%s\n", csv_columns, any_planned ? planned_columns : "");
  for (const Result& r : results) {
    const Point& p = r.point;
    std::fprintf(out, "%s,%s,%lld,%d,%lld,%lld,%lld,%lld,", name(p.direction), tools::dtype_name(p.dtype),
                 (long long)p.head_dim, int(p.causal), (long long)p.batch, (long long)p.seqlen, (long long)p.heads,
                 (long long)p.kv_heads);
    const bool measured = r.median_ms > 0;
    if (measured) std::fprintf(out, "%.5f,%.5f,%.1f", r.median_ms, r.min_ms, r.tflops());
    else std::fprintf(out, ",,");
    std::fprintf(out, ",%d,%lld,%s,", int(r.checked), (long long)p.seqlen_k, r.kernel.c_str());
    if (measured) std::fprintf(out, "%.4f", r.spread);
    std::fprintf(out, ",%d,%d,%s,%s,%d,%lld", protocol.passes, protocol.reps, name(p.v),
                 p.is_fp8() ? name(p.scales) : "", int(p.two_level), (long long)p.v_dim());
    if (any_planned) {
      std::fprintf(out, ",%s,%s,%s,", quoted(call_of(p)).c_str(), kind_of(p).c_str(), quoted(p.planned.name).c_str());
      if (measured) std::fprintf(out, "%.1f", r.gbytes());
    }
    std::fprintf(out, "\n");
  }
}

using Json = nlohmann::ordered_json;

static void print(FILE* out, const Json& json) {
  std::fprintf(out, "%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

static Json protocol_json(const Protocol& protocol) {
  return {{"idle_ms", protocol.idle_ms},
          {"warmups", protocol.warmups},
          {"reps", protocol.reps},
          {"passes", protocol.passes},
          {"seed", protocol.seed},
          {"cold", protocol.cold},
          {"plan_in_call", protocol.plan_in_call}};
}

// Null if the call is not planned.
static Json planned_json(const Point& p) {
  if (!p.is_planned()) return nullptr;
  const PlannedCall& s = p.planned;
  return {{"kind", kind_of(p)},
          {"name", s.name},
          {"lengths", s.lengths},
          {"lengths_k", s.lengths_k},
          {"page", s.page},
          {"window", s.window},
          {"chunk", s.chunk},
          {"softcap", s.softcap},
          {"sinks", s.sinks},
          {"alibi", s.alibi},
          {"e4m3_cache", s.e4m3_cache},
          {"kv_bytes", p.kv_bytes()}};
}

static Json point_json(const Result& result) {
  const Point& p = result.point;
  return {{"set", p.set},
          {"direction", name(p.direction)},
          {"dtype", tools::dtype_name(p.dtype)},
          {"head_dim", p.head_dim},
          {"head_dim_v", p.v_dim()},
          {"causal", p.causal},
          {"batch", p.batch},
          {"seqlen", p.seqlen},
          {"seqlen_k", p.seqlen_k},
          {"heads", p.heads},
          {"kv_heads", p.kv_heads},
          {"label", p.label()},
          {"flop", p.flop()},
          {"kernel", result.kernel},
          {"v", name(p.v)},
          {"scales", p.is_fp8() ? name(p.scales) : ""},
          {"two_level", p.two_level},
          {"deterministic", p.deterministic},
          {"library_chooses", p.library_chooses()},
          {"planned", planned_json(p)},
          {"problem", result.problem}};
}

void Report::print_list(FILE* out) const {
  Json json = {{"protocol", protocol_json(protocol)}, {"csv_columns", csv_columns}, {"points", Json::array()}};
  for (const Result& result : results) json["points"].push_back(point_json(result));
  print(out, json);
}

void Report::print_json(FILE* out) const {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  Json json = {{"date", date},
               {"library_version", fa3_version()},
               {"device", device.name},
               {"cuda_driver", device.driver_version},
               {"sms", device.sms},
               {"max_clock_mhz", device.max_clock_mhz()},
               {"matrix_peak_tflops", device.matrix_peak_tflops(device.max_clock_mhz())},
               {"protocol", protocol_json(protocol)}};
  if (overhead)
    json["host_overhead_us"] = {{"median", overhead->median_us},
                                {"min", overhead->min_us},
                                {"p99", overhead->p99_us},
                                {"launch", overhead->launch_us},
                                {"calls", overhead->calls}};
  json["points"] = Json::array();
  for (const Result& r : results) {
    Json point = point_json(r);
    point.update({{"median_ms", r.median_ms},
                  {"min_ms", r.min_ms},
                  {"tflops", r.tflops()},
                  {"gbytes_s", r.gbytes()},
                  {"spread", r.spread},
                  {"peak_share", peak_share(r)},
                  {"clock_mhz", r.clock_mhz},
                  {"checked", r.checked},
                  {"pass_median_ms", r.pass_medians}});
    json["points"].push_back(point);
  }
  print(out, json);
}

}  // namespace fa3::bench
