#!/usr/bin/env python3
"""Writes the assembly file that embeds the cubins into the library, in the order of the table: each in a fat binary of
its own, which fatbinary has made.

It defines fa3_cubins (const struct {const void* data; uint64_t size;}[]), one entry a row. The fat binaries lie as in
what nvcc links, in section .nv_fatbin and one behind the other, where cuobjdump looks for them.
"""
import argparse

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("output")
parser.add_argument("fatbins", metavar="fatbin", nargs="+")
output, fatbins = vars(parser.parse_args()).values()
lines = ['.section .nv_fatbin, "a"']
for i, fatbin in enumerate(fatbins):
    lines += [".balign 8", f"fatbin_{i}:", f'.incbin "{fatbin}"', f"fatbin_{i}_end:"]
lines += ['.section .data.rel.ro, "aw"', ".balign 16", ".globl fa3_cubins", ".hidden fa3_cubins", "fa3_cubins:"]
lines += [f".quad fatbin_{i}, fatbin_{i}_end - fatbin_{i}" for i in range(len(fatbins))]
lines += ['.section .note.GNU-stack, "", @progbits', ""]
with open(output, "w") as file:
    file.write("\n".join(lines))
