"""tools/python/fa3 on NumPy arrays: the CPU reference against plain attention in float64, and refusals. Argument: the
library. Also on arrays of ml_dtypes, where there is that package."""

import os
import subprocess
import sys

from support import attention, fa3, need, refused

need("numpy")
import numpy as np  # noqa: E402

fa3.load(sys.argv[1])
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None
    print("WITHOUT ml_dtypes: no bfloat16 and no FP8 here")

random = np.random.default_rng(1)
normal = lambda *shape: random.standard_normal(shape).astype(np.float32)
# (batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim, head_dim_v)
SHAPES = ((1, 1, 1, 1, 1, 8, 8), (2, 5, 9, 4, 2, 16, 24), (1, 33, 70, 3, 1, 40, 8), (2, 17, 17, 2, 2, 3, 1))
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def inputs(shape, dtype):
    batch, seqlen_q, seqlen_k, heads, heads_kv, d, dv = shape
    dims = ((batch, seqlen_q, heads, d), (batch, seqlen_k, heads_kv, d), (batch, seqlen_k, heads_kv, dv))
    return [normal(*x).astype(dtype) for x in dims]


def check(found, exact, dtype, what):
    """Rounded once from float64, and as much again for float64's own sums of another order."""
    assert found.shape == exact.shape and found.dtype == np.dtype(dtype), (what, found.shape, found.dtype)
    error = np.abs(found.astype(np.float64) - exact)
    limit = ROUNDOFF[np.dtype(dtype).name] * np.abs(exact) + 1e-6 * (np.dtype(dtype).itemsize == 2) + 1e-12
    assert (error <= limit).all(), (what, error.max(), (error - limit).max())


def forward(dtype):
    for shape in SHAPES if dtype is np.float32 else SHAPES[:-1]:  # the last one's head dimensions are float32's only
        q, k, v = inputs(shape, dtype)
        doubles = [x.astype(np.float64) for x in (q, k, v)]
        for causal in (False, True, "top_left"):
            for scale in (None, 0.3):
                o, lse = fa3.forward(q, k, v, causal=causal, softmax_scale=scale, return_lse=True)
                exact, exact_lse = attention(np, *doubles, causal, scale and float(np.float32(scale)))
                check(o, exact, dtype, (shape, causal, scale))
                # softmax_scale is a float32, also its default.
                assert lse.dtype == np.float32 and np.abs(lse - exact_lse).max() <= 4e-6, (shape, causal, scale)
                assert np.array_equal(o, fa3.attention(q, k, v, causal=causal, softmax_scale=scale))


def views():
    """Any strides: storage by heads, backwards, every other row; and one that broadcasts."""
    q, k, v = inputs(SHAPES[1], np.float32)
    o = fa3.forward(q, k, v, causal=True)
    by_heads = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)]
    backwards = [np.ascontiguousarray(x[:, ::-1, :, ::-1])[:, ::-1, :, ::-1] for x in (q, k, v)]
    sparse = [np.repeat(x, 2, axis=1)[:, ::2] for x in (q, k, v)]
    for changed in (by_heads, backwards, sparse):
        assert not changed[0].flags.c_contiguous and np.array_equal(fa3.forward(*changed, causal=True), o)
    one = np.broadcast_to(k[:, :, :1], k.shape)
    assert np.array_equal(fa3.forward(q, one, v), fa3.forward(q, one.copy(), v))
    fields = np.zeros(4, dtype=[("a", np.float32), ("b", np.int8)])["a"].reshape(1, 4, 1, 1)
    refused(ValueError, "q.strides are", fa3.forward, fields, fields, fields)


def unseen():
    """More queries than keys under a causal mask: the first see nothing."""
    q, k, v = inputs((1, 6, 2, 1, 1, 8, 8), np.float32)
    o, lse = fa3.forward(q, k, v, causal=True, return_lse=True)
    assert (o[:, :4] == 0).all() and (lse[..., :4] == -np.inf).all() and np.isfinite(lse[..., 4:]).all()
    assert (o[:, 4:] != 0).all()


