"""tools/python/fa3 on torch tensors: values and gradients against float64, torch.compile, torch.library.opcheck,
autocast, checkpoints, FP8, refusals; on the CPU by the reference, and on a GPU by the kernels, with streams, threads,
graphs and several devices. Argument: the library. Skipped without torch; cases for CUDA say so where there is no Hopper
GPU."""

import os
import subprocess
import sys
import threading

from support import ROOT, attention, fa3, need, refused

need("torch")
import torch  # noqa: E402
import torch._dynamo.testing  # noqa: E402

fa3.load(sys.argv[1])
CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
DTYPES = {"cpu": (torch.float32, torch.bfloat16, torch.float16), "cuda": (torch.bfloat16, torch.float16)}
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# (batch, seqlen_q, seqlen_k, heads, heads_kv, head_dim, head_dim_v)
SHAPES = ((1, 1, 9, 2, 1, 8, 8), (2, 5, 9, 4, 2, 16, 24), (1, 70, 130, 3, 1, 64, 64))


def inputs(shape, device, dtype, seed=1):
    """q, k, v and gradients of o and of lse; the same numbers on each device."""
    generator = torch.Generator().manual_seed(seed)
    batch, seqlen_q, seqlen_k, heads, heads_kv, d, dv = shape
    dims = ((batch, seqlen_q, heads, d), (batch, seqlen_k, heads_kv, d), (batch, seqlen_k, heads_kv, dv),
            (batch, seqlen_q, heads, dv), (batch, heads, seqlen_q))  # fmt: skip
    *tensors, dlse = (torch.randn(x, generator=generator).to(device) for x in dims)
    return [*(x.to(dtype) for x in tensors), dlse]


