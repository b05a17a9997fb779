"""The arguments of fa3's functions by their names and types, each in one place: what type checkers know, what help()
shows, what a call is refused by, and what the library is called with. Torch tensors give torch tensors, and NumPy
arrays NumPy arrays."""

from __future__ import annotations

import difflib
import inspect
import operator
from typing import TYPE_CHECKING, Any, Callable, Dict, Generic, Literal, NamedTuple, Optional, Tuple, TypeVar, Union

from .. import _arrays
from .._abi import FLAG_ACCUMULATE, FLAG_BATCH_INVARIANT, FLAG_CENTERED_K, FLAG_DETERMINISTIC, FLAG_TWO_LEVEL
from . import forward as _forward

if TYPE_CHECKING:
    from typing import TypedDict

    import numpy
    import torch

    Array = TypeVar("Array", torch.Tensor, numpy.ndarray[Any, Any])
    Function = TypeVar("Function", bound=Callable[..., Any])
else:
    Array = TypeVar("Array")

    class TypedDict:
        """Names and types alone; before Python 3.11 typing's own cannot be generic."""

        def __init_subclass__(cls, total: bool = True) -> None:
            super().__init_subclass__()


Causal = Union[bool, Literal["bottom_right", "top_left"]]
Scales = Literal["block", "head", "tensor"]


class Masked(TypedDict, Generic[Array], total=False):
    """Masks, scores and lengths of queries and keys."""

    causal: Causal
    softmax_scale: Optional[float]
    window: Optional[Tuple[int, int]]
    chunk: Optional[int]
    sinks: Optional[Array]
    softcap: Optional[float]
    alibi_slopes: Optional[Array]
    cu_seqlens_q: Optional[Array]
    cu_seqlens_k: Optional[Array]
    max_seqlen_q: Optional[int]
    max_seqlen_k: Optional[int]
    seqused_q: Optional[Array]
    seqused_k: Optional[Array]


class Planned(Masked[Array], Generic[Array], total=False):
    """And caches: what `attention` takes, and `forward` with more."""

    leftpad_k: Optional[Array]
    page_table: Optional[Array]
    cache_batch_idx: Optional[Array]
    schedule: Optional[Array]
    batch_invariant: bool
    qv: Optional[Array]


class Attention(Planned[Array], Generic[Array], total=False):
    deterministic: bool
    centered_k: bool


class Forward(Planned[Array], Generic[Array], total=False):
    q_scale: Optional[Array]
    k_scale: Optional[Array]
    v_scale: Optional[Array]
    o_scale: Optional[Array]
    v_mean: Optional[Array]
    lse_offset: Optional[Array]
    two_level: bool
    out_dtype: Any
    kernel: Optional[str]
    out: Optional[Array]


class Backward(Masked[Array], Generic[Array], total=False):
    dlse: Optional[Array]
    q_scale: Optional[Array]
    k_scale: Optional[Array]
    v_scale: Optional[Array]
    v_mean: Optional[Array]
    lse_offset: Optional[Array]
    deterministic: bool
    centered_k: bool
    kernel: Optional[str]
    out: Optional[Tuple[Array, Array, Array]]
    accumulate: bool


class AttentionFp8(TypedDict, total=False):
    causal: Causal
    softmax_scale: Optional[float]
    scales: Scales
    seed: Optional[int]
    deterministic: bool


class Append(TypedDict, Generic[Array], total=False):
    cache_seqlens: Optional[Array]
    page_table: Optional[Array]
    cache_batch_idx: Optional[Array]
    slot_mapping: Optional[Array]
    cu_seqlens_new: Optional[Array]
    seqused_new: Optional[Array]
    q_out: Optional[Array]
    rotary_cos: Optional[Array]
    rotary_sin: Optional[Array]
    rotary_positions: Optional[Array]
    rotary_interleaved: bool
    k_scale: Optional[Array]
    v_scale: Optional[Array]
    q_scale: Optional[Array]


class Packed(TypedDict, Generic[Array]):
    """Of `documents`: arguments of `forward`, `attention` and `backward`."""

    cu_seqlens_q: Array
    cu_seqlens_k: Array
    max_seqlen_q: int
    max_seqlen_k: int


if TYPE_CHECKING:

    class Quantized(NamedTuple, Generic[Array]):
        y: Array
        scale: Array
        mean: Optional[Array]
        lse_offset: Optional[Array]

else:
    from .._arrays import Quantized  # noqa: F401


# ---- names ----


def defaults(kind: type) -> Dict[str, Any]:
    """{name: what it is unless given} of the arguments that a class above has."""
    kinds = {name: x for base in reversed(kind.__mro__) for name, x in getattr(base, "__annotations__", {}).items()}
    return {name: False if x in ("bool", "Causal") else None for name, x in kinds.items()}


TAKES = {"forward": Forward, "attention": Attention, "backward": Backward, "attention_fp8": AttentionFp8,
         "append": Append, "forward_schedule": Forward, "kernel_info": Forward}  # fmt: skip
