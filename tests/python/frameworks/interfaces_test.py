"""fa3.flash_attn_interface, fa3.flash_attn, fa3.flash_attn_cute and fa3.vllm_flash_attn against plain attention in
float64, with gradients: dense and packed, in parts, combined, by torch.compile. Argument: the library. Skipped without
torch."""

import itertools
import math
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import fa3, need, refused  # noqa: E402

need("torch")
import torch  # noqa: E402
from interfaces_cases import CHUNKS, MASKS, Cache, by_batch, close, differentiated, ints  # noqa: E402
from interfaces_cases import normal, plain, run  # noqa: E402
from torch.testing._internal.optests import generate_tests  # noqa: E402

import fa3.flash_attn as two  # noqa: E402
import fa3.flash_attn_cute as four  # noqa: E402
import fa3.flash_attn_interface as three  # noqa: E402
import fa3.vllm_flash_attn as vllm  # noqa: E402


def dense(device):
    for (seqlen_q, seqlen_k), (how, mask) in itertools.product(((7, 12), (12, 7)), (*MASKS, *CHUNKS)):
        q, k = normal(device, 2, seqlen_q, 4, 16), normal(device, 2, seqlen_k, 2, 16)
        v = normal(device, 2, seqlen_k, 2, 8)
        call = lambda *x: three.flash_attn_func(*x, **how, softmax_scale=0.3, return_attn_probs=True, num_splits=3,
                                                pack_gqa=True, sm_margin=2, deterministic=True)  # fmt: skip
        differentiated(call, by_batch({**mask, "scale": 0.3}), (q, k, v), (seqlen_q, how))
        o = torch.empty_like(three.flash_attn_func(q, k, v, **how))
        with torch.no_grad():
            assert three.flash_attn_func(q, k, v, **how, out=o) is o
            assert torch.equal(o, three.flash_attn_func(q, k, v, **how))
        if "attention_chunk" not in how:
            call = lambda *x: two.flash_attn_func(*x, **how, return_attn_probs=True, deterministic=True)[:2]
            differentiated(call, by_batch(mask), (q, k, v), (seqlen_q, how))
    slopes = torch.rand(2, 4, device=device)
    for given in (slopes, slopes[0]):
        call = lambda *x: two.flash_attn_func(*x, alibi_slopes=given, causal=True, return_attn_probs=True)[:2]
        differentiated(call, by_batch({"causal": True}, given), (q, k, v), "slopes")
    sinks = normal(device, 4)
    call = lambda *x: three.flash_attn_func(*x, sinks=sinks, return_attn_probs=True)
    differentiated(call, by_batch({}, sinks=sinks), (q, k, v), "sinks")
    probabilities = two.flash_attn_func(q, k, v, return_attn_probs=True)[2]
    assert probabilities.numel() == 0 and probabilities.dtype == q.dtype


def odd_dims(device):
    """Head dimensions that are no multiples of 8, V with more columns than the library takes at once, and rows that are
    not contiguous."""
    for d, dv in ((11, 11), (16, 24 + 256), (9, 300)):
        q, k, v = normal(device, 2, 5, 4, d), normal(device, 2, 9, 2, d), normal(device, 2, 9, 2, dv)
        for interface in (two, three):
            call = lambda *x: interface.flash_attn_func(*x, causal=True, return_attn_probs=True)[:2]
            differentiated(call, by_batch({"causal": True}), (q, k, v), (d, dv))
        out = normal(device, 2, 5, 4, dv)
        with torch.no_grad():
            assert three.flash_attn_func(q, k, v, out=out) is out
            assert torch.equal(out, three.flash_attn_func(q, k, v))
    q, k, v = normal(device, 2, 5, 4, 16), normal(device, 2, 9, 2, 16), normal(device, 2, 9, 2, 16)
    apart = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in (q, k, v)]
    assert torch.equal(three.flash_attn_func(*apart), three.flash_attn_func(q, k, v))


