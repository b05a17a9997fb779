#include "print.h"

#include "../system/new_file.h"

namespace sass {

void print(std::string_view text) { write_all(1, text); }

}  // namespace sass
