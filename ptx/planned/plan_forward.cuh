// How a thread block runs the planner's loops (plan_forward.h).
#pragma once
#include "../isa/grid.cuh"
#include "../plan/plan_forward.h"
#include "../tile/config.cuh"
#include "../tile/shared.cuh"

namespace fa3 {

template <class Scratch>
FA3_DEVICE Scratch& plan_scratch() {
  static_assert(sizeof(Scratch) <= config.smem_bytes());
  return *reinterpret_cast<Scratch*>(shared_memory());
}

// Of the whole warp: the sum of the lanes before this one.
FA3_DEVICE int sum_before(int x, int lane) {
  int sum = x;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, sum, lanes);
    if (lane >= lanes) sum += before;
  }
  return sum - x;
}

class ThreadBlock {
 public:
  static constexpr int threads = config.threads(), warps = threads / 32;
  static_assert(warps <= 32);

  template <class F>
  FA3_DEVICE void each(int count, F f) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += threads) f(i);
    __syncthreads();
  }
  template <class F>
  FA3_DEVICE void each_apart(int count, F f) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += threads) f(i);
    __syncwarp();
  }
  template <class F>
  FA3_DEVICE void totals(PlanScratch& s, int count, F f) const {
    Totals own{1, 0, 0};
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += threads) {
      const Totals more = f(i);
      own = {max(own.longest, more.longest), own.tiles + more.tiles, own.work + more.work};
    }
    __syncwarp();
    own = warp_totals(own);
    if (lane_ == 0)
      s.totals[warp_] = own.longest, s.totals[32 + warp_] = own.tiles, s.totals[64 + warp_] = own.work;
    __syncthreads();
    if (warp_ == 0) {
      const bool has = lane_ < warps;
      own = warp_totals({has ? s.totals[lane_] : 1, has ? s.totals[32 + lane_] : 0, has ? s.totals[64 + lane_] : 0});
      if (lane_ == 0) s.longest = own.longest, s.all_tiles = own.tiles, s.work = own.work;
    }
    __syncthreads();
  }
  // As it is volatile, the compiler does not move it to where the number is needed: all are on their way together.
  FA3_DEVICE int read(const int32_t* numbers, int i) const {
    return numbers ? *const_cast<const volatile int32_t*>(numbers + i) : 0;
  }
  FA3_DEVICE int add(int32_t& sum, int n) const { return atomicAdd(&sum, n); }
  FA3_DEVICE void raise(int32_t& largest, int n) const { atomicMax(&largest, n); }
  FA3_DEVICE void lower(int32_t& least, int n) const { atomicMin(&least, n); }

  // Additions to the same number come one after the other. So where all lanes that are here have the same, one of them
  // adds for all.
  FA3_DEVICE int add_among_alike(int32_t& sum, int n) const {
    const unsigned active = __activemask();
    int is_same;
    __match_all_sync(active, uint32_t(ptx::shared_address(&sum)), &is_same);
    if (!is_same || active != all_lanes) return add(sum, n);
    const int before = sum_before(n, lane_), last = 31;
    int base = 0;
    if (lane_ == last) base = add(sum, before + n);
    return __shfl_sync(all_lanes, base, last) + before;
  }

  // Four numbers a thread at a time. Sums that stay within `most` may be added in any order.
  FA3_DEVICE void prefix_sums(int32_t* x, int count, int most, int32_t* sums) const {
    const auto add_up = [most](int a, int b) { return int(min(uint32_t(a) + uint32_t(b), uint32_t(most))); };
    // Of all lanes up to this one.
    const auto sum_of_lanes = [&](int sum) {
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const int before = __shfl_up_sync(all_lanes, sum, lanes);
        if (lane_ >= lanes) sum = add_up(sum, before);
      }
      return sum;
    };
    int all = 0;  // of the numbers before these
    for (int first = 0; first < count; first += 4 * threads) {
      int32_t* const own = x + first + 4 * threadIdx.x;
      const int left = x + count - own;
      int4 n = make_int4(0, 0, 0, 0);
      if (left >= 4) n = *reinterpret_cast<const int4*>(own);
      else if (left > 0) n.x = own[0], n.y = left > 1 ? own[1] : 0, n.z = left > 2 ? own[2] : 0;
      const int y = add_up(n.x, n.y), z = add_up(y, n.z), sum = add_up(z, n.w);
      const int lanes_sum = sum_of_lanes(sum);
      if (lane_ == 31) sums[warp_] = lanes_sum;
      __syncthreads();
      const int warps_sum = sum_of_lanes(lane_ < warps ? sums[lane_] : 0);
      const int before_warp = warp_ == 0 ? 0 : __shfl_sync(all_lanes, warps_sum, warp_ - 1);
      const int before_lane = __shfl_up_sync(all_lanes, lanes_sum, 1);
      const int before = add_up(all, add_up(before_warp, lane_ == 0 ? 0 : before_lane));
      const int4 sums_before = make_int4(before, add_up(before, n.x), add_up(before, y), add_up(before, z));
      if (left >= 4) *reinterpret_cast<int4*>(own) = sums_before;
      else if (left > 0) {
        own[0] = sums_before.x;
        if (left > 1) own[1] = sums_before.y;
        if (left > 2) own[2] = sums_before.z;
      }
      all = add_up(all, __shfl_sync(all_lanes, warps_sum, 31));
      if (threadIdx.x == 0 && first + 4 * threads >= count) x[count] = all;
      __syncthreads();  // before sums change again, and for those who read the numbers
    }
  }

  // Each warp takes up to 32 tiles, a lane each, and then all their parts, a lane each. Few tiles may have many parts,
  // so they are spread over eight warps; more would wait for each other.
  template <class Tile, class Piece>
  FA3_DEVICE void list(int count, Tile tile_of, Piece piece_of, PlannedPiece* entries) const {
    const int each = count <= 64 ? (count + 7) / 8 : 32;
#pragma unroll 1
    for (int first = each * warp_; first < count; first += each * warps) {
      ListedTile tile{};
      if (lane_ < each && first + lane_ < count) tile = tile_of(first + lane_);
      __syncwarp();
      if (__all_sync(all_lanes, tile.parts.count == 0)) continue;
      const bool are_whole = __all_sync(all_lanes, tile.parts.count <= 1);
      const int before = sum_before(tile.parts.count, lane_);
      const int all = are_whole ? 1 : __shfl_sync(all_lanes, before + tile.parts.count, 31);
#pragma unroll 1
      for (int n = 0; n < all; n += 32) {
        ListedTile listed = tile;
        int part = 0;
        bool exists = tile.parts.count > 0;
        if (!are_whole) {
          int from = 0;  // the lane that has the tile
#pragma unroll
          for (int lanes = 16; lanes > 0; lanes /= 2)
            if (__shfl_sync(all_lanes, before, from + lanes) <= n + lane_) from += lanes;
          listed = tile_of_lane(tile, from);
          part = n + lane_ - __shfl_sync(all_lanes, before, from);
          exists = n + lane_ < all;
        }
        PlannedPiece piece{};
        if (exists) piece = piece_of(listed, part);
        __syncwarp();
        write(piece, exists ? listed.entry_of(part) : -1, entries);
      }
    }
    __syncthreads();
  }

 private:
  FA3_DEVICE static Totals warp_totals(const Totals& own) {
    return {__reduce_max_sync(all_lanes, own.longest), __reduce_add_sync(all_lanes, own.tiles),
            __reduce_add_sync(all_lanes, own.work)};
  }

  FA3_DEVICE ListedTile tile_of_lane(const ListedTile& tile, int lane) const {
    constexpr int count = sizeof tile / sizeof(int);
    ListedTile received;
#pragma unroll
    for (int i = 0; i < count; i++)
      reinterpret_cast<int*>(&received)[i] = __shfl_sync(all_lanes, reinterpret_cast<const int*>(&tile)[i], lane);
    return received;
  }

  // Each lane's piece to its entry, or nowhere below 0. Four lanes write one after the other of their pieces together:
  // whole lines of memory.
  FA3_DEVICE void write(const PlannedPiece& piece, int entry, PlannedPiece* entries) const {
    const Sequence& s = piece.sequence;
    int quarter[4][4] = {{s.q_row, s.q_batch, s.k_row, s.k_batch},
                         {s.seqlen_q, s.seqlen_k, s.left, s.right},
                         {piece.q_block, piece.slot, piece.begin, piece.end},
                         {piece.part, piece.parts, piece.sequence_number, 0}};
    // A lane has four quarters of one piece. Afterwards it has one quarter of four pieces.
    const auto exchange = [&](int (&a)[4], int (&b)[4], int lanes) {
      const bool upper = lane_ & lanes;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int other = __shfl_xor_sync(all_lanes, upper ? a[i] : b[i], lanes);
        (upper ? a[i] : b[i]) = other;
      }
    };
    exchange(quarter[0], quarter[1], 1), exchange(quarter[2], quarter[3], 1);
    exchange(quarter[0], quarter[2], 2), exchange(quarter[1], quarter[3], 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int to = __shfl_sync(all_lanes, entry, (lane_ & ~3) + i);
      if (to >= 0)
        reinterpret_cast<int4*>(entries + to)[lane_ % 4] =
            make_int4(quarter[i][0], quarter[i][1], quarter[i][2], quarter[i][3]);
    }
  }

  static constexpr unsigned all_lanes = 0xffffffffu;
  const int lane_ = threadIdx.x % 32, warp_ = threadIdx.x / 32;
};

}  // namespace fa3