def stacked(device):
    """Q, K and V, or K and V, as one tensor, whose gradient is one, too."""
    qkv, kv, q = normal(device, 2, 9, 3, 4, 16), normal(device, 2, 9, 2, 2, 16), normal(device, 2, 9, 4, 16)
    exact = by_batch({"causal": True})
    for interface in (two, three):
        call = lambda x: interface.flash_attn_qkvpacked_func(x, causal=True, return_attn_probs=True)[:2]
        differentiated(call, lambda x: exact(*x.unbind(2)), (qkv,), "qkv")
    call = lambda x: three.flash_attn_qkvpacked_func(x, causal=True, num_heads_q=4, return_attn_probs=True)
    differentiated(call, lambda x: exact(*x.split((4, 2, 2), 2)), (normal(device, 2, 9, 8, 16),), "heads")
    call = lambda q, x: two.flash_attn_kvpacked_func(q, x, causal=True, return_attn_probs=True)[:2]
    differentiated(call, lambda q, x: exact(q, *x.unbind(2)), (q, kv), "kv")
    sums, flat = ints(device, 0, 9, 18), lambda x: (x[0].flatten(0, 1), x[1].transpose(0, 1).flatten(1))
    call = lambda x: two.flash_attn_varlen_qkvpacked_func(x, sums, 9, causal=True, return_attn_probs=True)[:2]
    by_two = lambda x: flat(exact(*x.unflatten(0, (2, 9)).unbind(2)))
    differentiated(call, by_two, (qkv.flatten(0, 1),), "packed qkv")
    call = lambda q, x: two.flash_attn_varlen_kvpacked_func(q, x, sums, sums, 9, 9, causal=True,
                                                            return_attn_probs=True)[:2]  # fmt: skip
    by_two = lambda q, x: flat(exact(q.unflatten(0, (2, 9)), *x.unflatten(0, (2, 9)).unbind(2)))
    differentiated(call, by_two, (q.flatten(0, 1), kv.flatten(0, 1)), "packed kv")


def packed(device):
    """Sequences of their own lengths, of which some rows are not in use; with more queries than keys, and none."""
    room_q, room_k, used_q, used_k = (6, 3, 9, 4), (8, 5, 5, 3), (5, 3, 9, 0), (8, 4, 5, 3)
    sums = lambda room: [sum(room[:i]) for i in range(len(room) + 1)]
    cu_q, cu_k = sums(room_q), sums(room_k)
    q, k, v = normal(device, 22, 4, 16), normal(device, 21, 2, 16), normal(device, 21, 2, 8)
    rows = torch.cat([torch.arange(s, s + n) for s, n in zip(cu_q, used_q)]).to(device)

    def exact(mask, used_q, used_k):
        def run(q, k, v):
            o, lse = torch.zeros(22, 4, 8, dtype=torch.float64, device=device), []
            for a, b, n, m, room in zip(cu_q, cu_k, used_q, used_k, room_q):
                some, one = plain(q[a : a + n], k[b : b + m], v[b : b + m], **mask)
                o = o.index_put((torch.arange(a, a + n, device=device),), some)
                lse.append(torch.nn.functional.pad(one, (0, room - n)))
            return o, torch.cat(lse, 1)

        return run

    lengths = (ints(device, *cu_q), ints(device, *cu_k), 9, 8)
    used = {"seqused_q": ints(device, *used_q), "seqused_k": ints(device, *used_k)}
    for how, mask in (*MASKS, *CHUNKS):
        call = lambda *x: three.flash_attn_varlen_func(*x, *lengths, **used, **how, return_attn_probs=True)
        differentiated(call, exact(mask, used_q, used_k), (q, k, v), how, rows)
        if "attention_chunk" not in how:
            call = lambda *x: two.flash_attn_varlen_func(*x, *lengths, **how, return_attn_probs=True)[:2]
            differentiated(call, exact(mask, room_q, room_k), (q, k, v), how, torch.arange(22, device=device))
    nothing = three.flash_attn_varlen_func(q[:0], k, v, ints(device, 0, 0), lengths[1][:2], 0, 8, causal=True)
    assert nothing.shape == (0, 4, 8)
    with torch.no_grad():
        for how, _ in (MASKS[1], CHUNKS[1], CHUNKS[4]):  # without maxima
            found = three.flash_attn_varlen_func(q, k, v, *lengths[:2], None, None, **how)
            close(found, three.flash_attn_varlen_func(q, k, v, *lengths, **how).double(), how)
        out, sinks = torch.zeros_like(q[..., :8]), normal(device, 4)
        how = {"causal": True, "window_size": [2, -1], "return_softmax_lse": True, "fa_version": 3, "out": out}
        o, lse = vllm.flash_attn_varlen_func(q, k, v, 9, lengths[0], 8, lengths[1], s_aux=sinks.bfloat16(), **how)
        expected = exact({"causal": True, "window": (2, 0), "sinks": sinks.bfloat16()}, room_q, room_k)(q, k, v)
        assert o is out
        close(o, expected[0], "vllm"), close(lse, expected[1], "vllm")


