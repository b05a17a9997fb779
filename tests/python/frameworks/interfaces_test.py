"""fa3.flash_attn_interface, fa3.flash_attn, fa3.flash_attn_cute and fa3.vllm_flash_attn against plain attention in
float64: values and gradients, caches with new rows, FP8, torch.compile, signatures, refusals; on the CPU by the
reference, and on a GPU by the kernels. Argument: the library. Skipped without torch; cases for CUDA say so where there
is no Hopper GPU."""

import contextlib
import inspect
import itertools
import math
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import fa3, need, refused  # noqa: E402

need("torch")
import torch  # noqa: E402
from interfaces_cases import Cache, plain, rotated  # noqa: E402
from torch.testing._internal.optests import generate_tests  # noqa: E402

import fa3.flash_attn as two  # noqa: E402
import fa3.flash_attn_cute as four  # noqa: E402
import fa3.flash_attn_interface as three  # noqa: E402
import fa3.vllm_flash_attn as vllm  # noqa: E402

fa3.load(sys.argv[1])
CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def normal(device, *dims, dtype=None):
    return torch.randn(dims).to(device, dtype or (torch.float32 if device == "cpu" else torch.bfloat16))


def ints(device, *numbers):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def close(found, expected, what):
    """Up to the rounding of found's dtype; kernels also round P, and gradients come from products that were rounded."""
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    finite = expected.isfinite()
    assert torch.equal(found.isfinite(), finite) and torch.equal(found[~finite].double(), expected[~finite]), what
    roundoff = {torch.float32: 1e-3 if found.is_cuda else 1e-5, torch.bfloat16: 2.0**-6}[found.dtype]
    error = (found.double() - expected)[finite].abs().max().item() if finite.any() else 0
    assert error <= roundoff * max(1.0, expected[finite].abs().max().item() if finite.any() else 1), (what, error)


