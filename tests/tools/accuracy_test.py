"""tools/accuracy without a GPU: its attention in torch against a plain formula, its tables, and a whole small run on
the library's CPU reference. Arguments: the script, the library. Skipped without torch."""

import contextlib
import csv
import importlib.machinery
import importlib.util
import io
import math
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from support import need  # noqa: E402

script, library = sys.argv[1:]
loader = importlib.machinery.SourceFileLoader("accuracy", script)
accuracy = importlib.util.module_from_spec(importlib.util.spec_from_loader("accuracy", loader))
loader.exec_module(accuracy)


def refused(*words):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            accuracy.parse(words)
        except SystemExit as stop:
            assert stop.code == 2, stop.code
            return errors.getvalue()
    raise AssertionError(f"accepted: {words}")


def command_line():
    assert accuracy.parse([]).parts == ["table3", "bias"]
    assert accuracy.parse(["--activations", "a.pt"]).parts == ["table3", "bias", "activations"]
    options = accuracy.parse("--parts bias --mu 0,2.5 --bias-seqlens 64 --cpu --csv a.csv".split())
    assert (options.parts, options.mu, options.bias_seqlens, options.device) == (["bias"], [0, 2.5], [64], "cpu")
    assert "'table4'" in refused("--parts", "table4")
    assert "--activations" in refused("--parts", "activations")
    assert "--cpu needs --csv" in refused("--cpu")  # no card's record is overwritten


def tables():
    cells = {
        "ours fp16": {512: 1e-4, 1024: 2e-4},
        "ours full": {512: 1e-2, 1024: 9e-3},
        "baseline fp8": {512: 2.5e-2, 1024: 2.5e-2},
    }
    lines = accuracy.table("title", {**cells, "official": {1024: 0.5}}, "{:.2e}", accuracy.PAPER)
    words = [line.split() for line in lines]
    assert words[0:2] == [["title"], ["512", "1024", "paper"]]
    assert words[2] == ["ours", "fp16", "1.00e-04", "2.00e-04", "1.9e-04"], lines
    assert words[5] == ["official", "-", "5.00e-01"], lines
    lines = accuracy.verdict(cells)
    assert lines[0].endswith(": 512 ok  1024 MISSED") and lines[1].endswith(": 512 MISSED  1024 ok"), lines
    assert lines[2].endswith(": 512 MISSED  1024 ok") and lines[3].endswith(": 512 2.50  1024 2.78"), lines
    assert lines[4].endswith("not measured"), lines


def attention(torch):
    """Blocks of rows, grouped heads and the causal mask; and the roundings that the methods are named for."""
    generator = accuracy.generator_of("cpu", 1)
    for n, keys, heads, kv_heads, causal in ((70, 70, 4, 2, True), (33, 70, 2, 2, True), (70, 33, 3, 1, False)):
        q, k, v = (
            torch.randn(2, length, count, 32, generator=generator).half()
            for length, count in ((n, heads), (keys, kv_heads), (keys, kv_heads))
        )
        k_each, v_each = (x.double().repeat_interleave(heads // kv_heads, 2) for x in (k, v))
        s = torch.einsum("bihd,bjhd->bhij", q.double(), k_each) / math.sqrt(32)
        if causal:
            s.masked_fill_(torch.ones(n, keys, dtype=torch.bool).triu(1 + keys - n), -math.inf)
        expected = torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v_each)
        for rows in (2048, 16):
            accuracy.ROWS = rows
            assert (accuracy.exact(q, k, v, causal) - expected).abs().max() < 1e-12
            error = lambda method: accuracy.root_mean_square(method(q, k, v, causal).double() - expected)
            size = accuracy.root_mean_square(expected)
            assert 1e-5 < error(accuracy.standard) / size < 2e-3, error(accuracy.standard) / size
            for p_scale in accuracy.BASELINES.values():
                assert 1e-2 < error(accuracy.make_baseline(p_scale)) / size < 1e-1
    x = accuracy.outliers((1, 4096, 4, 64), generator)
    assert x.dtype == torch.float16 and 1.02 < x.double().square().mean().sqrt() < 1.08  # 1.1 is the variance
    assert 20 < x.abs().max() < 60
    y, scale = accuracy.to_e4m3(x)
    assert y.float().abs().max() == 448 and ((y.float() * scale - x).abs() <= x.abs() / 16 + scale / 512).all()


def whole_run(torch):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        torch.manual_seed(1)
        layers = [("layer 7", *(torch.randn(1, 40, heads, 32).bfloat16() for heads in (4, 2, 2)))]
        torch.save(layers, folder / "layers.pt")
        command = f"--cpu --library {library} --head-dims 32,16 --heads 2 --seeds 2 --seqlens 64,100 --bias-seqlens 96"
        command += f" --bias-heads 1 --bias-head-dim 32 --mu 0,2 --activations {folder}/layers.pt --csv {folder}/a.csv"
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = accuracy.main(command.split())
        print(printed.getvalue())
        assert status == 0, status
        with open(folder / "a.csv", newline="") as file:
            rows = list(csv.DictReader(file))
    count = 3 + len(accuracy.BASELINES) + len(accuracy.FORMS)
    per_part = {part: [row for row in rows if row["part"] == part] for part in accuracy.PARTS}
    assert len(per_part["table3"]) == 2 * 2 * 2 * count and len(per_part["activations"]) == count
    assert len(per_part["bias"]) == 3 * len(accuracy.BIAS_FORMS)  # mu 0: gain; 2: gain and bias
    assert {(row["inputs"], row["heads"], row["kv_heads"], row["causal"]) for row in per_part["activations"]} == {
        ("layer 7", "4", "2", "1")
    }
    assert all(abs(float(row["value"])) < 0.1 and row["card"] == "CPU reference" for row in rows), rows
    assert [row["head_dim"] for row in per_part["table3"]].count("16") == 2 * 2 * count
    errors = {row["method"]: float(row["value"]) for row in per_part["activations"]}
    assert 0 < errors["ours fp16"] < errors["ours bf16"] < errors["ours full"], errors


def main():
    command_line()
    tables()
    if importlib.util.find_spec("torch") is None:
        assert subprocess.run([sys.executable, script]).returncode == 77
        need("torch")
    import torch

    attention(torch)
    whole_run(torch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
