#!/usr/bin/env python3
"""Which figures of which kernels differ between two builds of the library: what the machine code of a changed kernel
does otherwise, as the lock of the kernels says only that it is another one. Figures are those of `fa3-sass list --json`.
"""
import argparse
import collections
import json
import subprocess

from patterns import Patterns


def figures(kernel):
    """{subject, as a contract's rule names it: value}. Of a figure in which loops of one role differ, all values."""
    found = {f"kernel.{figure}": str(value) for figure, value in kernel["figures"].items()}
    for scope, values in kernel["scopes"].items():
        found.update({f"{scope}.{figure}": str(value) for figure, value in values.items()})
    loops = collections.defaultdict(list)
    for loop in kernel["loops"]:
        for figure, value in loop["figures"].items():
            loops[f"{'hot' if loop['hot'] else 'boundary'}[{loop['role']}].{figure}"].append(str(value))
    return found | {subject: " or ".join(sorted(set(values))) for subject, values in loops.items()}


def listed(tool, library):
    """{kernel's name: its figures}"""
    text = subprocess.run([tool, "list", "--json", library], check=True, stdout=subprocess.PIPE).stdout
    return {kernel["name"]: figures(kernel) for kernel in json.loads(text)["kernels"]}


def changes(before, after):
    """A line for each figure that is another one, with the kernels it is another one for."""
    moved = collections.defaultdict(set)
    for name in before.keys() | after.keys():
        if name not in before or name not in after:
            moved["kernel", *(("absent", "new") if name in after else ("there", "gone"))].add(name)
            continue
        for subject in before[name].keys() | after[name].keys():
            old, new = before[name].get(subject, "none"), after[name].get(subject, "none")
            if old != new:
                moved[subject, old, new].add(name)
    patterns = Patterns(sorted(before.keys() | after.keys()))
    return [f"{subject}: {old} -> {new}  ({' '.join(patterns.of(frozenset(names)))})"
            for (subject, old, new), names in sorted(moved.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", metavar="fa3-sass")
    parser.add_argument("before", help="a library, such as one of a kept build")
    parser.add_argument("after")
    options = parser.parse_args()
    print(*changes(listed(options.tool, options.before), listed(options.tool, options.after)), sep="\n")


if __name__ == "__main__":
    main()
