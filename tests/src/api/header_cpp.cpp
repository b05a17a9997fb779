// The C program again, as C++: the header must mean the same in both languages, and leave FA3_API as it finds it.
#define FA3_API
#include "header_c.c"
