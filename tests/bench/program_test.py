"""fa3-bench as a program: its version, and its exit status where nothing is measured. Argument: the program."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def main(program):
    version = subprocess.run([ROOT / "tools/build/version"], stdout=subprocess.PIPE, check=True, text=True).stdout
    assert run(program, "--version") == (0, f"fa3-bench {version}", "")
    status, text, _ = run(program, "--help")
    assert status == 0 and text.startswith("fa3-bench: times") and "--version" in text, text
    # One point that the library runs is enough.
    for head_dims, expected, refusals in (("64", 0, 0), ("64,1000", 0, 1), ("1000", 1, 1), ("584,1000", 1, 2)):
        status, text, errors = run(program, "--plan", "--head-dim", head_dims, "--causal", "0", "--seqlen", "512")
        assert (status, text.count("the library refuses it: q.dim[3]"), errors) == (expected, refusals, ""), text
    # Packed sequences.
    packed = "--plan", "--pieces", "--causal", "1", "--lengths"
    status, text, errors = run(program, *packed, "17,4096,300", "--head-dim", "128")
    assert (status, errors) == (0, ""), errors
    assert "lengths 17,4096,300 heads" in text and "    sequence 1, query block 20, blocks 0 to 63\n" in text, text
    for lengths in (["17,x"], ["17,300", "--lengths-k", "5"], ["17", "--seqlen", "17"]):
        status, text, errors = run(program, *packed, *lengths)
        assert (status, text) == (2, "") and errors.startswith("fa3-bench: --"), errors
    status, text, _ = run(program, *packed, "17,300", "--head-dim", "1000")
    assert status == 1 and "the library refuses it: q.dim[2]" in text, text


if __name__ == "__main__":
    main(sys.argv[1])
