"""train.py without a GPU: what its command line refuses, and the shortest run, on the library's CPU reference.
Arguments: the script, the library. Skipped without torch and transformers."""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from support import need  # noqa: E402

need("torch", "transformers")
script, library = sys.argv[1:]
SHORTEST = f"--cpu --library {library} --parts run --gpt 1 2 1 16 16 2 --steps 20".split()


def run(*words):
    """Exit status, output and errors."""
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True)
    print(done.stdout)
    return done.returncode, done.stdout, done.stderr


def main():
    status, printed, errors = run(*SHORTEST)
    # It ends with a verdict: as close to float32 as it must be, but in 20 steps nothing has learned enough.
    *_, losses, distances = printed.splitlines()
    assert status == 1 and "20 steps" in printed, (status, printed, errors)
    assert losses.startswith("first loss / last: float32 1.0") and "fa3 1.0" in losses, losses
    assert distances.startswith("mean distance from float32: sdpa 0.000") and "fa3 0.000" in distances, distances
    assert distances.endswith("FAILED"), distances
    for words, message in (
        (("--steps", "19"), "--steps: 19 are fewer than the 20 over which losses are smoothed"),
        (("--steps", "some"), "--steps"),
        (("--parts", "run,walk"), "unknown parts: walk"),
    ):
        status, _, errors = run(*words)
        assert status == 2 and message in errors and "Traceback" not in errors, (words, status, errors)
    return 0


if __name__ == "__main__":
    sys.exit(main())
