// The table as data: one constexpr ForwardRow, BackwardRow or PassRow for each row of rows.def, with every number that
// follows from the row's cells computed here once. Kernels and host code both read it; neither computes a tile size, a
// thread count or a shared-memory size of its own (the kernels static_assert their layout against it).
//
//   forward_rows, backward_rows, pass_rows   the rows of each kind, in the order of the table
//   rows                                     all of them, forward before backward before passes: of each what any
//                                            kernel has. A row's number is its place here and in the library's list of
//                                            kernels; so that of a forward row is its place in forward_rows, too
#pragma once
#include <array>

#include "backward_row.h"
#include "pass_row.h"
#include "tiled_row.h"

namespace fa3 {

struct ForwardRow : TiledRow {
  int q_buffers;  // of 64 rows
  Heads heads;
  OExit o_exit;
  VLayout v;
  KvScales kv_scales;

  // Rows of a buffer of Q: 64, or only those that may exist, to leave memory to what lands.
  constexpr int q_rows() const { return is_latent() && has(Trait::few_rows) ? most_rows() : q_box_rows; }
  constexpr int q_buffer_bytes() const { return q_rows() * q_slabs() * slab_bytes(); }
  constexpr bool packs_heads() const { return heads == Heads::packed; }
  constexpr bool o_from_registers() const { return o_exit != OExit::buffer && o_exit != OExit::buffer_late; }
  // Is O float32? Otherwise it has 16 bits, or with Q of 8 bits the dtype that the caller wants.
  constexpr bool stores_fp32() const { return o_exit == OExit::registers_fp32; }
  constexpr bool late_q_release() const { return o_exit == OExit::buffer_late; }
  constexpr bool transposes_v() const { return v == VLayout::transposed; }
  // Are K and V of e4m3, and made fp16 of? `dtype` is that of Q and O.
  constexpr bool has_wide_q() const { return loads_e4m3_keys() || takes_copies(); }
  // By the kernel; on their way into a stage, or else they lie in it as in memory, and are widened as they are read.
  constexpr bool loads_e4m3_keys() const { return v == VLayout::widened; }
  constexpr bool widens() const { return loads_e4m3_keys() && !has(Trait::few_rows); }
  // By a pass before the kernel.
  constexpr bool takes_copies() const { return v == VLayout::copied; }
  // Is V alone of e4m3, a latent cache with scales of its own? It is widened in its stage, to `dtype`, or else lies
  // there in bytes, and is widened as it is read (latent/mla_few_e4m3.cu).
  constexpr bool is_latent() const { return v == VLayout::latent; }
  constexpr bool widens_latent() const { return is_latent() && !keeps_latent(); }
  constexpr bool keeps_latent() const { return is_latent() && has(Trait::few_rows); }
  // There each warpgroup has half of the columns of K and V; otherwise all of every other block.
  constexpr bool splits_latent() const { return keeps_latent() && has(Trait::half_rows); }
  // There P is rounded with each scale, and O may fit that: O of bf16 has fewer bits than P, and needs not.
  constexpr bool fits_scales() const { return keeps_latent() && dtype == Dtype::fp16; }
  // With Trait::few_rows: as many of a tile's rows may exist.
  constexpr int most_rows() const {
    if (!has(Trait::few_rows)) return Br;
    return has(Trait::half_rows) ? 32 : dv <= 128 || halves_columns() ? 16 : 8;
  }
  // Does V land beside its stage, to be mended on the way there (tile/loads/landing.cuh, planned/widen.cuh)?
  constexpr bool lands_v() const { return transposes_v() || widens(); }
  constexpr bool takes_v_tiles() const { return v == VLayout::tiles; }
  constexpr bool transforms_scores() const { return has(Trait::softcap) || has(Trait::alibi); }
  constexpr bool has_scales() const { return kv_scales != KvScales::none; }
  constexpr bool block_scales() const { return kv_scales == KvScales::blocks; }
  // Is O too wide for one warpgroup? Then two have the same rows, each with half of O's columns. A stage of the ring
  // holds K and V of the same keys (latent/mla.cu).
  constexpr bool halves_columns() const { return dv > 256; }
  constexpr int o_columns() const { return halves_columns() ? dv / 2 : dv; }  // of a warpgroup

