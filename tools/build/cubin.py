#!/usr/bin/env python3
"""Compiles one row of the table to a cubin and refuses what ptxas only mentions.

ptxas reports a serialised WGMMA pipeline (C7510..C7515), injected waits (C7517..C7520), an ignored setmaxnreg (C7507,
C7508), spills and stack frames as information, with exit status 0. For these kernels each of them is a defect, so it
fails the build. There is no way to waive a message, because no row of the table needs one; but kernels that are
for tests only (-DFA3_DELAYS, -DFA3_RACECHECK) may spill.

The same source gives the same cubin. ptxas alone does not: of two rows (fwdsums and fwdtilessums, e4m3, d 256, causal)
it makes one of two machine codes, as its memory happens to lie. So it gets the same addresses in every build, as far as
the system allows that.
"""
import argparse
import ctypes
import os
import re
import resource
import subprocess
import sys


def complaints(output, may_spill=False):
    """What the build must not accept in the output of nvcc and `ptxas -v`; empty for a clean kernel."""
    found = [line for line in output.splitlines() if re.search(r"\bC75\d\d\b|\bwarning\b\s*[:#]", line, re.IGNORECASE)]
    figures = re.findall(r"\d+ bytes stack frame, \d+ bytes spill stores, \d+ bytes spill loads", output)
    found += [line for line in figures if re.search(r"[1-9]", line) and not may_spill]
    if not figures:
        found.append("ptxas printed no figures for stack and spills")
    return found


def fix_addresses():
    """In the compiler's process, before it starts."""
    no_randomization, unchanged = 0x0040000, 0xffffffff
    libc = ctypes.CDLL(None)
    libc.personality(libc.personality(unchanged) | no_randomization)
    stack = 8 << 20  # its limit moves where other memory begins
    most = resource.getrlimit(resource.RLIMIT_STACK)[1]
    if most == resource.RLIM_INFINITY or most >= stack:
        resource.setrlimit(resource.RLIMIT_STACK, (stack, most))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for word in ("nvcc", "source", "output", "depfile", "name", "row"):
        parser.add_argument(word)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="folders of headers, and macros as -DMACRO")
    nvcc, source, output, depfile, name, row, rest = vars(parser.parse_args()).values()
    command = [nvcc, "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-std=c++20", "-O3", "--expt-relaxed-constexpr",
               "-Xptxas=-v", f"-DFA3_ROW={row}", f"-DFA3_KERNEL={name}", "-MD", "-MF", depfile, "-o", output, source]
    command += [word if word.startswith("-D") else f"-I{word}" for word in rest]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=fix_addresses)
    if run.returncode:
        found = [f"nvcc failed with status {run.returncode}"]
    else:
        found = complaints(run.stdout, may_spill=bool({"-DFA3_DELAYS", "-DFA3_RACECHECK"} & set(rest)))
    if found:
        sys.stderr.write(run.stdout)
        for line in found:
            sys.stderr.write(f"{name}: refused: {line}\n")
        if os.path.exists(output):
            os.remove(output)
        sys.exit(1)


if __name__ == "__main__":
    main()