def leaves(*tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def exact(q, k, v, dout, dlse, causal, scale=None):
    """[o, lse, dq, dk, dv] in float64."""
    q, k, v = leaves(*(x.double() for x in (q, k, v)))
    o, lse = attention(torch, q, k, v, causal, scale)
    return [o, lse, *torch.autograd.grad((o, lse), (q, k, v), (dout.double(), dlse.double()))]


def close(found, expected, dtype, what, gradient_dtype=None):
    """Gradients come from o and products that were rounded, so by a few roundoffs of their size, not of each."""
    for name, x, y in zip(("o", "lse", "dq", "dk", "dv"), found, expected):
        wanted = torch.float32 if name == "lse" else dtype if name == "o" else gradient_dtype or dtype
        assert x.shape == y.shape and x.dtype == wanted, (what, name, x.dtype)
        limit = 4 * max(ROUNDOFF[dtype], 1e-6) * max(1.0, y.abs().max().item())
        worst = (x.double() - y).abs().max().item()
        assert worst <= limit, (what, name, worst, limit)


# ---- values and gradients ----


def gradients(device):
    for dtype in DTYPES[device]:
        for shape in SHAPES:
            for causal, scale in ((False, None), (True, 0.3)):
                *tensors, dout, dlse = inputs(shape, device, dtype)
                q, k, v = leaves(*tensors)
                o, lse = fa3.attention(q, k, v, causal=causal, softmax_scale=scale, return_lse=True)
                found = [o, lse, *torch.autograd.grad((o, lse), (q, k, v), (dout, dlse), retain_graph=True)]
                close(found, exact(q, k, v, dout, dlse, causal, scale), dtype, (device, dtype, shape, causal))
                assert torch.equal(o, fa3.forward(*tensors, causal=causal, softmax_scale=scale))
                # Each gradient alone, the other being none.
                for out, given, other in ((o, (dout, 0 * dlse), 0), (lse, (0 * dout, dlse), 1)):
                    alone = torch.autograd.grad(out, (q, k, v), given[other], retain_graph=True)
                    expected = exact(q, k, v, *given, causal, scale)[2:]
                    close([o, lse, *alone], [o, lse, *expected], dtype, (device, dtype, shape, other))
                direct = fa3.backward(dout, *tensors, o, lse, dlse=dlse, causal=causal, softmax_scale=scale,
                                      deterministic=True)  # fmt: skip
                close([o, lse, *direct], [o, lse, *found[2:]], dtype, "backward")
                wide = [torch.randn(x.shape, dtype=torch.float32, device=device) for x in tensors]
                sums = [x + y.float() for x, y in zip(wide, direct)]
                how = {"dlse": dlse, "causal": causal, "softmax_scale": scale, "out": wide, "accumulate": True}
                if device == "cpu" or max(tensors[0].shape[-1], tensors[2].shape[-1]) <= 128:
                    assert fa3.backward(dout, *tensors, o, lse, **how)[1] is wide[1]
                    close([o, lse, *wide], [o, lse, *sums], dtype, "accumulate", torch.float32)


def repeated(device):
    """deterministic gives the same bits, also by torch's own setting."""
    tensors = inputs((2, 300, 520, 4, 2, 64, 64), device, DTYPES[device][-1])
    q, k, v = leaves(*tensors[:3])
    run = lambda **how: torch.autograd.grad(fa3.attention(q, k, v, causal=True, **how), (q, k, v), tensors[3])
    same = lambda a, b: all(torch.equal(x, y) for x, y in zip(a, b))
    assert same(run(deterministic=True), run(deterministic=True))
    torch.use_deterministic_algorithms(True)
    try:
        assert same(run(), run(deterministic=True))
    finally:
        torch.use_deterministic_algorithms(False)


def asked(device):
    """The backward pass is asked for the same bits by its own flag, by the forward pass's, and by torch's setting."""
    flags, run = [], fa3._arrays.TorchTensors.run

    def record(self, params):
        flags.append((params.call, params.flags))
        run(self, params)

    tensors = inputs(SHAPES[1], device, DTYPES[device][-1])
    q, k, v = leaves(*tensors[:3])
    differentiate = lambda **how: torch.autograd.grad(fa3.attention(q, k, v, **how), (q, k, v), tensors[3])
    fa3._arrays.TorchTensors.run = record
    try:
        differentiate()
        differentiate(deterministic=True)
        torch.use_deterministic_algorithms(True)
        differentiate()
        torch.use_deterministic_algorithms(False)
        o, lse = fa3.forward(*tensors[:3], return_lse=True)
        fa3.backward(tensors[3], *tensors[:3], o, lse, deterministic=True)
    finally:
        torch.use_deterministic_algorithms(False)
        fa3._arrays.TorchTensors.run = run
    backward = [given for call, given in flags if call == "backward"]
    assert backward == [0, fa3.FLAG_DETERMINISTIC, fa3.FLAG_DETERMINISTIC, fa3.FLAG_DETERMINISTIC], flags


def odd_gradients(device):
    """dout as autograd hands it over: one number broadcast, transposed, without alignment."""
    dtype = DTYPES[device][0]
    *tensors, dout, _ = inputs(SHAPES[1], device, dtype)
    q, k, v = leaves(*tensors)
    for make in (lambda x: x.sum(), lambda x: (x.transpose(1, 3) * dout.transpose(1, 3)).sum(),
                 lambda x: (torch.cat([x.flatten(), x.new_zeros(1)])[: x.numel()] * dout.flatten()).sum()):  # fmt: skip
        found = torch.autograd.grad(make(fa3.attention(q, k, v)), (q, k, v))
        o = attention(torch, *(doubles := leaves(*(x.double() for x in (q, k, v)))), False)[0]
        weights = torch.autograd.grad(make(x := o.detach().to(dtype).requires_grad_()), x)[0].double()
        expected = torch.autograd.grad(o, doubles, weights)
        close([o.to(dtype), o.float()[..., 0], *found], [o, o[..., 0], *expected], dtype, "odd")
    base = torch.zeros(dout.numel() + 1, dtype=dtype, device=device)
    unaligned = base[1:].view(dout.shape).copy_(dout)
    aligned = torch.cat([dout, dout[..., :1]], -1)[..., :-1]  # rows that are one element longer than they look
    for x in (unaligned, dout.sum().expand(dout.shape), dout.transpose(1, 3).contiguous().transpose(1, 3),
              torch.cat([dout[..., :1], dout], -1)[..., 1:], aligned):  # fmt: skip
        readable = fa3._frameworks.torch.readable(x)
        assert torch.equal(readable, x) and readable.stride(3) == 1 and readable.data_ptr() % 16 == 0
        assert all(stride * x.element_size() % 16 == 0 for stride in readable.stride()[:3])
    o, lse = fa3.forward(*tensors, return_lse=True)
    a, b = (fa3.backward(x, *tensors, o, lse, deterministic=True) for x in (unaligned, dout))
    assert all(torch.equal(x, y) for x, y in zip(a, b))


def views(device):
    """Slices of one packed tensor, by heads, and broadcast K and V."""
    dtype = DTYPES[device][0]
    generator = torch.Generator().manual_seed(3)
    packed = torch.randn(2, 33, 6, 16, generator=generator).to(device, dtype)
    q, k, v = packed.split((2, 2, 2), dim=2)
    copies = [x.contiguous() for x in (q, k, v)]
    o = fa3.attention(*copies, causal=True)
    assert torch.equal(fa3.attention(q, k, v, causal=True), o)
    by_heads = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in copies]
    assert torch.equal(fa3.attention(*by_heads, causal=True), o) and o.is_contiguous()
    one = copies[1][:1].expand(2, -1, -1, -1)
    assert torch.equal(fa3.attention(q, one, v), fa3.attention(q, one.contiguous(), v))


