// With which uses of the K/V ring (ring.cuh) a consumer warpgroup computes: as a rule with every one that holds a block
// that its rows see, with Trait::shares_keys with every second one. Rows of the table have one of the two structs as
// Walk.
//
// In the kernel, `i` is the use that holds the K of the block that is computed, and v_use the one that holds its V.
// `blocks` and `skipped` are those of the RowBlock, as receive() leaves them: how many blocks this warpgroup computes,
// and how many uses of the ring come before the first of them.
//
// Numbers are passed by reference where ptxas makes another main loop of a copy.
#pragma once
#include <type_traits>

#include "../tile/ring.cuh"

namespace fa3 {

// One use after the other, from the first one that holds a block that its rows see.
struct EveryUse {
  static constexpr uint32_t stride = 1;     // from one `i` to the next
  static constexpr bool v_apart = false;    // is V in another stage than the K that is waited for with it?
  static constexpr bool may_skip = true;    // may the rows see nothing of a piece, so that the warpgroup skips it?
  static constexpr bool may_leave = false;  // may all blocks that they see be left to another warpgroup?

  FA3_DEVICE explicit EveryUse(int) {}

  // A piece's RowBlock has come, with these numbers.
  FA3_DEVICE void receive(int&, int&) {}
  // The piece's first `i`. first: the use that holds its first K, and the last V of the piece before.
  FA3_DEVICE uint32_t begin(uint32_t first, int skipped) const { return first + skipped; }
  // And its last `i`, from the first one.
  FA3_DEVICE uint32_t last(const uint32_t& i, const int& blocks) const { return blocks > 0 ? i + blocks - 1 : i; }
  // Is there another block to compute, up to the one whose K that use holds?
  FA3_DEVICE static bool has_more(const uint32_t& i, const uint32_t& use) { return i != use; }
  // A piece's last PV is done: releases its V, and what is skipped of the next piece, whose first `i` this is. But if
  // that skips all its `blocks` blocks, the kernel does so later.
  FA3_DEVICE void release_last_v(const KvRing& ring, uint32_t v_use, uint32_t i, bool, int blocks) const {
    if (blocks > 0) ring.skip(v_use, i, true);
  }
};

// The other warpgroup computes with the K of the uses between, which hold the V of this one's blocks. So each of them
// releases every use just once. They go on so from piece to piece.
class EverySecondUse {
 public:
  static constexpr uint32_t stride = 2;
  static constexpr bool v_apart = true, may_skip = false, may_leave = true;

  FA3_DEVICE explicit EverySecondUse(int warpgroup) : warpgroup_(warpgroup) {}

  // Skipped is one use at most. Not a number of blocks: end_of_work.
  FA3_DEVICE void receive(int& blocks, int& skipped) {
    first_ += blocks_;
    blocks_ = blocks + skipped;
    skipped = (first_ ^ warpgroup_) & 1;
    if (blocks != RowBlock::end_of_work) blocks = (blocks_ - skipped + 1) / 2;
  }
  FA3_DEVICE uint32_t begin(uint32_t, int skipped) const { return first_ + skipped; }
  FA3_DEVICE uint32_t last(const uint32_t&, const int&) const { return first_ + blocks_ - 1; }
  FA3_DEVICE static bool has_more(const uint32_t& i, const uint32_t& use) { return int(use - i) >= 2; }
  // has_v: of this warpgroup's blocks; or it has computed none.
  FA3_DEVICE void release_last_v(const KvRing& ring, uint32_t v_use, uint32_t, bool has_v, int) const {
    if (has_v) ring.release_v(v_use, true);
  }

 private:
  int warpgroup_;
  uint32_t first_ = 0;  // use that holds the piece's first K
  int blocks_ = 0;      // of the piece, of both warpgroups
};

using Walk = std::conditional_t<shares_keys, EverySecondUse, EveryUse>;

}  // namespace fa3
