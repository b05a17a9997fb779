#include "table.h"

#include <initializer_list>
#include <set>
#include <string_view>

#include "../system/text.h"
#include "ptx/params/append_params.h"
#include "ptx/params/backward_params.h"
#include "ptx/params/combine_params.h"
#include "ptx/params/params.h"
#include "ptx/params/widen_params.h"
#include "ptx/plan/plan_forward.h"
#include "ptx/table/row.h"

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

const char* name_of(fa3::Dtype dtype) {
  return dtype == fa3::Dtype::bf16 ? "bf16" : dtype == fa3::Dtype::fp16 ? "fp16" : "e4m3";
}
const ElementType& type_of(fa3::Dtype dtype) {
  const ElementType* type = element_types;
  while (type->name != std::string_view(name_of(dtype))) ++type;
  return *type;
}

// What is multiplied: fp16, too, where K and V become that on their way.
template <class TiledRow>
fa3::Dtype multiplied(const TiledRow& row) {
  return row.has_wide_q() ? fa3::Dtype::fp16 : row.dtype;
}

std::string wgmmas(const char* gemm, int count, int columns, int depth, const char* form) {
  return std::string(gemm) + " " + std::to_string(count) + " x 64x" + std::to_string(columns) + "x" +
         std::to_string(depth) + " " + form;
}

size_t parameter_bytes(const fa3::PassRow& row) {
  switch (row.pass) {
    case fa3::Pass::empty_rows: return sizeof(fa3::EmptyRowsParams);
    case fa3::Pass::tile_v: return sizeof(fa3::TileVParams);
    case fa3::Pass::plan_forward: return sizeof(fa3::PlanForwardPassParams);
    case fa3::Pass::add_parts: return sizeof(fa3::PlannedForwardParams);
    case fa3::Pass::bwd_prepare:
    case fa3::Pass::bwd_finish:
      return row.has(fa3::Trait::planned) ? sizeof(fa3::PlannedBackwardParams) : sizeof(fa3::BackwardParams);
    case fa3::Pass::plan_backward: return sizeof(fa3::PlanBackwardPassParams);
    case fa3::Pass::bwd_key_means: return sizeof(fa3::CenteredBackwardParams);
    case fa3::Pass::widen: return sizeof(fa3::WidenParams);
    case fa3::Pass::quantize:
    case fa3::Pass::measure:
    case fa3::Pass::finish: return sizeof(fa3::QuantizeParams);
    case fa3::Pass::combine: return sizeof(fa3::CombineParams);
    case fa3::Pass::append: break;
  }
  return sizeof(fa3::AppendParams);
}
size_t parameter_bytes(const fa3::Row& row) {
  if (row.pass()) return parameter_bytes(*row.pass());
  if (row.backward()) return fa3::parameter_bytes(*row.backward());
  return fa3::parameter_bytes(*row.forward());
}

std::string joined(const std::set<std::string>& all, const char* between) {
  std::string joined;
  for (const std::string& one : all) joined += (joined.empty() ? "" : between) + one;
  return joined;
}
std::string text(int number) { return std::to_string(number); }

// What mbarriers are told to expect, as the figure has it: K and V, together or each for itself, and Q; "runtime" where
// a vector comes with Q whose length only the launch knows.
std::string expected_bytes(const fa3::ForwardRow& row) {
  const int q_buffers = row.has(fa3::Trait::one_tile) ? row.q_buffers : 1;  // that are filled together
  const std::string k = text(row.k_block_bytes()), v = text(row.v_block_bytes());
  const std::string all_q = text(q_buffers * row.q_buffer_bytes()), q = row.has_scales() ? "runtime" : "0/" + all_q;
  if (row.has(fa3::Trait::no_producer)) return joined({k, v, all_q}, ", ");
  // V of e4m3, K by itself, and Q.
  if (row.widens_latent()) return joined({k, text(row.stage_keys() * row.dv), q}, ", ");
  if (row.keeps_latent()) return joined({text(row.stage_bytes()), q}, ", ");  // both together
  if (row.halves_columns()) {
    const int half = row.v_block_bytes() / 2;  // K comes with one of them
    std::set<std::string> all{text(half) + "/" + text(half + row.k_block_bytes()), q};
    if (row.has(fa3::Trait::multicast)) all.insert(text(sizeof(int)));  // the number of the cluster's next piece
    return joined(all, ", ");
  }
  if (row.widens()) return joined({text(row.landing_bytes()), q}, ", ");  // K, or V
  const bool together = !row.split_stage() && !row.lands_v();  // but the last V comes alone
  return joined({k + (together ? "/" + text(row.stage_bytes()) : ""), v, q}, ", ");
}
std::string expected_bytes(const fa3::BackwardRow& row) {
  // Q and dO of a tile, each with a number for every row; or of the thread block's own rows.
  const int q = row.gradients == fa3::Gradients::queries ? row.q_buffer_bytes()
                                                         : row.Br * row.d * row.element_bytes() + row.Br * 4;
  return joined({text(row.k_block_bytes()), text(row.v_block_bytes()), text(q)}, ", ");
}

