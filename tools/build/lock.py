#!/usr/bin/env python3
"""The lock of the kernels: of each row's cubin the SHA-256, as sha256sum prints it, so that a change of source which is
to change no machine code can show that it changes none. Writes the lock anew and prints which rows are others; with
--check it writes nothing, and fails if it would.
"""
import argparse
import hashlib
import pathlib
import sys


def read(path):
    """{name of a cubin: SHA-256}"""
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: digest for digest, name in (line.split() for line in lines)}


def changes(before, after):
    """The rows in words, kind by kind; empty if nothing has changed."""
    kinds = {
        "other machine code": [name for name in after if before.get(name, after[name]) != after[name]],
        "new": [name for name in after if name not in before],
        "gone": [name for name in before if name not in after],
    }
    return [f"{kind} ({len(names)} of {len(after)}): {' '.join(name.removesuffix('.cubin') for name in names)}"
            for kind, names in kinds.items() if names]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if cubins have changed")
    parser.add_argument("lock", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path, help="with a cubin for each row")
    parser.add_argument("names", nargs="+", metavar="row")
    options = parser.parse_args()
    before = read(options.lock)
    after = {f"{name}.cubin": hashlib.sha256((options.folder / f"{name}.cubin").read_bytes()).hexdigest()
             for name in sorted(options.names)}
    changed = changes(before, after)
    print(*changed, sep="\n", end="\n" if changed else "")
    if options.check and changed:
        sys.exit(f"{options.lock} is of other machine code. If that was meant to change, `meson compile -C build "
                 "kernels-lock` writes the lock, and the commit says why")
    if not options.check:
        options.lock.write_text("".join(f"{digest}  {name}\n" for name, digest in after.items()))


if __name__ == "__main__":
    main()
