#!/usr/bin/env python3
"""A CMake project with the tarball of tools/package and with an installation, by find_package and by pkg-config: shared
and static. Skipped without CMake.

usage: cmake_test.py BUILD
"""
import json
import os
import pathlib
import shutil
import sys

from packages import HERE, MESON, check_client, need, run, unpacked

BUILD = pathlib.Path(sys.argv[1])
if not shutil.which("cmake"):
    print("SKIPPED: no cmake (package cmake)")
    sys.exit(77)


def build(folder, libraries, static, by, *options, status=0):
    environment = {**os.environ, "PKG_CONFIG_LIBDIR": str(libraries / "pkgconfig"), "PKG_CONFIG_PATH": ""}
    said = run("cmake", "-S", HERE / "cmake", "-B", folder, f"-DFA3_STATIC={'ON' if static else 'OFF'}", f"-DBY={by}",
               f"-DCMAKE_PREFIX_PATH={libraries.parent}", *options, status=status, env=environment)
    if status == 0:
        run("cmake", "--build", folder, env=environment)
        check_client(folder / "client", None if static else libraries / "libfa3.so")
    return said


def installed(folder):
    """Where `meson install` puts the libraries, in a folder that is not the one that they were configured for."""
    run(MESON, "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", folder)
    chosen = json.loads(run(MESON, "introspect", "--buildoptions", BUILD))
    options = {option["name"]: option["value"] for option in chosen}
    return folder / options["prefix"].lstrip("/") / options["libdir"]


with unpacked(BUILD) as (_, root, folder):
    for by in "package", "pkg-config":
        for static in False, True:
            build(folder / f"{by}-{static}", root / "lib", static, by)
    libraries = installed(folder / "stage")
    build(folder / "installed", libraries, False, "package", f"-Dfa3_DIR={libraries}/cmake/fa3")

    # What is not there is not found, and the reason is told.
    for path in (root / "lib").glob("libfa3.*"):
        path.unlink()
    said = build(folder / "none", root / "lib", False, "package", status=1)
    need("no library that was asked for is in" in said, said)
