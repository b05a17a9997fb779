"""Rotary embedding as flash_attn.layers.rotary and vllm.vllm_flash_attn.layers.rotary have it, by torch's own
operations, so that it has gradients: for models whose attention fa3 computes, where that package is not there."""

from __future__ import annotations

from typing import Optional, Union

import torch

from .refusals import add_refusals


def rotate_half(x, interleaved=False) -> torch.Tensor:
    """Each pair (a, b) of columns as (-b, a). Pairs are i and i + half, or, interleaved, 2 i and 2 i + 1."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def _turned(x, cos, sin, interleaved) -> torch.Tensor:
    """cos and sin: (..., 1, rotary_dim / 2), for each row of x, (..., heads, head_dim). In float32, rounded once."""
    columns = 2 * cos.shape[-1]
    if columns > x.shape[-1]:
        raise ValueError(f"cos.shape[-1] is {cos.shape[-1]}, must be at most half of x's head_dim, {x.shape[-1]}")
    both = [x.repeat_interleave(2, -1) if interleaved else torch.cat((x, x), -1) for x in (cos.float(), sin.float())]
    part = x[..., :columns].float()
    turned = part * both[0] + rotate_half(part, interleaved) * both[1]
    return torch.cat((turned.to(x.dtype), x[..., columns:]), -1)


def apply_rotary_emb_torch(x, cos, sin, interleaved=False) -> torch.Tensor:
    """x: (batch, seqlen, heads, head_dim); cos and sin: (seqlen, rotary_dim / 2), or with the batch first."""
    return _turned(x, cos[..., None, :], sin[..., None, :], interleaved)


def _positions(x, offsets, cu_seqlens) -> torch.Tensor:
    """Of each row of x: (seqlen,), (batch, seqlen) or, packed, (rows,)."""
    rows = torch.arange(x.shape[-3], device=x.device)
    if cu_seqlens is not None:
        sequence = torch.searchsorted(cu_seqlens[1:], rows, right=True).clamp_(max=cu_seqlens.shape[0] - 2)
        rows = rows - cu_seqlens[sequence]
        return rows + (offsets[sequence] if isinstance(offsets, torch.Tensor) else offsets)
    return rows + (offsets[:, None] if isinstance(offsets, torch.Tensor) else offsets)


def apply_rotary(
        x, cos, sin, seqlen_offsets: Union[int, torch.Tensor] = 0, cu_seqlens: Optional[torch.Tensor] = None,
        max_seqlen: Optional[int] = None, interleaved=False, inplace=False,
        conjugate=False) -> torch.Tensor:  # fmt: skip
    """x, (batch, seqlen, heads, head_dim) or, packed by cu_seqlens, (rows, heads, head_dim), turned by the angles of
    each row's position, which counts from seqlen_offsets on: a number or (batch,). cos and sin: (positions, rotary_dim
    / 2); rows beyond their positions have the last one's. conjugate: turned back."""
    at = _positions(x, seqlen_offsets, cu_seqlens).clamp_(max=cos.shape[0] - 1)
    turned = _turned(x, cos[at][..., None, :], (-sin if conjugate else sin)[at][..., None, :], interleaved)
    return x.copy_(turned) if inplace else turned


def apply_rotary_emb(
        x, cos, sin, interleaved=False, inplace=False, seqlen_offsets: Union[int, torch.Tensor] = 0,
        cu_seqlens: Optional[torch.Tensor] = None, max_seqlen: Optional[int] = None) -> torch.Tensor:  # fmt: skip
    """`apply_rotary` in the order of arguments that models use."""
    return apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(qkv, cos, sin, cos_k=None, sin_k=None, interleaved=False,
                          seqlen_offsets: Union[int, torch.Tensor] = 0,
                          num_heads_q: Optional[int] = None) -> torch.Tensor:  # fmt: skip
    """qkv itself, (batch, seqlen, 3, heads, head_dim), or with num_heads_q (batch, seqlen, all heads, head_dim), whose
    q and k are turned in place. cos_k and sin_k: those of k, if they are others."""
    if qkv.dim() == 5:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    elif num_heads_q is None:
        raise ValueError(f"num_heads_q is None, must be given where qkv has {qkv.dim()} dimensions, not 5")
    else:
        q, k = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q : (qkv.shape[2] + num_heads_q) // 2]
    apply_rotary(q, cos, sin, seqlen_offsets, interleaved=interleaved, inplace=True)
    cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    apply_rotary(k, cos_k, sin_k, seqlen_offsets, interleaved=interleaved, inplace=True)
    return qkv


def apply_rotary_emb_kv_(kv, cos, sin, interleaved=False,
                         seqlen_offsets: Union[int, torch.Tensor] = 0) -> torch.Tensor:  # fmt: skip
    """kv itself, (batch, seqlen, 2, heads, head_dim), whose k is turned in place."""
    apply_rotary(kv[:, :, 0], cos, sin, seqlen_offsets, interleaved=interleaved, inplace=True)
    return kv


add_refusals(globals(), "ApplyRotaryEmb ApplyRotaryEmbQKV_ ApplyRotaryEmbKV_ RotaryEmbedding rotary_kernel")
