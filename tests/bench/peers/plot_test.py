"""plot.py: what it reads, what it refuses, and the figures, which need matplotlib; skipped behind the first two without
it. Argument: the program fa3-bench."""

import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import plot
from test_helpers import HERE, SKIPPED, expect, have, listed, refusal, texts

RESULTS = HERE.parents[1] / "tests/records"
DRAWN = ("forward", "backward", "fp8")  # of what is kept of a card
sys.path.insert(0, str(RESULTS))
import card  # noqa: E402

COLUMNS = "direction,dtype,head_dim,causal,batch,seqlen,heads,kv_heads,median_ms,min_ms,tflops,checked"


def made_up(dtype, peer_columns):
    """Rows on the paper's grid, every bar with a value of its own: 100 to 135, the peers' 200 to 235, 300 to 335 ..."""
    lines, number = [], 0
    for head_dim in (64, 128, 256):
        for causal in (0, 1):
            for seqlen in (512, 1024, 2048, 4096, 8192, 16384):
                heads = 2048 // head_dim
                cells = [f"{100 * (i + 2) + number}.2" for i in range(peer_columns)]
                lines.append(
                    f"fwd,{dtype},{head_dim},{causal},{16384 // seqlen},{seqlen},{heads},{heads},1,1,{100 + number},1"
                    + "".join(f",{cell}" for cell in cells)
                )
                number += 1
    return lines


def test_plot(bench):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def write(name, *lines):
            (folder / name).write_text("\n".join(lines) + "\n")
            return str(folder / name)

        expect(refusal(plot.main, []), "csv")
        expect(refusal(plot.main, [str(folder / "none.csv")]), "No such file")
        expect(refusal(plot.main, [write("empty.csv", "")]), "no column direction, dtype")
        expect(refusal(plot.main, [write("columns.csv", "direction,dtype,tflops")]), "no column head_dim, causal")
        expect(refusal(plot.main, [write("rows.csv", COLUMNS)]), "none of its 0 rows")
        off = (
            "fwd,bf16,128,1,4,8448,16,16,1,1,600,1",  # length
            "fwd,bf16,128,1,2,8192,16,4,1,1,600,1",  # grouped heads
            "fwd,bf16,128,1,1,8192,16,16,1,1,600,1",  # tokens
            "fwd,bf16,128,1,2,8192,8,8,1,1,600,1",  # hidden size
            "both,bf16,128,1,2,8192,16,16,1,1,600,1",
            "fwd,bf16,128,1,2,8192,16,16,1,1,,1",  # no figure
        )
        expect(refusal(plot.main, [write("off.csv", COLUMNS, *off)]), "none of its 6 rows", "16384 tokens")
        row = made_up("bf16", 0)[0]
        expect(refusal(plot.main, [write("keys.csv", f"{COLUMNS},seqlen_k", f"{row},513")]), "none of its 1 rows")
        expect(refusal(plot.main, [write("twice.csv", COLUMNS, row, row)]), "line 3", "a second row of bf16 d64")
        bad = write("bad.csv", COLUMNS, "fwd,bf16,128,1,two,8192,16,16,1,1,600,1")
        expect(refusal(plot.main, [bad]), "line 2", "two")
        cards = write("cards.csv", f"{COLUMNS},card", f"{row},NVIDIA H200", f"{off[1]},NVIDIA H100")
        expect(refusal(plot.main, [cards]), "rows of several cards: NVIDIA H100, NVIDIA H200")
        expect(refusal(plot.main, [write("cut.csv", COLUMNS, off[1], "fwd,bf16,128,1")]), "line 3")

        # The library in another way is none of the bars.
        columns = f"{COLUMNS},fa2_tflops,deterministic_tflops"
        points, name = plot.read(write("read.csv", columns, *made_up("bf16", 2), *(f"{x},," for x in off)))
        assert set(points) == {("fwd", "bf16")} and len(points["fwd", "bf16"]) == 36 and name == ""
        assert points["fwd", "bf16"][64, 0, 512] == {"tflops": 100.0, "fa2_tflops": 200.2}
        assert [name for _, name, _ in plot.present(points["fwd", "bf16"])] == ["libfa3", "FlashAttention-2"]
        test_fp8_rows(write)

        # The figure's axes are those of fa3-bench's grid, and its CSV and the committed one can be read.
        answer = listed(bench, "--set", "grid,fp16")
        lines = [answer["csv_columns"]]
        for point in answer["points"]:
            cells = {**point, **{key: int(point[key]) for key in ("causal", "two_level")}, "tflops": 1.5}
            lines.append(",".join(str(cells.get(column, "")) for column in lines[0].split(",")))
        points, _ = plot.read(write("bench.csv", *lines))
        axes = set(itertools.product(plot.HEAD_DIMS, (0, 1), plot.SEQLENS))
        assert set(points["fwd", "bf16"]) == axes and len(points["fwd", "fp16"]) == 12
        test_committed(axes)

        if not have("matplotlib"):
            return SKIPPED
        test_figure(folder, write)
        test_committed_figures(folder)
    return 0


