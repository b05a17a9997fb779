// The producer warpgroup where sequences have lengths of their own (Trait::own_lengths): its pieces come from a list in
// device memory (planned.h). The consumers are told the same, in the same order, as by producer.cuh.
//
// From the claim of a piece until its entry of the list is there it takes 1.5 us. So a warp does nothing else: it hands
// pieces over to the others in shared memory, the next one while they load the present one. Where K and V lie in pages,
// their blocks come in boxes of few rows. The lanes of a warp look up the pages of a block's boxes, two blocks ahead:
// while memory is busy, a page's number takes longer to come than a block. One box costs a warp 35 clocks, whatever its
// size, so two warps share them.
//   warps 0 and 1  K and V; warp 1 only where a block is more than one box
//   warp 2         Q
//   warp 3         claims pieces
#pragma once
#include "../isa/grid.cuh"
#include "../isa/setmaxnreg.cuh"
#include "ring.cuh"
#include "source.cuh"

namespace fa3 {

// Rows that lie outside of every tensor.
inline constexpr int no_row = 1 << 30;

// Where the boxes of a K/V block lie, in rows and batch entries as the maps of K and V have them: in pages, these are
// rows of a page, and pages. Lane l of K/V warp w knows it of box 2 l + w, and of every 64th one from there on.
struct Boxes {
  static constexpr int each = (Bc + 63) / 64;
  int row[each], batch[each];
};

// One of the two warps that load K and V, all lanes in step.
template <class P>
class PlannedKvProducer {
 public:
  FA3_DEVICE PlannedKvProducer(const P& p, Smem& smem, int warp) : p_(p), smem_(smem), warp_(warp) {}

  FA3_DEVICE void run() const {
    const bool alone = box_rows() == Bc;
    if (warp_ == 1 && alone) return;
    constexpr bool early = has(Trait::early_claim);
    PieceRing& pieces = smem_.pieces;
    uint32_t i = 0;  // use of the K/V ring
    // The next blocks. Those of the next piece are there already, if it was claimed in time (looked_up).
    Boxes next[lookahead]{};
    bool looked_up = false;
    // The block before: its V is loaded with the next K.
    Boxes before{};
    int head_before = 0, keys_before = 0;
    bool has_before = false;
    for (uint32_t t = 0;; t++) {
      const uint32_t slot = PieceRing::index(t);
      wait(pieces.full[slot], PieceRing::parity(t));
      if (pieces.number[slot] == Claims::none) break;
      const Planned& piece = pieces.planned[slot];
      const int head = config.packs_heads() ? pieces.head[slot] : pieces.head[slot] / p_.heads_per_kv;
      // The block at which the next piece is asked for: late, so that it goes to a thread block that is ready for it,
      // but early enough for it to come in time.
      const int blocks = piece.end - piece.begin, ahead = early ? min(max(blocks / 4, 2), 4) : 1;
      const int ask_at = min(piece.end - 1, piece.begin + ahead);
      if (!looked_up) {
#pragma unroll
        for (int n = 0; n < lookahead; n++)
          if (n < blocks) next[n] = boxes_of(piece.sequence, piece.end - 1 - n);
      }
      looked_up = false;
      for (int j = piece.end - 1; j >= piece.begin; j--, i++) {
        if (leads() && j == ask_at) arrive(pieces.wanted[0]);
        const Boxes block = next[0];
#pragma unroll
        for (int n = 1; n < lookahead; n++) next[n - 1] = next[n];
        const int left = j - piece.begin;  // blocks of the piece behind this one
        if (left >= lookahead) {
          next[lookahead - 1] = boxes_of(piece.sequence, j - lookahead);
        } else if constexpr (looks_beyond) {
          if (left == lookahead - 1) looked_up = is_there(t + 1);
          const Planned& following = pieces.planned[PieceRing::index(t + 1)];
          const int of_following = following.end - lookahead + left;
          if (looked_up && of_following >= following.begin)
            next[lookahead - 1] = boxes_of(following.sequence, of_following);
        }
        const uint32_t s = KvRing::index(i), parity = KvRing::parity(i) ^ 1;
        Stage& stage = smem_.stage[s];
        wait(smem_.empty_k[s], parity);
        if (leads())
          expect(smem_.full_k[s], !split_stage && has_before ? config.stage_bytes() : config.k_block_bytes());
        load_k(stage.k, smem_.full_k[s], block, head);
        if constexpr (split_stage) {
          // Not in use 0, where nobody waits for warp 1 with V: it might find the barrier a phase on.
          if (has_before) {
            wait(smem_.empty_v[s], parity);
            if (leads()) expect(smem_.full_v[s], config.v_block_bytes());
          } else if (leads()) {
            arrive(smem_.full_v[s]);
          }
        }
        uint64_t& full_v = split_stage ? smem_.full_v[s] : smem_.full_k[s];
        if (has_before) load_v(stage.v, full_v, before, head_before, keys_before);
        before = block, head_before = head, keys_before = piece.sequence.seqlen_k - j * Bc, has_before = true;
      }
      __syncwarp();  // all lanes have read the piece
      if (first_lane()) {
        arrive(pieces.empty[slot]);
        if (alone) arrive(pieces.empty[slot]);  // in place of the other warp
      }
    }
    if (!has_before) return;  // there was no work

    // The last V of all, alone in its stage.
    const uint32_t s = KvRing::index(i);
    uint64_t& full = split_stage ? smem_.full_v[s] : smem_.full_k[s];
    wait(split_stage ? smem_.empty_v[s] : smem_.empty_k[s], KvRing::parity(i) ^ 1);
    if (leads()) expect(full, config.v_block_bytes());
    load_v(smem_.stage[s].v, full, before, head_before, keys_before);
    wait(full, KvRing::parity(i));  // it must be there before the thread block gives up its shared memory
  }

