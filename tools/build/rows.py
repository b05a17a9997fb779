#!/usr/bin/env python3
"""The table of kernels, ptx/rows.def: prints its rows, each as its number, its kernel's file and its name. With
patterns for names, such as 'fa3_fwd_bf16_*', only those that match one, and the passes, which the others need; and the
table of these rows alone is written to OUTPUT.
"""
import argparse
import fnmatch
import pathlib
import re
import sys

# How cells make a name, as in ptx/row.h.
NAMES = {
    "FORWARD": "fa3_{0}_{2}_d{3}_{4}_{5}x{6}",
    "FORWARD_DV": "fa3_{0}_{2}_d{3}x{4}_{5}_{6}x{7}",
    "BACKWARD": "fa3_{0}_{2}_d{3}_{4}_{5}x{6}",
    "PASS": "fa3_pass_{0}",
}


def rows(table):
    """The rows in the text of a table: line number from 0, name, kernel."""
    for i, line in enumerate(table.split("\n")):
        match = re.match(r"FA3_(\w+)\((.*)\)", line)
        if match:
            cells = [cell.strip() for cell in match[2].split(",")]
            yield i, NAMES[match[1]].format(*cells), cells[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path, nargs="?")
    parser.add_argument("patterns", metavar="pattern", nargs="*")
    options = parser.parse_args()
    table = options.table.read_text()
    every = list(enumerate(rows(table)))
    if options.output and not options.patterns:
        sys.exit("no pattern for the names of the kernels")
    for pattern in options.patterns:
        if not fnmatch.filter([name for _, (_, name, _) in every], pattern):
            sys.exit(f"no kernel has a name that matches '{pattern}'; their names follow from ptx/rows.def, such as "
                     f"{every[0][1][1]}")
    patterns = [*options.patterns, "fa3_pass_*"] if options.output else ["*"]
    chosen = [row for row in every if any(fnmatch.fnmatchcase(row[1][1], pattern) for pattern in patterns)]
    if options.output:
        lines = table.split("\n")
        text = "".join(f"{lines[line]}\n" for _, (line, _, _) in chosen)
        if not options.output.exists() or options.output.read_text() != text:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(text)
    for number, (_, name, kernel) in chosen:
        print(number, kernel, name)


if __name__ == "__main__":
    main()
