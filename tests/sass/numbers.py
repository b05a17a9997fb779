#!/usr/bin/env python3
"""The machine-made part of the contracts (tools/fa3-sass/numbers): it is what the library's machine code gives; what
has changed is named; what is written says of each row what was measured; and the part written by hand stays."""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tools/fa3-sass/numbers"
sys.path[:0] = [str(FOLDER), str(ROOT / "tools/build")]
import contracts  # noqa: E402
import rows  # noqa: E402
from patterns import Patterns  # noqa: E402


class Trial:
    """A copy of the contracts, and a fa3-sass that lists these records."""

    def __init__(self, folder, records):
        folder.mkdir()
        self.contracts = folder / "contracts"
        shutil.copytree(ROOT / "ptx/kernels", self.contracts)
        self.listed = folder / "listed.json"
        self.listed.write_text(json.dumps({"kernels": records}))
        self.tool = folder / "fa3-sass"
        self.tool.write_text(f"#!/bin/sh\ncat {self.listed}\n")
        self.tool.chmod(0o755)

    def run(self, *options):
        command = [sys.executable, "-B", FOLDER / "make.py", *options, "--contracts", self.contracts, self.tool, "file"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def texts(self):
        return {path.name: path.read_text() for path in sorted(self.contracts.iterdir())
                if path.suffix == ".contract"}


def check_committed(trial):
    before = trial.texts()
    status, said = trial.run("--check")
    assert status == 0 and not said, f"the committed numbers are not those of the machine code:\n{said}"
    assert trial.run() == (0, "") and trial.texts() == before, "writing what is there already changes it"


def check_spoilt_contract(trial):
    before = trial.texts()
    name = "fwd.numbers.contract"
    spoilt = before[name].replace("kernel.descriptors == 40000040\n", "kernel.descriptors == 40000041\n", 1)
    assert spoilt != before[name]
    (trial.contracts / name).write_text(spoilt)
    status, said = trial.run("--check")
    assert status == 1 and "kernel.descriptors: 40000041 -> 40000040" in said and name in said, said
    assert trial.texts()[name] == spoilt, "--check has written"
    assert trial.run()[0] == 0 and trial.texts() == before, "the numbers are not written back"


def check_changed_code(folder, records, table):
    """Figures of some rows change: exactly these are named, and exactly these get another value."""
    changed = {row.name for row in random.sample([row for row in table if row.kernel == "fwd"], 5)}
    moved = json.loads(json.dumps(records))
    for record in moved:
        if record["name"] in changed:
            record["scopes"]["epilogue"]["multiplies"] += 1000
    trial = Trial(folder, moved)
    before = trial.texts()
    status, said = trial.run()
    assert status == 0 and before != trial.texts()
    lines = [line for line in said.split("\n") if " -> " in line]
    assert lines and all(line.startswith("  epilogue.multiplies: ") for line in lines), said
    names = [row.name for row in table if row.kernel == "fwd"]
    path = "fwd.numbers.contract"
    old, new = (contracts.fixed(contracts.split(text[path])[1], names) for text in (before, trial.texts()))
    for name in names:
        by = 1000 if name in changed else 0
        expected = dict(old[name], **{"epilogue.multiplies": str(int(old[name]["epilogue.multiplies"]) + by)})
        assert new[name] == expected, name
    for name, text in trial.texts().items():
        assert contracts.split(text)[0] == contracts.split(before[name])[0], f"{name}: the part written by hand"


def check_missing_row(folder, records):
    status, said = Trial(folder, records[1:]).run()
    assert status == 1 and f"no kernel {records[0]['name']}:" in said, said


def check_written_by_hand(folder, records):
    """What a rule written by hand fixes is not fixed once more."""
    trial = Trial(folder, records)
    path = trial.contracts / "tile_v.contract"
    by_hand, by_machine = contracts.split(path.read_text())
    assert "kernel.permutes" in by_machine
    path.write_text(by_hand.rstrip("\n") + "\n  kernel.permutes == 1234\n\n" + contracts.MARK + by_machine)
    assert trial.run()[0] == 0
    by_hand, by_machine = contracts.split(path.read_text())
    assert "kernel.permutes == 1234" in by_hand and "kernel.permutes" not in by_machine


def check_patterns(table):
    names = [row.name for row in table]
    patterns = Patterns(names)
    for size in (1, 2, 5, 20, 100, len(names)):
        wanted = frozenset(random.sample(names, size))
        matched = frozenset().union(*(patterns.matched(pattern) for pattern in patterns.of(wanted)))
        assert matched == wanted, sorted(matched ^ wanted)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", metavar="fa3-sass")
    parser.add_argument("library")
    options = parser.parse_args()
    seed = int(os.environ.get("FA3_SEED", random.randrange(1 << 32)))
    print(f"FA3_SEED={seed}")
    random.seed(seed)
    table = rows.rows((ROOT / "ptx/rows.def").read_text())
    command = [options.tool, "list", "--json", options.library]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    names = {row.name for row in table}
    records = [record for record in json.loads(listed)["kernels"] if record["name"] in names]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        trial = Trial(folder / "same", records)
        check_committed(trial)
        check_spoilt_contract(trial)
        check_changed_code(folder / "changed", records, table)
        check_missing_row(folder / "missing", records)
        check_written_by_hand(folder / "hand", records)
    check_patterns(table)


if __name__ == "__main__":
    main()
