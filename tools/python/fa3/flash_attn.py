"""FlashAttention-2's functions, with its signatures, defaults and meanings, computed by fa3: for programs that import
flash_attn. `fa3.install("flash_attn")` puts this module in that place, and in those of flash_attn.flash_attn_interface
and flash_attn.bert_padding; other modules of the package, if it is there, stay what they are.

What fa3 does not compute is a NotImplementedError that names the argument: dropout_p, and what the library refuses.
What differs besides:
  return_attn_probs    gives (out, lse, probabilities), of which the last are empty, as they are there without dropout.
  num_splits           a hint for other kernels; fa3 chooses for itself, and it changes nothing.
  lse                  -inf for rows that see no key, and differentiable. With alibi_slopes under causal, and no left
                       bound of window_size, official kernels add slope * j to the score of query i and key j, fa3
                       subtracts slope * (p - j), with p = i + seqlen_k - seqlen_q: out and gradients are the same,
                       official lse is fa3's plus slope * p.
  block_table          pages of any size. cache_seqlens beyond it are a ValueError where the host knows them: an int,
                       or on the CPU. Official functions wait for the GPU in each call to see them; fa3 does not wait,
                       so there they are no error: results of that sequence mean nothing, and nothing outside of the
                       tensors is read or written.
  alibi_slopes         must be at least 0.
  rotary_cos, rotary_sin   may be float32, which saves their conversion in each call."""

from __future__ import annotations

from typing import Optional, Tuple, Union

import torch

from ._drop_in.interfaces import (
    Output,
    apart,
    attend,
    backward_into,
    keys_of,
    maybe_contiguous,
    refuse_dropout,
    round_multiple,
)
from ._drop_in.refusals import add_refusals

__version__ = "2.8.3"  # whose interface this is
_CALLED = {"page_table": "block_table"}  # in errors
_CALLED_OF_CACHE = {**_CALLED, "seqused_k": "cache_seqlens", "leftpad_k": "cache_leftpad"}
FourTensors = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _attend(q, k, v, dropout_p, return_attn_probs, **named) -> Output:
    refuse_dropout(dropout_p)
    o, lse = attend(q, k, v, called=_CALLED, **named)
    return (o, lse, q.new_empty(0)) if return_attn_probs else o


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False) -> Output:  # fmt: skip
    """q: (batch, seqlen, heads, head_dim), k and v with heads_kv. alibi_slopes: (heads,) or (batch, heads) in
    float32."""
    return _attend(
        q, k, v, dropout_p, return_attn_probs, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic
    )  # fmt: skip


