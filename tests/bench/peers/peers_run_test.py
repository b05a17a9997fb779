"""Whole runs of peers.py without a GPU, with stand-ins for torch and the peers, whose clock calls move by known times.
Arguments: the program fa3-bench, the library."""

import collections
import contextlib
import csv
import io
import pathlib
import re
import shutil
import sys
import tempfile
import types
import unittest.mock

import peers
import peers_fwd
import plot
import prepared
from test_helpers import MadeUp, MadeUpTensor, expect, made_up_torch, stand_ins


def test_run(bench, builds, folder):
    """A whole run with a stand-in for torch, whose clock calls move by known times: two builds and some peers."""
    clock, order = [0.0], []

    def maker(name, ms, output=1.0, dtype="bf16"):
        def prepare(point, q, k, v):
            queries, keys, values = (1, 64, 2, 128), (1, 64, 1, 128), (1, 64, 1, 96)
            # Drawn from seed 1, in this order, whatever the dtype.
            assert (q, k, v) == ((queries, dtype, 1), (keys, dtype, 2), (values, dtype, 3)), (q, k, v)

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
    run += "--head-dim 128 --head-dim-v 96 --causal 1 --batch 1 --heads 2 --kv-heads 1 --seqlen 64".split()
    run += "--passes 3 --reps 3 --warmups 1 --idle-ms 0 --head-start-ms 0".split()
    originals = peers_fwd.make_library, peers_fwd.PEERS
    by_path = {str(builds[0]): maker("old", 2.0), str(builds[1]): maker("new", 1.6, 1.001)}
    try:
        peers_fwd.make_library = lambda library: by_path[library.path]
        peers_fwd.PEERS = {
            "slow": lambda: maker("slow", 4.0),
            "slower": lambda: maker("slower", 5.0, dtype="fp32"),
            "broken": lambda: lambda *_: broken(),
            "absent": broken,
            "wrong": lambda: maker("wrong", 2.0, 2.0),
        }
        with stand_ins({"torch": made_up_torch(clock)}), contextlib.redirect_stdout(io.StringIO()) as printed:
            path, lines = folder / "run.csv", folder / "lines.csv"
            names = "slow,slower,broken,absent,tiles"
            assert peers.main([*run, "--peers", names, "--csv", str(path), "--lines", str(lines)]) == 0
            with open(path, newline="") as file:
                (row,) = csv.DictReader(file)
            by_name = {line["peer"]: line for line in csv.DictReader(lines.read_text().splitlines())}
            timed = list(order)
            assert peers.main([*run, "--peers", "wrong", "--lines", str(lines)]) == 1
            (*_, wrong) = csv.DictReader(lines.read_text().splitlines())
    finally:
        peers_fwd.make_library, peers_fwd.PEERS = originals

    # Of each pass: each one's first call, whose output is compared, then each one's runs, beginning with another one.
    names = ["old", "new", "slow", "slower"]
    runs = lambda name: [name] * (1 + 1 + 3)  # for its length, to warm up, timed
    expected = [names + sum(map(runs, names[turn:] + names[:turn]), []) for turn in range(3)]
    assert timed == sum(expected, []), timed
    ratios = {name: row[f"{name}_ratio"] for name in ("new", "slow", "broken")}
    assert ratios == {"new": "1.2500", "slow": "0.5000", "broken": ""}, ratios
    assert (row["median_ms"], row["kernel"], row["passes"], row["reps"]) == ("2.00000", "fa3_old", "3", "3"), row
    assert (row["checked"], row["spread"], "absent_ratio" in row) == ("1", "0.0000", False), row
    assert list(by_name) == ["old", "new", "slow", "slower"], list(by_name)
    shape = ["", "bf16", "128", "1", "1", "64", "64", "2", "1", "v 96"]
    where = [row[name] for name in ("card", "driver", "date")]
    assert where[0] == "no GPU" and re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\dZ", where[2]), where
    # 2080 pairs, 2 heads, 128 + 96 numbers each; K and V are 28672 bytes.
    for name, us in (("old", "2000.00"), ("slow", "4000.00")):
        assert list(by_name[name].values()) == [*shape, name, us, us, "0.0", "0", "1", *where], by_name[name]
    assert (wrong["peer"], wrong["checked"]) == ("wrong", "0"), wrong
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


def test_backward_run(bench, build, folder):
    """A run of backward passes with stand-ins for torch, for the library's calls, and for FlashAttention-4, which
    compiles at its first call."""
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
        return MadeUpTensor(q.shape, q.dtype, "fa4's"), "lse"

    def grad(out, leaves, dout, retain_graph):
        head_dim = dout.shape[3]
        assert out.drawn == "fa4's" and retain_graph
        assert (dout.drawn, dout.shape, dout.dtype) == (2, leaves[0].shape, "bf16")
        assert [(*leaf.shape[1:3], leaf.drawn) for leaf in leaves] == [(8192, 2, 1), (8192, 1, 2), (8192, 1, 3)], leaves
        clock[0] += 4.0 if calls[head_dim] else 5000.0
        calls[head_dim] += 1
        return tuple(map(MadeUp, gradients["fa4"]))

    def prepare_backward(library, q, k, v, out, lse, dout, dq, dk, dv, mask, flags):
        assert [tensor.drawn for tensor in (q, k, v, dout)] == [1, 2, 3, 2] and mask == "causal_bottom_right"
        assert (out.drawn, lse, dq, dk, dv) == ("out of 1", "lse", "like 1", "like 2", "like 3")
        name, ms = {0: ("fa3", 2.0), prepared.fa3.FLAG_DETERMINISTIC: ("deterministic", 2.5)}[flags]

        def call():
            clock[0] += ms
            return list(map(MadeUp, gradients[name]))

        call.params = "parameters"
        return call

    torch = made_up_torch(clock, enable_grad=lambda: grad_mode(True), autograd=types.SimpleNamespace(grad=grad))
    torch.no_grad = lambda: grad_mode(False)
    torch.full_like = lambda tensor, number: f"like {tensor.drawn}"
    fa4 = types.SimpleNamespace(flash_attn_func=flash_attn_func)

    def outputs(q, head_dim_v):
        return MadeUpTensor((*q.shape[:3], head_dim_v), q.dtype, f"out of {q.drawn}"), "lse"

    forward_outputs = unittest.mock.patch.object(prepared, "forward_outputs", outputs)
    calls_of_library = unittest.mock.patch.multiple(
        prepared.Library,
        preload_for_torch=lambda library: None,
        prepare=lambda library, *_: lambda: None,
        prepare_backward=prepare_backward,
        kernel_info=lambda library, params: types.SimpleNamespace(name=f"fa3_bwd of {params}"),
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
        assert status == 0 and list(row)[-5:-3] == ["fa4_tflops", "fa4_ratio"], row
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
        assert status == 0 and list(rows[0])[-7:-3] == names[:4], rows[0]
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


def main(bench, library):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        builds = [shutil.copy(library, folder / name) for name in ("old.so", "new.so")]
        test_run(bench, builds, folder)
        test_backward_run(bench, builds[0], folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