@contextlib.contextmanager
def no_wait(device):
    """Whoever makes the host wait for the GPU fails."""
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def differentiated(call, exact, tensors, what, rows=None):
    """o and lse of `call` and their gradients are those of `exact` in float64. rows: those of o that are in use."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    doubles = [x.detach().double().requires_grad_() for x in tensors]
    with no_wait(tensors[0].device.type):
        o, lse = call(*leaves)
    exact_o, exact_lse = exact(*doubles)
    some = slice(None) if rows is None else rows
    close(o[some], exact_o[some], (what, "o"))
    close(lse[..., some] if rows is not None else lse, exact_lse[..., some] if rows is not None else exact_lse, what)
    dout = torch.randn(exact_o.shape).to(o.device, o.dtype)
    dout = dout if rows is None else dout * torch.zeros_like(dout).index_fill_(0, rows, 1)
    found = torch.autograd.grad(o, leaves, dout)
    for name, x, y in zip("qkv", found, torch.autograd.grad(exact_o, doubles, dout.double())):
        close(x, y, (what, f"d{name}"))


# ---- dense and packed ----

MASKS = (  # by official's names, and as plain attention has them
    ({}, {}),
    ({"causal": True}, {"causal": True}),
    ({"window_size": (3, -1), "causal": True}, {"window": (3, -1), "causal": True}),
    ({"window_size": torch.tensor([2, 1])}, {"window": (2, 1)}),
    ({"window_size": (-1, 4), "softcap": 2.0}, {"window": (-1, 4), "softcap": 2.0}),
)
CHUNKS = (
    ({"attention_chunk": 4}, {"chunk": 4}),
    ({"attention_chunk": 4, "causal": True}, {"chunk": 4, "causal": True}),
    ({"attention_chunk": 4, "window_size": (9, 3)}, {"chunk": 4}),
    ({"attention_chunk": 5, "window_size": (2, -1), "causal": True}, {"chunk": 5, "window": (2, 0)}),
    ({"attention_chunk": 5, "window_size": (1, 2)}, {"chunk": 5, "window": (1, 2)}),
)


def by_batch(mask, slopes=None, sinks=None):
    def exact(q, k, v):
        each = [plain(*x, **mask, slopes=None if slopes is None else slopes[b] if slopes.ndim == 2 else slopes,
                      sinks=sinks) for b, x in enumerate(zip(q, k, v))]  # fmt: skip
        return tuple(torch.stack(x) for x in zip(*each))

    return exact


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


# ---- caches ----


def caches(device):
    """Each way in which a cache can lie with each kind of new rows, under random masks, against the caches as they are
    afterwards; new rows are where they belong, and nothing else has changed."""
    draw = random.Random(5)
    torch.manual_seed(5)
    ways = itertools.product((None, 1, 4), (False, True), (False, True), (False, True),
                             ((None, 0), ("as queries", 0), ("as queries", 16), ("others", 32)))  # fmt: skip
    masks = (*MASKS[:3], ({"window_size": (2, 1)}, {"window": (2, 1)}), CHUNKS[1], CHUNKS[3], CHUNKS[4])
    for pages, batch_idx, leftpad, packed, (new, rotary) in ways:
        case = Cache(draw, device, torch.bfloat16, pages=pages, batch_idx=batch_idx, leftpad=leftpad, packed=packed,
                     new=new, rotary=rotary)  # fmt: skip
        how, mask = draw.choice(masks)
        what = (case.how.keys(), how)
        k_cache, v_cache = case.k.clone(), case.v.clone()
        with no_wait(device):
            o, lse = three.flash_attn_with_kvcache(case.q, k_cache, v_cache, **case.how, **how, num_splits=3,
                                                   return_softmax_lse=True)  # fmt: skip
        checked(case, k_cache, v_cache, o, lse, mask, what)
        if not packed and "attention_chunk" not in how and "rotary_seqlens" not in case.how:
            named = {{"page_table": "block_table"}.get(name, name): x for name, x in case.how.items()}
            again = [case.k.clone(), case.v.clone()]
            same = two.flash_attn_with_kvcache(case.q, *again, **named, **how)
            assert torch.equal(same, o) and torch.equal(again[0], k_cache) and torch.equal(again[1], v_cache), what


def checked(case, k_cache, v_cache, o, lse, mask, what):
    packed, untouched = "cu_seqlens_q" in case.how, [case.k.clone(), case.v.clone()]
    for b, (new_k, k, new_v, v, exact_o, exact_lse) in enumerate(case.exact(k_cache, v_cache, **mask)):
        close(case.rows(o, b, case.queries, packed), exact_o, what)
        rows = slice(sum(case.queries[:b]), sum(case.queries[: b + 1]))
        close(lse[:, rows] if packed else lse[b], exact_lse, what)
        if case.added[b]:
            assert torch.equal(v, new_v) and (case.rotary or torch.equal(k, new_k)), what
            close(k, new_k.double(), what)
        at = torch.arange(case.before[b], case.before[b] + case.added[b])
        for before, after in zip(untouched, (k_cache, v_cache)):
            index = case.table[b][at // case.size], at % case.size
            before[index] = after[index]
    assert torch.equal(untouched[0], k_cache) and torch.equal(untouched[1], v_cache), what


def other_caches(device):
    """A number for all lengths, no lengths, head dimensions that are no multiples of 8, packed lengths of keys in
    pages, and vLLM's call."""
    bf16 = {"dtype": torch.bfloat16}
    q, k_cache, v_cache = normal(device, 2, 3, 4, 16, **bf16), *(normal(device, 2, 2, 9, 2, 16, **bf16))
    for interface, lengths in itertools.product((two, three), (7, None)):
        o = interface.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, causal=True)
        for b in range(2):
            close(o[b], plain(q[b], k_cache[b, :lengths], v_cache[b, :lengths], causal=True)[0], lengths)
    narrow = [x[..., :11].contiguous() for x in (q, k_cache, v_cache)]
    k, v = normal(device, 2, 1, 2, 11, **bf16), normal(device, 2, 1, 2, 11, **bf16)
    o = two.flash_attn_with_kvcache(*narrow, k, v, cache_seqlens=7)
    for x, y, before in zip(narrow[1:], (k, v), (k_cache, v_cache)):
        assert torch.equal(x[:, 7:8], y) and torch.equal(x[:, :7], before[:, :7, :, :11])
    close(o[1], plain(narrow[0][1], narrow[1][1, :8], narrow[2][1, :8])[0], "narrow")
    table, used = ints(device, 3, 1, 0, 2).view(2, 2), ints(device, 7, 3)
    pages = [normal(device, 4, 4, 2, 16, **bf16) for _ in range(2)]
    rows = lambda x, b: x[table[b].long()].flatten(0, 1)[: used[b]]
    sums_q, sums_k, q = ints(device, 0, 3, 5), ints(device, 0, 7, 10), q.flatten(0, 1)[:5]
    expected = [plain(q[:3], *(rows(x, 0) for x in pages), causal=True)[0],
                plain(q[3:], *(rows(x, 1) for x in pages), causal=True)[0]]  # fmt: skip
    out, ones = torch.zeros_like(q), torch.ones(1, 1, device=device).expand(2, 2)
    found = (two.flash_attn_varlen_func(q, *pages, sums_q, sums_k, 3, 7, causal=True, block_table=table),
             vllm.flash_attn_varlen_func(q, *pages, 3, sums_q, 8, seqused_k=used, causal=True, block_table=table,
                                         out=out, fa_version=3, num_splits=16, q_descale=ones, k_descale=ones,
                                         v_descale=ones, scheduler_metadata=vllm.get_scheduler_metadata(
                                             2, 3, 8, 4, 2, 16, used)))  # fmt: skip
    for o in found:
        close(o, torch.cat(expected), "pages")
    assert found[1] is out


