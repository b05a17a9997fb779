#!/usr/bin/env python3
"""Makes one static library of several archives, with the shared library's exports: of its symbols only fa3_* are
global. All others, and the C++ templates among them, are local, so that a program's own of the same name are not mixed
up with them."""
import argparse
import os
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__)
for name in ("ld", "objcopy", "ar", "output"):
    parser.add_argument(name)
parser.add_argument("archives", metavar="archive", nargs="+")
ld, objcopy, ar, output, archives = vars(parser.parse_args()).values()
with tempfile.TemporaryDirectory(dir=os.path.dirname(output) or ".") as folder:
    whole, member = os.path.join(folder, "whole.o"), os.path.join(folder, "fa3.o")
    # Groups are resolved here: a linker that already has a group of this name would drop what is local now.
    subprocess.run([ld, "-r", "--force-group-allocation", "-z", "noexecstack", "-o", whole,
                    "--whole-archive", *archives], check=True)
    subprocess.run([objcopy, "--localize-hidden", "--wildcard", "--keep-global-symbol=fa3_*", whole, member],
                   check=True)
    if os.path.exists(output):
        os.remove(output)
    subprocess.run([ar, "crsD", output, member], check=True)
