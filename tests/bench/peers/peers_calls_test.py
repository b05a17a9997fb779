"""The calls that peers.py times: the other ways of the library, and standard attention, whose results are checked if
there is torch. Argument: the program fa3-bench."""

import importlib.util
import sys
import types
import unittest.mock

import peers
import peers_fwd
from peers_fwd import FORMS
from peers_points import Point
from test_helpers import expect, inputs, made_point, reference, relative


def test_forms():
    """The other ways of the library: points that they are for, the library as it is asked."""
    asked = []

    def prepare_library(point, q, k, v):
        asked.append((point, q, k, v))
        return "call"

    rows, half = (made_point(dtype, 64, 0, 1, 64, 1, 1) for dtype in ("e4m3", "bf16"))
    tiles = Point(**{**vars(rows), "v": "tiles", "library_chooses": False, "kernel": "fa3_some"})
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
    chosen = Point(**{**vars(tiles), "library_chooses": True})
    assert FORMS["tiles"](None, prepare_library)(chosen, "q", "k", "v") is None  # nothing else than the point itself
    quantize = FORMS["quantize"](None, prepare_library)
    assert quantize.input_dtype == "bf16" and quantize(half, "q", "k", "v") is None and not asked


def test_decoding():
    """The official kernels are asked by their function for caches where queries are few; no other function is."""
    called = []

    def function(name):
        return lambda q, k, v, causal: called.append((name, q, k, v, causal)) or [name]

    names = ("flash_attn_func", "flash_attn_with_kvcache")
    modules = {
        "torch": types.SimpleNamespace(float16="fp16"),
        "fa3_fwd_interface": types.SimpleNamespace(**{name: function(name) for name in names}),
    }
    q = types.SimpleNamespace(dtype="bf16")
    with unittest.mock.patch.dict(sys.modules, modules):
        prepare = peers_fwd.PEERS["official"]()
        for seqlen, seqlen_k, expected in ((1, 8192, 1), (64, 65, 1), (4, 64, 0), (65, 8192, 0), (64, 64, 0)):
            point = made_point("bf16", 128, 1, 2, seqlen, 8, 2, seqlen_k)
            assert prepare(point, q, "k", "v")() == names[expected], point
            assert called.pop() == (names[expected], q, "k", "v", True)


def test_standard_entries(points):
    """Standard attention takes as many batch entries at a time as fit, and refuses where not even one does."""
    assert all(peers_fwd.standard_entries(p) == p.batch for p in points)
    long, longer, blind = (
        made_point("bf16", 128, 1, 4, seqlen, 16, 16, seqlen_k)
        for seqlen, seqlen_k in ((16384, 16384), (65536, 65536), (65536, 512))
    )
    assert peers_fwd.standard_entries(long) == 3, peers_fwd.standard_entries(long)
    for point, reason in ((longer, "275 GB"), (blind, "no key")):
        try:
            peers_fwd.standard_entries(point)
        except RuntimeError as error:
            expect(str(error), reason)
        else:
            raise AssertionError(f"accepted, expected: {reason}")


def test_standard():
    """`standard` against float64, whole and in parts of the batch."""
    import torch

    generator = torch.Generator().manual_seed(1)
    prepare = peers_fwd.make_standard()
    all_memory = peers_fwd.STANDARD_BYTES
    with torch.no_grad():
        for entries in (3, 2):
            for causal, kv_heads, seqlen_k in ((0, 4, 65), (1, 4, 65), (1, 2, 65), (0, 4, 33), (1, 2, 97)):
                point = made_point("bf16", 64, causal, 3, 65, 4, kv_heads, seqlen_k, 40 if seqlen_k == 97 else 64)
                peers_fwd.STANDARD_BYTES = all_memory if entries == 3 else 2.5 * 4 * 4 * 65 * seqlen_k
                assert peers_fwd.standard_entries(point) == entries
                q, k, v = inputs(generator, point, torch.bfloat16)
                error = relative(prepare(point, q, k, v)(), reference(q, k, v, causal))
                assert error < 6e-3, (point, error)
    peers_fwd.STANDARD_BYTES = all_memory


def main(bench):
    test_forms()
    test_decoding()
    test_standard_entries(peers.parse(["--bench", bench]).points)
    if importlib.util.find_spec("torch"):
        test_standard()


if __name__ == "__main__":
    main(*sys.argv[1:])
