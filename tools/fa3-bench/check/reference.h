// The library's CPU reference on a small example: what this tool does where there is no GPU.
#pragma once
#include <cstdint>

namespace fa3::bench {

// Runs fa3_reference_forward on batch 2, 384 tokens, 8 heads over 2 K/V heads, head_dim 128, bf16, causal; checks
// sampled rows, prints time and result. Returns the exit status.
int run_reference(uint64_t seed);

}  // namespace fa3::bench
