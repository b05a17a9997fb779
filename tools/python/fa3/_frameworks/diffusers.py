"""Attention for models of diffusers, by name, through its dispatcher."""

from __future__ import annotations

import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from .._drop_in.interfaces import attend


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
              return_lse=False, _parallel_config=None):  # fmt: skip
    """query, key and value: (batch, seqlen, heads, head_dim)."""
    if dropout_p:
        raise NotImplementedError(f"dropout_p is {dropout_p}: fa3 has no dropout")
    if _parallel_config is not None:
        raise NotImplementedError("_parallel_config is given, which fa3 does not support")
    how = {"softmax_scale": scale}
    if attn_mask is not None:
        if is_causal:
            raise NotImplementedError("attn_mask and is_causal are given, which fa3 does not compute together")
        seen = _keys(attn_mask, key.shape[0], key.shape[1])
        key, value = key[seen], value[seen]  # without those that are hidden, one sequence behind the other
        counts = seen.sum(1, dtype=torch.int32)
        how["cu_seqlens_k"] = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
        how["max_seqlen_k"] = max(int(counts.max()), 1)
    elif is_causal and query.shape[1] != key.shape[1]:
        raise NotImplementedError(
            f"is_causal is True with {query.shape[1]} queries and {key.shape[1]} keys, which fa3 does not support here"
        )
    o, lse = attend(query, key, value, causal=is_causal, **how)
    return (o, lse.transpose(1, 2)) if return_lse else o


def _keys(mask, batch, keys):
    """(batch, keys): those that are seen, of a mask that is the same for all queries and heads."""
    dims = mask.shape
    if mask.dtype != torch.bool or mask.dim() not in (2, 4) or mask.dim() == 4 and (dims[1], dims[2]) != (1, 1):
        raise NotImplementedError(
            f"attn_mask is {mask.dtype} with dims {tuple(dims)}, but fa3 takes only a mask of keys: bool, with dims "
            "(batch, keys) or (batch, 1, 1, keys)"
        )
    return mask.reshape(dims[0], dims[-1]).expand(batch, keys)


def register(name: str) -> None:
    """As a member of diffusers' enumeration of backends, by which alone models and contexts find one."""
    if name not in AttentionBackendName._value2member_map_:
        member = str.__new__(AttentionBackendName, name)
        member._name_, member._value_ = name.upper(), name
        AttentionBackendName._member_map_[name.upper()] = AttentionBackendName._value2member_map_[name] = member
        AttentionBackendName._member_names_.append(name.upper())
    elif AttentionBackendName(name) in _AttentionBackendRegistry._backends:
        registered = _AttentionBackendRegistry._backends[AttentionBackendName(name)]
        if registered is not attention:
            raise ValueError(f"name is {name!r}, which is a backend of diffusers already")
    _AttentionBackendRegistry.register(AttentionBackendName(name))(attention)
