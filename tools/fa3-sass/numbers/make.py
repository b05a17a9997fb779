#!/usr/bin/env python3
"""Writes the machine-made part of the contracts, ptx/kernels/*.contract, anew from the machine code of a library, and
prints which numbers have changed for which kernels. With --check it writes nothing, and fails if it would."""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

import contracts
import figures
from patterns import Patterns

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools/build"))
import rows  # noqa: E402


def records_of(tool, library, table):
    """What `list --json` says of each row of the table."""
    listed = subprocess.run([tool, "list", "--json", library], check=True, stdout=subprocess.PIPE).stdout
    records = {record["name"]: record for record in json.loads(listed)["kernels"]}
    missing = [row.name for row in table if row.name not in records]
    if missing:
        sys.exit(f"{library}: no kernel {missing[0]}: all rows of the table must be there ({len(missing)} are missing)")
    return records


def values_of(kernel_rows, records, subjects, by_hand):
    """Of each row its figures as rules state them, but for those that the part written by hand fixes."""
    values = {row.name: {} for row in kernel_rows}
    for row in kernel_rows:
        for subject, (scope, role, figure) in subjects.items():
            value = figures.value_of(records[row.name], scope, role, figure)
            if value is not None and figures.is_fixed(row, scope, figure) and subject not in by_hand[row.name]:
                values[row.name][subject] = value
    return values


def changes(before, after, patterns):
    """A line for each number that is another one, with the rows it is another one for."""
    moved = collections.defaultdict(set)
    for name in after:
        for subject in sorted({*before[name], *after[name]}):
            old, new = before[name].get(subject), after[name].get(subject)
            if old != new:
                moved[subject, old or "no rule", new or "no rule"].add(name)
    return [f"{subject}: {old} -> {new}  ({' '.join(patterns.of(frozenset(names)))})"
            for (subject, old, new), names in moved.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if numbers have changed")
    parser.add_argument("--contracts", type=pathlib.Path, default=ROOT / "ptx/kernels", help="their folder")
    parser.add_argument("tool", metavar="fa3-sass")
    parser.add_argument("library")
    options = parser.parse_args()
    table = rows.rows((ROOT / "ptx/rows.def").read_text())
    records = records_of(options.tool, options.library, table)
    patterns = Patterns([row.name for row in table])
    stale = []
    for kernel in dict.fromkeys(row.kernel for row in table):
        kernel_rows = [row for row in table if row.kernel == kernel]
        names = [row.name for row in kernel_rows]
        path = contracts.path_of(options.contracts, kernel)
        text = path.read_text()
        by_hand, by_machine = contracts.split(text)
        hand_written = (options.contracts / f"{kernel}.contract").read_text()
        fixed = contracts.fixed(contracts.split(hand_written)[0], names)
        subjects = figures.subjects([records[name] for name in names])
        values = values_of(kernel_rows, records, subjects, fixed)
        written = contracts.sections(values, subjects, patterns)
        if written == by_machine:
            continue
        stale.append(path.name)
        print(f"{path.name}:")
        for line in changes(contracts.fixed(by_machine, names), values, patterns) or ["the same numbers, other lines"]:
            print(f"  {line}")
        if not options.check:
            separator = "" if not by_hand or by_hand.endswith("\n\n") else "\n"
            path.write_text(by_hand + separator + contracts.MARK + written)
    if options.check and stale:
        sys.exit(f"{', '.join(stale)}: not what the machine code is; `meson compile -C build sass-numbers` writes them")


if __name__ == "__main__":
    main()