def test_committed(axes):
    """What is kept of a card names it and can be drawn; that of the H200 has the whole grid, with all peers."""
    kept = {}
    for path in sorted(RESULTS.glob("*/*.csv")):
        if path.stem in DRAWN:
            figures, name = plot.read(path)
            assert name and card.folder(name) == path.parent.name, (path, name)
            kept[path.parent.name, path.stem] = figures
    forward, backward, fp8 = (kept["h200", name] for name in DRAWN)
    assert set(forward["fwd", "bf16"]) == axes and len(forward["fwd", "fp16"]) == 12
    assert set(backward) == {("bwd", "bf16")} and set(backward["bwd", "bf16"]) == axes
    assert set(fp8) == {("fwd", "e4m3")} and set(fp8["fwd", "e4m3"]) == axes
    every = len(plot.SERIES) - 1  # V as tiles is of FP8
    assert all(len(values) == every for values in forward["fwd", "bf16"].values())


def test_committed_figures(folder):
    """Each says what the CSVs beside it say."""
    committed = sorted(RESULTS.glob("*/figure*.svg"))
    assert len(committed) >= 4, committed
    for kept in sorted({path.parent for path in committed}):
        for path in (kept / f"{name}.csv" for name in DRAWN):
            assert not path.exists() or plot.main([str(path), "--out", str(folder / kept.name)]) == 0
        drawn = sorted((folder / kept.name).iterdir())
        assert [path.name for path in drawn] == [path.name for path in committed if path.parent == kept], drawn
        for path in drawn:
            old, new = texts(kept / path.name), texts(path)
            assert old == new, f"draw {kept / path.name} again: {set(old) ^ set(new)}"


def test_fp8_rows(write):
    """V as rows and as tiles are two bars of one point: from two rows, or from one with both."""
    columns = f"{COLUMNS},v,scales,two_level,official_tflops,tiles_tflops"
    row = made_up("e4m3", 0)[0]
    rows, tiles, two_level = (f"{row},{form}" for form in ("rows,tensor,0,50,", "tiles,tensor,0,,", "tiles,tensor,1,,"))
    tiles, blocks = tiles.replace(",100,", ",120,"), f"{row},tiles,block,0,,"
    expected = {"tflops": 100.0, "tiles_tflops": 120.0, "official_tflops": 50.0}
    for lines in ((rows, tiles, two_level, blocks), (blocks, tiles, rows), (f"{row},rows,tensor,0,50,120",)):
        points, _ = plot.read(write("fp8.csv", columns, *lines))
        assert points == {("fwd", "e4m3"): {(64, 0, 512): expected}}, points
    expect(refusal(plot.main, [write("twice8.csv", columns, tiles, rows, tiles)]), "line 4", "a second row of e4m3")


