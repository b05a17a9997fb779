#!/usr/bin/env python3
"""Packs tools/python/fa3 and a built libfa3.so as a wheel, whose name says which glibc that library needs. The same
library gives the same bytes."""
import argparse
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/build"))
import packing  # noqa: E402

METADATA = """Summary: FlashAttention-3 for NVIDIA Hopper: torch tensors, NumPy arrays, transformers
Requires-Python: >=3.9
Description-Content-Type: text/plain

{}
"""
GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}


def readelf(library, *options):
    return subprocess.run(["readelf", "-W", *options, library], check=True, stdout=subprocess.PIPE, text=True).stdout


def platform_tag(library):
    """manylinux with the oldest glibc that has all the versions of symbols that the library asks for."""
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(library, "-d")))
    if not needed <= GLIBC:
        sys.exit(f"package.py: {library} needs {', '.join(sorted(needed - GLIBC))}, which not every Linux has")
    versions = [tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", readelf(library, "-V"))]
    major, minor, *_ = max(versions)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def files(library):
    folder = ROOT / "tools/python"
    for source in sorted((folder / "fa3").rglob("*")):
        if source.is_file() and source.parent.name != "__pycache__":
            yield str(source.relative_to(folder)), source.read_bytes(), False
    yield "fa3/fa3.h", (ROOT / "include/fa3.h").read_bytes(), False
    yield f"fa3/libfa3.so.{packing.version('abi')}", library.read_bytes(), True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    library, folder = vars(parser.parse_args()).values()
    manual = re.search(r'"""(.*?)"""', (ROOT / "tools/python/fa3/__init__.py").read_text(), re.S)[1]
    print(packing.write_wheel(folder, "fa3", platform_tag(library), METADATA.format(manual.strip()), files(library)))


if __name__ == "__main__":
    main()