def negative(device):
    """Tensors with torch's negative bit, as that of conj().imag: memory has their numbers with the other sign. In calls
    that were made before, and in others; what they are written to must have none."""
    dtype = DTYPES[device][0]
    q, k, v, dout, _ = inputs(SHAPES[1], device, dtype)
    minus = lambda x: torch._neg_view(-x)
    assert minus(q).is_neg() and torch.equal(minus(q), q)
    expected = fa3.forward(q, k, v, causal=True, return_lse=True)
    ways = [(minus(q), k, v), (q, minus(k), v), (q, k, minus(v))]
    if dtype == torch.float32:
        ways.append((torch.complex(q.new_zeros(q.shape), -q).conj().imag, k, v))
        assert ways[-1][0].is_neg()
    for way in ways:
        for call in (fa3.forward, fa3.attention):
            assert all(map(torch.equal, call(*way, causal=True, return_lse=True), expected))
    used = torch.tensor([3] * k.shape[0], dtype=torch.int32, device=device)
    out, short = torch.empty_like(dout), fa3.forward(q, k, v, seqused_k=used)
    for query, lengths in ((q, used), (minus(q), used), (q, minus(used))):
        assert fa3.forward(query, k, v, seqused_k=lengths, out=out) is out and torch.equal(out, short)
    how = {"causal": True, "deterministic": True}
    gradients = [fa3.backward(x, *way, *expected, **how) for x, way in ((dout, (q, k, v)), (minus(dout), ways[1]))]
    assert all(map(torch.equal, *gradients))
    rows = [x.bfloat16() for x in (k, v)]
    caches, at = [[torch.zeros_like(x) for x in rows] for _ in range(2)], {"cache_seqlens": torch.zeros_like(used)}
    fa3.append(*rows, *caches[0], **at), fa3.append(minus(rows[0]), rows[1], *caches[1], **at)
    assert all(map(torch.equal, *caches)) and torch.equal(caches[0][0], rows[0])
    parts = torch.stack([expected[0]] * 2), torch.stack([expected[1]] * 2)
    assert all(map(torch.equal, fa3.combine(minus(parts[0]), parts[1]), fa3.combine(*parts)))
    text = "has torch's negative bit"
    refused(ValueError, f"q {text}", fa3.describe, minus(q), "q")
    refused(ValueError, f"out {text}", fa3.forward, q, k, v, out=minus(out))
    refused(ValueError, f"out {text}", fa3.combine, *parts, out=minus(out))
    refused(ValueError, f"v_cache {text}", fa3.append, *rows, rows[0], minus(rows[1]), **at)
    refused(ValueError, f"dk {text}", fa3.backward, dout, q, k, v, *expected, causal=True, out=(q, minus(k), v))


