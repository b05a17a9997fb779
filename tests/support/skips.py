#!/usr/bin/env python3
"""What was skipped in a run of the tests, and why: from what each test printed, in Meson's testlog.json.

usage: skips.py TESTLOG.JSON

A test that skips all or a part of it prints a line `SKIPPED: reason`; one of Catch2 does so in its own form.
"""
import collections
import json
import re
import sys

# Catch2 breaks the reason into indented lines.
REASON = re.compile(r"^SKIPPED: (.+)$|: SKIPPED:\nexplicitly with message:\n((?:  .*\n)+)", re.M)


def reasons(output):
    """Each reason, and how often it was given."""
    return collections.Counter(" ".join((found[1] or found[2]).split()) for found in REASON.finditer(output))


def skips(log):
    """What was skipped for each reason."""
    found = {}
    for line in log:
        test = json.loads(line)
        output = (test.get("stdout") or "") + (test.get("stderr") or "")
        whole = test["result"] == "SKIP"
        given = reasons(output)
        if whole and not given:
            given = {" ".join(output.split()) or "it does not say why": 1}
        for reason, times in given.items():
            name = test["name"].split(" / ")[-1].split(":")[-1]  # without project and suite
            what = name if whole else f"a part of {name}"
            found.setdefault(reason, []).append(what + (f" ({times} cases)" if times > 1 else ""))
    return found


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as log:
        found = skips(log)
    print("\nSkipped, and why:" if found else "\nNothing was skipped.")
    for reason, tests in sorted(found.items()):
        print(f"  {', '.join(tests)}: {reason}")


if __name__ == "__main__":
    main()
