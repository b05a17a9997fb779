// The row of the table that this translation unit compiles (-DFA3_ROW=<number> -DFA3_KERNEL=<name>), and the names the
// kernels use for its cells. There are no template parameters on kernels: the configuration is this constant.
#pragma once
#include <type_traits>

#include "../isa/common.cuh"
#include "../params.h"
#include "../row.h"

// A kernel of the row's name. Each file of kernels/ ends with one.
#define FA3_GLOBAL \
  extern "C" __global__ void __launch_bounds__(fa3::config.threads(), fa3::config.resident_blocks()) FA3_KERNEL

namespace fa3 {

inline constexpr Row config = rows[FA3_ROW];

#define FA3_TEXT_(x) #x
#define FA3_TEXT(x) FA3_TEXT_(x)
static_assert(same_text(config.name, FA3_TEXT(FA3_KERNEL)), "the build and rows.def disagree about the rows");

constexpr bool has(Trait trait) { return config.has(trait); }

// The paper's symbols.
inline constexpr int d = config.d;    // head dimension of Q and K
inline constexpr int dv = config.dv;  // and of V and O
inline constexpr int Br = config.Br;
inline constexpr int Bc = config.Bc;

inline constexpr int warpgroups = config.warpgroups();  // consumers; the producer is one more
inline constexpr int consumers = config.consumers();    // as many, but twice as many with shares_keys
inline constexpr bool shares_keys = has(Trait::shares_keys);
inline constexpr bool causal = config.causal();
// The sides on which what a row sees is bounded (visible.h).
inline constexpr bool bounded_left = config.bounded_left(), bounded_right = config.bounded_right();

// Does each sequence have lengths of its own?
inline constexpr bool own_lengths = has(Trait::own_lengths);

inline constexpr bool takes_v_tiles = config.is_8bit() && !has(Trait::transposes_v);

// What the kernel takes. If it takes no split tiles, there is no list.
using Params = std::conditional_t<
    own_lengths, PlannedForwardParams,
    std::conditional_t<config.is_8bit(), ScaledForwardParams,
                       std::conditional_t<has(Trait::splits), ListedForwardParams, ForwardParams>>>;

// Rows of 16-bit elements have no scales.
FA3_DEVICE const Scales& scales_of(const ScaledForwardParams& p) { return p.scales; }
FA3_DEVICE Scales scales_of(const ForwardParams&) { return {}; }

// How heads are packed into rows: not at all in rows of the table that do not pack them.
FA3_DEVICE Packing packing(const Params& p) { return has(Trait::packs_heads) ? p.visible.packing : Packing{0}; }

// How many rows a part's slot has then.
FA3_DEVICE int packed_slot_rows(const Params& p) {
  return Packing::slot_rows(int(packing(p).rows(p.visible.seqlen_q)), Br);
}

// What the problem's rows see. Which sides are bounded is a constant here: the table's row has the mask.
FA3_DEVICE Visible visible(const Params& p) {
  return {p.visible.seqlen_q, p.visible.seqlen_k, p.visible.left, p.visible.right, bounded_left, bounded_right, packing(p)};
}

}  // namespace fa3