def test_figure(folder, write):
    peers = ("official_tflops", "triton_tflops", "cublas_tflops", "cudnn_tflops")
    without_cudnn = [f"{line}," for line in made_up("bf16", 3)]  # a column without a figure
    every = [column for column, _, _ in plot.SERIES[1:]]
    both = write("both.csv", ",".join((COLUMNS, *peers)), *without_cudnn, *(f"{x},,," for x in made_up("fp16", 1)))
    assert plot.main([both, "--out", str(folder / "a" / "b")]) == 0
    assert sorted(os.listdir(folder / "a" / "b")) == ["figure5-bf16.svg", "figure5-fp16.svg"]

    def check(path, names, heights, direction="Forward"):
        found = texts(path)
        for head_dim in (64, 128, 256):
            for mask in ("with", "without"):
                assert found.count(f"{direction}, {mask} causal mask, head dim {head_dim}") == 1, found
        for _, name, _ in plot.SERIES:
            assert found.count(name) == (name in names), name
        for length in ("512", "1k", "2k", "4k", "8k", "16k"):
            assert found.count(length) >= 6, length  # a bar may have that value, too
        for height in heights:  # every bar carries its value
            assert str(height) in found, height

    bf16, fp16 = folder / "a/b/figure5-bf16.svg", folder / "a/b/figure5-fp16.svg"
    heights = [base + number for base in (100, 200, 300) for number in range(36)]
    check(bf16, ("libfa3", "FlashAttention-3 (official)", "Triton"), heights)
    assert not {str(400 + number) for number in range(36)} & set(texts(bf16))  # cuBLAS is no attention
    check(fp16, ("libfa3", "FlashAttention-3 (official)"), heights[:72])
    full = write("full.csv", ",".join((COLUMNS, *every)), *made_up("bf16", len(every)))
    assert plot.main([full, "--out", str(folder), "--title", "A & B <C>"]) == 0
    check(folder / "figure5-bf16.svg", [name for _, name, _ in plot.SERIES], [100, 135, 200, 735])
    assert "A & B <C>" in texts(folder / "figure5-bf16.svg")

    fp8 = write("fp8.csv", ",".join((COLUMNS, "tiles_tflops")), *made_up("e4m3", 1))
    assert plot.main([fp8, "--out", str(folder / "fp8")]) == 0
    assert os.listdir(folder / "fp8") == ["figure7-fp8.svg"]
    check(folder / "fp8/figure7-fp8.svg", ("libfa3", "libfa3, V as tiles"), heights[:72])
    assert "Attention forward, FP8 (e4m3): 16k tokens, hidden size 2048" in texts(folder / "fp8/figure7-fp8.svg")
    one = write("card.csv", f"{COLUMNS},card", f"{made_up('e4m3', 0)[0]},NVIDIA H200")
    assert plot.main([one, "--out", str(folder / "card")]) == 0
    title = "Attention forward, FP8 (e4m3), NVIDIA H200: 16k tokens, hidden size 2048"
    assert title in texts(folder / "card/figure7-fp8.svg")

    lines = [line.replace("fwd", "bwd") for line in made_up("bf16", 0)]
    assert plot.main([write("bwd.csv", COLUMNS, *lines, made_up("bf16", 0)[0]), "--out", str(folder / "bwd")]) == 0
    assert sorted(os.listdir(folder / "bwd")) == ["figure5-bf16.svg", "figure6-bf16.svg"]
    check(folder / "bwd/figure6-bf16.svg", ["libfa3"], heights[:36], "Backward")
    assert "Attention backward, bf16: 16k tokens, hidden size 2048" in texts(folder / "bwd/figure6-bf16.svg")

    # A run cut short: one point.
    one = write("one.csv", COLUMNS, made_up("bf16", 0)[0])
    assert plot.main([one, "--out", str(folder / "one")]) == 0
    check(folder / "one/figure5-bf16.svg", ["libfa3"], [100])

    # The same bytes again, in this process and in another with another hash seed and settings of its own.
    first = bf16.read_bytes()
    assert plot.main([both, "--out", str(folder / "c")]) == 0
    (folder / "matplotlibrc").write_text("font.size: 20\nlines.linewidth: 9\n")
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "MATPLOTLIBRC": str(folder / "matplotlibrc"),
        "TZ": "Asia/Tokyo",
    }
    command = [sys.executable, str(HERE / "plot.py"), both, "--out", str(folder / "d")]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    for other in ("c", "d"):
        assert (folder / other / "figure5-bf16.svg").read_bytes() == first, other
    assert not re.search(rb"<dc:date>|20\d\d-\d\d-\d\d", first)


if __name__ == "__main__":
    sys.exit(test_plot(*sys.argv[1:]))
