"""Caches by fa3.flash_attn_interface, fa3.flash_attn, fa3.flash_attn_cute and fa3.vllm_flash_attn: with new rows, in
pages, in FP8, and maxima of lengths. Argument: the library. Skipped without torch."""

import itertools
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import fa3, need, refused  # noqa: E402

need("torch")
import torch  # noqa: E402
from interfaces_cases import CHUNKS, MASKS, Cache, close, ints, no_wait, normal, plain, rotated, run  # noqa: E402

import fa3.flash_attn as two  # noqa: E402
import fa3.flash_attn_cute as four  # noqa: E402
import fa3.flash_attn_interface as three  # noqa: E402
import fa3.vllm_flash_attn as vllm  # noqa: E402


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
    """A number for all lengths, no lengths, head dimensions that are no multiples of 8, varlen sequences of keys in
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
    refused(NotImplementedError, "num_splits is 2, which varlen does not take with block_table", splits, 2, table)
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


fa3.load(sys.argv[1])
run(caches, other_caches, bounds, eighths)
