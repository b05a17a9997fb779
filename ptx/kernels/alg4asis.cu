// The paper's Algorithm 4 as ptxas orders it: alg4.cu, where row.holds_exps() leaves end_basic_block() out.
#include "alg4.cu"
