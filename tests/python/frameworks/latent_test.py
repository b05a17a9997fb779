"""Latent attention and head dimensions above 256 from Python: fa3.forward on NumPy arrays and torch tensors, also over
latent caches of e4m3, the qv arguments of fa3.flash_attn_interface, fa3.vllm_flash_attn and torch.ops.flash_attn_3, and
fa3.flash_mla, against plain attention in float64; on the CPU by the reference, and on a GPU by the kernels. Argument:
the library. Skipped without torch; cases for CUDA say so where there is no Hopper GPU."""

import inspect
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import attention, fa3, need, refused  # noqa: E402

need("torch", "numpy")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from interfaces_cases import plain  # noqa: E402

import fa3.flash_attn_interface as three  # noqa: E402
import fa3.flash_mla as mla  # noqa: E402
import fa3.vllm_flash_attn as vllm  # noqa: E402

fa3.load(sys.argv[1])
CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
E4M3 = torch.float8_e4m3fn


def normal(device, *dims):
    return torch.randn(dims).to(device, torch.float32 if device == "cpu" else torch.bfloat16)


def ints(device, *numbers):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def close(found, exact, what):
    limits = {torch.float32: 2e-3 if found.is_cuda else 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
    limit = limits[found.dtype]
    assert found.shape == exact.shape, (what, found.shape, exact.shape)
    error = (found.double() - exact).abs().max().item()
    assert error <= limit * max(1, exact.abs().max().item()), (what, error)


def exact(q, k, v, causal, softmax_scale=None):
    return attention(torch, q.double(), k.double(), v.double(), causal, softmax_scale)


def halves(q, cache, dv):
    """The same call with a second query: q, k, v, qv."""
    return q[..., dv:], cache[..., dv:], cache[..., :dv], q[..., :dv]


def dense(device):
    """One tensor, two, and K and V apart; any number of queries."""
    for d, dv, heads, heads_kv, rows in ((576, 512, 16, 1, 3), (288, 256, 6, 2, 40), (520, 512, 3, 1, 70)):
        q, cache = normal(device, 2, rows, heads, d), normal(device, 2, 90, heads_kv, d)
        for causal in (False, True):
            o, lse = exact(q, cache, cache[..., :dv], causal)
            one = fa3.forward(q, cache, cache[..., :dv], causal=causal, return_lse=True)
            q_rope, k, v, qv = halves(q, cache, dv)
            two = fa3.forward(q_rope, k, v, qv=qv, causal=causal, return_lse=True)
            official = three.flash_attn_func(q_rope, k, v, qv=qv, causal=causal, return_attn_probs=True)
            for found in (one, two, official, fa3.attention(q_rope, k, v, qv=qv, causal=causal, return_lse=True)):
                close(found[0], o, (d, dv, causal)), close(found[1], lse, (d, dv, causal, "lse"))
    for d, dv in ((264, 264), (384, 512), (512, 64), (64, 320)):
        q, k, v = normal(device, 2, 5, 6, d), normal(device, 2, 70, 2, d), normal(device, 2, 70, 2, dv)
        for found in (fa3.forward(q, k, v, causal=True), three.flash_attn_func(q, k, v, causal=True)):
            close(found, exact(q, k, v, True)[0], (d, dv))
    scaled = fa3.forward(*halves(q := normal(device, 1, 4, 2, 96), cache := normal(device, 1, 9, 1, 96), 64)[:3],
                         qv=q[..., :64], softmax_scale=0.3)  # fmt: skip
    close(scaled, exact(q, cache, cache[..., :64], False, 0.3)[0], "scale")


def capped(device):
    """Softcap of the sum of both products, far below the scores, among them and far above; K and V apart, too."""
    for dv, heads, heads_kv, how, mask in (
        (512, 16, 1, {"causal": True}, {"causal": True}),
        (256, 6, 2, {"window_size": (30, 2)}, {"window": (30, 2)}),
        (256, 3, 3, {"attention_chunk": 20}, {"chunk": 20}),
    ):
        q, k = normal(device, 2, 41, heads, 64 + dv), normal(device, 2, 50, heads_kv, 64 + dv)
        v, rope = k[..., :dv], halves(q, k, dv)
        for cap in (0.5, 3.0, 50.0):
            right = [plain(*x, softcap=cap, **mask, scale=0.2) for x in zip(q, k, v)]
            o, lse = (torch.stack(x) for x in zip(*right))
            two = three.flash_attn_func(*rope[:3], qv=rope[3], softcap=cap, softmax_scale=0.2, return_attn_probs=True,
                                        **how)  # fmt: skip
            one = three.flash_attn_func(q, k, v, softcap=cap, softmax_scale=0.2, return_attn_probs=True, **how)
            for found in (two, one):
                close(found[0], o, (dv, cap)), close(found[1], lse, (dv, cap, "lse"))
    q, k, v = normal(device, 2, 5, 6, 384), normal(device, 2, 70, 2, 384), normal(device, 2, 70, 2, 320)
    o = torch.stack([plain(*x, causal=True, softcap=2.0)[0] for x in zip(q, k, v)])
    close(three.flash_attn_func(q, k, v, causal=True, softcap=2.0), o, "apart")


def chunks(device):
    """Windows inside of chunks, which become sequences of their own, qv among them."""
    q, k, v, qv = halves(normal(device, 2, 7, 2, 96), normal(device, 2, 11, 1, 96), 64)
    o = three.flash_attn_func(q, k, v, qv=qv, attention_chunk=4, window_size=(1, 0))
    both = [torch.cat(x, -1) for x in ((q, qv), (k, v))]
    for b in range(2):
        close(o[b], plain(both[0][b], both[1][b], v[b], chunk=4, window=(1, 0))[0], "chunks")


def pages(device):
    """What servers call: pages, packed queries, new rows, a plan for several layers."""
    q, cache = normal(device, 2, 3, 8, 576), normal(device, 9, 4, 1, 576)
    table, used = ints(device, [0, 1, 2], [5, 4, 8]), ints(device, 10, 5)
    keys = [cache[table[b].long()].flatten(0, 1)[: int(used[b])] for b in range(2)]
    right = [exact(q[b : b + 1], keys[b][None], keys[b][None, :, :, :512], True) for b in range(2)]
    o, lse = (torch.cat(x) for x in zip(*right))
    q_rope, k, v, qv = halves(q, cache, 512)
    how = {"page_table": table, "causal": True}
    found = three.flash_attn_with_kvcache(q_rope, k, v, qv=qv, cache_seqlens=used, return_softmax_lse=True, **how)
    close(found[0], o, "kvcache"), close(found[1], lse, "kvcache lse")
    sums, rows = ints(device, 0, 3, 6), lambda x: x.flatten(0, 1)
    packed = vllm.flash_attn_varlen_func(
        rows(q_rope), k, v, 3, sums, 12, seqused_k=used, block_table=table, q_v=rows(qv), causal=True, fa_version=3,
        return_softmax_lse=True
    )  # fmt: skip
    close(packed[0], rows(o), "vllm"), close(packed[1], lse.transpose(0, 1).flatten(1), "vllm lse")
    meta, _ = mla.get_mla_metadata(used, 24, 1)
    for layer in range(2):
        found = mla.flash_mla_with_kvcache(q, cache, table, used, 512, meta, causal=True)
        close(found[0], o, ("flash_mla", layer)), close(found[1], lse, ("flash_mla lse", layer))
    assert meta.schedule is not None and (meta.schedule.numel() > 0) == (device == "cuda")
    compiled = torch.compile(lambda *x: fa3.forward(*x[:3], qv=x[3], seqused_k=used, **how), fullgraph=True,
                             backend="eager")
    close(compiled(q_rope, k, v, qv), o, "compiled")
    # Its last row is new, and comes with the call.
    half = cache.bfloat16()
    before, new = half.clone(), torch.stack([x[-1:].bfloat16() for x in keys])
    for b, last in enumerate(used.tolist()):
        before[table[b, (last - 1) // 4].long(), (last - 1) % 4] = 0
    q_rope, qv = q_rope.bfloat16(), qv.bfloat16()
    again = three.flash_attn_with_kvcache(q_rope, before[..., 512:], before[..., :512], k=new[..., 512:].contiguous(),
                                          v=new[..., :512].contiguous(), qv=qv, cache_seqlens=used - 1, **how)
    assert (again.double() - o).abs().max() < 0.05
    for b in range(2):
        assert torch.equal(before[table[b].long()].flatten(0, 1)[: int(used[b])], keys[b].bfloat16())


def e4m3_rows(device, dtype, *dims, d=64, dv=512, tokens=False):
    """k, v and v_scale of a latent cache, and what they mean, as one cache of k's kind in float64. tokens: FlashMLA's,
    all in one buffer, which is the last of the results."""
    groups = -(-dv // 128)
    rope, scale = torch.randn(*dims, d).to(dtype), torch.rand(*dims, groups) + 0.1
    latent = (2 * torch.randn(*dims, dv)).to(E4M3)
    if tokens:
        parts = (x.contiguous().view(torch.uint8) for x in (latent, scale, rope))
        buffer = torch.cat(tuple(parts), -1).to(device)
        k, v, v_scale = buffer[..., 528:].view(dtype), buffer[..., :512].view(E4M3), buffer[..., 512:528]
        v_scale = v_scale.view(torch.float32)
    else:
        room = torch.full((*dims, -(-groups // 4) * 4), torch.nan)  # rows of scales are multiples of 16 bytes apart
        room[..., :groups] = scale
        k, v, v_scale, buffer = rope.to(device), latent.to(device), room.to(device)[..., :groups], None
    means = torch.cat((latent.double() * scale.double().repeat_interleave(128, -1)[..., :dv], rope.double()), -1)
    return k, v, v_scale, means.to(device), buffer


def dtypes(device):
    return (torch.bfloat16, torch.float16) + ((torch.float32,) if device == "cpu" else ())


def e4m3_cache(device):
    """A latent cache of e4m3 in tensors of its own, and in FlashMLA's tokens: few rows and many, all masks, sinks."""
    for number, (rows, heads, d, dv, tokens, how) in enumerate((
        (1, 16, 64, 512, True, {}),
        (2, 16, 64, 512, False, {"causal": True}),
        (40, 6, 64, 512, True, {"causal": True}),
        (3, 5, 64, 512, True, {"window": (30, 2)}),
        (19, 2, 64, 512, False, {"chunk": 20}),
        (3, 4, 32, 144, False, {"sinks": torch.tensor([0.5, -1.0, 2.0, -torch.inf], device=device)}),
        (2, 4, 8, 16, False, {"softmax_scale": 0.3}),
        (30, 3, 64, 384, False, {}),
    )):  # fmt: skip
        for dtype in dtypes(device) if number < 2 else dtypes(device)[number % 2 :: 2]:
            if tokens and dtype == torch.float32:
                continue
            q = torch.randn(2, rows, heads, dv + d).to(device, dtype)
            k, v, v_scale, means, _ = e4m3_rows(device, dtype, 2, 90, 1, d=d, dv=dv, tokens=tokens)
            same = {"scale" if name == "softmax_scale" else name: x for name, x in how.items()}
            turned = torch.cat((q[..., dv:], q[..., :dv]), -1)
            halves_of = torch.cat((means[..., dv:], means[..., :dv]), -1)
            right = [plain(x, y, z[..., :dv], **same) for x, y, z in zip(turned, halves_of, means)]
            o, lse = (torch.stack(x) for x in zip(*right))
            call = lambda **more: fa3.forward(q[..., dv:], k, v, qv=q[..., :dv], v_scale=v_scale, **how, **more)
            for more in ({}, {}, {"batch_invariant": True}):
                found = call(**more, return_lse=True)
                assert found[0].dtype == dtype
                close(found[0], o, (number, dtype, more)), close(found[1], lse, (number, dtype, more, "lse"))
            if device == "cpu":
                close(call(out_dtype="float32"), o, (number, dtype, "float32"))
            meta = [x.to("meta") for x in (q[..., dv:], k, v, q[..., :dv], v_scale)]
            shapes = fa3.forward(*meta[:3], qv=meta[3], v_scale=meta[4], return_lse=True)  # as torch.compile asks
            assert [(x.shape, x.dtype) for x in shapes] == [(x.shape, x.dtype) for x in found], (number, dtype)


def e4m3_lengths(device):
    """Packed, in pages, by cache entries, behind padding; and what no sequence has, which is NaN."""
    for dtype in (torch.bfloat16, torch.float16):
        lengths, queries = [70, 9, 31], [2, 9, 1]
        q = torch.randn(sum(queries), 8, 576).to(device, dtype)
        cuts = lambda numbers: [sum(numbers[:i]) for i in range(len(numbers) + 1)]
        sums_q = ints(device, *cuts(queries))
        keys = [e4m3_rows(device, dtype, n, 1, tokens=True)[3:] for n in lengths]
        right = [plain(x, means, means[..., :512], causal=True) for x, (means, _) in zip(q.split(queries), keys)]
        o, lse = torch.cat([x for x, _ in right]), torch.cat([x for _, x in right], 1)

        def check(buffer, what, **how):
            k, v, v_scale = buffer[..., 528:].view(dtype), buffer[..., :512].view(E4M3), buffer[..., 512:528]
            named = {"qv": q[..., :512], "v_scale": v_scale.view(torch.float32), "causal": True,
                     "cu_seqlens_q": sums_q, "max_seqlen_q": max(queries), **how}  # fmt: skip
            call = lambda q_rope: fa3.forward(q_rope, k, v, return_lse=True, **named)
            plan = fa3.forward_schedule(q[..., 512:], k, v, **named)
            torch._dynamo.reset()  # which compiles one function for a few calls only
            compiled = torch.compile(call, fullgraph=True, backend="eager")
            planned = fa3.forward(q[..., 512:], k, v, return_lse=True, schedule=plan, **named)
            for found in (call(q[..., 512:]), planned, compiled(q[..., 512:])):
                close(found[0], o, (what, dtype)), close(found[1], lse, (what, dtype, "lse"))

        nan = lambda *dims: torch.full((*dims, 1, 656), 255, dtype=torch.uint8, device=device)
        packed = torch.cat((*(buffer for _, buffer in keys), nan(5)))
        check(packed, "packed", cu_seqlens_k=ints(device, *cuts(lengths)), max_seqlen_k=70)
        size, table, entries = 7, [[-1] * 10 for _ in lengths], nan(5, 80)
        pages, free = nan(23, size + 1)[:, :size], list(range(1, 22))  # pages with a row more between them
        for b, (_, buffer) in enumerate(keys):
            entries[b + 1, 4 : 4 + lengths[b]] = buffer
            for i, rows in enumerate(buffer.split(size)):
                table[b][i] = free.pop(i * 5 % len(free))
                pages[table[b][i], : len(rows)] = rows
        used = ints(device, *lengths)
        check(pages, "pages", page_table=ints(device, *table), seqused_k=used)
        check(entries, "entries", cache_batch_idx=ints(device, 1, 2, 3), seqused_k=used + 4,
              leftpad_k=ints(device, 4, 4, 4))  # fmt: skip


def flash_mla_fp8(device):
    """FlashMLA's call over its tokens, for two layers."""
    table, used = ints(device, [0, 1, 2], [5, 4, 8]), ints(device, 10, 5)
    for dtype in (torch.bfloat16, torch.float16):
        q = torch.randn(2, 3, 8, 576).to(device, dtype)
        *_, means, buffer = e4m3_rows(device, dtype, 9, 4, 1, tokens=True)
        for causal, scale in ((True, None), (False, 0.07)):
            keys = [means[table[b].long()].flatten(0, 1)[: int(used[b])] for b in range(2)]
            right = [plain(q[b], keys[b], keys[b][..., :512], causal=causal, scale=scale) for b in range(2)]
            o, lse = (torch.stack(x) for x in zip(*right))
            meta, _ = mla.get_mla_metadata(used, 24, 1, 8, True)
            how = {"causal": causal, "softmax_scale": scale, "is_fp8_kvcache": True}
            call = lambda cache, plan: mla.flash_mla_with_kvcache(q, cache, table, used, 512, plan, **how)
            compiled = torch.compile(lambda cache: call(cache, None), fullgraph=True, backend="eager")
            for found in (call(buffer, meta), call(buffer.view(E4M3), meta), compiled(buffer)):
                assert found[0].dtype == dtype
                close(found[0], o, ("flash_mla fp8", dtype)), close(found[1], lse, ("flash_mla fp8 lse", dtype))
            assert (meta.schedule.numel() > 0) == (device == "cuda")
        wrong = torch.zeros(9, 4, 1, 656, dtype=torch.uint8, device=device)
        refused(ValueError, "schedule was made for other arguments", mla.flash_mla_with_kvcache, q[:, :2], wrong, table,
                used, 512, meta, is_fp8_kvcache=True)  # fmt: skip


def e4m3_refusals(device):
    q = torch.randn(1, 3, 4, 576).to(device, torch.bfloat16)
    k, v, v_scale, *_ = e4m3_rows(device, torch.bfloat16, 1, 9, 1)
    no = NotImplementedError

    def refuses(kind, text, **how):
        named = {"q": q[..., 512:], "k": k, "v": v, "qv": q[..., :512], "v_scale": v_scale, **how}
        refused(kind, text, fa3.forward, **named)

    refuses(no, "v.dtype is e4m3, and k.dtype is not, which cannot be had together with softcap", softcap=2.0)
    refuses(no, "cannot be had together", alibi_slopes=torch.ones(4, device=device))
    refuses(ValueError, "v_scale is absent (its rank is 0), and v.dtype is e4m3", v_scale=None)
    ones = torch.ones(1, 1, 1, device=device)
    refuses(ValueError, "k_scale.rank is 3, must be 0 (absent)", k_scale=ones)
    refuses(ValueError, "v_scale.rank is 3, must be 4", v_scale=ones)
    refuses(ValueError, "v_scale.dtype is bf16, must be fp32", v_scale=v_scale.bfloat16())
    refuses(ValueError, "v_scale.dim[1] is 8, must equal v.dim[1], which is 9", v_scale=v_scale[:, :8])
    refuses(ValueError, "v_scale.dim[3] is 3, must be the groups of 128 columns in v.dim[3], 4",
            v_scale=v_scale[..., :3])  # fmt: skip
    refuses(ValueError, "v.dtype is e4m3, must be bf16 as q's", qv=None)
    refuses(ValueError, "v_scale.rank is 4, must be 0 (absent)", v=v.to(torch.bfloat16))
    refuses(ValueError, "v.dim[3] (head_dim_v) is 504, must be a multiple of 16", v=v[..., :504], qv=q[..., :504])
    refused(TypeError, "attention has no argument v_scale", fa3.attention, q[..., 512:], k, v, v_scale=v_scale)
    o = fa3.forward(q[..., 512:].detach().requires_grad_(), k, v, qv=q[..., :512], v_scale=v_scale)
    refused(no, "fa3.forward with qv has no derivative", o.float().sum().backward)
    if device == "cuda":
        refuses(no, "o.dtype is fp32, which cannot be had together with qv", out_dtype="float32")
        for wrong, text in (
            (torch.empty(1, 9, 1, 6, device=device)[..., :4], "v_scale.stride[1] is 6, must be a multiple of 4"),
            (torch.empty(1, 9, 1, 8, device=device)[..., 1:5], "v_scale.data"),
            (torch.empty(1, 9, 1, 8, device=device)[..., ::2], "v_scale.stride[3] is 2, must be 1"),
        ):
            refuses(ValueError, text, v_scale=wrong)

    cache = torch.zeros(2, 4, 1, 656, dtype=torch.uint8, device=device)
    table, used, meta = ints(device, [0]), ints(device, 3), mla.get_mla_metadata()[0]
    for kind, text, new in (
        (ValueError, "q.dtype is torch.float32, must be bfloat16 or float16 with is_fp8_kvcache", {"q": q.float()}),
        (ValueError, "k_cache.dtype is torch.bfloat16, must be uint8 or float8_e4m3fn", {"k_cache": k}),
        (no, "k_cache.shape[-1] is 584", {"k_cache": cache[..., :584]}),
        (no, "k_cache.shape[-1] is 576", {"k_cache": cache[..., :576].view(E4M3)}),
        (ValueError, "q.shape[-1] is 512, must be 576 with is_fp8_kvcache", {"q": q[..., :512]}),
        (ValueError, "head_dim_v is 256, must be 512 with is_fp8_kvcache", {"head_dim_v": 256}),
        (no, "indices is given, which fa3 does not compute", {"indices": table}),
        (ValueError, "cache_seqlens is None", {"cache_seqlens": None}),
    ):
        given = {"q": q, "k_cache": cache, "block_table": table, "cache_seqlens": used, "head_dim_v": 512, **new}
        refused(kind, text, mla.flash_mla_with_kvcache, **given, tile_scheduler_metadata=meta, is_fp8_kvcache=True)
    assert meta.schedule is None


def interfaces():
    """FlashMLA's signature."""
    found = str(inspect.signature(mla.flash_mla_with_kvcache))
    assert found == (
        "(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None, "
        "softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None, extra_k_cache=None, "
        "extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None)"
        " -> 'Tuple[torch.Tensor, torch.Tensor]'"
    ), found  # fmt: skip
    meta, none = mla.get_mla_metadata()
    assert isinstance(meta, mla.FlashMLASchedMeta) and none is None
    q, cache, table, used = torch.ones(1, 1, 2, 72), torch.ones(1, 4, 1, 72), ints("cpu", [0]), ints("cpu", 3)
    call = lambda **how: mla.flash_mla_with_kvcache(q, cache, table, used, 64, meta, **how)
    for name in ("indices", "attn_sink", "extra_k_cache", "topk_length"):
        refused(NotImplementedError, f"{name} is given, which fa3 does not compute", call, **{name: True})
    refused(ValueError, "cache_seqlens is None", mla.flash_mla_with_kvcache, q, cache, table, None, 64, meta)


def refusals(device):
    q, cache = normal(device, 1, 3, 4, 576), normal(device, 1, 9, 1, 576)
    q_rope, k, v, qv = halves(q, cache, 512)
    no = NotImplementedError
    wide = "fa3.attention has no backward pass with q.shape[-1] (head_dim) 576, above 256"
    refused(no, wide, fa3.attention, q.detach().requires_grad_(), cache, cache[..., :512])
    refused(no, "qv and v.shape[-1] (head_dim_v) 512, above 256", fa3.attention, q_rope, k, v,
            qv=qv.detach().requires_grad_())  # fmt: skip
    o = fa3.forward(q_rope, k, v, qv=qv.detach().requires_grad_())
    refused(no, "fa3.forward with qv has no derivative", o.sum().backward)
    slopes = torch.ones(4, device=device)
    refused(no, "alibi_slopes and qv cannot be had together", fa3.forward, q_rope, k, v, qv=qv, alibi_slopes=slopes)
    refused(ValueError, "qv.dim[3] is 64, must equal v.dim[3], which is 512", fa3.forward, q_rope, k, v, qv=q_rope)
    refused(ValueError, "qv.dtype is", fa3.forward, q_rope, k, v, qv=qv.half())
    refused(no, "with qv it is at most 64", fa3.forward, q[..., :72], cache[..., :72], v, qv=qv)
    if device == "cuda":
        refused(no, "v must be the first columns of k", fa3.forward, q, cache, cache[..., :512].contiguous())


def numpy_arrays():
    draw = np.random.default_rng(1).standard_normal
    q, cache = draw((2, 3, 4, 72), np.float32), draw((2, 11, 2, 72), np.float32)
    o, lse = attention(np, q.astype(float), cache.astype(float), cache[..., :64].astype(float), True)
    for found in (
        fa3.forward(q, cache, cache[..., :64], causal=True, return_lse=True),
        fa3.forward(q[..., 64:], cache[..., 64:], cache[..., :64], qv=q[..., :64], causal=True, return_lse=True),
    ):
        assert np.abs(found[0] - o).max() < 1e-6 and np.abs(found[1] - lse).max() < 1e-5
    empty = np.empty  # shapes alone are asked about
    info = fa3.kernel_info(empty((1, 1, 128, 64), np.float16), empty((1, 900, 1, 64), np.float16),
                           empty((1, 900, 1, 512), np.float16), qv=empty((1, 1, 128, 512), np.float16))
    assert info.name.startswith("fa3_fwdplannedmlacluster_fp16_") and info.head_dim_v == 512, info.name


def e4m3_numpy():
    try:
        import ml_dtypes
    except ImportError:
        print("SKIPPED: NumPy's arrays of e4m3, as there is no ml_dtypes")
        return
    random, empty, e4m3 = np.random.default_rng(1), np.empty, ml_dtypes.float8_e4m3fn
    draw = random.standard_normal
    v, scale = (2 * draw((2, 11, 2, 144))).astype(e4m3), random.random((2, 11, 2, 2), np.float32) + 0.1
    means = v.astype(float) * scale.astype(float).repeat(128, -1)[..., :144]
    for dtype, limit in ((np.float32, 1e-6), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)):
        q, k, qv = (draw((2, rows, heads, columns)).astype(dtype)
                    for rows, heads, columns in ((3, 4, 8), (11, 2, 8), (3, 4, 144)))  # fmt: skip
        both = [np.concatenate([x.astype(float) for x in parts], -1) for parts in ((q, qv), (k, means))]
        o, lse = attention(np, *both, means, True)
        found = fa3.forward(q, k, v, qv=qv, v_scale=scale, causal=True, return_lse=True)
        assert found[0].dtype == dtype and np.abs(found[0].astype(float) - o).max() < limit * np.abs(o).max(), dtype
        assert np.abs(found[1] - lse).max() < 1e-5, dtype
    for rows, name in ((16, "16rows_"), (17, "32rows_"), (32, "32rows_"), (33, "_")):
        info = fa3.kernel_info(empty((1, 1, rows, 64), np.float16), empty((1, 900, 1, 64), np.float16),
                               empty((1, 900, 1, 512), e4m3), qv=empty((1, 1, rows, 512), np.float16),
                               v_scale=empty((1, 900, 1, 4), np.float32))  # fmt: skip
        assert info.name.startswith(f"fa3_fwdplannedfp8mla{name}") and info.dtype == fa3.DTYPES["float16"], info.name


torch.manual_seed(3)
numpy_arrays(), e4m3_numpy(), interfaces()
for place in ("cpu", "cuda") if CUDA else ("cpu",):
    dense(place), capped(place), chunks(place), pages(place), refusals(place)
    e4m3_cache(place), e4m3_lengths(place), flash_mla_fp8(place), e4m3_refusals(place)
if not CUDA:
    print("SKIPPED: cases for CUDA, as there is no Hopper GPU")