def bounds(device):
    """max_seqlen as a tensor without dimensions, above what a cache has room for, and where it does not count; what
    FlashAttention-2's functions refuse of pages."""
    bf16, number = {"dtype": torch.bfloat16}, lambda n: torch.tensor(n, device=device)
    sums_q, sums_k = ints(device, 0, 3, 8), ints(device, 0, 5, 9)
    q, k, dout = normal(device, 8, 4, 16), normal(device, 9, 2, 16), normal(device, 8, 4, 16)
    sums = {"cu_seqlens_q": sums_q, "cu_seqlens_k": sums_k}
    for call in (lambda *most: three.flash_attn_varlen_func(q, k, k, sums_q, sums_k, *most),
                 lambda *most: two.flash_attn_varlen_func(q, k, k, sums_q, sums_k, *most),
                 lambda *most: four.flash_attn_varlen_func(q, k, k, **sums, max_seqlen_q=most[0], max_seqlen_k=most[1]),
                 lambda *most: vllm.flash_attn_varlen_func(q, k, k, most[0], sums_q, most[1], sums_k)):  # fmt: skip
        expected, found = (call(*most) for most in ((5, 5), (number(5), number(5))))
        assert all(map(torch.equal, found, expected))
    how = (0.0, 0.25, False, -1, -1, 0.0, None)
    o, lse, *_ = two._flash_attn_varlen_forward(q, k, k, sums_q, sums_k, number(5), number(5), *how)
    gradients = [[torch.empty_like(x) for x in (q, k, k)] for _ in range(2)]
    for into, most in zip(gradients, (5, number(5))):
        two._flash_attn_varlen_backward(dout, q, k, k, o, lse, *into, sums_q, sums_k, most, most, *how, True)
    assert all(map(torch.equal, *gradients))
    into, empty = [torch.empty_like(x) for x in (q[:0], k, k)], (ints(device, 0, 0), ints(device, 0, 9), 0, 9)
    two._flash_attn_varlen_backward(dout[:0], q[:0], k, k, o[:0], lse[:, :0], *into, *empty, *how, True)
    assert into[1].eq(0).all() and into[2].eq(0).all()

    table, used = ints(device, 3, 1, 0, 2).view(2, 2), ints(device, 7, 3)
    pages, q_cache = [normal(device, 4, 4, 2, 16, **bf16) for _ in range(2)], normal(device, 2, 3, 4, 16, **bf16)
    rows = q_cache.flatten(0, 1)
    starts = ints(device, 0, 3, 6)
    by_vllm = lambda most: vllm.flash_attn_varlen_func(rows, *pages, 3, starts, most, seqused_k=used, block_table=table,
                                                       causal=True)  # fmt: skip
    by_four = lambda most, x=pages, **how: four.flash_attn_varlen_func(q_cache, *x, seqused_k=used, max_seqlen_k=most,
                                                                       causal=True, **how)[0]  # fmt: skip
    whole, pairs = [x.view(2, 8, 2, 16) for x in pages], []
    by_three = lambda most: three.flash_attn_with_kvcache(q_cache, *pages, page_table=table, cache_seqlens=used,
                                                          max_seqlen_q=most)  # fmt: skip
    with no_wait(device):
        for most in (9, 1000, 2**31 - 1):
            pairs.append((by_vllm(most), by_vllm(8)))
            pairs.append((by_four(most, page_table=table), by_four(8, page_table=table)))
            pairs.append((by_four(most, whole), by_four(8, whole)))
        pairs.append((by_three(99), by_three(None)))  # of packed queries alone
    assert all(torch.equal(*pair) for pair in pairs)
    refused(ValueError, "max_seqlen_k is -1", by_four, -1, page_table=table)
    refused(TypeError, "max_seqlen_q is 5.5", three.flash_attn_varlen_func, q, k, k, sums_q, sums_k, 5.5, 5)

    sums = ints(device, 0, 3, 6), ints(device, 0, 7, 10)
    splits = lambda n, table: two._flash_attn_varlen_forward(rows, *pages, *sums, 3, 8, *how, False, table,
                                                             num_splits=n)  # fmt: skip
    close(splits(1, table)[0], splits(0, table)[0].double(), "one split")
    refused(NotImplementedError, "num_splits is 2, which packed lengths do not take with block_table", splits, 2, table)
    append = lambda keys, *new: two.flash_attn_with_kvcache(q_cache, *pages, *new, cache_seqlens=keys, num_splits=2,
                                                            block_table=table)  # fmt: skip
    new = [normal(device, 2, 2, 2, 16, **bf16) for _ in range(2)]
    append(8), append(6, *new), append(used)
    on_host = [9, ints("cpu", 3, 9)] if device == "cpu" else [9]
    for keys in on_host:
        refused(ValueError, "cache_seqlens has 9 keys of a sequence, but block_table has room for 8", append, keys)
    text = "cache_seqlens has 7 keys of a sequence and 2 new ones, but block_table has room for 8"
    for keys in [7] + [used] * (device == "cpu"):
        refused(ValueError, text, append, keys, *new)
    if device == "cuda":  # which nobody waits for
        beyond = ints(device, 3, 9)
        with no_wait(device):
            assert append(beyond).shape == q_cache.shape


