"""The calls as custom ops of torch, with what autograd and torch.compile need to know of them: fa3::forward,
fa3::forward_served, fa3::forward_out, fa3::backward, fa3::backward_served, fa3::backward_out, fa3::quantize,
fa3::append, fa3::combine and fa3::combine_out. Importing this file registers them."""

from __future__ import annotations

import functools

import torch
import torch.autograd.forward_ad as forward_mode

from .. import _abi, _arrays
from .._calls import backward as _backward
from .._calls import forward as _forward
from . import repeated


# ---- differentiation ----


def _callable(op, setup_context, backward):
    """`op` as the other files call it, with this derivative: inside torch.func's transforms as a Function, as ops with
    a derivative fail there. Forward-mode derivatives are refused; torch would take them to be zero without a word."""
    op.register_autograd(backward, setup_context=setup_context)
    methods = {"forward": lambda *inputs: tuple(op(*inputs)), "setup_context": setup_context, "backward": backward}
    methods = {name: staticmethod(method) for name, method in methods.items()}
    function = type("Function", (torch.autograd.Function,), {**methods, "generate_vmap_rule": True})

    def call(*inputs):
        compiling = torch.compiler.is_compiling()
        transformed = not compiling and torch._C._are_functorch_transforms_active()
        if forward_mode._current_level >= 0:  # in torch.func.jvp, too
            refused = transformed or compiling  # where other transforms, or the graph, may hide the tangents
            for x in inputs:  # in no function of its own, which torch 2.11 would compile to one that sees no tangents
                refused = refused or isinstance(x, torch.Tensor) and forward_mode.unpack_dual(x).tangent is not None
            if refused:
                raise NotImplementedError(
                    "fa3 has no forward-mode derivatives (jvp, jacfwd, hessian, torch.autograd.forward_ad), only those "
                    "in reverse mode: backward(), torch.autograd.grad, torch.func.grad, vjp, jacrev"
                )
        return (function.apply if transformed else op)(*inputs)

    return call


def _has_tangent(x):
    return forward_mode.unpack_dual(x).tangent is not None


def is_differentiated(x):
    """Whether someone wants a derivative by x."""
    return torch.is_grad_enabled() and x.requires_grad or _has_tangent(x)


def _remember_nothing(ctx, inputs, output):
    pass


def _no_derivative(name):
    def refuse(ctx, *gradients):
        raise NotImplementedError(f"fa3.{name} has no derivative: no gradient flows through it")

    return refuse


def _empty(like, dims, dtype):
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
    return _empty(q, o_dims, dtype), _empty(q, lse_dims, "float32")


