// What loads Q of the pieces of a list (planned_producer.cuh), and tells its consumers what they have to do.
#pragma once
#include "../tile/loads/source.cuh"
#include "../tile/ring.cuh"
#include "planned_keys.cuh"

namespace fa3 {

// All Q of piece t, numbered among those of the thread block, each as soon as a buffer is free. One thread, to which
// the piece has been handed over. open_before: has the piece before no bound on the left? Returns false behind the last
// one.
template <class P>
FA3_DEVICE bool produce_q(const P& p, Smem& smem, uint32_t t, bool& open_before) {
  PieceRing& pieces = smem.pieces;
  const uint32_t slot = PieceRing::index(t);
  const bool end = pieces.number[slot] == Claims::none;  // then the rest of the slot means nothing
  const PlannedPiece& piece = pieces.entries[slot];
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
    Work work = piece.work(pieces.number[slot], p.tiles.heads, pieces.head[slot]);
    work.begin *= blocks_each, work.end *= blocks_each;
    int nth = reversed ? warpgroups - 1 - w : w;  // which 64 rows of the tile
    if constexpr (multicasts) nth = rank_in_cluster();
    const int row = piece.q_block * Br + 64 * nth, blocks = work.end - work.begin;
    const Blocks row_blocks = key_blocks(visible(p, piece.sequence), row);
    // Behind these come blocks that the rows do not see, and those are left out, too; but no more of them than a
    // window that moves on with the rows leaves (ForwardRow::valid). What another bound leaves beyond that is
    // computed and masked: else it would fill the ring, and other warpgroups would wait for ever.
    const int latest = work.begin + (64 * nth + Bc - 1) / Bc;
    const int begin = bounded_left ? max(work.begin, min(min(row_blocks.begin, latest), work.end)) : work.begin;
    const int piece_blocks = work.end - begin;
    const int computed = min(max(row_blocks.end - begin, 0), piece_blocks);
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
    block.partial = halves_columns         ? (work.slot + work.part) * packed_slot_rows(p) + 64 * nth
                    : config.packs_heads() ? work.slot * packed_slot_rows(p) + 64 * nth * work.parts
                                         : work.slot * warpgroups + nth;
    block.ticket = work.split_tile * config.tile_warpgroups() + nth;
    block.sequence[0] = piece.sequence;
    if constexpr (has(Trait::alibi)) {
      block.sequence_number[0] = piece.sequence_number;
      // The planner may have cut the sequence's rows, so how many it has does not tell.
      const int queries_end = end ? 0 : taken<TransformBlock>(p).transforms.alibi.q.end_of(piece.sequence_number);
      block.first_position[0] = piece.sequence.q_row - queries_end + piece.sequence.seqlen_k;
    }
    uint32_t bytes = q_is_read ? config.q_buffer_bytes() : 0;
    if constexpr (config.has_scales())
      if (!end) {
        load_scales(block, p, piece.sequence_number);
        bytes += v_mean_bytes(p);
      }
    expect(full, bytes);
    if constexpr (config.has_scales())
      if (!end && v_mean_bytes(p))
        load_v_mean(smem.v_mean[VMeanRing::index(q_use)], full, p, piece.sequence_number, pieces.head[slot]);
  }
  arrive(pieces.empty[slot]);
  return !end;
}

// The same of all pieces, by a thread that does nothing else.
template <class P>
FA3_DEVICE void planned_q_producer(const P& p, Smem& smem) {
  bool open_before = true;
  for (uint32_t t = 0;; t++) {
    wait(smem.pieces.full[PieceRing::index(t)], PieceRing::parity(t));
    if (!produce_q(p, smem, t, open_before)) break;
  }
}

}  // namespace fa3
