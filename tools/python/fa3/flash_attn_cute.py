"""FlashAttention-4's functions, with its signatures, defaults and meanings, computed by fa3: for programs that import
flash_attn.cute. `fa3.install("flash_attn.cute")` puts this module in that place, and in that of
flash_attn.cute.interface.

What fa3 does not compute is a NotImplementedError that names the argument: score_mod, mask_mod, block sparsity,
gathered keys, and what the library refuses. What differs besides:
  qv                          has no backward pass; q has up to 64 columns then, and v up to 512.
  num_splits, pack_gqa, scheduler_metadata, min_seqlen_k, seqlen_k_per_split   hints for other kernels; fa3 chooses for
                              itself, and they change nothing.
  lse                         always returned, -inf for rows that see no key, and differentiable.
  window_size                 a bound below 0 shifts the window, as there, and works by lengths of each sequence."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

import torch

import fa3

from ._drop_in.interfaces import attend, backward_into, maybe_contiguous, refuse, sides
from ._drop_in.refusals import add_refusals


__version__ = "4.0.0"  # whose interface this is


def _lengths(x, cu_seqlens, used, batch, rows) -> torch.Tensor:
    """Of each sequence, (batch,)."""
    if used is not None:
        return used
    if cu_seqlens is not None:
        return cu_seqlens.diff()
    return torch.full((batch,), rows, dtype=torch.int32, device=x.device)


def _in_use(q, cu_seqlens_q, used) -> torch.Tensor:
    """(batch, seqlen) or (total,): which rows of q are the first `used` ones of their sequence."""
    rows = torch.arange(q.shape[0 if cu_seqlens_q is not None else 1], dtype=torch.int32, device=q.device)
    if cu_seqlens_q is None:
        return rows < used[:, None]
    sequence = torch.searchsorted(cu_seqlens_q[1:], rows, right=True).clamp_(max=used.shape[0] - 1)
    return rows - cu_seqlens_q[sequence] < used[sequence]


def _attend(q, k, v, causal, window_size, qv=None, sinks=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None,
            seqused_k=None, page_table=None, **named) -> Tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(out, lse). None is no bound of a window. Where a bound is below 0, the last keys of a sequence are seen by none
    of its queries, or its last queries see none: without these the window ends at its diagonal."""
    latent = qv is not None or k is v and v.shape[-1] == 512
    if k is v and latent:  # q and qv meet the same keys, of which there is one product
        q, qv = (q if qv is None else qv), None
    left, right = sides(window_size)
    right = 0 if causal else right
    if left is not None and right is not None and left + right < 0:
        left, right = None, 0 if causal else None
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    kept = None
    if right is not None and right < 0:
        rows = page_table.shape[1] * v.shape[1] if page_table is not None else v.shape[-3]
        seqused_k = (_lengths(q, cu_seqlens_k, seqused_k, batch, rows) + right).clamp(min=0)
        left, right = None if left is None else left + right, 0
    elif left is not None and left < 0:
        seqused_q = (_lengths(q, cu_seqlens_q, seqused_q, batch, q.shape[1]) + left).clamp(min=0)
        left, right = 0, None if right is None else right + left
        kept = _in_use(q, cu_seqlens_q, seqused_q)
    window = tuple(-1 if side is None else side for side in (left, right))
    o, lse = attend(
        q, k, v, window_size=window, qv=qv, sinks=sinks, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q, seqused_k=seqused_k, page_table=page_table, called={"sinks": "learnable_sink"}, **named
    )  # fmt: skip
    if kept is not None:
        nothing = lse.new_full((lse.shape[-2],), -torch.inf) if sinks is None else sinks.float()
        o = o.where(kept[..., None, None], 0)
        lse = lse.where(kept if lse.dim() == 2 else kept[:, None], nothing[:, None])
    return o, lse.transpose(-1, -2) if latent else lse


