#!/usr/bin/env python3
"""Writes the assembly file that embeds the cubins into the library, in the order of the table.

It defines fa3_cubins (const struct {const void* data; uint64_t size;}[]), one entry a row.
"""
import argparse

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("output")
parser.add_argument("cubins", metavar="cubin", nargs="+")
output, cubins = vars(parser.parse_args()).values()
lines = ['.section .rodata, "a"']
for i, cubin in enumerate(cubins):
    lines += [".balign 64", f"cubin_{i}:", f'.incbin "{cubin}"', f"cubin_{i}_end:"]
lines += ['.section .data.rel.ro, "aw"', ".balign 16", ".globl fa3_cubins", ".hidden fa3_cubins", "fa3_cubins:"]
lines += [f".quad cubin_{i}, cubin_{i}_end - cubin_{i}" for i in range(len(cubins))]
lines += ['.section .note.GNU-stack, "", @progbits', ""]
with open(output, "w") as file:
    file.write("\n".join(lines))
