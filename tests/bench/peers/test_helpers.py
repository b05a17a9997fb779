"""What the tests of this folder's Python share: points, attention in float64, stand-ins for torch, and what is around
an assertion."""

import contextlib
import importlib.util
import io
import itertools
import json
import math
import pathlib
import subprocess
import sys
import types
import typing
import xml.etree.ElementTree

from peers_points import Point

SKIPPED = 77
HERE = pathlib.Path(__file__).resolve().parents[3] / "tools/peers"


def have(*modules):
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        print(f"SKIPPED: {sys.executable} has no {' and no '.join(absent)}")
    return not absent


def expect(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in {text[-400:]!r}"


def refusal(call, *arguments):
    """What a command line is refused with."""
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            call(*arguments)
        except SystemExit as stop:
            assert stop.code == 2, stop.code
            return errors.getvalue()
    raise AssertionError(f"accepted: {arguments}")


def texts(path):
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg", root.tag
    return ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]


def listed(bench, *words):
    """What fa3-bench says of its points."""
    done = subprocess.run([bench, *words, "--list", "--json", "-"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def made_point(dtype, head_dim, causal, batch, seqlen, heads, kv_heads, seqlen_k=None, head_dim_v=None):
    """A point without fa3-bench."""
    return Point(
        dtype=dtype,
        head_dim=head_dim,
        head_dim_v=head_dim_v or head_dim,
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


def inputs(generator, point, dtype):
    import torch

    return [
        torch.randn(point.batch, seqlen, heads, head_dim, generator=generator).to(dtype)
        for seqlen, heads, head_dim in (
            (point.seqlen, point.heads, point.head_dim),
            (point.seqlen_k, point.kv_heads, point.head_dim),
            (point.seqlen_k, point.kv_heads, point.head_dim_v),
        )
    ]


def reference(q, k, v, causal):
    """Attention in float64."""
    import torch

    q, k, v = (tensor.double() for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for tensor in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[3])
    if causal:
        diagonal = 1 + s.shape[3] - s.shape[2]
        s = s.masked_fill(torch.ones(s.shape[2:], dtype=torch.bool).triu(diagonal), -math.inf)
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v)


def relative(ours, exact):
    """The relative RMS error."""
    assert ours.shape == exact.shape
    return ((ours.double() - exact).norm() / exact.norm()).item()


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
