// What the verbs list, floors and show print.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "../loops/kernel.h"
#include "../system/colour.h"

namespace sass {

// The columns of a table of kernels, which is printed kernel by kernel.
struct Columns {
  size_t number = 1, name = 6;  // their widths
  void make_room(size_t number_of_kernel, const std::string& name_of_kernel);
};
// "22182 kernels, 6 of them with WGMMAs", which is known before any is disassembled.
std::string list_summary(size_t kernels, size_t with_wgmmas);
std::string list_head(const Columns& columns, const Colours& colours);
std::string list_text(const Kernel& kernel, const Columns& columns, const Colours& colours);

std::string floors_head(const Columns& columns, const Colours& colours);
std::string floors_text(const Kernel& kernel, const Columns& columns, const Colours& colours);

struct ShowOptions {
  bool brief = false;  // stretches of arithmetic as one line
  bool all = false;    // boundary loops too
  bool clocks = false;  // when instructions are issued, as far as that is known, and what control words say
};
std::string show_text(const Kernel& kernel, const ShowOptions& options, const Colours& colours);

// All WGMMAs of the kernel by opcode, in loops or not; of sm_100, MMAs into tensor memory.
std::map<std::string, int> wgmma_counts(const Kernel& kernel);

// "12 exp2, 8 add": what a stretch of a turn consists of, most frequent first.
std::string stretch_text(const Turn& turn, int begin, int end);

}  // namespace sass
