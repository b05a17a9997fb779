// fwd in smaller tiles.
#include "fwd.cu"
