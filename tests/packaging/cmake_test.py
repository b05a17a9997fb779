#!/usr/bin/env python3
"""The tarball of tools/package in a CMake project, by its pkg-config file: shared and static. Skipped without CMake.

usage: cmake_test.py BUILD
"""
import os
import pathlib
import shutil
import sys

from packages import HERE, check_client, run, unpacked

if not shutil.which("cmake"):
    print("SKIPPED: no cmake (package cmake)")
    sys.exit(77)
with unpacked(pathlib.Path(sys.argv[1])) as (_, root, folder):
    environment = {**os.environ, "PKG_CONFIG_LIBDIR": str(root / "lib/pkgconfig"), "PKG_CONFIG_PATH": ""}
    for static, library in ("OFF", root / "lib/libfa3.so"), ("ON", None):
        build = folder / f"static-{static}"
        run("cmake", "-S", HERE / "cmake", "-B", build, f"-DSTATIC={static}", env=environment)
        run("cmake", "--build", build, env=environment)
        check_client(build / "client", library)
