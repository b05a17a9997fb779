// What a launch carries, for the drivers that stand in for the real one: each kernel takes a parameter block of its own
// size.
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "params/append_params.h"
#include "params/backward_params.h"
#include "params/combine_params.h"
#include "params/params.h"
#include "params/widen_params.h"
#include "plan/plan_forward.h"
#include "table/row.h"

namespace fa3::test {

struct Launched {
  const Row* row = nullptr;
  ForwardParamsWith<{.list = true, .scales = true}> forward{};  // of any row; zeros of what it does not take
  ForwardParamsWith<{.planned = true, .scales = true, .transforms = true, .qv = true, .latent_scales = true}>
      planned{};                    // of those whose sequences have lengths of their own
  PlanForwardPassParams lengths{};  // of the pass that plans for these
  EmptyRowsParams empty_rows{};     // of the one that writes rows without keys
  TileVParams tile_v{};             // of the one that makes V into tiles
  QuantizeParams quantize{};        // of those that quantize
  CombineParams combine{};          // of the one that combines
  AppendParams append{};            // of the one that appends
  BackwardParams backward{};        // of the backward kernels, and of the passes before and behind them
  PlannedBackwardParams planned_backward{};  // of those whose sequences have lengths of their own
  TransformedBackwardParams transformed_backward{};  // of the kernels of these; transforms as far as it has
  CenteredBackwardParams centered_backward{};  // of those that take a mean of the keys, and of the pass that finds it
  PlanBackwardPassParams backward_list{};    // of the pass that lists key blocks for these
  WidenParams widen{};              // of the one that makes 16 bits of e4m3 for any of them
  unsigned grid = 0;

  Launched() = default;
  Launched(const std::string& kernel, const void* params, unsigned thread_blocks) : grid(thread_blocks) {
    const int number = row_named(kernel.c_str());
    if (number < 0) return;
    row = &rows[number];
    if (row->forward()) take(*row->forward(), params);
    if (row->backward()) take(*row->backward(), params);
    if (row->pass()) take(*row->pass(), params);
  }

  void take(const ForwardRow& kernel, const void* params) {
    const ForwardBlocks taken = blocks_of(kernel);
    const ForwardLayout begin(taken);
    const auto copy = [params]<class Block>(Block& to, bool is_taken, size_t from) {
      if (is_taken) to = *reinterpret_cast<const Block*>(static_cast<const char*>(params) + from);
    };
    copy(static_cast<ForwardParams&>(forward), true, 0);
    copy(static_cast<ListedForwardParams&>(forward), taken.list, 0);
    copy(static_cast<PlannedForwardParams&>(planned), taken.planned, 0);
    copy(forward.scales, taken.scales, begin.scales);
    copy(planned.scales, taken.scales, begin.scales);
    copy(planned.transforms, taken.transforms, begin.transforms);
    copy(planned.qv, taken.qv, begin.qv);
    copy(planned.latent_scales, taken.latent_scales, begin.latent_scales);
  }

  void take(const BackwardRow& kernel, const void* params) {
    if (kernel.has(Trait::centered_k)) {
      std::memcpy(static_cast<void*>(&centered_backward), params, parameter_bytes(kernel));
      planned_backward = centered_backward;
      static_cast<PlannedBackwardParams&>(transformed_backward) = planned_backward;
    } else if (kernel.has(Trait::planned)) {
      std::memcpy(static_cast<void*>(&transformed_backward), params, parameter_bytes(kernel));
      planned_backward = transformed_backward;
    } else {
      std::memcpy(static_cast<void*>(&backward), params, sizeof backward);
    }
  }

