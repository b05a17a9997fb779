"""One small forward call by the CPU reference and, on each Hopper GPU, by a kernel, both held against plain Python in
float64. It needs neither torch nor NumPy."""

from __future__ import annotations

import array
import ctypes
import math
import random
import struct
from typing import Iterator, List, NamedTuple, Tuple

from .. import _abi
from . import Device, call

ROWS, KEYS, HEADS, D = 40, 72, 2, 64  # one sequence, one head of K and V, a causal mask that ends at the last key
SIZES = {"q": ROWS * HEADS * D, "k": KEYS * D, "v": KEYS * D, "o": ROWS * HEADS * D, "lse": HEADS * ROWS}


class Result(NamedTuple):
    """o: (row, head, column) and lse: (head, row), flat. errors: the largest of o and lse; is_right: whether rounding
    explains them."""

    by: str
    errors: Tuple[float, float]
    is_right: bool


def _widened(bits: array.array) -> List[float]:
    """Of bf16."""
    return list(struct.unpack(f"<{len(bits)}f", b"".join(b"\0\0" + struct.pack("<H", x) for x in bits)))


def inputs() -> dict[str, array.array]:
    """Numbers of bf16, of N(0, 1)."""
    rng = random.Random(1)
    return {name: array.array("H", (struct.unpack("<HH", struct.pack("<f", rng.gauss(0, 1)))[1]
                                    for _ in range(SIZES[name]))) for name in ("q", "k", "v")}  # fmt: skip


def expected(given: dict[str, array.array]) -> Tuple[List[float], List[float]]:
    """o and lse in float64."""
    q, k, v = (_widened(given[name]) for name in ("q", "k", "v"))
    keys = [k[j * D : (j + 1) * D] for j in range(KEYS)]
    o, lse = [0.0] * SIZES["o"], [0.0] * SIZES["lse"]
    for i in range(ROWS):
        for head in range(HEADS):
            at = (i * HEADS + head) * D
            row = q[at : at + D]
            scores = [sum(map(float.__mul__, row, key)) / math.sqrt(D) for key in keys[: i + 1 + KEYS - ROWS]]
            weights = [math.exp(score) for score in scores]
            total = sum(weights)
            lse[head * ROWS + i] = math.log(total)
            for x in range(D):
                o[at + x] = sum(weight * v[j * D + x] for j, weight in enumerate(weights)) / total
    return o, lse


def params(addresses: dict[str, int]) -> _abi.ForwardParams:
    dims = {"q": (1, ROWS, HEADS, D), "k": (1, KEYS, 1, D), "v": (1, KEYS, 1, D), "o": (1, ROWS, HEADS, D)}
    tensors = {name: _abi.make_tensor(addresses[name], "bfloat16", dims[name]) for name in dims}
    lse = _abi.make_tensor(addresses["lse"], "float32", (1, HEADS, ROWS))
    return _abi.ForwardParams(**tensors, lse=lse, mask=_abi.MASKS["causal_bottom_right"])


def judged(by: str, o: array.array, lse: array.array, right: Tuple[List[float], List[float]], slack: float) -> Result:
    """slack: what there may be beside the rounding of o to bf16."""
    far = [abs(a - b) - 2.0**-8 * abs(b) > slack for a, b in zip(_widened(o), right[0])]
    far += [abs(a - b) > slack for a, b in zip(lse, right[1])]
    errors = (max(abs(a - b) for a, b in zip(_widened(o), right[0])), max(abs(a - b) for a, b in zip(lse, right[1])))
    return Result(by, errors, not any(far) and not any(map(math.isnan, errors)))


def by_reference(library: _abi.Library, given: dict[str, array.array]) -> Tuple[array.array, array.array]:
    o, lse = array.array("H", bytes(2 * SIZES["o"])), array.array("f", bytes(4 * SIZES["lse"]))
    memory = {**given, "o": o, "lse": lse}
    library.reference(params({name: x.buffer_info()[0] for name, x in memory.items()}))
    return o, lse


def by_kernel(library: _abi.Library, device: Device, given: dict[str, array.array]) -> Tuple[array.array, array.array]:
    """In the device's primary context, which stays as long as the process."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    call(driver, "cuDeviceGet", ctypes.byref(handle), device.ordinal)
    call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    call(driver, "cuCtxSetCurrent", context)
    part = 1 << 16  # bytes, more than each tensor has
    space = library.workspace_size(params(dict.fromkeys(SIZES, part)))
    call(driver, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(len(SIZES) * part + space))
    start = memory.value or 0
    addresses = {name: start + i * part for i, name in enumerate(SIZES)}

    def copy(function: str, name: str, x: array.array) -> None:
        places = [ctypes.c_uint64(addresses[name]), ctypes.c_void_p(x.buffer_info()[0])]
        places = places if function == "cuMemcpyHtoD_v2" else places[::-1]
        call(driver, function, *places, ctypes.c_size_t(len(x) * x.itemsize))

    o, lse = array.array("H", bytes(2 * SIZES["o"])), array.array("f", bytes(4 * SIZES["lse"]))
    try:
        for name, x in given.items():
            copy("cuMemcpyHtoD_v2", name, x)
        library.enqueue(params(addresses), start + len(SIZES) * part, space, None)
        call(driver, "cuCtxSynchronize")
        copy("cuMemcpyDtoH_v2", "o", o)
        copy("cuMemcpyDtoH_v2", "lse", lse)
    finally:
        call(driver, "cuMemFree_v2", memory)
    return o, lse


def selftest(library: _abi.Library, devices: List[Device]) -> Iterator[Result]:
    """Of the reference, then of a kernel on each of these devices. Unsupported: the library has no kernel for it."""
    given = inputs()
    right = expected(given)
    yield judged("the CPU reference", *by_reference(library, given), right, slack=1e-5)
    for device in devices:
        name = library.kernel_info(params(dict.fromkeys(SIZES, 1 << 16)), device.multiprocessors).name
        yield judged(f"{name} on device {device.ordinal}", *by_kernel(library, device, given), right, slack=0.01)
