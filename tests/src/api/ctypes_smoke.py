#!/usr/bin/env python3
"""The library from another language: structs mirrored by hand, and the reference against plain Python floats.

usage: ctypes_smoke.py LIBRARY
"""
import ctypes
import math
import random
import sys
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64
from ctypes import c_void_p

FP32 = 3
NONE, TOP_LEFT, BOTTOM_RIGHT = range(3)


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("rank", c_int32), ("dim", c_int64 * 5),
                ("stride", c_int64 * 5)]


class Params(Structure):
    _fields_ = [("struct_size", c_size_t), ("flags", c_uint64), ("q", Tensor), ("k", Tensor), ("v", Tensor),
                ("o", Tensor), ("lse", Tensor), ("mask", c_int32), ("softmax_scale", c_float), ("kernel", c_char_p)]


class KernelInfo(Structure):
    _fields_ = [("struct_size", c_size_t), ("name", c_char * 64)] + \
        [(name, c_int32) for name in ("kind", "dtype", "head_dim", "head_dim_v", "causal", "block_q", "block_kv",
                                      "stages", "threads", "producer_registers", "consumer_registers",
                                      "shared_memory_bytes", "chosen", "launches", "grid", "multiprocessors")] + \
        [("tiles", c_int64), ("pieces", c_int64)]


def tensor(library, data, *dims):
    packed = Tensor(ctypes.addressof(data), FP32, len(dims), (c_int64 * 5)(*dims))
    assert library.fa3_tensor_pack(byref(packed)) == 0
    return packed


def attention(q, k, v, mask):
    """One head: lists of rows."""
    scale, out, lses = 1 / math.sqrt(len(q[0])), [], []
    for i, row in enumerate(q):
        last = {NONE: len(k), TOP_LEFT: i + 1, BOTTOM_RIGHT: i + 1 + len(k) - len(q)}[mask]
        scores = [scale * sum(a * b for a, b in zip(row, key)) for key in k[:max(0, last)]]
        weights = [math.exp(s) for s in scores]
        total = sum(weights)
        lses.append(math.log(total) if weights else -math.inf)
        out.append([sum(w * value[x] for w, value in zip(weights, v)) / total if weights else 0.0
                    for x in range(len(row))])
    return out, lses


def close(a, b):
    return a == b or abs(a - b) < 1e-5


def main():
    library = ctypes.CDLL(sys.argv[1])
    library.fa3_last_error_message.restype = c_char_p
    library.fa3_status_string.restype = c_char_p
    library.fa3_reference_forward.argtypes = [POINTER(Params), c_int]
    library.fa3_forward_check.argtypes = [POINTER(Params)]
    library.fa3_tensor_pack.argtypes = [POINTER(Tensor)]
    library.fa3_forward_kernel_info.argtypes = [POINTER(Params), c_int32, c_int32, POINTER(KernelInfo)]
    library.fa3_kernel_info_at.argtypes = [c_int, POINTER(KernelInfo)]

    batch, seqlen_q, seqlen_k, heads, heads_kv, d = 2, 6, 4, 4, 2, 3
    random.seed(3)
    numbers = lambda n: (c_float * n)(*(random.gauss(0, 1) for _ in range(n)))
    q, k, v = numbers(batch * seqlen_q * heads * d), *(numbers(batch * seqlen_k * heads_kv * d) for _ in range(2))
    o, lse = numbers(len(q)), numbers(batch * heads * seqlen_q)
    params = Params(ctypes.sizeof(Params))
    params.q, params.o = (tensor(library, data, batch, seqlen_q, heads, d) for data in (q, o))
    params.k, params.v = (tensor(library, data, batch, seqlen_k, heads_kv, d) for data in (k, v))
    params.lse = tensor(library, lse, batch, heads, seqlen_q)
    rows = lambda data, b, h, length, count: [
        [data[((b * length + i) * count + h) * d + x] for x in range(d)] for i in range(length)]
    for mask in (NONE, TOP_LEFT, BOTTOM_RIGHT):
        params.mask = mask
        status = library.fa3_reference_forward(byref(params), 0)
        assert status == 0, library.fa3_last_error_message()
        for b in range(batch):
            for h in range(heads):
                shared = h // (heads // heads_kv)
                out, lses = attention(rows(q, b, h, seqlen_q, heads), rows(k, b, shared, seqlen_k, heads_kv),
                                      rows(v, b, shared, seqlen_k, heads_kv), mask)
                for i, row in enumerate(rows(o, b, h, seqlen_q, heads)):
                    assert all(close(a, e) for a, e in zip(row, out[i])), (mask, b, h, i)
                    assert close(lse[(b * heads + h) * seqlen_q + i], lses[i]), (mask, b, h, i)

    params.mask = 9
    assert library.fa3_forward_check(byref(params)) == 1
    assert library.fa3_status_string(1) == b"invalid argument"
    assert library.fa3_last_error_message().startswith(b"mask is 9")
    params.mask, params.kernel = NONE, b"none"
    assert library.fa3_reference_forward(byref(params), 1) == 0
    for t in (params.q, params.k, params.v, params.o):
        t.dtype = 1  # bf16
        t.dim[3] = 8
        library.fa3_tensor_pack(byref(t))
    params.q.data, params.k.data, params.v.data, params.o.data, params.lse.data = (n << 20 for n in range(1, 6))
    assert library.fa3_forward_check(byref(params)) == 2
    assert library.fa3_last_error_message().startswith(b'params->kernel is "none"'), library.fa3_last_error_message()
    info = KernelInfo(ctypes.sizeof(KernelInfo))
    assert library.fa3_kernel_count() > 0 and library.fa3_kernel_info_at(0, byref(info)) == 0
    assert info.name.startswith(b"fa3_") and info.threads % 128 == 0 and info.kind == 1
    assert (info.launches, info.grid, info.multiprocessors, info.tiles, info.pieces) == (0, 0, 0, 0, 0)
    params.kernel = info.name
    if info.causal:
        params.mask = TOP_LEFT
    assert library.fa3_forward_kernel_info(byref(params), 5, 0, byref(info)) == 0, library.fa3_last_error_message()
    assert (info.launches, info.grid, info.multiprocessors, info.tiles, info.pieces) == (1, 5, 5, 8, 8)


main()