def backward():
    """By float64's own formula, with a gradient of LSE, too."""
    for shape in SHAPES:
        q, k, v = inputs(shape, np.float32)
        for causal in (False, True):
            o, lse = fa3.forward(q, k, v, causal=causal, return_lse=True)
            dout, dlse = normal(*o.shape), normal(*lse.shape)
            found = fa3.backward(dout, q, k, v, o, lse, dlse=dlse, causal=causal)
            exact = gradients(*(x.astype(np.float64) for x in (q, k, v, dout, dlse)), causal)
            for name, x, y in zip(("dq", "dk", "dv"), found, exact):
                # o and lse are inputs that were rounded to float32.
                assert x.shape == y.shape and x.dtype == np.float32 and np.abs(x - y).max() < 2e-5, (shape, name)
            without = fa3.backward(dout, q, k, v, o, lse, causal=causal, deterministic=True)
            exact = gradients(*(x.astype(np.float64) for x in (q, k, v, dout, 0 * dlse)), causal)
            assert all(np.abs(x - y).max() < 2e-5 for x, y in zip(without, exact)), shape
            out = tuple(normal(*x.shape) for x in (q, k, v))
            sums = [x + y for x, y in zip(out, exact)]
            assert fa3.backward(dout, q, k, v, o, lse, causal=causal, out=out, accumulate=True)[0] is out[0]
            assert all(np.abs(x - y).max() < 2e-5 for x, y in zip(out, sums)), shape
            fa3.backward(dout, q, k, v, o, lse, causal=causal, out=out)
            assert all(np.array_equal(x, y) for x, y in zip(out, without)), shape


def gradients(q, k, v, dout, dlse, causal):
    """dq, dk and dv by the chain rule."""
    heads_kv = k.shape[2]
    groups = q.shape[2] // heads_kv
    kk, vv = (np.repeat(x, groups, axis=2) for x in (k, v))
    scale = q.shape[3] ** -0.5
    o, lse = attention(np, q, k, v, causal)
    s = np.einsum("bihd,bjhd->bhij", q, kk) * scale
    visible = np.tril(np.ones(s.shape[2:]), k.shape[1] - q.shape[1]) if causal else 1
    p = np.exp(np.minimum(s - lse[..., None], 0)) * visible
    delta = np.einsum("bihd,bihd->bhi", dout, o) - dlse
    ds = p * (np.einsum("bihd,bjhd->bhij", dout, vv) - delta[..., None]) * scale
    sum_groups = lambda x: x.reshape(*x.shape[:2], heads_kv, groups, x.shape[3]).sum(3)
    dk, dv = np.einsum("bhij,bihd->bjhd", ds, q), np.einsum("bhij,bihd->bjhd", p, dout)
    return np.einsum("bhij,bjhd->bihd", ds, kk), sum_groups(dk), sum_groups(dv)


def combine():
    """Two halves of the keys give what all of them give."""
    q, k, v = inputs((2, 5, 12, 4, 2, 16, 24), np.float32)
    whole, whole_lse = fa3.forward(q, k, v, return_lse=True)
    halves = [fa3.forward(q, k[:, part], v[:, part], return_lse=True) for part in (slice(0, 5), slice(5, 12))]
    o_parts, lse_parts = (np.stack(x) for x in zip(*halves))
    o, lse = fa3.combine(o_parts, lse_parts)
    assert np.abs(o - whole).max() < 1e-6 and np.abs(lse - whole_lse).max() < 1e-6
    assert np.array_equal(o, fa3.combine(o_parts, lse_parts, return_lse=False))
    assert fa3.combine(o_parts, lse_parts, out_dtype="float16")[0].dtype == np.float16
    out = np.empty_like(o)
    assert fa3.combine(o_parts, lse_parts, out=out)[0] is out and np.array_equal(out, o)


