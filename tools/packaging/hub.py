#!/usr/bin/env python3
"""Lays out fa3 as a kernel of Hugging Face's hub, a folder that kernels.get_local_kernel loads and that can be uploaded
as it is: build/VARIANT for each kind of torch, and a card. The variants hold the same files but for their names, as the
library needs no certain torch or CUDA."""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools/python"), str(ROOT / "tools/build")]
import package  # noqa: E402
import packing  # noqa: E402

# torch 2.4 or newer, without CUDA, with any CUDA 12, with any CUDA 13.
VARIANTS = ("torch-stable-abi24-cpu", "torch-stable-abi24-cu120", "torch-stable-abi24-cu130")
CARD = """---
library_name: kernels
license: bsd-3-clause
tags: [kernels, attention]
---
"""


# The client gives each kernel a name of its own; fa3's modules and torch's ops know it as fa3.
INIT = """import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
try:
    import fa3
    from fa3 import *  # noqa: F403
finally:
    sys.path.pop(0)
__version__ = "{version}"
if fa3.__version__ != __version__:
    raise ImportError(f"fa3 {{fa3.__version__}} is imported already, from {{fa3.__file__}}; this is {{__version__}}")


def __getattr__(name):
    return getattr(fa3, name)
"""


def files(library):
    """(path, bytes) below the folder."""
    machine, version = packing.machine_of(library), packing.version()
    inside = [*package.module_files(), ("fa3/fa3.h", (ROOT / "include/fa3.h").read_bytes()),
              (f"fa3/libfa3.so.{packing.version('abi')}", packing.stripped(library, machine)),
              ("LICENSE", (ROOT / "LICENSE").read_bytes()), ("__init__.py", INIT.format(version=version).encode())]
    for variant in VARIANTS:
        folder, backend = f"build/{variant}-{machine}-linux", variant.split("-")[-1]
        kind = {"type": "cpu"} if backend == "cpu" else {"type": "cuda", "archs": ["9.0a"]}
        about = {"id": f"_fa3_{backend}_{version.replace('.', '_')}", "name": "fa3", "backend": kind,
                 "version": int(packing.version("abi")), "license": "BSD-3-Clause", "python-depends": []}
        yield f"{folder}/metadata.json", (json.dumps(about, indent=2) + "\n").encode()
        yield from ((f"{folder}/{path}", data) for path, data in inside)
    yield "README.md", CARD.encode() + packing.document("README.md")


def write(library, folder):
    """folder: may hold variants for another processor."""
    for path, data in files(library):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    print(write(options.library, options.folder))


if __name__ == "__main__":
    main()
