"""Attention for models of transformers, by name. It computes what the model asks for or refuses: two functions are
registered, as transformers asks one for masks (masks.py), and the other for attention, in each layer."""

from __future__ import annotations

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

import fa3

from .. import torch as _torch
from ..._drop_in.interfaces import attend
from . import masks

# What models pass on to every attention without meaning it, or after it has done its work elsewhere.
HARMLESS = {
    *("cache_position", "use_cache", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep"),
    *("num_items_in_batch", "ignore_index", "reduction", "shift_labels"),  # of the loss
}


def attention(module, query, key, value, attention_mask=None, dropout=0.0, scaling=None, is_causal=None,
              deterministic=False, sliding_window=None, softcap=None, s_aux=None, position_ids=None,
              cu_seq_lens_q=None, cu_seq_lens_k=None, max_length_q=None, max_length_k=None, **more):  # fmt: skip
    """query, key and value: (batch, heads, seqlen, head_dim); the transposed views are just strides to the library."""
    config = getattr(module, "config", None)
    model = f"{type(module).__name__} of {getattr(config, 'model_type', None) or 'a model'}"
    refused = lambda why: NotImplementedError(f"{model}: {why}")
    if dropout:
        raise refused(f"dropout is {dropout}, which fa3 does not support: set attention_dropout to 0")
    for name, what in more.items():
        if name not in HARMLESS and what is not None and what is not False:
            raise refused(f"{name} is given, which fa3 does not support")
    queries, keys = query.shape[2], key.shape[2]
    mask = attention_mask
    if isinstance(mask, masks.Mask):
        if (mask.queries, mask.keys) != (queries, keys):
            raise refused(
                f"attention_mask is for {mask.queries} queries and {mask.keys} keys, but there are {queries} and {keys}"
            )
    elif mask is not None:
        raise refused("attention_mask is given, but fa3 takes none that has an element for each query and key")
    else:
        if sliding_window is not None and keys > sliding_window:
            raise refused(f"sliding_window is {sliding_window}, fewer than {keys} keys, but no mask came with the call")
        causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
        if causal is None:
            raise refused("is_causal: it does not say whether it is causal, and fa3 does not guess")
        if causal and is_causal is None and queries > 1:  # "eager" would let each query see all keys
            raise refused("is_causal is True, but no causal mask came with the call, and fa3 does not guess")
        mask = masks.unmasked(position_ids, model, query.shape[0], queries, keys, bool(causal))
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    named = {"softmax_scale": scaling, "softcap": softcap, "deterministic": bool(deterministic)}
    named["sinks"] = None if s_aux is None else s_aux.flatten()
    given = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    has_lengths = any(x is not None for x in given[:2])
    ids = None if has_lengths else masks.look(mask, position_ids)
    try:
        if has_lengths:
            return _lengths(mask, q, k, v, *given, **named), None
        return _attend(mask, ids, q, k, v, **named), None
    except NotImplementedError as error:
        raise refused(error) from None


def _masked(mask, q, k, v, **named):
    left = -1 if mask.window is None else mask.window
    how = {"window_size": (left, left), "attention_chunk": mask.chunk or 0, "causal": mask.causal}
    return attend(q, k, v, **how, **named)[0]


def _lengths(mask, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **named):
    """Of packed sequences whose lengths came with the call."""
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "max_seqlen_q": max_seqlen_q,
               "max_seqlen_k": max_seqlen_k}  # fmt: skip
    missing = [name for name, x in lengths.items() if x is None]
    if missing or mask.seen is not None or mask.last != mask.keys:
        why = f"not {' and '.join(missing)}" if missing else "with padding or a cache with room"
        raise NotImplementedError(f"cu_seq_lens_q or cu_seq_lens_k is given, but {why}, which fa3 does not support")
    resolved = lambda: {name: int(x) if "max" in name else x.to(torch.int32) for name, x in lengths.items()}
    lengths = mask.once("lengths", resolved, *lengths.values())
    rows = (x.flatten(0, 1) for x in (q, k, v))
    return _masked(mask, *rows, **lengths, **named).unflatten(0, q.shape[:2])


def _attend(mask, ids, q, k, v, **named):
    if ids is not None:
        rows = (x.flatten(0, 1) for x in (q, k, v))
        lengths = mask.once("documents", lambda: fa3.documents(ids), ids)
        return _masked(mask, *rows, **lengths, **named).unflatten(0, q.shape[:2])
    differentiated = any(x is not None and _torch.is_differentiated(x) for x in (q, k, v, named["sinks"]))
    if mask.scattered or differentiated and "leftpad_k" in mask.lengths:
        return _unpadded(mask, q, k, v, **named)
    if mask.last != mask.keys or mask.first:
        k, v = k[:, mask.first : mask.last], v[:, mask.first : mask.last]
    o = _masked(mask, q, k, v, **mask.lengths, **named)
    used = mask.lengths.get("seqused_q")
    if used is None:
        return o
    written = mask.once("written", lambda: torch.arange(mask.queries, device=q.device) < used[:, None])
    return torch.where(written[:, :, None, None], o, 0)


def _unpadded(mask, q, k, v, **named):
    """On copies without padding."""
    rows_q, rows_k, lengths = mask.once("unpadded", lambda: masks.unpadded(mask))
    k, v = k[rows_k], v[rows_k]
    if rows_q is None:
        return _masked(mask, q, k, v, **lengths, **named)
    o = _masked(mask, q[rows_q], k, v, **lengths, **named)
    return o.new_zeros(*q.shape[:2], *o.shape[1:]).index_put(rows_q, o)


def register(name: str) -> None:
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, masks.mask)
