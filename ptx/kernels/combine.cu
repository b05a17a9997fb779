// fa3_combine: partial results of attention become one. Each thread has the sums of its pieces of rows in registers.
#include "../tile/merge.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::CombineParams p) {
  using namespace fa3;
  switch (p.parts_dtype) {
    case CombineDtype::bf16: return combine<CombineDtype::bf16>(p);
    case CombineDtype::fp16: return combine<CombineDtype::fp16>(p);
    case CombineDtype::fp32: return combine<CombineDtype::fp32>(p);
  }
}
