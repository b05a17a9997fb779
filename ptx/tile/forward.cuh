// The names that kernels of the forward pass alone use for the cells of their row (beside those of tiling.cuh), and
// their parameters.
#pragma once
#include <type_traits>

#include "tiling.cuh"

namespace fa3 {

// As many as warpgroups, but twice as many with shares_keys, or if each has half of O's columns.
inline constexpr int consumers = config.consumers();
inline constexpr bool shares_keys = has(Trait::shares_keys);
inline constexpr bool transforms_scores = config.transforms_scores();
inline constexpr bool takes_v_tiles = config.takes_v_tiles();
inline constexpr bool widens_latent = config.widens_latent(), keeps_latent = config.keeps_latent(),
                      splits_latent = config.splits_latent();
inline constexpr bool has_qv = has(Trait::qv);
// Columns of O that a consumer has: all, or half of them.
inline constexpr bool halves_columns = config.halves_columns();
inline constexpr int o_columns = config.o_columns();
// Thread blocks that share a tile's rows; with more than one, each has 64 of them.
inline constexpr int cluster_blocks = config.cluster_blocks();
inline constexpr bool multicasts = has(Trait::multicast);

// What the kernel takes.
using Params = ForwardParamsWith<blocks_of(config)>;
static_assert(sizeof(Params) == parameter_bytes(config) && sizeof(Params) <= 4096);

// A block of that; zeros if the row does not take it.
template <class Block>
FA3_DEVICE decltype(auto) taken(const Params& p) {
  if constexpr (std::is_base_of_v<Block, Params>) return static_cast<const Block&>(p);
  else return Block{};
}

// How heads are packed into rows: not at all in rows of the table that do not pack them.
FA3_DEVICE Packing packing(const Params& p) { return config.packs_heads() ? p.visible.packing : Packing{0}; }

// With packed heads: how many rows a part's slot has.
FA3_DEVICE int packed_slot_rows(const Params& p) {
  return Packing::slot_rows(int(packing(p).rows(p.visible.seqlen_q)), Br, config.slot_unit());
}

// What the problem's rows see. Which sides are bounded is a constant here: the table's row has the mask.
FA3_DEVICE Visible visible(const Params& p) {
  Visible seen = p.visible;
  seen.bounded_left = bounded_left, seen.bounded_right = bounded_right, seen.packing = packing(p);
  return seen;
}

// What the rows of a sequence with lengths of its own see.
FA3_DEVICE Visible visible(const Params& p, const Sequence& sequence) {
  return visible_of(sequence, bounded_left, bounded_right, packing(p));
}

}  // namespace fa3
