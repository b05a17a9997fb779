// The C program again, as C++: the header must mean the same in both languages.
#include "header_c.c"