  void take(const PassRow& pass, const void* params) {
    switch (pass.pass) {
      case Pass::empty_rows: std::memcpy(&empty_rows, params, sizeof empty_rows); break;
      case Pass::tile_v: std::memcpy(&tile_v, params, sizeof tile_v); break;
      case Pass::plan_forward: std::memcpy(&lengths, params, sizeof lengths); break;
      case Pass::add_parts:
        static_cast<PlannedForwardParams&>(planned) = *static_cast<const PlannedForwardParams*>(params);
        break;
      case Pass::bwd_prepare:
      case Pass::bwd_finish:
        if (pass.has(Trait::planned))
          std::memcpy(static_cast<void*>(&planned_backward), params, sizeof planned_backward);
        else
          std::memcpy(static_cast<void*>(&backward), params, sizeof backward);
        break;
      case Pass::plan_backward: std::memcpy(&backward_list, params, sizeof backward_list); break;
      case Pass::bwd_key_means:
        std::memcpy(static_cast<void*>(&centered_backward), params, sizeof centered_backward);
        planned_backward = centered_backward;
        break;
      case Pass::widen: std::memcpy(&widen, params, sizeof widen); break;
      case Pass::quantize:
      case Pass::measure:
      case Pass::finish: std::memcpy(&quantize, params, sizeof quantize); break;
      case Pass::combine: std::memcpy(&combine, params, sizeof combine); break;
      case Pass::append: std::memcpy(static_cast<void*>(&append), params, sizeof append); break;
    }
  }
};

// Do the pieces of work hold each block of each tile once, and the tiles each row that sees a key? As the kernels
// unfold them.
inline bool is_complete(const Launched& launched) {
  const ListedForwardParams& p = launched.forward;
  const ForwardRow& row = *launched.row->forward();
  const bool causal = row.causal();
  const Packing packing = row.packs_heads() ? p.visible.packing : Packing{0};
  const Visible visible{p.visible.seqlen_q, p.visible.seqlen_k, 0, p.visible.right, false, causal, packing};
  const int32_t heads = p.tiles.heads, tiles = p.tiles.count();
  if (p.tiles.batch_heads % heads != 0 || p.pieces.whole_tiles < 0 || p.pieces.whole_tiles > tiles) return false;
  if (p.tiles.first_row > visible.empty_rows() || p.tiles.first_row + p.tiles.q_blocks * row.Br < visible.rows())
    return false;
  if (row.packs_heads() && p.tiles.first_row > 0) return false;  // nobody else writes the rows before
  std::vector<int64_t> left(static_cast<size_t>(tiles), -1);  // blocks of a (batch, head, query block) without a piece
  std::vector<size_t> place(static_cast<size_t>(tiles));
  for (int32_t number = 0; number < tiles; ++number) {
    const Tile tile = tile_at(p.tiles, number, causal);
    const int64_t at = (int64_t{tile.batch} * heads + tile.head) * p.tiles.q_blocks + tile.q_block;
    if (tile.head < 0 || tile.head >= heads || tile.q_block < 0 || tile.q_block >= p.tiles.q_blocks || at < 0 ||
        at >= tiles || left[size_t(at)] != -1)
      return false;
    const Keys blocks = tile_blocks(visible, p.tiles.first_row + tile.q_block * row.Br, row.Br, row.Bc);
    place[size_t(number)] = size_t(at);
    left[size_t(at)] = number < p.pieces.whole_tiles ? 0 : blocks.end - blocks.begin;
  }
  const int32_t together = p.pieces.tiles_per_entry;
  if (together < 1 || (together > 1 && !row.packs_heads()) || p.pieces.listed % together != 0)
    return false;
  for (int32_t n = 0; n < p.pieces.listed; ++n) {
    const int32_t entry = n / p.pieces.tiles_per_entry, nth = n - entry * p.pieces.tiles_per_entry;
    const int32_t number = p.pieces.whole_tiles + int32_t(p.list[entry].tile) + nth;
    if (number >= tiles) return false;
    const Tile tile = tile_at(p.tiles, number, causal);
    const Work work = p.pieces.work(
        p.list[entry], nth, tile_blocks(visible, p.tiles.first_row + tile.q_block * row.Br, row.Br, row.Bc).end);
    left[place[size_t(number)]] -= work.end - work.begin;
  }
  for (const int64_t blocks : left)
    if (blocks != 0) return false;
  return true;
}

// The same of a combination, as its threads take pieces of rows and shares of parts (ptx/passes/combine.cu).
inline bool is_complete(const CombineParams& p, const PassRow& row, unsigned grid) {
  std::vector<int> taken(size_t(p.batch_heads) * size_t(p.rows) * size_t(p.pieces) * size_t(p.shares));
  for (int32_t number = 0; number < int32_t(grid); ++number)
    for (int32_t thread = 0; thread < row.threads(); ++thread) {
      const int32_t all_slots = thread / p.pieces, piece = thread - all_slots * p.pieces;
      const int32_t share = all_slots / p.slots, slot = all_slots - share * p.slots, head_in_tile = slot / p.head_slots;
      const int32_t row_tile = number / p.tiles_along_heads, head_tile = number - row_tile * p.tiles_along_heads;
      const int64_t head = int64_t{head_tile} * p.tile_heads + head_in_tile;
      if (share >= p.shares || head_in_tile >= p.tile_heads || head >= p.batch_heads) continue;
      for (int r = 0; r < combine_rows; ++r) {
        const int64_t i = int64_t{row_tile} * combine_rows * p.head_slots + slot - head_in_tile * p.head_slots +
                          r * p.head_slots;
        if (i < p.rows) ++taken[size_t(((head * p.rows + i) * p.pieces + piece) * p.shares + share)];
      }
    }
  for (const int times : taken)
    if (times != 1) return false;
  return true;
}

}  // namespace fa3::test
