// The paper's Algorithm 2 with pingpong: alg2.cu, where row.pingpong() makes Turns real and
// row.holds_exps() leaves end_basic_block() out, which is faster.
#include "alg2.cu"
