#!/usr/bin/env python3
"""The tarball of tools/package, unpacked somewhere: its files, programs, and clients with the shared and the static
library, found by pkg-config.

usage: package_test.py BUILD NVDISASM -- C_COMPILER
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

from packages import HERE, ROOT, check_client, links, make_package, need, pkg_config, run, unpacked

BUILD, NVDISASM = (pathlib.Path(word) for word in sys.argv[1:3])
CC = [*sys.argv[4:], "-std=c11", "-Wall", "-Wextra", "-Werror"]
LARGEST = 25 * 2**20  # bytes of the stripped library


def check_files(root):
    contracts = {f"share/fa3/contracts/{path.name}" for path in (ROOT / "ptx").glob("*/*.contract")}
    version = run(ROOT / "tools/build/version").strip()
    expected = contracts | {
        "LICENSE", "README.md", "bin/fa3-bench", "bin/fa3-info", "bin/fa3-sass", "include/fa3.h", "lib/libfa3.a",
        "lib/libfa3.so", "lib/libfa3.so.1", f"lib/libfa3.so.{version}", "lib/pkgconfig/fa3.pc",
        "lib/cmake/fa3/fa3Config.cmake", "lib/cmake/fa3/fa3ConfigVersion.cmake",
        "share/doc/fa3/CLI11.copyright", "share/doc/fa3/nlohmann_json.copyright", "share/doc/fa3/zlib.copyright"}
    found = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    need(found == expected, f"unexpected {sorted(found - expected)}, missing {sorted(expected - found)}")
    dead = links.dead(root / "README.md", root)
    need(not dead, f"links that lead nowhere: {dead}")
    need(len(links.links(root / "README.md")) >= 4, "the README has lost its links to what is in the package")
    for path in root.rglob("*"):
        need(path.resolve().is_relative_to(root.resolve()), f"{path} leads out of the package")
    shared, archive = (root / "lib" / name for name in ("libfa3.so", "libfa3.a"))
    for path in shared, archive:
        size = path.stat().st_size
        print(f"{path.name}: {size / 2**20:.2f} MiB")
        need(size < LARGEST, f"{path.name} has {size} bytes")
    symbols = [line.split() for line in run("nm", "-g", archive).splitlines()]
    exported = {words[-1] for words in symbols if len(words) == 3}
    need(exported == set((ROOT / "tests/src/api/symbols.txt").read_text().split()), f"libfa3.a exports {sorted(exported)}")
    cpp = {words[-1] for words in symbols if len(words) == 2 and words[-1].startswith(("_Z", "__cxa", "__gxx"))}
    need(not cpp, f"libfa3.a needs {sorted(cpp)} of C++")
    need(".debug_" not in run("readelf", "-SW", archive), "libfa3.a is not stripped")
    for path in shared, *sorted((root / "bin").iterdir()):
        need(".symtab" not in run("readelf", "-SW", path), f"{path.name} is not stripped")
        versions = re.findall(r"@GLIBC_([\d.]+)", run("readelf", "--dyn-syms", "-W", path))
        print(path.name, "needs glibc", max(versions, key=lambda version: [int(part) for part in version.split(".")]))


def check_programs(root, folder):
    clean = {"HOME": str(folder), "PATH": f"{NVDISASM.parent}:/usr/bin:/bin"}
    info = json.loads(subprocess.run([root / "bin/fa3-info", "--json"], stdout=subprocess.PIPE, env=clean).stdout)
    need(pathlib.Path(info["library"]) == (root / "lib/libfa3.so").resolve(), f"fa3-info uses {info['library']}")
    need("fa3_pass_combine" in run(root / "bin/fa3-sass", "list", "fa3_pass_combine", env=clean, cwd=folder),
         "fa3-sass does not list the library's kernel")
    run(root / "bin/fa3-sass", "check", "--no-budgets", "fa3_pass_combine", env=clean, cwd=folder)
    need("ok" in run(root / "bin/fa3-bench", "--reference", env=clean), "fa3-bench does not check the reference")


def check_pkg_config(root, folder):
    version = run(ROOT / "tools/build/version").strip()
    need(pkg_config(root, "--modversion") == [version], "another version")
    libdir = root / "lib"
    need([pathlib.Path(word[2:]).resolve() for word in pkg_config(root, "--libs") if word.startswith("-L")] == [libdir],
         "libraries of another place")
    need([word for word in pkg_config(root, "--libs") if word.startswith("-l")] == ["-lfa3"], "more than -lfa3")
    client = folder / "shared"
    run(*CC, HERE / "client.c", "-o", client, *pkg_config(root, "--cflags", "--libs"), "-lm", f"-Wl,-rpath,{libdir}")
    check_client(client, libdir / "libfa3.so")

    # Beside a shared library linkers take that, so the archive is named.
    run(*CC, HERE / "client.c", "-o", folder / "archive", *pkg_config(root, "--cflags"), libdir / "libfa3.a",
        *[word for word in pkg_config(root, "--static", "--libs") if word != "-lfa3"])
    check_client(folder / "archive")


def own_symbols(folder):
    """A program's own functions by each name that means something inside the library; all of them crash. They are in
    groups, as templates are, of which a linker keeps the first of a name."""
    archives = [BUILD / "src" / f"libfa3-{part}.a" for part in ("planner", "host", "cubins")]
    names = {line.split()[-1] for line in run("nm", "-g", "--defined-only", "--quiet", *archives).splitlines()
             if len(line.split()) == 3}
    names -= set((ROOT / "tests/src/api/symbols.txt").read_text().split())
    need(len(names) > 50 and "fa3_cubins" in names, f"only {len(names)} inner symbols found")
    source = folder / "own.S"
    source.write_text("".join(f'.section .text.{name}, "axG", @progbits, {name}, comdat\n.globl {name}\n{name}: ud2\n'
                              for name in sorted(names)) + '.section .note.GNU-stack, "", @progbits\n')
    return source


def check_static(root, folder):
    """Of a package without the shared library, by each linker that is here."""
    alone = folder / "alone"
    shutil.copytree(root, alone, symlinks=True)
    for path in alone.glob("lib/libfa3.so*"):
        path.unlink()
    words = pkg_config(alone, "--static", "--cflags", "--libs")
    own = own_symbols(folder)
    for linker in "bfd", "gold", "lld", "mold":
        if not shutil.which(f"ld.{linker}"):
            print(f"SKIPPED: static linking by {linker}: no ld.{linker}")
            continue
        client = folder / f"static-{linker}"
        for sources in [HERE / "client.c"], [HERE / "client.c", own]:
            run(*CC, f"-fuse-ld={linker}", *sources, "-o", client, *words)
            check_client(client)
        stack = re.search(r"GNU_STACK.* (R\S+) ", run("readelf", "-lW", client))
        need(stack and stack[1] == "RW", f"by {linker}: an executable stack")


def main():
    with unpacked(BUILD) as (package, root, folder):
        again = make_package(BUILD, folder / "again")
        need(package.read_bytes() == again.read_bytes(), "a package differs when it is made again")
        print(f"{package.name}: {package.stat().st_size / 2**20:.2f} MiB")
        check_files(root)
        check_programs(root, folder)
        check_pkg_config(root, folder)
        check_static(root, folder)


main()
