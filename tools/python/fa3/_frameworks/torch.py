"""fa3's functions where tensors are torch's: custom ops, with what autograd and torch.compile need to know of them:
fa3::forward, fa3::forward_planned, fa3::forward_out, fa3::backward, fa3::backward_planned, fa3::backward_out,
fa3::quantize, fa3::append, fa3::combine and fa3::combine_out. Importing this file registers them."""

from __future__ import annotations

import torch

from .. import _abi, _arrays
from .._calls import forward as _forward
from . import repeated
from .attention import backward, dense, empty, forward_out_op, readable, planned
from .derivatives import differentiable, is_differentiated, no_derivative, refuse_gradients, remember_nothing
from .fp8 import Fp8, quantize

# ---- append and combination ----


@torch.library.custom_op(
    "fa3::append",
    mutates_args=repeated.WRITTEN,
    schema="(int flags, "
    + ", ".join(
        f"Tensor{f'(a{repeated.WRITTEN.index(x)}!)' if x in repeated.WRITTEN else ''}? {x}" for x in _arrays.APPENDED
    )
    + ") -> ()",
)
def append_op(flags, *tensors):
    _arrays.append(flags, **dict(zip(_arrays.APPENDED, tensors)))


def append(flags, **tensors):
    refuse_gradients("fa3.append", tensors)
    given = [tensors[name] for name in _arrays.APPENDED]
    if not repeated.is_plain(given):
        return append_op(flags, *given)
    _arrays.append(flags, **tensors)
    repeated.written(*(tensors[name] for name in repeated.WRITTEN))
    there = {name: x for name, x in zip(_arrays.APPENDED, given) if x is not None}
    params = _abi.AppendParams(flags=flags, **{name: _arrays.describe(name, x) for name, x in there.items()})
    call = repeated.Call(params, list(there), next(iter(there.values())).device, "fa3_append", None)
    repeated.keep(repeated.key(given, ("append", flags)), call)


@torch.library.custom_op(
    "fa3::combine",
    mutates_args=(),
    schema="(Tensor o_parts, Tensor lse_parts, ScalarType? out_dtype=None) -> (Tensor, Tensor)",
)
def combine_op(o_parts, lse_parts, out_dtype=None):
    return _arrays.combine(o_parts, lse_parts, out_dtype)


@combine_op.register_fake
def _(o_parts, lse_parts, out_dtype=None):
    o = o_parts.new_empty(o_parts.shape[1:], dtype=out_dtype or o_parts.dtype)
    return o, lse_parts.new_empty(lse_parts.shape[1:])


_combine = differentiable(combine_op, remember_nothing, no_derivative("combine"))


@torch.library.custom_op(
    "fa3::combine_out",
    mutates_args=("out",),
    schema="(Tensor(a!) out, Tensor o_parts, Tensor lse_parts) -> Tensor",
)
def combine_out_op(out, o_parts, lse_parts):
    """lse of a combination that writes o to `out`."""
    return _arrays.combine(o_parts, lse_parts, out=out)[1]


@combine_out_op.register_fake
def _(out, o_parts, lse_parts):
    return lse_parts.new_empty(lse_parts.shape[1:])


def combine(o_parts, lse_parts, out_dtype=None, out=None):
    """(o, lse)"""
    if out is None:
        return _combine(o_parts, lse_parts, out_dtype)
    refuse_gradients("fa3.combine with out", {"o_parts": o_parts, "lse_parts": lse_parts, "out": out})
    return out, combine_out_op(out, o_parts, lse_parts)


# ---- what the public functions call ----


def resolved(q, k, v, flags, out_dtype, tensors=None):
    """The same by torch's settings: under autocast q, k and v get its dtype, as those of torch's own attention do, and
    so does qv among the tensors."""
    if q.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = (x if x.dtype == torch.float8_e4m3fn else x.to(dtype) for x in (q, k, v))
        if tensors and "qv" in tensors:
            tensors["qv"] = tensors["qv"].to(dtype)
    if torch.are_deterministic_algorithms_enabled():
        flags |= _abi.FLAG_DETERMINISTIC
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        out_dtype = getattr(torch, _arrays.dtype_name(out_dtype))
    return q, k, v, flags, out_dtype


def attention_fp8(q, k, v, mask, softmax_scale, flags, scales, seed):
    """(o, lse)"""
    q, k, v, flags, _ = resolved(q, k, v, flags, None)
    return Fp8.apply(q, k, v, mask, softmax_scale, flags, scales, seed)


def forward(q, k, v, mask, softmax_scale, flags, out_dtype=None, kernel=None, window=(0, 0), maxima=(None, None),
            softcap=0.0, out=None, **tensors):  # fmt: skip
    """(o, lse)"""
    if out is not None:
        refuse_gradients("fa3.forward with out", {"q": q, "k": k, "v": v, "out": out, **tensors})
    q, k, v, flags, out_dtype = resolved(q, k, v, flags, out_dtype, tensors)
    how = (mask, softmax_scale, flags, out_dtype, kernel)
    is_plain = repeated.is_plain((q, k, v, out, *tensors.values()))
    if out is None and not is_plain and not _forward.features(mask, flags, window, maxima, softcap, **tensors):
        return dense(q, k, v, *how, *(tensors.get(name) for name in _forward.SCALES if tensors))
    given_schedule = tensors.get("schedule")
    if given_schedule is not None and not torch.compiler.is_compiling():
        made_for = getattr(given_schedule, "fa3_made_for", None)
        if made_for not in (None, _forward.signature(q, k, v, *how, window, maxima, softcap, **tensors)):
            raise ValueError("schedule was made for other arguments: shapes, dtypes, masks and maxima must be the same")
    if is_plain:
        o, lse = _forward.forward(q, k, v, *how, window, maxima, softcap, out, **tensors)
        repeated.written(out)
        return o, lse
    inputs = (q, k, v, *how, *window, *maxima, softcap, *(tensors.get(name) for name in _forward.ALL_TENSORS))
    return planned(*inputs) if out is None else (out, forward_out_op(out, *inputs))


def schedule(q, k, v, mask, softmax_scale, flags, out_dtype=None, kernel=None, window=(0, 0), maxima=(None, None),
             softcap=0.0, out=None, **tensors):  # fmt: skip
    """A tensor that knows what it was made for; its copies do not."""
    if torch.compiler.is_compiling():
        raise NotImplementedError("fa3.forward_schedule is not compiled: call it before what is")
    q, k, v, flags, out_dtype = resolved(q, k, v, flags, out_dtype, tensors)
    how = (mask, softmax_scale, flags, out_dtype, kernel)
    made = _forward.schedule(q, k, v, *how, window, maxima, softcap, out, **tensors)
    made.fa3_made_for = _forward.signature(q, k, v, *how, window, maxima, softcap, **tensors)
    return made
