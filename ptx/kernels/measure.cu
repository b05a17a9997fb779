// fa3_quantize, the first look at x: the largest element, sums or extremes of parts of its heads.
#include "../tile/measure.cuh"

FA3_GLOBAL(const __grid_constant__ fa3::QuantizeParams p) {
  using namespace fa3;
  switch (p.measure) {
    case Measure::sums: return measure<Measure::sums>(p);
    case Measure::extremes: return measure<Measure::extremes>(p);
    default: return measure<Measure::largest>(p);
  }
}