def modes(device):
    """Without gradients, with only one, in inference mode, recomputed, under autocast."""
    dtype = DTYPES[device][0]
    *tensors, dout, _ = inputs(SHAPES[1], device, dtype)
    q, k, v = leaves(*tensors)
    o = fa3.attention(q, k, v, causal=True, deterministic=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            inside = fa3.attention(q, k, v, causal=True)
            assert torch.equal(inside, o) and not inside.requires_grad
    expected = torch.autograd.grad(o, (q, k, v), dout)
    only = leaves(tensors[1])[0]
    alone = fa3.attention(tensors[0], only, tensors[2], causal=True, deterministic=True)
    assert torch.equal(torch.autograd.grad(alone, only, dout)[0], expected[1])
    recomputed = torch.utils.checkpoint.checkpoint(
        lambda *x: fa3.attention(*x, causal=True, deterministic=True), q, k, v, use_reentrant=False)  # fmt: skip
    found = torch.autograd.grad(recomputed, (q, k, v), dout)
    assert all(torch.equal(x, y) for x, y in zip(found, expected))
    # Not what saved tensors are there for: to be changed in between.
    changed = fa3.attention(q, k, v)
    with torch.no_grad():
        q.add_(1)
    refused(RuntimeError, "modified by an inplace operation", torch.autograd.grad, changed, q, dout)

    singles = leaves(*(x.float() for x in tensors))
    halves = [x.half() for x in singles]
    for cast in (torch.bfloat16, torch.float16):
        for given in (singles, halves):
            expected = fa3.forward(*(x.to(cast) for x in given))
            with torch.autocast(device, cast):
                o = fa3.attention(*given)
            assert o.dtype == cast and torch.equal(o, expected)
        o = fa3.attention(*(x.to(cast) for x in singles))
        assert [x.dtype for x in torch.autograd.grad(o, singles, dout.to(cast))] == [torch.float32] * 3
    eighths = [fa3.quantize(x.bfloat16()) for x in inputs((1, 70, 130, 4, 2, 64, 64), device, torch.bfloat16)[:3]]
    scales = {f"{name}_scale": x.scale for name, x in zip("qkv", eighths)}
    expected = fa3.forward(*(x.y for x in eighths), **scales)
    with torch.autocast(device, torch.float16):  # FP8 stays what it is, with its scales
        assert torch.equal(fa3.forward(*(x.y for x in eighths), **scales), expected)
    twice = leaves(*tensors)
    (first,) = torch.autograd.grad(fa3.attention(*twice).square().sum(), twice[0], create_graph=True)
    refused(NotImplementedError, "fa3.backward has no derivative", torch.autograd.grad, first.sum(), twice)


def quantized(device):
    """Each of the four tensors is where the tuple says, whichever others there are: for Q, K and V as they are usually
    made, and with all of them."""
    x, k = inputs((1, 70, 130, 4, 2, 64, 64), device, torch.bfloat16)[:2]
    size = lambda made: [None if y is None else tuple(y.shape) for y in made]
    means = fa3.quantize(k, mean=True)
    assert size(means) == [(1, 130, 2, 64), (1, 2, 3), (1, 2, 64), None]
    assert size(fa3.quantize(x)) == [(1, 70, 4, 64), (1, 4, 2), None, None]
    for mean, dims in ((False, None), (True, (1, 4, 64))):
        made = fa3.quantize(x, mean=mean, k_mean=means.mean, softmax_scale=0.2)
        assert size(made) == [(1, 70, 4, 64), (1, 4, 2), dims, (1, 4, 70)]
        assert (made.lse_offset - 0.2 * torch.einsum("bihd,bhd->bhi", x.float(), means.mean.repeat_interleave(2, 1))
                ).abs().max() < 1e-3  # fmt: skip
        assert not mean or (made.mean - x.float().mean(1)).abs().max() < 1e-4
    o_parts, lse_parts = x[None], x.new_zeros(1, 1, 4, 70, dtype=torch.float32)
    assert fa3.combine(o_parts, lse_parts, out_dtype="float16")[0].dtype == torch.float16
    assert fa3.combine(o_parts, lse_parts, out_dtype=torch.float32, return_lse=False).dtype == torch.float32


# ---- torch.compile and torch.library ----


def compiled(device):
    """fullgraph: no break around the ops; and no recompilation for other lengths with dynamic shapes."""
    dtype = DTYPES[device][0]
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")

    def block(q, k, v):
        # What comes in is computed by the graph, in a transposed layout, and what goes out is used by it.
        k = (k * 1.5).transpose(1, 2).contiguous().transpose(1, 2)
        how = {"causal": True, "softmax_scale": 0.3, "deterministic": True}
        o, lse = fa3.attention(q + 0.25, k, v, return_lse=True, **how)
        return o.float().square().sum() + lse.sin().sum()

    # No two sizes are the same where torch could take them for one, and all are beyond its limits for small tensors.
    lengths = [(*x, 4, 2, 16, 24) for x in ((3, 35, 39), (5, 37, 43), (6, 38, 41))]
    for dynamic, shapes in ((False, SHAPES[1:2]), (True, lengths)):
        torch._dynamo.reset()
        counter.clear()
        fast = torch.compile(block, backend=counter, fullgraph=True, dynamic=dynamic)
        for shape in shapes:
            q, k, v = leaves(*inputs(shape, device, dtype)[:3])
            found, expected = ((x, *torch.autograd.grad(x, (q, k, v))) for x in (fast(q, k, v), block(q, k, v)))
            for x, y in zip(found, expected):
                assert (x - y).abs().max() <= 16 * ROUNDOFF[dtype] * max(1.0, y.abs().max()), (shape, x, y)
        assert counter.frame_count == 1, counter.frame_count

    @torch.compile(fullgraph=True)
    def eighth(q, k, v):
        q, k = (fa3.quantize(x * 2, incoherent=True, seed=2**63 + 3) for x in (q, k))
        v = fa3.quantize(v, mean=True, tiles=True)
        named = {"q_scale": q.scale, "k_scale": k.scale, "v_scale": v.scale, "v_mean": v.mean}
        o, lse = fa3.forward(q.y, k.y, v.y, causal=True, return_lse=True, **named)
        return fa3.combine(torch.stack([o, o]), torch.stack([lse, lse - 1]))[0]

    q, k, v = inputs((1, 70, 130, 4, 2, 64, 64), device, torch.bfloat16)[:3]
    expected = attention(torch, *(x.double() for x in (2 * q, 2 * k, v)), True)[0]
    error = (eighth(q, k, v).double() - expected).square().mean().sqrt()
    assert error < 0.1, error


def opchecks(device):
    dtype = DTYPES[device][0]
    q, k, v, dout, dlse = inputs(SHAPES[1], device, dtype)
    o, lse = fa3.forward(q, k, v, return_lse=True)
    ops = torch.ops.fa3
    check = torch.library.opcheck
    tolerances = {} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.05}
    check(ops.forward.default, (*leaves(q, k, v), 2, 0.0, fa3.FLAG_DETERMINISTIC), **tolerances)
    check(ops.forward.default, (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, 0, 0.5, 0))
    for more in (dlse, None):
        check(ops.backward.default, (dout, q, k, v, o, lse, more, 0, 0.0, fa3.FLAG_DETERMINISTIC))
    sums = [torch.zeros(x.shape, dtype=torch.float32, device=device) for x in (q, k, v)]
    how = (0, 0.0, fa3.FLAG_ACCUMULATE, None, 0, 0, None, None, 0.0, False)
    check(ops.backward_out.default, (*sums, dout, q, k, v, o, lse, dlse, *how), **tolerances)
    x, wide = (inputs((1, 70, 70, 2, 2, 32, 32), device, torch.bfloat16)[i] for i in (0, 1))
    mean = x.float().mean(1)
    for tiles, with_mean, k_mean in ((False, True, None), (True, False, None), (False, False, mean)):
        check(ops.quantize.default, (x, "block", tiles, with_mean, 1, 3, None, None, k_mean, 0.0))
    for out_dtype in (None, torch.float16, torch.float32):
        check(ops.combine.default, (torch.stack([o, o]), torch.stack([lse, lse]), out_dtype))
    x8, w8 = fa3.quantize(x), fa3.quantize(wide, tiles=True, mean=True)
    scales = (x8.scale, x8.scale, w8.scale, None, w8.mean, None)
    rest = ("test_faketensor", "test_aot_dispatch_dynamic")  # test_schema cannot compare tensors in FP8
    check(ops.forward.default, (x8.y, x8.y, w8.y, 0, 0.0, 0, torch.float16, None, *scales), test_utils=rest)


