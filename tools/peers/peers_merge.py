#!/usr/bin/env python3
"""Puts several CSVs of peers.py together into one: runs of some of the points each, or of some points anew.

A point that stands in several files is taken, with all of its figures, from the last of them: ratios are those of one
run. But a point is never replaced by one of which fewer peers were measured: it stays as it is and is named, and the
exit status is 1. Points stay in the order in which they come first. OUT is only written if every file can be read.

With --processes the RUNs are an odd number of runs of the same points, three or more, each in a process of its own: of
each figure the median is taken, which no single disturbed run moves much, and the column `processes` says of how many.
"""

import argparse
import csv
import os
import pathlib
import re
import sys

# What makes a point, and what files that leave a column out mean. A name: as in that column.
POINT = {
    "case": "", "direction": "fwd", "dtype": "", "head_dim": "", "head_dim_v": "head_dim", "causal": "", "batch": "",
    "seqlen": "seqlen_q", "seqlen_k": "seqlen", "heads": "", "kv_heads": "", "detail": "", "v": "rows", "scales": "",
    "two_level": "0",
}  # fmt: skip
NAMED = (*POINT, "seqlen_q", "kind", "point")  # what tells a reader which point it is
LEAST_PROCESSES = 3
MEDIAN, LEAST = r"median_(ms|us)|(\w+_)?tflops|gbytes_s|\w+_ratio|spread|reps", ("min_ms", "min_us", "checked")


class MergeError(Exception):
    pass


def point_of(row):
    cells = {name: str(value) for name, value in row.items()}
    return tuple(cells.get(name) or cells.get(otherwise) or otherwise for name, otherwise in POINT.items())


def label(row):
    return " ".join(f"{name} {value}" for name, value in row.items() if value and name in NAMED)


def measured(rows):
    """The names that have figures in a point's rows: one of each name, or one with columns for all."""
    columns = {name[: -len("_tflops")] for row in rows for name in row if name.endswith("_tflops") and row[name]}
    return columns | {row["peer"] for row in rows if "peer" in row}


def read(path):
    """The columns, and {point: its rows}."""
    try:
        with open(path, newline="") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MergeError(f"{path}: {error}") from error
    if missing := [name for name in ("dtype", "head_dim", "causal", "batch", "heads") if name not in columns]:
        raise MergeError(f"{path}: no column {', '.join(missing)}")
    points = {}
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise MergeError(f"{path}: line {line} has another number of cells than there are columns")
        points.setdefault(point_of(row), []).append(row)
    for rows in points.values():
        names = [row.get("peer") for row in rows]
        if len(set(names)) < len(names):
            raise MergeError(f"{path}: two figures of {label(rows[0])}")
    return columns, points


def merge(tables):
    """Of what read() returns: the same of all together, and what was kept in place of something newer, in words."""
    columns, points, kept = [], {}, []
    kinds = {"peer" in names for names, _ in tables}
    if len(kinds) > 1:
        raise MergeError("some files have a line for each point, others one for each point and peer")
    for names, more in tables:
        columns += [name for name in names if name not in columns]
        for point, rows in more.items():
            lost = measured(points.get(point, [])) - measured(rows)
            if lost:
                kept.append(f"{label(rows[0])}: not replaced, as there is no new figure of {', '.join(sorted(lost))}")
            else:
                points[point] = rows
    return (columns, points), kept


def together(runs):
    """Of what read() returns of each run: the same of their medians."""
    columns, points = runs[0]
    if any("processes" in names for names, _ in runs):
        raise MergeError("a run has the column processes: it is several already")
    if any(run in runs[:number] for number, run in enumerate(runs)):
        raise MergeError("two of the runs are the same")
    if any((names, list(more)) != (columns, list(points)) for names, more in runs):
        raise MergeError("the runs have not the same columns and points")
    by_peer = lambda rows: {row.get("peer"): row for row in rows}
    made = {}
    for point in points:
        each = [by_peer(more[point]) for _, more in runs]
        if any(rows.keys() != each[0].keys() for rows in each):
            raise MergeError(f"{label(points[point][0])}: the runs have not the same peers")
        made[point] = [row_of_medians([rows[peer] for rows in each]) for peer in each[0]]
    return [*columns, "processes"], made


def row_of_medians(rows):
    made = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        if name == "passes":
            made[name] = sum(map(int, cells))
        elif len(set(cells)) == 1:
            made[name] = cells[0]
        elif name == "date":
            made[name] = max(cells)
        elif name in LEAST:
            made[name] = min(cells, key=float)
        elif re.fullmatch(MEDIAN, name) and all(cells):
            made[name] = sorted(cells, key=float)[len(cells) // 2]
        else:
            raise MergeError(f"{label(rows[0])}: {name} is {' and '.join(sorted(map(repr, set(cells))))}")
    return {**made, "processes": len(rows)}


def write(path, table):
    """Whole or not at all."""
    columns, points = table
    with open(f"{path}.part", "w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        for rows in points.values():
            writer.writerows(rows)
    os.replace(f"{path}.part", path)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="a CSV; if there is one, it is the first of them")
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN", help="a CSV of peers.py")
    parser.add_argument("--processes", action="store_true", help="take the medians of the RUNs")
    options = parser.parse_args(arguments)
    if options.processes and (len(options.runs) < LEAST_PROCESSES or len(options.runs) % 2 == 0):
        parser.error(f"--processes needs an odd number of RUNs, at least {LEAST_PROCESSES}")
    try:
        runs = [read(path) for path in options.runs]
        before = [read(options.out)] if options.out.exists() else []
        table, kept = merge([*before, *([together(runs)] if options.processes else runs)])
    except MergeError as error:
        print(f"peers_merge.py: {error}", file=sys.stderr)
        return 2
    write(options.out, table)
    print(f"{options.out}: {len(table[1])} points")
    print("\n".join(kept), end="\n" if kept else "")
    return 1 if kept else 0


if __name__ == "__main__":
    sys.exit(main())