  // Consumers, with 64 query rows each: of a tile, and of a thread block.
  constexpr int tile_warpgroups() const { return Br / 64; }
  constexpr int warpgroups() const { return tile_warpgroups() / cluster_blocks(); }
  // All of them: with Trait::shares_keys or eight_warps, or with half of O's columns each, two have the same rows. One
  // warpgroup more produces.
  constexpr int consumers() const {
    return has(Trait::shares_keys) || halves_columns() || has(Trait::eight_warps) ? 2 * warpgroups() : warpgroups();
  }
  // Warpgroups that produce: four warps of a second one widen K and V, where consumers leave registers for them.
  constexpr int producers() const {
    return has(Trait::no_producer) ? 0 : widens_latent() || (widens() && consumers() <= 2) ? 2 : 1;
  }
  // Warps that mend what lands.
  constexpr int menders() const { return producers() == 2 ? 4 : 2; }
  constexpr int threads() const { return (consumers() + producers()) * 128; }

  // Without a producer nothing is moved: the consumers have what ptxas gives them, up to 255, and these are 0.
  // So it is with a single consumer and a single producer, as there are registers enough.
  constexpr bool moves_registers() const { return !has(Trait::no_producer) && consumers() + producers() > 2; }
  constexpr int consumer_registers() const {
    if (!moves_registers()) return 0;
    if (producers() == 2) return consumers() == 1 ? 240 : 208;
    return consumers() == 4 ? 112 : consumers() == 3 ? 160 : 232;
  }
  constexpr int producer_registers() const {
    if (!moves_registers()) return 0;
    if (producers() == 2) return consumers() == 1 ? 128 : 48;
    return consumers() == 2 ? 40 : 32;
  }
  constexpr int moved_registers() const {
    return (producers() > 1 ? producers() : 1) * producer_registers() + consumers() * consumer_registers();
  }

  // Thread blocks that a multiprocessor holds at once: with Trait::one_tile as many as fit its 228 KB, of which each
  // takes one more than it asks for, with 128 registers for a thread.
  constexpr int resident_blocks() const {
    if (!has(Trait::one_tile)) return 1;
    const int by_memory = 228 * 1024 / (smem_bytes() + 1024), by_registers = 512 / threads();
    return by_memory < by_registers ? by_memory : by_registers;
  }

