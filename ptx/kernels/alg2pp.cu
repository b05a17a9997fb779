// The paper's Algorithm 2 with pingpong: alg2.cu, where row.pingpong() makes Turns real.
#include "alg2.cu"
