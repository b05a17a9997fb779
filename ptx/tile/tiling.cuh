// The names that kernels of the forward and of the backward pass use for the cells of their row.
#pragma once
#include "config.cuh"

namespace fa3 {

// The paper's symbols.
inline constexpr int dv = config.dv;  // head dimension of V and O
inline constexpr int Br = config.Br;
inline constexpr int Bc = config.stage_keys();
// Of wide heads a piece is counted in pairs of these.
inline constexpr int blocks_each = config.Bc / Bc;

inline constexpr int warpgroups = config.warpgroups();  // consumers; the producer is one more
// The sides on which what a row sees is bounded (visible.h).
inline constexpr bool bounded_left = config.bounded_left(), bounded_right = config.bounded_right();

// Does each sequence have lengths of its own?
inline constexpr bool planned = has(Trait::planned);

}  // namespace fa3
