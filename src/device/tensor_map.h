// TMA descriptors of the kernels' operands (the maps that ptx/params/params.h describes).
#pragma once
#include "device/clipped_steps.h"
#include "device/driver.h"
#include "params/params.h"
#include "problem.h"

namespace fa3 {

// A map of the view as {head_dim, seqlen, heads, batch}, read or written in boxes of `rows` rows and the columns of a
// slab of the row of the table.
fa3_status encode(const Driver& driver, const char* name, const View& view, const TiledRow& row, int rows,
                  TensorMap& map);

// A clipped map (ptx/params/clipped.h) of the view, whose steps are given, as {head_dim, rows, heads, steps, what takes
// rows back}.
fa3_status encode_clipped(const Driver& driver, const char* name, const View& view, const TiledRow& row, int rows,
                          const StepsOfView& steps, TensorMap& map);

// A map of q as {head_dim, heads of a K/V head, seqlen, K/V heads, batch}, read in boxes of the row's q_rows(), which
// are heads and queries as ptx/plan/packing.h has them.
fa3_status encode_packed(const Driver& driver, const char* name, const View& view, const ForwardRow& row,
                         int64_t heads_kv, TensorMap& map);

// A map of V as tiles, as {256 bytes, head_dim / 16, groups of 16 keys, heads, batch}; its boxes are the row's K/V
// blocks.
fa3_status encode_v_tiles(const Driver& driver, const View& view, const TiledRow& row, TensorMap& map);

}  // namespace fa3
