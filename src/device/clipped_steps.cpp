#include "device/clipped_steps.h"

#include <numeric>

namespace fa3 {

StepsOfView clipped_steps(const View& view) {
  const int64_t batch = view.dim[0], rows = view.dim[1], size = bytes_per_element(view.dtype);
  const int64_t batch_bytes = batch > 1 ? view.stride[0] * size : 0;
  // A single row has no stride, and takes that of batch entries.
  const int64_t row_bytes = rows > 1 ? view.stride[1] * size : batch > 1 ? batch_bytes : 16;
  const int64_t step = std::gcd(row_bytes, batch_bytes), bytes = step > 0 ? step : 16;
  const int64_t count = (batch - 1) * (batch_bytes / bytes) + rows * (row_bytes / bytes);
  if (count >= most_steps) return {{}, bytes, count};
  return {{static_cast<int32_t>(row_bytes / bytes), static_cast<int32_t>(batch_bytes / bytes)}, bytes, count};
}

}  // namespace fa3
