// A row that is a kernel of the backward pass with products.
#pragma once
#include "tiled_row.h"

namespace fa3 {

struct BackwardRow : TiledRow {
  Gradients gradients;

  static constexpr bool has_wide_q() { return false; }
  static constexpr bool widens() { return false; }
  constexpr bool all_gradients() const { return gradients == Gradients::all; }
  // Is it the library's own for all gradients, whose thread blocks take one key block after another (bwd.cu)?
  constexpr bool takes_several_blocks() const { return all_gradients() && !has(Trait::as_written); }
  // Rows of the tiles that varlen sequences are listed in (backward_list.h): those of the kernel that computes dQ.
  constexpr int listed_rows() const { return gradients == Gradients::keys ? 128 : Br; }
  constexpr bool transforms_scores() const { return has(Trait::softcap) || has(Trait::alibi); }

  // Consumers, with 64 keys each; with Gradients::queries 64 query rows each, with Gradients::keys one computes dV and
  // the other dK. One warpgroup more produces, and in bwd.cu another one computes dQ.
  constexpr int warpgroups() const {
    return gradients == Gradients::keys ? 2 : gradients == Gradients::queries ? Br / 64 : Bc / 64;
  }
  constexpr int threads() const { return (warpgroups() + 1 + takes_several_blocks()) * 128; }
  static constexpr bool moves_registers() { return true; }
  constexpr int consumer_registers() const { return takes_several_blocks() ? 208 : 240; }
  constexpr int producer_registers() const { return takes_several_blocks() ? 32 : 24; }
  constexpr int dq_registers() const { return takes_several_blocks() ? 64 : 0; }
  constexpr int moved_registers() const {
    return producer_registers() + dq_registers() + warpgroups() * consumer_registers();
  }

  // With Trait::centered_k: a mean of the keys, and 8 columns of ones, by which dS is multiplied for its row sums.
  constexpr int key_mean_bytes() const { return has(Trait::centered_k) && all_gradients() ? d * 4 + 8 * 32 : 0; }
  // K and V, Q and dO of each stage, two dS or P (with softcap each P's derivatives), dQ on its way out, LSE and D of
  // each stage. With Gradients::queries Q and dO of its rows, K of each stage, and one V.
  constexpr int smem_bytes() const {
    if (gradients == Gradients::queries)
      return 2 * Br * d * element_bytes() + stages * k_block_bytes() + v_block_bytes() + barrier_bytes;
    const int rows_and_barriers = stages * 2 * Br * 4 + 384;
    const bool keeps_slopes = gradients == Gradients::keys && has(Trait::softcap);
    const int squares = keeps_slopes ? 4 : 2;
    return 2 * k_block_bytes() + stages * 2 * Br * d * element_bytes() + squares * Bc * Br * element_bytes() +
           (all_gradients() ? Br * d * 4 : 0) + (rows_and_barriers + key_mean_bytes() + 1023) / 1024 * 1024;
  }

  constexpr bool valid() const {
    return has_only(traits, Trait::backward_traits) &&
           (all_gradients() ? Br % 64 == 0 : Br == (gradients == Gradients::queries ? 128 : 64)) &&
           Bc == (all_gradients() ? 128 : 64) && d % 64 == 0 && d <= (all_gradients() ? 128 : 256) && dv == d &&
           !is_8bit() && smem_bytes() <= 227 * 1024 && (!has(Trait::one_key_block) || takes_several_blocks()) &&
           (!has(Trait::planned) || !has(Trait::as_written)) &&
           (!transforms_scores() || has(Trait::planned)) &&
           (!has(Trait::centered_k) ||
            (has(Trait::planned) && !transforms_scores() && gradients != Gradients::keys &&
             !has(Trait::one_key_block))) &&
           moved_registers() <= launched_registers(threads());
  }
};

}  // namespace fa3
