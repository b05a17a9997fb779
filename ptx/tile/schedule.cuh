// The persistent scheduler: which piece of work comes next (work.h has the words), and what is in it.
//
// Thread block b starts with piece b, if there is one; without, it is there for empty_rows.cuh. Further pieces are claimed one by
// one from a counter in the workspace, so that multiprocessors which are slow, late or shared with another kernel take fewer.
// Tiles are numbered so that heads that share K/V and fit the L2 cache together run together, and under a causal mask the longest
// tiles of a section come first.
//
// The counter needs no memset before a launch: the first block that wants to claim prepares it, the last block to finish marks it
// unprepared again, and any other content (the caller's workspace is not initialised) counts as unprepared.
#pragma once
#include "../isa/fence.cuh"
#include "config.cuh"

namespace fa3 {

FA3_DEVICE int first_row(const Params& p, const Tile& tile) { return p.tiles.first_row + tile.q_block * Br; }

// K/V blocks that the 64 query rows from `row` on have to see.
FA3_DEVICE Keys key_blocks(const Params& p, int row) { return blocks_of(visible(p).any(row, row + 63), Bc); }

FA3_DEVICE Tile tile_at(const Params& p, int number) { return tile_at(p.tiles, number, causal); }

FA3_DEVICE Keys tile_blocks(const Params& p, const Tile& tile) { return tile_blocks(visible(p), first_row(p, tile), Br, Bc); }

struct Piece {
  Tile tile;
  Work work;
};

// Rows that do not split have no list.
FA3_DEVICE Listed listed_at(const ListedForwardParams& p, int i) { return p.list[i]; }
FA3_DEVICE Listed listed_at(const ForwardParams&, int) { return {}; }

FA3_DEVICE Piece piece_at(const Params& p, int number) {
  if constexpr (has(Trait::splits)) {
    if (number >= p.pieces.whole_tiles) {
      const Listed listed = listed_at(p, number - p.pieces.whole_tiles);
      const Tile tile = tile_at(p, p.pieces.whole_tiles + listed.tile);
      return {tile, p.pieces.work(listed, tile_blocks(p, tile).end)};
    }
  }
  const Tile tile = tile_at(p, number);
  const Keys blocks = tile_blocks(p, tile);
  return {tile, {number, blocks.begin, blocks.end, 0, 1, 0, 0}};
}

// The pieces of this thread block, one after the other. Used by one thread: it takes the first, and while it works on it, it asks
// for the next, which is a microsecond on its way, and takes that when it needs it.
class Claims {
 public:
  static constexpr int none = -1;

  FA3_DEVICE explicit Claims(const Params& p) : p_(p), next_(blockIdx.x) {}

  // Asks for the next piece. To be called before the last V of the present one is loaded: its consumers take their tickets after
  // that, and so find them prepared.
  FA3_DEVICE void ask() { next_ = shared() ? claim() : p_.pieces.count(); }

  // The piece asked for, or none. Not called again after it said none.
  FA3_DEVICE int take() {
    if (next_ < p_.pieces.count()) return next_;
    if (shared()) {
      if (!prepared_) prepare();
      if (atomicAdd(&p_.workspace->finished, 1u) == gridDim.x - 1u) ptx::st_release_gpu_u64(&p_.workspace->state, idle);
    }
    return none;
  }

 private:
  // Any other value of the state word means idle, too; these are arbitrary, so that leftovers do not look like them.
  static constexpr unsigned long long idle = 0, preparing = 0x9c6e1f5b03a7d241ull, ready = 0x51f0b7d38e2c946dull;

  // Is there work beyond each block's first piece, or are there tickets?
  FA3_DEVICE bool shared() const {
    return p_.pieces.count() > int(gridDim.x) || (has(Trait::splits) && p_.pieces.ticket_tiles > 0);
  }

  FA3_DEVICE int claim() {
    if (!prepared_) prepare();
    return atomicAdd(&p_.workspace->next_piece, 1u);
  }

  FA3_DEVICE void prepare() {
    Workspace& w = *p_.workspace;
    for (;;) {
      const unsigned long long seen = ptx::ld_acquire_gpu_u64(&w.state);
      if (seen == ready) break;
      if (seen != preparing && atomicCAS(&w.state, seen, preparing) == seen) {
        w.next_piece = gridDim.x;
        w.finished = 0;
        if constexpr (has(Trait::splits)) clear_tickets();
        ptx::st_release_gpu_u64(&w.state, ready);
        break;
      }
    }
    prepared_ = true;
  }

  // Eight at a time, the last into the gap before the partial results: two at a time would take microseconds.
  FA3_DEVICE void clear_tickets() {
    const Tickets* const end = p_.tickets + p_.pieces.ticket_tiles * warpgroups;
#pragma unroll 1
    for (Tickets* tickets = p_.tickets; tickets < end; tickets += 8)
#pragma unroll
      for (int i = 0; i < 4; i++) reinterpret_cast<uint4*>(tickets)[i] = make_uint4(0, 0, 0, 0);
  }

  const Params& p_;
  int next_;
  bool prepared_ = false;
};

}  // namespace fa3
