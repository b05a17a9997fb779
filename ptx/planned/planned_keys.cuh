// What loads K and V of the pieces of a list (planned_producer.cuh), where they lie in pages, too.
#pragma once
#include "../isa/cluster.cuh"
#include "../tile/loads/landing.cuh"
#include "../tile/loads/source.cuh"
#include "../tile/ring.cuh"

namespace fa3 {

// Rows that lie outside of every tensor.
inline constexpr int no_row = 1 << 30;

// The thread block's among those that share a tile.
FA3_DEVICE int rank_in_cluster() { return multicasts ? ptx::cluster_ctarank() : 0; }

// Where the boxes of a K/V block lie, in rows and batch entries as the maps of K and V have them: in pages, these are
// rows of a page, and pages. Lane l of a single K/V warp knows it of box l, and of every 32nd one from there on; of two
// warps that of warp w of box 2 l + w, and of every 64th one.
struct Boxes {
  static constexpr int warps = PieceRing::kv_warps, lanes = 32 * warps, each = (Bc + lanes - 1) / lanes;
  int row[each], batch[each];
};

// One of the warps that load K and V, all lanes in step.
template <class P>
class PlannedKvProducer {
 public:
  FA3_DEVICE PlannedKvProducer(const P& p, Smem& smem, int warp) : p_(p), smem_(smem), warp_(warp) {}

  // latent: with halves_columns, what loads a stage (latent/latent_keys.cuh).
  template <class Latent = std::nullptr_t>
  FA3_DEVICE void run(const Latent& latent = {}) const {
    const bool alone = Boxes::warps == 2 && box_rows() == Bc;
    if (warp_ == 1 && alone) return;
    constexpr bool early = has(Trait::early_claim), lands = config.lands_v();
    PieceRing& pieces = smem_.pieces;
    uint32_t i = 0;  // use of the K/V ring
    // The next blocks. Those of the next piece are there already, if it was claimed in time (looked_up).
    Boxes next[lookahead]{};
    bool looked_up = false;
    uint32_t landed = 0;  // V blocks for menders, so far
    // The block before: its V is loaded with the next K.
    Boxes before{};
    int head_before = 0, keys_before = 0;
    bool has_before = false;
    for (uint32_t t = 0;; t++) {
      const uint32_t slot = PieceRing::index(t);
      wait(pieces.full[slot], PieceRing::parity(t));
      if (pieces.number[slot] == Claims::none) break;
      const PlannedPiece& piece = pieces.entries[slot];
      const int head = config.packs_heads() ? pieces.head[slot] : pieces.head[slot] / p_.heads_per_kv;
      const InFlight in_flight(p_, pieces.number[slot], config.packs_heads() ? pieces.count[0] : 0);
      // The block at which the next piece is asked for: late, so that it goes to a thread block that is ready for it,
      // but early enough for it to come in time.
      const int blocks = blocks_each * (piece.end - piece.begin), ahead = early ? min(max(blocks / 4, 2), 4) : 1;
      const int ask_at = min(blocks_each * piece.end - 1, blocks_each * piece.begin + ahead);
      if (!looked_up) {
#pragma unroll
        for (int n = 0; n < lookahead; n++)
          if (n < blocks) next[n] = boxes_of(piece.sequence, blocks_each * piece.end - 1 - n);
      }
      looked_up = false;
      for (int j = blocks_each * piece.end - 1; j >= blocks_each * piece.begin; j--, i++) {
        if (leads() && j == ask_at) arrive(pieces.wanted[0]);
        const Boxes block = next[0];
#pragma unroll
        for (int n = 1; n < lookahead; n++) next[n - 1] = next[n];
        const int left = j - blocks_each * piece.begin;  // blocks of the piece behind this one
        if (left >= lookahead) {
          next[lookahead - 1] = boxes_of(piece.sequence, j - lookahead);
        } else if constexpr (looks_beyond) {
          if (left == lookahead - 1) looked_up = is_there(t + 1);
          const PlannedPiece& following = pieces.entries[PieceRing::index(t + 1)];
          const int following_block = blocks_each * following.end - lookahead + left;
          if (looked_up && following_block >= blocks_each * following.begin)
            next[lookahead - 1] = boxes_of(following.sequence, following_block);
        }
        if constexpr (widens) {
          land_k(landed++, block, head);
          if (has_before) land_v(landed++, before, head_before, keys_before);
        } else {
          const uint32_t s = KvRing::index(i), parity = KvRing::parity(i) ^ 1;
          Stage& stage = smem_.stage[s];
          if constexpr (halves_columns) {
            latent.load(i, block, head, piece.sequence.seqlen_k - j * Bc);
            if (left >= lookahead) latent.send_ahead(piece, next[lookahead - 1], head);
          } else {
            in_flight.wait_before(smem_, i);
            wait(smem_.empty_k[s], parity);
            if (leads())
              expect(smem_.full_k[s],
                     !lands && !split_stage && has_before ? config.stage_bytes() : config.k_block_bytes());
            load_k(stage.k, smem_.full_k[s], block, head);
            if constexpr (lands) {
              if (has_before) land_v(landed++, before, head_before, keys_before);
            } else if constexpr (split_stage) {
              // Not in use 0, where nobody waits for warp 1 with V: it might find the barrier a phase on.
              if (has_before) {
                wait(smem_.empty_v[s], parity);
                if (leads()) expect(smem_.full_v[s], config.v_block_bytes());
              } else if (leads()) {
                arrive(smem_.full_v[s]);
              }
            }
            uint64_t& full_v = split_stage ? smem_.full_v[s] : smem_.full_k[s];
            if (!lands && has_before) load_v(stage.v, full_v, before, head_before, keys_before);
          }
        }
        if constexpr (!halves_columns)
          before = block, head_before = head, keys_before = piece.sequence.seqlen_k - j * Bc, has_before = true;
      }
      __syncwarp();  // all lanes have read the piece
      if (first_lane()) {
        arrive(pieces.empty[slot]);
        if (alone) arrive(pieces.empty[slot]);  // in place of the other warp
      }
    }
    if constexpr (halves_columns) latent.end(i);
    if (!has_before) {  // there was no work
      if constexpr (lands) end_landings(landed);
      return;
    }

    // The last V of all, alone in its stage.
    const uint32_t s = KvRing::index(i);
    uint64_t& full = split_stage ? smem_.full_v[s] : smem_.full_k[s];
    if constexpr (!widens) wait(split_stage ? smem_.empty_v[s] : smem_.empty_k[s], KvRing::parity(i) ^ 1);
    if constexpr (widens) {
      end_landings(landed++);
      land_v(landed, before, head_before, keys_before);
    } else if constexpr (lands) {
      if (!split_stage && leads()) arrive(full);
      land_v(landed++, before, head_before, keys_before);
      end_landings(landed);
    } else {
      if (leads()) expect(full, config.v_block_bytes());
      load_v(smem_.stage[s].v, full, before, head_before, keys_before);
    }
    wait(full, KvRing::parity(i));  // it must be there before the thread block gives up its shared memory
  }

