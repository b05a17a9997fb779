#!/usr/bin/env python3
"""A table of kernels, such as ptx/table/rows.def: prints its rows, each as its kernel's file, its name and its text, with
tabs between. With patterns for names, such as 'fa3_fwd_bf16_*', only those that match one, and those without which they
cannot run: for a kernel of dk and dv that of dq, and the passes, but those of the backward pass only with a kernel of
it, and those of fa3_quantize for small heads only with a kernel of e4m3. The table of these rows alone is written to
OUTPUT.
"""
import argparse
import collections
import fnmatch
import pathlib
import re
import sys

PTX = pathlib.Path(__file__).resolve().parents[2] / "ptx"
FORWARD, BACKWARD, PASS = KINDS = range(3)
# Of each macro the kind of its rows, and how cells make their names, as in ptx/table/row.h.
MACROS = {
    "FORWARD": (FORWARD, "fa3_{0}_{2}_d{3}_{4}_{5}x{6}"),
    "FORWARD_DV": (FORWARD, "fa3_{0}_{2}_d{3}x{4}_{5}_{6}x{7}"),
    "PACKED": (FORWARD, "fa3_{0}_{2}_d{3}_{4}_{5}x{6}"),
    "PACKED_DV": (FORWARD, "fa3_{0}_{2}_d{3}x{4}_{5}_{6}x{7}"),
    "FORWARD_8": (FORWARD, "fa3_{0}_e4m3_d{2}_{3}_{4}x{5}"),
    "WIDENED": (FORWARD, "fa3_{0}_{2}_d{3}_{4}_{5}x{6}"),
    "COPIED": (FORWARD, "fa3_{0}_{2}_d{3}_{4}_{5}x{6}"),
    "WIDENED_PACKED": (FORWARD, "fa3_{0}_{2}_d{3}_{4}_{5}x{6}"),
    "LATENT": (FORWARD, "fa3_{0}_{2}_d{3}x{4}_{5}_{6}x{7}"),
    "BACKWARD": (BACKWARD, "fa3_{0}_{2}_d{3}_{4}_{5}x{6}"),
    "PASS": (PASS, "fa3_pass_{0}"),
}


# `text` is the line of a table in which this row stands alone.
Row = collections.namedtuple("Row", "line name kernel kind cells text")


def text_of(table):
    """With the tables that it includes."""
    return re.sub(r'^#include "(.*)"$', lambda match: text_of(table.parent / match[1]), table.read_text(), flags=re.M)


def source_of(kernel):
    """Its file, in one of the folders of ptx."""
    found = list(PTX.rglob(f"{kernel}.cu"))
    if len(found) != 1:
        sys.exit(f"{len(found)} files in the folders of ptx are {kernel}.cu, not one")
    return found[0]


def rows(table):
    """The rows in the text of a table, kind by kind as in ptx/table/row.h. Lines are numbered from 1."""
    found = {kind: [] for kind in KINDS}
    for line, text in enumerate(table.split("\n"), 1):
        match = re.match(r"FA3_(\w+?)(_16)?\((.*)\)", text)
        if match:
            macro, cells = match[1], [cell.strip() for cell in match[3].split(",")]
            if macro not in MACROS:
                sys.exit(f"line {line} of the table: FA3_{macro} is none of {', '.join(MACROS)}: add it to MACROS in "
                         "tools/build/rows.py")
            kind, name = MACROS[macro]
            for dtype in (["bf16"], ["fp16"]) if match[2] else ([],):
                own = cells[:2] + dtype + cells[2:]
                found[kind].append(Row(line, name.format(*own), own[1], kind, own,
                                       f"FA3_{macro}({', '.join(own)})"))
    return sum(found.values(), [])


def chosen_of(every, patterns):
    """Those whose names match, and those without which they cannot run."""
    def is_backward(row, gradients):
        return row.kind == BACKWARD and row.cells[8] == gradients

    def partner(row):  # dtype, head dimension, mask and traits; dq of centered keys goes with the same dk and dv
        return row.cells[2:5] + [cell.replace("planned_centered", "planned") for cell in row.cells[9:]]

    chosen = [row for row in every if any(fnmatch.fnmatchcase(row.name, pattern) for pattern in patterns)]
    keys = [partner(row) for row in chosen if is_backward(row, "keys")]
    has_backward = any(row.kind == BACKWARD for row in chosen)
    has_e4m3 = any("e4m3" in row.name for row in chosen)

    def is_needed(row):
        if row.kernel in ("quantize", "measure"):
            return has_e4m3 or row.cells[2] == "256"
        return has_backward or not row.kernel.startswith("bwd_")

    return [row for row in every if row in chosen or (row.kind == PASS and is_needed(row))
            or (is_backward(row, "queries") and partner(row) in keys)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path, nargs="?")
    parser.add_argument("patterns", metavar="pattern", nargs="*")
    options = parser.parse_args()
    every = chosen = rows(text_of(options.table))
    if options.output and not options.patterns:
        sys.exit("no pattern for the names of the kernels")
    for pattern in options.patterns:
        if not fnmatch.filter([row.name for row in every], pattern):
            sys.exit(f"no kernel has a name that matches '{pattern}'; their names follow from ptx/table/rows.def, such as "
                     f"{every[0].name}; those of ptx/paper need -Dpaper=true")
    if options.output:
        chosen = chosen_of(every, options.patterns)
        text = "".join(f"{row.text}\n" for row in chosen)
        if not options.output.exists() or options.output.read_text() != text:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(text)
    for row in chosen:
        print(source_of(row.kernel), row.name, row.text, sep="\t")


if __name__ == "__main__":
    main()