def flash_attn_func(q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False,
                    window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None,
                    deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, aux_tensors=None,
                    aux_scalars=None, block_sparse_tensors=None, block_sparse_tensors_bwd=None,
                    return_lse=False) -> Tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(out, lse). q: (batch, seqlen, heads, head_dim), k and v with heads_kv. qv: (batch, seqlen, heads, head_dim_v), a
    second query, whose products with v are added to those of q and k; lse is (batch, seqlen, heads) then, otherwise
    (batch, heads, seqlen). learnable_sink: (heads,), a logit for each head that takes weight and gives nothing."""
    refuse(gather_kv_indices=gather_kv_indices, score_mod=score_mod, score_mod_bwd=score_mod_bwd, mask_mod=mask_mod,
           aux_tensors=aux_tensors, aux_scalars=aux_scalars, block_sparse_tensors=block_sparse_tensors,
           block_sparse_tensors_bwd=block_sparse_tensors_bwd)  # fmt: skip
    return _attend(
        q, k, v, causal, window_size, qv=qv, sinks=learnable_sink, softmax_scale=softmax_scale, softcap=softcap,
        deterministic=deterministic
    )  # fmt: skip


def flash_attn_varlen_func(q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
                           max_seqlen_k=None, min_seqlen_k=None, seqused_q=None, seqused_k=None,
                           gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False,
                           window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None,
                           deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None,
                           block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False,
                           scheduler_metadata=None, seqlen_k_per_split=None,
                           disable_scheduler_metadata=False) -> Tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`flash_attn_func` on sequences that have lengths: q, k and v packed by cu_seqlens, or (batch, seqlen, heads,
    head_dim) with seqused; k and v also in pages, (pages, page_size, heads_kv, head_dim), with page_table. lse of
    packed q: (heads, total_q), with qv (total_q, heads)."""
    refuse(gather_kv_indices=gather_kv_indices, score_mod=score_mod, score_mod_bwd=score_mod_bwd, mask_mod=mask_mod,
           aux_tensors=aux_tensors, aux_scalars=aux_scalars, block_sparse_tensors=block_sparse_tensors)  # fmt: skip
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_q": seqused_q,
               "seqused_k": seqused_k, "page_table": page_table}  # fmt: skip
    maxima = {"max_seqlen_q": None if cu_seqlens_q is None else max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    return _attend(
        q, k, v, causal, window_size, qv=qv, sinks=learnable_sink, softmax_scale=softmax_scale, softcap=softcap,
        deterministic=deterministic, **lengths, **maxima
    )  # fmt: skip


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None, cu_seqlens=None, seqused=None,
                       virtual_batch_idx=None,
                       return_lse=True) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:  # fmt: skip
    """(out, lse or None) over all keys: out_partial (parts, batch, seqlen, heads, head_dim), or packed (parts, total_q,
    heads, head_dim), and lse_partial, without the last dimension, in float32. Lengths are not looked at, as rows that
    belong to no sequence may hold anything."""
    packed = out_partial.dim() == 4
    if packed:
        out_partial, lse_partial = out_partial[:, None], lse_partial[:, None]
    o, lse = fa3.combine(
        out_partial, lse_partial.transpose(2, 3), out_dtype=None if out is not None else out_dtype,
        out=out[None] if packed and out is not None else out
    )  # fmt: skip
    o, lse = (o[0], lse[0]) if packed else (o, lse)
    return o if out is None else out, lse.transpose(-1, -2) if return_lse else None


def get_scheduler_metadata(max_seqlen_q, max_seqlen_k, nheads, nheads_kv, headdim, num_splits, *unused,
                           **named) -> None:  # fmt: skip
    """None, which `flash_attn_varlen_func` takes: each call plans for itself."""
    return None


# ---- what other interfaces call: no autograd ----