  // And of O for one WGMMA of PV. ptxas makes no instruction that has more registers than the thread has at the launch,
  // which are 128 with four warpgroups: accumulators for 256 columns are as many by themselves.
  constexpr int pv_columns() const { return threads() > 384 && o_columns() > 128 ? 128 : o_columns(); }
  // So many columns of O get their sums at a time, with Trait::two_level (forward/sums.cuh).
  constexpr int sum_columns() const { return dv <= 128 ? dv : 64; }
  // So many buffers of Q a warpgroup may have at once, and is told when each is full: two even if there are fewer.
  constexpr int q_depth() const { return q_buffers > 2 * warpgroups() ? 3 : 2; }
  // Is a buffer given back as soon as its Q is read for the last time?
  constexpr bool releases_q_early() const {
    return o_exit == OExit::registers_early || (o_from_registers() && q_buffers < 2 * warpgroups());
  }
  constexpr int stage_bytes() const { return k_block_bytes() + v_block_bytes(); }
  // With few stages, K and V of a stage have barriers of their own, so that K(j) is refilled while PV still reads V.
  constexpr bool split_stage() const { return (stages <= 2 || has(Trait::one_tile)) && !halves_columns(); }
  // Otherwise the place in the ring is a division away, too much for main loops that are not bound by memory.
  constexpr bool has_power_of_two_stages() const { return (stages & (stages - 1)) == 0; }
  // What a part's slot holds for the 16 rows of a warp: O in float32, and m and l of each lane's two rows
  // (tile/epilogue/combine.cuh).
  constexpr int partial_bytes() const { return 16 * o_columns() * 4 + 32 * 16; }
  // With packed heads: what it holds for a row, O with m and l behind it (tile/epilogue/packed.cuh).
  constexpr int packed_row_bytes() const { return dv * 4 + 16; }
  // Slots have multiples of so many rows. Where O is in two halves a pass adds parts up, 16 rows at a time.
  constexpr int slot_unit() const { return halves_columns() ? 16 : 4; }
  // K or V of 8 bits that is to be widened lands in slabs of 128 bytes. Several are on their way at a time, in what is
  // left of shared memory.
  constexpr int landed_slabs() const { return loads_e4m3_keys() ? (d + 127) / 128 : v_slabs(); }
  constexpr int landing_bytes() const { return loads_e4m3_keys() ? Bc * landed_slabs() * 128 : v_block_bytes(); }
  constexpr bool has_bytes_in_stages() const { return loads_e4m3_keys() && !widens(); }
  constexpr int k_block_bytes() const { return has_bytes_in_stages() ? landing_bytes() : TiledRow::k_block_bytes(); }
  constexpr int v_block_bytes() const {
    if (keeps_latent()) return stage_keys() * dv;
    return has_bytes_in_stages() ? landing_bytes() : TiledRow::v_block_bytes();
  }
  constexpr int landing_buffers() const {
    const int left = (227 * 1024 - bytes_beside_landings()) / landing_bytes();
    return widens() ? (left < most_landings ? left : most_landings) : lands_v() ? 2 : 0;
  }
  static constexpr int most_landings = 12;
  // What comes from memory for a K/V block.
  constexpr int loaded_bytes() const {
    if (is_latent()) return Bc * (d * 2 + dv + latent_scales() * 4);
    return loads_e4m3_keys() ? Bc * (d + dv) : Bc / stage_keys() * stage_bytes();
  }
  // With VLayout::latent: numbers that a row of V has beside it.
  constexpr int latent_scales() const { return is_latent() ? dv / latent_scale_columns : 0; }
  // Vectors that are added to O (VMeanRing in tile/ring.cuh).
  constexpr int v_means() const { return has_scales() && !has_wide_q() ? 3 * warpgroups() : 0; }
  constexpr int v_mean_bytes() const { return (v_means() * dv * 4 + 1023) / 1024 * 1024; }
  // What one of two warpgroups with the same rows hands over to the other: O, m and l.
  constexpr int handed_bytes() const { return has(Trait::shares_keys) ? 64 * dv * 4 + 128 * 16 : 0; }
  // With Trait::few_rows: what each of the warps has of a piece (WarpShare in tile/smem.cuh).
  constexpr int warp_share_bytes() const {
    return has_warp_shares() ? (4 * consumers() * most_rows() * (dv + 4 + 3) * 4 + 1023) / 1024 * 1024 : 0;
  }
  constexpr bool has_warp_shares() const { return has(Trait::few_rows) && !halves_columns(); }
  // Where one of two warpgroups with half of O's columns each tells the other of their rows (Scored in tile/smem.cuh).
  constexpr int scored_bytes() const {
    return !halves_columns() ? 0 : splits_latent() ? 1280 * most_rows() : fits_scales() ? 6144 : 2048;
  }
  // With Trait::few_rows P of two blocks besides; of a latent cache in bytes, for each of its scales, of one block, or
  // of two of each warpgroup's.
  constexpr int few_p_buffers() const {
    if (!has(Trait::few_rows) || !halves_columns()) return 0;
    return !keeps_latent() ? 2 : splits_latent() ? latent_scales() : 2 * consumers() * latent_scales();
  }
  constexpr int few_p_bytes() const { return few_p_buffers() * most_rows() * stage_keys() * element_bytes(); }
  // In planned rows RowBlocks have their sequences, and pieces lie there, too. Those of packed heads are few.
  constexpr int sequence_bytes() const { return has(Trait::planned) && !packs_heads() ? 1024 : 0; }
  // With VLayout::latent: the scales of each stage's rows (LandedLatent in tile/smem.cuh).
  constexpr int latent_scale_bytes() const { return stages * stage_keys() * latent_scales() * 4; }
  constexpr int bytes_beside_landings() const {
    return q_buffers * q_buffer_bytes() + stages * stage_bytes() + v_mean_bytes() + handed_bytes() +
           warp_share_bytes() + few_p_bytes() + latent_scale_bytes() + scored_bytes() + barrier_bytes +
           sequence_bytes();
  }
  constexpr int smem_bytes() const { return bytes_beside_landings() + landing_buffers() * landing_bytes(); }

