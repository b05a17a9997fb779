"""The calls that go to a GPU, on the simulated driver, which computes launches on the CPU: all five, as
they are made for torch's CUDA tensors, with stand-ins for torch and them: the device, stream and workspace of each,
schedules, and a thread without a context. Argument: the library; LD_LIBRARY_PATH has the simulated libcuda.so.1."""

import contextlib
import ctypes
import random
import sys
import threading
import types

from support import fa3, refused

from fa3 import _arrays
from fa3._calls import backward as _backward
from fa3._calls import forward as _forward

ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # for the simulated driver, which calls its reference
library = fa3.load(sys.argv[1])
driver = ctypes.CDLL("libcuda.so.1")
BYTES = {"bfloat16": 2, "float32": 4, "float8_e4m3fn": 1, "uint8": 1, "int32": 4}
BATCH, SEQLEN, HEADS, D = 1, 128, 2, 64
DIMS = (BATCH, SEQLEN, HEADS, D)


class Tensor:
    """As much of a torch tensor as the module looks at; its memory is the simulated device's."""

    def __init__(self, dims, dtype, fill=None, device=None):
        self.shape, self.ndim, self.dtype, self.device = tuple(dims), len(dims), f"torch.{dtype}", device or DEVICE
        count = 1
        for n in dims:
            count *= n
        address = ctypes.c_void_p()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(count * BYTES[dtype] or 16)) == 0
        self.address, self.count = address.value, count
        self.bytes = (ctypes.c_uint8 * (count * BYTES[dtype])).from_address(self.address)
        for i in range(0, count if fill else 0):
            bits = ctypes.c_uint32.from_buffer(ctypes.c_float(fill())).value >> 16
            self.bytes[2 * i : 2 * i + 2] = bits.to_bytes(2, "little")

    def data_ptr(self):
        return self.address

    def tolist(self):
        kind = {"torch.int32": ctypes.c_int32, "torch.float32": ctypes.c_float}[self.dtype]
        flat = list((kind * self.count).from_address(self.address))
        return flat if self.ndim == 1 else [flat[at : at + self.shape[1]] for at in range(0, len(flat), self.shape[1])]

    def reshape(self, minus_one):
        assert self.ndim == 1 and minus_one == -1
        return self

    def numel(self):
        return self.count

    def is_neg(self):
        return False

    def stride(self):
        return list(fa3.make_tensor(0, "float32", self.shape).stride)[: self.ndim]


DEVICE = types.SimpleNamespace(type="cuda", index=1)
CPU = types.SimpleNamespace(type="cpu", index=None)
asked, context = [], ctypes.c_void_p()


@contextlib.contextmanager
def current_device(device):
    asked.append(("device", device.index))
    yield
    asked.append(("left", device.index))


def empty(dims, dtype, device):
    dims = (dims,) if isinstance(dims, int) else dims
    asked.append(("empty", dims, dtype))
    return Tensor(dims, dtype, device=device)


def zeros(count, device):
    asked.append(("zeros", device.index))
    assert driver.cuCtxSetCurrent(context) == 0


STREAM = types.SimpleNamespace(cuda_stream=0)
sys.modules["torch"] = types.SimpleNamespace(
    Tensor=Tensor,
    **{name: name for name in BYTES},
    empty=empty,
    zeros=zeros,
    cuda=types.SimpleNamespace(
        device=current_device,
        current_stream=lambda device: asked.append(("stream", device.index)) or STREAM,
        get_device_properties=lambda index: types.SimpleNamespace(multi_processor_count=132),
    ),
)


def run(call, *arguments, **named):
    """What a call returns, and what it asked of torch."""
    asked.clear()
    return call(*arguments, **named), list(asked)


def on_cpu(*tensors):
    for x in tensors:
        x.device = CPU


def on_gpu(*tensors):
    for x in tensors:
        x.device = DEVICE


def same(found, expected, what):
    """Up to rounding: the simulated driver computes as the reference does."""
    for x, y in zip(found, expected):
        assert (x.shape, x.dtype) == (y.shape, y.dtype) and bytes(x.bytes) == bytes(y.bytes), what


