// Behind forward kernels whose O is in two halves: the parts of split tiles become O and LSE.
#include "../tile/add_parts.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::PlannedForwardParams p) { fa3::AddParts(p).run(); }
