"""The record of the last run of the GPU tests, one for each card (h200/gpu.json): what it must say, and whether it is
about these sources.

Machines without a GPU cannot run the kernels, so the records are committed, with a hash of the kernels' machine code and
of the sources of their launch. As a script (a test of the suite): fails (1) if any record shows a failure of these sources;
else passes if one of them is about these sources, complete and clean; is skipped (77), with the reasons, if all are
stale or incomplete, which says nothing about the sources but that no GPU has run them yet.
"""

import hashlib
import json
import pathlib
import re
import sys

import card

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "languages"))
import declarations  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("ptx", "src")
RENEW = "run tests/gpu/run on a machine with a Hopper GPU and commit what it writes"


def source_hash(root=ROOT):
    """SHA-256 over what runs on a GPU or launches it: the lock of the kernels, which stands for their machine code, what
    the public header declares, and the code of src and of the headers in ptx that the host shares. Neither where a file
    lies nor what it includes counts, so that files can move; nor does a comment, nor prose, nor a line of the build."""
    public = declarations.read((root / "include/fa3.h").read_text())
    digests = [str((public.enums, public.structs, public.functions))]
    for path in (file for top in SOURCES for file in (root / top).rglob("*") if file.is_file()):
        shared = path.name == "kernels.lock" or path.suffix in (".h", ".def")
        if (shared or "ptx" not in path.relative_to(root).parts) and path.suffix not in (".md", ".build"):
            code = re.sub(r"//.*|^#include \".*", "", path.read_text(), flags=re.MULTILINE)
            digests.append(hashlib.sha256(" ".join(code.split()).encode()).hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def failures(record):
    """What went wrong in the recorded run, in words; empty if nothing did."""
    found = []
    for part, where in (("suite", ""), ("allocator", " on memory of the driver's pool")):
        suite = record.get(part)
        if suite and (suite["failed"] or suite["exit_status"]):
            found.append(
                f"{suite['failed']} cases failed{where}, exit status {suite['exit_status']}: {', '.join(suite['failures'])}"
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
    elif suite.get("not_run"):
        found.append(f"{len(suite['not_run'])} test cases did not run: {', '.join(suite['not_run'])}")
    if not record.get("allocator", {}).get("passed"):
        found.append("the suite was not run on memory of the driver's pool")
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


def title(record):
    return f"{record.get('card')}, {record.get('date')}, driver {record.get('driver')}"


def success(record):
    suite = record["suite"]
    again = f" ({len(suite['again'])} of them again: the test was mended, or another case had ended their process)" if suite.get("again") else ""
    return (
        f"{suite['passed']} test cases passed{again}, sanitizers clean, {record['stress']['seconds']} s of stress, "
        f"host overhead {record['host_overhead_us']['median']:.2f} us; about these sources"
    )


def verdict(records, current_hash):
    """Of all cards' records: the exit status, and what it says."""
    current = [record for record in records if record.get("source_hash") == current_hash]
    if failed := [record for record in current if failures(record)]:
        lines = [f"  {title(record)}: {text}" for record in failed for text in failures(record)]
        return 1, "\n".join(["THESE SOURCES FAILED ON THE GPU:", *lines])
    if clean := [record for record in current if not gaps(record, current_hash)]:
        return 0, "\n".join(f"{title(record)}: {success(record)}." for record in clean)
    lines = [f"  {title(record)}: {text}" for record in records for text in gaps(record, current_hash)]
    why = lines or ["  there is none"]
    headline = "SKIPPED: not verified on a GPU, as no card's record stands for these sources:"
    return 77, "\n".join([headline, *why, f"To renew one, {RENEW}."])


def main():
    records = [json.loads(path.read_text()) for path in sorted(card.RESULTS.glob("*/gpu.json"))]
    status, text = verdict(records, source_hash())
    print(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
