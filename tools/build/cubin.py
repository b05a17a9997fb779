#!/usr/bin/env python3
"""Compiles one row of the table to a cubin and refuses what ptxas only mentions.

ptxas reports a serialised WGMMA pipeline (C7510..C7515), injected waits (C7517..C7520), an ignored setmaxnreg (C7507,
C7508), spills and stack frames as information, with exit status 0. For these kernels each of them is a defect, so it
fails the build. There is no way to waive a message, because no row of the table needs one; but kernels that are
for tests only (-DFA3_DELAYS, -DFA3_RACECHECK) may spill.

nvcc is only asked for the steps that it would take. Run here they take two thirds of its time: it preprocesses twice
where a depfile is wanted, and cuda_runtime.h alone, of which kernels use little, takes a third of the front end's time
(ptx/isa/cuda.cuh stands in its place).

The same source gives the same cubin. ptxas alone does not: of two rows (fwdtwolevel and fwdvtilestwolevel, e4m3, d 256,
causal) it makes one of two machine codes, as its memory happens to lie. So it gets the same addresses in every build,
as far as the system allows that.
"""
import argparse
import ctypes
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile


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


def tool_of(command):
    """The name of the program that it runs."""
    return shlex.split(command)[0].split("/")[-1]


def steps(nvcc, arguments, folder):
    """The commands of preprocessor, cicc and ptxas, as nvcc prints them, and the environment that they run in. Files
    between them lie in a folder."""
    environment, commands = dict(os.environ, TMPDIR=folder), []
    run = subprocess.run([nvcc, "--dryrun", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         env=environment)
    for line in re.findall(r"^#\$ (.*)", run.stdout, re.MULTILINE):
        variable = re.fullmatch(r"(\w+)=(.*)", line)
        if variable:
            environment[variable[1]] = variable[2]
        else:
            commands.append(line)
    tools = [tool_of(command) for command in commands]
    if run.returncode or len(tools) != 3 or tools[1:] != ["cicc", "ptxas"] or " -E " not in commands[0]:
        sys.exit(f"{run.stdout}{nvcc} takes other steps than preprocessor, cicc, ptxas: {', '.join(tools) or 'none'}")
    return environment, commands


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for word in ("nvcc", "source", "output", "depfile", "name", "row"):
        parser.add_argument(word)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="folders of headers, and macros as -DMACRO")
    nvcc, source, output, depfile, name, row, rest = vars(parser.parse_args()).values()
    arguments = ["-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-std=c++20", "-O3", "--expt-relaxed-constexpr",
                 "-Xptxas=-v", f"-DFA3_KERNEL={name}", "-o", output, source]
    arguments += [word if word.startswith("-D") else f"-I{word}" for word in rest]
    with tempfile.TemporaryDirectory() as folder:
        environment, commands = steps(nvcc, arguments, folder)
        commands[0] = commands[0].replace('-include "cuda_runtime.h"', '-include "isa/cuda.cuh"')
        commands[0] += " " + shlex.join([f"-DFA3_ROW={row}", '-DFA3_ROWS="table/one_row.cuh"', "-MD", "-MF", depfile,
                                         "-MT", output])
        said, status = "", 0
        for command in commands:
            run = subprocess.run(command, shell=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, preexec_fn=fix_addresses)
            said, status = said + run.stdout, run.returncode
            if status:
                break
    if status:
        found = [f"{tool_of(command)} failed with status {status}"]
    else:
        found = complaints(said, may_spill=bool({"-DFA3_DELAYS", "-DFA3_RACECHECK"} & set(rest)))
    if found:
        sys.stderr.write(said)
        for line in found:
            sys.stderr.write(f"{name}: refused: {line}\n")
        if os.path.exists(output):
            os.remove(output)
        sys.exit(1)


if __name__ == "__main__":
    main()
