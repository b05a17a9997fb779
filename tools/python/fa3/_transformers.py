"""Attention for models of transformers, by name. It computes what the model asks for or refuses: two functions are
registered, as transformers asks one for masks, once for a forward pass, and the other for attention, in each layer.
A causal mask travels from the first to the second as a `CausalMask`, which a model that computes attention by itself
cannot use: it fails, where without a mask it would see the future."""

from __future__ import annotations

import dataclasses

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

import fa3

# What models pass on to every attention without meaning it, or after it has done its work elsewhere.
HARMLESS = {
    *("position_ids", "cache_position", "use_cache", "num_items_in_batch", "output_hidden_states"),
    *("output_router_logits", "return_dict", "max_length_q", "max_length_k", "sliding_window", "logits_to_keep"),
}


class Refusal(NotImplementedError, AttributeError):
    """Of an attribute that is not there, too, as programs ask for those by `hasattr`."""


@dataclasses.dataclass(eq=False)
class CausalMask:
    """The last of so many queries sees all of so many keys, and each one before it one key less. Only `attention` reads
    it: whatever else a model does with it, taking it for a tensor, is refused."""

    model: str = "a model"
    queries: int = 0
    keys: int = 0

    def refuse(self, *_):
        raise Refusal(
            f"{self.model} uses its causal mask in code of its own, and not only in the attention that "
            'attn_implementation names: fa3 cannot replace that; "eager" does it'
        )

    __getattr__ = refuse

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        given, _ = torch.utils._pytree.tree_flatten((arguments, named))
        next(x for x in given if isinstance(x, cls)).refuse()


operators = "add sub mul truediv and or xor radd rsub rmul rtruediv rand ror rxor eq ne lt le gt ge invert neg"
for name in (*operators.split(), "getitem", "setitem", "len", "iter", "bool"):
    setattr(CausalMask, f"__{name}__", CausalMask.refuse)


def mask(kv_length, q_length=None, q_offset=0, cache_position=None, kv_offset=0, attention_mask=None, local_size=None,
         allow_is_causal_skip=True, allow_is_bidirectional_skip=False, config=None, **_):  # fmt: skip
    """A CausalMask, or None if each query sees all keys; any other mask is refused."""
    model = getattr(config, "model_type", None) or "the model"
    if cache_position is not None:  # instead of q_length and q_offset in the first releases of transformers 5
        q_length, q_offset = cache_position.shape[0], cache_position[0].item()
    if attention_mask is not None:
        unpadded = attention_mask[:, kv_offset : kv_offset + kv_length].all()
        why = f"{model}: attention_mask has padding, which fa3 does not support: leave padding out"
        if torch.compiler.is_compiling():  # no values are known yet: the graph has to look, and fail by itself
            torch._assert_async(unpadded, why)
        elif not unpadded:
            raise NotImplementedError(why)
    if local_size is not None and kv_offset + kv_length > local_size:
        keys = kv_offset + kv_length
        raise NotImplementedError(
            f"{model}: sliding_window or chunks of {local_size}, fewer than {keys} keys: fa3 has none"
        )
    if allow_is_bidirectional_skip:
        return None
    # A cache of fixed size has keys beyond the last query, and its offset is a tensor.
    if not isinstance(q_offset, int) or q_offset + q_length != kv_offset + kv_length:
        raise NotImplementedError(
            f"{model}: past_key_values: {kv_length} keys from {kv_offset} do not end with query "
            f"{q_offset + q_length - 1}: fa3 needs a cache that grows, such as DynamicCache"
        )
    if not allow_is_causal_skip:
        raise NotImplementedError(
            f"{model}: attention_mask: neither full nor causal (packed sequences by position_ids, or a mask function "
            "of the model's own), which fa3 does not support; under torch.compile give attention_mask or a cache, as "
            "transformers cannot tell there whether sequences are packed"
        )
    return CausalMask(model, q_length, kv_length)


def attention(module, query, key, value, attention_mask=None, dropout=0.0, scaling=None, is_causal=None,
              deterministic=False, **more):  # fmt: skip
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
    window = more.get("sliding_window")
    if window is not None and keys > window:
        raise refused(f"sliding_window is {window}, fewer than {keys} keys: fa3 has no windows")
    if isinstance(attention_mask, CausalMask):
        if (attention_mask.queries, attention_mask.keys) != (queries, keys):
            raise refused(
                f"attention_mask is for {attention_mask.queries} queries and {attention_mask.keys} keys, but there are "
                f"{queries} and {keys}"
            )
        causal = True
    elif attention_mask is not None:
        raise refused("attention_mask is given, but fa3 does only full and causal attention")
    else:
        causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
        if causal is None:
            raise refused("is_causal: it does not say whether it is causal, and fa3 does not guess")
        if causal and is_causal is None and queries > 1:  # "eager" would let each query see all keys
            raise refused("is_causal is True, but no causal mask came with the call, and fa3 does not guess")
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return fa3.attention(q, k, v, causal=bool(causal), softmax_scale=scaling, deterministic=bool(deterministic)), None


def register(name: str) -> None:
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