def eighths(device):
    """FP8 with scales for each head of K and V, of each sequence; caches in FP8 that get new rows, also rotated.
    torch's default dtype is another, as while servers build models."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        eighths_of(device)
    finally:
        torch.set_default_dtype(torch.float32)


def eighths_of(device):
    fp8 = torch.float8_e4m3fn
    q, k, v = (normal(device, 2, rows, heads, 32).to(fp8) for rows, heads in ((5, 4), (9, 2), (9, 2)))
    descales = torch.rand(3, 2, 2, device=device, dtype=torch.float32) + 0.5
    wide = [x.double() * scale.double().repeat_interleave(x.shape[2] // 2, 1)[:, None, :, None]
            for x, scale in zip((q, k, v), descales)]  # fmt: skip
    exact = lambda mask, *x: torch.stack([plain(*y, **mask)[0] for y in zip(*x)])
    limit = 2.0**-8 if device == "cpu" else 0.08  # the kernels round P to FP8, too

    def near(o, expected):
        assert (o.double() - expected).abs().max() <= limit * expected.abs().max()

    named = dict(zip(("q_descale", "k_descale", "v_descale"), descales))
    for how, mask in (({"causal": True}, {"causal": True}), CHUNKS[4]):
        o = three.flash_attn_func(q, k, v, **named, **how)
        assert o.dtype == torch.bfloat16
        near(o, exact(mask, *wide))
    near(three.flash_attn_func(q, k, v), exact({}, q, k, v))
    narrow = [x[..., :24].contiguous() for x in (q, k, v)]  # no multiple of 16
    near(three.flash_attn_func(*narrow), exact({}, *narrow))
    caches, new = [x.clone() for x in narrow[1:]], [x[:, :1] for x in narrow[1:]]
    o = three.flash_attn_with_kvcache(narrow[0].to(torch.bfloat16), *caches, *new, cache_seqlens=ints(device, 4, 8))
    for b, at in enumerate((4, 8)):
        assert all(torch.equal(x[b, at].float(), y[b, 0].float()) for x, y in zip(caches, new))
        near(o[b], plain(narrow[0][b], *(x[b, : at + 1] for x in caches))[0])
    column_major = v.view(torch.uint8).transpose(1, 3).contiguous().transpose(1, 3).view(fp8)
    assert torch.equal(three.flash_attn_func(q, k, column_major), three.flash_attn_func(q, k, v))
    # Queries of 16 bits over FP8: nothing else is rounded, so it is as near as 16 bits are.
    for dtype, most in ((torch.bfloat16, 2.0**-7), (torch.float16, 2.0**-10)):
        sixteen = normal(device, 2, 5, 4, 32).to(dtype)
        kv = {name: named[name] for name in ("k_descale", "v_descale")}
        o = three.flash_attn_with_kvcache(sixteen, k, v, cache_seqlens=ints(device, 9, 9), causal=True, **kv)
        expected = exact({"causal": True}, sixteen, *wide[1:])
        assert o.dtype == dtype and (o.double() - expected).abs().max() <= most * expected.abs().max()
        sums = ints(device, 0, 5, 10)
        packed = vllm.flash_attn_varlen_func(sixteen.flatten(0, 1), k, v, 5, sums, 9, seqused_k=ints(device, 9, 9),
                                             block_table=ints(device, 0, 1).view(2, 1), causal=True, **kv)
        assert (packed.view_as(expected).double() - expected).abs().max() <= most * expected.abs().max()
    turns = {name: torch.rand(12, 8, device=device, dtype=torch.float32) for name in ("rotary_cos", "rotary_sin")}
    bits, one = lambda x: x.view(torch.uint8), q[:, :1]
    written(device, k, v, kv, turns)
    for how in ({}, turns):
        caches, new = [x.clone() for x in (k, v)], [normal(device, 2, 1, 2, 32).to(fp8) for _ in range(2)]
        o = three.flash_attn_with_kvcache(one, *caches, *new, cache_seqlens=ints(device, 3, 6), **how)
        for b, before in enumerate((3, 6)):
            turn = lambda x: rotated(x, *turns.values(), [before], True) if how else x.double()
            rounded = caches[0][b, before].double(), turn(new[0][b])[0]
            assert ((rounded[0] - rounded[1]).abs() <= 2.0**-4 * rounded[1].abs() + 2.0**-10).all(), how
            assert torch.equal(bits(caches[1][b, before]), bits(new[1][b, 0]))
            near(o[b], plain(turn(one[b]).float().to(fp8), *(x[b, : before + 1] for x in caches))[0])
            caches[0][b, before], caches[1][b, before] = k[b, before], v[b, before]
        assert torch.equal(bits(caches[0]), bits(k)) and torch.equal(bits(caches[1]), bits(v)), how


def written(device, k, v, descales, turns):
    """New rows of 16 bits in caches of FP8, which are divided by the descales on the way; also without descales, and in
    pages, rotated."""
    table, before = ints(device, 1, 0).view(2, 1), (3, 6)
    for dtype, some, how in itertools.product((torch.bfloat16, torch.float16), (descales, {}), ({}, turns)):
        pages, new = [x.clone() for x in (k, v)], [normal(device, 2, 1, 2, 32).to(dtype) for _ in range(2)]
        q, bits = normal(device, 2, 1, 4, 32).to(dtype), lambda x: x.view(torch.uint8)
        o = three.flash_attn_with_kvcache(q, *pages, *new, cache_seqlens=ints(device, *before), page_table=table,
                                          **some, **how)  # fmt: skip
        for b, at in enumerate(before):
            turn = lambda x: rotated(x, *turns.values(), [at], True) if how else x.double()
            page, rows = 1 - b, []
            for cache, exact, name in zip(pages, (turn(new[0][b])[0], new[1][b, 0].double()), descales):
                scale = some[name][b, :, None].double() if some else 1
                assert ((cache[page, at].double() * scale - exact).abs() <= 2.0**-4 * exact.abs() + 2.0**-9).all(), how
                rows.append(cache[page, : at + 1].double() * scale)
            expected = plain(turn(q[b]).to(dtype), *rows)[0]
            assert (o[b].double() - expected).abs().max() <= 2.0**-6 * expected.abs().max(), (dtype, how)
            pages[0][page, at], pages[1][page, at] = k[page, at], v[page, at]
        assert torch.equal(bits(pages[0]), bits(k)) and torch.equal(bits(pages[1]), bits(v)), how


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


# ---- torch.compile, signatures, refusals ----


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


def signatures(device):
    """As in official FlashAttention-3 and -4 (commit 0251105), FlashAttention-2 (2.8) and vLLM (0.33)."""
    descales = "q_descale=None, k_descale=None, v_descale=None"
    masks = "window_size=(-1, -1), attention_chunk=0, softcap=0.0"
    plan = "num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False"
    lengths = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
    rest_2 = ("dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
              "deterministic=False, return_attn_probs=False")  # fmt: skip
    first_4 = "q, k, v, qv=None, gather_kv_indices=None"
    masks_of_four = ("window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, "
                     "deterministic=False, score_mod=None, score_mod_bwd=None")  # fmt: skip
    cache = "q, k_cache, v_cache, k=None, v=None, "
    for function, expected in (
        (three.flash_attn_func, f"q, k, v, softmax_scale=None, causal=False, qv=None, {descales}, {masks}, {plan}"),
        (three.flash_attn_qkvpacked_func, f"qkv, softmax_scale=None, causal=False, {descales}, {masks}, "
         "deterministic=False, num_heads_q=None, sm_margin=0, return_attn_probs=False"),
        (three.flash_attn_varlen_func, f"q, k, v, {lengths}, seqused_q=None, seqused_k=None, softmax_scale=None, "
         f"causal=False, qv=None, {descales}, {masks}, {plan}"),
        (three.flash_attn_with_kvcache, f"{cache}qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
         "cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
         f"max_seqlen_q=None, rotary_seqlens=None, {descales}, softmax_scale=None, causal=False, {masks}, "
         "rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, "
         "return_softmax_lse=False"),
        (three.flash_attn_combine, "out_partial, lse_partial, out=None, out_dtype=None"),
        (three.get_scheduler_metadata, "batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, "
         "cache_seqlens, qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
         "cache_leftpad=None, page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1), "
         "attention_chunk=0, has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0"),
        (two.flash_attn_func, f"q, k, v, {rest_2}"),
        (two.flash_attn_kvpacked_func, f"q, kv, {rest_2}"),
        (two.flash_attn_qkvpacked_func, f"qkv, {rest_2}"),
        (two.flash_attn_varlen_func, f"q, k, v, {lengths}, {rest_2}, block_table=None"),
        (two.flash_attn_varlen_kvpacked_func, f"q, kv, {lengths}, {rest_2}"),
        (two.flash_attn_varlen_qkvpacked_func, f"qkv, cu_seqlens, max_seqlen, {rest_2}"),
        (two.flash_attn_with_kvcache, f"{cache}rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
         "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
         "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
         "return_softmax_lse=False"),
        (four.flash_attn_func, f"{first_4}, softmax_scale=None, causal=False, {masks_of_four}, "
         "mask_mod=None, aux_tensors=None, aux_scalars=None, block_sparse_tensors=None, block_sparse_tensors_bwd=None, "
         "return_lse=False"),
        (four.flash_attn_varlen_func, "q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, "
         "max_seqlen_k=None, min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, "
         f"page_table=None, softmax_scale=None, causal=False, {masks_of_four}, mask_mod=None, "
         "block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False, scheduler_metadata=None, "
         "seqlen_k_per_split=None, disable_scheduler_metadata=False"),
        (four.flash_attn_combine, "out_partial, lse_partial, out=None, out_dtype=None, cu_seqlens=None, seqused=None, "
         "virtual_batch_idx=None, return_lse=True"),
        (vllm.flash_attn_varlen_func, "q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, "
         "seqused_k=None, q_v=None, dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0, "
         "alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None, return_softmax_lse=False, "
         f"out=None, scheduler_metadata=None, {descales}, num_splits=0, output_scale=None, fa_version=2, s_aux=None, "
         "cp_world_size=1, cp_rank=0, cp_tot_seqused_k=None, mask_mod=None, block_sparse_tensors=None, "
         "aux_tensors=None, aux_tensor_leading_dims=None, dynamic_causal=None, gather_kv_indices=None, "
         "gather_kv_valid_length=None"),
    ):  # fmt: skip
        found = inspect.signature(function).parameters.values()
        found = [x.replace(annotation=x.empty) for x in found if x.kind == x.POSITIONAL_OR_KEYWORD]
        positional = ", ".join(map(str, found))
        assert positional == expected, (function, positional)


def refusals(device):
    q, k = normal(device, 2, 5, 4, 16), normal(device, 2, 9, 2, 16)
    no = NotImplementedError
    q.requires_grad_()  # only who asks for a gradient is refused
    o = three.flash_attn_func(q, k, k, qv=q)
    refused(no, "fa3.forward with qv has no derivative", o.sum().backward)
    o = three.flash_attn_with_kvcache(q, k, k, cache_seqlens=3, page_table=ints(device, 1, 0).view(2, 1))
    refused(no, "fa3.forward with page_table has no derivative", o.sum().backward)
    q = q.detach()
    refused(no, "dropout_p is 0.1: fa3 has no dropout", two.flash_attn_func, q, k, k, dropout_p=0.1)
    one = (q.flatten(0, 1), k.flatten(0, 1), k.flatten(0, 1), 5, ints(device, 0, 5, 10), 9, ints(device, 0, 9, 18))
    for name in ("output_scale", "mask_mod", "block_sparse_tensors", "dynamic_causal", "gather_kv_indices"):
        refused(no, f"{name} is given", vllm.flash_attn_varlen_func, *one, **{name: q})
    refused(no, "cp_world_size is 2", vllm.flash_attn_varlen_func, *one, cp_world_size=2)
    refused(ValueError, "fa_version is 5, must be one of 2, 3, 4", vllm.flash_attn_varlen_func, *one, fa_version=5)
    refused(ValueError, "one of them must be given", vllm.flash_attn_varlen_func, *one[:-1])
    cache = lambda **how: three.flash_attn_with_kvcache(q, k.clone(), k.clone(), **how)
    refused(ValueError, "k is given, but cache_seqlens is not", cache, k=q[:, :1, :2], v=q[:, :1, :2])
    refused(ValueError, "k is given, but v is not", cache, k=q[:, :1, :2], cache_seqlens=3)
    refused(ValueError, "rotary_cos is given, but k is not", cache, rotary_cos=torch.ones(9, 8, device=device))
    refused(ValueError, "k.dtype is torch.float64", cache, k=q.double(), v=q, cache_seqlens=3)
    heads_first = k.transpose(1, 2).contiguous().transpose(1, 2)
    refused(no, "k_cache has gaps between pages", three.flash_attn_with_kvcache, q, heads_first, k,
            page_table=ints(device, 0, 1).view(2, 1), cache_leftpad=ints(device, 1, 1))  # fmt: skip
    refused(ValueError, "num_heads_q is None", three.flash_attn_qkvpacked_func, q)
    refused(TypeError, "max_seqlen_q is a tensor", three.flash_attn_varlen_func, *one[:3], one[4], one[6],
            ints(device, 5), 9)  # fmt: skip
    if device == "cuda":  # the reference takes any strides; caches are not copied for them
        apart = k.transpose(1, 3).contiguous().transpose(1, 3)
        refused(ValueError, "k.stride[1] is 1", three.flash_attn_with_kvcache, q, apart, k, cache_seqlens=3)
        refused(TypeError, "window_size is a tensor", three.flash_attn_func, q, k, k, window_size=ints(device, 1, 1))


torch.manual_seed(1)
for device in ("cpu", "cuda") if CUDA else ("cpu",):
    for case in (dense, odd_dims, stacked, packed, cute, by_parts, caches, other_caches, bounds, eighths, combined,
                 compiled, signatures, refusals):  # fmt: skip
        case(device)
        print(f"{device}: {case.__name__}", flush=True)
if not CUDA:
    print("SKIPPED: the cases for CUDA tensors: torch finds no GPU of compute capability 9.0")
print(f"torch {torch.__version__} agrees")
