"""tools/examples/context_parallel.c: without GPUs it says so and ends with 77; by the reference its ranks have the
results of one, also where heads are grouped; wrong arguments are named. Argument: the program, in a build folder."""

import os
import re
import subprocess
import sys

PROGRAM = sys.argv[1]


def run(*arguments, **environment):
    done = subprocess.run([PROGRAM, *arguments], env={**os.environ, **environment}, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def main():
    status, output, errors = run("--seqlen", "4096", CUDA_VISIBLE_DEVICES="")
    assert status == 77 and not output, (status, output, errors)
    assert re.fullmatch(r"context_parallel: .*(libcuda\.so\.1|GPU).*; --cpu needs no GPU\n", errors), errors
    small = "--cpu --seqlen 96 --heads 4 --heads-kv 2 --head-dim 32 --repeats 1".split()
    for ranks in ("1", "2", "3", "8"):
        status, output, errors = run(*small, "--ranks", ranks)
        assert status == 0, (ranks, status, output, errors)
        # The reference computes each row alike, on the same keys in the same order.
        assert f"\n{ranks} ranks: " in output and "\nlargest difference: 0.0e+00\n" in output, output
    for arguments, message in (
        (["--ranks", "5"], "--seqlen must be a multiple of two times the ranks"),
        (["--ranks", "0"], "--ranks must be from 1 to 16777216"),
        (["--ranks", "two"], "--ranks must be from 1 to 16777216"),
        (["--ranks"], "--ranks needs a number"),
        (["--gpus", "2"], "--gpus is no argument of it"),
    ):
        status, output, errors = run(*small, *arguments)
        assert (status, output, errors) == (2, "", f"context_parallel: {message}\n"), (arguments, status, errors)
    # The library refuses a head dimension, and the program hands its words on.
    status, output, errors = run(*small, "--head-dim", "12")
    assert status == 1 and errors.startswith("context_parallel: fa3_reference_forward: "), (status, errors)
    print("no GPU, ranks by the reference, wrong arguments")


if __name__ == "__main__":
    main()
