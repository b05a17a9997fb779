// The paper's Algorithm 2 as ptxas orders it: alg2.cu, where row.holds_exps() leaves end_basic_block() out.
#include "alg2.cu"
