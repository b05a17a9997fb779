// Lengths as they come together on servers and in training batches: the same in every run.
#pragma once
#include <cstdint>
#include <vector>

namespace fa3::bench {

// Documents of so many tokens in all, at most 65536; the last one is cut.
std::vector<int64_t> mixed_documents(int64_t tokens);

// Keys of so many sequences, at most 128: of decoding alone, and of decoding beside prompts.
std::vector<int64_t> mixed_contexts(int64_t sequences);
std::vector<int64_t> contexts_beside_prompts(int64_t sequences);

}  // namespace fa3::bench