// The producer's loads of a forward row, by slabs: first those of K and V (in the loop, and the last one). V as tiles
// comes at once. With own lengths a lane sends for a box for each 64 keys of a block, or for each 32, where one warp
// does so; one of V that is not full comes in smaller boxes.
int kv_loads(const fa3::ForwardRow& row) {
  const int k = row.widens() ? row.landed_slabs() : row.slabs();
  const int v = 2 * (row.takes_v_tiles() ? 1 : row.widens() ? row.landed_slabs() : row.v_slabs());
  const int lanes = row.lands_v() ? 32 : 64;
  const int boxes = row.has(fa3::Trait::planned) ? (row.stage_keys() + lanes - 1) / lanes : 0;
  // With halves of O's columns V comes in these, and none behind the loop, or by the columns of a scale if it is of
  // e4m3. Thread blocks of a cluster have a share of V each.
  const int v_loads = row.is_latent() ? row.latent_scales() : v / 2 / row.cluster_blocks();
  if (row.halves_columns()) return boxes * (k + v_loads);
  return boxes ? boxes * (k + 2 * v) : k + v;
}
int tma_loads(const fa3::ForwardRow& row) {
  // With halves of O's columns a second tensor of Q comes in a loop.
  if (row.halves_columns()) return kv_loads(row) + row.slabs() + row.has(fa3::Trait::qv);
  // With elements of 8 bits a vector comes with Q. With packed heads the warp that hands pieces over sends for Q, at
  // three places, where K and V are widened.
  const int q = row.slabs() + (row.is_8bit() || row.widens() || row.takes_copies());
  const int copies = row.widens() && row.packs_heads() ? 3 : 1;
  return kv_loads(row) + copies * q;
}
// And the stores of O, by slabs. With own lengths the last rows of a sequence leave in boxes of few rows.
int tma_stores(const fa3::ForwardRow& row) {
  if (row.o_from_registers()) return 0;
  return row.v_slabs() * (row.has(fa3::Trait::planned) ? 1 + fa3::PlannedForwardParams::o_boxes : 1);
}

