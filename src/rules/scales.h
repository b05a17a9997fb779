// The tensors that come with e4m3, of a forward call, or of the one whose gradients are wanted: scales, v_mean,
// lse_offset; and v as tiles.
#pragma once
#include "problem.h"
#include "rules/call.h"

namespace fa3 {

// Are they there where they must be, and nowhere else?
fa3_status check_presence(const fa3_forward_params& params);

// v as tiles: dims (q, k are known to be right), and the View that ProblemScales describes.
bool has_v_tiles(const fa3_forward_params& params);
fa3_status check_v_tiles_dims(const fa3_forward_params& params);
fa3_status check_v_tiles(const fa3_forward_params& params, Rules rules, View& view);

// Of those that are there everything else; fills in their views, and kv_blocks. What check_sequences finds is known.
// uses_offset: is lse_offset looked at?
fa3_status check_scales(const fa3_forward_params& params, Rules rules, const PlannedShape& shape, bool uses_offset,
                        ProblemScales& scales);

}  // namespace fa3
