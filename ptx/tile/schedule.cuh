// The persistent scheduler: which piece comes next (work.h has the words), and what is in it.
//
// Thread block b starts with piece b; if there is none, it is there only for empty_rows.cuh. Further pieces are claimed
// one by one from a counter in the workspace, so that multiprocessors which are slow, late or shared with another
// kernel take fewer. Tiles are numbered so that heads that share K/V and fit the L2 cache together run together, and
// under a causal mask the longest tiles of a section come first.
//
// The counter needs no memset before a launch: the first thread block that wants to claim prepares it, the last one to
// finish marks it unprepared again, and any other content (the caller's workspace is not initialised) counts as
// unprepared.
#pragma once
#include "../isa/fence.cuh"
#include "forward.cuh"

namespace fa3 {

// Those that take pieces: thread blocks, or clusters of them. How many there are, and the own number.
FA3_DEVICE int takers() { return int(gridDim.x) / cluster_blocks; }
FA3_DEVICE int taker() { return int(blockIdx.x) / cluster_blocks; }

FA3_DEVICE int first_row(const Params& p, const Tile& tile) { return p.tiles.first_row + tile.q_block * Br; }

// The K/V blocks that the 64 rows from `row` on see.
FA3_DEVICE Blocks key_blocks(const Visible& seen, int row) { return blocks_of(seen.any(row, row + 63), Bc); }

FA3_DEVICE Tile tile_at(const Params& p, int number) { return tile_at(p.tiles, number, bounded_right); }

FA3_DEVICE Blocks tile_blocks(const Params& p, const Tile& tile) {
  return tile_blocks(visible(p), first_row(p, tile), Br, Bc);
}

struct Piece {
  Tile tile;
  Work work;
};

// Rows of the table without Trait::splits have no list.
FA3_DEVICE Listed listed_at(const ListedForwardParams& p, int i) { return p.list[i]; }
FA3_DEVICE Listed listed_at(const ForwardParams&, int) { return {}; }

FA3_DEVICE Piece piece_at(const Params& p, int number) {
  if constexpr (has(Trait::splits)) {
    if (number >= p.pieces.whole_tiles) {
      int entry = number - p.pieces.whole_tiles, nth = 0;
      if constexpr (config.packs_heads()) {
        const int piece = entry;
        entry = piece / p.pieces.tiles_per_entry;
        nth = piece - entry * p.pieces.tiles_per_entry;
      }
      const Listed listed = listed_at(p, entry);
      const Tile tile = tile_at(p, p.pieces.whole_tiles + listed.tile + nth);
      return {tile, p.pieces.work(listed, nth, tile_blocks(p, tile).end)};
    }
  }
  const Tile tile = tile_at(p, number);
  const Blocks blocks = tile_blocks(p, tile);
  return {tile, {number, blocks.begin, blocks.end, 0, 1, 0, 0}};
}

// The pieces of this thread block, one after the other. Used by one thread. It takes the first piece, and while it
// works on that, it asks for the next, whose number is a microsecond on its way; when it needs it, it takes it.
class Claims {
 public:
  static constexpr int none = -1;

  enum class NeedsWorkspace { unknown, yes, no };

  // counts: what the list holds, if it lies in device memory (Trait::planned). needs: what an object before this
  // one has said when it was ready; this one goes on.
  FA3_DEVICE explicit Claims(const Params& p, PlannedCounts counts = {},
                             NeedsWorkspace needs = NeedsWorkspace::unknown)
      : p_(p), next_(taker()), prepared_(needs == NeedsWorkspace::yes), needs_(needs), counts_(counts) {}

  // How many pieces there are.
  FA3_DEVICE int count() const { return planned ? counts_.entries * p_.tiles.heads : p_.pieces.count(); }

  // Asks for the next piece. To be called before the last V of the present one is loaded: the consumers take their
  // tickets after that V has come, and so find them cleared.
  FA3_DEVICE void ask() { next_ = needs_workspace() ? claim() : count(); }

  // The thread block's first piece, or none.
  FA3_DEVICE int first() const { return taker() < count() ? taker() : none; }

  // The workspace is ready when this returns, and so are the tickets in it.
  FA3_DEVICE void get_ready() {
    if (needs_workspace() && !prepared_) prepare();
  }

  // Where all pieces are under way at once, nothing is asked for, and another thread sees to it that tickets are
  // cleared, which they are when this returns. Then it calls take().
  FA3_DEVICE void prepare_tickets() {
    get_ready();
    next_ = count();
  }

  // The number of the piece asked for, or none. If it is none, finish() follows.
  FA3_DEVICE int asked() const { return next_ < count() ? next_ : none; }
  FA3_DEVICE void finish() {
    if (!needs_workspace()) return;
    if (!prepared_) prepare();
    if (atomicAdd(&p_.workspace->finished, 1u) == gridDim.x - 1u) ptx::st_release_gpu_u64(&p_.workspace->state, idle);
  }

  // Both. Not to be called again after that.
  FA3_DEVICE int take() {
    if (next_ < count()) return next_;
    finish();
    return none;
  }

  // Are there more pieces than the first one of each thread block, or are there tickets?
  FA3_DEVICE bool needs_workspace() const {
    if (needs_ != NeedsWorkspace::unknown) return needs_ == NeedsWorkspace::yes;
    return count() > takers() || (has(Trait::splits) && ticket_tiles() > 0);
  }

 private:
  // Values of Workspace::state. Any other means idle, too; these two are arbitrary, so that leftovers do not look like
  // them.
  static constexpr unsigned long long idle = 0, preparing = 0x9c6e1f5b03a7d241ull, ready = 0x51f0b7d38e2c946dull;

  // How many tiles have tickets.
  FA3_DEVICE int ticket_tiles() const {
    if constexpr (halves_columns) return 0;  // a pass adds parts up
    return planned ? counts_.slots / 2 * p_.tiles.heads : p_.pieces.ticket_tiles;
  }

  FA3_DEVICE int claim() {
    if (!prepared_) prepare();
    return atomicAdd(&p_.workspace->next_piece, 1u);
  }

  FA3_DEVICE void prepare() {
    Workspace& w = *p_.workspace;
    for (;;) {
      const unsigned long long state = ptx::ld_acquire_gpu_u64(&w.state);
      if (state == ready) break;
      if (state != preparing && atomicCAS(&w.state, state, preparing) == state) {
        w.next_piece = takers();
        w.finished = 0;
        if constexpr (has(Trait::splits)) clear_tickets();
        ptx::st_release_gpu_u64(&w.state, ready);
        break;
      }
    }
    prepared_ = true;
  }

  // Eight at a time, the last of them into the gap before the slots: two at a time would take microseconds.
  FA3_DEVICE void clear_tickets() {
    const Tickets* const end = p_.tickets + ticket_tiles() * config.tile_warpgroups();
#pragma unroll 1
    for (Tickets* tickets = p_.tickets; tickets < end; tickets += 8)
#pragma unroll
      for (int i = 0; i < 4; i++) reinterpret_cast<uint4*>(tickets)[i] = make_uint4(0, 0, 0, 0);
  }

  const Params& p_;
  int next_;
  bool prepared_;
  const NeedsWorkspace needs_;
  const PlannedCounts counts_;
};

}  // namespace fa3
