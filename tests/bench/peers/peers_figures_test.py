"""What peers.py makes of the times and outputs of a point: how often a call runs, its figures, whether outputs agree,
and the CSV. Argument: the program fa3-bench."""

import csv
import math
import os
import pathlib
import sys
import tempfile
import types

import peers
from peers_csv import write_csv
from peers_measure import runs
from peers_row import Row
from test_helpers import made_point


def test_csv(options, path):
    """fa3-bench's columns, two for each peer, and where and when; a whole file whenever the run is cut short."""
    rows = [Row(point, "ours") for point in options.points[:2]]
    for row in rows:
        row.kernel = "fa3_some"
        for times in ([2.0], [1.0, 0.5, 1.5], [4.0, 4.0]):
            row.add_pass("ours", times)
    rows[0].add_pass("triton", [4.0])
    rows[0].differences["triton"] = 0.001
    rows[1].notes["triton"] = "not supported"
    write_csv(path, rows[:1], ["triton"], options)
    write_csv(path, rows, ["triton"], options)
    assert os.listdir(path.parent) == [path.name]
    with open(path, newline="") as file:
        written = list(csv.DictReader(file))
    columns = [*options.csv_columns, "triton_tflops", "triton_ratio", "card", "driver", "date"]
    assert list(written[0]) == columns, list(written[0])
    tflops = options.points[0].flop / 2.0 * 1e-9
    expected = f"fwd bf16 64 0 32 512 32 32 2.00000 0.50000 {tflops:.1f} 1 512 fa3_some 1.5000 3 2"
    cells = [*expected.split(), "rows", "", "0", "64", f"{tflops / 2:.1f}", "0.5000", "a card", "1.5", "today"]
    assert list(written[0].values()) == cells, written[0]
    assert (written[1]["triton_tflops"], written[1]["triton_ratio"], written[1]["checked"]) == ("", "", "0"), written[1]


def test_agreement():
    """What agrees in e4m3 need not in 16 bits, and --tolerance is for both."""
    for dtype, difference, word, agrees in (
        ("bf16", 0.05, (), False),
        ("e4m3", 0.05, (), True),
        ("e4m3", 0.15, (), False),
        ("e4m3", 0.05, ("--tolerance", "0.01"), False),
        ("bf16", 0.05, ("--tolerance", "0.1"), True),
    ):
        row = Row(made_point(dtype, 64, 0, 1, 64, 1, 1), "ours")
        row.differences["triton"] = difference
        tolerance = types.SimpleNamespace(tolerance=float(word[1]) if word else None)
        assert row.checked(tolerance) == agrees, (dtype, difference, word)


def test_spread(point):
    """The spread of one pass is that of its runs, between the 10th and the 90th percentile."""
    row = Row(point, "ours")
    row.add_pass("ours", [3.0, 1.0, 2.0, 5.0, 4.0])
    assert (row.ms("ours"), row.minima["ours"]) == (3.0, 1.0) and math.isclose(row.spread("ours"), (4.6 - 1.4) / 3)
    row = Row(point, "ours")
    row.add_pass("ours", [3.0])
    assert row.spread("ours") == 0


def test_runs(bench, options):
    """Slow calls run fewer times, but at least five; few runs asked for stay few."""
    assert runs(0.2, options) == runs(66, options) == runs(0, options) == (5, 30)
    assert runs(100, options) == (1, 20) and runs(4000, options) == (1, 5)
    assert runs(4000, peers.parse(["--bench", bench, "--reps", "3"])) == (5, 3)


def main(bench):
    options = peers.parse(["--bench", bench])
    options.where = ["a card", "1.5", "today"]
    with tempfile.TemporaryDirectory() as folder:
        test_csv(options, pathlib.Path(folder) / "peers.csv")
    test_agreement()
    test_spread(options.points[0])
    test_runs(bench, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
