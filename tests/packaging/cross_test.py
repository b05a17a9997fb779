#!/usr/bin/env python3
"""The library for aarch64 (GH200), by a cross-compiler, with kernels that were compiled before: what it exports, the
glibc that it needs, and its wheel and tarball. Nothing of it is run. Skipped without the compiler.

usage: cross_test.py BUILD CUDA
"""
import os
import pathlib
import re
import shutil
import sys
import tarfile
import tempfile

from packages import MESON, ROOT, need, run

BUILD, CUDA = (pathlib.Path(word).resolve() for word in sys.argv[1:])
COMPILER = "aarch64-linux-gnu-g++"
if not shutil.which(COMPILER):
    print(f"SKIPPED: no {COMPILER} (package g++-aarch64-linux-gnu)")
    sys.exit(77)


def main():
    version = run(ROOT / "tools/build/version").strip()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        build = folder / "build"
        run(MESON, "setup", build, ROOT, "--cross-file", ROOT / "tools/packaging/aarch64.ini", "-Dlibrary_alone=true",
            f"-Dcuda={CUDA}", f"-Dcubins={BUILD / 'ptx'}", "-Dkernels=fa3_fwd_bf16_d64_*", "-Doptimization=0",
            env={**os.environ, "PKG_CONFIG": "/bin/false"})
        run(MESON, "compile", "-C", build, "fa3:shared_library", "libfa3.a")
        library = build / "src/libfa3.so"
        need("AArch64" in run("readelf", "-h", library), "another processor")
        symbols = run("readelf", "--dyn-syms", "-W", library)
        exported = set(re.findall(r" GLOBAL +DEFAULT +\d+ (fa3_\w+)$", symbols, re.M))
        need(exported == set((ROOT / "tests/src/api/symbols.txt").read_text().split()), f"it exports {exported}")
        versions = set(re.findall(r"@GLIBC_([\d.]+)", symbols))
        need(versions == {"2.17"}, f"it needs glibc {versions}")  # the first that aarch64 had

        made = run(sys.executable, "-B", ROOT / "tools/python/package.py", library, folder).strip()
        need(made == f"{folder}/fa3-{version}-py3-none-manylinux_2_28_aarch64.whl", made)
        made = run(sys.executable, "-B", ROOT / "tools/package.py", build, folder).splitlines()[-1]
        need(made == f"{folder}/libfa3-{version}-linux-aarch64.tar.gz", made)
        stem = pathlib.Path(made).name.removesuffix(".tar.gz")
        inside = {path.removeprefix(f"{stem}/") for path in tarfile.open(made).getnames()}
        expected = {"LICENSE", "README.md", "include/fa3.h", "lib/libfa3.a", "lib/libfa3.so", "lib/libfa3.so.1",
                    f"lib/libfa3.so.{version}", "lib/pkgconfig/fa3.pc", "lib/cmake/fa3/fa3Config.cmake",
                    "lib/cmake/fa3/fa3ConfigVersion.cmake"}
        need(inside == expected, f"the tarball has {inside ^ expected}")


main()
