"""The forward and the backward pass as custom ops of torch, with what autograd and torch.compile need to know."""

from __future__ import annotations

import torch

from .. import _abi
from .._calls import backward as _backward
from .._calls import forward as _forward
from .derivatives import differentiable, no_derivative, remember_nothing


def empty(like, dims, dtype):
    return torch.empty(dims, dtype=getattr(torch, dtype), device=like.device)


# ---- forward ----


def _given(names, tensors):
    """Of an op's optional tensors those that are there, by name."""
    return {name: x for name, x in zip(names, tensors) if x is not None}


@torch.library.custom_op(
    "fa3::forward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, int mask, float softmax_scale, int flags, ScalarType? out_dtype=None, "
    "str? kernel_name=None, Tensor? q_scale=None, Tensor? k_scale=None, Tensor? v_scale=None, Tensor? o_scale=None, "
    "Tensor? v_mean=None, Tensor? lse_offset=None) -> (Tensor, Tensor)",
)
def forward_op(q, k, v, mask, softmax_scale, flags, out_dtype=None, kernel_name=None, *scales):
    how = (mask, softmax_scale, flags, out_dtype, kernel_name)
    return _forward.forward(q, k, v, *how, **_given(_forward.SCALES, scales))


@forward_op.register_fake
def _(q, k, v, mask, softmax_scale, flags, out_dtype=None, kernel_name=None, *scales):
    o_dims, dtype, lse_dims = _forward.outputs(q, v, out_dtype)
    return empty(q, o_dims, dtype), empty(q, lse_dims, "float32")


