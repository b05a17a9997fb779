"""What tests/gpu/run makes of a suite's reports, with a script in place of the suite: counts, what failed cases say of
themselves, cases that are run again, and where the record of a card goes."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

RUN = pathlib.Path(__file__).resolve().parent / "run"
# Each shard has a case that passes, the third one of those that are not long one that fails; by name that fails while
# the file `broken` is there, and ends its process while `aborts` is. `crash` ends without a report, `late` dies behind a good one, and `good*` are two cases.
SUITE = """#!/usr/bin/env python3
import os, pathlib, sys
selected, here = sys.argv[1], pathlib.Path(__file__).parent
if "--list-tests" in sys.argv:
    sys.exit(print("long" if selected == "[long]" else "good\\nbehind, a crash"))
if selected == "crash" or selected == "[sanitizer],[backward]~[long]" and os.environ.get("FA3_TEST_ALLOCATOR") != "async":
    sys.exit(11)
report = pathlib.Path(next(word for word in sys.argv if word.startswith("xml::out="))[9:])
third = "--shard-index 2" in " ".join(sys.argv)
fails = selected == "~[long]" and third or (selected == "case" and (here / "broken").exists())
failed = '''<TestCase name="case"><Info>
  seed=7
</Info><Expression success="false"><Expanded> "too  large" == "" </Expanded></Expression><Info>the next</Info>
<OverallResult success="false"/></TestCase>'''
report.write_text(f'''<Catch2TestRun>{failed if fails else ""}<TestCase name="good"><OverallResult success="true"/></TestCase>
<OverallResultsCases successes="{1 - fails if selected == 'case' else 1 + (selected == 'good*')}" failures="{int(fails)}" skips="0"/>
</Catch2TestRun>''')
if fails and (here / "aborts").exists():
    os.abort()
sys.exit(42 if fails else 11 if selected == "late" else 0)
"""


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        self.tests = self.build / "tests/gpu/fa3-gpu-tests"
        self.tests.parent.mkdir(parents=True)
        self.tests.write_text(SUITE)
        self.tests.chmod(0o755)
        self.name_card("NVIDIA H200")
        self.record = self.build / "results/h200/gpu.json"

    def name_card(self, name):
        """What nvidia-smi says."""
        smi = self.build / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\necho '{name}, 580.1'\n")
        smi.chmod(0o755)

    def run_it(self, *arguments):
        command = [sys.executable, "-B", RUN, "--build", self.build, "--results", self.build / "results", *arguments]
        path = f"{self.build}:{os.environ['PATH']}"
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
        return done, json.loads(self.record.read_text()) if self.record.exists() else None

    def test_suite_and_again(self):
        done, record = self.run_it("--parts", "suite", "--shards", "2")
        self.assertEqual(done.returncode, 1)
        suite = record["suite"]
        self.assertEqual((suite["passed"], suite["failed"], suite["exit_status"]), (2 * 8 + 1, 1, 42))
        self.assertEqual(suite["failures"], ['case (seed=7; "too large" == "")'])

        done, _ = self.run_it("--again", "good")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no case that failed or did not run is called good", done.stderr)

        broken = self.tests.parent / "broken"
        broken.touch()
        self.assertEqual(self.run_it("--again", "case")[1]["suite"], suite)
        broken.unlink()
        after = self.run_it("--again", "case")[1]["suite"]
        self.assertEqual((after["passed"], after["failed"], after["exit_status"]), (2 * 8 + 2, 0, 0))
        self.assertEqual((after["failures"], after["again"]), ([], ["case"]))

        self.assertEqual(after["not_run"], ["behind, a crash"])
        after = self.run_it("--again", "behind, a crash")[1]["suite"]
        self.assertEqual((after["passed"], after["not_run"]), (2 * 8 + 3, []))

    def test_some_cases_run_on_the_drivers_pool(self):
        allocator = self.run_it("--parts", "allocator", "--shards", "2")[1]["allocator"]
        self.assertEqual((allocator["passed"], allocator["failed"], allocator["exit_status"]), (2 * 4, 0, 0))

    def test_each_card_has_its_record(self):
        """One is written, the others stay as they are."""
        first = self.run_it("--parts", "suite", "--shards", "1")[1]
        for name, folder in (("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 NVL", "h100-nvl")):
            self.name_card(name)
            self.run_it("--parts", "stress")
            record = json.loads((self.build / f"results/{folder}/gpu.json").read_text())
            self.assertEqual((record["card"], record["driver"], "suite" in record), (name, "580.1", False))
            self.assertRegex(record["date"], r"^\d{4}-\d\d-\d\dT[\d:]+Z$")
            self.assertEqual(json.loads(self.record.read_text()), first)

    def test_a_case_that_ends_its_process_has_failed(self):
        (self.tests.parent / "aborts").touch()
        suite = self.run_it("--parts", "suite", "--shards", "2")[1]["suite"]
        self.assertEqual((suite["exit_status"], suite["failed"], len(suite["failures"])), (42, 1, 1))

    def test_a_crash_is_not_forgiven(self):
        _, record = self.run_it("--parts", "suite", "--shards", "1")
        record["suite"]["exit_status"] = 11
        self.record.write_text(json.dumps(record))
        self.assertEqual(self.run_it("--again", "case")[1]["suite"]["exit_status"], 11)

    def test_a_crash_and_several_cases_are_no_success(self):
        record = self.run_it("--parts", "suite", "--shards", "1")[1]
        record["suite"]["failures"] += ["crash (again)", "late (again)", "good* (again)"]
        self.record.write_text(json.dumps(record))
        for name in ("crash", "late", "good*"):
            self.assertEqual(self.run_it("--again", name)[1]["suite"], record["suite"])

    def test_racecheck_build(self):
        sanitizer = self.build / "compute-sanitizer"
        arguments = ("--parts", "sanitizer", "--tools", "racecheck", "--shards", "1", "--racecheck-build", self.build)
        for status, said in ((0, "clean"), (99, "exit status 99, 0 cases failed, 0 skipped")):
            sanitizer.write_text(f"""#!/bin/sh
for word; do [ "$word" = "[.racecheck]" ] && status={status}; done
while [ "${{1##*/}}" != fa3-gpu-tests ]; do shift; done
"$@" && exit ${{status:-0}}""")
            sanitizer.chmod(0o755)
            _, record = self.run_it(*arguments)
            self.assertEqual(record["sanitizer"], {"racecheck": "clean", "racecheck-backward": said})


if __name__ == "__main__":
    unittest.main()
