#include "kernels.h"

#include <algorithm>
#include <stdexcept>

#include "params.h"

namespace fa3::bench {

std::vector<fa3_kernel_info> kernels_of_build() {
  std::vector<fa3_kernel_info> kernels;
  for (int i = 0; i < fa3_kernel_count(); ++i) {
    fa3_kernel_info info = tools::kernel_info();
    if (fa3_kernel_info_at(i, &info) != FA3_OK) throw std::runtime_error(fa3_last_error_message());
    if (info.kind == FA3_KERNEL_FORWARD) kernels.push_back(info);
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
  int head_dim = 0;
  for (const fa3_kernel_info& info : kernels) {
    const bool fits = info.dtype == point.dtype && info.causal == int(point.causal) && info.head_dim >= point.head_dim;
    if (!fits || (wanted != info.name && wanted != first_cell(info))) continue;
    if (!names.empty() && info.head_dim > head_dim) continue;
    if (info.head_dim < head_dim) names.clear();
    head_dim = info.head_dim;
    names.push_back(info.name);
  }
  return names;
}

bool is_runnable(const Point& point) {
  const fa3_forward_params params = point.shapes();
  fa3_kernel_info info = tools::kernel_info();
  constexpr int any_multiprocessors = 132;
  return fa3_forward_kernel_info(&params, any_multiprocessors, 0, &info) == FA3_OK;
}

bool is_kernel(const std::string& wanted) {
  const auto kernels = kernels_of_build();
  return std::any_of(kernels.begin(), kernels.end(),
                     [&](const fa3_kernel_info& info) { return wanted == info.name || wanted == first_cell(info); });
}

std::string kernel_cells() {
  std::vector<std::string> cells;
  for (const fa3_kernel_info& info : kernels_of_build())
    if (std::find(cells.begin(), cells.end(), first_cell(info)) == cells.end()) cells.push_back(first_cell(info));
  std::string text;
  for (const std::string& cell : cells) text += (text.empty() ? "" : ", ") + cell;
  return text;
}

}  // namespace fa3::bench