def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                             alibi_slopes=None, deterministic=False, return_attn_probs=False) -> Output:  # fmt: skip
    """kv: (batch, seqlen, 2, heads_kv, head_dim)."""
    how = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_func(q, *apart("kv", kv, 2, "batch seqlen"), *how)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                              alibi_slopes=None, deterministic=False, return_attn_probs=False) -> Output:  # fmt: skip
    """qkv: (batch, seqlen, 3, heads, head_dim)."""
    how = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_func(*apart("qkv", qkv, 3, "batch seqlen"), *how)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None) -> Output:  # fmt: skip
    """`flash_attn_func` on packed sequences: q is (total_q, heads, head_dim), and sequence b has the rows
    cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1; k and v likewise, or with block_table pages, (pages, page_size,
    heads_kv, head_dim), of which cu_seqlens_k only tells the lengths. lse: (heads, total_q)."""
    return _attend(
        q, k, v, dropout_p, return_attn_probs, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic,
        page_table=block_table
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                                    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                                    alibi_slopes=None, deterministic=False,
                                    return_attn_probs=False) -> Output:  # fmt: skip
    """kv: (total_k, 2, heads_kv, head_dim)."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    how = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_varlen_func(q, *apart("kv", kv, 2, "total_k"), *lengths, *how)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
                                     window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                                     return_attn_probs=False) -> Output:  # fmt: skip
    """qkv: (total, 3, heads, head_dim)."""
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    how = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_varlen_func(*apart("qkv", qkv, 3, "total"), *lengths, *how)


def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None,
        cache_seqlens: Optional[Union[int, torch.Tensor]] = None, cache_batch_idx: Optional[torch.Tensor] = None,
        cache_leftpad: Optional[torch.Tensor] = None, block_table: Optional[torch.Tensor] = None, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False) -> Output:  # fmt: skip
    """As `fa3.flash_attn_interface.flash_attn_with_kvcache`, whose page_table is block_table here."""
    if block_table is not None:
        _check_pages(cache_seqlens, k, k_cache, block_table)
    o, lse = attend(
        q, k_cache, v_cache, k_new=k, v_new=v, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, seqused_k=cache_seqlens, cache_batch_idx=cache_batch_idx,
        leftpad_k=cache_leftpad, page_table=block_table, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, called=_CALLED_OF_CACHE
    )  # fmt: skip
    return (o, lse) if return_softmax_lse else o


def _check_pages(cache_seqlens, k, k_cache, block_table) -> None:
    """That block_table has room for all keys, if the host knows how many there are."""
    if type(cache_seqlens) is torch.Tensor and cache_seqlens.is_cpu and not torch.compiler.is_compiling():
        cache_seqlens = int(cache_seqlens.max()) if cache_seqlens.numel() else 0
    if not isinstance(cache_seqlens, int):
        return
    new, room = 0 if k is None else k.shape[1], keys_of(k_cache, block_table)
    if cache_seqlens + new > room:
        keys = f"{cache_seqlens} keys of a sequence" + (f" and {new} new ones" if new else "")
        raise ValueError(f"cache_seqlens has {keys}, but block_table has room for {room}")


# ---- what programs that spread sequences over GPUs call: no autograd, gradients written to where they say ----


def _flash_attn_forward(q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
                        alibi_slopes, return_softmax) -> FourTensors:  # fmt: skip
    """(out, lse, and two empty tensors for probabilities and random numbers)"""
    refuse_dropout(dropout_p)
    with torch.no_grad():
        o, lse = attend(
            q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=(window_size_left, window_size_right),
            softcap=softcap, alibi_slopes=alibi_slopes
        )  # fmt: skip
    return o, lse, q.new_empty(0), q.new_empty(0)


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                               softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
                               alibi_slopes=None, return_softmax=False, block_table=None, leftpad_k=None,
                               seqused_k=None, zero_tensors=False, num_splits=0) -> FourTensors:  # fmt: skip
    refuse_dropout(dropout_p)
    if num_splits > 1 and block_table is not None:
        raise NotImplementedError(f"num_splits is {num_splits}, which varlen does not take with block_table")
    with torch.no_grad():
        o, lse = attend(
            q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k, softmax_scale=softmax_scale, causal=causal,
            window_size=(window_size_left, window_size_right), softcap=softcap, alibi_slopes=alibi_slopes,
            page_table=block_table, leftpad_k=leftpad_k, seqused_k=seqused_k
        )  # fmt: skip
    return o, lse, q.new_empty(0), q.new_empty(0)


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
                         window_size_left, window_size_right, softcap, alibi_slopes, deterministic,
                         rng_state=None) -> torch.Tensor:  # fmt: skip
    """An empty tensor. out and softmax_lse may be those over more keys than k has: the gradients are these keys' part
    then."""
    refuse_dropout(dropout_p)
    backward_into(
        {"dq": dq, "dk": dk, "dv": dv}, dout, q, k, v, out, softmax_lse, softmax_scale=softmax_scale, causal=causal,
        window_size=(window_size_left, window_size_right), softcap=softcap, deterministic=deterministic,
        alibi_slopes=alibi_slopes
    )  # fmt: skip
    return q.new_empty(0)


def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left, window_size_right,
                                softcap, alibi_slopes, deterministic, rng_state=None,
                                zero_tensors=False) -> torch.Tensor:  # fmt: skip
    refuse_dropout(dropout_p)
    backward_into(
        {"dq": dq, "dk": dk, "dv": dv}, dout, q, k, v, out, softmax_lse, softmax_scale=softmax_scale, causal=causal,
        window_size=(window_size_left, window_size_right), softcap=softcap, deterministic=deterministic,
        alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        maxima=(max_seqlen_q, max_seqlen_k)
    )  # fmt: skip
    return q.new_empty(0)


# What some programs call these functions by.
_wrapped_flash_attn_forward, _wrapped_flash_attn_backward = _flash_attn_forward, _flash_attn_backward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward


# ---- flash_attn.bert_padding ----


def index_first_axis(x, indices) -> torch.Tensor:
    """The rows of x with these numbers."""
    return x.index_select(0, indices)


def index_first_axis_residual(x, indices) -> Tuple[torch.Tensor, torch.Tensor]:
    """`index_first_axis`, and x."""
    return x.index_select(0, indices), x.detach()


def index_put_first_axis(values, indices, first_axis_dim) -> torch.Tensor:
    """So many rows, of zeros but for `values` at these numbers."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def unpad_input(
        hidden_states, attention_mask, unused_mask=None
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """(rows, indices, cu_seqlens, max_seqlen, seqused): of hidden_states, (batch, seqlen, ...), the rows that
    attention_mask, (batch, seqlen), or unused_mask has, one behind the other; their numbers; and lengths as
    `flash_attn_varlen_func` takes them, of which seqused counts attention_mask alone. It waits for the device."""
    held = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths, used = (x.sum(-1, dtype=torch.int32) for x in (held, attention_mask))
    return *_unpadded(hidden_states, held, lengths), used


def unpad_input_for_concatenated_sequences(
        hidden_states, attention_mask_in_length) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:  # fmt: skip
    """(rows, indices, cu_seqlens, max_seqlen), as of `unpad_input`, where each row of hidden_states, (batch, seqlen,
    ...), has several sequences, one behind the other from its first token on. attention_mask_in_length: (batch, seqlen)
    of integers, of which a row begins with the lengths of its sequences, and has zeros behind them. It waits for the
    device."""
    seqlen = attention_mask_in_length.shape[1]
    held = torch.arange(seqlen, device=attention_mask_in_length.device) < attention_mask_in_length.sum(1, keepdim=True)
    return _unpadded(hidden_states, held, attention_mask_in_length[attention_mask_in_length != 0])


def _unpadded(hidden_states, held, lengths) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    indices = held.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1).index_select(0, indices), indices, cu_seqlens, lengths.max().item()


def pad_input(hidden_states, indices, batch, seqlen) -> torch.Tensor:
    """(batch, seqlen, ...): what `unpad_input` took the rows from, with zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


add_refusals(
    globals(),
    "FlashAttnFunc FlashAttnKVPackedFunc FlashAttnQKVPackedFunc FlashAttnVarlenFunc FlashAttnVarlenKVPackedFunc "
    "FlashAttnVarlenQKVPackedFunc IndexFirstAxis IndexFirstAxisResidual IndexPutFirstAxis noop_custom_op_wrapper "
    "noop_register_fake_wrapper",
)
USE_TRITON_ROCM = False
