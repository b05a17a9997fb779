"""Official FlashAttention-3's functions, with its signatures, defaults and meanings, computed by fa3: for programs that
import flash_attn_interface. `fa3.install("flash_attn_interface")` puts this module in that place.

What fa3 does not compute is a NotImplementedError that names the argument: what the library refuses, FP8 with scales of
blocks and varlen sequences for example. What differs besides:
  qv, caches in pages and by batch_idx, left padding   have no backward pass, as there; who asks for one is refused.
                                    With qv q has up to 64 columns, and v up to 512.
  num_splits, pack_gqa, sm_margin   hints for official kernels; fa3 chooses for itself, and they change nothing.
  scheduler_metadata                taken and not looked at: each call plans for itself. `fa3.forward_schedule` plans
                                    once for several calls of `fa3.forward`.
  return_softmax_lse                gives (out, lse), without partial results.
  lse                               -inf for rows that see no key, and differentiable.
  attention_chunk                   has a backward pass.
  out, sinks                        are more than official functions have: where the result is written, through which
                                    no gradient flows, and a logit for each head that takes weight and gives nothing.
  rotary_cos, rotary_sin            may be float32, which saves their conversion in each call.
  cache_leftpad with page_table, attention_chunk within window_size: work on tables of single keys, which is slower."""

from __future__ import annotations

from typing import Optional, Tuple, Union

import torch

import fa3

from ._drop_in.interfaces import Output, apart, attend, backward_into, maybe_contiguous, round_multiple
from ._drop_in.refusals import add_refusals

__version__ = "3.0.0"  # whose interface this is
_CALLED = {f"{x}_scale": f"{x}_descale" for x in "qkv"}  # in errors
_CALLED_OF_CACHE = {**_CALLED, "seqused_k": "cache_seqlens", "leftpad_k": "cache_leftpad"}


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
                    deterministic=False, sm_margin=0, return_attn_probs=False, *, out=None,
                    sinks=None) -> Output:  # fmt: skip
    """out, or with return_attn_probs (out, lse). q: (batch, seqlen, heads, head_dim), k and v with heads_kv. FP8 comes
    with descales, (batch, heads_kv) in float32, and gives bfloat16. qv: (batch, seqlen, heads, head_dim_v), a second
    query, whose products with v are added to those of q and k."""
    o, lse = attend(
        q, k, v, softmax_scale=softmax_scale, causal=causal, q_descale=q_descale, k_descale=k_descale,
        v_descale=v_descale, window_size=window_size, attention_chunk=attention_chunk, softcap=softcap,
        deterministic=deterministic, out=out, sinks=sinks, qv=qv,
        called=_CALLED
    )  # fmt: skip
    return (o, lse) if return_attn_probs else o


def flash_attn_qkvpacked_func(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None,
                              window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False,
                              num_heads_q=None, sm_margin=0, return_attn_probs=False) -> Output:  # fmt: skip
    """qkv: (batch, seqlen, 3, heads, head_dim), or with num_heads_q (batch, seqlen, all heads, head_dim)."""
    if qkv.dim() == 5:
        q, k, v = apart("qkv", qkv, 3, "batch seqlen")
    elif num_heads_q is None:
        raise ValueError(f"num_heads_q is None, must be given where qkv has {qkv.dim()} dimensions, not 5")
    else:
        heads_kv = (qkv.shape[-2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, heads_kv, heads_kv], -2)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
        deterministic=deterministic, return_attn_probs=return_attn_probs
    )  # fmt: skip


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
                           seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
                           v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
                           pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False, *, out=None,
                           sinks=None) -> Output:  # fmt: skip
    """`flash_attn_func` on packed sequences: q is (total_q, heads, head_dim), and sequence b has the rows
    cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1, of which seqused_q[b] are in use; k and v likewise. lse: (heads,
    total_q)."""
    o, lse = attend(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, seqused_q=seqused_q, seqused_k=seqused_k, softmax_scale=softmax_scale, causal=causal,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, window_size=window_size,
        attention_chunk=attention_chunk, softcap=softcap, deterministic=deterministic, out=out, sinks=sinks, qv=qv,
        called=_CALLED
    )  # fmt: skip
    return (o, lse) if return_attn_probs else o