def calls():
    generator = random.Random(1)
    q, k, v, dout = (Tensor(DIMS, "bfloat16", lambda: generator.gauss(0, 1)) for _ in range(4))
    # This thread has no context yet: torch is asked for one.
    (o, lse), log = run(_forward.forward, q, k, v, fa3.MASKS["causal_bottom_right"], 0.0)
    assert log[2:] == [("device", 1), ("stream", 1), ("empty", (64,), "uint8"), ("zeros", 1), ("left", 1)], log
    (again, _), log = run(_forward.forward, q, k, v, fa3.MASKS["causal_bottom_right"], 0.0)
    assert ("zeros", 1) not in log and ("left", 1) in log, log
    same([again], [o], "again")
    gradients, log = run(_backward.backward, dout, q, k, v, o, lse, None, 2, 0.0)
    centered, log_of_centered = run(_backward.backward, dout, q, k, v, o, lse, None, 2, 0.0, fa3.FLAG_CENTERED_K)
    assert log_of_centered[-1] == ("left", 1), log_of_centered
    needed = HEADS * SEQLEN * 8  # without sums of dq, as all keys are one block
    assert [x[1][0] >= needed for x in log if x[0] == "empty" and x[2] == "uint8"] == [True], (log, needed)
    made, _ = run(_arrays.quantize, q, "block", True, True, 0, 0, None, None, None, 0.0)
    parts, lse_parts = Tensor((2, *DIMS), "bfloat16"), Tensor((2, *lse.shape), "float32")
    for i in range(2):
        size = len(o.bytes)
        parts.bytes[i * size : (i + 1) * size] = o.bytes
        lse_parts.bytes[i * len(lse.bytes) : (i + 1) * len(lse.bytes)] = lse.bytes
    merged, log = run(_arrays.combine, parts, lse_parts)
    assert [x for x in log if x[0] != "empty"] == [("device", 1), ("stream", 1), ("left", 1)], log
    cache, table = Tensor((3, 64, HEADS, D), "bfloat16"), Tensor((1, 3), "int32")
    before = Tensor((1,), "int32")
    before.bytes[:] = (32).to_bytes(4, "little")
    table.bytes[:] = b"".join(page.to_bytes(4, "little") for page in (1, 0, 2))
    _, log = run(_arrays.append, 0, k=k, k_cache=cache, cache_seqlens=before, page_table=table)
    assert [x for x in log if x[0] != "empty"] == [("device", 1), ("stream", 1), ("left", 1)], log
    row = 2 * HEADS * D
    pages = [bytes(cache.bytes[64 * row * page : 64 * row * (page + 1)]) for page in (1, 0, 2)]
    assert b"".join(pages)[32 * row : 160 * row] == bytes(k.bytes), "append"
    scales = {"q_scale": made.scale, "k_scale": made.scale, "v_scale": made.scale, "v_mean": made.mean}
    y, _ = run(_arrays.quantize, q, "block", False, False, 0, 0, None, None, None, 0.0)
    eighth, _ = run(_forward.forward, y.y, y.y, made.y, 0, 0.0, **scales)

    # The same tensors on the CPU: by the reference, which asks torch for outputs alone.
    on_cpu(q, k, v, dout, o, lse, parts, lse_parts, y.y, made.y, *scales.values())
    expected, log = run(_forward.forward, q, k, v, 2, 0.0)
    assert [x[0] for x in log] == ["empty", "empty"], log
    same([o, lse], expected, "forward")
    found = floats(gradients)
    for x, same_as in zip(floats(centered), found):  # what is taken off is 0 but for rounding
        assert max(abs(a - b) for a, b in zip(x, same_as)) <= 2.0**-7 * max(map(abs, same_as)), "centered"
    for x, reference in zip(found, floats(run(_backward.backward, dout, q, k, v, o, lse, None, 2, 0.0)[0])):
        assert max(abs(a - b) for a, b in zip(x, reference)) <= 2.0**-7 * max(map(abs, reference)), "backward"
    same(made[:3], run(_arrays.quantize, q, "block", True, True, 0, 0, None, None, None, 0.0)[0][:3], "quantize")
    same(merged, run(_arrays.combine, parts, lse_parts)[0], "combine")
    same([merged[0]], [o], "two halves that are the same")
    same(eighth, run(_forward.forward, y.y, y.y, made.y, 0, 0.0, **scales)[0], "FP8")
    on_gpu(q, k, v)
    refused(ValueError, "k.device is", _forward.forward, q, Tensor(DIMS, "bfloat16", device=CPU), v, 0, 0.0)
    return q, k, v, o


def floats(tensors):
    """Of bfloat16."""
    number = lambda low, high: ctypes.c_float.from_buffer(ctypes.c_uint32((high << 8 | low) << 16)).value
    return [[number(*x.bytes[i : i + 2]) for i in range(0, len(x.bytes), 2)] for x in tensors]


def other_thread(q, k, v, o):
    """One of autograd's, say: it has no context of its own at first."""
    made = []
    thread = threading.Thread(target=lambda: made.extend(run(_forward.forward, q, k, v, 2, 0.0)))
    thread.start()
    thread.join()
    (found, _), log = made
    assert ("zeros", 1) in log
    same([found], [o], "another thread")


