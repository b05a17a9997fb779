// What forward and backward rows have in common: tiles of Br query rows by Bc keys.
#pragma once
#include "cells.h"

namespace fa3 {

// The boxes in which the kernels' tensor maps load and store: rows of a warpgroup's Q and of a warp's O. K and V have
// boxes of Bc rows. A box has the columns of one slab (TiledRow::slab_columns).
inline constexpr int q_box_rows = 64, o_box_rows = 16;

// Rows of Q, K and V that share a scale, where scales are per block (FA3_SCALE_ROWS in fa3.h).
inline constexpr int rows_of_scale = 64;
// Columns of a row of V that share one, in a latent cache of e4m3 (FA3_LATENT_SCALE_COLUMNS in fa3.h).
inline constexpr int latent_scale_columns = 128;

// Registers of one thread of each warpgroup, added up, that a launch gives them: each an equal share of the register
// file's 64K, in multiples of 8, which is 168 with three warpgroups, 128 with four and 96 with five. setmaxnreg moves
// them between warpgroups, and waits until as many as it asks for have been given back; for more than these it would
// wait for ever.
constexpr int launched_registers(int threads) { return 64 * 1024 / threads / 8 * 8 * (threads / 128); }

inline constexpr int barrier_bytes = 1024;  // at the end of shared memory, for mbarriers and RowBlocks (tile/smem.cuh)

struct TiledRow {
  const char* name;
  const char* kernel;  // its file is <kernel>.cu
  Kind kind;
  Dtype dtype;
  int d, dv;  // head dimension of Q and K, and of V and O
  Mask mask;
  int Br, Bc;  // query rows of a tile, keys of a K/V block
  int stages;  // of the ring
  Trait traits;

  constexpr bool has(Trait trait) const { return uint32_t(traits) & uint32_t(trait); }
  constexpr bool chosen() const { return has(Trait::chosen); }
  constexpr bool causal() const { return mask == Mask::causal; }
  // Is what a row sees bounded on that side (visible.h)?
  constexpr bool bounded_left() const { return mask == Mask::window; }
  constexpr bool bounded_right() const { return mask != Mask::full; }
  constexpr bool is_8bit() const { return dtype == Dtype::e4m3; }
  constexpr int element_bytes() const { return is_8bit() ? 1 : 2; }

  // Rows of Q, K, V and O lie in shared memory as slabs of so many bytes and columns; the last slab of a row may hold
  // fewer columns. In planned rows boxes of one row begin at multiples of 128 bytes, as TMA wants them.
  constexpr int slab_bytes() const {
    const bool is_small = d * element_bytes() <= 64 && dv * element_bytes() <= 64;
    return has(Trait::narrow_slabs) || (is_small && !has(Trait::planned)) ? 64 : 128;
  }
  constexpr int slab_columns() const { return slab_bytes() / element_bytes(); }
  constexpr int slabs() const { return (d + slab_columns() - 1) / slab_columns(); }
  constexpr int v_slabs() const { return (dv + slab_columns() - 1) / slab_columns(); }
  // Of a row of Q: with Trait::qv those of the second tensor follow those of the first.
  constexpr int q_slabs() const { return slabs() + (has(Trait::qv) ? v_slabs() : 0); }
  constexpr int row_bytes() const { return slabs() * slab_bytes(); }
  constexpr int v_row_bytes() const { return v_slabs() * slab_bytes(); }
  constexpr int q_buffer_bytes() const { return 64 * q_slabs() * slab_bytes(); }
  // Keys of a stage of the ring: of wide heads, half of a block that plans count (ForwardRow::halves_columns).
  constexpr int stage_keys() const { return dv > 256 ? Bc / 2 : Bc; }
  constexpr int k_block_bytes() const { return stage_keys() * row_bytes(); }
  constexpr int v_block_bytes() const { return stage_keys() * v_row_bytes(); }

  // Thread blocks that a multiprocessor holds at once.
  static constexpr int resident_blocks() { return 1; }
  // Thread blocks of a cluster, which share a tile, its K and V; with more than one, each has 64 of its rows.
  constexpr int cluster_blocks() const { return has(Trait::multicast) ? 2 : 1; }
};

}  // namespace fa3