 protected:
  FA3_DEVICE static bool first_lane() { return threadIdx.x % 32 == 0; }
  // The thread that says how many bytes come, and asks for pieces.
  FA3_DEVICE static bool leads() { return threadIdx.x % 128 == 0; }

  static constexpr int lookahead = 2;
  // Only single consumers, whose tiles wait for memory, leave the registers for the next piece's blocks.
  static constexpr bool looks_beyond = config.consumers() == 1;

  // Is piece t of the thread block in the ring already?
  FA3_DEVICE bool is_there(uint32_t t) const {
    const uint32_t slot = PieceRing::index(t), full = ptx::shared_address(&smem_.pieces.full[slot]);
    return __all_sync(0xffffffffu, ptx::mbarrier_test_wait_parity(full, PieceRing::parity(t))) &&
           smem_.pieces.number[slot] != Claims::none;
  }

  // The nth V for menders, and what comes behind the last one: then they end.
  FA3_DEVICE void land_v(uint32_t n, const Boxes& boxes, int head, int keys) const {
    uint64_t& full = await_landing(n);
    if (leads()) expect(full, config.landing_bytes());
    load_v(smem_.landing.v[n % Landing::buffers], full, boxes, head, keys);
  }
  // The same of K that is widened.
  FA3_DEVICE void land_k(uint32_t n, const Boxes& boxes, int head) const {
    uint64_t& full = await_landing(n);
    if (leads()) expect(full, config.landing_bytes());
    load_k(smem_.landing.v[n % Landing::buffers], full, boxes, head);
  }
  FA3_DEVICE void end_landings(uint32_t n) const {
    uint64_t& full = await_landing(n);
    if (!leads()) return;
    smem_.landing.end[n % Landing::buffers] = true;
    arrive(full);
  }
  FA3_DEVICE uint64_t& await_landing(uint32_t n) const {
    const uint32_t buffer = n % Landing::buffers;
    wait(smem_.landing.empty[buffer], n / Landing::buffers & 1 ^ 1);
    return smem_.landing.full[buffer];
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
  FA3_DEVICE int first_of(int n) const {
    return (int(Boxes::warps * (threadIdx.x % 32)) + warp_ + Boxes::lanes * n) * box_rows();
  }

  // Calls f for each of the lane's boxes, with its first row in the block, and where it lies.
  template <class F>
  FA3_DEVICE void each_box(const Boxes& boxes, F f) const {
#pragma unroll
    for (int n = 0; n < Boxes::each; n++)
      if (first_of(n) < Bc) f(first_of(n), boxes.row[n], boxes.batch[n]);
  }

  // Slabs as they are loaded: of K and V that are widened, of as many bytes.
  static constexpr int loaded_columns = config.loads_e4m3_keys() ? slab_row_bytes : slab_columns;
  static constexpr int loaded_slabs(int slabs) { return config.loads_e4m3_keys() ? config.landed_slabs() : slabs; }

  // For all thread blocks of the cluster. Each loads its share of V, the first one K, too.
  FA3_DEVICE static void load_box(uint32_t to, const TensorMap& map, uint64_t& full, int column, int row, int head,
                                  int batch) {
    constexpr uint16_t all = (1 << cluster_blocks) - 1;
    const uint32_t barrier = ptx::shared_address(&full);
    if constexpr (multicasts)
      ptx::cp_async_bulk_tensor_4d_load_multicast(to, &map, barrier, column, row, head, batch, all);
    else ptx::cp_async_bulk_tensor_4d_load(to, &map, barrier, column, row, head, batch);
  }

  FA3_DEVICE void load_k(const Element* to, uint64_t& full, const Boxes& boxes, int head) const {
    each_box(boxes, [&](int first, int row, int batch) {
      const uint32_t at = ptx::shared_address(to) + first * slab_row_bytes;
#pragma unroll
      for (int slab = 0; slab < loaded_slabs(slabs); slab++)
        load_box(at + slab * Bc * slab_row_bytes, p_.k, full, slab * loaded_columns, row, head, batch);
    });
  }

  // Of V at a time, by one thread block.
  static constexpr int loaded_v_slabs = loaded_slabs((halves_columns ? v_slabs / 2 : v_slabs) / cluster_blocks);

  // keys: so many of the block, from its first one on, are the sequence's. half: with halves_columns, of the columns.
  FA3_DEVICE void load_v(const Element* to, uint64_t& full, const Boxes& boxes, int head, int keys,
                         int half = 0) const {
    const int first_slab = (half * cluster_blocks + rank_in_cluster()) * loaded_v_slabs;
    const int column = first_slab * loaded_columns;
    each_box(boxes, [&](int first, int row, int batch) {
      const uint32_t at = ptx::shared_address(to) + first * slab_row_bytes + first_slab * (Bc * slab_row_bytes);
      const int rows = keys - first;
      if (rows > 0 && rows < box_rows()) return load_few_rows(at, full, rows, row, head, batch, column);
#pragma unroll
      for (int slab = 0; slab < loaded_v_slabs; slab++)
        load_box(at + slab * Bc * slab_row_bytes, p_.v, full, column + slab * loaded_columns, row, head, batch);
    });
  }

  // A box of V of which only the first n rows are the sequence's, and zeros behind these.
  FA3_DEVICE void load_few_rows(uint32_t to, uint64_t& full, int n, int row, int head, int batch, int column) const {
    static_assert(Bc <= 1 << P::v_boxes);
#pragma unroll 1
    for (int i = 0; i < 2 * P::v_boxes; i++) {  // boxes of rows of the sequence, then those of zeros
      const int box = i % P::v_boxes;
      const bool zeros = i >= P::v_boxes;
      if (((zeros ? box_rows() - n : n) >> box & 1) == 0) continue;
      for (int slab = 0; slab < loaded_v_slabs; slab++)
        load_box(to + slab * Bc * slab_row_bytes, p_.v_rows[box], full, column + slab * loaded_columns,
                 zeros ? no_row : row, head, batch);
      to += slab_row_bytes << box;
      row += 1 << box;
    }
  }

  const P& p_;
  Smem& smem_;
  int warp_;
};

}  // namespace fa3