def _flash_attn_fwd(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None, max_seqlen_q=None,
        max_seqlen_k=None, min_seqlen_k=None, page_table=None, softmax_scale=None, causal=False, softcap=None,
        window_size_left=None, window_size_right=None, learnable_sink=None, tile_mn=None, mma_pv_is_rs=None,
        intra_wg_overlap=None, num_threads=384, num_splits=1, pack_gqa=None, _arch=None, score_mod=None, mask_mod=None,
        block_sparse_tensors=None, return_lse=False, out=None, lse=None, aux_tensors=None, aux_scalars=None,
        q_descale=None, k_descale=None, v_descale=None, gather_kv_indices=None, scheduler_metadata=None,
        seqlen_k_per_split=None,
        disable_scheduler_metadata=False) -> Tuple[torch.Tensor, torch.Tensor, None, None]:  # fmt: skip
    """(out, lse, and what only sparse attention has). out, lse: where they are written. FP8 comes with descales,
    (batch, heads_kv) in float32."""
    refuse(gather_kv_indices=gather_kv_indices, score_mod=score_mod, mask_mod=mask_mod, aux_tensors=aux_tensors,
           aux_scalars=aux_scalars, block_sparse_tensors=block_sparse_tensors)  # fmt: skip
    with torch.no_grad():
        o, found = _attend(
            q, k, v, causal, (window_size_left, window_size_right), qv=qv, sinks=learnable_sink,
            cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k,
            page_table=page_table, softmax_scale=softmax_scale, softcap=softcap or 0.0, out=out, q_descale=q_descale,
            k_descale=k_descale, v_descale=v_descale, max_seqlen_q=None if cu_seqlens_q is None else max_seqlen_q,
            max_seqlen_k=max_seqlen_k
        )  # fmt: skip
        if out is not None and o is not out:
            o = out.copy_(o)
        return o, found if lse is None else lse.copy_(found), None, None


def _flash_attn_bwd(
        q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0, window_size_left=None,
        window_size_right=None, m_block_size=64, n_block_size=128, num_threads=256, pack_gqa=False, num_stages_Q=2,
        num_stages_dO=2, SdP_swapAB=False, dKV_swapAB=False, dQ_swapAB=False, AtomLayoutMSdP=2, AtomLayoutNdKV=2,
        AtomLayoutMdQ=2, V_in_regs=False, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None,
        max_seqlen_q=None, max_seqlen_k=None, deterministic=False, dq=None, dk=None, dv=None, score_mod=None,
        score_mod_bwd=None, mask_mod=None, aux_tensors=None, aux_scalars=None, block_sparse_tensors=None, dlse=None,
        learnable_sink=None) -> Tuple[torch.Tensor, ...]:  # fmt: skip
    """(dq, dk, dv), which are written to those that are given."""
    refuse(score_mod=score_mod, score_mod_bwd=score_mod_bwd, mask_mod=mask_mod, aux_tensors=aux_tensors,
           aux_scalars=aux_scalars, block_sparse_tensors=block_sparse_tensors, dlse=dlse,
           learnable_sink=learnable_sink)  # fmt: skip
    given = {"dq": (dq, q), "dk": (dk, k), "dv": (dv, v)}
    gradients = {name: torch.empty_like(like) if x is None else x for name, (x, like) in given.items()}
    window = tuple(-1 if side is None else side for side in (window_size_left, window_size_right))
    maxima = (None if cu_seqlens_q is None else max_seqlen_q, None if cu_seqlens_k is None else max_seqlen_k)
    if min(window) < -1:
        raise NotImplementedError(f"window_size has a bound of {min(window)}, which _flash_attn_bwd does not compute")
    backward_into(
        gradients, dout, q, k, v, out, lse, softmax_scale=softmax_scale, causal=causal, window_size=window,
        softcap=softcap or 0.0, deterministic=deterministic, maxima=maxima, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k
    )  # fmt: skip
    return tuple(gradients.values())


def _flash_attn_fwd_combine(out_partial, lse_partial, out, lse=None, cu_seqlens=None, seqused=None, *unused,
                            **named) -> None:  # fmt: skip
    """`flash_attn_combine`, written to out and lse."""
    found = flash_attn_combine(out_partial, lse_partial, out=out)[1]
    if lse is not None:
        lse.copy_(found)


def _validate_head_dims(head_dim, head_dim_v, compute_capability, alignment) -> None:
    """An AssertionError for those that fa3 does not compute: there are none that official kernels do."""
    wide = max(head_dim, head_dim_v) > 256
    assert compute_capability == 9 and 8 <= min(head_dim, head_dim_v) and (not wide or head_dim_v <= 512), (
        f"(head_dim, head_dim_v) = ({head_dim}, {head_dim_v}) on compute capability {compute_capability}.x is not "
        "computed by fa3"
    )


add_refusals(
    globals(),
    "BwdConfig FlashAttnFunc FlashAttnVarlenFunc FwdConfig make_fake_bwd_tensors num_splits_heuristic",
)
BIN_BATCH_SEARCH_THRESH = 256  # of a scheduler that fa3 has not
torch2cute_dtype_map: Dict[torch.dtype, None] = {}
