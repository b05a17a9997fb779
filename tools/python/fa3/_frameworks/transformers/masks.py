"""What a model of transformers means by its mask, as fa3's numbers: `mask` is asked for it once for a forward pass, or
once for each kind of layer, and what it returns travels to the attention of each layer. It has no element for each
query and key: a model that computes attention by itself cannot use it, and fails, where without a mask it would see the
future."""

from __future__ import annotations

import sys

import torch
from torch._subclasses.fake_tensor import FakeTensor
from transformers import masking_utils

# Those that prepare masks before the forward pass, as generation does for static caches, hand them over as they are if
# they are of this class and have four dimensions.
KNOWN = object if masking_utils.BlockMask is torch.Tensor else masking_utils.BlockMask


class Refusal(NotImplementedError, AttributeError):
    """Of an attribute that is not there, too, as programs ask for those by `hasattr`."""


class Mask(KNOWN):
    """Which of `keys` each of `queries` sees. Only fa3's attention reads it: whatever else a model does with it, taking
    it for a tensor, is refused."""

    def __init__(self, model, batch, queries, keys, causal, window=None, chunk=None):
        self.model, self.batch, self.queries, self.keys = model, batch, queries, keys
        self.causal, self.window, self.chunk = causal, window, chunk
        self.first, self.last = 0, keys  # the keys that there are; others are room in a cache
        self.lengths = {}  # those arguments of fa3.forward
        self.seen = None  # (batch, last), where sequences have padding: whether it is none
        self.scattered = False  # whether padding is elsewhere than at the ends of sequences, too
        self.end = None  # (batch,): keys that a static cache has with these queries, which the device alone knows
        self.ids = None  # (batch, queries): a number for each of the documents that lie one behind the other
        self.positions = None  # those of queries, if who asked for the mask has them
        self.looked = False  # whether transformers has looked for documents there
        self.kept = False  # whether position_ids keep it, for layers that were given none
        self.made = {}  # what `once` has

    def once(self, name, make, *sources):
        """What layers share. sources: what it is made of besides the mask; of others it is made anew, but in compiled
        code, where there are none."""
        key = (name, *(() if torch.compiler.is_compiling() else map(id, sources)))
        if key not in self.made:
            self.made[key] = make(), sources  # which live as long, so that no other has the id
        return self.made[key][0]

    @property
    def shape(self):
        return torch.Size((self.batch, 1, self.queries, self.keys))

    ndim = 4

    def contiguous(self):
        return self

    def refuse(self, *_):
        raise Refusal(
            f"{self.model} uses its mask in code of its own, and not only in the attention that attn_implementation "
            'names: fa3 cannot replace that; "eager" does it'
        )

    __getattr__ = refuse

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        given, _ = torch.utils._pytree.tree_flatten((arguments, named))
        next(x for x in given if isinstance(x, cls)).refuse()


operators = "add sub mul truediv and or xor radd rsub rmul rtruediv rand ror rxor eq ne lt le gt ge invert neg"
for name in (*operators.split(), "getitem", "setitem", "len", "iter", "bool"):
    setattr(Mask, f"__{name}__", Mask.refuse)
Mask.__hash__, Mask.__repr__ = object.__hash__, object.__repr__
for name in {*dir(KNOWN)} - {*dir(object), *vars(Mask)}:
    if not name.startswith("__"):
        setattr(Mask, name, property(Mask.refuse))


def meaning(function, model):
    """What a mask function of transformers is made of: causal, window, chunk and its left_padding, ids and their
    positions."""
    # torch.compile of torch 2.11 knows the name of a function's code, but not the function's own.
    name = (getattr(function.__code__, "co_qualname", None) or function.__qualname__).split(".")[0]
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    free = {variable: cell.cell_contents for variable, cell in cells}
    known = {
        "causal_mask_function": lambda: {"causal": True},
        "bidirectional_mask_function": dict,
        "and_masks": lambda: {k: x for part in free["mask_functions"] for k, x in meaning(part, model).items()},
        "sliding_window_overlay": lambda: {"window": free["sliding_window"] - 1},
        "sliding_window_bidirectional_overlay": lambda: {"window": free["sliding_window"]},
        "chunked_overlay": lambda: {"chunk": free["chunk_size"], "left_padding": free["left_padding"]},
        "packed_sequence_mask_function": lambda: {"ids": free["packed_sequence_mask"]},
        "remap_positions_for_packed_sequence": lambda: {
            **meaning(free["mask_function"], model),
            "positions": free["position_ids"],
        },
    }
    if function.__module__ != masking_utils.__name__ or name not in known:
        raise NotImplementedError(f"{model}: its mask has {function.__qualname__}, which fa3 does not compute")
    return known[name]()