  constexpr bool valid() const {
    return has_only(traits, Trait::forward_traits) &&
           Br % 64 == 0 && warpgroups() >= (packs_heads() || has(Trait::one_tile) ? 1 : 2) && warpgroups() <= 4 &&
           Bc % 16 == 0 &&
           d % 16 == 0 && d <= (halves_columns() ? 512 : 256) && dv % 16 == 0 && dv <= 512 &&
           (!halves_columns() || (dv % 128 == 0 && stages == (splits_latent() ? 3 : keeps_latent() ? 4 : 2) &&
                                  Bc % 32 == 0 && packs_heads() && warpgroups() == 1 && has(Trait::planned) &&
                                  !has(Trait::shares_keys) && !has(Trait::alibi))) &&
           (!has(Trait::few_rows) || (packs_heads() && warpgroups() == 1 && !split_stage() &&
                                      !has(Trait::shares_keys) &&
                                      (halves_columns() ? has(Trait::qv) && stage_keys() == 64 && !is_8bit() :
                                       loads_e4m3_keys() && Bc % (64 * consumers()) == 0))) &&
           (!has(Trait::half_rows) || (has(Trait::few_rows) && has(Trait::qv))) &&
           (!has(Trait::qv) || (halves_columns() && d == slab_columns())) &&
           (!has(Trait::multicast) || (halves_columns() && Br == 128)) &&
           (v_slabs() <= slabs() || o_from_registers()) &&  // O leaves through a Q buffer
           (has_power_of_two_stages() || packs_heads()) && q_buffers >= warpgroups() &&
           q_buffers <= (is_8bit() ? 2 : 3) * warpgroups() && (is_8bit() ? valid_8bit() : valid_16bit()) &&
           (!packs_heads() || (!is_8bit() && o_from_registers() && has(Trait::early_claim))) &&
           (!stores_fp32() || (!is_8bit() && has(Trait::planned))) &&
           (!has(Trait::shares_keys) ||
            (packs_heads() && warpgroups() == 1 && !split_stage() && !bounded_left())) &&
           // The paper's own algorithms take neither a bound on the left nor planned lengths.
           (has(Trait::splits) || !has(Trait::planned)) && (!bounded_left() || has(Trait::planned)) &&
           (!has(Trait::planned) || slab_bytes() == 128) &&
           (!transforms_scores() || (has(Trait::planned) && !block_scales())) &&
           (!has(Trait::one_tile) || (has(Trait::no_producer) && !has(Trait::splits) && q_buffers == warpgroups() &&
                                      !is_8bit() && !packs_heads())) &&
           (!has(Trait::skip_masked) || causal()) &&
           // The blocks that one warpgroup skips and another computes leave a stage free.
           (!bounded_right() || (tile_warpgroups() - 1) * 64 <= (stages - 1) * stage_keys()) &&
           smem_bytes() <= 227 * 1024 && moved_registers() <= launched_registers(threads());
  }
  constexpr bool valid_16bit() const {
    const bool has_e4m3_keys = has_wide_q() && kv_scales == KvScales::heads && has(Trait::planned) && dv == d &&
                            d % 64 == 0 && !transforms_scores() && (!widens() || landing_buffers() >= 2);
    const bool takes_latent = is_latent() && has(Trait::qv) && stage_keys() == 64 && !has(Trait::multicast) &&
                              v_row_bytes() == 2 * latent_scales() * slab_bytes();
    return (has_e4m3_keys || ((v == VLayout::rows || takes_latent) && kv_scales == KvScales::none)) &&
           !has(Trait::two_level);
  }
  constexpr bool valid_8bit() const {
    return v != VLayout::rows && kv_scales != KvScales::none && Bc % 32 == 0 && d % 64 == 0 && dv == d &&
           // Of boxes of keys the planned producer loads no scales, and it lands every V.
           (!has(Trait::planned) || (!block_scales() && lands_v())) &&
           o_from_registers() && (!block_scales() || (Bc == rows_of_scale && !split_stage())) &&
           (!has(Trait::two_level) || block_scales());
  }
};

// The lines of rows.def. The macros stay defined, for whoever has a table of his own: each makes a row and a comma.
namespace table {
struct Line {
  Kind kind;
  ForwardRow forward{};
  BackwardRow backward{};
  PassRow pass{};

