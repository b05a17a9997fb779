// What the table of rows says about a kernel's machine code. Everything is derived from the row's cells, so that a
// new row is checked with no new code.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../loops/kernel.h"

namespace sass {

struct Row {
  std::string name, kernel;  // "fa3_fwd_bf16_d128_full", "fwd"
  bool is_pass;              // passes share a contract
};
std::vector<Row> table_rows();

// The figure that a contract's `table` stands for; nothing if the row does not determine it. `scope` is "kernel", or
// "hot" and "boundary", which have the same GEMMs.
std::optional<Figure> table_figure(const std::string& row, const std::string& scope, const std::string& figure);

}  // namespace sass