def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
        cache_seqlens: Optional[Union[int, torch.Tensor]] = None, cache_batch_idx: Optional[torch.Tensor] = None,
        cache_leftpad: Optional[torch.Tensor] = None, page_table: Optional[torch.Tensor] = None,
        cu_seqlens_q: Optional[torch.Tensor] = None, cu_seqlens_k_new: Optional[torch.Tensor] = None,
        max_seqlen_q: Optional[int] = None, rotary_seqlens: Optional[torch.Tensor] = None,
        q_descale: Optional[torch.Tensor] = None, k_descale: Optional[torch.Tensor] = None,
        v_descale: Optional[torch.Tensor] = None, softmax_scale=None, causal=False, window_size=(-1, -1),
        attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None,
        sm_margin=0, return_softmax_lse=False, *, out=None, sinks=None) -> Output:  # fmt: skip
    """out, or with return_softmax_lse (out, lse), of queries over a cache: k_cache and v_cache (batch_cache, seqlen,
    heads_kv, head_dim), or with page_table pages, (pages, page_size, heads_kv, head_dim), of any size.

    k and v, (batch, rows, heads_kv, head_dim) or packed with cu_seqlens_k_new, are first written into the cache behind
    the cache_seqlens keys that each sequence has. With rotary_cos and rotary_sin, (positions, rotary_dim / 2), k is
    rotated on the way, and q for the call, from position rotary_seqlens, or cache_seqlens, on. In caches of FP8 k and v
    of 16 bits are divided by k_descale and v_descale and rounded, which official functions have not. Without a causal
    mask, window or chunk all queries of a sequence stand at that position."""
    o, lse = attend(
        q, k_cache, v_cache, k_new=k, v_new=v, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_seqlens=rotary_seqlens, rotary_interleaved=rotary_interleaved, seqused_k=cache_seqlens,
        cache_batch_idx=cache_batch_idx, leftpad_k=cache_leftpad, page_table=page_table, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new, max_seqlen_q=max_seqlen_q, softmax_scale=softmax_scale, causal=causal,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, window_size=window_size,
        attention_chunk=attention_chunk, softcap=softcap, out=out, sinks=sinks, qv=qv, called=_CALLED_OF_CACHE
    )  # fmt: skip
    return (o, lse) if return_softmax_lse else o


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None) -> Tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) over all keys: out_partial (parts, batch, seqlen, heads, head_dim), lse_partial (parts, batch, seqlen,
    heads) in float32. out: where it is written; out_dtype: of out, float32 or that of out_partial."""
    if out is not None and out_dtype not in (None, out.dtype):
        raise ValueError(f"out.dtype is {out.dtype}, must be out_dtype, {out_dtype}")
    lse_parts = lse_partial.transpose(2, 3)
    o, lse = fa3.combine(out_partial, lse_parts, out_dtype=None if out is not None else out_dtype, out=out)
    return o, lse.transpose(1, 2)


def get_scheduler_metadata(
        batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens: torch.Tensor,
        qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q: Optional[torch.Tensor] = None,
        cu_seqlens_k_new: Optional[torch.Tensor] = None, cache_leftpad: Optional[torch.Tensor] = None,
        page_size: Optional[int] = None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1), attention_chunk=0,
        has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0) -> torch.Tensor:  # fmt: skip
    """A tensor that `flash_attn_with_kvcache` takes; nothing is planned in it."""
    return torch.zeros(1, dtype=torch.int32, device=cache_seqlens.device)


# ---- what programs that spread sequences over GPUs call: no autograd, gradients written to where they say ----


def _nothing(x) -> torch.Tensor:
    """For sums of parts, which there are none of."""
    return x.new_empty(0, dtype=torch.float32)


def _flash_attn_forward(
        q, k, v, k_new=None, v_new=None, qv=None, out_=None, cu_seqlens_q=None, cu_seqlens_k=None,
        cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, page_table=None,
        kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None, seqlens_rotary=None, q_descale=None,
        k_descale=None, v_descale=None, softmax_scale=None, causal=False, window_size_left=-1, window_size_right=-1,
        attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=1, pack_gqa=None,
        sm_margin=0) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(out, lse, and two empty tensors for partial results). out_: where out is written."""
    maxima = {"max_seqlen_q": None if cu_seqlens_q is None else max_seqlen_q,  # some give both, whatever there is
              "max_seqlen_k": None if cu_seqlens_k is None else max_seqlen_k}  # fmt: skip
    called = {**_CALLED, "cache_batch_idx": "kv_batch_idx"}
    with torch.no_grad():
        o, lse = attend(
            q, k, v, k_new=k_new, v_new=v_new, out=out_, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
            cu_seqlens_k_new=cu_seqlens_k_new, seqused_q=seqused_q, seqused_k=seqused_k, page_table=page_table,
            cache_batch_idx=kv_batch_idx, leftpad_k=leftpad_k, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
            rotary_seqlens=seqlens_rotary, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
            softmax_scale=softmax_scale, causal=causal, window_size=(window_size_left, window_size_right),
            attention_chunk=attention_chunk, softcap=softcap, rotary_interleaved=rotary_interleaved, qv=qv,
            called=called, **maxima
        )  # fmt: skip
    return o, lse, _nothing(q), _nothing(q)


def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None, sequed_k=None,
        max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None, softmax_scale=None, is_causal=False,
        window_size_left=-1, window_size_right=-1, softcap=0.0, deterministic=False,
        sm_margin=0) -> torch.Tensor:  # fmt: skip
    """An empty tensor; gradients are written to dq, dk and dv. out and softmax_lse may be those over more keys than k
    has: the gradients are these keys' part then."""
    maxima = (None if cu_seqlens_q is None else max_seqlen_q, None if cu_seqlens_k is None else max_seqlen_k)
    backward_into(
        {"dq": dq, "dk": dk, "dv": dv}, dout, q, k, v, out, softmax_lse, softmax_scale=softmax_scale, causal=is_causal,
        window_size=(window_size_left, window_size_right), softcap=softcap, deterministic=deterministic, maxima=maxima,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=sequed_q, seqused_k=sequed_k
    )  # fmt: skip
    return _nothing(q)


def round_up_headdim(head_size: int) -> int:
    """What official kernels pad a head dimension to."""
    return next((size for size in (64, 96, 128, 192) if head_size <= size), 256)


USE_TRITON_ROCM, flash_attn_3_gpu = False, torch.ops.flash_attn_3  # `fa3.install` defines its ops
add_refusals(globals(), "FlashAttnQKVPackedFunc FlashAttnFunc FlashAttnVarlenFunc setup_context")
