// The paper's Algorithm 2 as ptxas orders it: alg2.cu, where row.as_is() leaves end_basic_block() out.
#include "alg2.cu"
