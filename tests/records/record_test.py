"""The rules of the GPU record: failure, gap and staleness are told apart, only a full clean record is silent, and any
card's stands for the sources. And the folders of the cards: what lies in one names that card."""

import copy
import csv
import json
import pathlib
import tempfile
import unittest

import card
import record

GOOD = {
    "source_hash": "now",
    "card": "NVIDIA H200",
    "suite": {"exit_status": 0, "passed": 3, "failed": 0, "skipped": 0, "failures": []},
    "allocator": {"exit_status": 0, "passed": 2, "failed": 0, "skipped": 0, "failures": []},
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
            ({"allocator": {**GOOD["allocator"], "failed": 1, "failures": ["a case"]}}, "driver's pool"),
            ({"sanitizer": {**GOOD["sanitizer"], "racecheck": "exit status 99"}}, "racecheck"),
            ({"stress": {"seconds": 60, "passed": False}}, "stress"),
        ):
            found = record.failures(self.changed(**changes))
            self.assertEqual(len(found), 1)
            self.assertIn(word, found[0])

    def test_gaps(self):
        self.assertIn("other sources", record.gaps(GOOD, "later")[0])
        for part in ("card", "suite", "allocator", "sanitizer", "stress", "host_overhead_us"):
            partial = {key: value for key, value in GOOD.items() if key != part}
            self.assertTrue(record.gaps(partial, "now"), part)
            self.assertEqual(record.failures(partial), [])
        skipped = self.changed(suite={**GOOD["suite"], "skipped": 2})
        self.assertIn("2 test cases were skipped", record.gaps(skipped, "now"))
        cut = self.changed(suite={**GOOD["suite"], "not_run": ["a case", "another"]})
        self.assertEqual(record.gaps(cut, "now"), ["2 test cases did not run: a case, another"])

    def test_verdict(self):
        """Of several cards' records."""
        failed = self.changed(card="NVIDIA H100 80GB HBM3", stress={"seconds": 60, "passed": False})
        stale, partial = self.changed(source_hash="before"), self.changed(suite={})
        for records, status, words in (
            ([GOOD], 0, ["NVIDIA H200", "3 test cases passed"]),
            ([stale, GOOD], 0, ["3 test cases passed"]),
            ([GOOD, stale], 0, ["3 test cases passed"]),
            ([partial, GOOD], 0, ["3 test cases passed"]),
            ([GOOD, failed], 1, ["NVIDIA H100 80GB HBM3", "the stress failed"]),
            ([failed, GOOD], 1, ["the stress failed"]),
            ([stale, partial], 77, ["other sources: before", "the suite was not run"]),
            ([self.changed(source_hash="before", stress=failed["stress"])], 77, ["other sources"]),
            ([], 77, ["there is none"]),
        ):
            found, text = record.verdict(records, "now")
            self.assertEqual(found, status, text)
            for word in words:
                self.assertIn(word, text)

    def test_folders(self):
        for name, folder in (
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H200", "h200"),
            ("NVIDIA H100 PCIe", "h100-pcie"),
            ("NVIDIA GH200 480GB", "gh200-480gb"),
            ("../A card", "a-card"),
            ("unknown", "unknown"),
            ("", "unknown"),
        ):
            self.assertEqual(card.folder(name), folder)

    def test_committed(self):
        """Each file in the folder of a card says that it is of this card."""
        for path in sorted(card.RESULTS.glob("*/gpu.json")):
            named = json.loads(path.read_text())
            self.assertEqual(card.folder(named["card"]), path.parent.name, path)
            self.assertTrue(named["date"] and named["driver"] not in ("", "unknown"), path)
        for path in sorted(card.RESULTS.glob("*/*.csv")):
            with open(path, newline="") as file:
                rows = list(csv.DictReader(file))
            named = {card.folder(row["card"]) for row in rows if "card" in row}
            self.assertEqual(named, {path.parent.name}, path)

    def test_hash(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            header = ("enum a {\n  A = 1\n};\ntypedef struct b {\n  int c;\n  int d;\n} b;\n"
                      "FA3_API int f(int g, float h);\n")  # fmt: skip
            files = {"include/fa3.h": header, "src/a.cpp": '#include "fa3.h"\nint b;\n', "ptx/a.h": "int c;\n",
                     "ptx/table/kernels.lock": "0 a\n"}  # fmt: skip

            def write(path, text):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)

            for path, text in files.items():
                write(path, text)
            first = record.source_hash(root)
            for path in ("README.md", "ptx/README.md", "ptx/a.cu", "ptx/a.contract", "src/meson.build", "tests/a.cpp"):
                write(path, "nothing that a launch is made of")
            (root / "ptx/a.h").rename(root / "ptx/b.h")
            write("src/a.cpp", '// A comment.\n#include "deeper/fa3.h"\n\nint b;  // another\n')
            write("include/fa3.h", "/* A comment. */\n" + header.replace("A = 1", "A = 1 /* another */"))
            self.assertEqual(record.source_hash(root), first)
            for path, old, new in (
                ("include/fa3.h", "A = 1", "A = 2"),
                ("include/fa3.h", "FA3_API", "enum i {\n  I = 2\n};\nFA3_API"),
                ("include/fa3.h", "int c;\n  int d;", "int d;\n  int c;"),
                ("include/fa3.h", "float h", "double h"),
                ("src/a.cpp", "int b", "int more, b"),
                ("ptx/b.h", "int c", "int more, c"),
                ("ptx/table/kernels.lock", "0", "1"),
            ):
                text = (root / path).read_text()
                write(path, text.replace(old, new))
                self.assertNotEqual(record.source_hash(root), first, (path, new))
                write(path, text)
            self.assertEqual(record.source_hash(root), first)


if __name__ == "__main__":
    unittest.main()
