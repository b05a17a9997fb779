"""FlashMLA's decoding on dense caches, with its signatures, defaults and meanings, computed by fa3: for programs that
import flash_mla. `fa3.install("flash_mla")` puts this module in that place.

What fa3 does not compute is a NotImplementedError that names the argument: FP8 caches and sparse attention. What
differs besides: page sizes and head dimensions may be others (q and k up to 64 columns more than v), fp16 is taken,
too, and lse is -inf for rows that see no key."""

from __future__ import annotations

import torch

import fa3

from ._interfaces import refuse


class FlashMLASchedMeta:
    """How the lengths of a step are planned: by the first call that gets it, for all that get it after that."""

    def __init__(self):
        self.schedule = None


def get_mla_metadata(*arguments, **named):
    """(metadata, None) for the calls of one step, which have the same shapes and the same cache_seqlens. The arguments
    of older versions are not looked at."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,
                           softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None,
                           extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None,
                           extra_topk_length=None):  # fmt: skip
    """(out, lse). q: (batch, seqlen_q, heads, head_dim); k_cache: pages, (pages, page_size, heads_kv, head_dim), of
    which block_table, (batch, pages of a sequence), says which hold each sequence's cache_seqlens keys; v is their
    first head_dim_v columns. lse: (batch, heads, seqlen_q) in float32."""
    refuse(is_fp8_kvcache=is_fp8_kvcache, indices=indices, attn_sink=attn_sink, extra_k_cache=extra_k_cache,
           extra_indices_in_kvcache=extra_indices_in_kvcache, topk_length=topk_length,
           extra_topk_length=extra_topk_length)  # fmt: skip
    for name, x in (("block_table", block_table), ("cache_seqlens", cache_seqlens)):
        if x is None:
            raise ValueError(f"{name} is None, must be given")
    tensors = (q, k_cache, k_cache[..., :head_dim_v])
    how = {"softmax_scale": softmax_scale, "causal": causal, "page_table": block_table, "seqused_k": cache_seqlens}
    meta = tile_scheduler_metadata
    with torch.no_grad():
        if isinstance(meta, FlashMLASchedMeta) and not torch.compiler.is_compiling():
            if meta.schedule is None:
                meta.schedule = fa3.forward_schedule(*tensors, **how)
            how["schedule"] = meta.schedule
        return fa3.forward(*tensors, return_lse=True, **how)
