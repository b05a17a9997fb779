#!/usr/bin/env python3
"""tools/fa3-sass/changes.py: each figure that differs between two builds is named, once, with the rows it differs for.
Rows are named by patterns that match these rows of the table and no others."""
import copy
import os
import pathlib
import random
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools/fa3-sass"), str(ROOT / "tools/build")]
import changes  # noqa: E402
import rows  # noqa: E402
from patterns import Patterns  # noqa: E402

NAMES = [row.name for row in rows.rows((ROOT / "ptx/table/rows.def").read_text())]
SEED = int(os.environ.get("FA3_SEED", random.randrange(1 << 32)))


def record(adds, boundary):
    loops = [{"hot": True, "role": "QK+PV", "figures": {"adds": adds, "waits": "1 0"}},
             {"hot": False, "role": "QK+PV", "figures": {"adds": boundary}},
             {"hot": False, "role": "QK+PV", "figures": {"adds": 40}}]
    return {"figures": {"votes": "ANY"}, "scopes": {"epilogue": {"fences": 2}}, "loops": loops}


class Changes(unittest.TestCase):
    def setUp(self):
        print(f"FA3_SEED={SEED}")
        self.random = random.Random(SEED)
        self.before = {name: changes.figures(record(80, 40)) for name in NAMES}
        self.after = copy.deepcopy(self.before)

    def test_figures(self):
        self.assertEqual(changes.figures(record(80, 42)), {
            "kernel.votes": "ANY", "epilogue.fences": "2", "hot[QK+PV].adds": "80", "hot[QK+PV].waits": "1 0",
            "boundary[QK+PV].adds": "40 or 42"})

    def test_same(self):
        self.assertEqual(changes.changes(self.before, self.after), [])

    def test_each_change_is_named_for_its_rows(self):
        some, rest = (self.random.sample(NAMES, size) for size in (5, 30))
        for name in some:
            self.after[name]["hot[QK+PV].adds"] = "81"
        for name in rest:
            self.after[name]["epilogue.fences"] = "1"
            del self.after[name]["kernel.votes"]
        said = changes.changes(self.before, self.after)
        heads = ["epilogue.fences: 2 -> 1", "hot[QK+PV].adds: 80 -> 81", "kernel.votes: ANY -> none"]
        self.assertEqual([line.split("  ")[0] for line in said], heads)
        patterns = Patterns(sorted(NAMES))
        for line, names in zip(said, (rest, some, rest)):
            named = line.split("  ")[1].strip("()").split()
            self.assertEqual(frozenset().union(*map(patterns.matched, named)), set(names), line)

    def test_rows_that_are_new_or_gone(self):
        gone, new = self.random.sample(NAMES, 2)
        del self.after[gone], self.before[new]
        said = changes.changes(self.before, self.after)
        self.assertEqual(said, [f"kernel: absent -> new  ({new})", f"kernel: there -> gone  ({gone})"])

    def test_patterns(self):
        patterns = Patterns(NAMES)
        for size in (1, 2, 5, 20, 100, len(NAMES)):
            wanted = frozenset(self.random.sample(NAMES, size))
            matched = frozenset().union(*map(patterns.matched, patterns.of(wanted)))
            self.assertEqual(matched, wanted)


if __name__ == "__main__":
    unittest.main()