def append():
    """Rows behind those that a cache has, keys rotated by their positions there."""
    k, v, q = (np.random.default_rng(i).standard_normal((2, 3, 2, 16)).astype(np.float16) for i in range(3))
    k_cache, v_cache = np.zeros((2, 2, 9, 2, 16), np.float16)
    angles = np.arange(9)[:, None] * np.logspace(0, -3, 8)
    tables = {"rotary_cos": np.cos(angles).astype(np.float32), "rotary_sin": np.sin(angles).astype(np.float32)}
    before = np.array([4, 7], np.int32)
    rotated = fa3.append(k, v, k_cache, v_cache, cache_seqlens=before, q=q, **tables)
    for b, start in enumerate(before):
        count = min(3, 9 - start)
        turns = np.exp(1j * angles[start : start + count, None])
        for x, found in ((k, k_cache[b, start:]), (q, rotated[b])):
            pairs = (x[b, :count, :, :8].astype(float) + 1j * x[b, :count, :, 8:]) * turns
            check(found[:count], np.concatenate((pairs.real, pairs.imag), -1), np.float16, "append")
        assert np.array_equal(v_cache[b, start : start + count], v[b, :count]) and not v_cache[b, :start].any()
        assert not k_cache[b, :start].any()
    assert fa3.append(k, None, k_cache, None, cache_seqlens=before) is None
    assert np.array_equal(k_cache[0, 4:7], k[0])
    # Packed rows into pages, and the same by slots.
    rows, values = k.reshape(6, 2, 16), v.reshape(6, 2, 16)
    table, sums = np.array([[4, 1, 3], [0, 5, 2]], np.int32), np.array([0, 2, 6], np.int32)
    slots = np.array([table[b, at // 4] * 4 + at % 4 for b, at in ((0, 4), (0, 5), *((1, 7 + i) for i in range(4)))])
    pages, slotted = np.zeros((2, 2, 6, 4, 2, 16), np.float16)
    fa3.append(rows, values, *pages, cache_seqlens=before, page_table=table, cu_seqlens_new=sums)
    fa3.append(rows, values, *slotted, slot_mapping=slots)
    assert np.array_equal(pages, slotted) and np.count_nonzero(pages.any((-1, -2))) == 12
    for x, cache in zip((rows, values), pages):
        assert np.array_equal(cache.reshape(24, 2, 16)[slots], x)
    if ml_dtypes:
        caches = np.zeros((2, 2, 9, 2, 16), ml_dtypes.float8_e4m3fn)
        scales = {f"{name}_scale": np.array([[[0.5], [0.02]]], np.float32) for name in "kv"}
        fa3.append(k, v, *caches, cache_seqlens=np.array([4, 6], np.int32), **scales)
        for x, cache in zip((k, v), caches):
            expected = (x / scales["k_scale"].reshape(2, 1)).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
            assert np.array_equal(cache[0, 4:7], expected[0]) and np.array_equal(cache[1, 6:], expected[1])


def quantized():
    """What is quantized is close to what it was, and so is attention of it."""
    bf16 = ml_dtypes.bfloat16
    q, k, v = inputs((1, 70, 130, 4, 2, 32, 48), bf16)
    v = (v + bf16(2)).astype(bf16)
    for scales in ("tensor", "head", "block"):
        made = fa3.quantize(v, scales=scales, mean=True)
        assert made.y.dtype == ml_dtypes.float8_e4m3fn and made.scale.shape == fa3.scale_dims(scales, 1, 2, 130)
        rows = np.repeat(np.broadcast_to(made.scale, (1, 2, made.scale.shape[2])), 64, axis=2)[..., :130]
        rows = rows if scales == "block" else np.broadcast_to(made.scale, (1, 2, 130))
        back = made.y.astype(np.float64) * rows.transpose(0, 2, 1)[..., None] + made.mean[:, None]
        error, size = np.abs(back - v.astype(np.float64)), np.abs(v.astype(np.float64) - made.mean[:, None])
        assert (error <= 0.0626 * size + rows.max() / 512).all(), (scales, error.max())
    exact, _ = attention(np, *(x.astype(np.float64) for x in (q, k, v)), True)
    for tiles in (False, True):
        q8, k8 = (fa3.quantize(x, incoherent=True, seed=7) for x in (q, k))
        v8 = fa3.quantize(v, tiles=tiles, mean=True)
        named = {"q_scale": q8.scale, "k_scale": k8.scale, "v_scale": v8.scale, "v_mean": v8.mean}
        o = fa3.forward(q8.y, k8.y, v8.y, causal=True, **named)
        assert o.dtype == bf16 and np.sqrt(np.mean((o.astype(np.float64) - exact) ** 2)) < 0.05
        singly = fa3.forward(q8.y, k8.y, v8.y, causal=True, out_dtype=np.float32, two_level=True, **named)
        assert np.abs(singly - o.astype(np.float32)).max() <= 2.0**-8 * np.abs(singly).max()
    # V as tiles is the same V, whose gradient comes in rows.
    v8s = [fa3.quantize(v, tiles=tiles) for tiles in (False, True)]
    named = {"q_scale": q8.scale, "k_scale": k8.scale, "v_scale": v8s[0].scale, "causal": True}
    o, lse = fa3.forward(q8.y, k8.y, v8s[0].y, return_lse=True, **named)
    rows, tiled = (fa3.backward(o, q8.y, k8.y, x.y, o, lse, **named) for x in v8s)
    for x, y, like in zip(rows, tiled, (q, k, v)):
        assert x.shape == like.shape and x.any() and np.array_equal(x, y)
    # Queries of 16 bits over keys and values of FP8: what these are is exact, and so is all but o's rounding.
    wide, *caches = normal(2, 5, 4, 32).astype(np.float16), *(normal(2, 9, 2, 32).astype(v8.y.dtype) for _ in "kv")
    named = {f"{name}_scale": np.array([[[0.5], [3]], [[1], [0.02]]], np.float32) for name in "kv"}
    doubles = [x.astype(np.float64) * named["k_scale"].reshape(2, 1, 2, 1) for x in caches]
    o = fa3.forward(wide, *caches, causal=True, **named)
    check(o, attention(np, wide.astype(np.float64), *doubles, True)[0], np.float16, "over FP8")
    refused(ValueError, "v_scale is absent", fa3.forward, wide, *caches, k_scale=named["k_scale"])
    # K without its mean changes all scores of a row alike; lse_offset makes up for it.
    k8 = fa3.quantize(k, mean=True)
    q8 = fa3.quantize(q, k_mean=k8.mean, softmax_scale=0.2)
    v8 = fa3.quantize(v)
    named = {"q_scale": q8.scale, "k_scale": k8.scale, "v_scale": v8.scale, "softmax_scale": 0.2}
    _, lse = fa3.forward(q8.y, k8.y, v8.y, lse_offset=q8.lse_offset, return_lse=True, **named)
    _, exact = attention(np, *(x.astype(np.float64) for x in (q, k, v)), False, 0.2)
    assert np.abs(lse - exact).max() < 0.05, np.abs(lse - exact).max()
    x = normal(1, 20, 2, 32).astype(bf16)
    angles = random.uniform(0, 6, (20, 8)).astype(np.float32)
    for interleaved in (False, True):
        made = fa3.quantize(x, rotary_cos=np.cos(angles), rotary_sin=np.sin(angles), rotary_interleaved=interleaved)
        first, second = (slice(0, 16, 2), slice(1, 16, 2)) if interleaved else (slice(0, 8), slice(8, 16))
        turned, a, b = x.astype(np.float64), x[..., first].astype(float), x[..., second].astype(float)
        cos, sin = np.cos(angles)[None, :, None], np.sin(angles)[None, :, None]
        turned[..., first], turned[..., second] = a * cos - b * sin, a * sin + b * cos
        back = made.y.astype(np.float64) * made.scale.transpose(0, 2, 1)[..., None]
        assert (np.abs(back - turned) <= 0.0626 * np.abs(turned) + made.scale.max() / 512).all()


def empty():
    """Of NumPy's empty arrays all strides are 0."""
    zeros = lambda *dims: np.zeros(dims, np.float32)
    bf16 = ml_dtypes.bfloat16
    for batch, seqlen, heads in ((2, 0, 3), (0, 5, 3), (2, 5, 0)):
        x = np.zeros((batch, seqlen, heads, 16), bf16)
        turn = {"rotary_cos": zeros(seqlen, 8), "rotary_sin": zeros(seqlen, 8)}
        for how in ({}, {"tiles": True}, {"mean": True}, turn, {"k_mean": zeros(batch, heads, 16)}):
            for scales in ("block", "head", "tensor"):
                made = fa3.quantize(x, scales=scales, **how)
                assert made.y.shape == (fa3.tile_dims(*x.shape) if "tiles" in how else x.shape)
                assert made.scale.shape == fa3.scale_dims(scales, batch, heads, seqlen) and (made.scale == 1).all()
                assert not made.mean.any() if "mean" in how else made.mean is None
                assert made.lse_offset.shape == (batch, heads, seqlen) if "k_mean" in how else made.lse_offset is None
    for seqlen_q, seqlen_k in ((0, 5), (5, 0), (0, 0)):
        q, k, v = inputs((2, seqlen_q, seqlen_k, 4, 2, 16, 24), np.float32)
        o, lse = fa3.forward(q, k, v, return_lse=True)
        assert o.shape == (2, seqlen_q, 4, 24) and not o.any() and (lse == -np.inf).all()
        gradients = fa3.backward(o, q, k, v, o, lse)
        assert all(x.shape == y.shape and not x.any() for x, y in zip(gradients, (q, k, v)))


def kernels():
    q, k, v = (np.empty((2, n, 4, 128), np.float16) for n in (300, 500, 500))
    info = fa3.kernel_info(q, k, v, causal=True)
    assert info.name.startswith("fa3_fwd") and (info.head_dim, info.causal, info.multiprocessors) == (128, 1, 132), info
    fits = lambda x: (x.kind, x.dtype, x.head_dim, x.head_dim_v, x.causal) == (1, fa3.DTYPES["float16"], 128, 128, 0)
    names = [x.name for x in fa3.kernels() if fits(x) and "_window_" not in x.name]
    assert len(names) > 1 and [fa3.kernel_info(q, k, v, kernel=name).name for name in names] == names
    refused(NotImplementedError, 'params->kernel is "none"', fa3.kernel_info, q, k, v, kernel="none")
    padded = np.empty((2, 300, 4, 132), np.float16)[..., :128]
    refused(ValueError, "q.stride[2] is 132, must be a multiple of 8", fa3.kernel_info, padded, k, v)


def refusals():
    q, k, v = inputs(SHAPES[1], np.float32)
    refused(ValueError, "k.dim[2]", fa3.forward, q, np.repeat(k, 3, 2)[:, :, :3], np.repeat(v, 3, 2)[:, :, :3])
    refused(fa3.InvalidArgument, "k.dim[3]", fa3.forward, q, k[..., :8], v)
    refused(fa3.Fa3Error, "v.dim[1]", fa3.forward, q, k, v[:, :3])
    refused(ValueError, "q has 3 dimensions", fa3.forward, q[0], k, v)
    refused(ValueError, "v has 3 dimensions", fa3.forward, q, k, v[0])
    refused(ValueError, "q has 6 dimensions", fa3.forward, q[None, None], k, v)
    refused(ValueError, "q.dtype is float64", fa3.forward, q.astype(np.float64), k, v)
    refused(ValueError, "q.dtype is dtype('>f4')", fa3.forward, q.astype(">f4"), k, v)
    refused(ValueError, "k.dtype", fa3.forward, q, k.astype(np.float16), v)
    refused(TypeError, "k is list, must be", fa3.forward, q, [1.0], v)
    refused(ValueError, "causal is 'left'", fa3.forward, q, k, v, causal="left")
    refused(ValueError, "softmax_scale is 0", fa3.attention, q, k, v, softmax_scale=0)
    refused(ValueError, "softmax_scale", fa3.attention, q, k, v, softmax_scale=-1.0)
    for tiny in (1e-46, -1e-46):  # float32 has no such number
        refused(ValueError, f"softmax_scale is {tiny}, in float32 0", fa3.attention, q, k, v, softmax_scale=tiny)
    assert np.isfinite(fa3.attention(q, k, v, softmax_scale=1e-45)).all()
    refused(TypeError, "softmax_scale is 'x', must be a number", fa3.attention, q, k, v, softmax_scale="x")
    for causal in ([True], None, 2, {}):
        refused(ValueError, f"causal is {causal!r}, must be", fa3.attention, q, k, v, causal=causal)
    for kernel in ("", 5):
        why = f"kernel is {kernel!r}, must be None or the name"
        refused(ValueError, why, fa3.forward, q, k, v, kernel=kernel)
        refused(ValueError, why, fa3.backward, q, q, k, v, q, q[..., 0], kernel=kernel)
        refused(ValueError, why, fa3.kernel_info, q, k, v, kernel=kernel)
    refused(TypeError, "k is absent (None), must be", fa3.forward, q, None, v)
    refused(ValueError, "seed is -1, must be from 0 to 2**64 - 1", fa3.quantize, q.astype(np.float16), seed=-1)
    refused(ValueError, "q_scale", fa3.forward, q, k, v, q_scale=np.ones((1, 1, 1), np.float32))
    refused(ValueError, "flags", fa3.forward, q, k, v, two_level=True)
    refused(ValueError, "lse_parts.dim[0]", fa3.combine, np.stack([q, q]), np.zeros((3, 2, 4, 5), np.float32))
    refused(ValueError, "scales is 'row'", fa3.quantize, q.astype(np.float16), scales="row")
    if not ml_dtypes:
        refused(ImportError, "needs the package ml_dtypes", fa3.quantize, q.astype(np.float16))
    refused(ValueError, "x has 3 dimensions", fa3.quantize, q[0])
    o, lse = fa3.forward(q, k, v, return_lse=True)
    refused(ValueError, "dout.dim[1]", fa3.backward, o[:, :2], q, k, v, o, lse)
    refused(ValueError, "accumulate is True, and there is no out", fa3.backward, o, q, k, v, o, lse, accumulate=True)
    refused(ValueError, "dlse.dim[2]", fa3.backward, o, q, k, v, o, lse, dlse=lse[..., :2])
    refused(OSError, "FA3_LIBRARY may name it", fa3.Library, "/nowhere/libfa3.so")
    refused(OSError, "libm.so.6", fa3.Library, "/lib/x86_64-linux-gnu/libm.so.6/x")


def no_numpy_needed():
    """Importing the module imports neither NumPy nor torch, and asks for no library."""
    code = "import sys, fa3; assert not {'numpy', 'torch', 'ml_dtypes'} & sys.modules.keys()"
    paths = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(fa3.__file__)), "FA3_LIBRARY": "/nowhere"}
    subprocess.run([sys.executable, "-c", code], env=paths, check=True)


for dtype in [np.float32, np.float16] + ([ml_dtypes.bfloat16] if ml_dtypes else []):
    forward(dtype)
for case in (views, unseen, backward, append, combine, kernels, refusals, no_numpy_needed):
    case()
if ml_dtypes:
    quantized()
    empty()
print("NumPy agrees")
