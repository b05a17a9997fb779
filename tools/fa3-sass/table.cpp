#include "table.h"

#include <set>

#include "ptx/backward_params.h"
#include "ptx/params.h"
#include "ptx/row.h"
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

const fa3::Row* row_named(const std::string& name) {
  const int row = fa3::row_named(name.c_str());
  return row < 0 ? nullptr : &fa3::rows[row];
}

const char* name_of(fa3::Dtype dtype) {
  return dtype == fa3::Dtype::bf16 ? "bf16" : dtype == fa3::Dtype::fp16 ? "fp16" : "e4m3";
}

std::string wgmmas(const char* gemm, int count, int columns, int depth, const char* form) {
  return std::string(gemm) + " " + std::to_string(count) + " x 64x" + std::to_string(columns) + "x" +
         std::to_string(depth) + " " + form;
}

size_t parameter_bytes(const fa3::Row& row) {
  if (row.has(fa3::Trait::quantizes)) return sizeof(fa3::QuantizeParams);
  if (row.kind == fa3::Kind::backward || fa3::same_text(row.kernel, "bwd_prepare") ||
      fa3::same_text(row.kernel, "bwd_finish"))
    return sizeof(fa3::BackwardParams);
  if (fa3::same_text(row.kernel, "tile_v")) return sizeof(fa3::TileVParams);
  if (row.kind == fa3::Kind::pass) return sizeof(fa3::EmptyRowsParams);
  if (row.is_8bit()) return sizeof(fa3::ScaledForwardParams);
  return row.has(fa3::Trait::splits) ? sizeof(fa3::ListedForwardParams) : sizeof(fa3::ForwardParams);
}

}  // namespace

std::vector<Row> table_rows() {
  std::vector<Row> rows;
  for (const fa3::Row& row : fa3::rows) rows.push_back({row.name, row.kernel});
  return rows;
}

std::optional<Figure> table_figure(const std::string& name, const std::string& scope, const std::string& figure) {
  const fa3::Row* row = row_named(name);
  if (!row) return std::nullopt;
  const auto value = [&](int number) { return Figure{figure, false, static_cast<double>(number), {}, {}, false}; };
  const auto text = [&](std::string words) { return Figure{figure, true, 0, std::move(words), {}, false}; };
  if (scope == "kernel") {
    if (figure == "threads") return value(row->threads());
    if (figure == "parameters") return value(static_cast<int>(parameter_bytes(*row)));
    // For 32 keys and half of the columns, which is the share of each of two warps: 16 columns at a time.
    const int transpositions = row->has(fa3::Trait::transposes_v) ? row->dv / 2 / 16 : 0;
    if (figure == "transposing_loads" || figure == "transposing_stores") return value(transpositions);
    if (figure == "transposing_permutes") return value(4 * transpositions);
    if (figure == "transposing_fences") return value(transpositions > 0);
    if (figure == "setmaxnreg") {
      std::string budgets;  // none where there is no producer to take registers from
      if (row->moves_registers())
        for (int budget : std::set{row->producer_registers(), row->dq_registers(), row->consumer_registers()})
          if (budget) budgets += (budgets.empty() ? "" : " ") + std::to_string(budget);
      return text(budgets);
    }
    return std::nullopt;
  }
  // PV is done for all columns at once, but for sums on two levels at large head dimensions.
  const int pv_columns = row->has(fa3::Trait::two_level) ? row->sum_columns() : row->dv;
  const int pv_parts = row->dv / pv_columns;
  // K and V of a stage under one barrier, or a wait for each, the second with a fence of its own.
  const bool speculative = row->has(fa3::Trait::speculative);
  const int waits = row->split_stage() ? 2 : 1;
  if (speculative && figure == "mbarrier_waits") return value(waits);
  if (speculative && figure == "arrives") return value(waits + pv_parts - 1);
  for (const ElementType& type : element_types) {
    if (name_of(row->dtype) != std::string(type.name)) continue;
    const int depth = 32 / type.bytes;          // k of one WGMMA
    const int scores = 64 * row->Bc / 128;  // of a block, per thread
    if (figure == "gemms") {
      const int steps = row->d / depth, from_registers = row->has(fa3::Trait::q_in_registers) ? steps / 2 : 0;
      return text((from_registers ? wgmmas("QK", from_registers, row->Bc, depth, "RS") + ", " : "") +
                  wgmmas("QK", steps - from_registers, row->Bc, depth, "SS") + ", " +
                  wgmmas("PV", pv_parts * row->Bc / depth, pv_columns, depth, "RS"));
    }
    if (figure == "types") return text(type.types);
    if (figure == "wgmmas") return value(row->d / depth + pv_parts * row->Bc / depth);
    if (figure == "exps") return value(scores + (speculative ? 0 : 2));  // and alpha of two rows
    if (figure == "conversions") return value(scores / 2);  // F2FP makes two numbers
  }
  return std::nullopt;
}

}  // namespace sass
