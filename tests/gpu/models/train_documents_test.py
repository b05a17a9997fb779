"""train_documents.py without a GPU: small models on the library's CPU reference; its comparison finds attention that
has lost something of its call; what its command line refuses. Arguments: the script, the library. Skipped without torch
and transformers."""

import contextlib
import csv
import importlib.util
import io
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from support import need  # noqa: E402

need("torch", "transformers")
script, library = sys.argv[1:]
spec = importlib.util.spec_from_file_location("train_documents", script)
sys.path.insert(0, str(pathlib.Path(script).parent))
training = importlib.util.module_from_spec(spec)
spec.loader.exec_module(training)
fa3 = training.fa3
training.torch.set_num_threads(1)  # the models are small


def run(*words):
    """Exit status, output and errors."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            status = training.main(["--cpu", "--library", library, *words])
        except SystemExit as stopped:
            status = stopped.code
    print(printed.getvalue())
    return status, printed.getvalue(), errors.getvalue()


def moved(sums):
    """The first document of more than one token ends one token earlier."""
    sums = sums.clone()
    sums[1 + (sums.diff() > 1).int().argmax()] -= 1
    return sums


# What is lost: the models that notice, and the call without it.
LOST = {
    "window": ("llama d64", lambda how: {"window": how["window"] and (how["window"][0] - 1, 0)}),
    "sinks": ("gpt-oss", lambda how: {"sinks": None}),
    "gradient of sinks": ("gpt-oss", lambda how: {"sinks": how["sinks"].detach()}),
    "documents": ("llama d128", lambda how: {x: moved(how[x]) for x in ("cu_seqlens_q", "cu_seqlens_k")}),
    "scale": ("llama d64", lambda how: {"softmax_scale": None}),
    "softcap": ("gemma d256", lambda how: {"softcap": None}),
}


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "training.csv")
        status, printed, errors = run("--parts", "step,again", "--dtypes", "bf16,fp16", "--csv", str(path))
        assert status == 0 and printed.count("FAILED") == 0 and printed.count("again") == 4, (status, printed, errors)
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
    assert {row["model"] for row in rows} == set(training.MODELS) and all(float(row["fa3"]) < 0.1 for row in rows)
    status, printed, errors = run("--parts", "run", "--models", "llama d128", "--steps", "20")
    # It ends with a verdict: as close to float32 as it must be, but in 20 steps nothing has learned enough.
    assert status == 1 and "at most" in printed and "FAILED" in printed, (status, printed, errors)

    attention = fa3.attention
    for name, (model, lose) in LOST.items():
        fa3.attention = lambda q, k, v, **how: attention(q, k, v, **{**how, **lose(how)})
        status, printed, errors = run("--parts", "step", "--models", model)
        assert status == 1 and "FAILED" in printed, (name, status, printed, errors)
    fa3.attention = attention

    for words, message in (
        (("--steps", "19"), "--steps: 19 are fewer than the 20 over which losses are smoothed"),
        (("--parts", "run,walk"), "unknown parts: walk; there are step, run, again"),
        (("--models", "llama"), "unknown models: llama"),
        (("--dtypes", "fp8"), "unknown dtypes: fp8"),
    ):
        status, _, errors = run(*words)
        assert status == 2 and message in errors, (words, status, errors)
    return 0


if __name__ == "__main__":
    sys.exit(main())