 private:
  FA3_DEVICE static bool first_lane() { return threadIdx.x % 32 == 0; }
  // The thread that says how many bytes come, and asks for pieces.
  FA3_DEVICE static bool leads() { return threadIdx.x % 128 == 0; }

  static constexpr int lookahead = 2;
  // Only single consumers, whose tiles wait for memory, leave the registers for the next piece's blocks.
  static constexpr bool looks_beyond = !config.moves_registers();

  // Is piece t of the thread block in the ring already?
  FA3_DEVICE bool is_there(uint32_t t) const {
    const uint32_t slot = PieceRing::index(t), full = ptx::shared_address(&smem_.pieces.full[slot]);
    return __all_sync(0xffffffffu, ptx::mbarrier_test_wait_parity(full, PieceRing::parity(t))) &&
           smem_.pieces.number[slot] != Claims::none;
  }

  // Rows of a box: without pages a block is one box.
  FA3_DEVICE int box_rows() const { return p_.page_table ? p_.box_rows : Bc; }

  // Those of K/V block j. A box that holds no key of the sequence lies outside of the tensors, so its rows are zeros.
  FA3_DEVICE Boxes boxes_of(const Sequence& sequence, int j) const {
    Boxes boxes;
#pragma unroll
    for (int n = 0; n < Boxes::each; n++) {
      const int first = first_of(n), key = j * Bc + first;
      boxes.row[n] = no_row, boxes.batch[n] = 0;
      if (first >= Bc || key >= sequence.seqlen_k) continue;
      if (p_.page_table) {
        const int at = sequence.k_row + key, page = at / p_.page_size;
        boxes.row[n] = at - page * p_.page_size;
        boxes.batch[n] = __ldcg(p_.page_table + int64_t{sequence.k_batch} * p_.table_stride + page);
      } else {
        boxes.row[n] = sequence.k_row + key, boxes.batch[n] = sequence.k_batch;
      }
    }
    return boxes;
  }

  // The first row in the block of the lane's box n.
  FA3_DEVICE int first_of(int n) const { return (int(2 * (threadIdx.x % 32)) + warp_ + 64 * n) * box_rows(); }

  // Calls f for each of the lane's boxes, with its first row in the block, and where it lies.
  template <class F>
  FA3_DEVICE void each_box(const Boxes& boxes, F f) const {
#pragma unroll
    for (int n = 0; n < Boxes::each; n++)
      if (first_of(n) < Bc) f(first_of(n), boxes.row[n], boxes.batch[n]);
  }

  FA3_DEVICE void load_k(const Element* to, uint64_t& full, const Boxes& boxes, int head) const {
    each_box(boxes, [&](int first, int row, int batch) {
      const uint32_t at = ptx::shared_address(to) + first * slab_row_bytes;
#pragma unroll
      for (int slab = 0; slab < slabs; slab++)
        ptx::cp_async_bulk_tensor_4d_load(at + slab * Bc * slab_row_bytes, &p_.k, ptx::shared_address(&full),
                                          slab * slab_columns, row, head, batch);
    });
  }

