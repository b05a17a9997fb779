// The tensors that come with e4m3: scales, v_mean, lse_offset; and v as tiles.
#pragma once
#include "forward/forward.h"

namespace fa3 {

// Are they there where they must be, and nowhere else?
fa3_status check_presence(const fa3_forward_params& params);

// v as tiles: dims (q, k are known to be right), and the View that ForwardProblem describes.
bool has_v_tiles(const fa3_forward_params& params);
fa3_status check_v_tiles_dims(const fa3_forward_params& params);
fa3_status check_v_tiles(const fa3_forward_params& params, Rules rules, View& view);

// Of those that are there everything else; fills in their views and kv_blocks. wants_lse and what check_served finds
// are known.
fa3_status check_scales(const fa3_forward_params& params, Rules rules, ForwardProblem& problem);

}  // namespace fa3
