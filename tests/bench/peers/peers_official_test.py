"""peers.py's calls of the official backward pass: what they hand to the wheel's function, with a stand-in for that
function and for torch."""

import contextlib
import ctypes
import importlib.metadata
import io
import sys
import types
import unittest.mock

import peers
import peers_bwd
import peers_bwd_official as official
import prepared
from test_helpers import expect, made_point, stand_ins

# In bytes, as the wheel's machine code has them.
OFFSETS = {
    "q": 0, "k": 8, "v_batch_stride": 40, "v_dim_stride": 96, "kv_heads": 108, "o": 112, "o_head_stride": 144,
    "lse": 152, "batch": 240, "head_dim_rounded": 268, "total_k": 280, "head_dim_v_rounded": 296, "softmax_scale": 300,
    "window_left": 584, "window_right": 588, "is_bf16": 608, "is_causal": 611, "architecture": 676,
    "multiprocessors": 680, "do": 688, "dv": 712, "dq_sums": 720, "dv_sums": 736, "do_batch_stride": 744,
    "dv_head_stride": 832, "d": 840, "lse_base_2": 848, "dq_turns": 856, "deterministic": 880,
}  # fmt: skip


class Tensor:
    """Contiguous, at an address of its own."""

    count = 0
    device = "cuda:0"

    def __init__(self, name, shape):
        Tensor.count += 1
        self.name, self.shape, self.address = name, tuple(shape), Tensor.count << 32

    def data_ptr(self):
        return self.address

    def stride(self):
        strides = [1]
        for size in self.shape[:0:-1]:
            strides.insert(0, size * strides[0])
        return tuple(strides)

    def zero_(self):
        events.append(("cleared", self.address))


events = []


def enqueue(reference, stream):
    members = {name: getattr(reference._obj, name) for name, _ in official.Parameters._fields_}
    events.append({**{name: x for name, x in members.items() if not isinstance(x, ctypes.Array)}, "stream": stream})


def made_up_torch():
    allocated = []

    def empty(shape, dtype, device):
        assert device == Tensor.device
        allocated.append(Tensor(dtype, shape))
        return allocated[-1]

    return allocated, types.SimpleNamespace(
        float32="fp32",
        int32="int32",
        empty=empty,
        full_like=lambda tensor, _: Tensor(f"d{tensor.name}", tensor.shape),
        cuda=types.SimpleNamespace(
            get_device_properties=lambda _: types.SimpleNamespace(multi_processor_count=99),
            current_stream=lambda _: types.SimpleNamespace(cuda_stream=77),
        ),
    )


def test_layout():
    assert ctypes.sizeof(official.Parameters) == 896, ctypes.sizeof(official.Parameters)
    found = {name: getattr(official.Parameters, name).offset for name in OFFSETS}
    assert found == OFFSETS, found