def fresh_compile(device):
    """The ops are there also if the first call of all is one that is compiled, and torch was imported last."""
    code = f"""import fa3, torch
x = torch.randn(1, 9, 2, 16, device="{device}", dtype=torch.bfloat16)
f = torch.compile(lambda x: fa3.attention(x * 2, x, x, causal=True), fullgraph=True, backend="aot_eager")
assert torch.equal(f(x), fa3.attention(x * 2, x, x, causal=True))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools/python"), "FA3_LIBRARY": sys.argv[1]}
    subprocess.run([sys.executable, "-B", "-c", code], env=environment, check=True)


# ---- refusals ----


def dequantized(x, rows):
    """What x, made by fa3.quantize of so many rows, stands for, in float64."""
    scale = x.scale.double().expand(x.y.shape[0], x.y.shape[2], x.scale.shape[2])
    scale = scale if scale.shape[2] == 1 else scale.repeat_interleave(64, 2)[..., :rows]
    number = x.y.double() * scale.transpose(1, 2)[..., None]
    return number if x.mean is None else number + x.mean.double()[:, None]


def relative(x, exact):
    return ((x.double() - exact).norm() / exact.norm()).item()


def fp8_gradients(device):
    """Of attention_fp8: those at what quantize makes of q, k and v; and these are not far from those at q, k and v."""
    for dtype in (torch.bfloat16, torch.float16):
        for scales, seed, causal in (("head", 3, True), ("block", None, False)):
            *tensors, dout, dlse = inputs((2, 70, 130, 4, 2, 48, 64), device, dtype)
            tensors[1] += 2  # means of K and V are taken off
            tensors[2] -= 1
            q, k, v = leaves(*tensors)
            o, lse = fa3.attention_fp8(q, k, v, causal=causal, scales=scales, seed=seed, return_lse=True)
            found = torch.autograd.grad((o, lse), (q, k, v), (dout, dlse))
            assert all(x.dtype == dtype and x.shape == y.shape for x, y in zip(found, tensors))
            mixed = {"incoherent": seed is not None, "seed": seed or 0}
            k8 = fa3.quantize(k.detach(), scales=scales, mean=True, **mixed)
            q8 = fa3.quantize(q.detach(), scales=scales, **mixed)
            v8 = fa3.quantize(v.detach(), scales=scales, mean=True)
            stand_for = [dequantized(x, y.shape[1]) for x, y in ((q8, q), (k8, k), (v8, v))]
            off = 0  # what the kernels' D = rowsum(dO * O) has from O of the call, whose P is in e4m3; dS = P (dP - D)
            if device == "cuda":
                off = (dout.double() * (o.detach().double() - exact(*stand_for, dout, dlse, causal)[0])).sum(-1).mT
            right = exact(*stand_for, dout, dlse - off, causal)[2:]
            if device == "cuda":  # K's mean meets dlse alone, as sums of a row of dS are 0 with any D that is O's
                mean = k8.mean.double().repeat_interleave(2, 1)[:, None]
                right[0] = right[0] + q.shape[-1] ** -0.5 * off.mT[..., None] * mean
            if seed is not None:
                right[:2] = (fa3._frameworks.fp8.turned_back(x, seed) for x in right[:2])
            for x, y, near in zip(found, right, exact(*tensors, dout, dlse, causal)[2:]):
                assert relative(x, y) <= 2 * ROUNDOFF[dtype], (dtype, scales, relative(x, y))
                assert relative(x, near) <= 0.1, (dtype, scales, relative(x, near))
    arrays = (x.detach().float().cpu().numpy() for x in (q, k, v))
    refused(TypeError, "q is ndarray, must be a torch tensor", fa3.attention_fp8, *arrays)
    refused(ValueError, "scales is", fa3.attention_fp8, q, k, v, scales="row")


def refusals(device):
    dtype = DTYPES[device][0]
    q, k, v, dout, _ = inputs(SHAPES[1], device, dtype)
    refused(ValueError, "k.dim[3]", fa3.attention, q, k[..., :8], v)
    refused(ValueError, "q has 3 dimensions", fa3.attention, q[0], k, v)
    refused(ValueError, "q.dtype is float64", fa3.attention, q.double(), k, v)
    refused(ValueError, "q.dtype is int32", fa3.attention, q.int(), k, v)
    refused(ValueError, "k.dtype", fa3.attention, q, k.to(DTYPES[device][1]), v)
    refused(TypeError, "k is ndarray, but q is Tensor", fa3.forward, q.float(), k.float().cpu().numpy(), v)
    refused(ValueError, "softmax_scale", fa3.attention, q, k, v, softmax_scale=float("nan"))
    refused(ValueError, "lse_parts.dim[0]", fa3.combine, torch.stack([q, q]), q.new_zeros(3, 2, 4, 5).float())
    refused(ValueError, "q.device is meta", fa3._arrays.place_of, q=q.to("meta"))
    meta = fa3.attention(*(x.to("meta") for x in (q, k, v)))  # only its shape, as the fake kernel has it
    assert meta.shape == dout.shape and meta.device.type == "meta"
    info = fa3.kernel_info(*(x.to("meta", torch.bfloat16) for x in (q, k, v)), causal=True)
    assert info.name.startswith("fa3_fwd"), info
    x8 = fa3.quantize(inputs((1, 70, 70, 2, 2, 32, 32), device, torch.bfloat16)[0])
    refused(ValueError, "q_scale", fa3.forward, x8.y, x8.y, x8.y)
    scale = x8.scale.clone().requires_grad_()
    o = fa3.forward(x8.y, x8.y, x8.y, q_scale=scale, k_scale=scale, v_scale=scale)
    refused(NotImplementedError, "no backward pass", torch.autograd.grad, o.float().sum(), scale)
    if device == "cuda":
        refused(NotImplementedError, "q.dtype is fp32", fa3.attention, *(x.float() for x in (q, k, v)))
        refused(ValueError, "q.stride[", fa3.attention, q.transpose(1, 3).contiguous().transpose(1, 3), k, v)
        refused(ValueError, "device", fa3.attention, q, k.cpu(), v)


# ---- what only a GPU has ----


def streams(device):
    """Each call runs on the current stream, behind what stands there, in several threads, too."""
    *tensors, dout, _ = inputs((2, 300, 300, 4, 2, 64, 64), device, torch.bfloat16)
    q, k, v = tensors
    expected = fa3.attention(q, k, v, causal=True)
    gradient = torch.autograd.grad(
        fa3.attention(*(x := leaves(q, k, v)), causal=True, deterministic=True), x, dout)  # fmt: skip
    failures = []

    def work():
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(5):
                    copies = [torch.zeros_like(x) for x in (q, k, v)]
                    torch.cuda._sleep(10_000_000)  # what follows must wait for it
                    for copy, x in zip(copies, (q, k, v)):
                        copy.copy_(x)
                    o = fa3.attention(*(y := leaves(*copies)), causal=True, deterministic=True)
                    found = torch.autograd.grad(o, y, dout)
                    stream.synchronize()
                    assert torch.equal(o, expected) and all(torch.equal(a, b) for a, b in zip(found, gradient))
        except Exception as error:
            failures.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def graphs(device):
    """Captured and replayed on other numbers."""
    q, k, v = inputs((1, 128, 8192, 2, 2, 64, 64), device, torch.bfloat16)[:3]
    fa3.preload()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = fa3.attention(q, k, v, causal=True)
    for seed in (2, 3):
        for x, y in zip((q, k, v), inputs((1, 128, 8192, 2, 2, 64, 64), device, torch.bfloat16, seed)):
            x.copy_(y)
        graph.replay()
        assert torch.equal(o, fa3.attention(q, k, v, causal=True))


def devices(device):
    """A second device, while the first is current."""
    if torch.cuda.device_count() < 2:
        print("SKIPPED: several devices: there is one GPU")
        return
    *tensors, dout, _ = inputs((2, 300, 300, 4, 2, 64, 64), device, torch.bfloat16)

    def run(*x):
        o = fa3.attention(*x, causal=True, deterministic=True)
        return o, torch.autograd.grad(o, x, dout.to(o.device))

    expected, found = run(*leaves(*tensors)), run(*leaves(*(x.to("cuda:1") for x in tensors)))
    assert found[0].device.index == 1 and torch.cuda.current_device() == 0
    assert torch.equal(found[0].cpu(), expected[0].cpu())
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(found[1], expected[1]))


CASES = (gradients, repeated, asked, odd_gradients, views, negative, modes, quantized, fp8_gradients)
CASES += (compiled, opchecks, fresh_compile, refusals)
for case in CASES:
    case("cpu")
    print(f"cpu: {case.__name__}", flush=True)
if CUDA:
    for case in (*CASES, streams, graphs, devices):
        case("cuda")
        print(f"cuda: {case.__name__}", flush=True)
else:
    print("SKIPPED: the cases for CUDA tensors: torch finds no GPU of compute capability 9.0")
print(f"torch {torch.__version__} agrees")
