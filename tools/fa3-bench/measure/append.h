// fa3_append beside a device-to-device copy of as many bytes: new rows that are packed, as servers have them, into
// pages of a cache, in any order.
#pragma once
#include <cstdio>
#include <string>
#include <vector>

#include "measure/beside_copy.h"

namespace fa3::bench {

struct Appending {
  std::string name;
  int64_t batch, rows;                      // sequences, and the new rows of each
  int64_t heads, heads_kv, head_dim;        // heads 0: K and V alone
  bool rotates = true, interleaved = false;  // all columns
  bool e4m3 = false;                         // the cache
  bool slots = false;                        // each row has a slot, in place of lengths and a page table
  int64_t long_rows = 0;                     // of the first sequence, if not as many as the others
  int64_t page_size = 16;

  int64_t all_rows() const { return batch * rows + (long_rows ? long_rows - rows : 0); }
  int64_t bytes() const;  // of rows, read and written
};

// Steps of decoding, prompts, both in one call; K and V alone; to 16 and to 8 bits.
std::vector<Appending> appendings();

using AppendResult = BesideCopy<Appending>;

// Checked against float64 and timed by the protocol; call and copy take turns, pass by pass. Needs a GPU.
std::vector<AppendResult> run_appendings(const Protocol& protocol, const std::vector<Appending>& appendings);

void print(FILE* out, const std::vector<AppendResult>& results);

}  // namespace fa3::bench
