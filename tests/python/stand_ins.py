#!/usr/bin/env python3
"""Stand-ins for the NVIDIA libraries that PyPI's torch is linked against, so that it loads without them: each has the
names that torch asks for, as functions that report an error. The CUDA runtime is the real one, which finds no GPU.

usage: stand_ins.py SITE_PACKAGES
"""

import collections
import pathlib
import re
import subprocess
import sys

NVIDIA = re.compile(r"lib(cu|nv|nccl)")
REAL = {"libcudart.so.13", "libcuda.so.1"}
UNVERSIONED = re.compile(r"cudnn|nccl|nvshmem|nvrtc|cufile|cusparseLt|cu[A-Z]")  # names of libraries without versions


def readelf(*arguments):
    command = ["readelf", "-W", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def wanted(libraries):
    """{library: {version of its symbols, or None: names}} that these libraries ask for."""
    found = collections.defaultdict(lambda: collections.defaultdict(set))
    present, anywhere = {path.name for path in libraries} | REAL, set()
    for path in libraries:
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", path)):
            if NVIDIA.match(name) and name not in present:
                found[name]
        file, owners = None, {}
        for kind, name in re.findall(r"(File|Name): (\S+)", readelf("-V", path)):
            if kind == "File":
                file = name
            else:
                owners[name] = file
        for name, version in re.findall(r" UND (\w+)(?:@(\S+))?", readelf("--dyn-syms", path)):
            if version and NVIDIA.match(owners.get(version, "")) and owners[version] not in REAL:
                found[owners[version]][version].add(name)
            elif not version and UNVERSIONED.match(name):
                anywhere.add(name)
    found["libcudnn.so.9"][None] |= anywhere  # the loader does not ask whose a name without a version is
    return found


def make(path, names):
    """A library of these names, by their versions."""
    functions = sorted(set().union(*names.values()))
    script = path.with_suffix(".map")
    lines = [f"{version} {{ {'; '.join(sorted(of))}; }};\n" for version, of in names.items() if version]
    script.write_text("".join(lines))
    versions = [f"-Wl,--version-script={script}"] if lines else []
    command = ["g++", "-w", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", *versions, "-x", "c++", "-", "-o", path]
    source = "".join(f'extern "C" int {name}() {{ return 1; }}\n' for name in functions)
    subprocess.run(command, input=source, text=True, check=True)
    script.unlink()


def main():
    (site,) = map(pathlib.Path, sys.argv[1:])
    folder = site / "nvidia/cu13/lib"  # where torch looks, and where the package of the runtime has it
    for name, names in wanted(sorted((site / "torch/lib").glob("*.so"))).items():
        make(folder / name, names)


if __name__ == "__main__":
    main()