  constexpr Line(const ForwardRow& row) : kind(Kind::forward), forward(row) {}
  constexpr Line(const BackwardRow& row) : kind(Kind::backward), backward(row) {}
  constexpr Line(const PassRow& row) : kind(Kind::pass), pass(row) {}
};

using enum Trait;
inline constexpr Line lines[] = {
#define FA3_CELLS(name, kernel, kind, dtype, d_text, d, dv, mask, Br, Bc, stages, traits)                              \
  {"fa3_" #name "_" #dtype "_d" d_text "_" #mask "_" #Br "x" #Bc, #kernel, Kind::kind, Dtype::dtype, d, dv, \
   Mask::mask, Br, Bc, stages, traits}
#define FA3_FORWARD(name, kernel, dtype, d, mask, Br, Bc, stages, q_buffers, o_exit, traits)              \
  ForwardRow{FA3_CELLS(name, kernel, forward, dtype, #d, d, d, mask, Br, Bc, stages, traits), q_buffers, \
             Heads::one, OExit::o_exit, VLayout::rows, KvScales::none},
#define FA3_FORWARD_DV(name, kernel, dtype, d, dv, mask, Br, Bc, stages, q_buffers, o_exit, traits)                    \
  ForwardRow{FA3_CELLS(name, kernel, forward, dtype, #d "x" #dv, d, dv, mask, Br, Bc, stages, traits), q_buffers, \
             Heads::one, OExit::o_exit, VLayout::rows, KvScales::none},
#define FA3_PACKED(name, kernel, dtype, d, mask, Br, Bc, stages, q_buffers, traits)                      \
  ForwardRow{FA3_CELLS(name, kernel, forward, dtype, #d, d, d, mask, Br, Bc, stages, traits), q_buffers, \
             Heads::packed, OExit::registers, VLayout::rows, KvScales::none},
#define FA3_PACKED_DV(name, kernel, dtype, d, dv, mask, Br, Bc, stages, q_buffers, traits)                        \
  ForwardRow{FA3_CELLS(name, kernel, forward, dtype, #d "x" #dv, d, dv, mask, Br, Bc, stages, traits), q_buffers, \
             Heads::packed, OExit::registers, VLayout::rows, KvScales::none},
#define FA3_LATENT(name, kernel, dtype, d, dv, mask, Br, Bc, stages, q_buffers, traits)                           \
  ForwardRow{FA3_CELLS(name, kernel, forward, dtype, #d "x" #dv, d, dv, mask, Br, Bc, stages, traits), q_buffers, \
             Heads::packed, OExit::registers, VLayout::latent, KvScales::none},
#define FA3_FORWARD_8(name, kernel, d, mask, Br, Bc, stages, q_buffers, v, scales, traits)              \
  ForwardRow{FA3_CELLS(name, kernel, forward, e4m3, #d, d, d, mask, Br, Bc, stages, traits), q_buffers, \
             Heads::one, OExit::registers, VLayout::v, KvScales::scales},
#define FA3_WIDENED(name, kernel, dtype, d, mask, Br, Bc, stages, q_buffers, o_exit, traits)             \
  ForwardRow{FA3_CELLS(name, kernel, forward, dtype, #d, d, d, mask, Br, Bc, stages, traits), q_buffers, \
             Heads::one, OExit::o_exit, VLayout::widened, KvScales::heads},
#define FA3_WIDENED_PACKED(name, kernel, dtype, d, mask, Br, Bc, stages, q_buffers, traits)              \
  ForwardRow{FA3_CELLS(name, kernel, forward, dtype, #d, d, d, mask, Br, Bc, stages, traits), q_buffers, \
             Heads::packed, OExit::registers, VLayout::widened, KvScales::heads},
#define FA3_COPIED(name, kernel, dtype, d, mask, Br, Bc, stages, q_buffers, o_exit, traits)              \
  ForwardRow{FA3_CELLS(name, kernel, forward, dtype, #d, d, d, mask, Br, Bc, stages, traits), q_buffers, \
             Heads::one, OExit::o_exit, VLayout::copied, KvScales::heads},
#define FA3_BACKWARD(name, kernel, dtype, d, mask, Br, Bc, stages, gradients, traits)           \
  BackwardRow{FA3_CELLS(name, kernel, backward, dtype, #d, d, d, mask, Br, Bc, stages, traits), \
              Gradients::gradients},
#define FA3_PASS(name, kernel, d, threads, blocks, bytes, traits) \
  PassRow{"fa3_pass_" #name, #kernel, Pass::kernel, d, threads, blocks, bytes, traits},

#define FA3_BOTH_16(ROW, name, kernel, ...) ROW(name, kernel, bf16, __VA_ARGS__) ROW(name, kernel, fp16, __VA_ARGS__)
#define FA3_FORWARD_16(name, kernel, ...) FA3_BOTH_16(FA3_FORWARD, name, kernel, __VA_ARGS__)
#define FA3_FORWARD_DV_16(name, kernel, ...) FA3_BOTH_16(FA3_FORWARD_DV, name, kernel, __VA_ARGS__)
#define FA3_PACKED_16(name, kernel, ...) FA3_BOTH_16(FA3_PACKED, name, kernel, __VA_ARGS__)
#define FA3_PACKED_DV_16(name, kernel, ...) FA3_BOTH_16(FA3_PACKED_DV, name, kernel, __VA_ARGS__)
#define FA3_LATENT_16(name, kernel, ...) FA3_BOTH_16(FA3_LATENT, name, kernel, __VA_ARGS__)
#define FA3_WIDENED_16(name, kernel, ...) FA3_BOTH_16(FA3_WIDENED, name, kernel, __VA_ARGS__)
#define FA3_WIDENED_PACKED_16(name, kernel, ...) FA3_BOTH_16(FA3_WIDENED_PACKED, name, kernel, __VA_ARGS__)
#define FA3_COPIED_16(name, kernel, ...) FA3_BOTH_16(FA3_COPIED, name, kernel, __VA_ARGS__)
#define FA3_BACKWARD_16(name, kernel, ...) FA3_BOTH_16(FA3_BACKWARD, name, kernel, __VA_ARGS__)

#ifdef FA3_ROWS  // another table: with fewer kernels (-Dkernels), or with those of the paper (-Dpaper)
#include FA3_ROWS
#else
#include "rows.def"
#endif
};

// Those of one kind in a table, of which a build with fewer kernels may have none.
template <const auto& from, Kind kind, class OneRow>
constexpr auto rows_of(OneRow Line::*row) {
  constexpr int count = [] {
    int found = 0;
    for (const Line& line : from) found += line.kind == kind;
    return found;
  }();
  std::array<OneRow, count> found{};
  OneRow* next = found.data();
  for (const Line& line : from)
    if (line.kind == kind) *next++ = line.*row;
  return found;
}
}  // namespace table

inline constexpr auto forward_rows = table::rows_of<table::lines, Kind::forward>(&table::Line::forward);
inline constexpr auto backward_rows = table::rows_of<table::lines, Kind::backward>(&table::Line::backward);
inline constexpr auto pass_rows = table::rows_of<table::lines, Kind::pass>(&table::Line::pass);

// The numbers of the first rows of a kind; and of all rows, how many.
inline constexpr int first_backward = forward_rows.size(), first_pass = first_backward + int(backward_rows.size());
inline constexpr int row_count = first_pass + int(pass_rows.size());

// The row of a number, by one who knows its kind.
constexpr const ForwardRow& forward_row(int number) { return forward_rows[number]; }
constexpr const BackwardRow& backward_row(int number) { return backward_rows[number - first_backward]; }
constexpr const PassRow& pass_row(int number) { return pass_rows[number - first_pass]; }

// What any row has.
struct Row {
  const char* name;
  const char* kernel;
  Kind kind;
  int number;
  int d, threads, smem_bytes, cluster_blocks;
  bool chosen;  // by the library itself

  template <class OneRow>
  static constexpr Row of(const OneRow& row, int number) {
    return {row.name,      row.kernel,       row.kind,             number,      row.d,
            row.threads(), row.smem_bytes(), row.cluster_blocks(), row.chosen()};
  }

  // The rest; null if the row is of another kind.
  constexpr const ForwardRow* forward() const { return kind == Kind::forward ? &forward_row(number) : nullptr; }
  constexpr const BackwardRow* backward() const { return kind == Kind::backward ? &backward_row(number) : nullptr; }
  constexpr const PassRow* pass() const { return kind == Kind::pass ? &pass_row(number) : nullptr; }
};

inline constexpr auto rows = [] {
  std::array<Row, row_count> all{};
  int n = 0;
  const auto add = [&](const auto& rows_of_kind) {
    for (const auto& row : rows_of_kind) all[n] = Row::of(row, n), n++;
  };
  add(forward_rows), add(backward_rows), add(pass_rows);
  return all;
}();

constexpr bool same_text(const char* a, const char* b) {
  for (; *a && *a == *b; a++, b++) {
  }
  return *a == *b;
}
// The number of the row of this name, or -1.
constexpr int row_named(const char* name) {
  for (const Row& row : rows)
    if (same_text(row.name, name)) return row.number;
  return -1;
}

// The number of the first row that does not fit the machine, or whose cells do not go together; -1: there is none.
constexpr int invalid_row() {
  for (const Row& row : rows)
    if (row.forward() ? !row.forward()->valid() : row.backward() ? !row.backward()->valid() : !row.pass()->valid())
      return row.number;
  return -1;
}
static_assert(invalid_row() == -1, "the row of this number (tools/build/rows.py prints them) is not valid()");

}  // namespace fa3
