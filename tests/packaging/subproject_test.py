#!/usr/bin/env python3
"""A Meson project with libfa3 as its subproject: only the library is built, for which neither Catch2 nor the tools'
libraries are there; shared and static. Kernels are copied from another build (-Dcubins).

usage: subproject_test.py BUILD CUDA
"""
import json
import os
import pathlib
import shutil
import sys
import tempfile

from packages import HERE, MESON, ROOT, check_client, need, run

BUILD, CUDA = (pathlib.Path(word).resolve() for word in sys.argv[1:])


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        project, build = folder / "project", folder / "build"
        shutil.copytree(HERE / "subproject", project)
        shutil.copy(HERE / "client.c", folder)
        (project / "subprojects").mkdir()
        os.symlink(ROOT, project / "subprojects/libfa3")
        # pkg-config finds nothing, CMake is not asked: what the tests and tools need is not there.
        environment = {**os.environ, "PKG_CONFIG_LIBDIR": str(folder), "PKG_CONFIG_PATH": "", "CMAKE": "/bin/false"}
        run(MESON, "setup", build, project, f"-Dlibfa3:cuda={CUDA}", f"-Dlibfa3:cubins={BUILD / 'ptx'}",
            "-Ddefault_library=static", env=environment)

        targets = {target["name"]: target for target in json.loads(run(MESON, "introspect", "--targets", build))}
        rows = run(sys.executable, ROOT / "tools/build/rows.py", ROOT / "ptx/table/rows.def")
        kernels = {row.split()[1] for row in rows.splitlines()}
        kernels |= {f"{kernel}.fatbin" for kernel in kernels}
        library = {"cubins.S", "fa3-planner", "fa3-host", "fa3-cubins", "fa3", "libfa3.a"}
        need(set(targets) == kernels | library | {"client"},
             f"targets {sorted(set(targets) ^ (kernels | library | {'client'}))}")
        tests = json.loads(run(MESON, "introspect", "--tests", build))
        need([test["name"] for test in tests] == ["client"], f"tests {tests}")

        run("ninja", "-C", build, env=environment)
        need(not (build / "subprojects/libfa3/src/libfa3.so").exists(), "the shared library is built for a static one")
        check_client(build / "client")
        check_installed(build, folder / "static", ["client"])

        run(MESON, "configure", build, "-Ddefault_library=shared")
        run("ninja", "-C", build, env=environment)
        check_client(build / "client", build / "subprojects/libfa3/src/libfa3.so")
        version = run(ROOT / "tools/build/version").strip()
        check_installed(build, folder / "shared", ["client", "libfa3.so", "libfa3.so.1", f"libfa3.so.{version}"])


def check_installed(build, stage, names):
    run(MESON, "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", stage)
    found = sorted(path.name for path in stage.rglob("*") if not path.is_dir())
    need(found == sorted(names), f"installed {found}")


main()
