"""The record of the last GPU run, h200.json: what it must say, and whether it is about these sources.

Machines without a GPU cannot run the kernels, so the record is committed, with a hash of everything the kernels and
their launch are made of. As a script (a test of the suite): passes if the record is about these sources, complete and
clean; fails (1) if it shows a failure of these sources; is skipped (77), with the reason, if it is stale or incomplete,
which says nothing about the sources but that no GPU has run them yet.
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
    """SHA-256 over the sorted paths and contents of the GPU-relevant sources; prose beside them is none."""
    digest = hashlib.sha256()
    for path in sorted(
        file.relative_to(root).as_posix() for top in SOURCES for file in (root / top).rglob("*") if file.is_file()
    ):
        if "__pycache__" in path or path.endswith(".md"):
            continue
        content = (root / path).read_bytes()
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def failures(record):
    """What went wrong in the recorded run, in words; empty if nothing did."""
    found = []
    suite = record.get("suite")
    if suite and (suite["failed"] or suite["exit_status"]):
        found.append(
            f"{suite['failed']} cases failed, exit status {suite['exit_status']}: {', '.join(suite['failures'])}"
        )
    for tool, outcome in record.get("sanitizer", {}).items():
        if outcome != "clean":
            found.append(f"compute-sanitizer {tool}: {outcome}")
    if record.get("stress") and not record["stress"]["passed"]:
        found.append("the stress failed")
    return found


def gaps(record, current_hash):
    """Why the record does not stand for these sources, in words; empty if it does."""
    found = []
    if record.get("source_hash") != current_hash:
        found.append(f"it is about other sources: {record.get('source_hash')}, these are {current_hash}")
    if record.get("card", "unknown") == "unknown":
        found.append("nvidia-smi named no card")
    suite = record.get("suite", {})
    if not suite.get("passed"):
        found.append("the suite was not run")
    elif suite["skipped"]:
        found.append(f"{suite['skipped']} test cases were skipped")
    for tool in ("memcheck", "racecheck", "synccheck"):
        if tool not in record.get("sanitizer", {}):
            found.append(f"compute-sanitizer {tool} was not run")
    if not record.get("stress"):
        found.append("the stress was not run")
    if not record.get("host_overhead_us"):
        found.append("the host overhead was not measured")
    return found


def complaints(record, current_hash):
    return failures(record) + gaps(record, current_hash)


def main():
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    print(f"Recorded GPU run: {record.get('date')}, {record.get('card')}, driver {record.get('driver')}")
    current = source_hash()
    stale = record.get("source_hash") != current
    wrong, missing = failures(record), gaps(record, current)
    if wrong and not stale:
        sys.exit("\n".join(["THESE SOURCES FAILED ON THE GPU:"] + ["  " + text for text in wrong]))
    if missing:
        print("NOT VERIFIED ON A GPU: the record does not stand for these sources:")
        print("\n".join("  " + text for text in missing))
        print(f"To renew it, {RENEW}.")
        sys.exit(77)
    suite = record["suite"]
    again = f" ({len(suite['again'])} of them again, with the test mended)" if suite.get("again") else ""
    print(
        f"{suite['passed']} test cases passed{again}, sanitizers clean, {record['stress']['seconds']} s of stress, "
        f"host overhead {record['host_overhead_us']['median']:.2f} us; about these sources."
    )


if __name__ == "__main__":
    main()
