// The sequence that a piece's rows are of. Where lengths belong to the call, all sequences are alike: then nothing is
// kept of them, and what is asked follows from the parameters. With Trait::own_lengths each piece has its Sequence in
// the list (planned.h), and its RowBlocks (smem.cuh) have a copy of that.
#pragma once
#include "forward.cuh"

namespace fa3 {

struct OfCall {};  // the sequence of a piece, where lengths belong to the call
struct OwnSequence {  // or with lengths of its own
  int entry;  // of the list
};
using SequenceOfPiece = std::conditional_t<own_lengths, OwnSequence, OfCall>;

FA3_DEVICE const Sequence& sequence_of(const PlannedForwardParams& p, OwnSequence s) { return p.planned[s.entry].sequence; }
FA3_DEVICE Sequence sequence_of(const ForwardParams&, OwnSequence) { return {}; }

// What its rows see.
FA3_DEVICE Visible visible(const Params& p, OfCall) { return visible(p); }
FA3_DEVICE Visible visible(const Params& p, const Sequence& s) {
  Visible seen = visible(p);
  seen.seqlen_q = s.seqlen_q, seen.seqlen_k = s.seqlen_k, seen.left = s.left, seen.right = s.right;
  return seen;
}
FA3_DEVICE Visible visible(const Params& p, OwnSequence s) { return visible(p, sequence_of(p, s)); }

// Into a RowBlock's copy.
FA3_DEVICE void copy(Sequence*, const Params&, OfCall) {}
FA3_DEVICE void copy(Sequence* to, const Params& p, OwnSequence s) { *to = sequence_of(p, s); }

// Where its first query and key lie in the tensors, and in which batch entry its keys do; `batch` is that of its
// queries.
FA3_DEVICE int q_row(const Params&, OfCall) { return 0; }
FA3_DEVICE int q_row(const Params& p, OwnSequence s) { return sequence_of(p, s).q_row; }
FA3_DEVICE int k_row(const Params&, OfCall) { return 0; }
FA3_DEVICE int k_row(const Params& p, OwnSequence s) { return sequence_of(p, s).k_row; }
FA3_DEVICE int k_batch(const Params&, OfCall, int batch) { return batch; }
FA3_DEVICE int k_batch(const Params& p, OwnSequence s, int) { return sequence_of(p, s).k_batch; }

}  // namespace fa3
