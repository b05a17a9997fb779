// What makes a point's call a planned one (fa3.h): lengths of its own for each sequence, pages, and what becomes of
// scores.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fa3::bench {

struct PlannedCall {
  // Queries and keys of each sequence, which lie one behind the other; empty: those of the point, in a batch.
  std::vector<int64_t> lengths = {}, lengths_k = {};
  int64_t page = 0;        // K and V lie in pages of so many keys, in any order; 0: no pages
  int64_t window = -1;     // so many keys before its own a query sees, without a causal mask behind it, too; -1: all
  int64_t chunk = 0;       // a query sees keys of its own chunk of so many positions; 0: no chunks
  float softcap = 0;       // 0: none
  bool sinks = false;      // one for each head
  bool alibi = false;      // a slope for each head: 2^(-8 (h + 1) / heads)
  bool e4m3_cache = false; // K and V in e4m3 under Q of 16 bits, with scales of 1
  // Of points of sets: what tests/records calls them.
  std::string kind = {}, name = {};

  bool has_lengths() const { return !lengths.empty(); }
  bool any() const;
  // As in labels: " page 64 window 127 sinks"; lengths are not among it.
  std::string words() const;
};

// As in labels: "17,4096,300", or of many "33 of 1 to 512".
std::string listed(const std::vector<int64_t>& lengths);

}  // namespace fa3::bench
