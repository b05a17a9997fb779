// The persistent tile scheduler: which tile, or part of one, comes next, and what is in it.
//
// Thread block b starts with item b (a tile, or a unit of split ones: split.h), if there is one; without, it is there for
// blind.cuh. Further items are claimed one by one from a counter in the workspace, so that SMs which are slow, late or shared
// with another kernel take fewer. Tiles are numbered so that heads that share K/V and fit the L2 cache together run together,
// and under a causal mask the longest blocks of a section come first.
//
// The counter needs no memset before a launch: the first block that wants to claim prepares it, the last block to leave
// marks it unprepared again, and any other content (the caller's workspace is not initialised) counts as unprepared.
#pragma once
#include "../isa/fence.cuh"
#include "config.cuh"

namespace fa3 {

struct Tile {
  int q_block;
  int head, batch;
};

FA3_DEVICE Tile tile_at(const ForwardParams& p, int index) {
  const int section = index / p.section_tiles, within = index - section * p.section_tiles;
  const int first_head = section * p.section_heads;
  const Divisor heads = p.batch_heads - first_head >= p.section_heads ? p.section_heads : p.last_heads;
  const int i = within / heads;
  const int batch_head = first_head + within - i * heads;
  const int batch = batch_head / p.heads;
  return {causal ? p.q_blocks - 1 - i : i, batch_head - batch * p.heads, batch};
}

// First query row of the tile. Blocks are counted from the end of the sequence (q_origin), so that under a causal mask
// the block with fewer rows is the first and shortest one.
FA3_DEVICE int first_row(const ForwardParams& p, int q_block) { return p.q_origin + q_block * Br; }

// K/V blocks that the 64 query rows from `row` on have to see; 0 if none of them exists or sees a key.
FA3_DEVICE int key_blocks(const ForwardParams& p, int row) {
  if (row >= p.seqlen_q || row + 64 <= 0) return 0;
  int keys = p.seqlen_k;
  if constexpr (causal) keys = min(keys, min(row + 63, p.seqlen_q - 1) + p.causal_offset + 1);
  return keys <= 0 ? 0 : (keys + Bc - 1) / Bc;
}

// K/V blocks of a tile: what its longest 64 rows see, but one at least, to keep the pipeline uniform.
FA3_DEVICE int tile_blocks(const ForwardParams& p, const Tile& tile) {
  int blocks = 1;
#pragma unroll
  for (int w = 0; w < row.warpgroups(); w++) blocks = max(blocks, key_blocks(p, first_row(p, tile.q_block) + 64 * w));
  return blocks;
}

struct Item {
  Tile tile;
  Part part;
};

FA3_DEVICE Item item_at(const ForwardParams& p, int place) {
  if constexpr (row.is_fwd()) {
    const Tile tile = tile_at(p, p.split.tile_at(place));
    return {tile, p.split.part(place, tile_blocks(p, tile))};
  } else {
    const Tile tile = tile_at(p, place);
    return {tile, {0, 0, tile_blocks(p, tile), 0, 1, 0}};
  }
}

// The places (split.h) at which this thread block works, one after the other. Used by one thread: it takes the first, and
// while it works there it asks for the next, which is a microsecond on its way, and takes that when it needs it.
class Claims {
 public:
  static constexpr int none = -1;

  FA3_DEVICE explicit Claims(const ForwardParams& p) : p_(p), item_(blockIdx.x) {}

  // Asks for the place after this one. To be called before the last V of this place is loaded: its consumers take their
  // tickets after that, and so find them prepared.
  FA3_DEVICE void ask(int place) {
    item_ = p_.split.items();
    if (!shared()) return;
    if constexpr (row.is_fwd()) {
      further_ = p_.split.next_in_unit(place);
      if (further_ >= 0) {
        if (!prepared_) prepare();
        return;
      }
    }
    item_ = claim();
  }

  // The place asked for, or none. Not called again after it said none.
  FA3_DEVICE int take() {
    if (row.is_fwd() && further_ >= 0) return further_;
    for (;; item_ = claim()) {
      if (item_ >= p_.split.items()) break;
      if constexpr (!row.is_fwd()) return item_;
      const int place = p_.split.place(item_);
      if (has_blocks(place)) return place;
    }
    if (shared()) {
      if (!prepared_) prepare();
      if (atomicAdd(&p_.workspace->leaving, 1u) == gridDim.x - 1u) ptx::st_release_gpu_u64(&p_.workspace->state, idle);
    }
    return none;
  }

 private:
  // Any other value of the state word means idle, too; these are arbitrary, so that leftovers do not look like them.
  static constexpr unsigned long long idle = 0, preparing = 0x9c6e1f5b03a7d241ull, ready = 0x51f0b7d38e2c946dull;

  // Is there work beyond each block's first item, or tickets for the parts?
  FA3_DEVICE bool shared() const { return p_.split.items() > int(gridDim.x) || (row.is_fwd() && p_.split.tiles > 0); }

  FA3_DEVICE int claim() {
    if (!prepared_) prepare();
    return atomicAdd(&p_.workspace->next_item, 1u);
  }

  // Under a causal mask short tiles leave units empty.
  FA3_DEVICE bool has_blocks(int place) const {
    if (!causal || place < p_.split.whole_tiles) return true;
    const Part part = item_at(p_, place).part;
    return part.begin < part.end;
  }

  FA3_DEVICE void prepare() {
    Workspace& w = *p_.workspace;
    for (;;) {
      const unsigned long long seen = ptx::ld_acquire_gpu_u64(&w.state);
      if (seen == ready) break;
      if (seen != preparing && atomicCAS(&w.state, seen, preparing) == seen) {
        w.next_item = gridDim.x;
        w.leaving = 0;
        if constexpr (row.is_fwd()) clear_tickets();
        ptx::st_release_gpu_u64(&w.state, ready);
        break;
      }
    }
    prepared_ = true;
  }

  // Eight at a time, the last into the gap before the partial results: two at a time would take microseconds.
  FA3_DEVICE void clear_tickets() {
    const Tickets* const end = p_.tickets + p_.split.tiles * warpgroups;
#pragma unroll 1
    for (Tickets* tickets = p_.tickets; tickets < end; tickets += 8)
#pragma unroll
      for (int i = 0; i < 4; i++) reinterpret_cast<uint4*>(tickets)[i] = make_uint4(0, 0, 0, 0);
  }

  const ForwardParams& p_;
  int item_, further_ = -1;
  bool prepared_ = false;
};

}  // namespace fa3
