"""The record of the last GPU run, h200.json: what it must say, and whether it is about these sources.

Machines without a GPU cannot run the kernels, so the record is committed, with a hash of everything the kernels and
their launch are made of. As a script (a test of the suite), fails if the record is missing, stale or not clean.
"""

import hashlib
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("include", "ptx", "src")
RECORD = pathlib.Path(__file__).resolve().parent / "h200.json"
RENEW = "run tests/gpu/run on a machine with a Hopper GPU and commit tests/results/h200.json"


def source_hash(root=ROOT):
    """SHA-256 over the sorted paths and contents of the GPU-relevant sources."""
    digest = hashlib.sha256()
    for path in sorted(
        file.relative_to(root).as_posix() for top in SOURCES for file in (root / top).rglob("*") if file.is_file()
    ):
        if "__pycache__" in path:
            continue
        content = (root / path).read_bytes()
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def complaints(record, current_hash):
    """What is wrong with a record, in words; empty if it is good."""
    found = []
    if record.get("source_hash") != current_hash:
        found.append(f"it is about other sources: {record.get('source_hash')}, these are {current_hash}")
    if record.get("card", "unknown") == "unknown":
        found.append("nvidia-smi named no card")
    suite = record.get("suite")
    if not suite:
        found.append("the suite was not run")
    else:
        if suite["failed"] or suite["exit_status"]:
            found.append(
                f"{suite['failed']} cases failed, exit status {suite['exit_status']}: {', '.join(suite['failures'])}"
            )
        if suite["skipped"]:
            found.append(f"{suite['skipped']} test cases were skipped")
        if not suite["passed"]:
            found.append("no test case passed")
    for tool in ("memcheck", "racecheck", "synccheck"):
        outcome = record.get("sanitizer", {}).get(tool, "not run")
        if outcome != "clean":
            found.append(f"compute-sanitizer {tool}: {outcome}")
    stress = record.get("stress")
    if not stress or not stress["passed"]:
        found.append("the stress failed" if stress else "the stress was not run")
    overhead = record.get("host_overhead_us")
    if not overhead:
        found.append("the host overhead was not measured")
    return found


def main():
    if not RECORD.exists():
        sys.exit(f"No GPU run is recorded for these sources: {RENEW}.")
    record = json.loads(RECORD.read_text())
    found = complaints(record, source_hash())
    print(f"Recorded GPU run: {record.get('date')}, {record.get('card')}, driver {record.get('driver')}")
    if found:
        sys.exit("\n".join(["The record is not good:"] + ["  " + text for text in found] + [f"To renew it, {RENEW}."]))
    suite = record["suite"]
    print(
        f"{suite['passed']} test cases passed, sanitizers clean, {record['stress']['seconds']} s of stress, "
        f"host overhead {record['host_overhead_us']['median']:.2f} us; about these sources."
    )


if __name__ == "__main__":
    main()
