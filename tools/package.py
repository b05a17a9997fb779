#!/usr/bin/env python3
"""Packs a built library with its programs as a tarball that works wherever it is unpacked; of a build with
-Dlibrary_alone=true the library alone. The same build gives the same bytes."""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools/build"))
import packing

PROGRAMS = ("fa3-bench", "fa3-info", "fa3-sass")
# What is compiled into the programs: the Debian package that has the licence.
PARTS = {"CLI11": "libcli11-dev", "nlohmann_json": "nlohmann-json3-dev", "zlib": "zlib1g-dev"}


def meson(*words):
    program = shutil.which("meson") or ROOT / ".toolchain/bin/meson"
    return subprocess.run([program, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def options_of(build):
    options = {option["name"]: option["value"] for option in json.loads(meson("introspect", "--buildoptions", build))}
    for option in ("delays", "racecheck"):
        if options[option]:
            sys.exit(f"package.py: {build} has kernels of -D{option}=true, which are not for use")
    if options["kernels"] != ["*"]:
        kernels = ",".join(options["kernels"])
        print(f"package.py: {build} has only the kernels {kernels}, and so has the package", file=sys.stderr)
    if options["paper"]:
        print(f"package.py: {build} has the paper's kernels (-Dpaper=true), and so has the package", file=sys.stderr)
    if options["default_library"] == "static":
        sys.exit(f"package.py: {build} has no shared library (-Ddefault_library=static)")
    return options


def relocatable(pc):
    """The pkg-config file of an installation, for one that is found from where the file itself is."""
    pc, prefixes = re.subn(r"^prefix=.*$", "prefix=${pcfiledir}/../..", pc, flags=re.M)
    pc, folders = re.subn(r"^(includedir|libdir)=.*$",
                          lambda line: {"includedir": "includedir=${prefix}/include", "libdir": "libdir=${prefix}/lib"}
                          [line[1]], pc, flags=re.M)
    assert (prefixes, folders) == (1, 2), pc
    return pc


def relocated_config(text):
    """The CMake file of an installation, for a package whose libraries lie in lib/."""
    text, places = re.subn(r'(?<="\$\{fa3_libraries\}/)[./]*include(?=")', "../include", text)
    assert places == 1, text
    return text


def licence(package):
    path = pathlib.Path("/usr/share/doc", package, "copyright")
    if not path.is_file():
        sys.exit(f"package.py: no {path}: the licence must go with the programs")
    return path.read_bytes()


def programs(root, options):
    """With what they read, and the licences of what is compiled into them."""
    files = [(f"bin/{program}", (root / options["bindir"].lstrip("/") / program).read_bytes(), True)
             for program in PROGRAMS]
    for contract in sorted((root / options["datadir"].lstrip("/") / "fa3/contracts").iterdir()):
        files.append((f"share/fa3/contracts/{contract.name}", contract.read_bytes(), False))
    return files + [(f"share/doc/fa3/{part}.copyright", licence(package), False) for part, package in PARTS.items()]


def pack(build, folder):
    options = options_of(build)
    with tempfile.TemporaryDirectory() as name:
        stage = pathlib.Path(name)
        meson("install", "-C", build, "--no-rebuild", "--strip", "--quiet", "--destdir", stage)
        root = stage / options["prefix"].lstrip("/")
        libraries = root / options["libdir"].lstrip("/")
        # The shared library is one file with its full version, and links to it.
        shared = sorted(libraries.glob("libfa3.so*"))
        files = [] if options["library_alone"] else programs(root, options)
        files += [(f"lib/{path.name}", path.read_bytes(), True) for path in shared if not path.is_symlink()]
        machine = packing.machine_of(libraries / "libfa3.so")
        links = [(f"lib/{path.name}", os.readlink(path)) for path in shared if path.is_symlink()]
        files.append(("lib/libfa3.a", packing.stripped(build / "src/libfa3.a", machine), False))
        pc = (libraries / "pkgconfig/fa3.pc").read_text()
        files.append(("lib/pkgconfig/fa3.pc", relocatable(pc).encode(), False))
        config = (libraries / "cmake/fa3/fa3Config.cmake").read_text()
        files.append(("lib/cmake/fa3/fa3Config.cmake", relocated_config(config).encode(), False))
        version = libraries / "cmake/fa3/fa3ConfigVersion.cmake"
        files.append((f"lib/cmake/fa3/{version.name}", version.read_bytes(), False))
        files.append(("include/fa3.h", (ROOT / "include/fa3.h").read_bytes(), False))
        files.append(("LICENSE", (ROOT / "LICENSE").read_bytes(), False))
        files.append(("README.md", packing.document("README.md", [path for path, _, _ in files]), False))
    return packing.make_tarball("libfa3", folder, files, links, machine)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    print(pack(options.build, options.folder))


if __name__ == "__main__":
    main()