def _keep_for_backward(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.how, ctx.inputs = inputs[3:6], len(inputs)
    ctx.set_materialize_grads(False)


def _refuse_e4m3(q, k):
    """Autograd would round gradients to e4m3, as it gives each tensor a gradient of its dtype."""
    if q.dtype == torch.float8_e4m3fn:
        raise NotImplementedError(
            "q.dtype is float8_e4m3fn, which has no backward pass in autograd: fa3.attention_fp8 quantizes and has one, "
            "and fa3.backward takes float8_e4m3fn"
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


_dense = _callable(forward_op, _keep_for_backward, _backward_of_dense)

_SERVED = (
    "Tensor q, Tensor k, Tensor v, int mask, float softmax_scale, int flags, ScalarType? out_dtype, str? kernel_name, "
    "SymInt window_left, SymInt window_right, SymInt? max_seqlen_q, SymInt? max_seqlen_k, "
    "float softcap, "
) + ", ".join(f"Tensor? {name}=None" for name in _forward.ALL_TENSORS)


def _run_served(q, k, v, mask, softmax_scale, flags, out_dtype, kernel_name, window_left, window_right, max_seqlen_q,
                max_seqlen_k, softcap, *tensors, out=None):  # fmt: skip
    numbers = {"window": (window_left, window_right), "maxima": (max_seqlen_q, max_seqlen_k), "softcap": softcap}
    how = (mask, softmax_scale, flags, out_dtype, kernel_name)
    return _forward.forward(q, k, v, *how, **numbers, **_given(_forward.ALL_TENSORS, tensors), out=out)


@torch.library.custom_op("fa3::forward_served", mutates_args=(), schema=f"({_SERVED}) -> (Tensor, Tensor)")
def forward_served_op(*inputs):
    return _run_served(*inputs)


@forward_served_op.register_fake
def _fake_served(q, k, v, mask, softmax_scale, flags, out_dtype, kernel_name, window_left, window_right, max_seqlen_q,
                 max_seqlen_k, softcap, *tensors):  # fmt: skip
    packed = "cu_seqlens_q" in _given(_forward.ALL_TENSORS, tensors)
    o_dims, dtype, lse_dims = _forward.outputs(q, v, out_dtype, packed)
    return _empty(q, o_dims, dtype), _empty(q, lse_dims, "float32")


@torch.library.custom_op("fa3::forward_out", mutates_args=("out",), schema=f"(Tensor(a!) out, {_SERVED}) -> Tensor")
def forward_out_op(out, *inputs):
    """lse of a call of any kind, which writes o to `out`."""
    return _run_served(*inputs, out=out)[1]


@forward_out_op.register_fake
def _(out, *inputs):
    return _fake_served(*inputs)[1]


_SOFTCAP = 12  # among forward_served's inputs
_FIRST_TENSOR = _SOFTCAP + 1
_SINKS = _FIRST_TENSOR + _forward.ALL_TENSORS.index("sinks")
_SLOPES = _FIRST_TENSOR + _forward.ALL_TENSORS.index("alibi_slopes")


def _keep_served_for_backward(ctx, inputs, output):
    tensors = _given(_forward.ALL_TENSORS, inputs[_FIRST_TENSOR:])
    ctx.save_for_backward(*inputs[:3], *output, *(tensors.get(name) for name in _backward.TENSORS))
    ctx.how, ctx.numbers, ctx.inputs = inputs[3:6], inputs[8:_FIRST_TENSOR], len(inputs)
    ctx.without_gradients = _backward.without_gradients(**tensors)
    ctx.set_materialize_grads(False)


def _backward_of_served(ctx, dout, dlse):
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


_served = _callable(forward_served_op, _keep_served_for_backward, _backward_of_served)


# ---- backward ----


def _readable(x):
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
    return _backward.backward(_readable(dout), q, k, v, o, lse, dlse, *how, **_given(_backward.SCALES, scales))


def _empty_gradients(dout, q, k, v):
    return [_empty(q, *how) for how in _backward.outputs(dout, q, k, v)]


@backward_op.register_fake
def _(dout, q, k, v, o, lse, dlse, mask, softmax_scale, flags, kernel_name=None, *scales):
    return tuple(_empty_gradients(dout, q, k, v))


@torch.library.custom_op(
    "fa3::backward_served",
    mutates_args=(),
    schema="(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? dlse, int mask, "
    "float softmax_scale, int flags, str? kernel_name, SymInt window_left, SymInt window_right, SymInt? max_seqlen_q, "
    "SymInt? max_seqlen_k, float softcap, bool with_dsinks, "
    + ", ".join(f"Tensor? {name}=None" for name in _backward.ALL_TENSORS)
    + ") -> Tensor[]",
)
def backward_served_op(dout, q, k, v, o, lse, dlse, mask, softmax_scale, flags, kernel_name, window_left, window_right,
                       max_seqlen_q, max_seqlen_k, softcap, with_dsinks, *tensors):  # fmt: skip
    how = (mask, softmax_scale, flags, kernel_name, (window_left, window_right), (max_seqlen_q, max_seqlen_k), softcap)
    named = _given(_backward.ALL_TENSORS, tensors)
    return list(_backward.backward(_readable(dout), q, k, v, o, lse, dlse, *how, with_dsinks, **named))


@backward_served_op.register_fake
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
    made = _backward.backward(_readable(dout), q, k, v, o, lse, dlse, *how, with_dsinks, into, **named)
    return made[3] if with_dsinks else q.new_empty(0, dtype=torch.float32)


@backward_out_op.register_fake
def _(dq, dk, dv, dout, q, k, v, *how_and_tensors):
    with_dsinks, sinks = how_and_tensors[12:14] if len(how_and_tensors) > 13 else (False, None)
    return torch.empty_like(sinks) if with_dsinks else q.new_empty(0, dtype=torch.float32)


_backward_op = _callable(backward_op, _remember_nothing, _no_derivative("backward"))
_backward_served_op = _callable(backward_served_op, _remember_nothing, _no_derivative("backward"))


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
    *gradients, dsinks = (*_backward_served_op(*inputs, *how), *(() if with_dsinks else (None,)))
    return tuple(gradients), dsinks


# ---- quantization and combination ----


@torch.library.custom_op(
    "fa3::quantize",
    mutates_args=(),
    schema="(Tensor x, str scales, bool tiles, bool mean, int flags, int seed, Tensor? rotary_cos, Tensor? rotary_sin, "
    "Tensor? k_mean, float softmax_scale) -> Tensor[]",
)
def quantize_op(x, *how):
    return [tensor for tensor in _arrays.quantize(x, *how) if tensor is not None]


@quantize_op.register_fake
def _(x, scales, tiles, mean, flags, seed, rotary_cos, rotary_sin, k_mean, softmax_scale):
    batch, seqlen, heads, head_dim = x.shape
    made = [
        _empty(x, _arrays.tile_dims(*x.shape) if tiles else x.shape, "float8_e4m3fn"),
        _empty(x, _arrays.scale_dims(scales, batch, heads, seqlen), "float32"),
    ]
    if mean:
        made.append(_empty(x, (batch, heads, head_dim), "float32"))
    if k_mean is not None:
        made.append(_empty(x, (batch, heads, seqlen), "float32"))
    return made


_quantize = _callable(quantize_op, _remember_nothing, _no_derivative("quantize"))


def quantize(x, scales, tiles, mean, flags, seed, rotary_cos, rotary_sin, k_mean, softmax_scale):
    seed -= 2**64 if seed >= 2**63 else 0  # an op's numbers are signed; the library takes it as it was
    made = _quantize(x, scales, tiles, mean, flags, seed, rotary_cos, rotary_sin, k_mean, softmax_scale)
    return _arrays.Quantized(*made[:2], made[2] if mean else None, made[-1] if k_mean is not None else None)


# ---- attention in FP8 ----


@functools.lru_cache(maxsize=64)
def _signs(seed, head_dim):
    """Those of FA3_QUANTIZE_INCOHERENT for the columns."""
    def is_negative(i):
        z = (seed + i + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return (z ^ z >> 31) >> 63

    return [-1.0 if is_negative(i) else 1.0 for i in range(head_dim)]


def turned_back(gradient, seed):
    """The gradient of what FA3_QUANTIZE_INCOHERENT has made a tensor of, as that of the tensor: the same orthogonal
    matrix from the other side. Its elements, times sqrt(n), are 1 and -1, so that each product is rounded once."""
    head_dim = gradient.shape[-1]
    n = head_dim & -head_dim
    hadamard = torch.ones(1, 1, dtype=torch.float32, device=gradient.device)
    while hadamard.shape[0] < n:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    signs = torch.tensor(_signs(seed, head_dim), dtype=torch.float32, device=gradient.device)
    matrix = torch.block_diag(*[hadamard] * (head_dim // n)) * signs
    rows = gradient.reshape(-1, head_dim)
    turned = torch.addmm(rows.new_zeros(()), rows, matrix.to(rows.dtype), beta=0, alpha=n**-0.5)
    return turned.reshape(gradient.shape)


class _Fp8(torch.autograd.Function):
    """Attention of what `quantize` makes of q, k and v, whose gradients are taken for those of q, k and v."""

    @staticmethod
    def forward(ctx, q, k, v, mask, softmax_scale, flags, scales, seed):
        mixed = (0, 0) if seed is None else (_abi.QUANTIZE_INCOHERENT, seed)
        k8 = quantize(k, scales, False, True, *mixed, None, None, None, 0.0)
        q8 = quantize(q, scales, False, False, *mixed, None, None, k8.mean, softmax_scale)
        v8 = quantize(v, scales, True, True, 0, 0, None, None, None, 0.0)
        of_scales = (q8.scale, k8.scale, v8.scale)
        o, lse = forward_op(q8.y, k8.y, v8.y, mask, softmax_scale, flags & ~_backward.FLAGS, q.dtype, None, *of_scales,
                            None, v8.mean, q8.lse_offset)  # fmt: skip
        ctx.save_for_backward(q8.y, k8.y, v8.y, o, lse, *of_scales, v8.mean, q8.lse_offset, k8.mean)
        ctx.how = mask, softmax_scale, flags & _backward.FLAGS, seed
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        if dout is None and dlse is None:
            return (None,) * 8
        q, k, v, o, lse, *scales, k_mean = ctx.saved_tensors
        *how, seed = ctx.how
        dout = torch.zeros_like(o) if dout is None else dout
        dq, dk, dv = backward_op(dout, q, k, v, o, lse, dlse, *how, None, *scales)
        if dlse is not None:  # lse has softmax_scale * q . k_mean in it, which the library takes for a constant
            scale = how[1] or q.shape[-1] ** -0.5
            means = k_mean.repeat_interleave(q.shape[2] // k.shape[2], 1)
            dq = (dq + scale * dlse.transpose(1, 2)[..., None] * means[:, None]).to(dq.dtype)
        if seed is not None:
            dq, dk = turned_back(dq, seed), turned_back(dk, seed)
        return dq, dk, dv, *(None,) * 5


def attention_fp8(q, k, v, mask, softmax_scale, flags, scales, seed):
    """(o, lse)"""
    q, k, v, flags, _ = _resolved(q, k, v, flags, None)
    return _Fp8.apply(q, k, v, mask, softmax_scale, flags, scales, seed)


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
    _refuse_gradients("fa3.append", tensors)
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


_combine = _callable(combine_op, _remember_nothing, _no_derivative("combine"))


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
    _refuse_gradients("fa3.combine with out", {"o_parts": o_parts, "lse_parts": lse_parts, "out": out})
    return out, combine_out_op(out, o_parts, lse_parts)


# ---- what the public functions call ----


def _resolved(q, k, v, flags, out_dtype, tensors=None):
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


def _refuse_gradients(name, tensors):
    """For ops that write to their arguments, which have no place for the refusal that the others have."""
    for argument, x in tensors.items():
        if x is not None and is_differentiated(x):
            raise NotImplementedError(f"{name} has no derivative: no gradient flows through it, and {argument} has one")


def forward(q, k, v, mask, softmax_scale, flags, out_dtype=None, kernel=None, window=(0, 0), maxima=(None, None),
            softcap=0.0, out=None, **tensors):  # fmt: skip
    """(o, lse)"""
    if out is not None:
        _refuse_gradients("fa3.forward with out", {"q": q, "k": k, "v": v, "out": out, **tensors})
    q, k, v, flags, out_dtype = _resolved(q, k, v, flags, out_dtype, tensors)
    how = (mask, softmax_scale, flags, out_dtype, kernel)
    is_plain = repeated.is_plain((q, k, v, out, *tensors.values()))
    if out is None and not is_plain and not _forward.features(mask, flags, window, maxima, softcap, **tensors):
        return _dense(q, k, v, *how, *(tensors.get(name) for name in _forward.SCALES if tensors))
    planned = tensors.get("schedule")
    if planned is not None and not torch.compiler.is_compiling():
        made_for = getattr(planned, "fa3_made_for", None)
        if made_for not in (None, _forward.signature(q, k, v, *how, window, maxima, softcap, **tensors)):
            raise ValueError("schedule was made for other arguments: shapes, dtypes, masks and maxima must be the same")
    if is_plain:
        o, lse = _forward.forward(q, k, v, *how, window, maxima, softcap, out, **tensors)
        repeated.written(out)
        return o, lse
    inputs = (q, k, v, *how, *window, *maxima, softcap, *(tensors.get(name) for name in _forward.ALL_TENSORS))
    return _served(*inputs) if out is None else (out, forward_out_op(out, *inputs))


def schedule(q, k, v, mask, softmax_scale, flags, out_dtype=None, kernel=None, window=(0, 0), maxima=(None, None),
             softcap=0.0, out=None, **tensors):  # fmt: skip
    """A tensor that knows what it was made for; its copies do not."""
    if torch.compiler.is_compiling():
        raise NotImplementedError("fa3.forward_schedule is not compiled: call it before what is")
    q, k, v, flags, out_dtype = _resolved(q, k, v, flags, out_dtype, tensors)
    how = (mask, softmax_scale, flags, out_dtype, kernel)
    made = _forward.schedule(q, k, v, *how, window, maxima, softcap, out, **tensors)
    made.fa3_made_for = _forward.signature(q, k, v, *how, window, maxima, softcap, **tensors)
    return made
