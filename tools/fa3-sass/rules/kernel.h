// A kernel with everything that can be said about it: its record, its loops, its figures.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../handovers/handovers.h"
#include "../handovers/protocol.h"
#include "../input/cubin.h"
#include "../listing/calls.h"
#include "../listing/turn.h"

namespace sass {

struct Figure {
  std::string name;
  bool is_text = false;
  double value = 0;
  std::string text;
  std::vector<int> evidence;  // instructions that make up the figure; of a share, those that are left out of it
  bool is_share = false;
  std::string shown() const;
};

using Figures = std::vector<Figure>;
const Figure* find(const Figures& figures, std::string_view name);

struct WgmmaLoop {
  int loop = 0;       // in Cfg::loops
  bool hot = true;    // or a boundary loop: the same GEMMs with more instructions (masks)
  std::string role;   // "QK+PV"
  std::string gemms;  // "QK 4 x 64x64x16 SS, PV 4 x 64x64x16 RS"
  std::vector<int> path;
  Turn turn;
  Figures figures;
};

struct Kernel {
  int number = 0;  // in its file, from 1
  std::string image, readable;
  int sm = 0;
  KernelRecord record;
  Listing listing;                           // with the code of functions it calls
  std::vector<std::string> followed, unseen;  // these, and those whose code is not there
  Cfg cfg;
  std::vector<WgmmaLoop> loops;
  Protocol protocol;
  Handovers handovers;
  Figures figures;
  std::map<std::string, Figures> scopes;  // prologue, epilogue, producer (protocol.h)
};

// `others` are the functions of the same image, which the kernel may call. A listing given as text has no record.
Kernel plain_kernel(const KernelRecord& record, int number);  // one of which there is no more to tell (cubin.h)
Kernel analyse(const KernelRecord& record, Listing listing, const std::map<std::string, Listing>& others = {});

}  // namespace sass