  // keys: so many of the block, from its first one on, are the sequence's.
  FA3_DEVICE void load_v(const Element* to, uint64_t& full, const Boxes& boxes, int head, int keys) const {
    each_box(boxes, [&](int first, int row, int batch) {
      const uint32_t at = ptx::shared_address(to) + first * slab_row_bytes;
      const int rows = keys - first;
      if (rows > 0 && rows < box_rows()) return load_few_rows(at, full, rows, row, head, batch);
#pragma unroll
      for (int slab = 0; slab < v_slabs; slab++)
        ptx::cp_async_bulk_tensor_4d_load(at + slab * Bc * slab_row_bytes, &p_.v, ptx::shared_address(&full),
                                          slab * slab_columns, row, head, batch);
    });
  }

  // A box of V of which only the first n rows are the sequence's, and zeros behind these.
  FA3_DEVICE void load_few_rows(uint32_t to, uint64_t& full, int n, int row, int head, int batch) const {
    static_assert(Bc <= 1 << P::v_boxes);
#pragma unroll 1
    for (int i = 0; i < 2 * P::v_boxes; i++) {  // boxes of rows of the sequence, then those of zeros
      const int box = i % P::v_boxes;
      const bool zeros = i >= P::v_boxes;
      if (((zeros ? box_rows() - n : n) >> box & 1) == 0) continue;
      for (int slab = 0; slab < v_slabs; slab++)
        ptx::cp_async_bulk_tensor_4d_load(to + slab * Bc * slab_row_bytes, &p_.v_rows[box], ptx::shared_address(&full),
                                          slab * slab_columns, zeros ? no_row : row, head, batch);
      to += slab_row_bytes << box;
      row += 1 << box;
    }
  }

