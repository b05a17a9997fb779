"""Attention for models of transformers, by name. It computes what the model asks for or refuses: two functions are
registered, as transformers asks one for masks, once for a forward pass, and the other for attention, in each layer."""

from __future__ import annotations

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

import fa3

# What models pass on to every attention without meaning it, or after it has done its work elsewhere.
HARMLESS = {
    *("position_ids", "cache_position", "use_cache", "num_items_in_batch", "output_hidden_states"),
    *("output_router_logits", "return_dict", "max_length_q", "max_length_k", "sliding_window"),
}


def mask(kv_length, q_length=None, q_offset=0, cache_position=None, kv_offset=0, attention_mask=None, local_size=None,
         allow_is_causal_skip=True, allow_is_bidirectional_skip=False, **_):  # fmt: skip
    """None, as full and bottom-right causal attention need no mask; any other is refused."""
    if cache_position is not None:  # instead of q_length and q_offset in the first releases of transformers 5
        q_length, q_offset = cache_position.shape[0], cache_position[0].item()
    if attention_mask is not None:
        unpadded = attention_mask[:, kv_offset : kv_offset + kv_length].all()
        why = "attention_mask has padding, which fa3 does not support: leave padding out"
        if torch.compiler.is_compiling():  # no values are known yet: the graph has to look, and fail by itself
            torch._assert_async(unpadded, why)
        elif not unpadded:
            raise NotImplementedError(why)
    if local_size is not None and kv_offset + kv_length > local_size:
        keys = kv_offset + kv_length
        raise NotImplementedError(f"sliding_window or chunks of {local_size}, fewer than {keys} keys: fa3 has none")
    if allow_is_bidirectional_skip:
        return None
    # A cache of fixed size has keys beyond the last query, and its offset is a tensor.
    if not isinstance(q_offset, int) or q_offset + q_length != kv_offset + kv_length:
        raise NotImplementedError(
            f"past_key_values: {kv_length} keys from {kv_offset} do not end with query {q_offset + q_length - 1}: fa3 "
            "needs a cache that grows, such as DynamicCache"
        )
    if not allow_is_causal_skip:
        raise NotImplementedError(
            "attention_mask: neither full nor causal (packed sequences by position_ids, or a mask function of the "
            "model's own), which fa3 does not support; under torch.compile give attention_mask or a cache, as "
            "transformers cannot tell there whether sequences are packed"
        )
    return None


def attention(module, query, key, value, attention_mask=None, dropout=0.0, scaling=None, is_causal=None,
              deterministic=False, **more):  # fmt: skip
    """query, key and value: (batch, heads, seqlen, head_dim); the transposed views are just strides to the library."""
    if attention_mask is not None:
        raise NotImplementedError("attention_mask is given, but fa3 does only full and causal attention")
    if dropout:
        raise NotImplementedError(f"dropout is {dropout}, which fa3 does not support: set attention_dropout to 0")
    for name, what in more.items():
        if name not in HARMLESS and what is not None and what is not False:
            raise NotImplementedError(f"{name} is given, which fa3 does not support")
    window = more.get("sliding_window")
    if window is not None and key.shape[2] > window:
        raise NotImplementedError(f"sliding_window is {window}, fewer than {key.shape[2]} keys: fa3 has no windows")
    causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if causal is None:
        raise NotImplementedError(f"is_causal: {type(module).__name__} does not say whether its attention is causal")
    if causal and is_causal is None and getattr(getattr(module, "config", None), "is_causal", True) is False:
        raise NotImplementedError("is_causal is False in the model's config, but True in its attention")
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return fa3.attention(q, k, v, causal=bool(causal), softmax_scale=scaling, deterministic=bool(deterministic)), None


def register(name: str) -> None:
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
