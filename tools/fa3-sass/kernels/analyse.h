// From a listing to a kernel with everything that can be said about it.
#pragma once

#include <map>
#include <string>

#include "../loops/kernel.h"

namespace sass {

// `others` are the functions of the same image, which the kernel may call. A listing given as text has no record.
Kernel plain_kernel(const KernelRecord& record, int number);  // one of which there is no more to tell (cubin.h)
Kernel analyse(const KernelRecord& record, Listing listing, const std::map<std::string, Listing>& functions = {});

}  // namespace sass