def mask(kv_length, q_length=None, q_offset=0, cache_position=None, kv_offset=0, attention_mask=None, local_size=None,
         mask_function=masking_utils.causal_mask_function, allow_is_causal_skip=True, allow_is_bidirectional_skip=False,
         config=None, batch_size=1, **_):  # fmt: skip
    """A Mask, or None if each query sees all keys."""
    model = getattr(config, "model_type", None) or "the model"
    if cache_position is not None:  # instead of q_length and q_offset in the first releases of transformers 5
        q_length, q_offset = cache_position.shape[0], cache_position[0]
        if not torch.compiler.is_compiling():
            q_offset = q_offset.item()
    if torch.compiler.is_compiling() and not allow_is_causal_skip and attention_mask is None and q_length > 1:
        raise NotImplementedError(
            f"{model}: under torch.compile give attention_mask or a cache, as transformers cannot tell there whether "
            "sequences are packed"
        )
    what = meaning(mask_function, model)
    causal, window, chunk = (what.get(name) for name in ("causal", "window", "chunk"))
    made = Mask(model, batch_size, q_length, kv_length, bool(causal), window, chunk)
    if causal:
        place(made, q_offset, kv_offset)
    elif window is not None and q_length != kv_length:
        raise NotImplementedError(f"{model}: a window of {kv_length} keys for {q_length} queries that are not theirs")
    if window is not None and made.last <= window + 1:
        made.window = None
    if chunk is not None and kv_offset + made.last <= chunk:
        made.chunk = None
    made.positions, cache = caller_has("position_ids", "past_key_values")
    made.looked = made.positions is not None and cache is None and attention_mask is None
    if "ids" in what:
        made.ids = what["ids"]
        check_chunks(made, made.ids, what.get("positions"))  # without positions chunks are not those of each sequence
    if attention_mask is not None:
        pad(made, attention_mask, kv_offset)
    if made.chunk is not None and kv_offset:
        align(made, q_offset, kv_offset, None if attention_mask is None else what["left_padding"])
    plain = not made.causal and made.window is None and made.seen is None
    return None if plain and allow_is_bidirectional_skip else made


def place(made, q_offset, kv_offset):
    """The last query stands where the last key does: what a cache has behind that is room."""
    last = q_offset + made.queries - kv_offset
    if isinstance(last, torch.Tensor):  # of a static cache, which is read on the device
        made.end = made.lengths["seqused_k"] = last.to(torch.int32).reshape(1).expand(made.batch).contiguous()
    elif last > made.keys:
        raise NotImplementedError(
            f"{made.model}: past_key_values: {made.keys} keys from {kv_offset} end before query "
            f"{q_offset + made.queries - 1}, which fa3 does not support"
        )
    else:
        made.last = last


def pad(made, attention_mask, kv_offset):
    """Padding, of which none is copied if it is at the ends of sequences."""
    seen = attention_mask[:, kv_offset : kv_offset + made.last]
    seen = torch.nn.functional.pad(seen, (0, made.last - seen.shape[1]), value=False)
    at = torch.arange(made.last, dtype=torch.int32, device=seen.device)
    if made.end is not None:
        seen = seen & (at < made.end[:, None])
    end = made.last if made.end is None else made.end  # of what is there, padding or not
    used = torch.where(seen, at + 1, 0).amax(1)
    left = torch.where(seen, at, made.last).amin(1).minimum(used)
    scattered = (seen.sum(1) != used - left).any()
    right = used != end
    if torch.compiler.is_compiling():  # no values are known yet: the graph has to look, and fail by itself
        why = f"{made.model}: attention_mask has padding inside of a sequence, which fa3 does not compile"
        torch._assert_async(~scattered, why)
        with_left = with_right = True
        if torch.is_grad_enabled():
            why = f"{made.model}: attention_mask has padding on the left, of which fa3 compiles no backward pass"
            torch._assert_async((left == 0).all(), why)
            with_left = False
    else:
        made.scattered, with_left, with_right = torch.stack((scattered, left.any(), right.any())).tolist()
    if not (with_left or with_right or made.scattered):
        return
    made.seen = seen
    if made.scattered and (made.window is not None or made.chunk is not None):
        raise NotImplementedError(
            f"{made.model}: attention_mask has padding inside of a sequence, of which fa3 computes no windows or chunks"
        )
    if with_left:
        made.lengths["leftpad_k"] = left
    if with_right:
        made.lengths["seqused_k"] = used
    if with_right and (made.causal or made.window is not None):
        made.lengths["seqused_q"] = (used - end + made.queries).clamp_(min=0)


def align(made, q_offset, kv_offset, left_padding):
    """Keys that a cache has from the middle of a chunk on begin with the next one: no query sees those before it."""
    if isinstance(q_offset, int) and q_offset - kv_offset > made.chunk - 1:
        raise NotImplementedError(f"{made.model}: past_key_values: {q_offset - kv_offset} keys before the first query "
                                  f"are more than its chunk of {made.chunk} has")  # fmt: skip
    if left_padding is None:
        made.first = -kv_offset % made.chunk
        if "seqused_k" in made.lengths:
            made.lengths["seqused_k"] = made.lengths["seqused_k"] - made.first
        return
    before = left_padding - kv_offset  # chunks count from the first key that is no padding
    left = torch.where(before < 0, before % made.chunk, before).to(torch.int32)
    made.lengths["leftpad_k"] = left.clamp_(max=made.last)


