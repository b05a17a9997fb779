"""The rules of the GPU record: failure, gap and staleness are told apart, and only a full clean record is silent."""

import copy
import pathlib
import tempfile
import unittest

import record

GOOD = {
    "source_hash": "now",
    "card": "NVIDIA H200",
    "suite": {"exit_status": 0, "passed": 3, "failed": 0, "skipped": 0, "failures": []},
    "sanitizer": {"memcheck": "clean", "racecheck": "clean", "synccheck": "clean"},
    "stress": {"seconds": 60, "passed": True},
    "host_overhead_us": {"median": 3.0},
}


class Record(unittest.TestCase):
    def changed(self, **changes):
        return {**copy.deepcopy(GOOD), **changes}

    def test_good(self):
        self.assertEqual(record.complaints(GOOD, "now"), [])

    def test_failures(self):
        for changes, word in (
            ({"suite": {**GOOD["suite"], "failed": 1, "failures": ["a case"]}}, "a case"),
            ({"suite": {**GOOD["suite"], "exit_status": 11}}, "exit status 11"),
            ({"sanitizer": {**GOOD["sanitizer"], "racecheck": "exit status 99"}}, "racecheck"),
            ({"stress": {"seconds": 60, "passed": False}}, "stress"),
        ):
            found = record.failures(self.changed(**changes))
            self.assertEqual(len(found), 1)
            self.assertIn(word, found[0])

    def test_gaps(self):
        self.assertIn("other sources", record.gaps(GOOD, "later")[0])
        for part in ("card", "suite", "sanitizer", "stress", "host_overhead_us"):
            partial = {key: value for key, value in GOOD.items() if key != part}
            self.assertTrue(record.gaps(partial, "now"), part)
            self.assertEqual(record.failures(partial), [])
        skipped = self.changed(suite={**GOOD["suite"], "skipped": 2})
        self.assertIn("2 test cases were skipped", record.gaps(skipped, "now"))

    def test_hash(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for top in record.SOURCES:
                (root / top).mkdir()
                (root / top / "a").write_text(top)
            first = record.source_hash(root)
            (root / "README.md").write_text("no source")
            (root / "ptx/README.md").write_text("no source")
            self.assertEqual(record.source_hash(root), first)
            (root / "ptx/a").write_text("changed")
            second = record.source_hash(root)
            self.assertNotEqual(second, first)
            (root / "ptx/a").rename(root / "ptx/b")
            self.assertNotEqual(record.source_hash(root), second)


if __name__ == "__main__":
    unittest.main()
