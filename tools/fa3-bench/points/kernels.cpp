#include "points/kernels.h"

#include <algorithm>
#include <stdexcept>

#include "params.h"

namespace fa3::bench {

std::vector<fa3_kernel_info> kernels_of_build(Direction direction) {
  const int32_t kind = direction == Direction::backward ? FA3_KERNEL_BACKWARD : FA3_KERNEL_FORWARD;
  std::vector<fa3_kernel_info> kernels;
  for (int i = 0; i < fa3_kernel_count(); ++i) {
    fa3_kernel_info info = tools::kernel_info();
    if (fa3_kernel_info_at(i, &info) != FA3_OK) throw std::runtime_error(fa3_last_error_message());
    if (info.kind == kind) kernels.push_back(info);
  }
  return kernels;
}

// "alg2" of "fa3_alg2_bf16_...".
static std::string first_cell(const fa3_kernel_info& info) {
  const std::string name = info.name;
  const size_t begin = name.find('_') + 1;
  return name.substr(begin, name.find('_', begin) - begin);
}

std::vector<std::string> fitting_kernels(const std::vector<fa3_kernel_info>& kernels, const Point& point,
                                         const std::string& wanted) {
  std::vector<std::string> names;
  int fewest = 0;
  for (const fa3_kernel_info& info : kernels) {
    const bool fits = info.dtype == point.dtype && info.causal == int(point.causal && !point.is_planned()) &&
                      info.head_dim >= point.head_dim && info.head_dim_v >= point.v_dim();
    const int columns = info.head_dim + info.head_dim_v;
    if (!fits || (wanted != info.name && wanted != first_cell(info))) continue;
    if (!names.empty() && columns > fewest) continue;
    if (columns < fewest) names.clear();
    fewest = columns;
    names.push_back(info.name);
  }
  return names;
}

fa3_kernel_info kernel_of(const Point& point, int multiprocessors) {
  if (point.is_backward()) return tools::backward_kernel_info(point.backward_shapes(), multiprocessors);
  return tools::forward_kernel_info(point.shapes(), multiprocessors);
}

bool is_runnable(const Point& point) {
  constexpr int any_multiprocessors = 132;
  try {
    kernel_of(point, any_multiprocessors);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

bool is_kernel(const std::string& wanted, Direction direction) {
  const auto kernels = kernels_of_build(direction);
  return std::any_of(kernels.begin(), kernels.end(),
                     [&](const fa3_kernel_info& info) { return wanted == info.name || wanted == first_cell(info); });
}

std::string kernel_cells(Direction direction) {
  std::vector<std::string> cells;
  for (const fa3_kernel_info& info : kernels_of_build(direction))
    if (std::find(cells.begin(), cells.end(), first_cell(info)) == cells.end()) cells.push_back(first_cell(info));
  std::string text;
  for (const std::string& cell : cells) text += (text.empty() ? "" : ", ") + cell;
  return text;
}

}  // namespace fa3::bench