// What setmaxnreg makes of the registers of a producer, of warps that compute dQ (0: there are none), and of consumers.
// Nothing is moved where there is no producer to take registers from.
struct Budgets {
  bool moved;
  int producer, dq, consumer;
};
Budgets budgets_of(const fa3::ForwardRow& row) {
  return {row.moves_registers(), row.producer_registers(), 0, row.consumer_registers()};
}
Budgets budgets_of(const fa3::BackwardRow& row) {
  return {true, row.producer_registers(), row.dq_registers(), row.consumer_registers()};
}
// Of the warps that come to a loop with WGMMAs, or of the others.
std::string moved_registers(const Budgets& of, bool consumers) {
  if (!of.moved) return "none";
  if (!consumers) return "-" + text(of.producer);
  return "+" + text(of.consumer) + (of.dq ? " -" + text(of.dq) : "");
}
std::string moved_registers(const Budgets& of) {
  std::string all;
  if (of.moved)
    for (int budget : std::set{of.producer, of.dq, of.consumer})
      if (budget) all += (all.empty() ? "" : " ") + text(budget);
  return all;
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
std::string parities(const fa3::ForwardRow& row, const std::string& scope) {
  const int split = row.split_stage();
  if (scope == "prologue") return repeated("0", 3 + 2 * split);  // Q, blocks that are skipped, the first K
  if (scope == "epilogue") return repeated("0", 5 + 3 * split);  // the last V, Q, K, skipped blocks at two places
  // With own lengths: a piece, Q's buffer; its slot, or with packed heads two, the wish for the next one, its slot; a
  // piece, with packed heads blocks before, a stage, the last V's, that V.
  if (row.has(fa3::Trait::planned)) {
    const bool packs = row.packs_heads();
    return "0 1 " + repeated("1", 1 + packs) + " 0 1 " + repeated("0", 1 + packs) + " " + repeated("1", 2 + split) +
           " 0";
  }
  // Hand-over of pieces at one place or two, stage, the last V's, that V; a piece, Q's buffer.
  return repeated("1", 3 + split + row.has(fa3::Trait::early_claim)) + " 0 0 1";
}
std::string releases(const fa3::ForwardRow& row, const std::string& scope) {
  const int split = row.split_stage();
  const bool late = row.late_q_release(), early = row.releases_q_early();
  // Blocks that are skipped, with the last V if K and V are released each for itself; the first K; the Q buffer of O.
  if (scope == "prologue") return repeated("0", 2 + 2 * split + late);
  // Q before the last PV; what is skipped, with the next piece's first QK in flight; Q, at up to two places, and again
  // what is skipped if no block is computed.
  return joined({early ? "0" : "", repeated("1", split ? 3 : 1), repeated("0", 1 + split + (late ? 2 : !early))});
}

std::optional<Figure> value_of(const std::string& figure, int number) {
  return Figure{figure, false, static_cast<double>(number), {}, {}, false};
}
std::optional<Figure> text_of(const std::string& figure, std::string words) {
  return Figure{figure, true, 0, std::move(words), {}, false};
}

bool is_loop(const std::string& scope) { return scope != "prologue" && scope != "epilogue" && scope != "producer"; }

// What forward and backward rows say in the same words.
template <class TiledRow>
std::optional<Figure> figure_of_tiled(const TiledRow& row, const std::string& scope, const std::string& figure) {
  if (figure == "setmaxnreg") {
    if (scope == "kernel") return text_of(figure, moved_registers(budgets_of(row)));
    if (scope != "epilogue") return text_of(figure, moved_registers(budgets_of(row), scope == "prologue"));
  }
  if (scope == "kernel") return figure == "expected_bytes" ? text_of(figure, expected_bytes(row)) : std::nullopt;
  // In the epilogue of 8-bit rows O's type is a parameter. Where Q of bf16 becomes fp16, that of the next piece does
  // there.
  if (figure == "conversion_types" && is_loop(scope)) return text_of(figure, type_of(multiplied(row)).conversion);
  if (figure == "conversion_types" && scope == "epilogue" && !row.is_8bit())
    return text_of(figure, multiplied(row) != row.dtype ? "BF16.F32 F16.F32" : type_of(row.dtype).conversion);
  if (figure == "types" && is_loop(scope)) return text_of(figure, type_of(multiplied(row)).types);
  return std::nullopt;
}

// Of a loop of a forward row.
std::optional<Figure> figure_of_loop(const fa3::ForwardRow& row, const std::string& scope, const std::string& figure) {
  const auto value = [&](int number) { return value_of(figure, number); };
  const auto text = [&](std::string words) { return text_of(figure, std::move(words)); };
  // PV is done for all columns at once, but for sums on two levels at large head dimensions, and where a WGMMA takes no
  // more columns.
  const bool sums = row.has(fa3::Trait::two_level);
  const int pv_columns = sums ? row.sum_columns() : row.halves_columns() ? row.pv_columns() : row.o_columns();
  const int pv_parts = row.o_columns() / pv_columns;
  const bool speculative = row.has(fa3::Trait::speculative);
  if (figure == "accumulators")  // a predicate says whether PV begins a piece; each of several sums begins anew
    return text(std::string("PV ") + (!speculative           ? "adds"
                                      : sums && pv_parts > 1 ? "overwrites"
                                                             : "overwrites or adds") + ", QK overwrites");
  if (figure == "transposed") return text(row.is_8bit() ? "none" : "PV B");
  if (speculative) {
    // K and V of a stage under one barrier, or a wait for each, the second with a fence of its own. With shared keys
    // both are of other stages, and awaited together.
    const int fences = row.split_stage() ? 2 : 1;
    const int waits = row.halves_columns() ? 3 : row.has(fa3::Trait::shares_keys) ? 2 : fences;
    // The maximum that keeps half of the multiplications behind the first exponential; one of numbers of blocks.
    if (scope == "hot" && figure == "maxima")
      return value(row.has(fa3::Trait::spread) + (row.has(fa3::Trait::softcap) && row.packs_heads()));
    // O by alpha, the sums of two rows, and what rounding has added to them, of which there is none before the main
    // loop; there also P by alpha, and the sums of two rows in it.
    if (figure == "most_multiplies" && !row.is_8bit() && !row.transforms_scores())
      return value(row.o_columns() / 2 + 2 + (scope == "hot" ? row.stage_keys() / 2 + 3 : row.bounded_left()));
    if (figure == "mbarrier_waits") return value(waits);
    // With halves of O's columns PV and the next QK, with qv in two, are issued each behind a fence; so is each sum.
    if (figure == "arrives")
      return value(fences + (sums ? pv_parts - 1 : 0) + row.halves_columns() + row.has(fa3::Trait::qv));
    // K is given back while PV is in flight, V behind it; or both behind it.
    if (figure == "releases") return text(waits == 2 ? "1 0" : "0");
    if (figure == "parities") return text(waits == 2 ? "0 0" : "0");
  }
  const int depth = 32 / row.element_bytes();  // k of one WGMMA
  const int keys = row.stage_keys(), scores = 64 * keys / 128;  // of a warpgroup's block; per thread
  const int columns = row.d + (row.has(fa3::Trait::qv) ? row.dv : 0);  // of a score's product
  const int steps = columns / depth, from_registers = row.has(fa3::Trait::q_in_registers) ? steps / 2 : 0;
  if (figure == "gemms")
    return text((from_registers ? wgmmas("QK", from_registers, keys, depth, "RS") + ", " : "") +
                wgmmas("QK", steps - from_registers, keys, depth, "SS") + ", " +
                wgmmas("PV", pv_parts * keys / depth, pv_columns, depth, "RS"));
  if (figure == "wgmmas") return value(steps + pv_parts * keys / depth);
  // Each score is scaled and added to its row's sum; scores that are changed before that take more.
  if (scope == "hot" && speculative && !row.transforms_scores() && (figure == "adds" || figure == "fmas"))
    return value(scores);
  const int online = scores + 2;  // and alpha of two rows
  if (figure == "exps") return value(speculative && scope == "hot" ? scores : online);
  // On the rare path all of them again; of 8 bits, where first P alone was to be lowered, two more.
  if (figure == "most_exps") return value(speculative && scope == "hot" ? scores + online + 2 * row.is_8bit() : online);
  if ((figure == "masks" || figure == "adds") && scope == "boundary") return value(scores);
  if (figure == "conversions") return value(scores / 2);  // F2FP makes two numbers
  return std::nullopt;
}

std::optional<Figure> figure_of(const fa3::ForwardRow& row, const std::string& scope, const std::string& figure) {
  // Behind the main loop alpha is rounded to bf16, too, whatever the row's type is (tile/scores/excess.cuh).
  if (figure == "conversion_types" && scope == "boundary" && row.bounded_left() && multiplied(row) == fa3::Dtype::fp16)
    return text_of(figure, "BF16.F32 F16.F32");
  if (auto found = figure_of_tiled(row, scope, figure)) return found;
  if (scope == "kernel") {
    // For 32 keys and half of the columns, which is the share of each of two warps: 16 columns at a time.
    const int transpositions = row.transposes_v() ? row.dv / 2 / 16 : 0;
    if (figure == "transposing_loads" || figure == "transposing_stores") return value_of(figure, transpositions);
    if (figure == "transposing_permutes") return value_of(figure, 4 * transpositions);
    if (figure == "transposing_fences") return value_of(figure, transpositions > 0);
    // Each lane sends for boxes of other pages.
    if (figure == "tma_by_many") return value_of(figure, row.has(fa3::Trait::planned) ? kv_loads(row) : 0);
    return std::nullopt;
  }
  if (is_loop(scope)) return figure_of_loop(row, scope, figure);
  if (figure == "tma_loads" && scope == "producer" && !row.has(fa3::Trait::no_producer))
    return value_of(figure, tma_loads(row));
  if (figure == "tma_stores" && scope == "epilogue")
    return value_of(figure, tma_stores(row));
  if (row.has(fa3::Trait::speculative) && !row.is_8bit()) {
    if (figure == "parities") return text_of(figure, parities(row, scope));
    if (figure == "releases" && scope != "producer") return text_of(figure, releases(row, scope));
  }
  return std::nullopt;
}

}  // namespace

std::vector<Row> table_rows() {
  std::vector<Row> rows;
  for (const fa3::Row& row : fa3::rows) rows.push_back({row.name, row.kernel, row.kind == fa3::Kind::pass});
  return rows;
}

std::optional<Figure> table_figure(const std::string& name, const std::string& scope, const std::string& figure) {
  const int number = fa3::row_named(name.c_str());
  if (number < 0) return std::nullopt;
  const fa3::Row& row = fa3::rows[number];
  if (scope == "kernel" && figure == "threads") return value_of(figure, row.threads);
  if (scope == "kernel" && figure == "parameters") return value_of(figure, static_cast<int>(parameter_bytes(row)));
  if (row.forward()) return figure_of(*row.forward(), scope, figure);
  if (row.backward()) return figure_of_tiled(*row.backward(), scope, figure);
  return std::nullopt;
}

}  // namespace sass
