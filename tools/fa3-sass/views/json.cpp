#include "json.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>

#include "../time/clocks.h"
#include "../time/floors.h"
#include "print.h"
#include "reports.h"

namespace sass {
namespace {

using Json = nlohmann::ordered_json;

// Names in damaged files need not be UTF-8: bytes that are not become U+FFFD.
std::string text_of(const Json& report) {
  return report.dump(-1, ' ', true, Json::error_handler_t::replace);
}

// Most figures are counts: 12, not 12.0. What is not finite becomes null.
Json number_json(double value) {
  const bool whole = std::abs(value) < 1e15 && value == std::trunc(value);
  return whole ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

Json value_of(const Figure& figure) { return figure.is_text ? Json(figure.text) : number_json(figure.value); }

Json object_of(const Figures& figures) {
  Json object = Json::object();
  for (const Figure& figure : figures) object[figure.name] = value_of(figure);
  return object;
}

const char* word_for(Finding::State state) {
  if (state == Finding::State::advice) return "advice";
  return state == Finding::State::kept ? "kept" : state == Finding::State::waived ? "waived" : "broken";
}

}  // namespace

std::string list_json(const Kernel& kernel) {
  Json loops = Json::array(), counts = Json::object();
  for (const auto& [opcode, count] : wgmma_counts(kernel)) counts[opcode] = count;
  for (const WgmmaLoop& loop : kernel.loops)
    loops.push_back({{"role", loop.role}, {"hot", loop.hot}, {"figures", object_of(loop.figures)}});
  Json scopes = Json::object();
  for (const auto& [scope, figures] : kernel.scopes) scopes[scope] = object_of(figures);
  return text_of({{"number", kernel.number},
                  {"name", kernel.record.name},
                  {"readable", kernel.readable},
                  {"image", kernel.image},
                  {"figures", object_of(kernel.figures)},
                  {"wgmma", counts},
                  {"loops", loops},
                  {"scopes", scopes}});
}

std::vector<std::string> floors_json(const Kernel& kernel) {
  std::vector<std::string> entries;
  for (const WgmmaLoop& loop : kernel.loops) {
    if (!loop.hot) continue;
    const Floors f = floors(kernel, loop);
    Json entry = {{"name", kernel.record.name}, {"role", loop.role}, {"warpgroups", f.warpgroups}};
    for (const Floors::Unit& unit : f.units()) entry[unit.name] = number_json(unit.clocks);
    if (const Clocks clocks = estimated_clocks(kernel, loop); clocks.turn > 0) {
      entry["estimated turn"] = number_json(clocks.turn);
      entry["estimated tensor share"] = clocks.tensor;
    }
    entries.push_back(text_of(entry));
  }
  return entries;
}

std::string check_json(const CheckResult& result) {
  Json findings = Json::array();
  for (const Finding& finding : result.findings)
    findings.push_back({{"number", finding.number},
                        {"kernel", finding.row},
                        {"rule", finding.rule},
                        {"place", finding.place},
                        {"state", word_for(finding.state)},
                        {"expected", finding.expected},
                        {"found", finding.found},
                        {"reason", finding.reason},
                        {"meaning", finding.meaning},
                        {"instructions", finding.instructions},
                        {"sources", finding.sources}});
  return text_of({{"schema", json_schema}, {"passed", result.passed()}, {"kernels", result.kernels},
                  {"findings", findings}}) +
         "\n";
}

std::string diff_json(const KernelDiff& diff) {
  const auto value = [](const Figure& figure) { return figure.name.empty() ? Json() : value_of(figure); };
  Json parts = Json::array();
  for (const PartDiff& part : diff.parts) {
    Json figures = Json::object(), appeared = Json::array(), gone = Json::array(), lines = Json::array();
    for (const auto& [old, now] : part.figures)
      figures[old.name.empty() ? now.name : old.name] = Json::array({value(old), value(now)});
    for (const Line& line : part.lines) {
      if (line.same()) continue;
      const bool is_gone = line.before >= 0;
      (is_gone ? gone : appeared).push_back(line.text);
      lines.push_back({{"side", is_gone ? "gone" : "appeared"},
                       {"address", is_gone ? line.before : line.after},
                       {"instruction", line.text}});
      if (!line.note.empty()) lines.back()["note"] = line.note;
    }
    parts.push_back({{"part", part.name},
                     {"same", part.same()},
                     {"reordered", part.reordered},
                     {"instructions", Json::array({part.before, part.after})},
                     {"figures", figures},
                     {"appeared", appeared},
                     {"gone", gone},
                     {"lines", lines}});
  }
  return text_of({{"before", diff.before}, {"after", diff.after}, {"same", diff.same()}, {"parts", parts}});
}

}  // namespace sass
