"""The Python side of the benchmark without a GPU: peers (command line, point sets, CSV), plot (the figure),
triton (the Triton kernel in Triton's interpreter). The argument says which."""

import contextlib
import csv
import importlib.util
import io
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SKIPPED = 77
HERE = pathlib.Path(__file__).resolve().parent


def have(*modules):
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        print(f"skipped: no {', '.join(absent)}")
    return not absent


def refusal(call, *arguments):
    """What a command line is refused with."""
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            call(*arguments)
        except SystemExit as stop:
            assert stop.code == 2, stop.code
            return errors.getvalue()
    raise AssertionError(f"accepted: {arguments}")


def expect(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in {text[-400:]!r}"


# --- peers ------------------------------------------------------------------------------------------------------------


def test_peers():
    import peers

    options = peers.parse([])
    assert options.peers == list(peers.PEERS) and {"triton", "standard"} <= set(options.peers), options.peers
    assert (options.set, options.dtype, options.passes, options.reps, options.warmups) == (["grid"], ["bf16"], 1, 30, 5)
    assert peers.parse(["--peers", "standard,triton"]).peers == ["standard", "triton"]
    expect(refusal(peers.parse, ["--peers", "cudnn,fa9"]), "unknown peers: fa9")
    expect(refusal(peers.parse, ["--dtype", "fp8"]), "unknown dtypes: fp8")
    expect(refusal(peers.parse, ["--set", "grid,mine"]), "unknown point sets: mine")
    expect(refusal(peers.parse, ["--point-ms", "soon"]), "--point-ms")

    # The paper's grid: every head dimension, mask and length, 16384 tokens and a hidden size of 2048.
    points = list(peers.SETS["grid"](options))
    assert len(points) == len(set(points)) == 36
    assert points[0] == peers.Point("bf16", 64, 0, 32, 512, 32, 32), points[0]
    assert points[-1] == peers.Point("bf16", 256, 1, 1, 16384, 8, 8), points[-1]
    assert all(p.batch * p.seqlen == 16384 and p.heads * p.head_dim == 2048 for p in points)
    assert points[0].flop() == 4 * 512 * 512 * 64 * 32 * 32 and points[-1].flop() == 2 * 16384**2 * 256 * 8
    smaller = ["--dtype", "bf16,fp16", "--head-dim", "128", "--causal", "1", "--seqlen", "777", "--kv-heads", "4"]
    assert list(peers.grid(peers.parse(smaller))) == [
        peers.Point(dtype, 128, 1, 21, 777, 16, 4) for dtype in ("bf16", "fp16")
    ]

    halves = list(peers.SETS["fp16"](peers.parse(["--set", "grid,fp16"])))
    assert len(halves) == 12 and all(p.dtype == "fp16" and p.head_dim == 128 for p in halves)

    # The extra points are new, of known head dimensions, and hold what they are there for.
    others = list(peers.SETS["extra"](peers.parse(["--set", "extra"])))
    assert len(others) == len(set(others)) == 15 and not set(others) & set(points)
    assert all(p.head_dim in (64, 128, 256) and p.heads % p.kv_heads == 0 for p in others)
    assert {p.heads // p.kv_heads for p in others} == {1, 4, 8} and any(p.seqlen % 2 for p in others)
    assert max(p.seqlen for p in others) == 131072
    assert peers.Point("bf16", 128, 0, 4, 8448, 16, 16) in others
    assert len(list(peers.extra(peers.parse(["--dtype", "bf16,fp16"])))) == 30

    # Slow calls run fewer times, but at least five; few runs asked for stay few.
    assert peers.runs(0.2, options) == peers.runs(66, options) == peers.runs(0, options) == (5, 30)
    assert peers.runs(100, options) == (1, 20) and peers.runs(4000, options) == (1, 5)
    assert peers.runs(4000, peers.parse(["--reps", "3"])) == (5, 3)

    # Standard attention takes as many batch entries at a time as fit, and refuses where not even one does.
    assert all(peers.standard_entries(p) == p.batch for p in points)
    long, longer = (peers.Point("bf16", 128, 1, 4, seqlen, 16, 16) for seqlen in (16384, 65536))
    assert peers.standard_entries(long) == 3, peers.standard_entries(long)
    try:
        peers.standard_entries(longer)
    except RuntimeError as error:
        expect(str(error), "275 GB")
    else:
        raise AssertionError("275 GB of scores were accepted")

    with tempfile.TemporaryDirectory() as folder:
        test_csv(peers, options, points, pathlib.Path(folder) / "peers.csv")
    if importlib.util.find_spec("torch") is None:
        assert peers.main([]) == SKIPPED
    else:
        test_standard(peers)


def test_csv(peers, options, points, path):
    """The columns that plot.py and others read, and a whole file whenever the run is cut short."""
    rows = [peers.Row(point) for point in points[:2]]
    for row in rows:
        row.passes["fa3"], row.minima["fa3"] = [2.0, 1.0, 4.0], 0.5
    rows[0].passes["triton"], rows[0].differences["triton"] = [4.0], 0.001
    rows[1].notes["triton"] = "not supported"
    peers.write_csv(path, rows[:1], ["triton"], options)
    peers.write_csv(path, rows, ["triton"], options)
    assert os.listdir(path.parent) == [path.name]
    with open(path, newline="") as file:
        written = list(csv.DictReader(file))
    assert (
        list(written[0])
        == (
            "direction dtype head_dim causal batch seqlen heads kv_heads median_ms min_ms tflops checked triton_tflops"
        ).split()
    ), list(written[0])
    tflops = points[0].flop() / 2.0 * 1e-9
    assert list(written[0].values()) == (
        f"fwd bf16 64 0 32 512 32 32 2.00000 0.50000 {tflops:.1f} 1 {tflops / 2:.1f}".split()
    ), written[0]
    assert (written[1]["triton_tflops"], written[1]["checked"]) == ("", "0"), written[1]


def test_standard(peers):
    """`standard` against float64, whole and in parts of the batch."""
    import torch

    generator = torch.Generator().manual_seed(1)
    prepare = peers.make_standard(None)
    all_memory = peers.STANDARD_BYTES
    with torch.no_grad():
        for memory in (all_memory, 2.5 * 4 * 4 * 65**2):
            peers.STANDARD_BYTES = memory
            for causal, kv_heads in ((0, 4), (1, 4), (1, 2)):
                point = peers.Point("bf16", 64, causal, 3, 65, 4, kv_heads)
                assert peers.standard_entries(point) == (3 if memory == all_memory else 2)
                q, k, v = inputs(torch, generator, point, torch.bfloat16)
                error = relative(prepare(point, q, k, v)(), reference(torch, q, k, v, causal))
                assert error < 6e-3, (point, error)
    peers.STANDARD_BYTES = all_memory


# --- plot -------------------------------------------------------------------------------------------------------------

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


def test_plot():
    import plot

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
            "bwd,bf16,128,1,2,8192,16,16,1,1,600,1",
            "fwd,bf16,128,1,2,8192,16,16,1,1,,1",  # no figure
        )
        expect(refusal(plot.main, [write("off.csv", COLUMNS, *off)]), "none of its 6 rows", "16384 tokens")
        bad = write("bad.csv", COLUMNS, "fwd,bf16,128,1,two,8192,16,16,1,1,600,1")
        expect(refusal(plot.main, [bad]), "line 2", "two")
        expect(refusal(plot.main, [write("cut.csv", COLUMNS, off[1], "fwd,bf16,128,1")]), "line 3")

        points = plot.read(write("read.csv", f"{COLUMNS},fa2_tflops", *made_up("bf16", 1), *(f"{x}," for x in off)))
        assert set(points) == {"bf16"} and len(points["bf16"]) == 36
        assert points["bf16"][64, 0, 512] == {"tflops": 100.0, "fa2_tflops": 200.2}
        assert [name for _, name, _ in plot.present(points["bf16"])] == ["libfa3", "FlashAttention-2"]

        if not have("matplotlib"):
            return SKIPPED
        test_figure(plot, folder, write)
    return 0


def texts(path):
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg", root.tag
    return ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_figure(plot, folder, write):
    peers = ("official_tflops", "triton_tflops", "cublas_tflops", "cudnn_tflops")
    without_cudnn = [f"{line}," for line in made_up("bf16", 3)]  # a column without a figure
    every = [column for column, _, _ in plot.SERIES[1:]]
    both = write("both.csv", ",".join((COLUMNS, *peers)), *without_cudnn, *(f"{x},,," for x in made_up("fp16", 1)))
    assert plot.main([both, "--out", str(folder / "a" / "b")]) == 0
    assert sorted(os.listdir(folder / "a" / "b")) == ["figure5-bf16.svg", "figure5-fp16.svg"]

    def check(path, names, heights):
        found = texts(path)
        for head_dim in (64, 128, 256):
            for mask in ("with", "without"):
                assert found.count(f"Forward, {mask} causal mask, head dim {head_dim}") == 1, found
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


# --- triton -----------------------------------------------------------------------------------------------------------


def inputs(torch, generator, point, dtype):
    return [
        torch.randn(point.batch, point.seqlen, heads, point.head_dim, generator=generator).to(dtype)
        for heads in (point.heads, point.kv_heads, point.kv_heads)
    ]


def reference(torch, q, k, v, causal):
    q, k, v = (tensor.double() for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for tensor in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[3])
    if causal:
        s = s.masked_fill(torch.ones(s.shape[2:], dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v)


def relative(ours, exact):
    assert ours.shape == exact.shape
    return ((ours.double() - exact).norm() / exact.norm()).item()


def test_triton():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    if not have("torch", "triton", "numpy"):
        return SKIPPED
    import torch
    from triton.runtime.errors import InterpreterError

    import triton_attention
    from peers import Point

    # fp16 only: the interpreter multiplies bf16's bits as integers.
    generator = torch.Generator().manual_seed(1)
    worst = count = 0
    try:
        for head_dim in triton_attention.BLOCKS:
            for config in triton_attention.configs(head_dim):
                for causal in (0, 1):
                    for batch, seqlen, heads, kv_heads in (
                        (2, 130, 4, 2),
                        (1, 256, 1, 1),
                        (1, 257, 1, 1),
                        (2, 1, 2, 1),
                    ):
                        point = Point("fp16", head_dim, causal, batch, seqlen, heads, kv_heads)
                        q, k, v = inputs(torch, generator, point, torch.float16)
                        out = triton_attention.prepare(q, k, v, causal, config)()
                        error = relative(out, reference(torch, q, k, v, causal))
                        assert error < 1e-3, (point.label(), str(config), error)
                        worst, count = max(worst, error), count + 1
    except InterpreterError as error:
        if "0-dimensional arrays" not in str(error):
            raise
        print("skipped: this Triton's interpreter does not run with this NumPy (it needs one below 2.4)")
        return SKIPPED

    # Any strides: views of larger tensors, whose other rows hold NaN; and a transposed layout.
    q, k, v = (torch.full((2, 200, 6, 64), math.nan, dtype=torch.float16)[:, 3:194, 1:5] for _ in range(3))
    for tensor in (q, k, v):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    for causal in (False, True):
        exact = reference(torch, q, k, v, causal)
        assert relative(triton_attention.attention(q, k, v, causal), exact) < 1e-3
        across = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
        assert relative(triton_attention.attention(*across, causal), exact) < 1e-3

    test_tuning(torch, triton_attention)

    q, k, v = (torch.zeros(1, 8, heads, 64, dtype=torch.float16) for heads in (4, 2, 2))
    for wrong, text in (
        ((q, k.float(), v), "bf16 or fp16"),
        ((q, k[:, :4], v[:, :4]), "one batch and length"),
        ((q, k, v[:, :4]), "one batch and length"),
        ((q[0], k[0], v[0]), "one batch and length"),
        ((q[..., :32], k[..., :32], v[..., :32]), "head_dim"),
        ((q[:, :, :3], k, v), "3 query heads over 2 key heads"),
        ((q[:, :0], k[:, :0], v[:, :0]), "query heads"),
        ((q.transpose(2, 3).contiguous().transpose(2, 3), k, v), "TMA"),
        ((torch.zeros(4 * 8 * 64 + 1, dtype=torch.float16)[1:].view(1, 8, 4, 64), k, v), "TMA"),
    ):
        try:
            triton_attention.attention(*wrong, True)
        except ValueError as error:
            expect(str(error), text)
        else:
            raise AssertionError(f"accepted, expected: {text}")
    print(f"the Triton kernel agrees at {count} points, largest relative error {worst:.1e}")
    return 0


def test_tuning(torch, triton_attention):
    """Tuning with a stand-in for the clock: every configuration runs once, the fastest one is taken and kept."""
    plain, calls = triton_attention.triton.autotune, []

    def clock(call, quantiles):
        call()
        calls.append(None)
        return [abs(len(calls) - 3) + 1.0] * 3  # the third is the fastest

    triton_attention.triton.autotune = lambda *a, **k: plain(*a, **k, do_bench=clock)
    shape = triton_attention.TUNING_TOKENS, triton_attention.TUNING_SEQLEN, triton_attention.TUNING_HIDDEN
    triton_attention.TUNING_TOKENS, triton_attention.TUNING_SEQLEN, triton_attention.TUNING_HIDDEN = 256, 128, 128
    try:
        for _ in range(2):
            best = triton_attention.tuned(torch.device("cpu"), torch.float16, 64, True)
            assert str(best) == str(triton_attention.configs(64)[2]), best
            assert len(calls) == len(triton_attention.BLOCKS[64]), len(calls)
    finally:
        triton_attention.triton.autotune = plain
        triton_attention.TUNING_TOKENS, triton_attention.TUNING_SEQLEN, triton_attention.TUNING_HIDDEN = shape
        triton_attention.tuned.cache_clear()


if __name__ == "__main__":
    sys.exit({"peers": test_peers, "plot": test_plot, "triton": test_triton}[sys.argv[1]]())