  const P& p_;
  Smem& smem_;
  int warp_;
};

// Q, as soon as a buffer is free. One thread.
template <class P>
FA3_DEVICE void planned_q_producer(const P& p, Smem& smem) {
  PieceRing& pieces = smem.pieces;
  bool open_before = true;      // has the piece before no bound on the left?
  for (uint32_t t = 0;; t++) {  // number of the piece among those of the thread block
    const uint32_t slot = PieceRing::index(t);
    wait(pieces.full[slot], PieceRing::parity(t));
    const bool end = pieces.number[slot] == Claims::none;  // then the rest of the slot means nothing
    const Planned& piece = pieces.planned[slot];
    const bool open = !bounded_left || piece.sequence.left == no_bound;
    // Under a causal mask later rows see more keys. So that no warpgroup always has those, the order is reversed from
    // piece to piece. In a window all see as many; there the order stays, so that what a warpgroup skips at the end of
    // a piece and at the beginning of the next leaves a stage free (ForwardRow::valid).
    const bool reversed = bounded_right && open && open_before && t & 1;
    open_before = open;
#pragma unroll 1  // for want of registers
    for (int w = 0; w < warpgroups; w++) {
      const uint32_t q_use = t * warpgroups + w, buffer = QRing::index(q_use);
      uint64_t& full = smem.full_q[QRing::full_index(q_use)];
      wait(smem.empty_q[buffer], QRing::parity(q_use) ^ 1);
      const Work work = piece.work(pieces.number[slot], p.tiles.heads, pieces.head[slot]);
      const int nth = reversed ? warpgroups - 1 - w : w;  // which 64 rows of the tile
      const int row = piece.q_block * Br + 64 * nth, blocks = work.end - work.begin;
      const Blocks of_rows = key_blocks(visible(p, piece.sequence), row);
      // Behind these come blocks that the rows do not see, and those are left out, too; but no more of them than a
      // window that moves on with the rows leaves (ForwardRow::valid). What another bound leaves beyond that is
      // computed and masked: else it would fill the ring, and other warpgroups would wait for ever.
      const int latest = work.begin + (64 * nth + Bc - 1) / Bc;
      const int begin = bounded_left ? max(work.begin, min(min(of_rows.begin, latest), work.end)) : work.begin;
      const int computed = min(max(of_rows.end - begin, 0), work.end - begin);
      const bool q_is_read = !end && computed > 0;
      // Before its RowBlock is written: the barrier's phase does not end without the arrival below.
      if (q_is_read)
        load_q(smem.q[buffer], full, p, row, pieces.head[slot], piece.sequence.q_batch, piece.sequence.q_row);
      RowBlock& block = smem.row_block[RowBlockRing::index(q_use)];
      block.row = row;
      block.blocks = end ? RowBlock::end_of_work : computed;
      block.skipped = blocks - computed;
      block.begin = bounded_left && computed == 0 ? work.begin : begin;  // if it computes none, one that is all masked
      if constexpr (bounded_left) {
        const int later = computed > 0 ? begin - work.begin : 0;
        const int before = t > 0 ? smem.row_block[RowBlockRing::index(q_use - warpgroups)].skipped_later[0] : 0;
        block.skipped = (end ? 0 : blocks - computed - later) + before;
        block.skipped_later[0] = later;
      }
      block.head = pieces.head[slot];
      block.batch = piece.sequence.q_batch;
      block.part = work.part;
      block.parts = work.parts;
      block.partial = config.packs_heads() ? work.slot * packed_slot_rows(p) + 64 * nth * work.parts
                                           : work.slot * warpgroups + nth;
      block.ticket = work.split_tile * warpgroups + nth;
      block.sequence[0] = piece.sequence;
      expect(full, q_is_read ? config.q_buffer_bytes() : 0);
    }
    arrive(pieces.empty[slot]);
    if (end) break;
  }
}

// Claims the thread block's pieces, and hands them over in their order. A warp, all lanes in step.
template <class P>
FA3_DEVICE void hand_over_pieces(const P& p, Smem& smem) {
  PieceRing& pieces = smem.pieces;
  const int lane = threadIdx.x % 32;
  // Four lanes load an entry. It may have been written just now: not through the L1 cache.
  const auto load_entry = [&](int number) {
    const Planned* const entry = p.planned + number / p.tiles.heads;
    return lane < 4 && number >= 0 ? __ldcg(reinterpret_cast<const uint4*>(entry) + lane) : uint4{};
  };
  const auto publish = [&](uint32_t t, int number, uint4 quarter) {
    const uint32_t slot = PieceRing::index(t);
    wait(pieces.empty[slot], PieceRing::parity(t) ^ 1);
    if (lane < 4) reinterpret_cast<uint4*>(&pieces.planned[slot])[lane] = quarter;
    if (lane == 0) {
      pieces.number[slot] = number;
      pieces.head[slot] = number - number / p.tiles.heads * p.tiles.heads;
    }
    __syncwarp();
    if (lane == 0) arrive(pieces.full[slot]);
  };

  const uint4 first = load_entry(blockIdx.x);  // beside the counts, which may say that there is none
  Claims claims(p, {__ldcg(&p.counts->entries), __ldcg(&p.counts->slots)});
  const bool fit_grid = config.packs_heads() && claims.count() <= int(gridDim.x);
  if (lane == 0) pieces.fit_grid[0] = fit_grid;
  int number = claims.asked();
  publish(0, number, first);
  // That tickets are cleared takes a microsecond or two. The last V of all need not wait for it if consumers do.
  if (fit_grid && number != Claims::none) publish(1, number = Claims::none, {});
  if (lane == 0) {
    claims.get_ready();
    if constexpr (config.packs_heads()) arrive(smem.tickets_ready[0]);
  }
  for (uint32_t t = 1; number != Claims::none; t++) {
    wait(pieces.wanted[0], t - 1 & 1);
    if (lane == 0) claims.ask();
    number = __shfl_sync(0xffffffffu, claims.asked(), 0);
    publish(t, number, load_entry(number));
  }
  if (lane == 0) claims.finish();
}

// The producer warpgroup. `warp` of its four.
template <class P>
FA3_DEVICE void planned_producer(const P& p, Smem& smem, int warp) {
  if constexpr (config.moves_registers()) ptx::setmaxnreg_dec<config.producer_registers()>();
  ptx::griddepcontrol_wait();  // the pass that makes the list may be under way
  if (warp < 2) PlannedKvProducer<P>(p, smem, warp).run();
  else if (warp == 3) hand_over_pieces(p, smem);
  else if (threadIdx.x % 32 == 0) planned_q_producer(p, smem);
}

}  // namespace fa3