NAMES = {call: frozenset(defaults(kind)) for call, kind in TAKES.items()}
# What other packages call these arguments.
MEANT = {
    **{"is_causal": "causal", "scale": "softmax_scale", "sm_scale": "softmax_scale", "scaling": "softmax_scale"},
    **{"window_size": "window", "sliding_window": "window", "attention_chunk": "chunk", "s_aux": "sinks"},
    **{"learnable_sink": "sinks", "logits_soft_cap": "softcap", "block_table": "page_table"},
    **{"cache_leftpad": "leftpad_k", "q_v": "qv", "scheduler_metadata": "schedule", "out_": "out"},
    **{f"{x}_descale": f"{x}_scale" for x in "qkv"},
    **dict.fromkeys(("return_softmax_lse", "return_attn_probs"), "return_lse"),
}


def takes(call: str) -> Callable[[Function], Function]:
    """For a function whose ** stands for the arguments of TAKES[call]: help() shows them by name."""

    def show(function: Any) -> Any:
        own = inspect.signature(function)
        fixed = {name: x for name, x in own.parameters.items() if x.kind != x.VAR_KEYWORD}
        more = {name: x for name, x in defaults(TAKES[call]).items() if name not in fixed}
        plain = [x.replace(annotation=inspect.Parameter.empty) for x in fixed.values()]
        plain += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=x) for name, x in more.items()]
        function.__signature__ = inspect.Signature(plain)
        return function

    return show


def refuse_others(call: str, given: Dict[str, Any]) -> None:
    """Refuses arguments that the function does not take, with what may be meant."""
    for name in given:
        if name in NAMES[call]:
            continue
        found = [MEANT[name]] if name in MEANT else difflib.get_close_matches(name, NAMES[call], 1)
        if found and (found[0] in NAMES[call] or found[0] == "return_lse"):
            raise TypeError(f"{call} has no argument {name}: did you mean {found[0]}?")
        takers = [taker for taker in ("forward", "attention", "backward", "append") if name in NAMES[taker]]
        if takers:
            has = f"{' and '.join(takers)} {'has' if len(takers) == 1 else 'have'}"
            raise TypeError(f"{call} has no argument {name}: {has} it")
        raise TypeError(f"{call} has no argument {name}; it takes {', '.join(sorted(NAMES[call]))}")


# ---- numbers ----


def scale(softmax_scale: Any) -> float:
    """For the library 0 is the default, 1 / sqrt(head_dim)."""
    if softmax_scale is None:
        return 0.0
    if _arrays.is_torch(softmax_scale):
        from .._frameworks import torch as _torch

        if _torch.is_differentiated(softmax_scale):
            raise NotImplementedError(
                "softmax_scale has a gradient, which fa3 does not compute: multiply q by it and give 1.0 instead"
            )
    try:
        number = float(softmax_scale)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several elements, or in torch.vmap
        raise TypeError(f"softmax_scale is {softmax_scale!r}, must be a number") from None
    if abs(number) <= 2.0**-150:  # half of the least float32: rounded to 0
        raise ValueError(f"softmax_scale is {number}{', in float32 0' if number else ''}, must be > 0")
    return number


def cap(softcap: Any) -> float:
    """For the library 0 is none."""
    if softcap is None:
        return 0.0
    try:
        number = float(softcap)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"softcap is {softcap!r}, must be a number") from None
    if number and abs(number) <= 2.0**-150:
        raise ValueError(f"softcap is {number}, in float32 0, must be > 0, or 0 or None for none")
    return number


def seed(number: Any) -> int:
    number = operator.index(number)
    if not 0 <= number < 2**64:
        raise ValueError(f"seed is {number}, must be from 0 to 2**64 - 1")
    return number


def kernel(name: Optional[str]) -> Optional[str]:
    if name is not None and not (isinstance(name, str) and name):
        raise ValueError(f"kernel is {name!r}, must be None or the name of a kernel, of fa3.kernels()")
    return name


# ---- all of a call ----


FLAGS = {"deterministic": FLAG_DETERMINISTIC, "centered_k": FLAG_CENTERED_K, "two_level": FLAG_TWO_LEVEL,
         "batch_invariant": FLAG_BATCH_INVARIANT, "accumulate": FLAG_ACCUMULATE}  # fmt: skip


def flags(given: Any) -> int:
    found = 0
    for name, flag in FLAGS.items():
        found |= flag if given.get(name) else 0
    return found


def resolved(given: Any, q: Any, k: Any, v: Any) -> Any:
    """`forward`'s arguments, those that are given, as `_forward.forward` takes them: by position and by name."""
    tensors = {name: given[name] for name in _forward.ALL_TENSORS if given.get(name) is not None}
    out = {name: given[name] for name in ("out",) if given.get(name) is not None}
    _arrays.check({"q": q, "k": k, "v": v}, {**tensors, **out})
    _forward.check_ranks(q, k, v, tensors)
    if out and given.get("out_dtype") is not None:
        raise ValueError("out and out_dtype are given, must be one of them")
    mask, window = _forward.mask(given.get("causal", False), given.get("window"), given.get("chunk"))
    how = mask, scale(given.get("softmax_scale")), flags(given), given.get("out_dtype"), kernel(given.get("kernel"))
    maxima = _forward.maxima(given.get("max_seqlen_q"), given.get("max_seqlen_k"))
    numbers = {"window": window, "maxima": maxima, "softcap": cap(given.get("softcap"))}
    return how, {**numbers, **tensors, **out}
