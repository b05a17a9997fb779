// The kernels of this build, of one direction, and the words by which the command line asks for them.
#pragma once
#include <string>
#include <vector>

#include "points/point.h"

namespace fa3::bench {

std::vector<fa3_kernel_info> kernels_of_build(Direction direction);

// Names of those kernels that `wanted` means for this point: a kernel's full name means itself, if it fits; the first
// cell of names (alg2) all kernels of that cell with the smallest head dimensions that fit, which differ in their
// tiles.
std::vector<std::string> fitting_kernels(const std::vector<fa3_kernel_info>& kernels, const Point& point,
                                         const std::string& wanted);

// The kernel by which the library would run this point on so many multiprocessors. A refusal is thrown.
fa3_kernel_info kernel_of(const Point& point, int multiprocessors);

// Would the library run this point by the kernel that it names?
bool is_runnable(const Point& point);

// Does `wanted` name any kernel of this build, whatever the point?
bool is_kernel(const std::string& wanted, Direction direction);

// The first cells of all names, "fwd, alg1".
std::string kernel_cells(Direction direction);

}  // namespace fa3::bench
