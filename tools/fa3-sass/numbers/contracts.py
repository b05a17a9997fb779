"""Contracts as text (see tools/fa3-sass/contract.h): the part written by hand, and behind MARK the one made here."""
import fnmatch
import re

MARK = """\
# Hand-overs and constants as machine code has them (README of tools/fa3-sass): what a wrong count, barrier, mode
# or constant, a missing sum or a missing fence would change.
"""
WIDTH = 118


def path_of(folder, kernel):
    """The file with the machine-made part: that of numbers alone, if the contract is so long that it has one."""
    numbers = folder / f"{kernel}.numbers.contract"
    return numbers if numbers.exists() else folder / f"{kernel}.contract"


def split(text):
    """By hand, by machine."""
    at = text.find(MARK)
    return (text, "") if at < 0 else (text[:at], text[at + len(MARK):])


def fixed(text, names):
    """Of each of these rows what its rules with == say: {row: {subject: value}}. A later rule replaces an earlier."""
    values, covered = {name: {} for name in names}, []
    for line in text.split("\n"):
        line = line.split("#")[0].strip()
        if line.startswith("rows "):
            patterns = line.split()[1:]
            covered = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
        elif rule := re.fullmatch(r"([\w.+\[\]]+) == (.*)", line):
            for name in covered:
                values[name][rule[1]] = rule[2]
    return values


def sections(values, subjects, patterns):
    """The text of rules that fix these values. The value of most rows comes first, for all of them, if each row has
    one; what differs follows, with one section for all subjects that differ in the same rows."""
    names = frozenset(values)
    found = {names: []}
    for subject in subjects:
        rows_of = {}  # by value
        for name in values:
            if subject in values[name]:
                rows_of.setdefault(values[name][subject], []).append(name)
        everywhere = sum(map(len, rows_of.values())) == len(names)
        for at, (value, rows) in enumerate(sorted(rows_of.items(), key=lambda pair: (-len(pair[1]), pair[0]))):
            covered = names if everywhere and at == 0 else frozenset(rows)
            found.setdefault(covered, []).append(f"  {subject} == {value}")
    text = ""
    for rows, rules in found.items():
        lines = ["rows"]
        for pattern in patterns.of(rows):
            if len(lines[-1]) + 1 + len(pattern) > WIDTH:
                lines.append("rows")
            lines[-1] += " " + pattern
        text += "".join("\n".join([line, *rules]) + "\n" for line in lines if rules)
    return text
