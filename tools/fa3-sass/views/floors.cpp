#include <algorithm>
#include <cstdio>

#include "../loops/names.h"
#include "../system/text.h"
#include "../time/clocks.h"
#include "../time/floors.h"
#include "reports.h"

namespace sass {

std::string floors_head(const Columns& columns, const Colours& colours) {
  char cell[40];
  std::snprintf(cell, sizeof cell, "  %-10s", "warpgroups");
  std::string header = "kernel" + std::string(columns.name - 6, ' ') + cell;
  for (const Floors::Unit& unit : Floors().units()) {
    std::snprintf(cell, sizeof cell, "  %13s", unit.name);
    header += cell;
  }
  return colours.bold(header + "  tensor at most   estimated turn  tensor then  loop") + "\n";
}

std::string floors_text(const Kernel& kernel, const Columns& columns, const Colours& colours) {
  std::string text;
  char cell[40];
  const Floors together = floors_together(kernel);
  for (const WgmmaLoop& loop : kernel.loops) {
    if (!loop.hot) continue;
    const Floors f = floors(kernel, loop);
    const Floors::Unit bound = f.bound();
    std::string row = shortened(kernel.readable);
    row.resize(std::max(row.size(), columns.name), ' ');
    std::snprintf(cell, sizeof cell, "  %10d", f.warpgroups);
    row += cell;
    for (const Floors::Unit& unit : f.units()) {
      std::snprintf(cell, sizeof cell, "  %13.0f", unit.clocks);
      row += unit.clocks == bound.clocks ? colours.bold(cell) : cell;
    }
    const Floors& all = together.warpgroups > 0 ? together : f;
    const double most = all.bound().clocks > 0 ? 100 * all.tensor / all.bound().clocks : 0;
    std::snprintf(cell, sizeof cell, "  %13.0f%%", most);
    text += row + cell;
    const Clocks clocks = estimated_clocks(kernel, loop);
    std::snprintf(cell, sizeof cell, "  %15.0f  %10.0f%%", clocks.turn, 100 * clocks.tensor);
    text += (clocks.turn > 0 ? cell : "                -            -") + ("  " + loop.role + "\n");
  }
  return text;
}

}  // namespace sass
