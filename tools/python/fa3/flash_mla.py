"""FlashMLA's decoding on caches of 16 bits and of FP8, with its signatures, defaults and meanings, computed by fa3: for
programs that import flash_mla. `fa3.install("flash_mla")` puts this module in that place.

What fa3 does not compute is a NotImplementedError that names the argument or function: sparse attention, and FP8 caches
of another format than tokens of 656 bytes. What differs besides: FP8 caches are read whole, by block_table, not by
indices; page sizes may be others, of caches of 16 bits head dimensions, too (q and k up to 64 columns more than v);
fp16 is taken, too; and lse is -inf for rows that see no key."""

from __future__ import annotations

from typing import Dict, Tuple

import torch

import fa3

from ._abi import LATENT_SCALE_COLUMNS
from ._drop_in.interfaces import FP8, attend, callers_names, refuse, refuse_dropout
from ._drop_in.refusals import add_refusals

__version__ = "1.0.0"  # whose interface this is
# Of an FP8 cache: a token's columns, the byte where its scales end, and its bytes.
LATENT, ROPE = 512, 64
SCALES_END = LATENT + 4 * LATENT // LATENT_SCALE_COLUMNS
TOKEN = SCALES_END + 2 * ROPE


class FlashMLASchedMeta:
    """How the lengths of a step are planned: by the first call that gets it, for all that get it after that."""

    def __init__(self):
        self.schedule = None


def get_mla_metadata(*arguments, **named) -> Tuple[FlashMLASchedMeta, None]:
    """(metadata, None) for the calls of one step, which have the same shapes and the same cache_seqlens. The arguments
    of older versions are not looked at."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,
                           softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None,
                           extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None,
                           extra_topk_length=None) -> Tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(out, lse). q: (batch, seqlen_q, heads, head_dim); k_cache: pages, (pages, page_size, heads_kv, head_dim), of
    which block_table, (batch, pages of a sequence), says which hold each sequence's cache_seqlens keys; v is their
    first head_dim_v columns. lse: (batch, heads, seqlen_q) in float32.

    is_fp8_kvcache: k_cache is (pages, page_size, heads_kv, 656) in uint8 or float8_e4m3fn. A token's bytes are 512
    numbers of float8_e4m3fn, which are the first columns divided by a scale, 4 scales in float32, of 128 columns each,
    and the other 64 columns in q's dtype. head_dim is 576, head_dim_v 512."""
    refuse(indices=indices, attn_sink=attn_sink, extra_k_cache=extra_k_cache,
           extra_indices_in_kvcache=extra_indices_in_kvcache, topk_length=topk_length,
           extra_topk_length=extra_topk_length)  # fmt: skip
    for name, x in (("block_table", block_table), ("cache_seqlens", cache_seqlens)):
        if x is None:
            raise ValueError(f"{name} is None, must be given")
    how = {"softmax_scale": softmax_scale, "causal": causal, "page_table": block_table, "seqused_k": cache_seqlens}
    if is_fp8_kvcache:
        tensors, latent = _of_fp8(q, k_cache, head_dim_v)
        how.update(latent)
    else:
        tensors = (q, k_cache, k_cache[..., :head_dim_v])
    meta = tile_scheduler_metadata
    with torch.no_grad(), callers_names({"page_table": "block_table", "seqused_k": "cache_seqlens"}):
        if isinstance(meta, FlashMLASchedMeta) and not torch.compiler.is_compiling():
            if meta.schedule is None:
                meta.schedule = fa3.forward_schedule(*tensors, **how)
            how["schedule"] = meta.schedule
        return fa3.forward(*tensors, return_lse=True, **how)


def _of_fp8(q, cache, head_dim_v) -> Tuple[Tuple[torch.Tensor, torch.Tensor, torch.Tensor], Dict[str, torch.Tensor]]:
    """(q, k, v) of `fa3.forward`, and what else it takes of an FP8 cache by name: views, nothing is copied."""
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"q.dtype is {q.dtype}, must be bfloat16 or float16 with is_fp8_kvcache")
    if cache.dtype not in (torch.uint8, FP8):
        raise ValueError(f"k_cache.dtype is {cache.dtype}, must be uint8 or float8_e4m3fn with is_fp8_kvcache")
    if cache.shape[-1] != TOKEN:
        raise NotImplementedError(f"k_cache.shape[-1] is {cache.shape[-1]}, and of FP8 caches fa3 computes those whose "
                                  f"tokens are {TOKEN} bytes")  # fmt: skip
    for name, columns, right in (("q.shape[-1]", q.shape[-1], LATENT + ROPE), ("head_dim_v", head_dim_v, LATENT)):
        if columns != right:
            raise ValueError(f"{name} is {columns}, must be {right} with is_fp8_kvcache")
    k, v = cache[..., SCALES_END:].view(q.dtype), cache[..., :LATENT].view(FP8)
    v_scale = cache[..., LATENT:SCALES_END].view(torch.float32)
    return (q[..., LATENT:], k, v), {"qv": q[..., :LATENT], "v_scale": v_scale}


# ---- prefill ----


def flash_attn_varlen_func(q, k, v, cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv, dropout_p=0.0,
                           softmax_scale=None, causal=False, deterministic=False,
                           is_varlen=True) -> Tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(out, lse), differentiable. q: (total_q, heads, head_dim), packed by cu_seqlens_qo; k and v likewise, (total_k,
    heads_kv, head_dim) and (total_k, heads_kv, head_dim_v). lse: (total_q, heads)."""
    refuse_dropout(dropout_p)
    o, lse = attend(
        q, k, v, cu_seqlens_q=cu_seqlens_qo, cu_seqlens_k=cu_seqlens_kv, max_seqlen_q=max_seqlen_qo,
        max_seqlen_k=max_seqlen_kv, softmax_scale=softmax_scale, causal=causal, deterministic=deterministic,
        called={"cu_seqlens_q": "cu_seqlens_qo", "cu_seqlens_k": "cu_seqlens_kv", "max_seqlen_q": "max_seqlen_qo",
                "max_seqlen_k": "max_seqlen_kv"}
    )  # fmt: skip
    return o, lse.T


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, head_dim_qk, dropout_p=0.0, softmax_scale=None,
                                     causal=False, deterministic=False,
                                     is_varlen=True) -> Tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """qkv: (total, heads, 2 * head_dim_qk + head_dim_v)."""
    q, k, v = qkv.split((head_dim_qk, head_dim_qk, qkv.shape[-1] - 2 * head_dim_qk), -1)
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(q, k, v, *lengths, dropout_p, softmax_scale, causal, deterministic, is_varlen)


def flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv, head_dim_qk,
                                    dropout_p=0.0, softmax_scale=None, causal=False, deterministic=False,
                                    is_varlen=True) -> Tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """kv: (total_k, heads_kv, head_dim_qk + head_dim_v)."""
    k, v = kv[..., :head_dim_qk], kv[..., head_dim_qk:]
    lengths = (cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv)
    return flash_attn_varlen_func(q, k, v, *lengths, dropout_p, softmax_scale, causal, deterministic, is_varlen)


add_refusals(
    globals(),
    "flash_mla_sparse_fwd FlashAttnVarlenFunc _flash_attn_varlen_forward _flash_attn_varlen_backward",
)
