#!/usr/bin/env python3
"""Makes a folder of libraries to link with, in which the C library is glibc VERSION (2.28, say), whatever it is on this
machine: a shared library that is linked with `-L FOLDER` runs wherever glibc is that old or newer.

glibc keeps each function in the versions of all its predecessors, and a linker takes the newest. The libraries in the
folder have this machine's names, each in one version: the newest that glibc VERSION had. They hold no code, as a linker
reads names and versions alone. What came later is not there, so that a call of it fails to link.
"""
import argparse
import pathlib
import re
import subprocess

LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", *LOADERS)
# libc.so.6 took over the functions of other libraries until 2.34: these, and libraries_beside that are left out here.
HOMES = {"libdl.so.2": r"dl[a-z]+", "libpthread.so.0": r"(__)?(pthread|sem)_\w+"}
TAKEN_OVER = (2, 34)
# Headers from 2.38 on call scanf by another name, for numbers such as 0b10.
NONSHARED = """
#include <stdarg.h>
#include <stdio.h>
int __isoc99_vfscanf(FILE*, const char*, va_list);
__attribute__((visibility("hidden"))) int __isoc23_fscanf(FILE* file, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int count = __isoc99_vfscanf(file, format, arguments);
  va_end(arguments);
  return count;
}
"""


def numbers(version):
    return tuple(map(int, version.split(".")))


def defined(library):
    """(name, kind, version) of each symbol."""
    listed = subprocess.run(["readelf", "--dyn-syms", "-W", library], check=True, stdout=subprocess.PIPE, text=True)
    pattern = r" (FUNC|IFUNC|OBJECT) +(?:GLOBAL|WEAK) +DEFAULT +\d+ (\w+)@@?GLIBC_([\d.]+)$"
    return [(name, kind, numbers(version)) for kind, name, version in re.findall(pattern, listed.stdout, re.M)]


def chosen(libraries, glibc):
    """{name of a library: {symbol: (version, kind)}}"""
    found = {name: {} for name in libraries}
    for library, path in libraries.items():
        symbols = defined(path)
        taken_over = {name for name, _, version in symbols if version == TAKEN_OVER}
        for name, kind, version in symbols:
            home = next((home for home, pattern in HOMES.items() if re.fullmatch(pattern, name)),
                        None if name in taken_over else library)
            if home in found and version <= glibc:
                found[home][name] = max((version, kind), found[home].get(name, (version, kind)))
    return found


def link(compiler, folder, library, symbols):
    lines, versions = ['.section .note.GNU-stack, "", %progbits', ".text"], {}
    for name, (version, kind) in sorted(symbols.items()):
        lines.append(f".globl {name}\n.type {name}, %{'object' if kind == 'OBJECT' else 'function'}\n{name}: .byte 0")
        versions.setdefault(version, []).append(name)
    source, script = folder / f"{library}.s", folder / f"{library}.map"
    source.write_text("\n".join(lines) + "\n")
    script.write_text("".join(f"GLIBC_{'.'.join(map(str, version))} {{ {'; '.join(names)}; }};\n"
                              for version, names in sorted(versions.items())))
    subprocess.run([*compiler, "-shared", "-nostdlib", f"-Wl,-soname,{library},--version-script={script}", source, "-o",
                    folder / library], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("glibc", metavar="VERSION", type=numbers)
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument("ar", metavar="AR")
    parser.add_argument("compiler", metavar="C_COMPILER", nargs="+")
    glibc, folder, ar, compiler = vars(parser.parse_args()).values()
    folder.mkdir(parents=True, exist_ok=True)
    asked = {name: subprocess.run([*compiler, f"-print-file-name={name}"], check=True, stdout=subprocess.PIPE,
                                  text=True) for name in LIBRARIES}
    libraries = {name: path for name, said in asked.items() if "/" in (path := said.stdout.strip())}
    for library, symbols in chosen(libraries, glibc).items():
        link(compiler, folder, library, symbols)
    (folder / "nonshared.c").write_text(NONSHARED)
    subprocess.run([*compiler, "-O2", "-fPIC", "-c", folder / "nonshared.c", "-o", folder / "nonshared.o"], check=True)
    (folder / "libnonshared.a").unlink(missing_ok=True)
    subprocess.run([ar, "crsD", folder / "libnonshared.a", folder / "nonshared.o"], check=True)
    # What -lm and -lc find.
    libraries_beside = " ".join(name for name in libraries if name not in ("libc.so.6", "libm.so.6"))
    (folder / "libm.so").write_text("INPUT ( libm.so.6 )\n")
    (folder / "libc.so").write_text(f"GROUP ( libc.so.6 libnonshared.a AS_NEEDED ( {libraries_beside} ) )\n")


if __name__ == "__main__":
    main()
