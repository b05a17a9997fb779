// For loops over many numbers: FA3_WIDER before a function compiles it for machines with wider vectors, too, of which
// the one that it runs on is found when the program starts. They are not those that fuse multiplications with
// additions, so all machines have the same results.
#pragma once

#if defined(__x86_64__) && !defined(__clang__)
#define FA3_WIDER [[gnu::target_clones("avx2", "default")]]
#else
#define FA3_WIDER
#endif
