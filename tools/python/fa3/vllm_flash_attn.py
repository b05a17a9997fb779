"""The functions of vLLM's vllm_flash_attn, with its signatures, defaults and meanings, computed by fa3: the one call of
its attention layers for prefill, decoding, both mixed, and cascades. `fa3.install("vllm.vllm_flash_attn")` puts this
module in that place.

What fa3 does not compute is a NotImplementedError that names the argument. fa_version, num_splits and
scheduler_metadata change nothing: whichever version is asked for, fa3 computes, chooses its splits, and plans in each
call. Descales count where q is FP8, as there."""

from __future__ import annotations

from typing import Optional, Tuple

import torch

from ._drop_in.interfaces import Output, attend, maybe_contiguous, refuse, refuse_dropout
from ._drop_in.refusals import add_refusals
from .flash_attn_interface import get_scheduler_metadata as _metadata

__version__ = "2.7.2.post1"  # whose interface this is
DEFAULT_FA_VERSION = 2
# In errors.
_CALLED = {"page_table": "block_table", "sinks": "s_aux", "qv": "q_v", **{f"{x}_scale": f"{x}_descale" for x in "qkv"}}
FA2_AVAILABLE = FA3_AVAILABLE = True
FA2_UNAVAILABLE_REASON = FA3_UNAVAILABLE_REASON = None
FA4_AVAILABLE, FA4_UNAVAILABLE_REASON = False, "fa3 is in the place of FlashAttention-2 and -3"
FA_VERSIONS = (2, 3, 4)


def is_fa_version_supported(fa_version, device=None) -> bool:
    return fa_version_unsupported_reason(fa_version, device) is None


def fa_version_unsupported_reason(fa_version, device=None) -> Optional[str]:
    """None, or why it is not: of version 4 fa3 computes what it has in common with the others."""
    if fa_version not in FA_VERSIONS:
        raise ValueError(f"fa_version is {fa_version}, must be one of {', '.join(map(str, FA_VERSIONS))}")
    return FA4_UNAVAILABLE_REASON if fa_version == 4 else None


def _is_fa2_supported(device=None) -> Tuple[bool, Optional[str]]:
    return True, None


_is_fa3_supported = _is_fa2_supported


def _is_fa4_supported(device=None) -> Tuple[bool, Optional[str]]:
    return False, FA4_UNAVAILABLE_REASON


def flash_attn_varlen_func(q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None,
                           q_v=None, dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0,
                           alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
                           return_softmax_lse=False, out=None, scheduler_metadata=None, q_descale=None, k_descale=None,
                           v_descale=None, num_splits=0, output_scale=None, fa_version=DEFAULT_FA_VERSION, s_aux=None,
                           cp_world_size=1, cp_rank=0, cp_tot_seqused_k=None, mask_mod=None, block_sparse_tensors=None,
                           aux_tensors=None, aux_tensor_leading_dims=None, dynamic_causal=None, gather_kv_indices=None,
                           gather_kv_valid_length=None) -> Output:  # fmt: skip
    """out, or with return_softmax_lse (out, lse). q: (total_q, heads, head_dim), packed by cu_seqlens_q. k and v:
    packed by cu_seqlens_k; or with block_table pages, (pages, page_size, heads_kv, head_dim), of which seqused_k keys
    are in use. q_v: (total_q, heads, head_dim_v), a second query for v. s_aux: (heads,), a logit for each head that
    takes weight and gives nothing. out: where the result is written."""
    fa_version_unsupported_reason(fa_version)
    refuse_dropout(dropout_p)
    refuse(output_scale=output_scale, mask_mod=mask_mod, block_sparse_tensors=block_sparse_tensors,
           aux_tensors=aux_tensors, aux_tensor_leading_dims=aux_tensor_leading_dims, dynamic_causal=dynamic_causal,
           gather_kv_indices=gather_kv_indices, gather_kv_valid_length=gather_kv_valid_length)  # fmt: skip
    if cp_world_size != 1:
        raise NotImplementedError(f"cp_world_size is {cp_world_size}: fa3 has no keys interleaved over ranks")
    if cu_seqlens_k is None and seqused_k is None:
        raise ValueError("cu_seqlens_k and seqused_k are None, one of them must be given")
    if block_table is not None and seqused_k is None:
        raise ValueError("block_table is given, but seqused_k is not")
    o, lse = attend(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, page_table=block_table, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic, out=out,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, sinks=s_aux, qv=q_v,
        called=_CALLED
    )  # fmt: skip
    return (o, lse) if return_softmax_lse else o


def get_scheduler_metadata(batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens,
                           qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
                           cache_leftpad=None, page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1),
                           has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0) -> torch.Tensor:  # fmt: skip
    """A tensor that `flash_attn_varlen_func` takes; nothing is planned in it."""
    return _metadata(batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens)


add_refusals(globals(), "sparse_attn_func sparse_attn_varlen_func")