def cute(device):
    """FlashAttention-4's windows, of which bounds below 0 shift them, sinks and their gradient, dense, packed and in
    pages; the layout of lse with qv, and keys that are the values."""
    windows = (((None, None), {}), ((3, None), {"window": (3, -1)}), ((3, 2), {"window": (3, 2)}),
               ((None, -2), {"window": (-1, -2)}), ((4, -2), {"window": (4, -2)}), ((-3, None), {"window": (-3, -1)}),
               ((-2, 4), {"window": (-2, 4)}), ((1, -3), {}), ((None, -20), {"window": (-1, -20)}))  # fmt: skip
    sums_q, sums_k, sinks = ints(device, 0, 7, 14), ints(device, 0, 9, 18), normal(device, 4)
    flat = lambda o, lse: (o.flatten(0, 1), lse.transpose(0, 1).flatten(1))
    q, k, v = normal(device, 2, 7, 4, 16), normal(device, 2, 9, 2, 16), normal(device, 2, 9, 2, 8)
    for (window, mask), some in itertools.product(windows, (None, sinks)):
        how, exact = {"window_size": window, "learnable_sink": some}, by_batch(mask, sinks=some)
        differentiated(lambda *x: four.flash_attn_func(*x, **how), exact, (q, k, v), how)
        call = lambda *x: four.flash_attn_varlen_func(*x, cu_seqlens_q=sums_q, cu_seqlens_k=sums_k, max_seqlen_q=7,
                                                      max_seqlen_k=9, **how)  # fmt: skip
        by_two = lambda *x: flat(*exact(*(y.unflatten(0, (2, y.shape[0] // 2)) for y in x)))
        differentiated(call, by_two, [x.flatten(0, 1) for x in (q, k, v)], how)
        o, lse = four.flash_attn_varlen_func(q, k, v, seqused_q=ints(device, 7, 5), seqused_k=ints(device, 4, 9), **how)
        for b, (rows, keys) in enumerate(((7, 4), (5, 9))):
            exact_o, exact_lse = plain(q[b, :rows], k[b, :keys], v[b, :keys], **mask, sinks=some)
            close(o[b, :rows], exact_o, how), close(lse[b, :, :rows], exact_lse, how)
        pages = [x.view(6, 3, *x.shape[2:])[[3, 0, 4, 1, 5, 2]] for x in (k, v)]
        paged = four.flash_attn_varlen_func(
            q, *pages, page_table=ints(device, 1, 3, 5, 0, 2, 4).view(2, 3), seqused_k=ints(device, 4, 9), **how
        )
        close(paged[0][1], plain(q[1], k[1], v[1], **mask, sinks=some)[0], how)
    weights = sinks.bfloat16().requires_grad_(), sinks.bfloat16().double().requires_grad_()
    o, _ = four.flash_attn_func(q, k, v, causal=True, learnable_sink=weights[0])
    exact_o, _ = by_batch({"causal": True}, sinks=weights[1])(q, k, v)
    found, expected = (torch.autograd.grad(x.sum(), y)[0] for x, y in zip((o, exact_o), weights))
    assert found.dtype == torch.bfloat16
    close(found, expected, "sinks")
    qv, wide = normal(device, 2, 7, 4, 512), normal(device, 2, 9, 1, 512)
    o, lse = four.flash_attn_func(q, k[:, :, :1], wide, qv=qv, causal=True)
    both = [torch.cat(x, -1) for x in ((q, qv), (k[:, :, :1], wide))]
    exact_o, exact_lse = by_batch({"causal": True})(*both, wide)
    close(o, exact_o, "qv"), close(lse, exact_lse.transpose(1, 2), "qv")
    o, lse = four.flash_attn_func(qv, wide, wide, causal=True)
    exact_o, exact_lse = by_batch({"causal": True})(qv, wide, wide)
    close(o, exact_o, "keys that are values"), close(lse, exact_lse.transpose(1, 2), "keys that are values")
    refused(NotImplementedError, "score_mod is given", four.flash_attn_func, q, k, v, score_mod=max)


def by_parts(device):
    """FlashAttention-2's functions without autograd, as ring attention calls them: each part of the keys with o and lse
    over all of them."""
    q, k, v = normal(device, 2, 9, 4, 16), normal(device, 2, 12, 2, 16), normal(device, 2, 12, 2, 16)
    slopes, dout = torch.rand(4, device=device, dtype=torch.float32), normal(device, 2, 9, 4, 16)
    doubles = [x.double().requires_grad_() for x in (q, k, v)]
    exact_o, exact_lse = by_batch({"softcap": 3.0})(*doubles)
    expected = torch.autograd.grad(exact_o, doubles, dout.double())
    how = (0.0, 0.25, False, -1, -1, 3.0, None)
    sums = [ints(device, *range(0, 2 * n + 1, n)) for n in (9, 6)]
    for packed in (False, True):
        rows = (lambda x: x.flatten(0, 1)) if packed else (lambda x: x)
        forward, backward = two._flash_attn_forward, two._flash_attn_backward
        lengths = (*sums, 9, 6) if packed else ()
        if packed:
            forward, backward = two._flash_attn_varlen_forward, two._flash_attn_varlen_backward
        halves = [[rows(x) for x in (k[:, at : at + 6], v[:, at : at + 6])] for at in (0, 6)]
        parts = [forward(rows(q), *half, *lengths, *how, False) for half in halves]
        lse = torch.stack([part[1] for part in parts]).logsumexp(0)
        weights = [(part[1] - lse).exp().movedim(-2, -1)[..., None] for part in parts]
        o = sum(part[0] * weight for part, weight in zip(parts, weights)).to(q.dtype)
        close(o, rows(exact_o), "o"), close(lse, exact_lse.movedim(1, 0).flatten(1) if packed else exact_lse, "lse")
        dq, found = [], []
        for half in halves:
            into = [torch.empty_like(x) for x in (rows(q), *half)]
            backward(rows(dout), rows(q), *half, o, lse, *into, *lengths, *how, True)
            dq.append(into[0].float()), found.append(into[1:])
        close(sum(dq).to(q.dtype), rows(expected[0]), "dq")
        for x, exact, name in zip(zip(*found), expected[1:], ("dk", "dv")):
            close(torch.cat([y.unflatten(0, (2, 6)) if packed else y for y in x], 1), exact, name)
    again = two._flash_attn_forward(q, k, v, 0.0, None, True, 3, -1, 0.0, slopes, False)[0]
    close(again, by_batch({"causal": True, "window": (3, 0)}, slopes)(q, k, v)[0], "slopes")
    refused(ValueError, "dk is None", two._flash_attn_backward, dout, q, k, v, dout, lse, dout, None, v, *how, False)
    refused(NotImplementedError, "dropout_p", two._flash_attn_forward, q, k, v, 0.1, *how[1:], False)


def combined(device):
    parts, lses = torch.randn(6, 2, 4, 5, 16, device=device).transpose(2, 3)[:3], torch.randn(3, 2, 8, 5, device=device)
    lses = lses.transpose(2, 3)[..., :4]
    lses[1, :1] = -math.inf
    weights = lses.double().softmax(0)[..., None]
    for dtype in (torch.float32, torch.bfloat16, None):
        o, lse = three.flash_attn_combine(parts, lses, out_dtype=dtype)
        assert o.dtype == (dtype or torch.float32)
        close(o, (weights * parts).sum(0), dtype), close(lse, lses.double().logsumexp(0), "lse")
    o, lse = four.flash_attn_combine(parts[:, 0], lses[:, 0])
    close(o, (weights * parts).sum(0)[0], "packed"), close(lse, lses.double().logsumexp(0)[0], "packed")
    out = torch.empty(2, 5, 8, 16, device=device, dtype=torch.bfloat16)[:, :, :4]
    assert four.flash_attn_combine(parts[:, 0], lses[:, 0], out[0], return_lse=False)[1] is None
    close(out[0], (weights * parts).sum(0)[0], "packed")
    assert three.flash_attn_combine(parts, lses, out)[0] is out
    assert torch.equal(out, three.flash_attn_combine(parts, lses, out_dtype=torch.bfloat16)[0])
    refused(ValueError, "out.dtype is torch.bfloat16", three.flash_attn_combine, parts, lses, out, torch.float16)
    refused(ValueError, "out and out_dtype are given", fa3.combine, parts, lses, out=out, out_dtype="float16")
    torch.library.opcheck(torch.ops.fa3.combine_out.default, (out, parts, lses.transpose(2, 3)))


def compiled(device):
    """fullgraph, with gradients; and a step of decoding, whose caches are the caller's. Official's checks of an op."""
    torch._dynamo.reset()
    q, k, v = (normal(device, 2, 9, heads, 16).requires_grad_() for heads in (4, 2, 2))
    for how in ({"causal": True}, {"causal": True, "window_size": (2, 0), "attention_chunk": 4}):
        run = lambda q, k, v: three.flash_attn_func(q * 2, k, v, **how).float().square().sum()
        found, expected = (torch.autograd.grad(call(q, k, v), (q, k, v))
                           for call in (torch.compile(run, fullgraph=True, backend="aot_eager"), run))  # fmt: skip
        for x, y in zip(found, expected):
            close(x, y.double(), how)
    draw = random.Random(1)
    case = Cache(draw, device, torch.bfloat16, pages=4, batch_idx=True, leftpad=True, packed=True, new="as queries",
                 rotary=16)  # fmt: skip
    step = lambda q, k, v: three.flash_attn_with_kvcache(q, k, v, **case.how, causal=True)
    once, again = [case.k.clone(), case.v.clone()], [case.k.clone(), case.v.clone()]
    found, expected = torch.compile(step, fullgraph=True, backend="aot_eager")(case.q, *once), step(case.q, *again)
    assert torch.equal(found, expected) and all(torch.equal(x, y) for x, y in zip(once, again))
    q, k, v = (x.detach() for x in (q, k, v))
    for check in (generate_tests.safe_schema_check, generate_tests.safe_fake_check):
        check(three.flash_attn_func, (q, k, v), {"causal": True})
    checked = tuple(x.requires_grad_() for x in (q, k, v))
    generate_tests.safe_aot_autograd_check(three.flash_attn_func, checked, {"deterministic": True}, dynamic=True)


fa3.load(sys.argv[1])
run(dense, odd_dims, stacked, packed, cute, by_parts, combined, compiled)
