// Rules of fa3.h for varlen sequences, windows and sinks, as both passes have them: of a forward call, or of the one
// whose gradients are wanted. Its q, k and v have four dims: packed ones a batch of 1 in front.
#pragma once
#include "problem.h"
#include "rules/call.h"
#include "rules/tensor.h"

namespace fa3 {

// The first of what makes a call planned, by its name; null if there is nothing.
const char* why_planned(const fa3_forward_params& p);
// Are k and v of e4m3 under q of another dtype? Such calls are planned ones.
bool widens_keys(const fa3_forward_params& p);
// Is v alone, with qv: a latent cache? So are these.
bool is_latent(const fa3_forward_params& p);
// Is o of fp32 under q of 16 bits? So are these.
bool widens_o(const fa3_forward_params& p);
// And what of that has kernels with two warpgroups for the same rows: qv, and head dimensions above this.
inline constexpr int64_t most_narrow = 256;
const char* wide_by(const fa3_forward_params& p);

// The mask and its window. A window that is another mask becomes that mask.
fa3_status check_window(int32_t& mask, int32_t& left, int32_t& right);
// Are cu_seqlens_q and cu_seqlens_k, where they are there, prefix sums of some sequences? Before any tensor is taken for
// a packed one.
fa3_status check_cu_seqlens(const fa3_forward_params& params);
// softcap, and what stands behind it.
fa3_status check_softcap(const fa3_forward_params& params);

// Is it planned; how many sequences are there, and where are their lengths?
fa3_status check_sequences(const fa3_forward_params& p, Rules rules, PlannedShape& shape);
// Then, pages being right: the longest sequences, the window, and sinks.
fa3_status check_maxima(const fa3_forward_params& p, Rules rules, PlannedShape& shape);
// As many sequences of K and V as there are queries of? batch: what check_sequences has found.
fa3_status check_batch(const fa3_forward_params& p, int64_t batch);
// The rest of the shape: what is found above stays.
void resolve(const fa3_forward_params& p, PlannedShape& shape);

// A number for each query head, in fp32.
fa3_status check_of_heads(const Expected& expected, const fa3_tensor& tensor, int64_t heads, View& view);

// Tensors that are read beside q, k and v, but for pages; those that are not there have no elements.
struct PlannedTensors {
  static constexpr size_t count = 8;
  const char* names[count];
  View views[count];
};
PlannedTensors planned_tensors(const PlannedShape& shape);

// All tensors of a call: its own, then of a planned one those above.
template <size_t own>
class TensorList {
 public:
  TensorList(const PlannedShape& shape, const NamedView (&views)[own]) : planned_(planned_tensors(shape)) {
    for (const NamedView& view : views) views_[count_++] = view;
    for (size_t i = 0; shape.planned && i < PlannedTensors::count; ++i)
      views_[count_++] = {planned_.names[i], &planned_.views[i]};
  }
  TensorList(const TensorList&) = delete;

  const NamedView* data() const { return views_; }
  size_t count() const { return count_; }

 private:
  PlannedTensors planned_;
  size_t count_ = 0;
  NamedView views_[own + PlannedTensors::count];
};

}  // namespace fa3
