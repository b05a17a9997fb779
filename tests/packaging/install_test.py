#!/usr/bin/env python3
"""What `meson install` installs, and how its files are linked.

usage: install_test.py BUILD -- C_COMPILER
"""
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

from packages import HERE, MESON, ROOT, check_client, need, run

BUILD, CC = pathlib.Path(sys.argv[1]), sys.argv[3:]


def options():
    return {option["name"]: option["value"] for option in json.loads(run(MESON, "introspect", "--buildoptions", BUILD))}


def dynamic(path):
    """Of the dynamic section: tag: values."""
    tags = {}
    for tag, value in re.findall(r"\((\w+)\)\s+(.*)", run("readelf", "-dW", path)):
        tags.setdefault(tag, []).append(re.sub(r".*\[(.*)\]", r"\1", value))
    return tags


def check_elf(path):
    segments, tags = run("readelf", "-lW", path), dynamic(path)
    need(re.search(r"GNU_STACK.* RW ", segments), f"{path}: an executable stack")
    need("GNU_RELRO" in segments, f"{path}: no RELRO")
    need("TEXTREL" not in tags, f"{path}: relocations of code")
    need("Build ID" in run("readelf", "-nW", path), f"{path}: no build id")
    need(str(BUILD) not in " ".join(sum(tags.values(), [])), f"{path}: knows its build folder")
    return tags


def check_library(libraries):
    version = run(ROOT / "tools/build/version").strip()
    links = {path.name: os.readlink(path) for path in libraries.glob("libfa3.so*") if path.is_symlink()}
    need(links == {"libfa3.so": "libfa3.so.1", "libfa3.so.1": f"libfa3.so.{version}"}, f"links {links}")
    tags = check_elf(libraries / f"libfa3.so.{version}")
    need(tags["SONAME"] == ["libfa3.so.1"], f"soname {tags['SONAME']}")
    need("RPATH" not in tags and "RUNPATH" not in tags, "the library has a path of its own")
    need("NOW" in " ".join(tags.get("FLAGS_1", [])), "the library is bound lazily, so its tables stay writable")
    needed = [name for name in tags["NEEDED"] if not re.match(r"(libc|libm|libdl|libpthread|ld-linux.*)\.so", name)]
    need(not needed, f"the library needs {needed}")
    versions = re.findall(r"@GLIBC_([\d.]+)", run("readelf", "--dyn-syms", "-W", libraries / "libfa3.so"))
    newest = max(tuple(map(int, version.split("."))) for version in versions)
    need(newest <= (2, 28), f"the library needs glibc {newest}")
    shutil.copy(libraries / "libfa3.so", libraries / "stripped")
    run("strip", libraries / "stripped")
    size = (libraries / "stripped").stat().st_size
    (libraries / "stripped").unlink()
    print(f"the stripped library has {size} bytes")
    need(size <= 14.4e6, f"the library is too large: {size} bytes")
    for document in "README.md", "tools/docs/pages/build.md":
        figures = re.findall(r"is\s(\d+)\sMB,", (ROOT / document).read_text())
        need(figures and all(int(figure) == round(size / 1e6) for figure in figures),
             f"{document} says that the library is {' and '.join(figures)} MB; it is {size / 1e6:.1f}")


def check_program(path, libraries):
    tags = check_elf(path)
    paths = tags["RUNPATH"][0].split(":")
    need(all(folder.startswith("$ORIGIN/") for folder in paths), f"{path}: looks for libraries in {paths}")
    beside = pathlib.Path(paths[0].replace("$ORIGIN", str(path.parent))).resolve()
    need(beside == libraries.resolve(), f"{path} looks for the library in {beside}")
    need(not [name for name in tags["NEEDED"] if "stdc++" in name], f"{path} needs the C++ library")
    run(path, "--help", env={"PATH": "/usr/bin:/bin"})


def check_pkg_config(stage, libraries):
    """As a packager uses it, who builds against a staged installation."""
    environment = {**os.environ, "PKG_CONFIG_LIBDIR": str(libraries / "pkgconfig"), "PKG_CONFIG_PATH": "",
                   "PKG_CONFIG_SYSROOT_DIR": str(stage)}
    words = run("pkg-config", "--cflags", "--libs", "fa3", env=environment).split()
    private = set(run("pkg-config", "--static", "--libs", "fa3", env=environment).split()) - set(words)
    need(private == {"-lm", "-ldl", "-lpthread"}, f"the static library needs {private}")
    run(*CC, HERE / "client.c", "-o", stage / "client", *words, "-lm", f"-Wl,-rpath,{libraries}")
    check_client(stage / "client", libraries / "libfa3.so")


def main():
    chosen = options()
    if chosen["default_library"] == "static":
        print("SKIPPED: no shared library is installed (-Ddefault_library=static)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        stage = pathlib.Path(name)
        run(MESON, "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", stage)
        root = stage / chosen["prefix"].lstrip("/")
        libraries, programs = root / chosen["libdir"], root / chosen["bindir"]
        found = {str(path.relative_to(root)) for path in stage.rglob("*") if not path.is_dir()
                 and "contracts" not in path.parts}
        version = run(ROOT / "tools/build/version").strip()
        expected = {f"{chosen['bindir']}/{name}" for name in ("fa3-bench", "fa3-info", "fa3-sass")}
        archives = ["libfa3.a"] if chosen["default_library"] == "both" else []
        expected |= {f"{chosen['libdir']}/{name}" for name in (
            "libfa3.so", "libfa3.so.1", f"libfa3.so.{version}", "pkgconfig/fa3.pc", "cmake/fa3/fa3Config.cmake",
            "cmake/fa3/fa3ConfigVersion.cmake", *archives)}
        expected.add(f"{chosen['includedir']}/fa3.h")
        pages = set(re.findall(r"\b\w+\.md\b", (ROOT / "include/fa3.h").read_text()))
        expected |= {f"{chosen['datadir']}/doc/fa3/{page}" for page in pages}
        need(found == expected, f"unexpected {sorted(found - expected)}, missing {sorted(expected - found)}")
        check_library(libraries)
        for name in "fa3-bench", "fa3-info":
            check_program(programs / name, libraries)
        check_elf(programs / "fa3-sass")
        check_pkg_config(stage, libraries)


main()