def _keep_for_backward(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.how, ctx.inputs = inputs[3:6], len(inputs)
    ctx.set_materialize_grads(False)


def _refuse_e4m3(q, k):
    """Autograd would round gradients to e4m3, as it gives each tensor a gradient of its dtype."""
    if q.dtype == torch.float8_e4m3fn:
        raise NotImplementedError(
            "q.dtype is float8_e4m3fn, which has no backward pass in autograd: fa3.attention_fp8 quantizes and has "
            "one, and fa3.backward takes float8_e4m3fn"
        )
    if k.dtype == torch.float8_e4m3fn:
        raise NotImplementedError("k.dtype is float8_e4m3fn, and q's is not, which has no backward pass")


def _backward_of_dense(ctx, dout, dlse):
    q, k, v, o, lse = ctx.saved_tensors
    _refuse_e4m3(q, k)
    if dout is None and dlse is None:
        return (None,) * ctx.inputs
    mask, softmax_scale, flags = ctx.how
    dout = torch.zeros_like(o) if dout is None else dout
    gradients, _ = backward(dout, q, k, v, o, lse, dlse, mask, softmax_scale, flags & _backward.FLAGS)
    return *gradients, *(None,) * (ctx.inputs - 3)


dense = differentiable(forward_op, _keep_for_backward, _backward_of_dense)

_PLANNED = (
    "Tensor q, Tensor k, Tensor v, int mask, float softmax_scale, int flags, ScalarType? out_dtype, str? kernel_name, "
    "SymInt window_left, SymInt window_right, SymInt? max_seqlen_q, SymInt? max_seqlen_k, "
    "float softcap, "
) + ", ".join(f"Tensor? {name}=None" for name in _forward.ALL_TENSORS)


def _run_planned(q, k, v, mask, softmax_scale, flags, out_dtype, kernel_name, window_left, window_right, max_seqlen_q,
                 max_seqlen_k, softcap, *tensors, out=None):  # fmt: skip
    numbers = {"window": (window_left, window_right), "maxima": (max_seqlen_q, max_seqlen_k), "softcap": softcap}
    how = (mask, softmax_scale, flags, out_dtype, kernel_name)
    return _forward.forward(q, k, v, *how, **numbers, **_given(_forward.ALL_TENSORS, tensors), out=out)


@torch.library.custom_op("fa3::forward_planned", mutates_args=(), schema=f"({_PLANNED}) -> (Tensor, Tensor)")
def forward_planned_op(*inputs):
    return _run_planned(*inputs)


@forward_planned_op.register_fake
def _fake_planned(q, k, v, mask, softmax_scale, flags, out_dtype, kernel_name, window_left, window_right, max_seqlen_q,
                  max_seqlen_k, softcap, *tensors):  # fmt: skip
    packed = "cu_seqlens_q" in _given(_forward.ALL_TENSORS, tensors)
    o_dims, dtype, lse_dims = _forward.outputs(q, v, out_dtype, packed)
    return empty(q, o_dims, dtype), empty(q, lse_dims, "float32")


@torch.library.custom_op("fa3::forward_out", mutates_args=("out",), schema=f"(Tensor(a!) out, {_PLANNED}) -> Tensor")
def forward_out_op(out, *inputs):
    """lse of a call of any kind, which writes o to `out`."""
    return _run_planned(*inputs, out=out)[1]


@forward_out_op.register_fake
def _(out, *inputs):
    return _fake_planned(*inputs)[1]


_SOFTCAP = 12  # among forward_planned's inputs
_FIRST_TENSOR = _SOFTCAP + 1
_SINKS = _FIRST_TENSOR + _forward.ALL_TENSORS.index("sinks")
_SLOPES = _FIRST_TENSOR + _forward.ALL_TENSORS.index("alibi_slopes")


def _keep_planned_for_backward(ctx, inputs, output):
    tensors = _given(_forward.ALL_TENSORS, inputs[_FIRST_TENSOR:])
    ctx.save_for_backward(*inputs[:3], *output, *(tensors.get(name) for name in _backward.TENSORS))
    ctx.how, ctx.numbers, ctx.inputs = inputs[3:6], inputs[8:_FIRST_TENSOR], len(inputs)
    ctx.without_gradients = _backward.without_gradients(**tensors)
    ctx.set_materialize_grads(False)


def _backward_of_planned(ctx, dout, dlse):
    if ctx.without_gradients:
        names = " and ".join(ctx.without_gradients)
        raise NotImplementedError(f"fa3.forward with {names} has no derivative: no gradient flows through it")
    if any(ctx.needs_input_grad[_SLOPES : _SLOPES + 1]):
        raise NotImplementedError("alibi_slopes has no gradient: it must not require one")
    if dout is None and dlse is None:
        return (None,) * ctx.inputs
    q, k, v, o, lse, *tensors = ctx.saved_tensors
    _refuse_e4m3(q, k)
    tensors = _given(_backward.TENSORS, tensors)
    mask, softmax_scale, flags = ctx.how
    window, maxima, softcap = ctx.numbers[:2], ctx.numbers[2:4], ctx.numbers[4]
    dout = torch.zeros_like(o) if dout is None else dout
    with_dsinks = any(ctx.needs_input_grad[_SINKS : _SINKS + 1])  # ops get no tensors behind the last that is given
    how = (mask, softmax_scale, flags & _backward.FLAGS, None, window, maxima, softcap, with_dsinks)
    gradients = [None] * ctx.inputs
    gradients[:3], dsinks = backward(dout, q, k, v, o, lse, dlse, *how, **tensors)
    gradients[_SINKS : _SINKS + 1] = [dsinks] * (_SINKS < ctx.inputs)
    return tuple(gradients)


planned = differentiable(forward_planned_op, _keep_planned_for_backward, _backward_of_planned)


# ---- backward ----


def readable(x):
    """x in strides that the kernels take: autograd hands over what it has, a broadcast number for example."""
    size = 16 // x.element_size()
    good = x.stride(-1) == 1 and all(stride % size == 0 for stride in x.stride()[:-1]) and x.data_ptr() % 16 == 0
    return x if good else x.clone(memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "fa3::backward",
    mutates_args=(),
    schema="(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? dlse, int mask, "
    "float softmax_scale, int flags, str? kernel_name=None, "
    + ", ".join(f"Tensor? {name}=None" for name in _backward.SCALES)
    + ") -> (Tensor, Tensor, Tensor)",
)
def backward_op(dout, q, k, v, o, lse, dlse, mask, softmax_scale, flags, kernel_name=None, *scales):
    how = (mask, softmax_scale, flags, kernel_name)
    return _backward.backward(readable(dout), q, k, v, o, lse, dlse, *how, **_given(_backward.SCALES, scales))


def _empty_gradients(dout, q, k, v):
    return [empty(q, *how) for how in _backward.outputs(dout, q, k, v)]


@backward_op.register_fake
def _(dout, q, k, v, o, lse, dlse, mask, softmax_scale, flags, kernel_name=None, *scales):
    return tuple(_empty_gradients(dout, q, k, v))


@torch.library.custom_op(
    "fa3::backward_planned",
    mutates_args=(),
    schema="(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? dlse, int mask, "
    "float softmax_scale, int flags, str? kernel_name, SymInt window_left, SymInt window_right, SymInt? max_seqlen_q, "
    "SymInt? max_seqlen_k, float softcap, bool with_dsinks, "
    + ", ".join(f"Tensor? {name}=None" for name in _backward.ALL_TENSORS)
    + ") -> Tensor[]",
)
def backward_planned_op(dout, q, k, v, o, lse, dlse, mask, softmax_scale, flags, kernel_name, window_left, window_right,
                        max_seqlen_q, max_seqlen_k, softcap, with_dsinks, *tensors):  # fmt: skip
    how = (mask, softmax_scale, flags, kernel_name, (window_left, window_right), (max_seqlen_q, max_seqlen_k), softcap)
    named = _given(_backward.ALL_TENSORS, tensors)
    return list(_backward.backward(readable(dout), q, k, v, o, lse, dlse, *how, with_dsinks, **named))


@backward_planned_op.register_fake
def _(dout, q, k, v, *how_and_tensors):
    with_dsinks, sinks = how_and_tensors[12:14] if len(how_and_tensors) > 13 else (False, None)
    return _empty_gradients(dout, q, k, v) + ([torch.empty_like(sinks)] if with_dsinks else [])


@torch.library.custom_op(
    "fa3::backward_out",
    mutates_args=("dq", "dk", "dv"),
    schema="(Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, "
    "Tensor lse, Tensor? dlse, int mask, float softmax_scale, int flags, str? kernel_name, SymInt window_left, "
    "SymInt window_right, SymInt? max_seqlen_q, SymInt? max_seqlen_k, float softcap, bool with_dsinks, "
    + ", ".join(f"Tensor? {name}=None" for name in _backward.ALL_TENSORS)
    + ") -> Tensor",
)
def backward_out_op(dq, dk, dv, dout, q, k, v, o, lse, dlse, mask, softmax_scale, flags, kernel_name, window_left,
                    window_right, max_seqlen_q, max_seqlen_k, softcap, with_dsinks, *tensors):  # fmt: skip
    """dsinks of a call of any kind, without elements if they are not wanted; the others are written to dq, dk, dv."""
    how = (mask, softmax_scale, flags, kernel_name, (window_left, window_right), (max_seqlen_q, max_seqlen_k), softcap)
    named = _given(_backward.ALL_TENSORS, tensors)
    into = {"dq": dq, "dk": dk, "dv": dv}
    made = _backward.backward(readable(dout), q, k, v, o, lse, dlse, *how, with_dsinks, into, **named)
    return made[3] if with_dsinks else q.new_empty(0, dtype=torch.float32)


@backward_out_op.register_fake
def _(dq, dk, dv, dout, q, k, v, *how_and_tensors):
    with_dsinks, sinks = how_and_tensors[12:14] if len(how_and_tensors) > 13 else (False, None)
    return torch.empty_like(sinks) if with_dsinks else q.new_empty(0, dtype=torch.float32)


_backward_op = differentiable(backward_op, remember_nothing, no_derivative("backward"))
_backward_planned_op = differentiable(backward_planned_op, remember_nothing, no_derivative("backward"))


def backward(dout, q, k, v, o, lse, dlse, mask, softmax_scale, flags, kernel=None, window=(0, 0), maxima=(None, None),
             softcap=0.0, with_dsinks=False, into=None, **tensors):  # fmt: skip
    """(dq, dk, dv) and dsinks, or None. into: where the three are written, by these names, or new memory."""
    inputs = (dout, q, k, v, o, lse, dlse, mask, softmax_scale, flags, kernel)
    if into:
        how = (*window, *maxima, softcap, with_dsinks, *(tensors.get(name) for name in _backward.ALL_TENSORS))
        dsinks = backward_out_op(*into.values(), *inputs, *how)
        return tuple(into.values()), dsinks if with_dsinks else None
    if not _forward.features(mask, flags, window, maxima, softcap, **tensors):
        return _backward_op(*inputs, *(tensors.get(name) for name in _backward.SCALES if tensors)), None
    how = (*window, *maxima, softcap, with_dsinks, *(tensors.get(name) for name in _backward.ALL_TENSORS))
    *gradients, dsinks = (*_backward_planned_op(*inputs, *how), *(() if with_dsinks else (None,)))
    return tuple(gradients), dsinks
