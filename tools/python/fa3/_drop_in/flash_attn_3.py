"""torch.ops.flash_attn_3 with official FlashAttention-3's schemas: what torch's scaled_dot_product_attention calls
where FlashAttention-3 is its backend (torch/nn/attention/_fa3.py). Importing this file defines the ops, and refuses
where somebody else has. Of what official kernels return besides their results, sums of parts, these return nothing.
torch.compile takes no op of such schemas, whose outputs may be inputs; it takes fa3.flash_attn_interface, and torch's
own attention."""

from __future__ import annotations

import torch

from .. import flash_attn_interface
from .._calls import forward as _forward
from .._frameworks import torch as _torch
from ..flash_attn_interface import _flash_attn_backward, _flash_attn_forward, _nothing

if hasattr(torch.ops.flash_attn_3, "fwd"):
    raise ImportError("torch.ops.flash_attn_3 is there already: another FlashAttention-3 was imported in this process")

SCHEMAS = (
    "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, Tensor? q_v=None, "
    "Tensor(out!)? out=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, "
    "Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None, Tensor? k_descale=None, "
    "Tensor? v_descale=None, float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, "
    "int window_size_right=-1, int attention_chunk=0, float softcap=0.0, bool is_rotary_interleaved=False, "
    "Tensor? scheduler_metadata=None, int num_splits=0, bool? pack_gqa=None, int sm_margin=0) "
    "-> (Tensor(out!), Tensor, Tensor, Tensor)",
    "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? dq=None, "
    "Tensor(dk!)? dk=None, Tensor(dv!)? dv=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, int window_size_right=-1, "
    "float softcap=0.0, bool deterministic=False, int sm_margin=0) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "fwd_combine(Tensor out_partial, Tensor lse_partial, Tensor(out!)? out=None, ScalarType? out_dtype=None) "
    "-> (Tensor(out!), Tensor)",
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
    "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? leftpad_k=None, "
    "int? page_size=None, int max_seqlen_k_new=0, bool is_causal=False, int window_size_left=-1, "
    "int window_size_right=-1, int attention_chunk=0, bool has_softcap=False, int num_splits=0, bool? pack_gqa=None, "
    "int sm_margin=0) -> Tensor",
)
def forget() -> None:
    """So that another package can define these ops."""
    library._destroy()


library = torch.library.Library("flash_attn_3", "FRAGMENT")
for schema in SCHEMAS:
    library.define(schema)


def fwd(q, k, v, k_new=None, v_new=None, q_v=None, out=None, cu_seqlens_q=None, cu_seqlens_k=None,
        cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, page_table=None,
        kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None, seqlens_rotary=None, q_descale=None,
        k_descale=None, v_descale=None, softmax_scale=None, is_causal=False, window_size_left=-1, window_size_right=-1,
        attention_chunk=0, softcap=0.0, is_rotary_interleaved=False, scheduler_metadata=None, num_splits=0,
        pack_gqa=None, sm_margin=0):  # fmt: skip
    return _flash_attn_forward(
        q, k, v, k_new, v_new, q_v, out, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k,
        max_seqlen_q, max_seqlen_k, page_table, kv_batch_idx, leftpad_k, rotary_cos, rotary_sin, seqlens_rotary,
        q_descale, k_descale, v_descale, softmax_scale, is_causal, window_size_left, window_size_right, attention_chunk,
        softcap, is_rotary_interleaved
    )  # fmt: skip


def _fake_fwd(q, k, v, k_new=None, v_new=None, q_v=None, out=None, cu_seqlens_q=None, *unused, **named):
    dims, dtype, lse_dims = _forward.outputs(q, v, packed=cu_seqlens_q is not None or "cu_seqlens_q" in named)
    o = _torch.empty(q, dims, dtype) if out is None else out
    return o, _torch.empty(q, lse_dims, "float32"), _nothing(q), _nothing(q)


def bwd(dout, q, k, v, out, softmax_lse, dq=None, dk=None, dv=None, cu_seqlens_q=None, cu_seqlens_k=None,
        seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, softmax_scale=None, is_causal=False,
        window_size_left=-1, window_size_right=-1, softcap=0.0, deterministic=False, sm_margin=0):  # fmt: skip
    _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k,
        dq, dk, dv, softmax_scale, is_causal, window_size_left, window_size_right, softcap, deterministic
    )  # fmt: skip
    return tuple(_nothing(q) for _ in range(5))


def _fake_bwd(dout, q, *unused, **named):
    return tuple(_nothing(q) for _ in range(5))


def fwd_combine(out_partial, lse_partial, out=None, out_dtype=None):
    with torch.no_grad():
        return flash_attn_interface.flash_attn_combine(out_partial, lse_partial, out, out_dtype)


def _fake_combine(out_partial, lse_partial, out=None, out_dtype=None):
    o = out_partial.new_empty(out_partial.shape[1:], dtype=out_dtype or out_partial.dtype) if out is None else out
    return o, lse_partial.new_empty(lse_partial.shape[1:])


def get_scheduler_metadata(batch_size, max_seqlen_q, max_seqlen_k, num_heads, num_heads_k, headdim, headdim_v,
                           qkv_dtype, seqused_k, *unused, **named):  # fmt: skip
    return seqused_k.new_zeros(1)


for call, fake in ((fwd, _fake_fwd), (bwd, _fake_bwd), (fwd_combine, _fake_combine),
                   (get_scheduler_metadata, get_scheduler_metadata)):  # fmt: skip
    library.impl(call.__name__, call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flash_attn_3::{call.__name__}", fake, lib=library)
