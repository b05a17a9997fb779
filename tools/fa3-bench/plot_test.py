"""The Python side of the benchmark without a GPU: peers (command line, point sets, CSV), plot (the figure),
triton (the Triton kernel in Triton's interpreter). Arguments: which of them, the program fa3-bench, the library."""

import collections
import contextlib
import csv
import ctypes
import importlib.util
import io
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
import typing
import unittest.mock
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


def listed(bench, *words):
    done = subprocess.run([bench, *words, "--list", "--json", "-"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def made_point(peers, dtype, head_dim, causal, batch, seqlen, heads, kv_heads, seqlen_k=None):
    """A point without fa3-bench."""
    return peers.Point(
        dtype=dtype,
        head_dim=head_dim,
        causal=bool(causal),
        batch=batch,
        seqlen=seqlen,
        seqlen_k=seqlen_k or seqlen,
        heads=heads,
        kv_heads=kv_heads,
        v="rows",
        scales="tensor" if dtype == "e4m3" else "",
        two_level=False,
        library_chooses=True,
    )


def test_peers(bench, library):
    import peers
    from peers_fp8 import FORMS

    assert "matplotlib" not in sys.modules  # machines with a GPU need not have it
    parse = lambda *words: peers.parse(["--bench", bench, *words])
    command = [sys.executable, HERE / "peers.py", "--bench", bench]

    def refused(*words):
        done = subprocess.run([*command, *words], capture_output=True, text=True)
        assert done.returncode == 2, done
        return done.stderr

    options = parse()
    assert options.peers == list(peers.PEERS) and {"triton", "standard"} <= set(options.peers), options.peers
    assert options.library == [("fa3", None)], options.library
    assert parse("--peers", "standard,triton").peers == ["standard", "triton"]
    assert parse("--peers", "none").peers == []
    two = parse("--library", "old=/a=b/libfa3.so", "--library=new=libfa3.so").library
    assert two == [("old", "/a=b/libfa3.so"), ("new", "libfa3.so")], two
    # Without a word, those that do some of the points.
    fp8 = ["cudnn", "official", "cublas", "tiles", "two_level", "blocks", "bf16", "quantize"]
    quarter, half = (made_point(peers, dtype, 64, 0, 1, 64, 1, 1) for dtype in ("e4m3", "bf16"))
    assert peers.useful_peers([quarter]) == fp8, peers.useful_peers([quarter])
    assert peers.useful_peers([quarter, half]) == [*peers.PEERS, *FORMS]
    assert parse("--peers", "quantize,fa2").peers == ["quantize", "fa2"]
    expect(refused("--peers", "cudnn,fa9"), "unknown peers: 'fa9'")
    expect(refused("--peers", "cudnn,"), "unknown peers: ''")
    expect(refused("--point-ms", "soon"), "--point-ms", "soon")
    expect(refused("--csv", "--passes"), "--csv")
    expect(refused("--csv", "true"), "'true'")
    for wrong in ("libfa3.so", "=libfa3.so", "new=", "a,b=libfa3.so", "-x=libfa3.so"):
        expect(refused(f"--library={wrong}"), f"'{wrong}' is not NAME=PATH")
    expect(refused("--library", f"triton={library}"), "'triton' is a peer's name")
    expect(refused("--library", f"tiles={library}"), "'tiles' is a peer's name")
    expect(refused("--library", f"a={library}", "--library", f"a={library}"), "a name is given twice")
    expect(refused("--library", f"a={library}.none"), f"{library}.none")
    expect(refused("--library", f"python={sys.executable}"), "--library")
    expect(refused("--bench", "/no/fa3-bench"), "/no/fa3-bench", "--bench")

    # Whatever else is said goes to fa3-bench, which refuses what it does not know, and answers.
    expect(refused("--set", "grid,mine"), "mine")
    expect(refused("--dtype", "fp8"), "fp8")
    expect(refused("--pass", "3"), "--pass")
    expect(refused("--point", "3"), "--point")  # no short for --point-ms
    expect(refused("--clock"), "--clock")
    expect(refused("--head-dim", "1000"), "bf16 d1000", "q.dim[3]")
    expect(refused("--json", "report.json"), "--json")
    answer, protocol = listed(bench), options.protocol
    assert vars(protocol) == answer["protocol"] and [vars(p) for p in options.points] == answer["points"]
    assert (protocol.idle_ms, protocol.warmups, protocol.reps, protocol.passes, protocol.seed) == (100, 5, 30, 1, 1)
    some = parse("--set", "extra,fp16", "--csv", "a.csv", "--passes=3", "--peers", "fa2", "--filter", "seqlen 512 ")
    assert (some.csv, some.peers, some.protocol.passes) == ("a.csv", ["fa2"], 3)
    assert {(p.dtype, p.head_dim, p.seqlen) for p in some.points} == {("fp16", 128, 512)} and len(some.points) == 2
    points = options.points
    assert points[0].flop == 4 * 512 * 512 * 64 * 32 * 32 and points[-1].flop == 2 * 16384**2 * 256 * 8

    # The backward pass: five products, of the peers that have it, and of the library with its sums in a fixed order.
    backward = parse("--direction", "bwd")
    assert backward.peers == ["cudnn", "fa2", "fa4", "deterministic"], backward.peers
    assert parse("--direction", "bwd", "--peers", "deterministic,fa4").peers == ["deterministic", "fa4"]
    assert [p.flop for p in backward.points] == [2.5 * p.flop for p in points]
    assert all(p.direction == "bwd" and p.label.startswith("bwd bf16 d") for p in backward.points)
    expect(refused("--direction", "bwd", "--dtype", "e4m3"), "e4m3 has no backward pass")
    expect(refused("--direction", "bwd", "--peers", "fa2,triton"), "no backward pass of triton is measured")
    expect(refused("--direction", "bwd", "--peers", "tiles"), "no backward pass of tiles is measured")
    expect(refused("--peers", "fa2,deterministic"), "no forward pass of deterministic is measured")
    expect(refused("--library", f"deterministic={library}"), "'deterministic' is a peer's name")
    expect(refused("--direction", "both"), "--direction")
    test_backward_parameters(library)

    # Slow calls run fewer times, but at least five; few runs asked for stay few.
    assert peers.runs(0.2, options) == peers.runs(66, options) == peers.runs(0, options) == (5, 30)
    assert peers.runs(100, options) == (1, 20) and peers.runs(4000, options) == (1, 5)
    assert peers.runs(4000, parse("--reps", "3")) == (5, 3)

    # Standard attention takes as many batch entries at a time as fit, and refuses where not even one does.
    assert all(peers.standard_entries(p) == p.batch for p in points)
    long, longer, blind = (
        made_point(peers, "bf16", 128, 1, 4, seqlen, 16, 16, seqlen_k)
        for seqlen, seqlen_k in ((16384, 16384), (65536, 65536), (65536, 512))
    )
    assert peers.standard_entries(long) == 3, peers.standard_entries(long)
    for point, reason in ((longer, "275 GB"), (blind, "no key")):
        try:
            peers.standard_entries(point)
        except RuntimeError as error:
            expect(str(error), reason)
        else:
            raise AssertionError(f"accepted, expected: {reason}")

    test_forms(peers)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        test_csv(peers, options, points, folder / "peers.csv")
        builds = [shutil.copy(library, folder / name) for name in ("old.so", "new.so")]
        test_two_builds(*builds)
        test_run(peers, bench, builds, folder)
        test_backward_run(peers, bench, builds[0], folder)
    if importlib.util.find_spec("torch") is None:
        assert subprocess.run([*command, "--library", f"fa3={library}"]).returncode == SKIPPED
    else:
        test_standard(peers)
        test_tiles()


def test_backward_parameters(path):
    """The library reads the struct as it is written here."""
    import fa3_ctypes

    library = fa3_ctypes.Library(path)
    q, k = (fa3_ctypes.make_tensor(0, "bf16", (1, seqlen, 2, 64)) for seqlen in (128, 300))
    lse, longer = (fa3_ctypes.make_tensor(0, "fp32", (1, 2, rows)) for rows in (128, 129))
    size = ctypes.c_size_t()

    def workspace_size(dlse):
        params = library.backward_params(q, k, k, q, lse, q, q, k, k, mask="causal_bottom_right", dlse=dlse)
        return library.lib.fa3_backward_workspace_size(ctypes.byref(params), ctypes.byref(size))

    assert workspace_size(lse) == 0 and size.value == 2 * 128 * (8 + 4 * 64) + 3 * 4 + 2 * 4, size.value
    assert workspace_size(longer) != 0 and b"dlse.dim[2]" in library.lib.fa3_last_error_message()


def test_two_builds(*paths):
    """Two builds in one process do not share what one of them remembers."""
    import fa3_ctypes

    one, other = (fa3_ctypes.Library(path) for path in paths)
    try:
        one.workspace_size(one.params(*(fa3_ctypes.make_tensor(0, "bf16", (1, 2, 3)) for _ in range(4))))
    except fa3_ctypes.Fa3Error as error:
        expect(str(error), "q.rank")
    else:
        raise AssertionError("a tensor of rank 3 was accepted")
    assert one.lib.fa3_last_error_message() and not other.lib.fa3_last_error_message()


def test_csv(peers, options, points, path):
    """fa3-bench's columns and two for each peer, and a whole file whenever the run is cut short."""
    rows = [peers.Row(point, "ours") for point in points[:2]]
    for row in rows:
        row.kernel = "fa3_some"
        for times in ([2.0], [1.0, 0.5, 1.5], [4.0, 4.0]):
            row.add_pass("ours", times)
    rows[0].add_pass("triton", [4.0])
    rows[0].differences["triton"] = 0.001
    rows[1].notes["triton"] = "not supported"
    peers.write_csv(path, rows[:1], ["triton"], options)
    peers.write_csv(path, rows, ["triton"], options)
    assert os.listdir(path.parent) == [path.name]
    with open(path, newline="") as file:
        written = list(csv.DictReader(file))
    assert list(written[0]) == [*options.csv_columns, "triton_tflops", "triton_ratio"], list(written[0])
    tflops = points[0].flop / 2.0 * 1e-9
    expected = f"fwd bf16 64 0 32 512 32 32 2.00000 0.50000 {tflops:.1f} 1 512 fa3_some 1.5000 3 2"
    assert list(written[0].values()) == [*expected.split(), "rows", "", "0", f"{tflops / 2:.1f}", "0.5000"], written[0]
    assert (written[1]["triton_tflops"], written[1]["triton_ratio"], written[1]["checked"]) == ("", "", "0"), written[1]

    # What agrees in e4m3 need not in 16 bits, and --tolerance is for both.
    for dtype, difference, word, agrees in (
        ("bf16", 0.05, (), False),
        ("e4m3", 0.05, (), True),
        ("e4m3", 0.15, (), False),
        ("e4m3", 0.05, ("--tolerance", "0.01"), False),
        ("bf16", 0.05, ("--tolerance", "0.1"), True),
    ):
        row = peers.Row(made_point(peers, dtype, 64, 0, 1, 64, 1, 1), "ours")
        row.differences["triton"] = difference
        tolerance = types.SimpleNamespace(tolerance=float(word[1]) if word else None)
        assert row.checked(tolerance) == agrees, (dtype, difference, word)

    # The spread of one pass is that of its runs, between the 10th and the 90th percentile.
    row = peers.Row(points[0], "ours")
    row.add_pass("ours", [3.0, 1.0, 2.0, 5.0, 4.0])
    assert (row.ms("ours"), row.minima["ours"]) == (3.0, 1.0) and math.isclose(row.spread("ours"), (4.6 - 1.4) / 3)
    row = peers.Row(points[0], "ours")
    row.add_pass("ours", [3.0])
    assert row.spread("ours") == 0


def test_forms(peers):
    """The other ways of the library: points that they are for, the library as it is asked."""
    from peers_fp8 import FORMS

    asked = []

    def prepare_library(point, q, k, v):
        asked.append((point, q, k, v))
        return "call"

    rows, half = (made_point(peers, dtype, 64, 0, 1, 64, 1, 1) for dtype in ("e4m3", "bf16"))
    tiles = peers.Point(**{**vars(rows), "v": "tiles", "library_chooses": False, "kernel": "fa3_some"})
    for name, form in (
        ("tiles", ("tiles", "tensor", False)),
        ("two_level", ("tiles", "tensor", True)),
        ("blocks", ("tiles", "block", False)),
    ):
        prepare = FORMS[name](None, prepare_library)
        assert prepare(half, "q", "k", "v") is None and prepare(rows, "q", "k", "v") == "call"
        point, *tensors = asked.pop()
        assert (point.v, point.scales, point.two_level, point.library_chooses) == (*form, True), point
        assert tensors == ["q", "k", "v"] and (rows.v, rows.scales, rows.two_level) == ("rows", "tensor", False)
        assert prepare(tiles, "q", "k", "v") == "call" and asked.pop()[0].library_chooses
    chosen = peers.Point(**{**vars(tiles), "library_chooses": True})
    assert FORMS["tiles"](None, prepare_library)(chosen, "q", "k", "v") is None  # nothing else than the point itself
    quantize = FORMS["quantize"](None, prepare_library)
    assert quantize.input_dtype == "bf16" and quantize(half, "q", "k", "v") is None and not asked


def test_tiles():
    """V as tiles, from a torch tensor in any strides, element by element as fa3.h says."""
    import torch

    import fa3_ctypes

    batch, seqlen, heads, d = 2, 37, 3, 48
    generator = torch.Generator().manual_seed(1)
    v = torch.randn(heads, batch, seqlen, d, generator=generator).to(torch.float8_e4m3fn).permute(1, 2, 0, 3)
    tiles = fa3_ctypes.tiles_of(v)
    assert tuple(tiles.shape) == fa3_ctypes.tile_dims(*v.shape) == (batch, heads, 3, d, 16) and tiles.is_contiguous()
    v, tiles = v.float(), tiles.float()
    for key in range(48):
        byte = key % 8 // 2 * 4 + key % 16 // 8 * 2 + key % 2
        for column in range(d):
            row = column // 16 * 16 + column % 2 * 8 + column % 16 // 2
            expected = v[:, key, :, column] if key < seqlen else torch.zeros(batch, heads)
            assert torch.equal(tiles[:, :, key // 16, row, byte], expected), (key, column)


class MadeUpTensor(typing.NamedTuple):
    """What torch.randn of a stand-in drew as its how manieth, counted from the seed."""

    shape: tuple
    dtype: str
    drawn: int
    detach = requires_grad_ = lambda self: self


class MadeUp(float):
    """An output of one number, as far as torch's tensors are asked for."""

    def __sub__(self, other):
        return MadeUp(float(self) - float(other))

    float = sum = lambda self: self
    square = lambda self: MadeUp(self * self)
    item = lambda self: self * 1.0


@contextlib.contextmanager
def stand_ins(modules):
    """Modules of the test, by name, in the place of any that are imported."""
    originals = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, original in originals.items():
            if original:
                sys.modules[name] = original
            else:
                del sys.modules[name]


def made_up_torch(clock, **more):
    """As much of torch as a run needs without a GPU. Its events read the clock, a list of one number."""

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, stop):
            return stop.at - self.at

    do_nothing = lambda *_, **__: None

    def randn(shape, generator, dtype, device):
        drawn = next(generator)
        return types.SimpleNamespace(to=lambda dtype: MadeUpTensor(shape, dtype, drawn))

    return types.SimpleNamespace(
        bfloat16="bf16",
        float32="fp32",
        randn=randn,
        Generator=lambda device: types.SimpleNamespace(manual_seed=itertools.count),
        no_grad=contextlib.nullcontext,
        __version__="of the test",
        backends=types.SimpleNamespace(cudnn=types.SimpleNamespace(version=do_nothing)),
        cuda=types.SimpleNamespace(
            Event=Event,
            is_available=lambda: True,
            get_device_name=lambda: "no GPU",
            **dict.fromkeys(("synchronize", "empty_cache", "_sleep"), do_nothing),
        ),
        **more,
    )


def test_run(peers, bench, builds, folder):
    """A whole run with a stand-in for torch, whose clock calls move by known times: two builds and some peers."""
    clock, order = [0.0], []

    def maker(name, ms, output=1.0, dtype="bf16"):
        def prepare(point, q, k, v):
            keys = (1, 64, 1, 128)  # drawn from seed 1, in this order, whatever the dtype
            assert (q, k, v) == (((1, 64, 2, 128), dtype, 1), (keys, dtype, 2), (keys, dtype, 3)), (q, k, v)

            def call():
                clock[0] += ms
                order.append(name)
                return [MadeUp(output)]

            call.kernel = f"fa3_{name}"
            return call

        if dtype != "bf16":
            prepare.input_dtype = dtype
        return prepare

    def broken():
        raise RuntimeError("cannot do it")

    run = ["--bench", bench, "--library", f"old={builds[0]}", "--library", f"new={builds[1]}"]
    run += "--head-dim 128 --causal 1 --batch 1 --heads 2 --kv-heads 1 --seqlen 64".split()
    run += "--passes 3 --reps 3 --warmups 1 --idle-ms 0 --head-start-ms 0".split()
    originals = peers.make_library, peers.PEERS
    by_path = {str(builds[0]): maker("old", 2.0), str(builds[1]): maker("new", 1.6, 1.001)}
    try:
        peers.make_library = lambda library: by_path[library.path]
        peers.PEERS = {
            "slow": lambda: maker("slow", 4.0),
            "slower": lambda: maker("slower", 5.0, dtype="fp32"),
            "broken": lambda: lambda *_: broken(),
            "absent": broken,
            "wrong": lambda: maker("wrong", 2.0, 2.0),
        }
        with stand_ins({"torch": made_up_torch(clock)}), contextlib.redirect_stdout(io.StringIO()) as printed:
            path = folder / "run.csv"
            assert peers.main([*run, "--peers", "slow,slower,broken,absent,tiles", "--csv", str(path)]) == 0
            with open(path, newline="") as file:
                (row,) = csv.DictReader(file)
            timed = list(order)
            assert peers.main([*run, "--peers", "wrong"]) == 1
    finally:
        peers.make_library, peers.PEERS = originals

    # Of each pass: each one's first call, whose output is compared, then each one's runs, beginning with another one.
    names = ["old", "new", "slow", "slower"]
    runs = lambda name: [name] * (1 + 1 + 3)  # for its length, to warm up, timed
    expected = [names + sum(map(runs, names[turn:] + names[:turn]), []) for turn in range(3)]
    assert timed == sum(expected, []), timed
    ratios = {name: row[f"{name}_ratio"] for name in ("new", "slow", "broken")}
    assert ratios == {"new": "1.2500", "slow": "0.5000", "broken": ""}, ratios
    assert (row["median_ms"], row["kernel"], row["passes"], row["reps"]) == ("2.00000", "fa3_old", "3", "3"), row
    assert (row["checked"], row["spread"], "absent_ratio" in row) == ("1", "0.0000", False), row
    expect(printed.getvalue(), f"old: {builds[0]}", f"new: {builds[1]}", "absent: absent: RuntimeError: cannot do it")
    expect(printed.getvalue(), "broken: RuntimeError: cannot do it", "(1.250)", "(0.500)", "broken -", "agrees")
    expect(printed.getvalue(), "NO FIGURE of broken at 1 of 1 points: RuntimeError: cannot do it")
    expect(printed.getvalue(), "NO FIGURE of tiles at 1 of 1 points: not supported")
    expect(printed.getvalue(), "new 1.250 (1.250 to 1.250)", "best of the peers 0.500", "DIFFERS", "1 points differ")


class CompilerError(Exception):
    """As those of FlashAttention-4's compiler are written: an empty line, colours, what happened further below."""

    def __init__(self, message):
        self.message = message
        super().__init__(f"\n\x1b[91merror:\x1b[0m internal\n  \x1b[91mnote:\x1b[0m {message}\n")


def test_backward_run(peers, bench, build, folder):
    """A run of backward passes with stand-ins for torch, for the library's calls, and for FlashAttention-4, which
    compiles at its first call."""
    import fa3_ctypes
    import plot

    clock, enabled, calls = [0.0], [False], collections.Counter()
    gradients = {"fa3": [1.0, 2.0, 3.0], "deterministic": [1.0, 2.0, 3.001], "fa4": [1.001, 2.0, 3.0]}  # of q, k and v

    @contextlib.contextmanager
    def grad_mode(wanted):
        before, enabled[0] = enabled[0], wanted
        try:
            yield
        finally:
            enabled[0] = before

    def flash_attn_func(q, k, v, causal):
        assert enabled[0] and causal is True and [tensor.drawn for tensor in (q, k, v)] == [1, 2, 3]
        if q.shape[3] == 256:
            raise CompilerError("\x1b[1mno head_dim 256\x1b[0m \nbut up to 128")
        clock[0] += 1000.0  # the forward pass is not timed
        return "out", "lse"

    def grad(out, leaves, dout, retain_graph):
        head_dim = dout.shape[3]
        assert out == "out" and retain_graph and (dout.drawn, dout.shape, dout.dtype) == (2, leaves[0].shape, "bf16")
        assert [(*leaf.shape[1:3], leaf.drawn) for leaf in leaves] == [(8192, 2, 1), (8192, 1, 2), (8192, 1, 3)], leaves
        clock[0] += 4.0 if calls[head_dim] else 5000.0
        calls[head_dim] += 1
        return tuple(map(MadeUp, gradients["fa4"]))

    def prepare_backward(library, q, k, v, out, lse, dout, dq, dk, dv, mask, flags):
        assert [tensor.drawn for tensor in (q, k, v, dout)] == [1, 2, 3, 2] and mask == "causal_bottom_right"
        assert (out, lse, dq, dk, dv) == ("out of 1", "lse", "like 1", "like 2", "like 3")
        name, ms = {0: ("fa3", 2.0), fa3_ctypes.FLAG_DETERMINISTIC: ("deterministic", 2.5)}[flags]

        def call():
            clock[0] += ms
            return list(map(MadeUp, gradients[name]))

        call.params = "parameters"
        return call

    torch = made_up_torch(clock, enable_grad=lambda: grad_mode(True), autograd=types.SimpleNamespace(grad=grad))
    torch.no_grad = lambda: grad_mode(False)
    torch.full_like = lambda tensor, number: f"like {tensor.drawn}"
    fa4 = types.SimpleNamespace(flash_attn_func=flash_attn_func)
    forward_outputs = unittest.mock.patch.object(fa3_ctypes, "forward_outputs", lambda q: (f"out of {q.drawn}", "lse"))
    calls_of_library = unittest.mock.patch.multiple(
        fa3_ctypes.Library,
        preload_for_torch=lambda library: None,
        forward=lambda library, *_: None,
        prepare_backward=prepare_backward,
        backward_kernel=lambda library, params: f"fa3_bwd of {params}",
    )
    path = folder / "bwd.csv"
    command = ["--bench", bench, "--library", f"fa3={build}", "--direction", "bwd"]
    command += "--head-dim 64,256 --causal 1 --batch 1 --heads 2 --kv-heads 1 --seqlen 8192 --passes 2".split()
    command += "--reps 6 --warmups 1 --idle-ms 0 --head-start-ms 0 --csv".split() + [str(path)]

    def run(names, *expected, module=fa4):
        """The exit status and the rows of the CSV."""
        modules = {"torch": torch, "flash_attn": types.ModuleType("flash_attn"), "flash_attn.cute": module}
        with stand_ins(modules), contextlib.redirect_stdout(io.StringIO()) as printed:
            status = peers.main([*command, "--peers", names])
        expect(printed.getvalue(), *expected)
        assert "\x1b" not in printed.getvalue()
        with open(path, newline="") as file:
            return status, list(csv.DictReader(file))

    with forward_outputs, calls_of_library:
        no_figure = "NO FIGURE of fa4 at 1 of 2 points: CompilerError: no head_dim 256\n"
        note = "    fa4: CompilerError: no head_dim 256\n"
        status, (row, refused) = run("fa4", note, no_figure, "agrees", "not compared")
        assert status == 0 and list(row)[-2:] == ["fa4_tflops", "fa4_ratio"], row
        assert "fa4_tflops" in [column for column, _, _ in plot.SERIES]
        # What is compiled at the first call is in no figure, and lets no call look slow.
        figures = [row[column] for column in ("direction", "median_ms", "tflops", "fa4_tflops", "fa4_ratio", "checked")]
        assert figures == ["bwd", "2.00000", "21.5", "10.7", "0.5000", "1"], figures
        assert row["kernel"] == "fa3_bwd of parameters", row
        assert calls == {64: 2 * (2 + 1 + 6)}, calls  # of each pass: for the output and its length, to warm up, timed
        assert (refused["fa4_tflops"], refused["fa4_ratio"], refused["checked"]) == ("", "", "0"), refused
        # The library with its sums in a fixed order is timed and compared like a peer, but is none.
        best = "deterministic 0.800 (0.800 to 0.800)  fa4 0.500 (0.500 to 0.500)  best of the peers 0.500"
        status, rows = run("deterministic,fa4", no_figure, best)
        names = ["deterministic_tflops", "deterministic_ratio", "fa4_tflops", "fa4_ratio", "checked"]
        assert status == 0 and list(rows[0])[-4:] == names[:4], rows[0]
        assert [rows[0][name] for name in names] == ["17.2", "0.8000", "10.7", "0.5000", "1"], rows[0]
        assert [rows[1][name] for name in names] == ["68.7", "0.8000", "", "", "1"], rows[1]
        for name, points in (("fa4", 1), ("deterministic", 2)):
            for which in range(3):  # each of the gradients is compared
                right, gradients[name][which] = gradients[name][which], 0.9 * gradients[name][which]
                status, rows = run("fa4,deterministic", "DIFFERS", f"{points} points differ: bwd bf16 d64 ")
                assert (status, rows[0]["checked"]) == (1, "0"), (name, which, rows)
                gradients[name][which] = right
        status, rows = run("fa4", "absent: fa4: ModuleNotFoundError: ", module=None)
        assert status == 0 and not any(column.startswith("fa4") for column in rows[0]), rows


def test_standard(peers):
    """`standard` against float64, whole and in parts of the batch."""
    import torch

    generator = torch.Generator().manual_seed(1)
    prepare = peers.make_standard()
    all_memory = peers.STANDARD_BYTES
    with torch.no_grad():
        for entries in (3, 2):
            for causal, kv_heads, seqlen_k in ((0, 4, 65), (1, 4, 65), (1, 2, 65), (0, 4, 33), (1, 2, 97)):
                point = made_point(peers, "bf16", 64, causal, 3, 65, 4, kv_heads, seqlen_k)
                peers.STANDARD_BYTES = all_memory if entries == 3 else 2.5 * 4 * 4 * 65 * seqlen_k
                assert peers.standard_entries(point) == entries
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


def test_plot(bench):
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
            "both,bf16,128,1,2,8192,16,16,1,1,600,1",
            "fwd,bf16,128,1,2,8192,16,16,1,1,,1",  # no figure
        )
        expect(refusal(plot.main, [write("off.csv", COLUMNS, *off)]), "none of its 6 rows", "16384 tokens")
        row = made_up("bf16", 0)[0]
        expect(refusal(plot.main, [write("keys.csv", f"{COLUMNS},seqlen_k", f"{row},513")]), "none of its 1 rows")
        expect(refusal(plot.main, [write("twice.csv", COLUMNS, row, row)]), "line 3", "a second row of bf16 d64")
        bad = write("bad.csv", COLUMNS, "fwd,bf16,128,1,two,8192,16,16,1,1,600,1")
        expect(refusal(plot.main, [bad]), "line 2", "two")
        expect(refusal(plot.main, [write("cut.csv", COLUMNS, off[1], "fwd,bf16,128,1")]), "line 3")

        # The library in another way is none of the bars.
        columns = f"{COLUMNS},fa2_tflops,deterministic_tflops"
        points = plot.read(write("read.csv", columns, *made_up("bf16", 2), *(f"{x},," for x in off)))
        assert set(points) == {("fwd", "bf16")} and len(points["fwd", "bf16"]) == 36
        assert points["fwd", "bf16"][64, 0, 512] == {"tflops": 100.0, "fa2_tflops": 200.2}
        assert [name for _, name, _ in plot.present(points["fwd", "bf16"])] == ["libfa3", "FlashAttention-2"]
        test_fp8_rows(plot, write)

        # The figure's axes are those of fa3-bench's grid, and its CSV and the committed one can be read.
        answer = listed(bench, "--set", "grid,fp16")
        lines = [answer["csv_columns"]]
        for point in answer["points"]:
            cells = {**point, **{key: int(point[key]) for key in ("causal", "two_level")}, "tflops": 1.5}
            lines.append(",".join(str(cells.get(column, "")) for column in lines[0].split(",")))
        points = plot.read(write("bench.csv", *lines))
        axes = set(itertools.product(plot.HEAD_DIMS, (0, 1), plot.SEQLENS))
        assert set(points["fwd", "bf16"]) == axes and len(points["fwd", "fp16"]) == 12
        committed = HERE.parents[1] / "tests/results/h200-bench.csv"
        points = plot.read(committed)
        assert set(points["fwd", "bf16"]) == axes and len(points["fwd", "fp16"]) == 12
        every = len(plot.SERIES) - 1  # V as tiles is of FP8
        assert all(len(values) == every for values in points["fwd", "bf16"].values())
        backward = plot.read(HERE.parents[1] / "tests/results/h200-bwd.csv")
        assert set(backward) == {("bwd", "bf16")} and set(backward["bwd", "bf16"]) == axes

        if not have("matplotlib"):
            return SKIPPED
        test_figure(plot, folder, write)
    return 0


def test_fp8_rows(plot, write):
    """V as rows and as tiles are two bars of one point: from two rows, or from one with both."""
    columns = f"{COLUMNS},v,scales,two_level,official_tflops,tiles_tflops"
    row = made_up("e4m3", 0)[0]
    rows, tiles, two_level = (f"{row},{form}" for form in ("rows,tensor,0,50,", "tiles,tensor,0,,", "tiles,tensor,1,,"))
    tiles, blocks = tiles.replace(",100,", ",120,"), f"{row},tiles,block,0,,"
    expected = {"tflops": 100.0, "tiles_tflops": 120.0, "official_tflops": 50.0}
    for lines in ((rows, tiles, two_level, blocks), (blocks, tiles, rows), (f"{row},rows,tensor,0,50,120",)):
        points = plot.read(write("fp8.csv", columns, *lines))
        assert points == {("fwd", "e4m3"): {(64, 0, 512): expected}}, points
    expect(refusal(plot.main, [write("twice8.csv", columns, tiles, rows, tiles)]), "line 4", "a second row of e4m3")


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


# --- triton -----------------------------------------------------------------------------------------------------------


def inputs(torch, generator, point, dtype):
    return [
        torch.randn(point.batch, seqlen, heads, point.head_dim, generator=generator).to(dtype)
        for seqlen, heads in ((point.seqlen, point.heads), *[(point.seqlen_k, point.kv_heads)] * 2)
    ]


def reference(torch, q, k, v, causal):
    q, k, v = (tensor.double() for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for tensor in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[3])
    if causal:
        diagonal = 1 + s.shape[3] - s.shape[2]
        s = s.masked_fill(torch.ones(s.shape[2:], dtype=torch.bool).triu(diagonal), -math.inf)
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

    import peers
    import triton_attention

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
                        point = made_point(peers, "fp16", head_dim, causal, batch, seqlen, heads, kv_heads)
                        q, k, v = inputs(torch, generator, point, torch.float16)
                        out = triton_attention.prepare(q, k, v, causal, config)()
                        error = relative(out, reference(torch, q, k, v, causal))
                        assert error < 1e-3, (point, str(config), error)
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
    part, bench, library = sys.argv[1:]
    tests = {"peers": lambda: test_peers(bench, library), "plot": lambda: test_plot(bench), "triton": test_triton}
    sys.exit(tests[part]())
