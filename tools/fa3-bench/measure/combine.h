// fa3_combine beside a device-to-device copy of as many bytes: a kernel that computes next to nothing is as good as its
// share of the copy's bandwidth.
#pragma once
#include <cstdio>
#include <string>
#include <vector>

#include "measure/beside_copy.h"

namespace fa3::bench {

struct Combination {
  fa3_dtype parts_dtype, o_dtype;
  int64_t parts, batch, seqlen, heads, head_dim;

  int64_t rows() const { return batch * seqlen * heads; }
  int64_t elements() const { return rows() * head_dim; }  // of a part
  int64_t bytes() const;                                  // all that is read and written
  std::string label() const;
};

// Many rows and few, 2 to 64 parts.
std::vector<Combination> combinations();

using CombineResult = BesideCopy<Combination>;

// Checked against float64 and timed by the protocol; call and copy take turns, pass by pass. Needs a GPU.
std::vector<CombineResult> run_combinations(const Protocol& protocol, const std::vector<Combination>& combinations);

void print(FILE* out, const std::vector<CombineResult>& results);

}  // namespace fa3::bench
