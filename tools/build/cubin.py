#!/usr/bin/env python3
"""Compiles one row of the table to a cubin and refuses what ptxas only mentions.

usage: cubin.py NVCC SOURCE OUTPUT DEPFILE NAME ROW INCLUDE [INCLUDE ...]

ptxas reports a serialised WGMMA pipeline (C7510..C7515), injected waits (C7517..C7520), an ignored setmaxnreg (C7507, C7508),
spills and stack frames as information, with exit status 0. For these kernels each of them is a defect, so it fails the build.
"""
import re
import subprocess
import sys


def complaints(output):
    found = [line for line in output.splitlines() if re.search(r"\bC75\d\d\b|[Ww]arning", line)]
    for stack, stores, loads in re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", output):
        if (stack, stores, loads) != ("0", "0", "0"):
            found.append(f"{stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads")
    return found


def main():
    nvcc, source, output, depfile, name, row, *includes = sys.argv[1:]
    command = [nvcc, "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-std=c++20", "-O3", "--expt-relaxed-constexpr",
               "-Xptxas=-v", f"-DFA3_ROW={row}", f"-DFA3_KERNEL={name}", "-MD", "-MF", depfile, "-o", output, source]
    command += [f"-I{folder}" for folder in includes]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = complaints(run.stdout)
    if run.returncode or found:
        sys.stderr.write(run.stdout)
        for line in found:
            sys.stderr.write(f"{name}: refused: {line}\n")
        sys.exit(run.returncode or 1)


main()