def numbers(*values):
    x = Tensor((len(values),), "int32")
    x.bytes[:] = b"".join(value.to_bytes(4, "little", signed=True) for value in values)
    return x


def planned():
    """Packed queries on keys in pages, in a window and with sinks: planned in the call, and once for two calls."""
    generator = random.Random(2)
    normal = lambda *dims: Tensor(dims, "bfloat16", lambda: generator.gauss(0, 1))
    q, k, v = normal(9, 4, D), normal(6, 16, HEADS, D), normal(6, 16, HEADS, D)
    table, sinks = numbers(5, 0, 2, 3, 1, -7), Tensor((4,), "float32")
    table.shape, table.ndim = (3, 2), 2
    lengths = {"cu_seqlens_q": numbers(0, 5, 5, 9), "seqused_k": numbers(20, 31, 7), "page_table": table}
    lengths["sinks"] = sinks
    how = {"window": (9, 1), "maxima": (5, 32), **lengths}
    window = fa3.MASKS["window"]
    one, log = run(_forward.forward, q, k, v, window, 0.0, **how)
    assert [x[0] for x in log] == ["empty", "empty", "device", "stream", "empty", "left"], log
    plan, log = run(_forward.schedule, q, k, v, window, 0.0, **how)
    assert [x[0] for x in log] == ["empty", "empty", "device", "stream", "empty", "left"], log
    assert plan.dtype == "torch.uint8" and plan.shape == log[4][1] and plan.shape[0] > 64 and any(plan.bytes)
    lent = []

    class Watched(_arrays.TorchTensors):
        def run(self, params):
            lent.append((params.schedule, params.schedule_bytes))
            super().run(params)

    place, _arrays.TorchTensors = _arrays.TorchTensors, Watched
    planned, _ = run(_forward.forward, q, k, v, window, 0.0, **how, schedule=plan)
    _arrays.TorchTensors = place
    assert lent == [(plan.address, plan.shape[0])], lent
    same(planned, one, "by a schedule")
    # One that plans nothing cannot do.
    plan.bytes[:] = bytes(len(plan.bytes))
    blank, _ = run(_forward.forward, q, k, v, window, 0.0, **how, schedule=plan)
    assert bytes(blank[0].bytes) != bytes(one[0].bytes), "the schedule was not used"
    plain, _ = run(_forward.schedule, k, k, v, 0, 0.0)
    assert plain.shape == (0,)
    on_cpu(q, k, v, plan, *lengths.values())
    expected, log = run(_forward.forward, q, k, v, window, 0.0, **how, schedule=plan)
    assert [x[0] for x in log] == ["empty", "empty"] and expected[0].shape == (9, 4, D), log
    found, wanted = (floats([x[0]])[0] for x in (one, expected))
    assert max(abs(a - b) for a, b in zip(found, wanted)) <= 2.0**-8 * max(map(abs, wanted)), "planned"
    assert run(_forward.schedule, q, k, v, window, 0.0, **how)[0].shape == (0,)
    on_gpu(q, k, v)
    refused(ValueError, "cu_seqlens_q.device is", _forward.forward, q, k, v, window, 0.0, **how)


def captured(q, k, v, o):
    """On the stream that torch names: what is captured there runs when its graph does."""
    stream, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(stream), 0) == 0
    assert driver.cuStreamBeginCapture_v2(stream, 0) == 0
    STREAM.cuda_stream = stream.value
    found, _ = _forward.forward(q, k, v, 2, 0.0)
    STREAM.cuda_stream = 0
    found.bytes[:] = b"\0" * len(found.bytes)
    assert driver.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0
    assert driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)) == 0
    assert not any(found.bytes) and driver.cuGraphLaunch(executable, stream) == 0
    same([found], [o], "captured")


def refusals(q, k, v):
    """Other errors of a call are raised as they are, and nothing is tried again."""
    named = fa3.make_tensor(q.data_ptr(), "bfloat16", DIMS)
    params = fa3.ForwardParams(q=named, k=named, v=named, o=fa3.describe(Tensor(DIMS, "bfloat16")))
    assert library.workspace_size(params, 132) == library.workspace_size(params) == 64
    refused(fa3.Fa3Error, "workspace", library.enqueue, params, Tensor((64,), "uint8").data_ptr(), 63, None)
    library.check(params)
    library.preload()
    asked.clear()
    refused(NotImplementedError, 'params->kernel is "none"', _forward.forward, q, k, v, 0, 0.0, kernel="none")
    assert ("zeros", 1) not in asked


assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
q, k, v, o = calls()
other_thread(q, k, v, o)
captured(q, k, v, o)
refusals(q, k, v)
planned()
print("all five calls, as torch's CUDA tensors have them")
