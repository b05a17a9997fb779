// Hand-made listings: a small forward loop (d = 32, 16 keys a block) as ptxas would write it, to be spoilt by the
// tests.
#pragma once

#include <string>
#include <vector>

#include "loops/kernel.h"

namespace listings {

using Lines = std::vector<std::string>;

// Instructions get addresses and semicolons; what begins with '.' or '$' is a label.
std::string text(const std::string& name, const Lines& lines);

Lines good();
// The same with elements of 8 bits, Q half in registers; and behind it a loop that transposes V.
Lines eight_bits();
// S, dP, dV and dK of a backward pass.
Lines backward();
// Consumers with that loop, and a producer. A consumer warp gives a buffer back inside the loop, and another one behind
// it, where it also stores by TMA.
Lines with_producer();

// The first line that begins with `old`, replaced by `lines` (none: removed).
Lines replaced(Lines listing, const std::string& old, const Lines& lines);

sass::Kernel kernel(const Lines& lines, const std::string& name = "toy");

// All kernels of a file that match.
std::vector<sass::Kernel> kernels_of(const std::string& file, const std::string& wanted = "");

const sass::WgmmaLoop& only_hot(const sass::Kernel& kernel);
double value(const sass::Figures& figures, const std::string& name);
std::string words(const sass::Figures& figures, const std::string& name);

}  // namespace listings
