#include "table.h"

#include <set>

#include "ptx/variant.h"
#include "text.h"

namespace sass {
namespace {

// How ptxas writes the accumulator and the inputs of a WGMMA of this type.
struct ElementType {
  const char* name;
  int bytes;
  const char* types;
};
constexpr ElementType element_types[] = {
    {"bf16", 2, "F32.BF16"}, {"fp16", 2, "F32"}, {"e4m3", 1, "F32.E4M3.E4M3"}, {"e5m2", 1, "F32.E5M2.E5M2"}};

const fa3::Variant* variant_named(const std::string& name) {
  for (const fa3::Variant& variant : fa3::variants)
    if (name == variant.name) return &variant;
  return nullptr;
}

// Cells of "fa3_<kernel>_<dtype>_..."
std::string cell(const std::string& name, size_t index) {
  const auto cells = split(name, '_');
  return index < cells.size() ? std::string(cells[index]) : "";
}

std::string wgmmas(const char* gemm, int count, int columns, int depth, const char* form) {
  return std::string(gemm) + " " + std::to_string(count) + " x 64x" + std::to_string(columns) + "x" +
         std::to_string(depth) + " " + form;
}

}  // namespace

std::vector<Row> table_rows() {
  std::vector<Row> rows;
  for (const fa3::Variant& variant : fa3::variants) rows.push_back({variant.name, cell(variant.name, 1)});
  return rows;
}

std::optional<Figure> table_figure(const std::string& row, const std::string& scope, const std::string& figure) {
  const fa3::Variant* variant = variant_named(row);
  if (!variant) return std::nullopt;
  const auto value = [&](int number) { return Figure{figure, false, static_cast<double>(number), {}, {}, false}; };
  const auto text = [&](std::string words) { return Figure{figure, true, 0, std::move(words), {}, false}; };
  if (scope == "kernel") {
    if (figure == "threads") return value(variant->threads());
    if (figure == "setmaxnreg") {
      std::string budgets;  // none where there is no producer to take registers from
      if (variant->has_producer())
        for (int budget : std::set{variant->producer_registers(), variant->consumer_registers()})
          budgets += (budgets.empty() ? "" : " ") + std::to_string(budget);
      return text(budgets);
    }
    return std::nullopt;
  }
  // K and V of a stage under one barrier, or a wait for each, the second with a fence of its own.
  const bool speculative = variant->is_fwd();
  if (speculative && (figure == "mbarrier_waits" || figure == "arrives")) return value(variant->split_stage() ? 2 : 1);
  for (const ElementType& type : element_types) {
    if (cell(row, 2) != type.name) continue;
    const int depth = 32 / type.bytes;          // k of one WGMMA
    const int scores = 64 * variant->Bc / 128;  // of a block, per thread
    if (figure == "gemms")
      return text(wgmmas("QK", variant->d / depth, variant->Bc, depth, "SS") + ", " +
                  wgmmas("PV", variant->Bc / depth, variant->d, depth, "RS"));
    if (figure == "types") return text(type.types);
    if (figure == "wgmmas") return value(variant->d / depth + variant->Bc / depth);
    if (figure == "exps") return value(scores + (speculative ? 0 : 2));  // and alpha of two rows
    if (figure == "conversions") return value(scores / 2);  // F2FP makes two numbers
  }
  return std::nullopt;
}

}  // namespace sass