def test_call(causal, kv_heads):
    point = made_point("bf16", 128, causal, 3, 1000, 4, kv_heads, seqlen_k=1100)
    rows = 1024 if causal else 1040
    allocated, torch = made_up_torch()
    q, (k, v) = Tensor("q", (3, 1000, 4, 128)), (Tensor(name, (3, 1100, kv_heads, 128)) for name in "kv")
    out, lse, dout = Tensor("o", q.shape), Tensor("lse", (3, 4, 1000)), Tensor("do", q.shape)
    with stand_ins({"torch": torch}), unittest.mock.patch.object(official, "load", lambda: enqueue):
        make = official.make_official(lambda *arguments: (out, lse, dout) if arguments == (point, q, k, v) else None)
        call = make(point, q, k, v)
        del events[:]
        gradients = call()
        assert gradients == call() and [x.name for x in gradients] == ["dq", "dk", "dv"]
    (*cleared, p), again = events[: len(events) // 2], events[len(events) // 2 :]
    assert again == [*cleared, p]
    for name, tensor in zip("q k v o do dq dk dv".split(), (q, k, v, out, dout, *gradients)):
        assert p[name] == tensor.address, name
        strides = tuple(p[f"{name}_{what}_stride"] for what in ("batch", "row", "head"))
        assert strides == tensor.stride()[:3], (name, strides)
    assert (p["lse"], p["stream"], p["v_dim_stride"]) == (lse.address, 77, 1)
    numbers = "batch heads kv_heads seqlen seqlen_k seqlen_rounded seqlen_k_rounded total_q total_k multiprocessors"
    found = [p[name] for name in numbers.split()]
    assert found == [3, 4, kv_heads, 1000, 1100, rows, 1152, 3000, 3300, 99], found
    assert [p[name] for name in ("head_dim", "head_dim_rounded", "head_dim_v", "head_dim_v_rounded")] == [128] * 4
    assert abs(p["softmax_scale"] - 128**-0.5) < 1e-7 and (p["is_bf16"], p["architecture"]) == (True, 90)
    window = (p["is_causal"], p["is_local"], p["window_left"], p["window_right"])
    assert window == (bool(causal), False, 1099, 0 if causal else 999), window

    # Its memory is as large as its kernels take it to be; sums of grouped heads are cleared in each call.
    by_address = {tensor.address: (tensor.name, tensor.shape) for tensor in allocated}
    memory = {name: by_address.get(p[name]) for name in "d lse_base_2 dq_sums dq_turns dk_sums dv_sums".split()}
    sums = ("fp32", (3, kv_heads, 1152, 128)) if kv_heads < 4 else None
    assert memory == {
        "d": ("fp32", (3, 4, rows)),
        "lse_base_2": ("fp32", (3, 4, rows)),
        "dq_sums": ("fp32", (3, 4, rows, 128)),
        "dq_turns": ("int32", (3, 4, rows)),
        "dk_sums": sums,
        "dv_sums": sums,
    }, memory
    assert len({p[name] for name in memory if memory[name]}) == len(allocated)
    assert cleared == [("cleared", p[name]) for name in ("dk_sums", "dv_sums") if sums], cleared


def test_other_points():
    """The wheel has no kernels for them."""
    points = [made_point("fp16", 128, 0, 1, 64, 1, 1), made_point("bf16", 64, 0, 1, 64, 1, 1)]
    points.append(made_point("bf16", 128, 0, 1, 64, 1, 1, head_dim_v=64))
    _, torch = made_up_torch()
    with stand_ins({"torch": torch}), unittest.mock.patch.object(official, "load", lambda: enqueue):
        assert [official.make_official(None)(point, "q", "k", "v") for point in points] == [None] * 3


def imported(library=None):
    """The peer as peers.py has it, and what that prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        return peers.import_peers(["official"], library, peers_bwd).get("official"), printed.getvalue()


def test_load():
    """Another version's parameters may be laid out in another way."""
    _, torch = made_up_torch()
    version = unittest.mock.patch.object(importlib.metadata, "version", lambda _: "0.2.4")
    with stand_ins({"torch": torch}), version:
        assert imported() == (
            None,
            "absent: official: ImportError: flash_attn3_jax is 0.2.4, and only the calls of 0.2.3 are known here\n",
        )
    version = unittest.mock.patch.object(importlib.metadata, "version", lambda _: "0.2.3")
    no_file = unittest.mock.patch.object(importlib.util, "find_spec", lambda _: None)
    with stand_ins({"torch": torch}), version, no_file:
        peer, text = imported()
        assert peer is None
        expect(text, "absent: official: ImportError: flash_attn3_jax has no library for this version of Python")


def test_forward():
    """O and LSE are those of the first library."""
    point, (q, k, v) = made_point("bf16", 128, 1, 1, 64, 1, 1), (Tensor(name, (1, 64, 1, 128)) for name in "qkv")
    out, lse, dout = Tensor("o", q.shape), Tensor("lse", (1, 1, 64)), Tensor("do", q.shape)
    calls = []

    def prepare(*arguments):
        return lambda: calls.append(arguments)

    _, torch = made_up_torch()
    with (
        stand_ins({"torch": torch}),
        unittest.mock.patch.object(official, "load", lambda: enqueue),
        unittest.mock.patch.object(prepared, "forward_outputs", lambda *_: (out, lse)),
        unittest.mock.patch.object(peers_bwd, "gradient_of_output", lambda x: dout if x is out else None),
    ):
        make, text = imported(types.SimpleNamespace(prepare=prepare))
        assert text == "", text
        call = make(point, q, k, v)
        del events[:]
        call()
    assert calls == [(q, k, v, out, lse, "causal_bottom_right")], calls
    (p,) = events
    assert (p["o"], p["lse"], p["do"]) == (out.address, lse.address, dout.address), p


def main():
    test_layout()
    for causal in (0, 1):
        for kv_heads in (4, 2):
            test_call(causal, kv_heads)
    test_other_points()
    test_load()
    test_forward()


if __name__ == "__main__":
    sys.exit(main())