def seen_queries(made):
    """(batch, queries): those that are no padding."""
    if made.end is None:
        return made.seen[:, made.last - made.queries :]
    at = torch.arange(made.queries, device=made.seen.device)
    return made.seen.gather(1, made.end[:, None] - made.queries + at)


# ---- packed sequences ----


def unmasked(positions, *arguments):
    """The Mask, of these arguments, of layers that were given none: the same for those of a forward pass, if they have
    position_ids that tell when somebody writes to them, as inference tensors do not."""
    if not isinstance(positions, torch.Tensor) or torch.compiler.is_compiling() or positions.is_inference():
        return Mask(*arguments)
    key = (positions._version, *arguments)
    if getattr(positions, "fa3_mask", (None,))[0] != key:
        positions.fa3_mask = key, Mask(*arguments)
        positions.fa3_mask[1].kept = True
    return positions.fa3_mask[1]


def caller_has(*names):
    """What transformers' functions for masks were given by these names, and do not hand on to `mask`; None if it is not
    one of them that asks. With a cache, or with an attention_mask, they do not look at position_ids."""
    if torch.compiler.is_compiling():
        return [None for name in names]
    caller = sys._getframe(2)
    is_known = caller.f_globals.get("__name__") == masking_utils.__name__
    return [caller.f_locals.get(name) if is_known else None for name in names]


def check_chunks(made, ids, positions):
    firsts = ids.diff(prepend=ids[:, :1] - 1) != 0
    if made.chunk is not None and (positions is None or (positions[firsts] % made.chunk).any()):
        raise NotImplementedError(f"{made.model}: packed sequences (by position_ids) that do not begin with a chunk, "
                                  "which fa3 does not support")  # fmt: skip


def look(made, positions):
    """The documents of queries, as `ids` has them, or None: those that the mask was made with, otherwise what positions
    tell, those of who asked for the mask, or those that come to attention: gpt-oss and OPT have them only there,
    Llama 4 and GPT-BigCode only for their masks. It waits for a GPU to have them, once for a mask."""
    if made.ids is not None or made.looked or made.queries < 2:
        return made.ids
    positions = positions if made.positions is None else made.positions
    if not isinstance(positions, torch.Tensor) or positions.dim() != 2:
        return None
    if positions.shape[1] != made.queries or positions.shape[0] not in (1, made.batch):
        return None  # of what else there is: two dimensions of an image, for example
    if not made.causal and made.queries != made.keys:
        return None  # keys that are not those of the queries
    sources = () if made.kept else (positions,)  # those would keep each other
    return made.once("documents of positions", lambda: find(made, positions), *sources)


def find(made, positions):
    if not torch.compiler.is_compiling() and (positions.is_meta or isinstance(positions, FakeTensor)):
        return None
    begins = beginnings(positions, None if made.seen is None else seen_queries(made))
    if torch.compiler.is_compiling() or positions.is_cuda and torch.cuda.is_current_stream_capturing():
        why = f"{made.model}: position_ids tell of packed sequences, which fa3 does not compile with a mask or a cache"
        torch._assert_async(~begins.any(), why)
        return None
    if not begins.any():
        return None
    if made.seen is not None or made.lengths or not made.queries == made.last == made.keys:
        raise NotImplementedError(f"{made.model}: position_ids tell of packed sequences, and there is padding, or a "
                                  "cache that has keys already or is of fixed size, which fa3 does not support")
    positions, ids = (x.expand(made.batch, -1) for x in (positions, torch.nn.functional.pad(begins.cumsum(1), (1, 0))))
    check_chunks(made, ids, positions)
    return ids


def beginnings(positions, seen):
    """(batch, queries - 1): whether a sequence begins with that query, the first one of all apart: where its position
    is not above any before it. Those that are not seen do not count."""
    hidden = (torch.finfo if positions.is_floating_point() else torch.iinfo)(positions.dtype).max
    positions = positions if seen is None else torch.where(seen, positions, hidden)
    before = positions.cummin(1).values[:, :-1]
    return (positions[:, 1:] <= before) & (before != hidden)


# ---- with copies ----


def packed(made, keep):
    """(rows that are no padding, as two indices; where each sequence starts; the longest)"""
    counts = keep.sum(1, dtype=torch.int32)
    sums = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    return keep.nonzero(as_tuple=True), sums, max(int(counts.max()), 1)


def unpadded(made):
    """(rows of q or None for all as they are, rows of k, the arguments of fa3.forward)"""
    rows, sums, longest = packed(made, made.seen)
    named = {"cu_seqlens_k": sums, "max_seqlen_k": longest}
    if not made.causal:
        return None, rows, named
    mine, sums, longest = packed(made, seen_queries(made))
    return mine, rows, {**named, "cu_seqlens_q": sums, "max_seqlen_q": longest}
