#!/usr/bin/env python3
"""The library exports exactly the committed list, which is what the header declares, needs nothing of CUDA or C++, and
stays where it is after dlclose.

usage: symbols_test.py LIBRARY HEADER SYMBOLS
"""
import re
import subprocess
import sys

library, header, symbols = sys.argv[1:]


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def report(name, found, expected):
    for symbol in sorted(found - expected):
        print(f"{name}: unexpected {symbol}")
    for symbol in sorted(expected - found):
        print(f"{name}: missing {symbol}")
    return found != expected


committed = set(open(symbols).read().split())
exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}
declared = set(re.findall(r"^FA3_API .*?\b(fa3_\w+)\(", open(header).read(), re.MULTILINE))
dynamic = run("readelf", "-dW", library)
needed = set(re.findall(r"\(NEEDED\).*\[(\S+?)\]", dynamic))
foreign = {name for name in needed if not re.match(r"(libc|libm|libdl|libpthread|ld-linux.*)\.so", name)}
failed = [report("exported", exported, committed), report("declared", declared, committed),
          report("prefix", {s for s in exported if not s.startswith("fa3_")}, set()), report("needed", foreign, set()),
          report("dynamic", {"NODELETE"} & set(dynamic.split()), {"NODELETE"})]
sys.exit(any(failed))
