#include "table.h"

#include <initializer_list>
#include <set>

#include "ptx/backward_params.h"
#include "ptx/combine_params.h"
#include "ptx/params.h"
#include "ptx/row.h"
#include "text.h"

namespace sass {
namespace {

// How ptxas writes the accumulator and the inputs of a WGMMA of this type, and a conversion to it.
struct ElementType {
  const char* name;
  int bytes;
  const char *types, *conversion;
};
constexpr ElementType element_types[] = {{"bf16", 2, "F32.BF16", "BF16.F32"},
                                         {"fp16", 2, "F32", "F16.F32"},
                                         {"e4m3", 1, "F32.E4M3.E4M3", "SATFINITE.E4M3.F32"},
                                         {"e5m2", 1, "F32.E5M2.E5M2", "SATFINITE.E5M2.F32"}};

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

size_t parameter_bytes(fa3::Pass pass) {
  switch (pass) {
    case fa3::Pass::empty_rows: return sizeof(fa3::EmptyRowsParams);
    case fa3::Pass::tile_v: return sizeof(fa3::TileVParams);
    case fa3::Pass::bwd_prepare:
    case fa3::Pass::bwd_finish:
    case fa3::Pass::bwd_sum: return sizeof(fa3::BackwardParams);
    case fa3::Pass::quantize:
    case fa3::Pass::measure:
    case fa3::Pass::finish: return sizeof(fa3::QuantizeParams);
    case fa3::Pass::combine: break;
  }
  return sizeof(fa3::CombineParams);
}
size_t parameter_bytes(const fa3::Row& row) {
  if (row.pass()) return parameter_bytes(row.pass()->pass);
  if (row.backward()) return sizeof(fa3::BackwardParams);
  if (row.forward()->is_8bit()) return sizeof(fa3::ScaledForwardParams);
  return row.forward()->has(fa3::Trait::splits) ? sizeof(fa3::ListedForwardParams) : sizeof(fa3::ForwardParams);
}

// What mbarriers are told to expect, as the figure has it: K and V, together or each for itself, and Q; "runtime" where
// a vector comes with Q whose length only the launch knows.
std::string expected_bytes(const fa3::Row& row) {
  const auto text = [](int bytes) { return std::to_string(bytes); };
  std::set<std::string> all;
  if (row.kind == fa3::Kind::backward) {
    all.insert(text(row.k_block_bytes()));
    all.insert(text(row.v_block_bytes()));
    // Q and dO of a tile, each with a number for every row; or of the thread block's own rows.
    if (row.gradients == fa3::Gradients::queries) all.insert(text(row.q_buffer_bytes()));
    else all.insert(text(row.Br * row.d * row.element_bytes() + row.Br * 4));
  } else if (row.has(fa3::Trait::no_producer)) {
    all = {text(row.k_block_bytes()), text(row.v_block_bytes()), text(row.q_buffer_bytes())};
  } else {
    const bool together = !row.split_stage() && !row.transposes_v();
    all.insert(text(row.k_block_bytes()) + (together ? "/" + text(row.stage_bytes()) : ""));
    all.insert(text(row.v_block_bytes()));  // at least the last V comes alone
    all.insert(row.is_8bit() ? "runtime" : "0/" + text(row.q_buffer_bytes()));
  }
  std::string joined;
  for (const std::string& bytes : all) joined += (joined.empty() ? "" : ", ") + bytes;
  return joined;
}

// The producer's loads of a forward row, by slabs of K, of V (in the loop, and the last one) and of Q. V as tiles comes
// at once, and with elements of 8 bits a vector comes with Q.
int tma_loads(const fa3::Row& row) {
  const bool tiles = row.is_8bit() && !row.transposes_v();
  return row.slabs() + 2 * (tiles ? 1 : row.v_slabs()) + row.slabs() + row.is_8bit();
}

// setmaxnreg of the warps that come to a loop with WGMMAs, or of the others.
std::string moved_registers(const fa3::Row& row, bool of_consumers) {
  if (!row.moves_registers()) return "none";
  if (!of_consumers) return "-" + std::to_string(row.producer_registers());
  return "+" + std::to_string(row.consumer_registers()) +
         (row.dq_registers() ? " -" + std::to_string(row.dq_registers()) : "");
}

// "0 0 0".
std::string repeated(const char* word, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += (i ? " " : "") + std::string(word);
  return all;
}
std::string joined(std::initializer_list<std::string> parts) {
  std::string all;
  for (const std::string& part : parts)
    if (!part.empty()) all += (all.empty() ? "" : " ") + part;
  return all;
}

// Of fwd.cu with elements of 16 bits: parities of the first waits, and arrivals with the groups in flight there. K and
// V of a stage have one barrier, or one each.
std::string parities(const fa3::Row& row, const std::string& scope) {
  const int split = row.split_stage();
  if (scope == "prologue") return repeated("0", 3 + 2 * split);  // Q, blocks that are skipped, the first K
  if (scope == "epilogue") return repeated("0", 5 + 3 * split);  // the last V, Q, K, skipped blocks at two places
  // Hand-over of pieces at one place or two, stage, the last V's, that V; a piece, Q's buffer.
  return repeated("1", 3 + split + row.has(fa3::Trait::early_claim)) + " 0 0 1";
}
std::string releases(const fa3::Row& row, const std::string& scope) {
  const int split = row.split_stage();
  const bool late = row.late_q_release(), early = row.releases_q_early();
  // Blocks that are skipped, with the last V if K and V are released each for itself; the first K; the Q buffer of O.
  if (scope == "prologue") return repeated("0", 2 + 2 * split + late);
  // Q before the last PV; what is skipped, with the next piece's first QK in flight; Q, at up to two places, and again
  // what is skipped if no block is computed.
  return joined({early ? "0" : "", repeated("1", split ? 3 : 1), repeated("0", 1 + split + (late ? 2 : !early))});
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
    const int transpositions = row->transposes_v() ? row->dv / 2 / 16 : 0;
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
    if (figure == "expected_bytes" && row->kind != fa3::Kind::pass) return text(expected_bytes(*row));
    return std::nullopt;
  }
  const bool forward = row->kind == fa3::Kind::forward, has_producer = !row->has(fa3::Trait::no_producer);
  if (scope == "prologue" || scope == "epilogue" || scope == "producer") {
    if (figure == "setmaxnreg" && scope != "epilogue" && row->kind != fa3::Kind::pass)
      return text(moved_registers(*row, scope == "prologue"));
    if (figure == "tma_loads" && scope == "producer" && forward && has_producer) return value(tma_loads(*row));
    if (figure == "tma_stores" && scope == "epilogue" && forward)
      return value(row->o_from_registers() ? 0 : row->v_slabs());
    if (row->has(fa3::Trait::speculative) && !row->is_8bit()) {
      if (figure == "parities") return text(parities(*row, scope));
      if (figure == "releases" && scope != "producer") return text(releases(*row, scope));
    }
    if (figure == "conversion_types" && scope == "epilogue" && !row->is_8bit())
      for (const ElementType& type : element_types)
        if (name_of(row->dtype) == std::string(type.name)) return text(type.conversion);
    return std::nullopt;
  }
  // PV is done for all columns at once, but for sums on two levels at large head dimensions.
  const int pv_columns = row->has(fa3::Trait::two_level) ? row->sum_columns() : row->dv;
  const int pv_parts = row->dv / pv_columns;
  // K and V of a stage under one barrier, or a wait for each, the second with a fence of its own. With shared keys both
  // are of other stages, and awaited together.
  const bool speculative = row->has(fa3::Trait::speculative);
  const int fences = row->split_stage() ? 2 : 1;
  const int waits = row->has(fa3::Trait::shares_keys) ? 2 : fences;
  // The maximum that keeps half of the multiplications behind the first exponential.
  if (speculative && scope == "hot" && figure == "maxima") return value(row->has(fa3::Trait::spread));
  // O by alpha, the sums of two rows, and on the rare path their bounds.
  if (speculative && figure == "most_multiplies" && !row->is_8bit())
    return value(row->dv / 2 + (scope == "hot" ? 4 : 2));
  if (speculative && figure == "mbarrier_waits") return value(waits);
  if (speculative && figure == "arrives") return value(fences + pv_parts - 1);
  // K is given back while PV is in flight, V behind it; or both behind it.
  if (speculative && figure == "releases") return text(waits == 2 ? "1 0" : "0");
  if (speculative && figure == "parities") return text(waits == 2 ? "0 0" : "0");
  // A predicate says whether PV begins a piece. With sums on two levels in several parts, each part begins anew.
  if (forward && figure == "accumulators")
    return text(std::string("PV ") + (!speculative    ? "adds"
                                      : pv_parts > 1 ? "overwrites"
                                                     : "overwrites or adds") + ", QK overwrites");
  if (forward && figure == "transposed") return text(row->is_8bit() ? "none" : "PV B");
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
    if (figure == "conversion_types") return text(type.conversion);
    const int online = scores + 2;  // and alpha of two rows
    if (figure == "exps") return value(speculative && scope == "hot" ? scores : online);
    // On the rare path all of them again; of 8 bits, where first P alone was to be lowered, two more.
    if (figure == "most_exps")
      return value(speculative && scope == "hot" ? scores + online + 2 * row->is_8bit() : online);
    if (figure == "masks" && scope == "boundary") return value(scores);
    if (figure == "conversions") return value(scores / 2);  // F2FP makes two numbers
  }
  return std::nullopt;
}

}  // namespace sass
