#!/usr/bin/env python3
"""Packs tools/python/fa3 and a built libfa3.so as a wheel for every Python 3 on every Linux whose glibc is 2.28 or
newer. The metadata is that of pyproject.toml. The same library gives the same bytes."""
import argparse
import pathlib
import re
import subprocess
import sys

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/build"))
import packing  # noqa: E402

GLIBC = (2, 28)  # as src/meson.build links
LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def readelf(library, *options):
    return subprocess.run(["readelf", "-W", *options, library], check=True, stdout=subprocess.PIPE, text=True).stdout


def platform_tag(library):
    """manylinux, if the library needs nothing else."""
    foreign = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(library, "-d"))) - LIBRARIES
    if foreign:
        sys.exit(f"package.py: {library} needs {', '.join(sorted(foreign))}, which not every Linux has")
    found = re.findall(r" (\w+)@GLIBC_([0-9.]+)", readelf(library, "--dyn-syms"))
    newer = [f"{name} of glibc {version}" for name, version in found if tuple(map(int, version.split("."))) > GLIBC]
    if newer:
        sys.exit(f"package.py: {library} needs {', '.join(newer)}, so it was not linked as src/meson.build does")
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{packing.machine_of(library)}"


def metadata():
    """What METADATA has after name and version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [f"Summary: {project['description']}", f"Keywords: {','.join(project['keywords'])}"]
    lines += [f"Classifier: {classifier}" for classifier in project["classifiers"]]
    lines += [f"Project-URL: {name}, {url}" for name, url in project["urls"].items()]
    lines.append(f"Requires-Python: {project['requires-python']}")
    for extra, packages in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {package}; extra == "{extra}"' for package in packages]
    lines.append("Description-Content-Type: text/markdown")
    return "\n".join(lines) + "\n\n" + packing.document(project["readme"]).decode()


def entry_points():
    """What entry_points.txt has."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in names.items())
             for group, names in groups.items()]  # fmt: skip
    return "\n".join(lines).encode()


def module_files():
    """(path, bytes) of the module, without a library."""
    folder = ROOT / "tools/python"
    for source in sorted((folder / "fa3").rglob("*")):
        if source.is_file() and source.parent.name != "__pycache__":
            yield str(source.relative_to(folder)), source.read_bytes()


def pack(library, folder):
    """The path of the wheel."""
    files = [(path, data, False) for path, data in module_files()]
    files.append(("fa3/fa3.h", (ROOT / "include/fa3.h").read_bytes(), False))
    data = packing.stripped(library, packing.machine_of(library))
    files.append((f"fa3/libfa3.so.{packing.version('abi')}", data, True))
    files.append(("{stem}.dist-info/entry_points.txt", entry_points(), False))
    return packing.write_wheel(folder, "fa3", platform_tag(library), metadata(), files)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    print(pack(options.library, options.folder))


if __name__ == "__main__":
    main()
