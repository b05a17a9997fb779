#!/usr/bin/env python3
"""One version everywhere: the header's is that of fa3.__version__, CITATION.cff, conda's recipe and the top of
CHANGELOG.md, whose dates are those of git's tags.

usage: versions_test.py
"""
import re
import sys

from packages import ROOT, need, run

sys.path.append(str(ROOT / "tools/python"))
import fa3  # noqa: E402

HEADING = re.compile(r"^## (\d+\.\d+\.\d+), (\d{4}-\d\d-\d\d|not released yet)(?: \(ABI (\d+)\))?$", re.M)


def check_changes(text, version, abi, tags):
    """tags: {version: date of its commit}. Returns complaints."""
    found = HEADING.findall(text)
    if len(found) != text.count("\n## "):
        return ["CHANGELOG.md has a heading that is not '## VERSION, DATE'"]
    complaints = [] if found[0][0] == version and found[0][2] == abi else [f"its first heading is {found[0]}"]
    numbers = [tuple(map(int, number.split("."))) for number, *_ in found]
    dates = [date for _, date, _ in found]
    if numbers != sorted(numbers, reverse=True) or dates[1:] != sorted(dates[1:], reverse=True):
        complaints.append("versions or dates are not in order")
    complaints += [f"{number} is not released, though a later one is" for number, date, _ in found[1:] if " " in date]
    dated = {number: date for number, date, _ in found if " " not in date}
    complaints += [f"{number} is dated {date}, its tag {tags.get(number)}" for number, date in dated.items()
                   if tags and tags.get(number) != date]
    return complaints + [f"tag v{number} has no dated heading" for number in tags if number not in dated]


def main():
    version, abi = (run(ROOT / "tools/build/version", *which).strip() for which in ([], ["abi"]))
    for place, found in (
            ("fa3.__version__", fa3.__version__),
            ("CITATION.cff", re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]),
            ("conda's recipe", re.search(r'^  version: "(.*)"$',
                                         (ROOT / "tools/packaging/conda/recipe.yaml").read_text(), re.M)[1])):
        need(found == version, f"{place} is {found}, fa3.h's version {version}")
    listed = run("git", "-C", ROOT, "tag", "--list", "v*",
                 "--format=%(refname:strip=2) %(committerdate:short)%(*committerdate:short)")
    tags = {line.split()[0][1:]: line.split()[1] for line in listed.splitlines()}
    if not tags:
        print("SKIPPED: the dates of tags: this clone has none")
    changes = (ROOT / "CHANGELOG.md").read_text()
    complaints = check_changes(changes, version, abi, tags)
    need(not complaints, f"CHANGELOG.md: {'; '.join(complaints)}")

    dates = {number: date for number, date, _ in HEADING.findall(changes) if " " not in date}
    last = next(iter(dates))
    for wrong, found in (({**dates, last: "2020-01-01"}, f"{last} is dated"),
                         ({**dates, "9.0.0": "2026-01-01"}, "tag v9")):
        need(any(complaint.startswith(found) for complaint in check_changes(changes, version, abi, wrong)),
             f"not found: {found}")
    need(check_changes(changes, "9.9.9", abi, {}), "another version is not found")


main()
