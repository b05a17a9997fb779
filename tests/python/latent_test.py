"""Latent attention and head dimensions above 256 from Python: fa3.forward on NumPy arrays and torch tensors, the qv
arguments of fa3.flash_attn_interface, fa3.vllm_flash_attn and torch.ops.flash_attn_3, and fa3.flash_mla, against plain
attention in float64; on the CPU by the reference, and on a GPU by the kernels. Argument: the library. Skipped without
torch; cases for CUDA say so where there is no Hopper GPU."""

import inspect
import sys

from support import attention, fa3, need, refused

need("torch", "numpy")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from interfaces_cases import plain  # noqa: E402

import fa3.flash_attn_interface as three  # noqa: E402
import fa3.flash_mla as mla  # noqa: E402
import fa3.vllm_flash_attn as vllm  # noqa: E402

fa3.load(sys.argv[1])
CUDA = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def normal(device, *dims):
    return torch.randn(dims).to(device, torch.float32 if device == "cpu" else torch.bfloat16)


def ints(device, *numbers):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def close(found, exact, what):
    limit = {torch.float32: 2e-3 if found.is_cuda else 1e-5, torch.bfloat16: 2.0**-6}[found.dtype]
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


def interfaces():
    """FlashMLA's signature."""
    found = str(inspect.signature(mla.flash_mla_with_kvcache))
    assert found == (
        "(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None, "
        "softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None, extra_k_cache=None, "
        "extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None)"
    ), found  # fmt: skip
    meta, none = mla.get_mla_metadata()
    assert isinstance(meta, mla.FlashMLASchedMeta) and none is None
    q, cache, table, used = torch.ones(1, 1, 2, 72), torch.ones(1, 4, 1, 72), ints("cpu", [0]), ints("cpu", 3)
    call = lambda **how: mla.flash_mla_with_kvcache(q, cache, table, used, 64, meta, **how)
    for name in ("is_fp8_kvcache", "indices", "attn_sink", "extra_k_cache", "topk_length"):
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
    assert info.name.startswith("fa3_fwdservedmlapair_fp16_") and info.head_dim_v == 512, info.name


torch.manual_seed(3)
numpy_arrays(), interfaces()
for place in ("cpu", "cuda") if CUDA else ("cpu",):
    dense(place), capped(place), chunks(place), pages(place), refusals(place)
if not CUDA:
    print("SKIPPED: cases for CUDA, as there is no Hopper GPU")
