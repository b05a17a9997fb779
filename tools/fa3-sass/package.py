#!/usr/bin/env python3
"""Packs a built fa3-sass and its contracts, as a wheel and as a tarball. The same program gives the same bytes."""
import argparse
import pathlib
import platform
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools/build"))
import packing  # noqa: E402

METADATA = """Summary: What the compiler made of CUDA kernels for Hopper, and whether that is what was meant
Requires-Dist: nvidia-cuda-nvdisasm
Requires-Dist: nvidia-cuda-cuobjdump
Description-Content-Type: text/markdown

"""


def installed(program):
    """What belongs below a prefix: path, bytes, whether it is a program."""
    yield "bin/fa3-sass", program.read_bytes(), True
    for contract in sorted({*(ROOT / "ptx").glob("*/*.contract")} - {*(ROOT / "ptx/paper").glob("*.contract")}):
        yield f"share/fa3/contracts/{contract.name}", contract.read_bytes(), False


def make_wheel(program, folder):
    files = []
    for name, data, executable in installed(program):
        place = name.replace("bin/", "scripts/", 1) if executable else f"data/{name}"
        files.append((f"{{stem}}.data/{place}", data, executable))
    machine = platform.machine()
    readme = packing.document("tools/fa3-sass/README.md").decode()
    return packing.write_wheel(folder, "fa3-sass", f"manylinux_2_17_{machine}.manylinux2014_{machine}",
                               METADATA + readme, files)


def make_tarball(program, folder):
    beside = [("README.md", packing.document("tools/fa3-sass/README.md"), False),
              ("LICENSE", (ROOT / "LICENSE").read_bytes(), False)]
    return packing.make_tarball("fa3-sass", folder, [*installed(program), *beside])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    program, folder = vars(parser.parse_args()).values()
    folder.mkdir(parents=True, exist_ok=True)
    for make in (make_wheel, make_tarball):
        print(make(program, folder))


if __name__ == "__main__":
    main()
